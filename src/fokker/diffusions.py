r"""Diffusions.

A diffusion is an Itô process

.. math:: dx_t = F(x_t, t) \, dt + G(t) \, dw_t

with a scalar :math:`G`. It carries data and model alike, and gives three things to the divergence:

- the coefficients :math:`F`, :math:`\nabla \cdot F` and :math:`G`, which drive the energy
  (`fokker.evolution`);
- their increments over a step, :math:`\int_s^t F \, du`, :math:`\int_s^t \nabla \cdot F \, du` and
  :math:`\int_s^t G^2 \, du`, at a fixed x;
- a Gaussian kernel of :math:`x_t \mid x_s`, from which points are drawn.

Increments and kernel are exact for the linear diffusions (`Linear`: VE, EDM, VP), with
:math:`F = a(t) \, x` and

.. math::
    x_t \mid x_s \sim \mathcal{N}(\alpha_{t|s} x_s, \sigma_{t|s}^2 I), \quad
    \alpha_{t|s} = e^{\int_s^t a \, du}, \quad
    \sigma_{t|s}^2 = \int_s^t \alpha_{t|u}^2 G(u)^2 \, du,

and one Euler–Maruyama step for any other (`Langevin`, `Custom`). The process of EDM starts with
:math:`G(0) = 0`: only the increment of :math:`\sigma^2`, not :math:`G(0)^2 t`, describes its
first step.

Shapes: a point is :math:`(B, *)`, a time :math:`()` or :math:`(B)`.
"""

__all__ = [
    "DIFFUSIONS",
    "EDM",
    "VE",
    "VP",
    "Custom",
    "Diffusion",
    "Increment",
    "Langevin",
    "Linear",
]

import abc
import numpy as np
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor
from typing import NamedTuple

from . import checks
from .derivatives import EnergyLike, Exact, gradient
from .shapes import align, dimension, dot

# of the 32-point Gauss–Legendre rule on [-1, 1]
NODES, WEIGHTS = (v.tolist() for v in np.polynomial.legendre.leggauss(32))


class Increment(NamedTuple):
    r"""The coefficients of a diffusion, integrated over a step at a fixed point."""

    drift: Tensor  # (B, *), integral of F
    divergence: Tensor  # () or (B), integral of the divergence of F
    variance: Tensor  # () or (B), integral of G^2


class Diffusion(abc.ABC):
    r"""Abstract diffusion with a general drift. Subclasses are frozen values."""

    @abc.abstractmethod
    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`F(x, t)`, with shape :math:`(B, *)`."""

    @abc.abstractmethod
    def divergence(self, x: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\nabla \cdot F(x, t)`, with shape :math:`()` or :math:`(B)`."""

    @abc.abstractmethod
    def coefficient(self, t: Tensor) -> Tensor:
        r"""Returns :math:`G(t)`, with the shape of `t`."""

    def variance(self, s: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\int_s^t G(u)^2 \, du`, with the shape of `t`.

        By 32-point Gauss–Legendre quadrature, exact for polynomials :math:`G^2` up to degree 63:
        :math:`G(s)^2 (t - s)` would vanish where :math:`G(s) = 0`.
        """
        half, middle = (t - s) / 2, (t + s) / 2
        squares = [self.coefficient(middle + half * u) ** 2 for u in NODES]
        return half * sum(w * g2 for w, g2 in zip(WEIGHTS, squares, strict=True))

    def increment(self, x: Tensor, s: Tensor, t: Tensor) -> Increment:
        r"""Returns the increments of the coefficients from `s` to `t`, to first order in t - s."""
        drift = align(t - s, x) * self.drift(x, s)
        return Increment(drift, (t - s) * self.divergence(x, s), self.variance(s, t))

    def kernel(self, x: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the mean :math:`(B, *)` and std, :math:`()` or :math:`(B)`, of
        :math:`x_t \mid x_s = x`, for :math:`0 \leq s \leq t`."""
        checks.times(s, t)
        return x + align(t - s, x) * self.drift(x, s), torch.sqrt(self.variance(s, t))


class Linear(Diffusion):
    r"""Abstract linear diffusion, :math:`F = a(t) \, x`, with an exact Gaussian kernel."""

    @abc.abstractmethod
    def rate(self, t: Tensor) -> Tensor:
        r"""Returns the drift rate :math:`a(t)`, with the shape of `t`."""

    @abc.abstractmethod
    def growth(self, s: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\log \alpha_{t|s} = \int_s^t a(u) \, du`, with the shape of `t`."""

    @abc.abstractmethod
    def transition(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`\alpha_{t|s}` and :math:`\sigma_{t|s}`, with the shape of `t`, for
        :math:`0 \leq s \leq t`."""

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        return align(self.rate(t), x) * x

    def divergence(self, x: Tensor, t: Tensor) -> Tensor:
        return dimension(x) * self.rate(t)

    def increment(self, x: Tensor, s: Tensor, t: Tensor) -> Increment:
        growth = self.growth(s, t)
        return Increment(align(growth, x) * x, dimension(x) * growth, self.variance(s, t))

    def kernel(self, x: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        alpha, sigma = self.transition(s, t)
        return align(alpha, x) * x, sigma


class Driftless(Linear):
    r"""Abstract diffusion without a drift: its kernel is :math:`\mathcal{N}(x_s, \sigma_{t|s}^2)`
    with :math:`\sigma_{t|s}^2 = \int_s^t G^2`."""

    def rate(self, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def growth(self, s: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def transition(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        checks.times(s, t)
        return torch.ones_like(t), torch.sqrt(self.variance(s, t))


@dataclass(frozen=True)
class VE(Driftless):
    r"""Creates a variance exploding diffusion, :math:`dx_t = g(t) \, dw_t`.

    Its kernel has variance :math:`\int_s^t g^2`, in closed form for a number and by 32-point
    Gauss–Legendre quadrature for a function (exact for polynomials :math:`g^2` up to degree 63).

    Arguments:
        g: The coefficient, a number (1 is Brownian motion, :math:`\sigma^2 = t`, the paper's
            :math:`G^2 = 1`) or a function of the time, elementwise.

    Example:
        >>> s, t = torch.tensor(0.0), torch.tensor(4.0)
        >>> VE().transition(s, t)  # the mean is kept, the std is the root of the time
        (tensor(1.), tensor(2.))
        >>> VE(g=lambda t: t).variance(s, t)  # the integral of the square
        tensor(21.3333)
    """

    g: float | Callable[[Tensor], Tensor] = 1.0

    def __post_init__(self) -> None:
        if not callable(self.g):
            checks.positive(g=self.g)

    def coefficient(self, t: Tensor) -> Tensor:
        return self.g(t) if callable(self.g) else torch.full_like(t, self.g)

    def variance(self, s: Tensor, t: Tensor) -> Tensor:
        return super().variance(s, t) if callable(self.g) else self.g**2 * (t - s)


@dataclass(frozen=True)
class EDM(Driftless):
    r"""Creates the variance exploding diffusion of EDM, :math:`\sigma(t) = t`.

    .. math:: dx_t = \sqrt{2 t} \, dw_t

    References:
        | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
        | https://arxiv.org/abs/2206.00364
    """

    def coefficient(self, t: Tensor) -> Tensor:
        return torch.sqrt(2 * t)

    def variance(self, s: Tensor, t: Tensor) -> Tensor:
        return (t - s) * (t + s)  # t^2 - s^2 without the cancellation


@dataclass(frozen=True)
class VP(Linear):
    r"""Creates a variance preserving diffusion, :math:`\beta(t) = b_0 + t \, (b_1 - b_0)`.

    .. math:: dx_t = -\tfrac{1}{2} \beta(t) \, x_t \, dt + \sqrt{\beta(t)} \, dw_t

    The paper uses VP and never defines it; this is the usual form.

    References:
        | Score-Based Generative Modeling through SDEs (Song et al., 2021)
        | https://arxiv.org/abs/2011.13456

    Arguments:
        beta_min: The rate :math:`b_0 > 0` at :math:`t = 0`.
        beta_max: The rate :math:`b_1 > 0` at :math:`t = 1`.
    """

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        checks.positive(beta_min=self.beta_min, beta_max=self.beta_max)

    def beta(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\beta(t)`, with the shape of `t`."""
        return self.beta_min + t * (self.beta_max - self.beta_min)

    def rate(self, t: Tensor) -> Tensor:
        return -self.beta(t) / 2

    def coefficient(self, t: Tensor) -> Tensor:
        return torch.sqrt(self.beta(t))

    def variance(self, s: Tensor, t: Tensor) -> Tensor:
        return (t - s) * (self.beta(s) + self.beta(t)) / 2  # exact, as beta is linear

    def growth(self, s: Tensor, t: Tensor) -> Tensor:
        return -self.variance(s, t) / 2

    def transition(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        checks.times(s, t)
        integral = self.variance(s, t)
        # expm1: 1 - alpha^2 cancels at the short times the divergence uses
        return torch.exp(-integral / 2), torch.sqrt(-torch.expm1(-integral))


@dataclass(frozen=True)
class Langevin(Diffusion):
    r"""Creates the Langevin diffusion of an energy, of which its density is stationary.

    .. math:: dx_t = -\tfrac{1}{2} \nabla E(x_t) \, dt + dw_t

    **A step size h is a time of this diffusion**, in every chain of fokker (`ULA`, `MALA`, `CD`,
    `PCD`): its step is :math:`x' = x - \tfrac{h}{2} \nabla E(x) + \sqrt{h} \, z`, with noise of
    variance h. Whoever writes :math:`x' = x - \epsilon \nabla E(x) + \sqrt{2 \epsilon} \, z` has
    :math:`h = 2 \epsilon`.

    Arguments:
        energy: The energy :math:`E`.
    """

    energy: EnergyLike

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        return -gradient(self.energy, x)[1] / 2

    def divergence(self, x: Tensor, t: Tensor) -> Tensor:
        return -Exact()(self.energy, x).laplacian / 2

    def coefficient(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance(self, s: Tensor, t: Tensor) -> Tensor:
        return t - s


@dataclass(frozen=True)
class Custom(Diffusion):
    r"""Creates a user's own diffusion from its coefficients.

    Arguments:
        F: The drift :math:`F(x, t)`, from :math:`(B, *)` and a time to :math:`(B, *)`.
        G: The coefficient, a number or a function of the time, elementwise.
        div: The divergence :math:`\nabla \cdot F(x, t)`, with shape :math:`()` or :math:`(B)`. By
            autograd, one pass a coordinate, if not given.

    Example:
        >>> pull = Custom(F=lambda x, t: -x / 2, G=1.0)
        >>> x, s, t = torch.ones(1, 3), torch.tensor(0.0), torch.tensor(0.01)
        >>> pull.kernel(x, s, t)
        (tensor([[0.9950, 0.9950, 0.9950]]), tensor(0.1000))
        >>> pull.divergence(x, s)
        tensor([-1.5000])
    """

    F: Callable[[Tensor, Tensor], Tensor]
    G: float | Callable[[Tensor], Tensor]
    div: Callable[[Tensor, Tensor], Tensor] | None = None

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        drift = self.F(x, t)
        if drift.shape != x.shape:
            raise ValueError(
                f"expected the drift F(x, t) to have the shape of x, {tuple(x.shape)},"
                f" got {tuple(drift.shape)}"
            )
        return drift

    def divergence(self, x: Tensor, t: Tensor) -> Tensor:
        if self.div is not None:
            div = self.div(x, t)
            if div.shape not in {(), x.shape[:1]}:
                raise ValueError(
                    f"expected the divergence to have shape () or ({len(x)},),"
                    f" got {tuple(div.shape)}"
                )
            return div
        pull = torch.func.vjp(lambda x: self.drift(x, t), x)[1]
        basis = torch.eye(dimension(x), dtype=x.dtype, device=x.device)
        rows = [e.reshape(1, *x.shape[1:]).expand_as(x) for e in basis]
        return torch.stack([dot(e, pull(e)[0]) for e in rows]).sum(0)

    def coefficient(self, t: Tensor) -> Tensor:
        return self.G(t) if callable(self.G) else torch.full_like(t, self.G)


DIFFUSIONS: dict[str, type[Diffusion]] = {
    "ve": VE,
    "edm": EDM,
    "vp": VP,
    "langevin": Langevin,
    "custom": Custom,
}
