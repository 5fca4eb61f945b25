r"""Derivatives of an energy: value, gradient and Laplacian in one call.

Every method of this library needs the 2-jet of an energy at the points of a batch,

.. math:: E(x), \qquad \nabla E(x), \qquad \Delta E(x) = \sum_i \partial_i^2 E(x),

and the score is :math:`-\nabla E`. They differ in how they get the Laplacian. With :math:`H` the
Hessian, :math:`D` the dimension and :math:`n` the number of probes, and cost counted in passes
through the layers (one for a value, one more for a gradient, two more for a product
:math:`H v`; the parameter gradient about triples each):

====================  ===========================================  ================  ==============
way                   estimate of :math:`\Delta E(x)`              variance          passes
====================  ===========================================  ================  ==============
`Exact`               the energy's own jet, else as `Loop`         0                 D + 2 [#jet]_
`Loop`                :math:`\sum_i e_i^\top H e_i`                0                 2 + 2 D
`Hutchinson`          :math:`v^\top H v`                           [#probes]_        2 + 2 n
`FiniteDifference`    :math:`[E(x+hv)+E(x-hv)-2E(x)] / h^2`        as Hutchinson     2 + 2 n
`Stein`               :math:`\varepsilon \cdot \nabla E / \sigma`  [#stein]_         2
====================  ===========================================  ================  ==============

.. [#jet] For the MLP, one forward pass that carries value, Jacobian and Laplacian through the
   layers; closed form for the analytic energies.
.. [#probes] :math:`2 (\|H\|_F^2 - \sum_i H_{ii}^2) / n` for Rademacher probes (none at all if H is
   diagonal) and :math:`2 \|H\|_F^2 / n` for Gaussian ones.
.. [#stein] Unbiased only in expectation over the noise :math:`\varepsilon` that made the points,
   :math:`x = m + \sigma \varepsilon`, by Stein's identity :math:`\mathbb{E} \, \Delta E(x) =
   \mathbb{E} \, \varepsilon \cdot \nabla E(x) / \sigma`. On a quadratic energy the variance is
   :math:`\|\nabla E(m)\|^2 / \sigma^2 + 2 \|H\|_F^2`; in a pair :math:`\pm \varepsilon` the first
   term cancels.

All are differentiable in the parameters of the energy, run under `torch.func` transforms, and take
points :math:`(B, D)` as well as images :math:`(B, C, H, W)`. The energy must treat the points of a
batch independently (no batch normalization).
"""

__all__ = [
    "LAPLACIANS",
    "Auto",
    "EnergyLike",
    "Exact",
    "FiniteDifference",
    "Hutchinson",
    "Jet",
    "Laplacian",
    "Loop",
    "Noise",
    "Stein",
    "gradient",
    "score",
    "value",
]

import abc
import inspect
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal, NamedTuple

from . import checks, kinks
from .shapes import align, dimension, dot

EnergyLike = Callable[[Tensor], Tensor]


class Jet(NamedTuple):
    r"""The value, gradient and Laplacian of an energy at the points of a batch."""

    energy: Tensor  # (B)
    gradient: Tensor  # (B, *)
    laplacian: Tensor  # (B)

    @property
    def score(self) -> Tensor:
        r"""The score :math:`-\nabla E`, with shape :math:`(B, *)`."""
        return -self.gradient


class Noise(NamedTuple):
    r"""The noise that made points :math:`x = m + \sigma \varepsilon`."""

    eps: Tensor  # (B, *)
    sigma: Tensor  # () or (B)


def value(energy: EnergyLike, x: Tensor) -> Tensor:
    r"""Returns :math:`E(x)`, with shape :math:`(B)`, or says what the energy returned instead."""
    e = energy(x)
    if not isinstance(e, Tensor) or e.shape != x.shape[:1]:
        got = f"shape {tuple(e.shape)}" if isinstance(e, Tensor) else type(e).__name__
        raise ValueError(
            f"expected the energy to map points {tuple(x.shape)} to values ({len(x)},), got {got}"
        )
    return e


def knows(energy: EnergyLike, name: str) -> bool:
    r"""Returns whether the class of an energy has a method for derivatives of its own `forward`,
    not for those of a `forward` that a subclass overrides."""
    if inspect.isfunction(energy):  # nor can the compiler look into the class of one
        return False
    for kind in inspect.getmro(type(energy)):
        if name in vars(kind):
            return True
        if "forward" in vars(kind):
            return False  # a method further up would be that of another forward
    return False


def gradient(energy: EnergyLike, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`E(x)` and :math:`\nabla E(x)`, with shapes :math:`(B)` and
    :math:`(B, *)`.

    If the class of the energy has a method `slope(x)` that returns the two, that is used; any
    other callable is differentiated.
    """
    if knows(energy, "slope"):
        return energy.slope(x)  # pyright: ignore[reportFunctionMemberAccess]

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        e = value(energy, x)
        return (
            e.sum(),
            e,
        )  # the gradient of the sum is the gradient of each: points are independent

    g, e = torch.func.grad(total, has_aux=True)(x)
    return e, g


def score(energy: EnergyLike, x: Tensor) -> Tensor:
    r"""Returns the score :math:`-\nabla E(x)`, with shape :math:`(B, *)`.

    Example:
        >>> score(lambda x: x.square().sum(1) / 2, torch.tensor([[1.0, -2.0]]))
        tensor([[-1.,  2.]])
    """
    return -gradient(energy, x)[1]


def curvature(energy: EnergyLike, x: Tensor, directions: list[Tensor]) -> Jet:
    r"""Returns the jet with :math:`\sum_v v^\top H v` over the directions as its Laplacian.

    Each product :math:`H v` is one reverse pass through the gradient.
    """

    def slope(x: Tensor) -> tuple[Tensor, Tensor]:
        e, g = gradient(energy, x)
        return g, e

    def work() -> Any:
        return torch.func.vjp(slope, x, has_aux=True)

    known = kinks.judged(energy)
    g, pull, e = work() if known else kinks.look(energy, x, lambda p: slope(p)[0], work)
    return Jet(e, g, sum((dot(v, pull(v)[0]) for v in directions), torch.zeros_like(e)))


class Laplacian(abc.ABC):
    r"""Abstract way to the Laplacian. Subclasses are frozen values."""

    @abc.abstractmethod
    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        r"""Returns the jet of an energy at points.

        Arguments:
            energy: The energy, :math:`(B, *) \to (B)`.
            x: The points, with shape :math:`(B, *)`.
            generator: The source of randomness of the probes.
            noise: The noise that made the points; only `Stein` reads it.
        """


@dataclass(frozen=True)
class Loop(Laplacian):
    r"""Creates the exact Laplacian by one Hessian-vector product a coordinate.

    Cost: :math:`2 + 2 D` passes. Variance: none.
    """

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        basis = torch.eye(dimension(x), dtype=x.dtype, device=x.device)
        return curvature(energy, x, [e.reshape(1, *x.shape[1:]).expand_as(x) for e in basis])


@dataclass(frozen=True)
class Exact(Laplacian):
    r"""Creates the exact Laplacian by the cheapest way the energy knows.

    If the class of the energy has a method `jet(x)`, that is used: one forward-Laplacian pass for
    the MLP, the closed form for an analytic energy, the sum of the parts for a composed one. Any
    other callable, and a class that overrides `forward` without its `jet`, goes through `Loop`.

    Cost: :math:`D + 2` passes with a jet. Variance: none.

    Example:
        >>> Exact()(lambda x: (x**4).sum(1), torch.tensor([[1.0, 2.0]]))
        Jet(energy=tensor([17.]), gradient=tensor([[ 4., 32.]]), laplacian=tensor([60.]))
    """

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        if knows(energy, "jet"):
            return energy.jet(x)  # pyright: ignore[reportFunctionMemberAccess]
        return Loop()(energy, x)


def probe(x: Tensor, law: str, generator: torch.Generator | None) -> Tensor:
    r"""Returns a probe :math:`v` with :math:`\mathbb{E} v v^\top = I`, shaped as `x`."""
    if law == "gaussian":
        return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    sign = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8, device=x.device)
    return (2 * sign - 1).to(x.dtype)


@dataclass(frozen=True)
class Hutchinson(Laplacian):
    r"""Creates Hutchinson's estimator, the mean of :math:`v^\top H v` over random probes.

    Cost: :math:`2 + 2 n` passes. Variance: :math:`2 (\|H\|_F^2 - \sum_i H_{ii}^2) / n` with
    Rademacher probes, :math:`2 \|H\|_F^2 / n` with Gaussian ones.

    References:
        | A stochastic estimator of the trace of the influence matrix (Hutchinson, 1989)

    Arguments:
        probes: The number :math:`n` of probes.
        law: The law of the probes; Rademacher is never worse.
    """

    probes: int = 1
    law: Literal["rademacher", "gaussian"] = "rademacher"

    def __post_init__(self) -> None:
        checks.positive_integer(probes=self.probes)
        checks.one_of(("rademacher", "gaussian"), law=self.law)

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        jet = curvature(energy, x, [probe(x, self.law, generator) for _ in range(self.probes)])
        return jet._replace(laplacian=jet.laplacian / self.probes)


@dataclass(frozen=True)
class FiniteDifference(Laplacian):
    r"""Creates the second difference of the energy along random probes.

    .. math:: \Delta E \approx \frac{1}{n} \sum_v \frac{E(x + h v) + E(x - h v) - 2 E(x)}{h^2}

    No derivative beyond the gradient is taken in x; training differentiates that gradient in the
    parameters, a double backward like that of score matching.

    Cost: :math:`2 + 2 n` passes. Variance: that of `Hutchinson`. Bias: :math:`h^2 \, \mathbb{E} \,
    \partial_v^4 E / 12`. Rounding adds about :math:`u |E| / h^2` with :math:`u` the unit
    roundoff: at the default `h` that is :math:`6 \cdot 10^{-4} |E|` in float32.

    Arguments:
        h: The step :math:`h > 0` along each probe.
        probes: The number :math:`n` of probes, drawn as Rademacher.
    """

    h: float = 1e-2
    probes: int = 1

    def __post_init__(self) -> None:
        checks.positive(h=self.h)
        checks.positive_integer(probes=self.probes)

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        e, g = gradient(energy, x)
        v = [self.h * probe(x, "rademacher", generator) for _ in range(self.probes)]
        around = value(energy, torch.cat([x + s * h for h in v for s in (1, -1)]))
        second = (around.reshape(-1, len(x)) - e).sum(0)
        return Jet(e, g, second / (self.probes * self.h**2))


@dataclass(frozen=True)
class Stein(Laplacian):
    r"""Creates Stein's estimator, :math:`\varepsilon \cdot \nabla E(x) / \sigma`.

    No derivative beyond the gradient is taken in x. It holds in expectation over the noise of the
    points, not point by point, and asks for that noise. As the step of a diffusion goes to zero at
    a fixed noise level of the points, the one-step divergence with this Laplacian becomes
    denoising score matching.

    Cost: 2 passes. Variance: about :math:`\|\nabla E\|^2 / \sigma^2 + 2 \|H\|_F^2`; antithetic
    pairs remove the first term.

    References:
        | Estimation of the mean of a multivariate normal distribution (Stein, 1981)
    """

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        if noise is None:
            raise ValueError(
                "expected the noise that made the points (Stein's identity needs it), got None;"
                " use Exact() or Hutchinson() at points without known noise"
            )
        e, g = gradient(energy, x)
        return Jet(e, g, dot(noise.eps, g / align(noise.sigma, g)))


@dataclass(frozen=True)
class Auto(Laplacian):
    r"""Creates the way to the Laplacian that is worth most by measurement: exact in few
    dimensions, Hutchinson's estimator in many.

    The exact Laplacian costs about D passes, a probe two, and a probe adds little to the variance
    that the data brings anyway. By variance × cost (`fokker reproduce estimators`) the two are
    about even on the plane, and the probe wins from D = 8 on; in between nothing was measured.

    Arguments:
        limit: The largest dimension in which it is exact.
    """

    limit: int = 2

    def __post_init__(self) -> None:
        checks.positive_integer(limit=self.limit)

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Jet:
        few = dimension(x) <= self.limit
        return (Exact() if few else Hutchinson())(energy, x, generator, noise)


LAPLACIANS: dict[str, type[Laplacian]] = {
    "auto": Auto,
    "exact": Exact,
    "loop": Loop,
    "hutchinson": Hutchinson,
    "finite-difference": FiniteDifference,
    "stein": Stein,
}
