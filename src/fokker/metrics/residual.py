r"""Do the levels of a time-dependent energy fit together? The Fokker–Planck residual.

Under noise of variance :math:`\tau = \sigma^2` a density solves the heat equation,
:math:`\partial_\tau p = \tfrac{1}{2} \Delta p`, and its logarithm

.. math:: \partial_\tau \log p = \tfrac{1}{2} \big( \Delta \log p + \|\nabla \log p\|^2 \big) .

With :math:`\log p = -E - \log Z(\tau)` the residual of an energy,

.. math:: R(x) = -\partial_\tau E - \tfrac{1}{2} \big( \|\nabla E\|^2 - \Delta E \big), \qquad
    \partial_\tau = \frac{1}{2 \sigma} \partial_\sigma ,

is :math:`\tfrac{d}{d\tau} \log Z`, the same at all x. Its variance over points of :math:`p_\sigma`
measures by how much the energies of neighboring levels disagree: zero for an exact solution,
whatever constants :math:`Z(\tau)` it carries. R is a rate; :math:`\sigma^2 R` has no units, and
its variance can be compared between levels.

References:
    | FP-Diffusion: Improving Score-based Diffusion Models by Enforcing the Underlying Score
    | Fokker-Planck Equation (Lai et al., 2023), https://arxiv.org/abs/2210.04296
"""

__all__ = ["Residual", "fokker_planck_residual"]

import torch

from torch import Tensor
from typing import NamedTuple

from .. import checks
from ..derivatives import Exact, Laplacian
from ..energies import Energy, Slice
from ..samplers.field import Conditional
from ..shapes import dot


class Residual(NamedTuple):
    r"""The Fokker–Planck residual at points of one level."""

    values: Tensor  # (B), R
    mean: float  # the estimate of d log Z / d tau
    variance: float


@torch.no_grad()
def fokker_planck_residual(
    energy: Conditional,
    x: Tensor,
    sigma: float,
    laplacian: Laplacian = Exact(),
    generator: torch.Generator | None = None,
) -> Residual:
    r"""Returns the residual of an energy at one level.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and levels :math:`()` or :math:`(B)` to
            :math:`(B)`.
        x: Two points or more of :math:`p_\sigma` (data with noise), with shape :math:`(B, *)`.
        sigma: The level :math:`\sigma > 0`.
        laplacian: The way to the Laplacian. That of a random one adds to the variance of R.
        generator: The source of randomness of the Laplacian.

    Example:
        >>> slow = lambda x, sigma: x.square().sum(1) / (2 * (1 + sigma**2 / 2))  # half the noise
        >>> fokker_planck_residual(slow, torch.tensor([[0.0, 0.0], [2.0, 0.0]]), 1.0).values
        tensor([0.6667, 0.2222])
    """
    checks.points(x)
    checks.positive(sigma=sigma)
    if len(x) < 2:
        raise ValueError(f"expected two points or more, to have a variance, got {len(x)}")
    levels = torch.full((len(x),), sigma, dtype=x.dtype, device=x.device)
    slope = torch.func.grad(lambda s: energy(x, s).sum())(levels)  # points are independent
    at_level = energy.at(sigma) if isinstance(energy, Energy) else Slice(energy, sigma)
    _, g, lap = laplacian(at_level, x, generator)
    r = -slope / (2 * sigma) - (dot(g, g) - lap) / 2
    if not torch.isfinite(r).all():
        raise FloatingPointError(
            f"expected a finite residual at sigma {sigma:.4g}, got NaN or infinity at"
            f" {int((~torch.isfinite(r)).sum())} of {len(x)} points"
        )
    return Residual(r, float(r.double().mean()), float(r.double().var()))
