r"""Exact samples of an energy in the plane, by inversion on a grid and rejection.

The cells of a grid over a square are drawn by the masses :math:`m_c \propto e^{-E(x_c)}` at their
centers :math:`x_c`, through the inverse of their cumulative sum, and a point x uniformly within
its cell. It is accepted with probability

.. math:: e^{E(x_c) - E(x)} / M ,

so that accepted points have the density :math:`\propto e^{-E(x_c)} e^{E(x_c) - E(x)} = e^{-E(x)}`:
the spacing of the grid costs proposals, not accuracy. M is the largest ratio among the proposals,
so only a ratio that none of them met could be cut off. The square is first searched coarsely, then
the grid is laid over the part that holds all but :math:`10^{-9}` of the mass.

The energy must be confined to the square: if more than :math:`10^{-3}` of the mass lies along its
border, the density has no finite mass there, or the square is too small, and nothing is drawn.
"""

__all__ = ["Inverted", "confined", "holding", "invert", "invert_anywhere"]

import math
import torch

from torch import Tensor
from typing import NamedTuple

from .particles import Unreliable
from .. import checks
from ..derivatives import EnergyLike, value
from ..grid import Grid

EDGE = 0.05  # width of the border, as a share of the square
SPILL = 1e-3  # largest share of the mass along the border
TAIL = 1e-9  # share of the mass that the finer grid may leave out
WIDEST = 64.0  # half the side of the largest square that is searched
ROUNDS = 200  # of proposals


class Inverted(NamedTuple):
    r"""Exact samples, and how they were found."""

    samples: Tensor  # (n, 2)
    acceptance: float  # share of the proposals accepted
    grid: Grid  # that proposed them
    border: float  # share of the mass along the border of the square


def masses(energy: EnergyLike, grid: Grid, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    r"""Returns the energies at the centers of a grid and the masses of its cells, each
    :math:`(N^2)`."""
    e = grid.evaluate(energy, dtype).double()
    if not torch.isfinite(e).all():
        raise Unreliable(
            f"expected a finite energy on the square {grid.low:g} to {grid.high:g}, got NaN"
            " or infinity"
        )
    return e, torch.exp(-e - grid.log_normalizer(e)) * grid.cell


def border_mass(p: Tensor, size: int) -> float:
    r"""Returns the share of the mass along the border of the square."""
    edge = math.ceil(EDGE * size)
    inner = slice(edge, size - edge)
    square = p.reshape(size, -1)[inner]
    return max(0.0, 1.0 - float((square if len(p) == size else square[:, inner]).sum()))


def confined(energy: EnergyLike, grid: Grid, dtype: torch.dtype) -> tuple[Tensor, float]:
    r"""Returns the masses of the cells of a grid and the share along its border; raises
    `Unreliable` if that is more than a trace."""
    _, p = masses(energy, grid, dtype)
    border = border_mass(p, grid.size)
    if border > SPILL:
        raise Unreliable(
            f"expected an energy whose mass lies inside the square {grid.low:g} to {grid.high:g},"
            f" got {border:.1%} of it along the border: the energy does not confine its density"
        )
    return p, border


def zoom(p: Tensor, grid: Grid) -> Grid:
    r"""Returns a grid of as many cells over the part of the square that holds the mass."""
    square = p.reshape(grid.size, grid.size)
    held = torch.zeros(grid.size, dtype=torch.bool)
    for axis in (0, 1):
        below = square.sum(1 - axis).cumsum(0)
        held |= (below > TAIL / 4) & (below < 1 - TAIL / 4)
    where = held.nonzero()
    first, last = (int(where.min()), int(where.max())) if len(where) else (0, grid.size - 1)
    low = grid.low + max(0, first - 1) * grid.spacing
    high = grid.low + min(grid.size, last + 2) * grid.spacing
    return Grid(low, high, grid.size)


@torch.no_grad()
def invert(
    energy: EnergyLike,
    grid: Grid,
    n: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Inverted:
    r"""Returns n independent samples of an energy in the plane, restricted to the square of a
    grid.

    Arguments:
        energy: The energy, :math:`(B, 2) \to (B)`, on the CPU.
        grid: The square to search, and the number of cells a side.
        n: The number of samples.
        generator: The source of randomness; the global one if not given.
        dtype: The dtype of the points.

    Example:
        >>> from fokker.energies import Quadratic
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = invert(Quadratic(0.5), Grid(-4, 4, 200), 10_000, generator)
        >>> float(drawn.samples.std())
        0.50
    """
    checks.positive_integer(n=n)
    p, border = confined(energy, grid, dtype)
    fine = zoom(p, grid)
    e, p = masses(energy, fine, dtype)
    centers, cumulative = fine.points(dtype), p.cumsum(0)
    found: list[Tensor] = []
    ratios: list[Tensor] = []
    logs, bound = e[:0], 0.0
    for _ in range(ROUNDS):
        level = torch.rand(2 * n, generator=generator, dtype=torch.float64) * cumulative[-1]
        cells = torch.searchsorted(cumulative, level).clamp_max(len(e) - 1)
        offset = torch.rand(2 * n, 2, generator=generator, dtype=torch.float64) - 0.5
        x = centers[cells] + (fine.spacing * offset).to(dtype)
        there = torch.cat([value(energy, part) for part in x.split(65_536)]).double()
        found.append(x)
        ratios.append(e[cells] - there)
        logs = torch.cat(ratios)
        bound = float(logs.max())
        if float(torch.exp(logs - bound).sum()) > 1.2 * n + 20:  # expected number accepted
            break
    else:
        raise Unreliable(
            f"expected a grid that resolves the energy, got {fine}, on which the density changes"
            f" by a factor {math.exp(min(bound, 700)):.3g} within a cell"
        )
    u = torch.rand(len(logs), generator=generator, dtype=torch.float64)
    accepted = torch.cat(found)[torch.log(u) < logs - bound]
    if len(accepted) < n:  # beyond four standard errors below the expected number
        raise ValueError(f"expected {n} accepted proposals, got {len(accepted)}; try another seed")
    share = float(torch.exp(logs - bound).mean())
    return Inverted(accepted[:n], share, fine, border)


def invert_anywhere(
    energy: EnergyLike,
    n: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    size: int = 600,
) -> Inverted:
    r"""Returns n independent samples of an energy in the plane, in the smallest square about the
    origin that holds its mass; see `invert` and `holding`."""
    return invert(energy, holding(energy, dtype, size), n, generator, dtype)


@torch.no_grad()
def holding(
    energy: EnergyLike, dtype: torch.dtype = torch.float32, size: int = 600, dim: int = 2
) -> Grid:
    r"""Returns a grid over the smallest square (or interval) about the origin that holds the mass
    of an energy; of half side 4 to 64, the largest if none does."""
    half = 4.0
    while half < WIDEST:
        grid = Grid(-half, half, size, dim)
        if border_mass(masses(energy, grid, dtype)[1], size) <= SPILL / 10:
            return grid
        half *= 2
    return Grid(-half, half, size, dim)
