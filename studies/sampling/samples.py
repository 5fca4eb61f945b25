r"""The study of samples: what is drawn against the model's own density, in the plane.

An energy is trained on each of the eight sets by both presets. Its density on the square is known
up to the spacing of a grid. The sampler of `fokker sample` (inversion on a grid, exact) and the
particles alone, from a mixture fitted to data, each draw points, which are compared with it:

- **energy distance**, :math:`2 \mathbb{E} |X - Y| - \mathbb{E} |X - X'| - \mathbb{E} |Y - Y'|`,
  to as many reference points, drawn here by plain inversion on 1,200 × 1,200 cells; p by
  permutation of the pooled points, 499 of them, or 9,999 where p is 0.02 or less, so that Holm's
  correction over all rows can reject;
- **weights**: the plane is cut into eight parts by the nearest of eight centers of the data, and
  the share of points in each is compared with its mass, in standard errors; the largest counts.
  The standard errors of particles are those of their effective number;
- **mass off the data**: the share of points where the last :math:`10^{-4}` of the true mass lies,
  beside the model's own.

Ten energies that cannot be sampled are asked for samples too; each must be refused.
"""

__all__ = ["BAD", "run"]

import math
import time
import torch

from collections.abc import Callable
from dataclasses import replace
from fokker.analytic import GaussianMixture, fit_mixture
from fokker.compute.stack import train_stack
from fokker.data import PLANAR, Planar, toy
from fokker.derivatives import EnergyLike
from fokker.energies import Energy, Restricted
from fokker.grid import Grid
from fokker.metrics.density import evaluate_planar, square
from fokker.networks import MLP
from fokker.runs.presets import PRESETS
from fokker.samplers import Sampled, Unreliable, draw, draw_particles
from fokker.samplers.inversion import masses
from pathlib import Path
from torch import Tensor

from .. import results
from ..units import begin

CELLS = 1200  # a side, of the reference
PARTS = 8
SAMPLERS = ("grid", "particles")
WIDTH, BATCH, RATE = 128, 500, {"paper": 1e-3, "fokker": 2e-3}


def reference(energy: EnergyLike, grid: Grid, n: int, generator: torch.Generator) -> Tensor:
    r"""Returns points uniform within the cells of a fine grid, drawn by their masses."""
    _, p = masses(energy, grid, torch.float32)
    cells = inverse(p, n, generator)
    shift = torch.rand(n, 2, generator=generator, dtype=torch.float64) - 0.5
    return grid.points()[cells] + grid.spacing * shift


def inverse(p: Tensor, n: int, generator: torch.Generator) -> Tensor:
    r"""Returns n indices drawn by masses."""
    cumulative = p.cumsum(0)
    level = torch.rand(n, generator=generator, dtype=torch.float64) * cumulative[-1]
    return torch.searchsorted(cumulative, level).clamp_max(len(p) - 1)


def energy_distance(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[float, float]:
    r"""Returns the energy distance of two sets of n points and its p by permutation."""
    n, pooled = len(x), torch.cat((x, y)).float()
    distance = torch.cdist(pooled, pooled, compute_mode="donot_use_mm_for_euclid_dist")
    signs = torch.ones(2 * n)
    signs[n:] = -1

    def statistics(columns: Tensor) -> Tensor:  # -s' D s / n^2 of signs
        return -(columns * (distance @ columns)).double().sum(0) / n**2

    seen = float(statistics(signs[:, None])[0])
    for count in (499, 9999):
        above = 0
        for start in range(0, count, 500):
            size = min(500, count - start)
            order = torch.stack([torch.randperm(2 * n, generator=generator) for _ in range(size)])
            above += int((statistics(signs[order].T.contiguous()) >= seen).sum())
        p = (above + 1) / (count + 1)
        if p > 0.02:
            break
    return seen, p


def compare(
    drawn: Tensor, ess: float, energy: EnergyLike, data: Planar, generator: torch.Generator
) -> results.Row:
    r"""Returns how far points are from the density of an energy."""
    n, window = len(drawn), square(data)
    grid = Grid(window.low, window.high, CELLS)
    _, p = masses(energy, grid, torch.float32)
    cells = grid.points()
    distance, value = energy_distance(
        drawn.double(), reference(energy, grid, n, generator), generator
    )
    centers = data.sample(PARTS, torch.Generator().manual_seed(0), dtype=torch.float64)
    nearest = lambda x: torch.cat([torch.cdist(q, centers).argmin(1) for q in x.split(65_536)])
    mass = torch.zeros(PARTS, dtype=torch.float64).index_add_(0, nearest(cells), p)
    share = torch.bincount(nearest(drawn.double()), minlength=PARTS) / n
    deviation = torch.sqrt(mass * (1 - mass) / min(n, ess)).clamp_min(1e-12)
    weight_error = float(((share - mass).abs() / deviation).max())
    off = off_data(data, grid)
    index = ((drawn.double() - grid.low) / grid.spacing).long().clamp(0, CELLS - 1)
    return {
        "energy_distance": distance,
        "p": value,
        "weight_error": weight_error,
        "off_mass": float(off[index[:, 0] * CELLS + index[:, 1]].double().mean()),
        "off_mass_model": float(p[off].sum()),
    }


def off_data(data: Planar, grid: Grid) -> Tensor:
    r"""Returns where on a grid the last :math:`10^{-4}` of the true mass lies."""
    p = data.density(grid.axis()).flatten()
    order = torch.argsort(p, descending=True)
    off = torch.ones_like(p, dtype=torch.bool)
    off[order[torch.cumsum(p[order] / p.sum(), 0) <= 1 - 1e-4]] = False
    return off


def particles(energy: Energy, data: Planar, n: int, generator: torch.Generator) -> Sampled:
    r"""Returns points by particles alone, restricted to the square on which energies are
    judged."""
    window = square(data)
    rows = data.sample(2000, torch.Generator().manual_seed(1), dtype=torch.float32)
    base = fit_mixture(rows, 8, generator=torch.Generator().manual_seed(2))
    return draw_particles(Restricted(energy, window.low, window.high), n, base, generator)


def run(path: Path, n: int, steps: int, progress: Callable[[str], None]) -> None:
    r"""Trains, draws, compares and writes the rows; those in the file already are not made again.

    Training has a seed of its own, so that a study that was stopped goes on with the same
    energies."""
    config = {"steps": steps, "width": WIDTH, "batch": BATCH, "parts": PARTS, "cells": CELLS}
    content = results.load(path) if path.exists() else {"rows": [], "config": config}
    rows: list[results.Row] = content["rows"]
    if content.get("config") != config or any(r.get("n", n) != n for r in rows):
        raise ValueError(
            f"expected rows of {n} points by {config} in {path}, got others: give another --out"
        )
    done = {(row["target"], row["preset"], row["sampler"]) for row in rows}
    command = f"fokker reproduce samples --n {n} --steps {steps}"

    every = len(PRESETS) * len(PLANAR) * len(SAMPLERS) + len(BAD)
    units = begin("reproduce samples", every - len(done))

    def keep(row: results.Row) -> None:
        rows.append(row)
        units.done()
        results.save(path, rows, command, config)
        said = row["refused"] or "drawn"
        progress(f"{row['preset'] or 'bad'} {row['target']} {row['sampler']}: {said}")

    for preset, (network, optimization, objectives) in PRESETS.items():
        left = [(s, k) for s in PLANAR for k in SAMPLERS if (s, preset, k) not in done]
        if not left:
            continue
        optimization = replace(optimization, steps=steps, batch=BATCH, rate=RATE[preset])
        network = replace(network, width=WIDTH)
        sources = [Fresh(name) for name in PLANAR]
        out = train_stack(
            sources, objectives["dcd"], network, optimization, [0] * len(sources),
            progress=units.within(steps),
        )  # fmt: skip
        energies = dict(zip(PLANAR, out.energies, strict=True))
        for name, sampler in left:
            keep(judge(energies[name], name, preset, sampler, n))
    for name in BAD:
        if (name, None, "bad") not in done:
            keep(refuse(name))


def judge(energy: Energy, name: str, preset: str, sampler: str, n: int) -> results.Row:
    r"""Returns the row of a sampler on an energy."""
    data, generator = toy(name), torch.Generator().manual_seed(10)
    clock, drawn = time.perf_counter(), None
    try:
        if sampler == "grid":
            drawn = draw(energy, n, dim=2, generator=generator, grid=square(data))
        else:
            drawn = particles(energy, data, n, generator)
        refused = "; ".join(drawn.verdict.faults) or None
    except Unreliable as fault:
        refused = str(fault)
    seconds = time.perf_counter() - clock
    row = {
        "target": name, "preset": preset, "dimension": 2, "sampler": sampler,
        "kl": evaluate_planar(energy, data).kl, "n": n, "seed": 10, "refused": refused,
        "seconds": round(seconds, 3),
    }  # fmt: skip
    if drawn is None:
        return row
    figures = drawn.verdict.figures
    row |= {"ess": figures["ess"], "rhat": figures.get("rhat")}
    return row | compare(
        drawn.points, figures["ess"], energy, data, torch.Generator().manual_seed(20)
    )


def refuse(name: str) -> results.Row:
    r"""Returns the row of an energy that cannot be sampled."""
    energy, dim = BAD[name]
    try:
        base = GaussianMixture(torch.zeros(1, dim), 1.0)
        generator = torch.Generator().manual_seed(0)
        drawn = draw(energy, 1000, None if dim == 2 else base, dim, generator)
        refused = "; ".join(drawn.verdict.faults) or None
    except (Unreliable, FloatingPointError) as fault:
        refused = str(fault)
    return {
        "target": name, "preset": None, "dimension": dim, "sampler": "bad", "refused": refused,
    }  # fmt: skip


class Fresh:
    r"""Creates a source of fresh points of a set, in float32."""

    def __init__(self, name: str) -> None:
        self.data = toy(name)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.data.sample(n, generator, dtype=torch.float32)


def steep(dim: int) -> Energy:
    r"""Returns a network whose weights have grown out of all bounds, as after a divergence."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MLP(dim, 64, 3)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(30.0)
    return net.requires_grad_(False)


def wells(count: int = 40, depth: float = 60.0) -> Callable[[Tensor], Tensor]:
    r"""Returns a Gaussian in ten dimensions with narrow, deep wells far from its center."""
    generator = torch.Generator().manual_seed(0)
    centers = 3 * torch.randn(count, 10, generator=generator)

    def energy(x: Tensor) -> Tensor:
        away = torch.stack([(x - c).square().sum(1) for c in centers])
        return x.square().sum(1) / 8 - depth * torch.exp(-away / 2).sum(0)

    return energy


BAD: dict[str, tuple[EnergyLike, int]] = {
    "flat": (lambda x: 0 * x.sum(1), 2),
    "falls outward": (lambda x: -x.square().sum(1) / 2, 2),
    "falls to one side": (lambda x: x.sum(1), 5),
    "tail too heavy": (lambda x: torch.log1p(x.square().sum(1)), 2),
    "tail too heavy in ten dimensions": (lambda x: 3 * torch.log1p(x.square().sum(1)), 10),
    "NaN in a part": (lambda x: x.square().sum(1) + torch.where(x[:, 0] > 1, math.nan, 0.0), 5),
    "minus infinity in a part": (lambda x: torch.where(x[:, 0] > 2, -math.inf, x.norm(dim=1)), 5),
    "diverged network": (steep(10), 10),
    "far minima": (wells(), 10),
    "rough": (lambda x: x.square().sum(1) / 8 + 30 * torch.cos(12 * x).sum(1), 30),
}
