r"""Particles with weights: sequential Monte Carlo, samples and :math:`\log Z` in one run.

Between a base :math:`r = e^{-E_0}`, a mixture of Gaussians that is normalized and can be sampled,
and the density :math:`p = e^{-E} / Z` lies the path

.. math:: \pi_\beta \propto r^{1 - \beta} \, e^{-\beta E}, \quad
    0 = \beta_0 < \beta_1 < \dots < \beta_K = 1 .

N particles start at exact samples of r. From rung k to k + 1 each is weighted by

.. math:: w_i = e^{(\beta_{k+1} - \beta_k) (E_0(x_i) - E(x_i))} ,

the particles are resampled in proportion to their weights once those are uneven, and moved by
transitions that leave :math:`\pi_{\beta_{k+1}}` unchanged. A particle that froze in a far minimum
carries no weight there and dies. The product of the mean weights is an unbiased estimate of Z,

.. math:: \hat{Z} = \prod_k \sum_i W_i w_i, \quad \mathbb{E} \, \hat{Z} = Z, \quad
    \mathbb{E} \log \hat{Z} \leq \log Z ,

with W the weights before, normalized. Run from exact samples of p down to r, the same estimates
:math:`1 / Z`, and its logarithm bounds :math:`\log Z` from above: with exact samples at hand the
two bracket the truth (bidirectional Monte Carlo).

**The ladder.** A pilot run chooses the rungs, each as far as the conditional effective share
:math:`(\sum_i W_i w_i)^2 / \sum_i W_i w_i^2` of the weights allows, and with each the step size
and a linear map :math:`x = m + L u` under which the particles have unit covariance, about the
means of the components of the base. The run that counts has its ladder fixed: that is what makes
it unbiased.

**The error.** The particles are split in G islands, which share the ladder and nothing else.
:math:`\hat{Z}` is the mean of theirs, and its standard error comes from their spread. R-hat takes
an island as a chain.

Shapes: particles :math:`(N, D)`, with island g the g-th of G equal parts.

References:
    | Sequential Monte Carlo samplers (Del Moral et al., 2006)
    | Annealed importance sampling (Neal, 2001)
    | Sandwiching the marginal likelihood using bidirectional Monte Carlo (Grosse et al., 2015)
    | https://arxiv.org/abs/1511.02543
    | Toward automatic model comparison: an adaptive sequential Monte Carlo approach
    | (Zhou et al., 2016), the conditional effective share
"""

__all__ = ["Ladder", "Particles", "Population", "Rung", "Unreliable"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import NamedTuple

from . import diagnostics
from .langevin import MALA
from .weights import combine, effective_share, resample, uneven
from .. import checks
from ..analytic import GaussianMixture
from ..derivatives import EnergyLike, gradient, value

ROWS = 8192  # points evaluated at a time
FIRST = 0.5  # step size of the first rung, in units of the particles' spread


class Unreliable(ValueError):
    r"""Says why samples of an energy, or its :math:`\log Z`, cannot be trusted."""


class Rung(NamedTuple):
    r"""One rung of a ladder."""

    beta: float
    center: Tensor  # (D), m
    factor: Tensor  # (D, D), L
    step_size: float  # of the transitions, in units of u


class Ladder(NamedTuple):
    r"""The rungs that a pilot run chose, from the first above the base to the energy."""

    rungs: tuple[Rung, ...]


class Population(NamedTuple):
    r"""The outcome of a run: particles of equal weight, and :math:`\log Z`."""

    samples: Tensor  # (N, D)
    energy: Tensor  # (N), of the samples
    log_z: float
    error: float  # standard error of log_z, from the spread of the islands
    islands: Tensor  # (G), the estimate of each island, float64
    share: float  # least effective share of the weights on a rung, over all islands
    acceptance: float  # of the moves, the least over the rungs
    ancestors: float  # share of the first particles of which a last one descends
    rungs: int
    rhat: float  # of the coordinates and the energy, the largest; an island is a chain
    energies: Tensor  # (G), the mean energy of each island, float64
    size: float  # effective number of samples, by the spread of the islands' mean energies


@dataclass(frozen=True)
class Particles:
    r"""Creates particles that climb from a base to an energy.

    Arguments:
        base: The base r, with mass wherever the energy has.
        moves: The number of MALA transitions a rung.
        share: The conditional effective share that a rung may cost, between 0 and 1.
        islands: The number :math:`G \geq 2` of islands.
        rungs: The largest number of rungs. An energy that does not confine its density needs more
            than any: its weights fall apart as :math:`\beta \to 1`.

    Example:
        >>> from fokker.analytic import Gaussian
        >>> from fokker.energies import Quadratic
        >>> base = Gaussian(torch.zeros(3), 4 * torch.eye(3))
        >>> generator = torch.Generator().manual_seed(0)
        >>> found = Particles(base).run(Quadratic(), 4000, generator)
        >>> found.log_z  # 3 / 2 log 2 pi = 2.76
        2.8
        >>> float(found.samples.std())
        1.0
    """

    base: GaussianMixture
    moves: int = 10
    share: float = 0.9
    islands: int = 8
    rungs: int = 400

    def __post_init__(self) -> None:
        checks.positive_integer(moves=self.moves, rungs=self.rungs)
        checks.at_least(2, islands=self.islands)
        checks.share(share=self.share)

    def gap(self, energy: EnergyLike, x: Tensor) -> Tensor:
        r"""Returns :math:`E_0 - E`, :math:`(N)` in float64; :math:`-\infty` where E is
        :math:`+\infty`."""
        with torch.no_grad():
            parts = [(value(self.base, p), value(energy, p)) for p in x.split(ROWS)]
        e0, e = (torch.cat(column).double() for column in zip(*parts, strict=True))
        bad = torch.isnan(e) | (e == -math.inf) | torch.isnan(e0)
        if bad.any():
            raise FloatingPointError(
                f"expected an energy that is not NaN, nor -infinity, got {int(bad.sum())} of"
                f" {len(x)} particles with one"
            )
        return e0 - e

    def fit(self, beta: float, x: Tensor, log_w: Tensor, step_size: float) -> Rung:
        r"""Returns a rung whose linear map fits weighted particles."""
        w = torch.softmax(log_w, dim=0).to(x)
        with torch.no_grad():
            logs = torch.cat([self.base.parts(p)[0] for p in x.split(ROWS)], dim=1)
        nearest = logs.argmax(0)
        mass = w.new_zeros(len(self.base.weights)).index_add_(0, nearest, w)
        sums = torch.zeros_like(self.base.means).index_add_(0, nearest, w[:, None] * x)
        means = sums / mass.clamp_min(1e-12)[:, None]
        shift = x - means[nearest]
        n, d = float(1 / w.square().sum()), x.shape[1]
        diagonal = (w[:, None] * shift.square()).sum(0).clamp_min(1e-12)
        keep = n / (n + 5 * d)  # the rest is shrunk to the diagonal, as few particles know little
        covariance = keep * (shift.T * w) @ shift + (1 - keep) * torch.diag(diagonal)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed:
            factor = torch.diag(diagonal.sqrt())
        return Rung(beta, (w[:, None] * x).sum(0), factor, step_size)

    def move(
        self,
        energy: EnergyLike,
        rung: Rung,
        x: Tensor,
        generator: torch.Generator | None,
        adapt: bool,
    ) -> tuple[Tensor, float, float]:
        r"""Returns the particles after the moves of a rung, the acceptance and the step size."""
        sampler = MALA(rung.step_size, warmup=self.moves if adapt else 0)
        mixed = Path(self.base, energy, rung)
        state = sampler.init(mixed, inward(x, rung))
        total = 0.0
        for _ in range(self.moves):
            state, info = sampler.step(mixed, state, generator)
            total += float(info.acceptance.mean())
        return outward(state.x, rung), total / self.moves, float(state.step_size)

    @torch.no_grad()
    def ladder(
        self, energy: EnergyLike, n: int, generator: torch.Generator | None = None
    ) -> Ladder:
        r"""Returns the ladder that a pilot run of n particles chooses.

        Raises `Unreliable` if the energy is not reached within the largest number of rungs.
        """
        checks.positive_integer(n=n)
        x, log_w = self.base.sample(n, generator), None
        gap, beta, step_size, found = self.gap(energy, x), 0.0, FIRST, []
        while beta < 1:
            if len(found) == self.rungs:
                raise Unreliable(
                    f"expected an energy that {self.rungs} rungs reach from the base, got only to"
                    f" beta = {beta:.6g}: the energy does not confine its density, or the base is"
                    " far from it"
                )
            following = self.next_beta(beta, gap, log_w)
            log_w = (following - beta) * gap + (0 if log_w is None else log_w)
            beta = following
            rung = self.fit(beta, x, log_w, step_size)
            if uneven(log_w[None]).item() or beta == 1:
                x, log_w = x[resample(log_w[None], generator)[0]], None
            x, _, step_size = self.move(energy, rung, x, generator, adapt=True)
            gap = self.gap(energy, x)
            found.append(rung._replace(step_size=step_size))
        return Ladder(tuple(found))

    def next_beta(self, beta: float, gap: Tensor, log_w: Tensor | None) -> float:
        r"""Returns the next :math:`\beta`, at which the conditional effective share is the one
        asked for, among the particles where the density is not zero."""
        old = torch.zeros_like(gap) if log_w is None else log_w
        held = ~torch.isneginf(gap)
        if not held.any():
            raise Unreliable("expected particles where the density is not zero, got none")
        old, gap = old[held], gap[held]
        old = old - torch.logsumexp(old, 0)

        def enough(b: float) -> bool:
            new = (b - beta) * gap
            first, second = (torch.logsumexp(old + k * new, 0) for k in (1, 2))
            return float(2 * first - second) > math.log(self.share)

        if enough(1.0):
            return 1.0
        low, high = 0.0, 1.0 - beta
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if enough(beta + middle) else (low, middle)
            if low > 0 and high - low < 1e-3 * low:
                break
        if low == 0 or beta + low == beta:
            raise Unreliable(
                f"expected an energy near the base, got weights of one particle alone at beta ="
                f" {beta:.6g}"
            )
        return beta + low

    @torch.no_grad()
    def run(
        self,
        energy: EnergyLike,
        n: int,
        generator: torch.Generator | None = None,
        ladder: Ladder | None = None,
    ) -> Population:
        r"""Returns n samples of an energy and its :math:`\log Z`.

        Arguments:
            energy: The energy, :math:`(B, D) \to (B)`.
            n: The number of particles, a multiple of the number of islands.
            generator: The source of randomness; the global one if not given.
            ladder: The ladder; if not given, a pilot run of half as many particles chooses it.
        """
        self.check(n)
        ladder = self.ladder(energy, max(n // 2, 8), generator) if ladder is None else ladder
        x = self.base.sample(n, generator)
        climb = self.climb(energy, x, 0.0, ladder.rungs, 1.0, generator)
        return self.population(energy, ladder, climb, generator)

    @torch.no_grad()
    def backward(
        self,
        energy: EnergyLike,
        x: Tensor,
        ladder: Ladder,
        generator: torch.Generator | None = None,
    ) -> tuple[float, float]:
        r"""Returns :math:`\log Z` by a run from points of the energy down to the base, and its
        standard error.

        It is an upper bound, up to its error, if the points are exact samples of the energy.

        Arguments:
            energy: The energy.
            x: The points, with shape :math:`(N, D)`, N a multiple of the number of islands.
            ladder: The ladder of the run up.
            generator: The source of randomness; the global one if not given.
        """
        self.check(len(x))
        rungs = tuple(r for r in reversed(ladder.rungs) if r.beta < 1)
        log_z, error = combine(self.climb(energy, x, 1.0, rungs, 0.0, generator).log_z)
        return -log_z, error

    def check(self, n: int) -> None:
        checks.positive_integer(n=n)
        if n % self.islands or n < 8 * self.islands:
            raise ValueError(
                f"expected a multiple of {self.islands} particles, 8 or more an island, got {n}"
            )

    def climb(
        self,
        energy: EnergyLike,
        x: Tensor,
        beta: float,
        rungs: tuple[Rung, ...],
        end: float,
        generator: torch.Generator | None,
    ) -> "Climb":
        r"""Returns the islands after the rungs of a fixed ladder, taken from one end to the
        other."""
        islands, n = self.islands, len(x) // self.islands
        log_w = x.new_zeros(islands, n, dtype=torch.float64)
        log_z = log_w.new_zeros(islands)
        ancestors = torch.arange(len(x), device=x.device).reshape(islands, n)
        share, acceptance = 1.0, 1.0
        offset = n * torch.arange(islands, device=x.device)[:, None]
        for rung in (*rungs, None):
            following = end if rung is None else rung.beta
            if following != beta:
                more = (following - beta) * self.gap(energy, x).reshape(islands, n)
                log_z += torch.logsumexp(log_w + more, 1) - torch.logsumexp(log_w, 1)
                log_w, beta = log_w + more, following
                share = min(share, float(effective_share(log_w).min()))
                if not math.isfinite(share) or not torch.isfinite(log_z).all():
                    raise FloatingPointError(
                        f"expected particles with weight, got an island without any at beta ="
                        f" {beta:.6g}"
                    )
                anew = uneven(log_w)[:, None]
                kept = torch.arange(n, device=x.device).expand(islands, n)
                which = torch.where(anew, resample(log_w, generator), kept) + offset
                x = x[which.flatten()]
                ancestors = ancestors.flatten()[which]
                log_w = torch.where(anew, 0.0, log_w)
            if rung is not None:
                x, accepted, _ = self.move(energy, rung, x, generator, adapt=False)
                acceptance = min(acceptance, accepted)
        return Climb(x, log_w, log_z, ancestors, share, acceptance)

    def population(
        self,
        energy: EnergyLike,
        ladder: Ladder,
        climb: "Climb",
        generator: torch.Generator | None,
    ) -> Population:
        r"""Returns the samples of a climb and what is known of them."""
        x, log_w, log_z, ancestors, share, acceptance = climb
        islands, n = log_w.shape
        log_w = log_w - torch.logsumexp(log_w, 1, keepdim=True)
        offset = n * torch.arange(islands, device=x.device)[:, None]
        apart = x[(resample(log_w, generator) + offset).flatten()]
        e = self.energies(energy, apart)
        chains = torch.cat((apart.double(), e[:, None]), dim=1)
        rhat = diagnostics.rhat(chains.reshape(islands, n, -1).transpose(0, 1))
        which = resample((log_w + log_z[:, None]).reshape(1, -1), generator)[0]
        x, _, _ = self.move(energy, ladder.rungs[-1], x[which], generator, adapt=False)
        alive = len(torch.unique(ancestors.flatten()[which])) / len(x)
        rhat = float(rhat.nan_to_num(math.inf).max())
        mean, error = combine(log_z)
        means, within = e.reshape(islands, n).mean(1), e.reshape(islands, n).var(1).mean()
        size = float(islands * within / means.var().clamp_min(1e-300))
        return Population(
            x, self.energies(energy, x), mean, error, log_z, share, acceptance, alive,
            len(ladder.rungs), rhat, means, min(size, float(len(x))),
        )  # fmt: skip

    def energies(self, energy: EnergyLike, x: Tensor) -> Tensor:
        r"""Returns the energies of particles, :math:`(N)` in float64."""
        with torch.no_grad():
            return torch.cat([value(energy, p) for p in x.split(ROWS)]).double()


class Path:
    r"""Creates the energy of a rung, :math:`(1 - \beta) E_0 + \beta E`, as one of u.

    Its gradient is :math:`L^\top ((1 - \beta) \nabla E_0 + \beta \nabla E)`, from those of the two
    by the cheapest way that each knows.
    """

    def __init__(self, base: GaussianMixture, energy: EnergyLike, rung: Rung) -> None:
        self.base, self.energy, self.rung = base, energy, rung

    def __call__(self, u: Tensor) -> Tensor:
        x, beta = outward(u, self.rung), self.rung.beta
        e = beta * value(self.energy, x)
        return e if beta == 1 else e + (1 - beta) * value(self.base, x)

    def slope(self, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the energy and its gradient, :math:`(B)` and :math:`(B, D)`."""
        x, beta = outward(u, self.rung), self.rung.beta
        e, g = gradient(self.energy, x)
        if beta < 1:
            e0, g0 = gradient(self.base, x)
            e, g = beta * e + (1 - beta) * e0, beta * g + (1 - beta) * g0
        return e, g @ self.rung.factor


class Climb(NamedTuple):
    r"""The islands at the end of a ladder."""

    x: Tensor  # (G n, D)
    log_w: Tensor  # (G, n)
    log_z: Tensor  # (G)
    ancestors: Tensor  # (G, n), the index of the first particle of each
    share: float
    acceptance: float


def inward(x: Tensor, rung: Rung) -> Tensor:
    r"""Returns :math:`u = L^{-1} (x - m)`."""
    shift = (x - rung.center).T
    return torch.linalg.solve_triangular(rung.factor, shift, upper=False).T.contiguous()


def outward(u: Tensor, rung: Rung) -> Tensor:
    r"""Returns :math:`x = m + L u`."""
    return rung.center + u @ rung.factor.T
