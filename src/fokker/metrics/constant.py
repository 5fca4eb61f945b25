r"""The constant of an energy of every level, and likelihoods in one pass.

If the levels are tied (`fokker.objectives.levels.ties`), :math:`E(x, \sigma) = -\log
p_\sigma(x) + c` with one c for all levels. At a level :math:`\sigma_{max}` far above the spread of
the data, :math:`p_\sigma` is nearly the Gaussian :math:`\pi = \mathcal{N}(m, \sigma_{max}^2 + v)`
with mean m and variances v of the data, so c is known from there,

.. math:: \hat c = \frac{1}{N} \sum_n \big[ E(z_n, \sigma_{max}) + \log \pi(z_n) \big], \qquad
    z_n = x_n + \sigma_{max} \varepsilon_n ,

and the likelihood of any level is one evaluation of the energy,

.. math:: \log p_\sigma(x) = \hat c - E(x, \sigma) .

**The assumption and its error.** The expectation of :math:`\hat c` is :math:`c -
\mathrm{KL}(p_{\sigma_{max}} \| \pi)`, so every log-likelihood is too low by this many nats: with C
the covariance of the data about :math:`\tfrac{1}{4} \|C - \mathrm{diag}(v)\|_F^2 /
\sigma_{max}^4`. Its other error, from points, is the spread of the bracket divided by
:math:`\sqrt{N}`. Where the energy is right at the top the spread is the square root of twice that
divergence: a spread of many nats says that this level was not learned.

An energy whose levels are *not* tied has a constant of its own at each level. Then the constant of
the top level says nothing about any other, and neither does the likelihood.
"""

__all__ = ["Constant", "TiedEnergy", "top_constant"]

import math
import torch

from torch import Tensor
from typing import NamedTuple

from .. import checks
from ..derivatives import value
from ..energies import Energy
from ..samplers.field import Conditional
from ..shapes import constant


class Constant(NamedTuple):
    r"""The constant of an energy of every level, :math:`E = -\log p_\sigma + c`."""

    value: float  # c, nats
    error: float  # standard error, from the number of points
    spread: float  # standard deviation of a point


@torch.no_grad()
def top_constant(
    energy: Conditional,
    x: Tensor,
    sigma_max: float = 80.0,
    mean: Tensor | float = 0.0,
    variance: Tensor | float = 0.0,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Constant:
    r"""Returns the constant of an energy, from the level where the law is a known Gaussian.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        x: Two clean points or more, with shape :math:`(N, *)`.
        sigma_max: The level :math:`\sigma_{max}`.
        mean: The mean of the data, a number or a tensor that broadcasts with a point.
        variance: The variance of the data, likewise.
        generator: The source of randomness.
        batch: The number of points at once.

    Example:
        >>> energy = lambda x, s: x.square().sum(1) / (2 * (1 + s**2)) + torch.log(1 + s**2)
        >>> x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))  # in the plane
        >>> found = top_constant(energy, x, 10.0, variance=1.0)
        >>> found.value, found.spread  # -log(2 pi)
        (-1.8379, 0.0000)
    """
    checks.points(x)
    checks.positive(sigma_max=sigma_max)
    checks.positive_integer(batch=batch)
    if len(x) < 2:
        raise ValueError(f"expected two points or more, to have an error, got {len(x)}")
    sigma, total = constant(sigma_max, x), torch.as_tensor(variance).to(x) + sigma_max**2
    found = []
    for part in x.split(batch):
        eps = torch.randn(part.shape, generator=generator, dtype=x.dtype, device=x.device)
        z = part + sigma_max * eps
        e = value(lambda p: energy(p, sigma), z)
        square = (z - mean).square() / total + torch.log(2 * math.pi * total)
        found.append(e.double() - square.double().flatten(1).sum(1) / 2)
    gaps = torch.cat(found)
    if not torch.isfinite(gaps).all():
        raise FloatingPointError(
            f"expected finite energies at sigma {sigma_max:.4g}, got NaN or infinity at"
            f" {int((~torch.isfinite(gaps)).sum())} of {len(gaps)} points"
        )
    spread = float(gaps.std())
    return Constant(float(gaps.mean()), spread / math.sqrt(len(gaps)), spread)


class TiedEnergy(Energy):
    r"""Creates an energy of every level with its constant: :math:`-\log p_\sigma(x)`.

    Arguments:
        energy: The energy :math:`E(x, \sigma)`, whose levels are tied.
        constant: Its constant c, as from `top_constant`.
        sigma_min: The level of `log_prob`, the least that was trained on.

    Example:
        >>> energy = lambda x, sigma: x.square().sum(1) / (2 * (1 + sigma**2)) + torch.log(
        ...     1 + sigma**2
        ... )  # of N(0, 1) in the plane
        >>> TiedEnergy(energy, -1.8379).log_prob(torch.zeros(1, 2))  # -log(2 pi)
        tensor([-1.8379])
    """

    def __init__(
        self, energy: Conditional, constant: float | Constant, sigma_min: float = 0.002
    ) -> None:
        super().__init__()
        checks.positive(sigma_min=sigma_min)
        found = constant.value if isinstance(constant, Constant) else constant
        if not checks.number(found):
            raise ValueError(f"expected constant to be a finite number, got {found!r}")
        self.energy, self.constant, self.sigma_min = energy, float(found), float(sigma_min)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.energy(x, sigma) - self.constant

    @torch.no_grad()
    def log_prob(self, x: Tensor, sigma: float | None = None) -> Tensor:
        r"""Returns :math:`\log p_\sigma(x)` in nats, with shape :math:`(B)`: one pass.

        Arguments:
            x: The points, with shape :math:`(B, *)`.
            sigma: The level; the least if not given.
        """
        checks.points(x)
        level = self.sigma_min if sigma is None else sigma
        checks.positive(sigma=level)
        return -value(lambda p: self(p, constant(level, x)), x)

    def extra_repr(self) -> str:
        return f"constant={self.constant:g}, sigma_min={self.sigma_min:g}"
