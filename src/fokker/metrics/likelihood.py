r"""Log-likelihood by the probability-flow ODE.

The flow :math:`dx / d\sigma = \sigma \nabla E(x, \sigma)` carries the laws :math:`p_\sigma` of
data plus noise to one another (`fokker.samplers.flow`). Along it the density changes by the
divergence of the flow, :math:`\sigma \Delta E`. From :math:`\sigma_{min}` to :math:`\sigma_{max}`,
in the variable :math:`\log \sigma` in which both ends are equally smooth,

.. math::
    \log p_{\sigma_{min}}(x) = \log \pi(x_{max})
    + \int \sigma^2 \Delta E(x_\sigma, \sigma) \, d\log\sigma, \qquad
    \frac{dx}{d\log\sigma} = \sigma^2 \nabla E(x, \sigma),

with the Gaussian :math:`\pi = \mathcal{N}(m, \sigma_{max}^2 + v)` for :math:`p_{\sigma_{max}}`,
where m and v are mean and variance of the data. With C their covariance the error is about
:math:`\|C - v\| / \sigma_{max}^2` nats, and :math:`\|m\| / \sigma_{max}` if the mean is not given.

The Laplacian is exact, or Hutchinson's estimate with Rademacher probes held fixed along the path,
as an adaptive solver asks for a smooth function.

**It needs no Z**, and an energy has one more likelihood: its own,
:math:`-E(x, \sigma_{min}) - \log Z`. Their gap

.. math:: \log Z = -E(x, \sigma_{min}) - \log p_{\sigma_{min}}(x)

is the same at all x if the levels of the energy fit together, that is, if it solves the
Fokker–Planck equation (`fokker.metrics.residual`).

**Images.** A pixel k of 0, …, 255 is :math:`k / 127.5 - 1`. With uniform noise as wide as a level,
:math:`x = (k + u - \tfrac{1}{2}) / 127.5 - 1`, the density bounds the likelihood of the pixels,

.. math:: \log_2 P(k) \geq \mathbb{E}_u \log_2 p(x) - D \log_2 127.5 ,

in bits, and bits a dimension are :math:`-\log_2 P / D`. The density is that of data with noise
:math:`\sigma_{min}` on top.

References:
    | FFJORD: Free-form Continuous Dynamics for Scalable Reversible Generative Models
    | (Grathwohl et al., 2019), https://arxiv.org/abs/1810.01367
    | Score-Based Generative Modeling through SDEs (Song et al., 2021)
    | https://arxiv.org/abs/2011.13456
"""

__all__ = ["Likelihood", "bits_per_dimension", "dequantize", "log_likelihood"]

import math
import torch

from torch import Tensor
from typing import NamedTuple

from .. import checks
from ..derivatives import Exact, Jet, curvature, probe
from ..energies import Energy, Slice
from ..samplers.field import Conditional, finite


class Likelihood(NamedTuple):
    r"""The log-likelihood of points."""

    log_prob: Tensor  # (B), nats
    evaluations: int  # of the jet


@torch.no_grad()
def log_likelihood(
    energy: Conditional,
    x: Tensor,
    sigma_min: float = 0.002,
    sigma_max: float = 80.0,
    mean: Tensor | float = 0.0,
    variance: Tensor | float = 0.0,
    probes: int | None = None,
    generator: torch.Generator | None = None,
    tolerance: float = 1e-5,
) -> Likelihood:
    r"""Returns :math:`\log p_{\sigma_{min}}(x)` by the probability-flow ODE, in nats.

    The steps of the solver (Dormand–Prince 5) suit all points of the batch at once.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        x: The points, with shape :math:`(B, *)`.
        sigma_min: The level of the density.
        sigma_max: The level at which it is taken for Gaussian.
        mean: The mean of the data, a number or a tensor that broadcasts with a point.
        variance: The variance of the data, likewise.
        probes: The number of probes of the Laplacian; exact if not given, by the energy's own jet
            or one pass a coordinate.
        generator: The source of randomness of the probes.
        tolerance: The error of a step of the solver, absolute and relative.

    Example:
        >>> energy = lambda x, sigma: x.square().sum(1) / (2 * (1 + sigma**2))  # of N(0, 1)
        >>> log_likelihood(energy, torch.zeros(1, 2), variance=1.0).log_prob  # -log(2 pi)
        tensor([-1.838])
    """
    from torchdiffeq import odeint

    checks.points(x)
    checks.positive(sigma_min=sigma_min, sigma_max=sigma_max, tolerance=tolerance)
    if sigma_min >= sigma_max:
        raise ValueError(
            f"expected sigma_min < sigma_max, got sigma_min={sigma_min}, sigma_max={sigma_max}"
        )
    if probes is not None:
        checks.positive_integer(probes=probes)
    mean, variance = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in (mean, variance))
    if not (variance >= 0).all():
        raise ValueError(f"expected a variance >= 0, got {float(variance.min()):.4g}")
    directions = [probe(x, "rademacher", generator) for _ in range(probes or 0)]
    evaluations = 0

    def jet(x: Tensor, sigma: Tensor) -> Jet:
        at_level = energy.at(sigma) if isinstance(energy, Energy) else Slice(energy, sigma)
        if probes is None:
            return Exact()(at_level, x)
        out = curvature(at_level, x, directions)
        return out._replace(laplacian=out.laplacian / probes)

    def rate(log_sigma: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal evaluations
        evaluations += 1
        sigma = torch.exp(log_sigma).to(x.dtype)
        _, g, laplacian = jet(state[0], sigma)
        finite(torch.cat([g.flatten(1), laplacian[:, None]], dim=1), float(sigma))
        return sigma**2 * g, sigma**2 * laplacian

    ends = torch.tensor([sigma_min, sigma_max], dtype=torch.float64, device=x.device).log()
    start = (x.detach(), x.new_zeros(len(x)))
    # the solver's own first step is 1 / sigma^2 long, and its last goes beyond the end
    options = {"first_step": 0.01, "step_t": ends[1:]}
    points, gains = odeint(
        rate, start, ends, rtol=tolerance, atol=tolerance, method="dopri5", options=options
    )
    variance = variance + sigma_max**2
    shift = points[-1] - mean
    log_prior = -(shift.square() / variance + torch.log(2 * math.pi * variance)).flatten(1).sum(1)
    return Likelihood(log_prior / 2 + gains[-1], evaluations)


def dequantize(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Returns images of 256 levels in [−1, 1] with uniform noise as wide as a level."""
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return x + (u - 0.5) / 127.5


def bits_per_dimension(log_prob: Tensor, dimension: int) -> Tensor:
    r"""Returns the bits a dimension of dequantized images in [−1, 1] of 256 levels, :math:`(B)`.

    Arguments:
        log_prob: The log-densities in nats, with shape :math:`(B)`.
        dimension: The number D of coordinates of an image.

    Example:
        >>> D = 3 * 32 * 32
        >>> uniform = torch.tensor(-D * math.log(2 + 1 / 127.5))  # on the 256 levels
        >>> bits_per_dimension(uniform, D)
        tensor(8.)
    """
    checks.positive_integer(dimension=dimension)
    return -log_prob / (dimension * math.log(2)) + math.log2(127.5)
