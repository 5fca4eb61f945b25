r"""Score matching: exact, sliced and denoising.

All three minimize a Fisher divergence,
:math:`\tfrac{1}{2} \mathbb{E} \|\nabla \log p - \nabla \log p_\theta\|^2`, without knowing
:math:`\nabla \log p`. They are limits of DCD: score matching as its time goes to zero at clean
data, denoising score matching as its step goes to zero at data that carries noise (with Stein's
Laplacian). The paper leaves them out of its comparison because they minimize its metric; that is a
reason to include them.
"""

__all__ = ["DenoisingScoreMatching", "ScoreMatching", "SlicedScoreMatching"]

import torch

from dataclasses import dataclass
from torch import Tensor

from .base import Objective, Output
from .. import checks
from ..derivatives import (
    EnergyLike,
    Exact,
    Hutchinson,
    Laplacian,
    curvature,
    gradient,
    probe,
)
from ..shapes import dot


@dataclass(frozen=True)
class ScoreMatching(Objective):
    r"""Creates Hyvärinen's score matching.

    .. math:: L = \mathbb{E} \big[ \tfrac{1}{2} \|\nabla E(x)\|^2 - \Delta E(x) \big]

    Unbiased. Its minimum is :math:`-\tfrac{1}{2} \mathbb{E} \|\nabla \log p\|^2`, the optimum in
    the tables of the 2-D study.

    References:
        | Estimation of Non-Normalized Statistical Models by Score Matching (Hyvärinen, 2005)

    Arguments:
        laplacian: The way to the Laplacian; at clean points any but `Stein`.
    """

    laplacian: Laplacian = Exact()

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        e, g, laplacian = self.laplacian(energy, x, generator)
        loss = (dot(g, g) / 2 - laplacian).mean()
        return Output(loss, None, {"energy": e.detach().mean()})


@dataclass(frozen=True)
class SlicedScoreMatching(Objective):
    r"""Creates sliced score matching, along random directions v.

    .. math:: L = \mathbb{E} \big[ \tfrac{1}{2} (v \cdot \nabla E)^2 - v^\top H v \big]

    Unbiased. With `variance_reduced` the first term is its exact mean,
    :math:`\tfrac{1}{2} \|\nabla E\|^2`: then it is `ScoreMatching` with Hutchinson's Laplacian.

    References:
        | Sliced Score Matching: A Scalable Approach to Density and Score Estimation
          (Song et al., 2019)
        | https://arxiv.org/abs/1905.07088

    Arguments:
        probes: The number of directions a point, Rademacher.
        variance_reduced: Whether the first term is integrated.
    """

    probes: int = 1
    variance_reduced: bool = True

    def __post_init__(self) -> None:
        checks.positive_integer(probes=self.probes)

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        if self.variance_reduced:
            exact = ScoreMatching(Hutchinson(self.probes))
            return exact.compute(energy, x, state, generator)
        v = [probe(x, "rademacher", generator) for _ in range(self.probes)]
        e, g, bend = curvature(energy, x, v)
        square = torch.stack([dot(p, g) ** 2 for p in v]).sum(0)
        loss = (square / 2 - bend).mean() / self.probes
        return Output(loss, None, {"energy": e.detach().mean()})


@dataclass(frozen=True)
class DenoisingScoreMatching(Objective):
    r"""Creates denoising score matching at one noise level.

    .. math::
        L = \mathbb{E} \, \tfrac{1}{2} \|\nabla E(x + \sigma \varepsilon) - \varepsilon /
        \sigma\|^2

    Its minimizer is the energy of the *smoothed* data, :math:`p * \mathcal{N}(0, \sigma^2)`: at
    the truth the expected gradient is :math:`O(\sigma^2)`. No Laplacian.

    References:
        | A Connection Between Score Matching and Denoising Autoencoders (Vincent, 2011)

    Arguments:
        sigma: The standard deviation :math:`\sigma` of the noise.
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        checks.positive(sigma=self.sigma)

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        e, g = gradient(energy, x + self.sigma * eps)
        miss = g - eps / self.sigma
        return Output(dot(miss, miss).mean() / 2, None, {"energy": e.detach().mean()})
