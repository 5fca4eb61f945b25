r"""A long run: training, resuming and evaluating over and over, with memory that does not grow.

A run of persistent contrastive divergence, which has a state, trains in rounds: some steps more,
with an evaluation and a checkpoint, in the folder of the round before (`fit`, resumed), then read
back (`load`). After a number of rounds a new run begins. All of it is one process, whose resident
memory is read after each round. The first third warms up: imports, traces, the allocator. The
growth is that of the peak of the last third over the peak of the second; it must be within two
percent.

    python studies/trust/soak.py --minutes 60 --out results/trust.json
"""

import argparse
import contextlib
import gc
import resource
import shutil
import tempfile
import time
import torch

from collections.abc import Callable
from fokker import fit, load
from fokker.objectives import PCD
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.training import Interrupted
from pathlib import Path
from studies.trust import record

CONFIG = Config(
    ToyData("8gaussians"),
    PCD(5, buffer=1000),
    Network(width=64, confine=0.7),
    Optimization(steps=200, batch=256),
    evaluate=20,
)
ROUNDS = 10  # of one run, each from an evaluation to the next
LIMIT = 2.0  # percent
FEWEST = 9  # rounds to judge by


def resident() -> int:
    r"""Returns the bytes of memory that the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(config: Config, seconds: float, root: Path, clock: Callable[[], float]) -> list[int]:
    r"""Returns the resident memory after each round.

    Arguments:
        config: The configuration of a run.
        seconds: For how long.
        root: An empty folder.
        clock: The time in seconds.
    """
    held, end = [], clock() + seconds
    while clock() < end or len(held) < FEWEST:
        turn = len(held) % ROUNDS
        if turn == 0:
            shutil.rmtree(root / "run", ignore_errors=True)
        steps = config.optimization.steps * (turn + 1) // ROUNDS
        done = lambda step, loss, average, steps=steps: step == steps
        with contextlib.suppress(Interrupted):
            fit(config, root / "run", resume="if-any", watch=done)
        run = load(root / "run")
        if run.step != steps or not torch.isfinite(run.energy(torch.zeros(1, 2))).all():
            raise SystemExit(f"expected a finite energy after {steps} steps, got {run.step}")
        del run
        gc.collect()
        held.append(resident())
    return held


def growth(held: list[int]) -> float:
    r"""Returns by how many percent the peak of the last third exceeds that of the second."""
    third = len(held) // 3
    middle, last = max(held[third : 2 * third]), max(held[2 * third :])
    return 100 * (last / middle - 1)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        held = soak(CONFIG, 60 * given.minutes, Path(folder), time.perf_counter)
    minutes, value = (time.perf_counter() - begin) / 60, growth(held)
    detail = (
        f"{minutes:.2g} minutes of training, {len(held)} rounds of"
        f" {CONFIG.optimization.steps // ROUNDS}"
        f" steps, resumed, evaluated and read back: peak {max(held) / 2**20:.0f} MiB, of the"
        " last third"
        f" {max(held[2 * (len(held) // 3) :]) / 2**20:.0f} MiB"
    )
    print(f"{detail}; growth {value:+.2f} %")
    if abs(value) > LIMIT:
        raise SystemExit(f"expected memory flat within {LIMIT:g} %, got {value:+.2f} %")
    if given.out is not None:
        row = {"value": value, "unit": "% growth of peak memory", "detail": detail}
        command = f"python studies/trust/soak.py --minutes {given.minutes:g} --out {given.out}"
        record(given.out, "soak", [row], command)


if __name__ == "__main__":
    main()
