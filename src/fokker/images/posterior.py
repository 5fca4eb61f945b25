r"""Posteriors: an energy as the prior of a linear inverse problem.

With :math:`y = A x + s \, n` (`fokker.images.operators`) and a prior :math:`p \propto e^{-E(x,
0)}`

.. math:: p(x \mid y) \propto e^{-U(x)}, \qquad U(x) = E(x, 0) + \frac{\|A x - y\|^2}{2 s^2} .

A ladder of levels :math:`\sigma_1 > \dots > \sigma_N \geq 0` leads there. **The target of level
i** is

.. math:: \pi_i \propto e^{-U_i}, \qquad
    U_i(x) = E(x, \sigma_i) + \frac{\|A x - y\|^2}{2 v_i}, \qquad
    v_i = s^2 + \|A\|^2 (\sigma_i^2 - \sigma_N^2) ,

with :math:`\|A\|` the largest singular value. The last, :math:`\pi_N`, has :math:`s^2` alone: it
is the posterior if :math:`\sigma_N = 0`. A network has no level zero; its lowest level stands for
it, and :math:`\pi_N` is then the posterior of data with noise :math:`\sigma_N`, exactly. The other
targets need not be the law of anything: they only lead to the last.

**Transitions** (`Annealing`) are Langevin steps with the preconditioner

.. math:: M_i = \Big( \frac{I}{\sigma_i^2 + \tau^2} + \frac{B^\top B}{v_i} \Big)^{-1}, \qquad
    x' = x - \tfrac{h}{2} M_i \nabla U_i(x) + \sqrt{h} \, M_i^{1/2} z ,

which are those of `MALA` (accepted or rejected by :math:`U_i`) or `ULA` for
:math:`u = M_i^{-1/2} x`. So one h serves what the observation fixes and what it leaves open. h
follows the acceptance during the first transitions of a level, and is frozen for the others.

**Weights.** Chains this short keep the weights of modes that they had where modes separate. With
`weighted`, the points are particles: from :math:`\pi_i` to :math:`\pi_{i+1}` each is weighted by
:math:`e^{U_i(x) - U_{i+1}(x)}` and resampled (`fokker.samplers.weights`), which puts the weights
right as the number of particles grows. It needs overlapping targets, so many levels: `ladder`
chooses them. In the dimension of a photograph no number of levels that one can pay for is enough;
there points are taken to the next level by one step of the flow,
:math:`x + (\sigma_{i+1} - \sigma_i) \, \sigma_i \nabla U_i(x)`, and modes keep their weights.

References:
    | Sequential Monte Carlo samplers (Del Moral et al., 2006)
    | Robust Compressed Sensing MRI with Deep Generative Priors (Jalal et al., 2021), whose
    | annealed Langevin dynamics has no acceptance: https://arxiv.org/abs/2108.01368
"""

__all__ = ["Annealing", "Descended", "Posterior", "Samples", "descend", "ladder"]

import math
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from torch import Tensor
from typing import NamedTuple

from .operators import Operator
from .. import checks
from ..samplers import MALA, ULA, Field, State
from ..samplers.streams import Stream
from ..samplers.weights import effective_share, resample, uneven
from ..shapes import constant, dot

Watch = Callable[[], None]


@dataclass(frozen=True, eq=False)
class Posterior:
    r"""Creates the posterior of a picture.

    Arguments:
        field: The prior E(x, σ), as a `Field`.
        operator: The operator A.
        y: The observation, with shape :math:`(1, C, h, w)`.
        noise: The standard deviation s of its noise.
        lowest: The last level :math:`\sigma_N` of the ladder.
    """

    field: Field
    operator: Operator
    y: Tensor
    noise: float
    lowest: float = 0.0

    def __post_init__(self) -> None:
        checks.points(checks.images(self.y), "y")
        checks.positive(noise=self.noise)
        checks.not_negative(lowest=self.lowest)

    def variance(self, sigma: float) -> float:
        r"""Returns :math:`v = s^2 + \|A\|^2 (\sigma^2 - \sigma_N^2)`."""
        if sigma < self.lowest:
            raise ValueError(f"expected a level of {self.lowest:g} or more, got {sigma!r}")
        return self.noise**2 + self.operator.norm**2 * (sigma**2 - self.lowest**2)

    def value(self, x: Tensor, sigma: float) -> Tensor:
        r"""Returns :math:`U(x)` at a level, with shape :math:`(B)`."""
        with torch.no_grad():
            e = self.field.energy(x, constant(sigma, x))
        miss = self.operator(x) - self.y
        return e + dot(miss, miss) / (2 * self.variance(sigma))

    def jet(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`U(x)` and :math:`\nabla U(x)` at a level."""
        e, g = self.field.jet(x, sigma)
        v, miss = self.variance(sigma), self.operator(x) - self.y
        return e + dot(miss, miss) / (2 * v), g + self.operator.adjoint(miss) / v

    def precondition(self, x: Tensor, sigma: float, scale: float, power: float) -> Tensor:
        r"""Returns :math:`M^{p} x` at a level, with :math:`\tau` the `scale`."""
        return self.operator.power(x, 1 / (sigma**2 + scale**2), 1 / self.variance(sigma), -power)

    def start(self, n: int, sigma: float, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns n points :math:`x_0 + \sigma z` about the operator's first guess."""
        x = self.operator.back(self.y).expand(n, -1, -1, -1)
        z = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return x + sigma * z


class Descended(NamedTuple):
    r"""The outcome of a descent."""

    x: Tensor  # (B, C, H, W)
    energy: Tensor  # (B), U at x
    gradient: Tensor  # (B), the norm of M^{1/2} ∇U at x
    evaluations: int  # of the gradient
    values: tuple[float, ...]  # U of the first point along the last level


def descend(
    posterior: Posterior,
    x: Tensor,
    levels: Sequence[float],
    steps: int = 20,
    scale: float = 0.0,
    tolerance: float = 1e-3,
    halvings: int = 12,
) -> Descended:
    r"""Returns a minimum of U, the mode of the posterior, by preconditioned descent down the
    levels.

    At each level :math:`x - t M \nabla U` with :math:`t = 1, \tfrac12, \dots`, the first for which
    U falls by :math:`10^{-4} \, t \, \|M^{1/2} \nabla U\|^2` or more (Armijo's rule): the energy
    of a level never rises. A score alone, without an energy, has no such rule. After a step that
    was taken at once, the next is tried twice as long.

    Arguments:
        posterior: The posterior.
        x: The points to start from, with shape :math:`(B, C, H, W)`.
        levels: The ladder of levels; U is that of the last one.
        steps: The number of steps a level.
        scale: The scale :math:`\tau` of the preconditioner.
        tolerance: The norm of :math:`M^{1/2} \nabla U`, over :math:`\sqrt{D}`, at which a level
            ends.
        halvings: The largest number of halvings of a step.
    """
    checks.points(checks.images(x))
    checks.positive_integer(steps=steps)
    if not levels:
        raise ValueError("expected one level or more to descend along, got none")
    count, values, t = 0, [], torch.ones(len(x), dtype=x.dtype, device=x.device)
    e, g = posterior.jet(x, levels[0])
    for k, sigma in enumerate(levels):
        e, g = posterior.jet(x, sigma) if k else (e, g)
        count, values = count + 1, [float(e[0])]
        for _ in range(steps):
            d = posterior.precondition(g, sigma, scale, 1.0)
            fall = dot(g, d)
            if float(fall.max()) <= tolerance**2 * x[0].numel():
                break
            moved = torch.zeros_like(e, dtype=torch.bool)
            for halving in range(halvings):
                y = x - t[:, None, None, None] * d
                ey = posterior.value(y, sigma)
                good = ~moved & (ey <= e - 1e-4 * t * fall)
                x = torch.where(good[:, None, None, None], y, x)
                moved |= good
                t = torch.where(moved, t, t / 2)
                if moved.all():
                    t = 2 * t if halving == 0 else t
                    break
            if not moved.any():
                t = torch.ones_like(t)
                break  # no step lowers U: the bottom, to rounding
            e, g = posterior.jet(x, sigma)
            count += 1
            values.append(float(e[0]))
    norm = dot(g, posterior.precondition(g, levels[-1], scale, 1.0)).sqrt()
    if not torch.isfinite(e).all():
        raise FloatingPointError(f"expected a finite energy at the minimum, got {e.tolist()}")
    return Descended(x, e, norm, count, tuple(values))


class Samples(NamedTuple):
    r"""Samples of a posterior."""

    x: Tensor  # (K, C, H, W); of particles, in islands one after another
    acceptance: tuple[float, ...]  # of the frozen transitions of each level
    share: float  # the least effective share of the weights at a level; 1 without weights
    kept: Tensor  # (S, K, C, H, W), the points kept along the last level
    step_size: float  # h at the last level

    @property
    def mean(self) -> Tensor:
        r"""The mean of all points kept, with shape :math:`(C, H, W)`."""
        return self.kept.mean((0, 1))

    @property
    def spread(self) -> Tensor:
        r"""The standard deviation of all points kept, with shape :math:`(C, H, W)`."""
        return self.kept.flatten(0, 1).std(0)


@dataclass(frozen=True)
class Annealing:
    r"""Creates the annealed sampler of a posterior.

    Arguments:
        levels: The ladder of levels, falling; the last is that of the posterior.
        moves: The number of transitions a level.
        last: The number of transitions at the last level.
        thin: The number of them to a point that is kept.
        first: The number of transitions at the first level.
        corrected: Whether transitions are accepted by the energy (MALA) or all taken (ULA).
        weighted: Whether the points are particles with weights.
        scale: The scale :math:`\tau` of the preconditioner.
        step_size: The first h; that of all uncorrected transitions.
        islands: The number of islands in which particles are resampled.
        target: The acceptance that h follows.
    """

    levels: Sequence[float]
    moves: int = 4
    last: int = 20
    thin: int = 5
    first: int = 20
    corrected: bool = True
    weighted: bool = False
    scale: float = 0.0
    step_size: float = 0.3
    islands: int = 8
    target: float = 0.574

    def __post_init__(self) -> None:
        levels = tuple(float(level) for level in self.levels)
        object.__setattr__(self, "levels", levels)
        checks.not_negative(**{f"levels[{k}]": level for k, level in enumerate(levels)})
        if not levels or any(a <= b for a, b in pairwise(levels)):
            raise ValueError(f"expected levels that fall, one or more, got {levels}")
        checks.positive_integer(moves=self.moves, last=self.last, thin=self.thin, first=self.first)
        checks.positive_integer(islands=self.islands)
        checks.not_negative(scale=self.scale)
        checks.positive(step_size=self.step_size)
        checks.share(target=self.target)
        if self.last < self.thin:
            raise ValueError(
                f"expected thin <= last, so as to keep a point, got {self.thin} > {self.last}"
            )

    @torch.no_grad()
    def run(
        self,
        posterior: Posterior,
        x: Tensor,
        generator: torch.Generator | None = None,
        watch: Watch = lambda: None,
    ) -> Samples:
        r"""Returns samples of a posterior.

        Arguments:
            posterior: The posterior, whose lowest level is the last of the ladder.
            x: The points to start from, with shape :math:`(K, C, H, W)`; see `Posterior.start`.
            generator: The source of randomness; the global one if not given.
            watch: Called after each transition, to show how far the run is.
        """
        checks.points(checks.images(x))
        if posterior.lowest != self.levels[-1]:
            raise ValueError(
                f"expected a posterior whose lowest level is the last of the ladder,"
                f" {self.levels[-1]:g}, got {posterior.lowest:g}"
            )
        if self.weighted and len(x) % self.islands:
            raise ValueError(f"expected a multiple of {self.islands} particles, got {len(x)}")
        h, rates, share, log_w, kept = self.step_size, [], 1.0, None, []
        for k, sigma in enumerate(self.levels):
            if k:
                x, log_w, least = self.descent(posterior, x, k, log_w, generator)
                share = min(share, least)
            final = k == len(self.levels) - 1
            if final and log_w is not None:
                x, log_w = self.drawn(x, log_w, generator), None
            count = self.last if final else self.first if k == 0 else self.moves
            sink = kept if final else []
            x, h, rate = self.transitions(posterior, x, sigma, h, count, generator, watch, sink)
            rates.append(rate)
        return Samples(x, tuple(rates), share, torch.stack(kept), h)

    def descent(
        self,
        posterior: Posterior,
        x: Tensor,
        k: int,
        log_w: Tensor | None,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor | None, float]:
        r"""Returns the points at level k, from those of the level before, and the weights of
        particles with their least effective share."""
        before, now = self.levels[k - 1], self.levels[k]
        if not self.weighted:
            return x + (now - before) * before * posterior.jet(x, before)[1], None, 1.0
        more = (posterior.value(x, before) - posterior.value(x, now)).double()
        more = more.reshape(self.islands, -1)
        log_w = more if log_w is None else log_w + more
        share = effective_share(log_w)
        if not torch.isfinite(share).all():
            raise FloatingPointError(
                f"expected finite weights of particles at sigma {now:.4g}, got NaN or infinity"
            )
        if uneven(log_w).any():
            x, log_w = self.drawn(x, log_w, generator), None
        return x, log_w, float(share.min())

    def drawn(self, x: Tensor, log_w: Tensor, generator: torch.Generator | None) -> Tensor:
        r"""Returns particles drawn by their weights within their islands."""
        n = log_w.shape[1]
        offset = n * torch.arange(self.islands, device=x.device)[:, None]
        return x[(resample(log_w, generator) + offset).flatten()]

    def transitions(
        self,
        posterior: Posterior,
        x: Tensor,
        sigma: float,
        h: float,
        count: int,
        generator: torch.Generator | None,
        watch: Watch,
        kept: list[Tensor],
    ) -> tuple[Tensor, float, float]:
        r"""Returns the points after the transitions of a level, h and the acceptance.

        Corrected, half as many transitions again come first and adapt h.
        """
        half = lambda x, p: posterior.precondition(x, sigma, self.scale, p / 2)

        def slope(u: Tensor) -> tuple[Tensor, Tensor]:
            e, g = posterior.jet(half(u, 1), sigma)
            return e, half(g, 1)

        warmup = -(-count // 2) if self.corrected else 0
        sampler = MALA(h, self.target, warmup) if self.corrected else ULA(h)
        u = half(x, -1)
        e, g = slope(u)
        state, stream, rates = State(u, e, g, constant(h, x), 0), Stream(generator), []
        for k in range(warmup + count):
            state, info = sampler.move(slope, state, stream)
            watch()
            if k >= warmup:
                rates.append(float(info.acceptance.mean()))
                if (k + 1 - warmup) % self.thin == 0:
                    kept.append(half(state.x, 1))
        if not torch.isfinite(state.energy).all():
            raise FloatingPointError(
                f"expected finite chains, got NaN or infinity at sigma {sigma:.4g} with step size"
                f" {h:.4g}: correct them, or take a smaller one"
            )
        return half(state.x, 1), float(state.step_size), math.fsum(rates) / len(rates)


@torch.no_grad()
def ladder(
    posterior: Posterior,
    annealing: Annealing,
    x: Tensor,
    generator: torch.Generator | None = None,
    share: float = 0.9,
    most: int = 1000,
) -> tuple[float, ...]:
    r"""Returns the levels that a pilot run of particles chooses between the first and the last
    level: each as far as the effective share of the weights from one to the next allows.

    Arguments:
        posterior: The posterior.
        annealing: The sampler of the pilot run; its first and last level are the ends.
        x: The particles to start from.
        generator: The source of randomness; the global one if not given.
        share: The effective share that one level may cost, between 0 and 1.
        most: The largest number of levels.
    """
    checks.share(share=share)
    sigma, end, h = annealing.levels[0], annealing.levels[-1], annealing.step_size
    found, nothing = [sigma], lambda: None

    def weights(to: float) -> Tensor:
        return (posterior.value(x, sigma) - posterior.value(x, to)).double()[None]

    def enough(to: float) -> bool:
        return float(effective_share(weights(to))) > share

    count = annealing.first
    while sigma > end:
        if len(found) == most:
            raise ValueError(f"expected {most} levels to lead to {end:g}, got to {sigma:.4g}")
        args = (posterior, x, sigma, h, count, generator, nothing, [])
        x, h, _ = annealing.transitions(*args)
        count, low, high = annealing.moves, end, sigma
        if enough(end):
            found.append(end)
            break
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
            if high - low < 0.02 * (sigma - low):
                break
        if high == sigma:
            raise ValueError(
                f"expected targets that overlap, got none within the share {share:g} of sigma"
                f" {sigma:.4g}; use more particles or a lower share"
            )
        x = x[resample(weights(high), generator)[0]]
        sigma = high
        found.append(sigma)
    return tuple(found)
