r"""Real tables through `fokker train table` with its defaults, as a user would run it.

Each table becomes a CSV file with a header, without its labels; of one with more rows than asked
for, so many are drawn. The command runs in a process of its own with one thread. `seconds` are
those that a user waits, from the start of the command to its end, with the import of torch, the
reading of the file and the report; `processor_seconds` are those of the processor. A table has
failed if the exit code is not 0, or if there is no end after `LIMIT` seconds.
"""

__all__ = ["ROWS", "run", "train", "write_csv"]

import numpy as np
import os
import resource
import subprocess
import sys
import time

from collections.abc import Callable, Collection
from fokker.checks import brief
from pathlib import Path
from tempfile import TemporaryDirectory

from . import results
from .anomalies import sets
from .units import begin

ROWS = 10_000
LIMIT = 1800.0  # seconds
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def write_csv(path: Path, out: Path, most: int | None) -> tuple[int, int]:
    r"""Writes the rows of a table as CSV, at most so many, in their order; returns how many rows
    and columns there are."""
    with np.load(path) as data:
        x = data["X"].astype(np.float64)
    if most is not None and len(x) > most:
        x = x[np.sort(np.random.default_rng(0).choice(len(x), most, replace=False))]
    header = ",".join(f"x{j}" for j in range(x.shape[1]))
    np.savetxt(out, x, fmt="%.17g", delimiter=",", header=header, comments="")
    return x.shape


def train(table: Path, out: Path) -> results.Row:
    r"""Runs `fokker train table` on a file, and returns how it ended."""
    command = [sys.executable, "-m", "fokker", "train", "table"]
    command += ["--data", str(table), "--out", str(out)]
    env = os.environ | dict.fromkeys(THREADS, "1")
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start, before = time.perf_counter(), spent()
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        code, said = None, f"expected an end within {LIMIT:.0f} seconds, got none"
    else:
        lines = done.stderr.replace(f"{table.parent}{os.sep}", "").strip().splitlines()
        code, said = done.returncode, lines[-1] if lines else ""
    seconds, processor = time.perf_counter() - start, spent() - before
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    line = {
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "exit_code": code,
        "megabytes": round(size / 1e6, 2),
        "failed": code != 0,
    }
    return line | ({"error": brief(said, 200)} if code != 0 else {})


def run(
    out: Path,
    folder: Path,
    names: Collection[str] | None = None,
    most: int | None = ROWS,
    command: str = "fokker reproduce tables --what fits",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Trains on tables, all if none are named, and writes the rows after each; those in the file
    already are not run again.

    Arguments:
        out: The file of the figures.
        folder: The folder of the tables.
        names: The names of the tables.
        most: The largest number of rows of a table; `None` for all.
        command: The command that makes the figures.
        progress: What is told each row.
    """
    rows = results.load(out)["rows"] if out.exists() else []
    done = {(row["data"], row["most"]) for row in rows}
    todo = [path for path in sets(folder, names) if (path.stem, most) not in done]
    units = begin("reproduce tables", len(todo))
    for path in todo:
        with TemporaryDirectory() as place:
            table = Path(place, f"{path.stem}.csv")
            n, d = write_csv(path, table, most)
            line = train(table, Path(place, "run"))
        row = {"data": path.stem, "most": most, "rows": n, "columns": d, **line}
        rows.append(row | results.provenance())
        results.save(out, rows, command, {"threads": 1})
        units.done()
        progress(str(row))
