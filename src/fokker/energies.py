r"""Energies.

An energy is a function :math:`E : \mathbb{R}^D \to \mathbb{R}` that stands for the density

.. math:: p(x) = \frac{e^{-E(x)}}{Z}, \quad Z = \int e^{-E(x)} \, dx .

**Low energy is likely and the score is** :math:`\nabla \log p = -\nabla E`. This sign holds
everywhere in fokker. The paper writes :math:`p \propto e^{f}` and calls f the energy:
:math:`f = -E`. Wrap a model that gives a log-density in `LogDensity`.

Any callable :math:`(B, *) \to (B)` is an energy to the objectives, samplers and metrics. The class
`Energy` adds an algebra of densities:

==================  =======================================  =================================
expression          density                                  energy
==================  =======================================  =================================
``a + b``           :math:`p_a \, p_b` (product of experts)  :math:`E_a + E_b`
``a / T``           :math:`p_a^{1/T}` (temperature T)        :math:`E_a / T`
``c * a``           :math:`p_a^{c}` (inverse temperature)    :math:`c \, E_a`
``a - b``           :math:`p_a / p_b` (negation)             :math:`E_a - E_b`
``a | b``           :math:`e^{-E_a} + e^{-E_b}` (mixture)    :math:`-\log(e^{-E_a} + e^{-E_b})`
==================  =======================================  =================================

all up to the normalizing constant. A mixture therefore weighs its parts by their own Z: for stated
weights use `Mixture` with normalized parts. A negation is a density only where a confines more
than b frees.

**Energies of every level** E(x, σ) compose in the same way, and so do energies of a time E(x, t):
``(a + b)(x, sigma)`` is :math:`E_a(x, \sigma) + E_b(x, \sigma)`; a part of x alone is the same at
all levels. `energy.at(t)` is the energy at one level or time (or one a point), to be trained and
drawn from as any. The composed law at a level is *not* the composed law of the data with noise:

.. math:: \textstyle \int p_a p_b(x_0) \, \mathcal{N}(x; x_0, \sigma^2) \, dx_0
    \neq p_{a,\sigma} \, p_{b,\sigma}(x) ,

so a flow along the sum of the scores draws from neither; but for a mixture of normalized parts,
for which both sides are the same. `fokker.samplers.LevelParticles` draws from the composed law of
the last level.
"""

__all__ = [
    "Composed",
    "Denoiser",
    "Difference",
    "Energy",
    "Function",
    "LogDensity",
    "Mixture",
    "Quadratic",
    "Restricted",
    "Scaled",
    "Slice",
    "Sum",
]

import inspect
import math
import torch

from collections.abc import Callable, Sequence
from torch import Tensor, nn
from typing import Literal

from . import checks
from .derivatives import Exact, Jet, Loop, value
from .shapes import align, dimension, dot


class Energy(nn.Module):
    r"""Base class of energies. A subclass writes `forward`, from :math:`(B, *)` to :math:`(B)`.

    Example:
        >>> class Quartic(Energy):
        ...     def forward(self, x):
        ...         return (x**4).sum(1)
        >>> energy = (Quartic() + Quadratic(std=2.0)) / 0.5  # two experts, at half the temperature
        >>> energy(torch.ones(1, 2))
        tensor([4.5000])
    """

    def jet(self, x: Tensor) -> Jet:
        r"""Returns the exact value, gradient and Laplacian at points :math:`(B, *)`.

        By autograd, one pass a coordinate; a subclass that knows a cheaper way overrides it.
        """
        return Loop()(self, x)

    def at(self, t: Tensor | float) -> "Slice":
        r"""Returns the energy :math:`E(\cdot, t)` at a time :math:`()`, or :math:`(B)`."""
        return Slice(self, t)

    def __add__(self, other: Callable[..., Tensor]) -> "Sum":
        return Sum(self, other)

    def __radd__(self, other: Callable[..., Tensor] | Literal[0]) -> "Energy":
        return self if other == 0 else self + other  # `sum` starts from 0, the flat density

    def __sub__(self, other: Callable[..., Tensor]) -> "Difference":
        return Difference(self, other)

    def __mul__(self, factor: float) -> "Scaled":
        return Scaled(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, temperature: float) -> "Scaled":
        checks.positive(temperature=temperature)
        return Scaled(self, 1 / temperature)

    def __or__(self, other: Callable[..., Tensor]) -> "Mixture":
        return Mixture([self, other])

    __ror__ = __or__


class Denoiser(nn.Module):
    r"""Base class of denoisers: vector fields :math:`D(x, \sigma)`, the mean of the data given
    points with noise. One need not be a gradient, so it has no energy. A subclass writes
    `denoise`."""

    def denoise(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        r"""Returns the mean of the data given noisy points, with the shape of the points."""
        raise TypeError(f"expected {type(self).__name__} to define denoise(x, sigma)")


class Function(Energy):
    r"""Creates an energy from any callable :math:`(B, *) \to (B)`, a module or a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        if not callable(function):
            raise ValueError(f"expected a callable energy, got {function!r}")
        self.function = function

    def forward(self, x: Tensor, *t: Tensor) -> Tensor:
        return self.function(x, *t)


class LogDensity(Function):
    r"""Creates the energy :math:`E = -\log p` of a model that gives a log-density.

    Arguments:
        model: A callable :math:`(B, *) \to (B)`, normalized or not, such as the `log_prob` of a
            distribution, a flow, or the f of the paper.

    Example:
        >>> normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> energy = LogDensity(normal.log_prob)
        >>> energy(torch.zeros(1, 2))
        tensor([1.8379])
    """

    def forward(self, x: Tensor, *t: Tensor) -> Tensor:
        return -self.function(x, *t)


def required(energy: Callable[..., Tensor]) -> list[str]:
    r"""Returns the names of the arguments that an energy cannot do without."""
    if isinstance(energy, Function):
        return required(energy.function)
    call = energy.forward if isinstance(energy, nn.Module) else energy
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # a builtin, which has none to show
        return ["x"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def leveled(energy: Callable[..., Tensor]) -> bool:
    r"""Returns whether an energy takes a level or a time beside x."""
    if isinstance(energy, Composed):
        return any(leveled(part) for part in energy.parts)
    return len(required(energy)) > 1


def as_energy(energy: Callable[..., Tensor]) -> Energy:
    r"""Returns a part of a composed energy, a function of x and perhaps of a level."""
    energy = energy if isinstance(energy, Energy) else Function(energy)
    if len(names := required(energy)) > 2:
        raise ValueError(
            f"expected an energy of x, or of x and a level, to compose, got"
            f" {type(energy).__name__} of ({', '.join(names)})"
        )
    return energy


def alone(energy: Callable[..., Tensor]) -> Energy:
    r"""Returns an energy if it is a function of x alone."""
    energy = as_energy(energy)
    if leveled(energy):
        raise ValueError(
            f"expected an energy of x alone, got {type(energy).__name__}, which takes a level:"
            " fix it first, with energy.at(t)"
        )
    return energy


class Slice(Energy):
    r"""Creates the energy :math:`E(\cdot, t)` of a time-dependent energy at one time.

    With one time a point, :math:`(B)`, it takes batches of B points and of any multiple of B:
    block after block of the same points moved, as the objectives make them.

    Example:
        >>> widening = Function(lambda x, t: x.square().sum(1) / (2 * (1 + t)))
        >>> energy = widening.at(1.0) + Quadratic(std=3.0)
        >>> energy(torch.ones(1, 2))
        tensor([0.6111])
    """

    def __init__(self, energy: Callable[..., Tensor], t: Tensor | float) -> None:
        super().__init__()
        self.energy = energy
        self.t = t

    def forward(self, x: Tensor) -> Tensor:
        t = torch.as_tensor(self.t, dtype=x.dtype, device=x.device)
        if t.ndim == 1 and len(x) % len(t):
            raise ValueError(
                f"expected a multiple of {len(t)} points, one a time, got {len(x)} points"
            )
        return self.energy(x, t.repeat(len(x) // len(t)) if t.ndim == 1 else t)


class Composed(Energy):
    r"""Base class of energies that consist of others, of x alone or of every level."""

    @property
    def parts(self) -> tuple[Energy, ...]:
        r"""The energies that it consists of."""
        raise TypeError(f"expected {type(self).__name__} to define parts")

    def of(self, parts: Sequence[Energy]) -> "Composed":
        r"""Returns the same composition of other energies."""
        raise TypeError(f"expected {type(self).__name__} to define of")

    def values(self, x: Tensor, t: tuple[Tensor, ...]) -> list[Tensor]:
        r"""Returns the values of the parts, each :math:`(B)`, at the level that some may take."""
        if not t and leveled(self):
            raise ValueError(
                f"expected a level for {type(self).__name__}, a composition of energies of every"
                " level, got none: ask energy(x, sigma), or fix it with energy.at(sigma)"
            )
        ask = lambda part: (lambda p: part(p, *t)) if leveled(part) else part
        return [value(ask(part), x) for part in self.parts]

    def jets(self, x: Tensor) -> list[Jet]:
        r"""Returns the jets of the parts, which take x alone."""
        return [Exact()(alone(part), x) for part in self.parts]

    def at(self, t: Tensor | float) -> "Composed":  # pyright: ignore
        r"""Returns the composition at one level; its parts know their derivatives there."""
        return self.of([part.at(t) if leveled(part) else part for part in self.parts])


class Sum(Composed):
    r"""Creates the product of two densities, :math:`E = E_a + E_b`."""

    sign = 1

    def __init__(self, a: Callable[..., Tensor], b: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b = as_energy(a), as_energy(b)

    @property
    def parts(self) -> tuple[Energy, ...]:
        return self.a, self.b

    def of(self, parts: Sequence[Energy]) -> "Composed":
        a, b = parts
        return type(self)(a, b)

    def forward(self, x: Tensor, *t: Tensor) -> Tensor:
        a, b = self.values(x, t)
        return a + self.sign * b

    def jet(self, x: Tensor) -> Jet:
        a, b = self.jets(x)
        return Jet(*(p + self.sign * q for p, q in zip(a, b, strict=True)))


class Difference(Sum):
    r"""Creates the ratio of two densities, :math:`E = E_a - E_b`: a without b.

    It is a density only where a confines more than b frees: divide b by a temperature until it
    does.

    Example:
        >>> (Quadratic(std=1.0) - Quadratic(std=2.0))(torch.ones(1, 2))  # of std sqrt(4 / 3)
        tensor([0.7500])
    """

    sign = -1


class Scaled(Composed):
    r"""Creates a power of a density, :math:`E = c \, E_a`, that is, temperature :math:`1/c`."""

    def __init__(self, energy: Callable[..., Tensor], factor: float) -> None:
        super().__init__()
        checks.positive(factor=factor)
        self.energy, self.factor = as_energy(energy), factor

    @property
    def parts(self) -> tuple[Energy, ...]:
        return (self.energy,)

    def of(self, parts: Sequence[Energy]) -> "Composed":
        return Scaled(parts[0], self.factor)

    def forward(self, x: Tensor, *t: Tensor) -> Tensor:
        return self.factor * self.values(x, t)[0]

    def jet(self, x: Tensor) -> Jet:
        return Jet(*(self.factor * part for part in self.jets(x)[0]))


class Mixture(Composed):
    r"""Creates the mixture :math:`E = -\log \sum_k w_k e^{-E_k}`.

    Its jet follows from those of its parts, with responsibilities
    :math:`r_k \propto w_k e^{-E_k}`:

    .. math::
        \nabla E = \sum_k r_k \nabla E_k, \quad
        \Delta E = \sum_k r_k (\Delta E_k - \|\nabla E_k - \nabla E\|^2) .

    Arguments:
        energies: The parts :math:`E_k`.
        weights: The weights :math:`w_k > 0`, one each by default.
    """

    def __init__(
        self, energies: Sequence[Callable[..., Tensor]], weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        weights = [1.0] * len(energies) if weights is None else list(weights)
        if len(weights) != len(energies) or not energies:
            raise ValueError(
                f"expected one weight an energy, got {len(weights)} for {len(energies)} energies"
            )
        checks.positive(**{f"weights[{k}]": float(w) for k, w in enumerate(weights)})
        self.energies = nn.ModuleList([as_energy(e) for e in energies])
        self.log_weights = [math.log(w) for w in weights]

    @property
    def parts(self) -> tuple[Energy, ...]:
        return tuple(self.energies)  # pyright: ignore

    def of(self, parts: Sequence[Energy]) -> "Composed":
        return Mixture(parts, [math.exp(w) for w in self.log_weights])

    def forward(self, x: Tensor, *t: Tensor) -> Tensor:
        logs = [w - e for w, e in zip(self.log_weights, self.values(x, t), strict=True)]
        return -torch.logsumexp(torch.stack(logs), dim=0)

    def jet(self, x: Tensor) -> Jet:
        jets = self.jets(x)
        logs = [w - j.energy for w, j in zip(self.log_weights, jets, strict=True)]
        r = torch.softmax(torch.stack(logs), dim=0)
        g = torch.stack([align(r[k], x) * j.gradient for k, j in enumerate(jets)]).sum(0)
        # the spread about the mean, not a difference of squares, which cancels
        spread = [dot(j.gradient - g, j.gradient - g) for j in jets]
        bend = torch.stack([j.laplacian - v for j, v in zip(jets, spread, strict=True)])
        return Jet(-torch.logsumexp(torch.stack(logs), dim=0), g, (r * bend).sum(0))


class Quadratic(Energy):
    r"""Creates the confining energy :math:`E(x) = \|x - c\|^2 / 2 s^2`.

    Added to a network whose output grows slower than :math:`\|x\|^2`, it makes the learned
    density normalizable.

    Arguments:
        std: The standard deviation :math:`s > 0`.
        center: The center :math:`c`, a number or a tensor that broadcasts with a point.
    """

    center: Tensor

    def __init__(self, std: float = 1.0, center: Tensor | float = 0.0) -> None:
        super().__init__()
        checks.positive(std=std)
        self.std = std
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        shift = x - self.center.to(x.dtype)
        return dot(shift, shift) / (2 * self.std**2)

    def jet(self, x: Tensor) -> Jet:
        shift = x - self.center.to(x.dtype)
        e = dot(shift, shift) / (2 * self.std**2)
        return Jet(e, shift / self.std**2, torch.full_like(e, dimension(x) / self.std**2))

    def extra_repr(self) -> str:
        return f"std={self.std}"


class Restricted(Energy):
    r"""Creates the energy of a density restricted to a box: E inside, :math:`+\infty` outside.

    Arguments:
        energy: The energy E.
        low: The lower border of every coordinate.
        high: The upper border.

    Example:
        >>> Restricted(Quadratic(), -1.0, 1.0)(torch.tensor([[0.5, 0.5], [0.5, 2.0]]))
        tensor([0.2500,    inf])
    """

    def __init__(self, energy: Callable[..., Tensor], low: float, high: float) -> None:
        super().__init__()
        if not (checks.number(low) and checks.number(high) and low < high):
            raise ValueError(f"expected finite numbers low < high, got {low!r} and {high!r}")
        self.energy, self.low, self.high = alone(energy), low, high

    def forward(self, x: Tensor) -> Tensor:
        inside = ((x >= self.low) & (x <= self.high)).flatten(1).all(1)
        # the energy is asked at the border there, where it is finite
        e = value(self.energy, x.clamp(self.low, self.high))
        return torch.where(inside, e, math.inf)
