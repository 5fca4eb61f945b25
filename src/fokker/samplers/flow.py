r"""The probability-flow ODE: from noise to data, along the levels of a time-dependent energy.

Let :math:`p_\sigma` be the law of data plus noise of standard deviation :math:`\sigma` and
:math:`E(x, \sigma)` its energy. The flow

.. math:: \frac{dx}{d\sigma} = -\sigma \, \nabla \log p_\sigma(x) = \sigma \, \nabla E(x, \sigma)

carries each :math:`p_\sigma` to the others: from :math:`\mathcal{N}(0, \sigma_1^2)`, nearly
:math:`p_{\sigma_1}`, down a ladder of levels :math:`\sigma_1 > \dots > \sigma_N > 0`. With
:math:`d_i` the slope at :math:`(x_i, \sigma_i)` and :math:`\eta_i = \sigma_{i+1} - \sigma_i < 0`,

.. math::
    \text{Euler} \quad x_{i+1} = x_i + \eta_i \, d_i, \qquad
    \text{Heun} \quad x_{i+1} = x_i + \tfrac{1}{2} \eta_i \, (d_i + d'_{i+1}) ,

where :math:`d'_{i+1}` is the slope at Euler's :math:`(x_{i+1}, \sigma_{i+1})`. The error is of
first and of second order in the steps. The last step is Euler's, to zero: it returns the mean of
the data, :math:`x_{N+1} = x_N - \sigma_N^2 \nabla E(x_N, \sigma_N)`.

**Multistep** goes by the step before as well. With the denoiser :math:`D = x - \sigma^2 \nabla E`
and :math:`\lambda = -\log \sigma` the flow is :math:`d(x / \sigma) / d\lambda = e^{\lambda} D`:
what is left to approximate is D, which changes slowly. The line through its last two values, which
are known, gives with :math:`h_i = \log(\sigma_i / \sigma_{i+1})`

.. math::
    x_{i+1} = e^{-h_i} x_i + (1 - e^{-h_i}) D_i
    + (h_i - 1 + e^{-h_i}) \, \frac{D_i - D_{i-1}}{h_{i-1}} ,

without the last term in the first step and in that to zero, which are Euler's, and after noise or
a correction, which break the line. The error is of second order for one evaluation a step.

The parabola through the last three values adds, with the divided differences
:math:`D_{i,i-1} = (D_i - D_{i-1}) / h_{i-1}` and
:math:`D_{i,i-1,i-2} = (D_{i,i-1} - D_{i-1,i-2}) / (h_{i-1} + h_{i-2})`,

.. math:: \big( h_i^2 - (2 - h_{i-1}) (h_i - 1 + e^{-h_i}) \big) \, D_{i,i-1,i-2},

the integral of :math:`e^{\lambda - \lambda_{i+1}} s (s + h_{i-1})` over :math:`s = \lambda -
\lambda_i` from 0 to :math:`h_i`. The error of these steps is of third order. The first two steps
go by the constant and the line; at the highest levels, where D hardly changes, their errors are
small.

**Churn** adds noise before a step and starts it from the higher level :math:`\hat\sigma_i`:

.. math:: \hat{x}_i = x_i + \sqrt{\hat\sigma_i^2 - \sigma_i^2} \, z, \qquad
    \hat\sigma_i = (1 + \gamma) \, \sigma_i .

**The corrector** (`Corrector`) moves the points at each level by transitions that leave
:math:`p_\sigma` unchanged, accepted by the energy: what a score model cannot do.

**Every sample has random numbers of its own**, seeded by its index (`Streams`). Sample i of a seed
is the same, up to rounding, for any number of samples and any batch.

References:
    | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
    | https://arxiv.org/abs/2206.00364
    | Score-Based Generative Modeling through SDEs (Song et al., 2021)
    | https://arxiv.org/abs/2011.13456
    | DPM-Solver++ (Lu et al., 2022), whose 2M has :math:`\tfrac{1}{2} h (1 - e^{-h})` for the
      last factor
    | https://arxiv.org/abs/2211.01095
"""

__all__ = ["Churn", "Drawn", "Euler", "Flow", "Heun", "Multistep", "Multistep3", "karras"]

import abc
import math
import torch

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from torch import Tensor
from typing import Any, ClassVar, NamedTuple, Self

from .corrector import Corrector
from .field import Conditional, Field
from .streams import Streams
from .. import checks


def draw_seed(generator: torch.Generator | None) -> int:
    r"""Returns a number of 32 bits."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**32, (), generator=generator, device=device))


def blank(
    n: int, shape: Sequence[int], device: torch.device | str | None, dtype: torch.dtype | None
) -> Tensor:
    r"""Returns a tensor for n points of a shape."""
    checks.positive_integer(**{f"shape[{k}]": size for k, size in enumerate(shape)})
    if not shape:
        raise ValueError("expected a shape of one axis or more, got ()")
    return torch.empty(n, *shape, device=device, dtype=dtype)


def karras(
    steps: int = 18, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0
) -> tuple[float, ...]:
    r"""Returns the ladder of EDM, evenly spaced in :math:`\sigma^{1/\rho}`.

    .. math:: \sigma_i = \Big( \sigma_{max}^{1/\rho} + \tfrac{i - 1}{N - 1} \big(
        \sigma_{min}^{1/\rho} - \sigma_{max}^{1/\rho} \big) \Big)^\rho, \quad i = 1, \dots, N

    Arguments:
        steps: The number :math:`N \geq 2` of levels; the step to zero makes it that of steps.
        sigma_min: The last level.
        sigma_max: The first level.
        rho: The exponent :math:`\rho`: the larger, the more levels are low.

    Example:
        >>> karras(3, sigma_min=1.0, sigma_max=9.0, rho=2.0)
        (9.0, 4.0, 1.0)
    """
    checks.positive_integer(steps=steps)
    checks.positive(sigma_min=sigma_min, sigma_max=sigma_max, rho=rho)
    if steps < 2 or sigma_min >= sigma_max:
        raise ValueError(
            f"expected two steps or more and sigma_min < sigma_max, got steps={steps},"
            f" sigma_min={sigma_min}, sigma_max={sigma_max}"
        )
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    inner = ((high + i / (steps - 1) * (low - high)) ** rho for i in range(1, steps - 1))
    return (float(sigma_max), *inner, float(sigma_min))


@dataclass(frozen=True)
class Churn:
    r"""Creates the noise that a step begins with, as in EDM's Algorithm 2.

    .. math::
        \gamma = \min (S / N, \sqrt{2} - 1) \;\text{ at levels from `low` to `high`, else }\; 0

    Arguments:
        amount: The total :math:`S > 0`, EDM's S_churn, shared by N steps.
        low: The lowest level with noise, S_min.
        high: The highest one, S_max.
        noise: The standard deviation of z, S_noise; a little above one makes up for denoisers that
            remove too much.
    """

    amount: float
    low: float = 0.0
    high: float = math.inf
    noise: float = 1.0

    def __post_init__(self) -> None:
        checks.positive(amount=self.amount, noise=self.noise)
        if not 0 <= self.low <= self.high:
            raise ValueError(f"expected 0 <= low <= high, got low={self.low}, high={self.high}")

    def level(self, sigma: float, steps: int) -> float:
        r"""Returns the level :math:`\hat\sigma` from which one of N steps starts."""
        inside = self.low <= sigma <= self.high
        return (1 + min(self.amount / steps, math.sqrt(2) - 1)) * sigma if inside else sigma


class Seen(NamedTuple):
    r"""What a step sees at its start."""

    x: Tensor  # the points, (B, *)
    slope: Tensor  # (B, *)
    sigma: float  # their level
    past: Any = None  # what the step before it saw, a Seen, if the points came by both alone

    @property
    def clean(self) -> Tensor:
        r"""The denoised points."""
        return self.toward(0.0)

    def toward(self, after: float) -> Tensor:
        r"""Returns the points along the slope, at another level."""
        return self.x + (after - self.sigma) * self.slope


class Drawn(NamedTuple):
    r"""The outcome of a flow."""

    samples: Tensor  # (n, *)
    evaluations: int  # of the network, a sample
    acceptance: Tensor | None  # (N - 1, n), the mean over the transitions at each level


@dataclass(frozen=True)
class Flow(abc.ABC):
    r"""Abstract sampler along the probability-flow ODE. Subclasses are frozen values.

    Arguments:
        levels: The ladder, one level or more, each below the one before. See `karras`.
        churn: The noise that steps begin with, if any.
        corrector: The transitions at each level, if any.
    """

    order: ClassVar[int]  # of the error
    slopes: ClassVar[int]  # a step

    levels: Sequence[float] = karras()
    churn: Churn | None = None
    corrector: Corrector | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # to hash
        if not self.levels:
            raise ValueError("expected one level or more, got none")
        checks.positive(**{f"levels[{k}]": s for k, s in enumerate(self.levels)})
        if any(a <= b for a, b in pairwise(self.levels)):
            raise ValueError(f"expected falling levels, got {self.levels}")
        if self.corrector is None:
            return
        if (rest := len(self.levels) - 1) == 0:
            raise ValueError("expected two levels or more with a corrector, got one")
        if len(self.corrector.step_sizes) not in {0, rest}:
            raise ValueError(
                f"expected one step size a level but the first, {rest}, got"
                f" {len(self.corrector.step_sizes)}"
            )

    @abc.abstractmethod
    def step(self, field: Field, here: Seen, after: float, before: Seen | None) -> Tensor:
        r"""Returns the points at the next level, with shape :math:`(B, *)`.

        Arguments:
            field: The field.
            here: The points, their slope and their level.
            after: The next level, or zero.
            before: Those of the step before, if the points came here by it alone.
        """

    def start(self, sigma: float) -> float:
        r"""Returns the level from which the step at a level starts."""
        return sigma if self.churn is None else self.churn.level(sigma, len(self.levels))

    @property
    def evaluations(self) -> int:
        r"""The number of evaluations of the network, a sample.

        The corrector needs one more than it has transitions, at its start. Its last gradient is
        the slope of the next step, unless noise comes between.
        """
        rest = self.levels[1:]
        count = self.slopes * len(rest) + 1
        if self.corrector is not None:
            known = sum(self.start(sigma) == sigma for sigma in rest)
            count += len(rest) * (1 + self.corrector.transitions) - known
        return count

    @torch.no_grad()
    def run(
        self,
        energy: Conditional | Field,
        n: int,
        shape: Sequence[int],
        generator: torch.Generator | None = None,
        batch: int | None = None,
        first: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Drawn:
        r"""Returns n samples.

        One number is drawn from the generator: the seed of samples 0, 1, 2 and so on. A field that
        compiles is always given whole batches: the last is filled up with samples thrown away.

        Arguments:
            energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`,
                or its `Field`.
            n: The number of samples.
            shape: The shape :math:`*` of a sample.
            generator: The source of randomness; the global one if not given.
            batch: The number of samples made at once; all by default.
            first: The index of the first sample, to go on with a seed or to share it out.
            device: The device of the energy.
            dtype: The dtype of the samples.
        """
        batch = n if batch is None else batch
        checks.positive_integer(n=n, batch=batch)
        checks.at_least(0, first=first)
        corrector = self.corrector
        if corrector is not None and corrector.sampler.transient and not corrector.step_sizes:
            raise ValueError(
                f"expected a corrector without a warmup, or with the step sizes of Flow.tune,"
                f" got {corrector}"
            )
        field = energy if isinstance(energy, Field) else Field(energy)
        seed = draw_seed(generator)
        samples, rates = [], []
        for begin in range(first, first + n, batch):
            end = begin + batch if field.one_size else min(begin + batch, first + n)
            x = blank(end - begin, shape, device, dtype)
            x, rate, _ = self.descend(field, Streams(seed, range(begin, end)), x)
            samples.append(x)
            rates.append(rate)
        acceptance = corrector and torch.cat([torch.stack(rate) for rate in rates], dim=1)[:, :n]
        return Drawn(torch.cat(samples)[:n], self.evaluations, acceptance)

    @torch.no_grad()
    def tune(
        self,
        energy: Conditional | Field,
        shape: Sequence[int],
        generator: torch.Generator | None = None,
        n: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        r"""Returns this flow with the step sizes at which its corrector meets its target.

        A batch of n samples comes down the ladder; at each level the warmup of `MALA` begins from
        the relative step size of the level before. Arguments are those of `run`.
        """
        if self.corrector is None or not self.corrector.sampler.transient:
            raise ValueError(
                f"expected a corrector of MALA with a warmup to tune, got {self.corrector}"
            )
        checks.positive_integer(n=n)
        field = energy if isinstance(energy, Field) else Field(energy)
        streams = Streams(draw_seed(generator), range(n))
        bare = replace(self, corrector=replace(self.corrector, step_sizes=()))
        *_, sizes = bare.descend(field, streams, blank(n, shape, device, dtype), tune=True)
        return replace(self, corrector=replace(self.corrector, step_sizes=sizes))

    def descend(
        self, field: Field, streams: Streams, x: Tensor, tune: bool = False
    ) -> tuple[Tensor, list[Tensor], list[float]]:
        r"""Returns samples shaped as `x`, and the acceptance and step size of each level."""
        corrector, rates, sizes = self.corrector, [], []
        size = corrector.sampler.step_size if corrector else 0.0
        x, slope, before = self.levels[0] * streams.normal(x), None, None
        for i, (level, after) in enumerate(pairwise((*self.levels, 0.0))):
            sigma = self.start(level)
            if self.churn is not None and sigma > level:
                spread = self.churn.noise * math.sqrt(sigma**2 - level**2)
                x, slope, before = x + spread * streams.normal(x), None, None
            slope = field.slope(x, sigma) if slope is None else slope
            here = Seen(x, slope, sigma)
            past = before and before._replace(past=None)  # no further back
            x, slope, before = (
                self.step(field, here, after, before),
                None,
                here._replace(past=past),
            )
            if corrector is None or after == 0:
                continue
            size = corrector.step_sizes[i] if corrector.step_sizes else size
            state, rate = corrector(field, x, after, size, streams, tune)
            x, slope, before = state.x, after * state.gradient, None
            size = float(state.step_size) / after**2
            rates.append(rate)
            sizes.append(size)
        return x, rates, sizes


@dataclass(frozen=True)
class Euler(Flow):
    r"""Creates Euler's method: one evaluation a step, error of first order.

    Without churn and corrector it is DDIM. Arguments are those of `Flow`.
    """

    order: ClassVar[int] = 1
    slopes: ClassVar[int] = 1

    def step(self, field: Field, here: Seen, after: float, before: Seen | None) -> Tensor:
        return here.toward(after)


@dataclass(frozen=True)
class Heun(Flow):
    r"""Creates Heun's method: two evaluations a step, error of second order.

    Arguments are those of `Flow`; the default ladder is EDM's, of 35 evaluations. The paper's is
    `karras(18, sigma_min=0.01)`.

    Example:
        >>> energy = lambda x, sigma: x.square().sum(1) / (2 * (4 + sigma**2))  # data of std 2
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = Heun().run(energy, 4000, (2,), generator)
        >>> drawn.samples.shape, float(drawn.samples.std()), drawn.evaluations
        (torch.Size([4000, 2]), 2.0, 35)
    """

    order: ClassVar[int] = 2
    slopes: ClassVar[int] = 2

    def step(self, field: Field, here: Seen, after: float, before: Seen | None) -> Tensor:
        y = here.toward(after)
        if after == 0:
            return y
        return here.x + (after - here.sigma) / 2 * (here.slope + field.slope(y, after))


@dataclass(frozen=True)
class Multistep(Flow):
    r"""Creates the method that goes by the step before as well: one evaluation a step, error of
    second order.

    Arguments are those of `Flow`.
    """

    order: ClassVar[int] = 2
    slopes: ClassVar[int] = 1

    def step(self, field: Field, here: Seen, after: float, before: Seen | None) -> Tensor:
        y = here.toward(after)
        if after == 0 or before is None:
            return y
        h, past = math.log(here.sigma / after), math.log(before.sigma / here.sigma)
        return y + (h - 1 + after / here.sigma) / past * (here.clean - before.clean)


@dataclass(frozen=True)
class Multistep3(Multistep):
    r"""Creates the method that goes by the two steps before as well: one evaluation a step, error
    of third order.

    Arguments are those of `Flow`.
    """

    order: ClassVar[int] = 3

    def step(self, field: Field, here: Seen, after: float, before: Seen | None) -> Tensor:
        y = super().step(field, here, after, before)
        if after == 0 or before is None or before.past is None:
            return y
        first: Seen = before.past
        h = math.log(here.sigma / after)
        near = math.log(before.sigma / here.sigma)
        far = math.log(first.sigma / before.sigma)
        slope = (here.clean - before.clean) / near
        bend = (slope - (before.clean - first.clean) / far) / (near + far)
        return y + (h**2 - (2 - near) * (h - 1 + after / here.sigma)) * bend
