r"""The normalizing constant of an energy, and how well it is known.

`normalize` takes the first of these that applies:

1. a composition of Gaussians has its exact constant (`fokker.samplers.exact`);
2. in one or two dimensions, the sum over a grid, whose error is the difference to a grid of half
   as many cells a side;
3. particles, in two stages. The first climbs from a wide base and finds where the mass is. A
   second base is fitted to half of its samples, and the particles climb from there, which takes
   few rungs, and from the other half of the samples they go down to it again. The second climb is
   the estimate; if the first, or the way down, differs from it by more than their errors,
   :math:`\log Z` is not known.

The run down would give a true upper bound from exact samples of the energy. From the samples of
a run up it is a check of agreement, not a bound.
"""

__all__ = ["Bracket", "Normalizer", "bracket", "normalize"]

import math
import torch

from dataclasses import replace
from torch import Tensor
from typing import NamedTuple

from .bases import widened
from .exact import as_mixture
from .inversion import confined, holding
from .particles import Particles, Unreliable
from .verdict import APART, KNOWN, judge_particles
from ..analytic import GaussianMixture, fit_mixture
from ..derivatives import EnergyLike
from ..grid import Grid

COUNT = 2048  # particles
FEW = 64  # dimensions up to which the second base has more than one component
CELLS = {1: 4000, 2: 400}  # a side, by dimension


class Normalizer(NamedTuple):
    r"""What is known of the :math:`\log Z` of an energy."""

    log_z: float
    error: float  # standard error
    share: float  # least effective share of the weights
    faults: tuple[str, ...]  # what speaks against it, one line each
    said: str  # how it was found, in words

    @property
    def known(self) -> bool:
        r"""Whether it is to be believed."""
        return not self.faults


@torch.no_grad()
def normalize(
    energy: EnergyLike,
    base: GaussianMixture,
    generator: torch.Generator | None = None,
    particles: Particles | None = None,
    count: int = COUNT,
) -> Normalizer:
    r"""Returns the :math:`\log Z` of an energy, with its error and what speaks against it.

    Arguments:
        energy: The energy, :math:`(B, D) \to (B)`.
        base: A mixture with mass wherever the energy has, such as one fitted to data.
        generator: The source of randomness; the global one if not given.
        particles: The particles; the defaults from that base, widened, if not given.
        count: The number of particles, a multiple of twice the number of islands.

    Example:
        >>> from fokker.energies import Function
        >>> base = GaussianMixture(torch.zeros(1, 4), 4.0)
        >>> flat = Function(lambda x: x.abs().sum(1))  # Z = 2^4
        >>> found = normalize(flat, base, torch.Generator().manual_seed(0))
        >>> found.known, found.log_z  # log 16 = 2.77
        (True, 2.8)
    """
    dim, dtype, device = base.means.shape[1], base.means.dtype, base.means.device
    if (exact := as_mixture(energy, base.means[:1])) is not None:
        return Normalizer(exact.log_z, 0.0, 1.0, (), "exact, of a mixture of Gaussians")
    if dim in CELLS and device.type == "cpu":
        return by_grid(energy, dim, dtype)
    sampler = Particles(widened(base)) if particles is None else particles
    try:
        first = sampler.run(energy, count, generator)
        fitted = fit_mixture(first.samples[0::2], 4 if dim <= FEW else 1, generator=generator)
        again = replace(sampler, base=fitted)
        ladder = again.ladder(energy, max(count // 2, 8), generator)
        up = again.run(energy, count, generator, ladder)
        down, error = again.backward(energy, first.samples[1::2], ladder, generator)
    except Unreliable as fault:
        return Normalizer(math.nan, math.inf, 0.0, (str(fault),), "particles that did not arrive")
    verdict = judge_particles(up)
    faults = [*judge_particles(first).faults, *verdict.faults]
    others = {"the first way": (first.log_z, first.error), "the way down": (down, error)}
    for name, (log_z, spread) in others.items():
        if not abs(log_z - up.log_z) <= max(KNOWN, APART * math.hypot(up.error, spread)):
            faults.append(f"expected one log Z, got {up.log_z:.3f} and, on {name}, {log_z:.3f}")
    said = (
        f"{verdict.said}; on the first way log Z {first.log_z:.3f} ± {first.error:.3f}, on the way"
        f" down {down:.3f} ± {error:.3f}"
    )
    return Normalizer(up.log_z, up.error, min(first.share, up.share), tuple(faults), said)


def by_grid(energy: EnergyLike, dim: int, dtype: torch.dtype) -> Normalizer:
    r"""Returns the :math:`\log Z` of an energy in one or two dimensions."""
    try:
        grid = holding(energy, dtype, CELLS[dim], dim)
        confined(energy, grid, dtype)
    except Unreliable as fault:
        return Normalizer(math.nan, math.inf, 0.0, (str(fault),), "a grid")
    half = Grid(grid.low, grid.high, grid.size // 2, dim)
    log_z, coarse = (float(g.log_normalizer(g.evaluate(energy, dtype))) for g in (grid, half))
    error = abs(log_z - coarse)
    faults = ()
    if not error <= KNOWN:
        faults = (f"expected a grid that resolves the energy, got log Z {coarse:.3f} on {half}",)
    side = " × ".join([str(grid.size)] * dim)
    return Normalizer(log_z, error, 1.0, faults, f"by a grid of {side} cells")


class Bracket(NamedTuple):
    r"""Bounds of :math:`\log Z`, from a run up the ladder and one down."""

    low: float
    high: float
    forward: float
    backward: float

    def covers(self, log_z: float) -> bool:
        r"""Returns whether a value lies between the bounds."""
        return self.low <= log_z <= self.high


def bracket(
    particles: Particles,
    energy: EnergyLike,
    exact: Tensor,
    generator: torch.Generator | None = None,
    errors: float = 2.5,
) -> Bracket:
    r"""Returns bounds of :math:`\log Z` from exact samples of an energy: the run up less, the run
    down more a number of standard errors.

    Arguments:
        particles: The particles.
        energy: The energy.
        exact: Independent, exact samples of it, with shape :math:`(N, D)`, to which the base was
            not fitted: it would be too close to them.
        generator: The source of randomness; the global one if not given.
        errors: The number of standard errors on each side.
    """
    ladder = particles.ladder(energy, len(exact) // 2, generator)
    up = particles.run(energy, len(exact), generator, ladder)
    down, error = particles.backward(energy, exact, ladder, generator)
    return Bracket(up.log_z - errors * up.error, down + errors * error, up.log_z, down)
