r"""Kill a run at random moments (SIGKILL), resume it each time, and compare it with one left
alone.

A run of persistent contrastive divergence, so that the objective has a state too, evaluates and
saves every few steps. A process that trains it is killed after a random time; another goes on with
its folder, and so on until the run is done; then the next run begins, until there were as many
kills as asked for. Weights, their average, the state of Adam and of the objective, and the metrics
(but for seconds) must be those of the run left alone, bit for bit.

    python studies/trust/kill.py --kills 30 --out results/trust.json
"""

import argparse
import multiprocessing
import random
import tempfile
import time
import torch

from collections.abc import Iterator
from fokker.objectives import PCD
from fokker.runs.checkpoints import Checkpoint, newest
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.guard import Guard
from multiprocessing.process import BaseProcess
from pathlib import Path
from studies.trust import record
from torch import Tensor

CONFIG = Config(
    ToyData("8gaussians"),
    PCD(1, buffer=256),
    Network(width=16, layers=3, confine=0.7),
    Optimization(steps=600, batch=64),
    evaluate=20,
    guard=Guard("roll-back"),
)


def train(config: Config, folder: Path) -> None:
    r"""Begins a run or goes on with it."""
    from fokker import fit

    torch.set_num_threads(1)
    fit(config, folder, resume="if-any")


def tensors(saved: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    r"""Yields the whole state of a run."""
    for kind in ("model", "average"):
        yield from ((f"{kind} {name}", t) for name, t in getattr(saved, kind).items())
    for name, fields in (saved.adam or {}).items():
        yield from ((f"adam {name} {field}", t) for field, t in fields.items())
    yield from ((f"state {i}", t) for i, t in enumerate(saved.state))


def difference(a: Checkpoint, b: Checkpoint) -> str | None:
    r"""Returns where two runs differ, `None` if they are the same bit for bit."""
    first, second = dict(tensors(a)), dict(tensors(b))
    if (a.step, a.trial, first.keys()) != (b.step, b.trial, second.keys()):
        return f"steps {a.step} and {b.step}, trials {a.trial} and {b.trial}"
    for name, t in first.items():
        if not torch.equal(t, second[name]):
            return name
    bare = lambda c: [{k: v for k, v in m.items() if k != "seconds"} for m in c.lines]
    return None if bare(a) == bare(b) else "metrics"


def crash(config: Config, kills: int, seed: int, root: Path) -> dict[str, int]:
    r"""Kills runs of a configuration; raises if one of them ends as another run would.

    Arguments:
        config: The configuration.
        kills: The number of kills.
        seed: The seed of the moments.
        root: An empty folder.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fokker"])
    rng = random.Random(seed)

    def start(folder: Path) -> BaseProcess:
        process = context.Process(target=train, args=(config, folder))
        process.start()
        return process

    start(root / "first").join()  # imports and traces, which are not to be timed
    begin = time.perf_counter()
    whole = start(root / "whole")
    whole.join()
    length = time.perf_counter() - begin
    expected, counts = newest(root / "whole"), {"kills": 0, "runs": 0, "unsaved": 0, "half": 0}
    while counts["kills"] < kills:
        folder = root / f"run-{counts['runs']}"
        while True:
            process = start(folder)
            # moments of the whole run are as likely as any; a few attempts make one run
            process.join(rng.uniform(0, 0.8 * length) if counts["kills"] < kills else None)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            counts["kills"] += 1
            saved = folder / "checkpoint"
            counts["unsaved"] += not any(saved.glob("step-*"))
            counts["half"] += any(saved.glob(".partial-*"))
        if process.exitcode != 0:
            raise SystemExit(f"expected a resumed run to end, got exit code {process.exitcode}")
        counts["runs"] += 1
        where = difference(newest(folder), expected)
        if where is not None:
            raise SystemExit(f"expected the run left alone, got another in {where}")
    return counts


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        counts = crash(CONFIG, given.kills, given.seed, Path(folder))
    detail = (
        f"{counts['kills']} kills in {counts['runs']} runs, all equal bit for bit to the run left"
        f" alone; {counts['unsaved']} before the first checkpoint, {counts['half']} while one was"
        " written"
    )
    print(detail)
    if given.out is not None:
        row = {"value": counts["kills"], "unit": "kills survived", "detail": detail}
        command = f"python studies/trust/kill.py --kills {given.kills} --out {given.out}"
        record(given.out, "kill", [row], command)


if __name__ == "__main__":
    main()
