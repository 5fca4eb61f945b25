r"""The study of :math:`\log Z`: known targets, and learned tables.

Each seed fits a base to 1,000 exact samples (`fit_mixture`, at most four components, or one
Gaussian), takes the particles up from it, and down again from other exact samples. Three methods
are read off the two runs:

- `bracket`: from the run up less :math:`k` standard errors to the run down more k;
- `forward`: the run up :math:`\pm k` standard errors, as where no exact samples are at hand;
- `importance`: plain importance sampling from the base with as many energies evaluated, for
  comparison.

k = 3, about 99 % of Student's distribution with 15 degrees of freedom, those of 16 islands.

**Learned tables.** An energy is trained on a real table by the table preset with fewer steps, and
its :math:`\log Z` found by independent runs, which should agree within their errors.
"""

__all__ = ["SETTINGS", "run", "run_tables"]

import math
import time
import torch

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker import fit
from fokker.analytic import GaussianMixture, fit_mixture
from fokker.files import save_npy
from fokker.runs.config import Optimization
from fokker.runs.presets import table_config
from fokker.samplers import Particles, normalize
from fokker.tasks.table import TableEnergy
from pathlib import Path
from tempfile import TemporaryDirectory

from .targets import Target, target
from .. import results
from ..units import begin

ERRORS = 3.0  # standard errors on each side
SETTINGS = {"share": 0.95, "moves": 5, "islands": 16}
CONFIG = {"errors": ERRORS, **SETTINGS}
ROWS = 1000  # that the base is fitted to
TABLES = ("39_vertebral", "29_Pima", "6_cardio", "43_WDBC", "30_satellite", "35_SpamBase")


def particles_of(name: str, dim: int) -> int:
    r"""Returns the number of particles: more where there are many modes, fewer where each costs
    more."""
    if name == "many-well-32":
        return 262_144
    return 32_768 if dim <= 100 else 8192


def base_of(known: Target, kind: str, generator: torch.Generator) -> GaussianMixture:
    r"""Returns a base that is fitted to exact samples, which nothing else uses."""
    x = known.sample(ROWS, generator)
    return fit_mixture(x, 4 if kind == "mixture" else 1, generator=generator)


def judge(name: str, dim: int, kind: str, seed: int, device: str = "cpu") -> list[results.Row]:
    r"""Returns a row for each method. On a GPU, where double precision is cheap, all is in it."""
    dtype = torch.float32 if torch.device(device).type == "cpu" else torch.float64
    known = target(name, dim, torch.zeros((), dtype=dtype, device=device))
    generator = torch.Generator(device).manual_seed(1_000_003 * seed + known.dimension)
    n, clock = particles_of(name, known.dimension), time.perf_counter()
    base = base_of(known, kind, generator)
    particles = Particles(base, **SETTINGS)
    ladder = particles.ladder(known.energy, n // 2, generator)
    up = particles.run(known.energy, n, generator, ladder)
    forward = time.perf_counter() - clock
    exact = known.sample(n, generator)
    down, error = particles.backward(known.energy, exact, ladder, generator)
    both = time.perf_counter() - clock
    same = {
        "target": known.name, "dimension": known.dimension, "base": kind, "seed": seed,
        "truth": known.log_z, "ess": up.size, "particles": n, "rungs": up.rungs,
        "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    low, high = up.log_z - ERRORS * up.error, up.log_z + ERRORS * up.error
    rows = [
        {"method": "forward", "log_z": up.log_z, "low": low, "high": high, "seconds": forward},
        {
            "method": "bracket", "log_z": (up.log_z + down) / 2, "low": low,
            "high": down + ERRORS * error, "seconds": both,
        },
    ]  # fmt: skip
    clock = time.perf_counter()
    count = n * SETTINGS["moves"] * up.rungs  # energies that the run up evaluated
    log_w = []
    for size in [2**16] * (count // 2**16) or [count]:
        with torch.no_grad():
            x = base.sample(size, generator)
            log_w.append((base(x) - known.energy(x)).double())
    weights = torch.cat(log_w)
    log_z = float(torch.logsumexp(weights, 0)) - math.log(len(weights))
    spread = float(torch.exp(weights - log_z).std()) / math.sqrt(len(weights))
    rows.append({
        "method": "importance", "log_z": log_z, "low": log_z - ERRORS * spread,
        "high": log_z + ERRORS * spread, "seconds": time.perf_counter() - clock,
    })  # fmt: skip
    made = results.provenance(device)
    return [{**same, **row, "seconds": round(row["seconds"], 3), **made} for row in rows]


def run(
    path: Path,
    seeds: Sequence[int],
    chosen: Sequence[tuple[str, int]],
    base: str = "mixture",
    minutes: float | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Judges every target with every seed and writes the rows after each; those in the file
    already are not made again. With a limit of minutes it begins none after them."""
    rows = results.rows_of(results.load(path)) if path.exists() else []
    done = {(r["target"], r["dimension"], r["base"], r["seed"]) for r in rows}
    clock, command = time.perf_counter(), f"fokker reproduce normalizer --base {base}"
    new = {(name, dim, base, seed) for name, dim in chosen for seed in seeds} - done
    units = begin("reproduce normalizer", len(new))
    for name, dim in chosen:
        last = None
        for seed in seeds:
            if (name, dim, base, seed) in done:
                continue
            if minutes is not None and time.perf_counter() - clock > 60 * minutes:
                return
            rows += judge(name, dim, base, seed, device)
            results.save(path, rows, command, CONFIG, device)
            last = rows[-2]
            units.done()
        if last is not None:
            progress(f"{name} in {dim}: {last['low'] - last['truth']:+.3f} to"
                     f" {last['high'] - last['truth']:+.3f} about the truth")  # fmt: skip


def run_tables(
    path: Path,
    folder: Path,
    steps: int,
    repeats: int = 4,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Trains an energy on each of six real tables, the normal rows of ADBench, and finds its
    :math:`\log Z` several times."""
    import numpy as np

    rows = results.rows_of(results.load(path)) if path.exists() else []
    there = {row["target"] for row in rows}
    units = begin("reproduce normalizer", sum(name not in there for name in TABLES))
    for name in TABLES:
        if any(row["target"] == name for row in rows):
            continue
        with np.load(folder / f"{name}.npz") as file:
            x = file["X"][file["y"].ravel() == 0][:2000].astype(np.float64)
        x = x[:, x.std(0) > 0]
        with TemporaryDirectory() as place:
            save_npy(Path(place, "x.npy"), x)
            config = table_config(str(Path(place, "x.npy")))
            optimization = Optimization(steps=steps, batch=config.optimization.batch)
            config = replace(config, optimization=optimization, evaluate=steps // 4)
            energy = fit(config, Path(place, "run")).energy
        assert isinstance(energy, TableEnergy)
        for seed in range(repeats):
            clock = time.perf_counter()
            generator = torch.Generator().manual_seed(seed)
            found = normalize(energy.energy, energy.base, generator)
            rows.append({
                "target": name, "dimension": x.shape[1], "base": "mixture", "seed": seed,
                "method": "table", "truth": None, "ess": None,
                "log_z": found.log_z if found.known else None,
                "low": found.log_z - ERRORS * found.error if found.known else None,
                "high": found.log_z + ERRORS * found.error if found.known else None,
                "error": found.error if found.known else None,
                "unknown": "; ".join(found.faults), "steps": steps,
                "seconds": round(time.perf_counter() - clock, 3), **results.provenance(),
            })  # fmt: skip
        results.save(path, rows, "fokker reproduce normalizer --tables FOLDER", CONFIG)
        units.done()
        progress(f"{name}: log Z {[row['log_z'] for row in rows[-repeats:]]}")
