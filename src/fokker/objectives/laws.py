r"""Laws of a time or noise level, drawn for each point.

An energy of every level is trained at levels :math:`\sigma` drawn anew for each point. The paper
has three ways to draw them, and two diffusions. Under VE, and EDM's :math:`\sigma(t) = t`, the
level is the
time: `Uniform`, as in its Algorithm 1; `LogNormal`, as in its image study; or neighbors
:math:`t_{i-1}, t_i` on a `Grid`, from the first to the second of which the divergence steps.

**VP is VE seen through a lens.** With :math:`B(t) = \int_0^t \beta` and :math:`\alpha = e^{-B/2}`
a point of the variance preserving diffusion is
:math:`x_t = \alpha x + \sqrt{1 - \alpha^2} \, \varepsilon`, so

.. math::
    x_t = \alpha \, (x + \sigma \varepsilon), \qquad
    \sigma(t) = \frac{\sqrt{1 - \alpha^2}}{\alpha} = \sqrt{e^{B(t)} - 1} :

at each time it is VE at level :math:`\sigma(t)`, shrunk by :math:`\alpha`, and the path from s to
t is that of VE too. The energies correspond,

.. math:: E_{VP}(x, t) = E(x / \alpha, \sigma(t)) + D \log \alpha ,

and a divergence between two laws does not change when both are shrunk. So the exact divergence of
VP from s to t *is* that of VE from :math:`\sigma(s)` to :math:`\sigma(t)`, and training under VP
is training under VE with the levels that times of VP have: the law `Preserving`. One Taylor step
is another step in the two coordinates, equal to first order in :math:`h = \int_s^t \beta`. We take
that of VE: on Gaussians it is exact at any step, and that of VP is off by :math:`O(h)`.
"""

__all__ = [
    "Grid",
    "Law",
    "LogNormal",
    "LogUniform",
    "Preserving",
    "Uniform",
    "Wide",
    "draw",
    "lens",
]

import math
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor

from .. import checks
from ..diffusions import VP
from ..shapes import align, constant, dimension


@dataclass(frozen=True)
class LogUniform:
    r"""Creates the law of a time, log-uniform between two bounds and drawn for each point.

    Arguments:
        low: The lower bound, above zero.
        high: The upper bound.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        checks.positive(low=self.low, high=self.high)
        if not self.low <= self.high:
            raise ValueError(f"expected low <= high, got {self}")

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one time a point of `x`, with shape :math:`(B)`."""
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        return torch.exp(math.log(self.low) + u * math.log(self.high / self.low))


@dataclass(frozen=True)
class LogNormal:
    r"""Creates the law of a noise level whose logarithm is normal, drawn for each point.

    The defaults are those of EDM (Karras et al., 2022).

    Arguments:
        mean: The mean of the logarithm.
        std: The standard deviation of the logarithm, above zero.
    """

    mean: float = -1.2
    std: float = 1.2

    def __post_init__(self) -> None:
        if not checks.number(self.mean):
            raise ValueError(f"expected mean to be a finite number, got {self.mean!r}")
        checks.positive(std=self.std)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one level a point of `x`, with shape :math:`(B)`."""
        z = torch.randn(len(x), generator=generator, dtype=x.dtype, device=x.device)
        return torch.exp(self.mean + self.std * z)


@dataclass(frozen=True)
class Uniform:
    r"""Creates the law of a time, uniform between two bounds and drawn for each point.

    Arguments:
        low: The lower bound, above zero.
        high: The upper bound, at least as high.
    """

    low: float = 0.002
    high: float = 80.0

    def __post_init__(self) -> None:
        checks.positive(low=self.low, high=self.high)
        if not self.low <= self.high:
            raise ValueError(f"expected low <= high, got {self}")

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one time a point of `x`, with shape :math:`(B)`."""
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        return self.low + u * (self.high - self.low)


@dataclass(frozen=True)
class Grid:
    r"""Creates the law of neighbors on a grid of levels, each pair as likely.

    .. math:: t_i = \Big( t_0^{1/\rho} + \tfrac{i}{N} \big( t_N^{1/\rho} - t_0^{1/\rho} \big)
        \Big)^\rho, \quad i = 0, \dots, N

    A divergence steps from :math:`t_{i-1}` to :math:`t_i`, by noise of variance
    :math:`t_i^2 - t_{i-1}^2`, and learns the density of the later one.

    Arguments:
        intervals: The number N of intervals.
        low: The first level :math:`t_0 \geq 0`; zero for the data itself.
        high: The last level :math:`t_N`.
        rho: The exponent :math:`\rho`: 1 for even spacing, 7 for EDM's, where most are low.

    Example:
        >>> Grid(2, 1.0, 9.0, rho=2.0).levels()
        (1.0, 4.0, 9.0)
    """

    intervals: int = 1000
    low: float = 0.002
    high: float = 80.0
    rho: float = 7.0

    def __post_init__(self) -> None:
        checks.positive_integer(intervals=self.intervals)
        checks.positive(high=self.high, rho=self.rho)
        if not 0 <= self.low < self.high:
            raise ValueError(f"expected 0 <= low < high, got {self}")

    def place(self, share: Tensor | float) -> Tensor | float:
        low, high = self.low ** (1 / self.rho), self.high ** (1 / self.rho)
        return (low + share * (high - low)) ** self.rho

    def levels(self) -> tuple[float, ...]:
        r"""Returns the N + 1 levels."""
        return tuple(float(self.place(i / self.intervals)) for i in range(self.intervals + 1))

    def pair(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        r"""Returns neighbors :math:`(t_{i-1}, t_i)` a point of `x`, with shape :math:`(B)`
        each."""
        i = torch.randint(self.intervals, (len(x),), generator=generator, device=x.device)
        before, after = (self.place((i + k).to(x.dtype) / self.intervals) for k in (0, 1))
        assert isinstance(before, Tensor) and isinstance(after, Tensor)
        return before, after

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one level :math:`t_1, \dots, t_N` a point of `x`, with shape :math:`(B)`."""
        return self.pair(x, generator)[1]


@dataclass(frozen=True)
class Wide:
    r"""Creates a law with levels far below and above those of another: a share of all levels is
    log-uniform.

    A log-normal law has almost no levels where the constant of an energy is known (`high`) or
    where 8 bits need them (`low`): of `LogNormal()` two levels in 1,000 are below 0.01 and six in
    100,000 above 30. A likelihood needs both ends.

    Arguments:
        share: The share of log-uniform levels, between 0 and 1.
        low: Their lower bound.
        high: Their upper bound.
        law: The law of the other levels.
    """

    share: float = 0.25
    low: float = 0.002
    high: float = 80.0
    law: LogNormal = LogNormal()

    def __post_init__(self) -> None:
        checks.share(share=self.share)
        LogUniform(self.low, self.high)
        checks.instance(LogNormal, ("LogNormal",), law=self.law)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one level a point of `x`, with shape :math:`(B)`."""
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        wide = LogUniform(self.low, self.high).sample(x, generator)
        return torch.where(u < self.share, wide, self.law.sample(x, generator))


@dataclass(frozen=True)
class Preserving:
    r"""Creates the law of the VE level :math:`\sigma(t) = \sqrt{e^{B(t)} - 1}` of a uniform VP
    time.

    Arguments:
        diffusion: The diffusion, which gives :math:`B(t) = \int_0^t \beta`.
        low: The first time, above zero.
        high: The last time.
    """

    diffusion: VP = VP()
    low: float = 1e-3
    high: float = 1.0

    def __post_init__(self) -> None:
        checks.instance(VP, ("VP",), diffusion=self.diffusion)
        Uniform(self.low, self.high)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns one level a point of `x`, with shape :math:`(B)`."""
        t = Uniform(self.low, self.high).sample(x, generator)
        return torch.sqrt(torch.expm1(self.diffusion.variance(torch.zeros_like(t), t)))


def lens(energy: Callable[[Tensor, Tensor], Tensor], diffusion: VP) -> Callable[..., Tensor]:
    r"""Returns the energy :math:`E_{VP}(x, t)` of points under VP.

    Arguments:
        energy: The energy of every level, :math:`E(x, \sigma)`.
        diffusion: The diffusion.

    Example:
        >>> ve = lambda x, sigma: x.square().sum(1) / (2 * (1 + sigma**2))  # data of N(0, 1)
        >>> vp = lens(ve, VP())  # which VP keeps, up to the constant
        >>> t = torch.tensor(0.5)
        >>> vp(torch.tensor([[1.0], [3.0]]), t).diff()
        tensor([4.])
    """

    def preserved(x: Tensor, t: Tensor) -> Tensor:
        total = diffusion.variance(torch.zeros_like(t), t)
        sigma = torch.sqrt(torch.expm1(total))
        return energy(x * align(torch.exp(total / 2), x), sigma) - dimension(x) / 2 * total

    return preserved


Law = float | LogUniform | LogNormal | Uniform | Grid | Preserving | Wide


def draw(law: Law, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Returns a number as a tensor :math:`()`, or a draw of its law a point, :math:`(B)`."""
    return constant(law, x) if isinstance(law, float | int) else law.sample(x, generator)
