r"""The normalizing constant of an energy, and how well it is known.

`normalize` takes the first of these that applies:

1. a composition of Gaussians has its exact constant (`fokker.samplers.exact`);
2. in one or two dimensions, the sum over a grid, whose error is the difference to a grid of half
   as many cells a side;
3. particles from a base, up to the energy and, from the samples that these give, down again. Both
   estimate :math:`\log Z`; if they differ by more than their errors, it is not known.

The run down would give a true upper bound from exact samples of the energy. From the samples of
the run up it is a check of agreement, not a bound.
"""

__all__ = ["Bracket", "Normalizer", "bracket", "normalize"]

import math
import torch

from torch import Tensor
from typing import NamedTuple

from .bases import widened
from .exact import as_mixture
from .inversion import confined, holding
from .particles import Particles, Unreliable
from .verdict import APART, KNOWN, judge_particles
from ..analytic import GaussianMixture
from ..derivatives import EnergyLike
from ..grid import Grid

COUNT = 2048  # particles
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
        count: The number of particles.

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
    own = Particles(widened(base)) if particles is None else particles
    try:
        ladder = own.ladder(energy, max(count // 2, 8), generator)
        up = own.run(energy, count, generator, ladder)
        down, error = own.backward(energy, up.samples, ladder, generator)
    except Unreliable as fault:
        return Normalizer(math.nan, math.inf, 0.0, (str(fault),), "particles that did not arrive")
    verdict = judge_particles(up)
    faults, both = verdict.faults, math.hypot(up.error, error)
    if not abs(down - up.log_z) <= max(KNOWN, APART * both):
        both_ways = f"{up.log_z:.3f} and {down:.3f}"
        faults += (f"expected one log Z on the way up and down, got {both_ways}",)
    said = f"{verdict.said}; on the way down log Z {down:.3f} ± {error:.3f}"
    return Normalizer(up.log_z, up.error, up.share, faults, said)


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
