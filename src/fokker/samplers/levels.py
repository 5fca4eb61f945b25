r"""Particles along the levels of an energy: samples of composed energies, and log Z.

Energies of every level are composed level by level (`fokker.energies`), and what comes out is a
path of densities :math:`\pi_\sigma \propto e^{-E(\cdot, \sigma)}` from noise to the composed law.
It is not the law of anything with noise, so no flow carries one level to the next: a flow along
the sum of two scores arrives at points too narrow, with modes of wrong weights. A Metropolis
correction at each level (`Corrector`) repairs the first; weights of modes that no longer mix stay
what they were where they parted. Weights of particles repair both, as in annealed importance
sampling.

**The start.** At :math:`\sigma_1` far above the data the parts are Gaussians of variance
:math:`\sigma_1^2`, and a composition is one of variance :math:`\sigma_1^2 / s`, with s the sum of
its exponents: 2 for a product, 1/T for a temperature, :math:`1 - c` for a negation :math:`E_a - c
\, E_b`, that of its parts for a mixture. Particles begin there, with weights from that Gaussian r,
:math:`w = e^{-E(x, \sigma_1)} / r(x)`.

**Going down.** From :math:`\sigma` to :math:`\sigma'`, at fixed points,

.. math:: w \leftarrow w \; e^{E(x, \sigma) - E(x, \sigma')} ,

then systematic resampling where weights are uneven, then MALA transitions that leave
:math:`\pi_{\sigma'}` unchanged. The mean of the products of the factors is Z of the last level,
without bias. Particles live in G islands that never meet, whose spread is the error of
:math:`\log Z`.

A pilot run of half as many particles, at most 4,096, chooses the levels, each as low as a
conditional effective share of the weights allows, and the step sizes. About :math:`\sqrt{2 D}
\log(\sigma_1 / \sigma_N)` levels are needed while noise fills all D dimensions. The weights of
separated modes carry the noise of all levels after they part; it falls with the number of
particles, and of levels.

References:
    | Annealed Importance Sampling (Neal, 2001)
    | Sequential Monte Carlo Samplers (Del Moral, Doucet and Jasra, 2006)
    | Reduce, Reuse, Recycle: Compositional Generation with Energy-Based Diffusion Models and MCMC
    | (Du et al., 2023), https://arxiv.org/abs/2302.11552
"""

__all__ = ["Descent", "LevelParticles", "LevelRung", "exponent"]

import math
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from torch import Tensor
from typing import NamedTuple

from .field import Conditional
from .langevin import MALA
from .particles import ROWS, Unreliable
from .weights import combine, effective_share, resample, uneven
from .. import checks
from ..derivatives import value
from ..energies import Mixture, Quadratic, Scaled, Sum, leveled
from ..shapes import constant, dot

FIRST = 0.3  # step size of the first level, as a share of its variance
PILOT = 4096  # particles of a pilot run, at most
LEAST = 0.01  # effective share of the weights of the start below which it is refused


def exponent(energy: Callable[..., Tensor], sigma: float) -> float:
    r"""Returns the precision of an energy at a high level, in units of :math:`1 / \sigma^2`.

    Arguments:
        energy: The energy, perhaps composed.
        sigma: The level.

    Example:
        >>> from fokker.energies import Function
        >>> a = Function(lambda x, sigma: x.square().sum(1) / (2 * sigma**2))
        >>> exponent(a + a / 2 - a / 4, 80.0)
        1.25
    """
    if isinstance(energy, Sum):  # a difference is one
        return exponent(energy.a, sigma) + energy.sign * exponent(energy.b, sigma)
    if isinstance(energy, Scaled):
        return energy.factor * exponent(energy.energy, sigma)
    if isinstance(energy, Mixture):
        found = [exponent(part, sigma) for part in energy.parts]
        if max(found) - min(found) > 1e-6:
            raise ValueError(
                "expected parts of a mixture that are equally wide at high levels, got exponents"
                f" {', '.join(f'{s:g}' for s in found)}"
            )
        return found[0]
    if isinstance(energy, Quadratic):
        return (sigma / energy.std) ** 2
    return 1.0 if leveled(energy) else 0.0


class LevelRung(NamedTuple):
    r"""One level of a descent."""

    sigma: float
    step_size: float  # of the transitions


class Descent(NamedTuple):
    r"""The outcome of a run: particles of equal weight, and :math:`\log Z` of the last level."""

    samples: Tensor  # (N, *)
    log_z: float
    error: float  # standard error of log_z, from the spread of the islands
    islands: Tensor  # (G), the estimate of each island, float64
    share: float  # least effective share of the weights, over all levels and islands
    acceptance: float  # of the moves, the least over the levels
    levels: int
    evaluations: int  # of the energy, a particle


@dataclass(frozen=True)
class LevelParticles:
    r"""Creates particles that descend the levels of an energy.

    Arguments:
        sigma_max: The first level, far above the data.
        sigma_min: The last level, whose law is drawn from.
        moves: The number of MALA transitions a level.
        share: The conditional effective share that a level may cost, between 0 and 1.
        islands: The number :math:`G \geq 2` of islands.
        levels: The largest number of levels.

    Example:
        >>> from fokker.analytic import Diffused, Gaussian
        >>> a, b = (Diffused(Gaussian(torch.full((2,), m), 1.0)) for m in (-1.0, 1.0))
        >>> generator = torch.Generator().manual_seed(0)
        >>> found = LevelParticles(10.0, 0.05).run(a + b, 4000, (2,), generator)
        >>> found.samples.mean().abs() < 0.1, float(found.samples.var())  # 0, and 1/2
        (tensor(True), 0.5)
        >>> found.log_z  # -log(4 pi) - 2
        -4.5
    """

    sigma_max: float = 80.0
    sigma_min: float = 0.002
    moves: int = 5
    share: float = 0.9
    islands: int = 8
    levels: int = 5000

    def __post_init__(self) -> None:
        checks.positive(sigma_max=self.sigma_max, sigma_min=self.sigma_min)
        checks.positive_integer(moves=self.moves, levels=self.levels)
        checks.at_least(2, islands=self.islands)
        checks.share(share=self.share)
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"expected sigma_min < sigma_max, got {self}")

    @torch.no_grad()
    def run(
        self,
        energy: Conditional,
        n: int,
        shape: Sequence[int],
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        ladder: Sequence[LevelRung] | None = None,
    ) -> Descent:
        r"""Returns n samples of the law of the last level, and its :math:`\log Z`.

        Raises `Unreliable` if the levels cannot be gone down with weights that are not those of a
        few particles alone.

        Arguments:
            energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
            n: The number of particles, a multiple of the number of islands.
            shape: The shape :math:`*` of a point.
            generator: The source of randomness; the global one if not given.
            device: The device of the energy.
            dtype: The dtype of the points.
            ladder: The levels; if not given, a pilot run chooses them.
        """
        checks.positive_integer(n=n, **{f"shape[{k}]": size for k, size in enumerate(shape)})
        if n % self.islands or n < 8 * self.islands:
            raise ValueError(
                f"expected a multiple of {self.islands} particles, 8 or more an island, got {n}"
            )
        like = torch.empty(0, *shape, device=device, dtype=dtype)
        if ladder is None:
            ladder = self.ladder(energy, max(min(n // 2, PILOT), 64), like, generator)
        size = n // self.islands
        x, log_w = self.start(energy, n, like, generator)
        log_w = log_w.reshape(self.islands, size)
        log_z = torch.logsumexp(log_w, 1) - math.log(size)
        share, acceptance, sigma = float(effective_share(log_w).min()), 1.0, self.sigma_max
        offset = size * torch.arange(self.islands, device=x.device)[:, None]
        for rung in ladder:
            if rung.sigma != sigma:
                gain = self.gain(energy, x, sigma, rung.sigma).reshape(log_w.shape)
                before, log_w = torch.logsumexp(log_w, 1), log_w + gain
                log_z += torch.logsumexp(log_w, 1) - before
                share, sigma = min(share, float(effective_share(log_w).min())), rung.sigma
            anew = uneven(log_w)[:, None]
            kept = torch.arange(size, device=x.device).expand(log_w.shape)
            which = torch.where(anew, resample(log_w, generator), kept) + offset
            x, log_w = x[which.flatten()], torch.where(anew, 0.0, log_w)
            x, accepted, _ = self.move(energy, x, rung, generator, adapt=False)
            acceptance = min(acceptance, accepted)
        # islands weigh by their estimates of Z, particles by their weights within one
        log_w = log_w - torch.logsumexp(log_w, 1, keepdim=True) + log_z[:, None]
        x = x[resample(log_w.reshape(1, -1), generator)[0]]
        x, _, _ = self.move(energy, x, ladder[-1], generator, adapt=False)
        mean, error = combine(log_z)
        count = (len(ladder) + 1) * (self.moves + 3)
        return Descent(x, mean, error, log_z, share, acceptance, len(ladder), count)

    def start(
        self, energy: Conditional, n: int, like: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        r"""Returns particles of the Gaussian of the first level, and their logarithmic weights."""
        s = exponent(energy, self.sigma_max)
        if s <= 0:
            raise ValueError(
                f"expected an energy that confines its density at high levels, got exponents that"
                f" add up to {s:g}: less of what is taken away makes it a density"
            )
        variance = self.sigma_max**2 / s
        shape = (n, *like.shape[1:])
        x = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        x *= math.sqrt(variance)
        e0 = (dot(x, x) / variance).double() + math.prod(shape[1:]) * math.log(
            2 * math.pi * variance
        )
        log_w = e0 / 2 - self.values(energy, x, self.sigma_max)
        if not float(effective_share(log_w[None])) >= LEAST:
            raise Unreliable(
                f"expected a Gaussian of variance {variance:.4g} at sigma {self.sigma_max:g}, got"
                " another law: begin at a higher level"
            )
        return x, log_w

    def values(self, energy: Conditional, x: Tensor, sigma: float) -> Tensor:
        r"""Returns the energies at a level, :math:`(N)` in float64."""
        level = constant(sigma, x)
        e = torch.cat([value(lambda p: energy(p, level), part) for part in x.split(ROWS)])
        bad = torch.isnan(e) | (e == -math.inf)
        if bad.any():
            raise FloatingPointError(
                f"expected an energy that is not NaN, nor -infinity, at sigma {sigma:.4g}, got"
                f" {int(bad.sum())} of {len(x)} particles with one"
            )
        return e.double()

    def gain(self, energy: Conditional, x: Tensor, here: float, there: float) -> Tensor:
        r"""Returns :math:`E(x, \sigma) - E(x, \sigma')`, :math:`(N)` in float64."""
        return self.values(energy, x, here) - self.values(energy, x, there)

    def move(
        self,
        energy: Conditional,
        x: Tensor,
        rung: LevelRung,
        generator: torch.Generator | None,
        adapt: bool,
    ) -> tuple[Tensor, float, float]:
        r"""Returns the particles after the moves of a level, the acceptance and the step size."""
        sampler = MALA(rung.step_size, warmup=self.moves if adapt else 0)
        level = constant(rung.sigma, x)
        here = lambda p: energy(p, level)
        state, total = sampler.init(here, x), 0.0
        for _ in range(self.moves):
            state, info = sampler.step(here, state, generator)
            total += float(info.acceptance.mean())
        return state.x, total / self.moves, float(state.step_size)

    @torch.no_grad()
    def ladder(
        self, energy: Conditional, n: int, like: Tensor, generator: torch.Generator | None = None
    ) -> tuple[LevelRung, ...]:
        r"""Returns the levels that a pilot run of n particles chooses, from the first on.

        Arguments:
            energy: The energy.
            n: The number of particles.
            like: A tensor :math:`(0, *)` with the shape, dtype and device of points.
            generator: The source of randomness.
        """
        x, log_w = self.start(energy, n, like, generator)
        sigma, size = self.sigma_max, FIRST * self.sigma_max**2
        size /= exponent(energy, sigma)
        found: list[LevelRung] = []
        ratio = math.exp(1 / math.sqrt(2 * math.prod(like.shape[1:])))
        while not found or sigma > self.sigma_min:
            if len(found) == self.levels:
                raise Unreliable(
                    f"expected an energy whose levels {self.levels} steps go down, got only to"
                    f" sigma = {sigma:.4g}"
                )
            if found:
                sigma, ratio, gain = self.following(energy, x, log_w, sigma, ratio)
                log_w = log_w + gain
            if uneven(log_w[None]).item():
                x, log_w = x[resample(log_w[None], generator)[0]], torch.zeros_like(log_w)
            rung = LevelRung(sigma, size)
            x, _, size = self.move(energy, x, rung, generator, adapt=True)
            found.append(LevelRung(sigma, size))
        return tuple(found)

    def following(
        self, energy: Conditional, x: Tensor, log_w: Tensor, sigma: float, ratio: float
    ) -> tuple[float, float, Tensor]:
        r"""Returns the next level, its ratio to this one and the gains of the weights: as low as
        the conditional effective share allows, to within a fifth of the way."""
        e, log_w = self.values(energy, x, sigma), log_w - torch.logsumexp(log_w, 0)

        def gain(ratio: float) -> tuple[Tensor, bool]:
            more = e - self.values(energy, x, max(sigma / ratio, self.sigma_min))
            first, second = (torch.logsumexp(log_w + k * more, 0) for k in (1, 2))
            return more, float(2 * first - second) > math.log(self.share)

        more, enough = gain(ratio)
        if enough:
            while sigma / ratio > self.sigma_min:
                farther, still = gain(ratio**1.2)
                if not still:
                    break
                ratio, more = ratio**1.2, farther
        while not enough:
            ratio = ratio**0.8
            more, enough = gain(ratio)
            if ratio - 1 < 1e-9:
                raise Unreliable(
                    f"expected an energy that changes little from level to level, got weights of"
                    f" few particles alone at sigma = {sigma:.4g}"
                )
        return max(sigma / ratio, self.sigma_min), ratio, more
