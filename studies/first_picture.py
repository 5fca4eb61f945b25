r"""What a newcomer waits for: clone, install, train, report.

`git clone` of this repository into an empty folder; `make demo` there, its two halves timed apart,
the environment (an empty venv and no cache of pip's, so downloads count) and the demo, until
`runs/demo/report.html` is there. The quality of the picture is the demo's own last judgement.
These are seconds of one machine, on one day.

    python studies/first_picture.py --out results/demo.json
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

from fokker.runs.loading import load
from fokker.runs.toml import encode
from fokker.tasks import Run
from pathlib import Path
from rich.console import Console
from rich.table import Table
from studies import results

ROOT = Path(__file__).parents[1]
OURS = {
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
    "MAKEFLAGS",
}  # a newcomer has none of these


def timed(*command: str, cwd: Path | None = None) -> float:
    r"""Runs a command, which must succeed, and returns the seconds it took."""
    env = {k: v for k, v in os.environ.items() if k not in OURS}
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, env={**env, "PIP_NO_CACHE_DIR": "1"}, check=True)
    return time.perf_counter() - start


def measure(repository: Path, folder: Path) -> tuple[dict[str, float], Run]:
    r"""Returns the seconds of each part of `make demo` in a fresh clone, and its run.

    Arguments:
        repository: What to clone.
        folder: Where to; not there yet.
    """
    make = ("make", f"PYTHON={sys.executable}")
    seconds = {
        "clone": timed("git", "clone", "--quiet", str(repository), str(folder)),
        "install": timed(*make, ".venv/.installed", cwd=folder),
        "demo": timed(*make, "demo", cwd=folder),
    }
    report = folder / "runs/demo/report.html"
    if not report.exists():
        raise ValueError(f"expected make demo to write {report}, got none")
    return seconds, load(report.parent)


def row(seconds: dict[str, float], run: Run) -> results.Row:
    r"""Returns the row of the table."""
    times = {f"{name}_seconds": round(value, 1) for name, value in seconds.items()}
    quality = {name: run.judged[name] for name in ("fisher_gap", "kl", "off_mass")}
    return {
        **times,
        "total_seconds": round(sum(seconds.values()), 1),
        "training_seconds": run.judged["seconds"],
        **quality,
        "seed": run.config.seed,
    }


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    if results.commit().endswith("+"):
        raise ValueError(
            f"expected no changes in {ROOT}, of which a clone would know nothing, got some:"
            " commit them first"
        )
    with tempfile.TemporaryDirectory() as folder:
        seconds, run = measure(ROOT, Path(folder) / "fokker")
    figures = row(seconds, run)
    table = Table(*figures)
    table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in figures.values()))
    Console(width=140).print(table)
    if given.out is not None:
        command = f"python studies/first_picture.py --out {given.out}"
        results.save(given.out, [figures], command, encode(run.config))


if __name__ == "__main__":
    main()
