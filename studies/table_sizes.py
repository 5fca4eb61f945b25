r"""How long `EnergyOutlier` and `EnergyDensity` take, by the size of the table, on one core.

The columns are made up: a fifth each normal, correlated with the one before, integers, with heavy
tails (the cube of a Cauchy variable), and constant. Seconds are of the processor.

The operations of the matrix products of a score are counted, and the core is asked how many such
operations in float32 it does in a second: `..._products_seconds` is the time that a million scores
would take if they were nothing but these. It is a bound for this number of rows and clusters.
"""

__all__ = ["SIZES", "run", "table"]

import numpy as np
import time
import torch

from collections.abc import Callable, Sequence
from pathlib import Path
from torch.utils.flop_counter import FlopCounterMode
from typing import Any

from . import results
from .units import begin

SIZES = (
    (20, 3), (20, 2000), (1000, 10), (10_000, 10), (600_000, 10), (10_000, 100), (10_000, 300),
    (2000, 2000),
)  # fmt: skip
SCORED = 1_000_000
NUMBERS = 4e6  # of a table of rows to score, at most
FEW = 1000  # of them, whose operations are counted
SIDE, ROUNDS = 1024, 10  # of the products by which the core is measured


def table(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    r"""Returns a table of difficult columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    x[:, 1::5] = x[:, 0::5][:, : x[:, 1::5].shape[1]] + 0.1 * x[:, 1::5]
    x[:, 2::5] = np.round(2 * x[:, 2::5])
    x[:, 3::5] = rng.standard_cauchy(size=x[:, 3::5].shape) ** 3
    x[:, 4::5] = 7.0
    return x


def speed() -> float:
    r"""Returns how many operations of a matrix product in float32 the core does in a second, the
    most of some rounds."""
    a, found = torch.ones(SIDE, SIDE), []
    for _ in range(ROUNDS):
        start = time.process_time()
        torch.mm(a, a)
        found.append(2 * SIDE**3 / (time.process_time() - start))
    return max(found)


def products(estimator: Any, rows: np.ndarray) -> float:
    r"""Returns the operations of the matrix products of a score."""
    with FlopCounterMode(display=False) as counter:
        estimator.score_samples(rows)
    return counter.get_total_flops() / len(rows)


def run(
    out: Path,
    sizes: Sequence[tuple[int, int]] = SIZES,
    command: str = "fokker reproduce tables --what sizes",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Measures every size and writes the rows after each."""
    from fokker.tables import EnergyDensity, EnergyOutlier

    found, rate = [], speed()
    units = begin("reproduce tables", len(sizes))
    for n, d in sizes:
        x = table(n, d)
        new = table(min(SCORED, int(NUMBERS / d)), d, 1)
        seconds = {}
        for name, kind in (("outlier", EnergyOutlier), ("density", EnergyDensity)):
            start = time.process_time()
            estimator = kind().fit(x)
            seconds[f"{name}_fit_seconds"] = round(time.process_time() - start, 2)
            start = time.process_time()
            scores = estimator.score_samples(new)
            spent = (time.process_time() - start) * SCORED / len(new)
            seconds[f"{name}_million_seconds"] = round(spent, 1)
            least = products(estimator, new[:FEW]) * SCORED / rate
            seconds[f"{name}_products_seconds"] = round(least, 2)
            if not np.isfinite(scores).all():
                raise FloatingPointError(f"expected finite scores, got others at {n} x {d}")
        found.append({"rows": n, "columns": d, "scored": len(new), **seconds})
        results.save(out, found, command, {"threads": 1, "gigaflops": round(rate / 1e9, 1)})
        units.done()
        progress(str(found[-1]))
