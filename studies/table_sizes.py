r"""How long `EnergyOutlier` and `EnergyDensity` take, by the size of the table, on one core.

The columns are made up: a fifth each normal, correlated with the one before, integers, with heavy
tails (the cube of a Cauchy variable), and constant. Seconds are of the processor.
"""

__all__ = ["SIZES", "run", "table"]

import numpy as np
import time

from collections.abc import Callable, Sequence
from pathlib import Path

from . import results
from .units import begin

SIZES = (
    (20, 3), (20, 2000), (1000, 10), (10_000, 10), (600_000, 10), (10_000, 100), (10_000, 300),
    (2000, 2000),
)  # fmt: skip
SCORED = 1_000_000
NUMBERS = 2e5  # of a table of rows to score, at most


def table(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    r"""Returns a table of difficult columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    x[:, 1::5] = x[:, 0::5][:, : x[:, 1::5].shape[1]] + 0.1 * x[:, 1::5]
    x[:, 2::5] = np.round(2 * x[:, 2::5])
    x[:, 3::5] = rng.standard_cauchy(size=x[:, 3::5].shape) ** 3
    x[:, 4::5] = 7.0
    return x


def run(
    out: Path,
    sizes: Sequence[tuple[int, int]] = SIZES,
    command: str = "fokker reproduce tables --what sizes",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Measures every size and writes the rows after each."""
    from fokker.tables import EnergyDensity, EnergyOutlier

    found = []
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
            if not np.isfinite(scores).all():
                raise FloatingPointError(f"expected finite scores, got others at {n} x {d}")
        found.append({"rows": n, "columns": d, "scored": len(new), **seconds})
        results.save(out, found, command)
        units.done()
        progress(str(found[-1]))
