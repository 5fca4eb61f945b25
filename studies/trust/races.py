r"""Races: several processes train into one folder at once, and readers look at it meanwhile.

Each round starts three writers at the same moment: as new runs with other seeds; as resumptions of
a run that was stopped; as resumptions of one that has just been killed (SIGKILL); or beside one
that is stopped (SIGSTOP) and goes on later. A fourth process reads the folder all the while. A
writer ends its run or is refused in one line. In the end the folder must be that of one run, equal
bit for bit to the same run left alone. A fault is a folder that is mixed or has lost something, a
writer with another error, or a reader that finds less than a whole run.

    python studies/trust/races.py --starts 240 --out results/trust.json
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
import torch
import warnings

from collections.abc import Callable
from dataclasses import replace
from fokker import fit, load
from fokker.objectives import PCD
from fokker.runs.checkpoints import Checkpoint, names, newest
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.folder import read_config
from fokker.runs.training import Interrupted
from multiprocessing.process import BaseProcess
from pathlib import Path
from studies.trust import record
from studies.trust.kill import difference
from typing import Any

CONFIG = Config(
    ToyData("moons"),
    PCD(1, buffer=64),
    Network(8, 2, confine=0.7),
    Optimization(steps=60, batch=8),
    evaluate=10,
)
FORK = multiprocessing.get_context("fork")
KINDS = ("start", "resume", "killed", "stopped")
WRITERS, SEEDS = 3, 3
REFUSED = ("nobody else writes to", "which holds a run", "got another one, seed")


def write(folder: Path, seed: int, resume: Any, gate: Any, ends: Any) -> None:
    r"""Trains into a folder once all are ready, and says how it ended."""
    warnings.simplefilter("ignore")
    gate.wait(60)
    try:
        fit(replace(CONFIG, seed=seed), folder, resume)
        ends.put("done")
    except ValueError as error:
        known = any(words in str(error) for words in REFUSED)
        ends.put("refused" if known else f"fault: {error}")
    except BaseException as error:  # noqa: BLE001 - it is the result
        ends.put(f"fault: {type(error).__name__} {error}")


def look(folder: Path, over: Any, faults: Any) -> None:
    r"""Reads a run again and again; once there is a checkpoint, there is always a whole one."""
    warnings.simplefilter("error")
    seen = False
    while not over.is_set():
        try:
            load(folder)
            seen = True
        except (ValueError, OSError, UserWarning) as error:
            early = any(w in str(error) for w in ("none yet", "has none", "does not exist"))
            if seen or not early:
                faults.put(f"reader: {error}")
        time.sleep(0.01)


def begun(process: BaseProcess, folder: Path) -> None:
    r"""Waits until a run has saved something."""
    while process.is_alive() and not names(folder / "checkpoint"):
        time.sleep(0.002)


def prepare(kind: str, folder: Path) -> tuple[int, Callable[[], None], int]:
    r"""Brings a folder into the state of a kind of round; returns the seed of the run there, what
    is to be done once the writers have ended, and the number of starts."""
    seed = 0
    if kind == "resume":
        with_stop = lambda step, *_: step == 25
        try:
            fit(replace(CONFIG, seed=seed), folder, watch=with_stop)
        except Interrupted:
            pass
    if kind in {"killed", "stopped"}:
        gate, ends = FORK.Barrier(1), FORK.Queue()
        process = FORK.Process(target=write, args=(folder, seed, False, gate, ends))
        process.start()
        assert process.pid is not None
        begun(process, folder)
        os.kill(process.pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        pid = process.pid

        def go_on() -> None:
            if kind == "stopped":
                os.kill(pid, signal.SIGCONT)
            process.join()

        return seed, go_on, 1
    return seed, lambda: None, int(kind == "resume")


def race(kind: str, folder: Path, wholes: list[Checkpoint]) -> tuple[list[str], list[str], int]:
    r"""Makes a round; returns how its writers ended, its faults, and the number of starts."""
    seed, go_on, before = prepare(kind, folder)
    gate, ends, faults, over = FORK.Barrier(WRITERS), FORK.Queue(), FORK.Queue(), FORK.Event()
    reader = FORK.Process(target=look, args=(folder, over, faults))
    reader.start()
    new = kind == "start"
    writers = [
        FORK.Process(
            target=write, args=(folder, i if new else seed, not new and "if-any", gate, ends)
        )
        for i in range(WRITERS)
    ]
    for process in writers:
        process.start()
    found = [ends.get(timeout=120) for _ in writers]
    for process in writers:
        process.join()
    go_on()
    over.set()
    reader.join()
    wrong = [end for end in found if end.startswith("fault")]
    while not faults.empty():
        wrong.append(faults.get())
    if kind != "stopped" and "done" not in found:
        wrong.append("no writer ended its run")
    if kind == "stopped" and "done" in found:
        wrong.append("a writer went on with a folder that another holds")
    own = read_config(folder).seed
    if replace(CONFIG, seed=own) != read_config(folder):
        wrong.append("the configuration is another")
    if (where := difference(newest(folder), wholes[own])) is not None:
        wrong.append(f"the run differs from the one left alone in {where}")
    return found, wrong, WRITERS + before


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=240)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    counts, faults, starts, rounds = {"done": 0, "refused": 0}, [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        wholes = []
        for seed in range(SEEDS):
            fit(replace(CONFIG, seed=seed), root / f"whole-{seed}")
            wholes.append(newest(root / f"whole-{seed}"))
        while starts < given.starts:
            kind = KINDS[rounds % len(KINDS)]
            found, wrong, number = race(kind, root / f"run-{rounds}", wholes)
            starts, rounds = starts + number, rounds + 1
            for end in found:
                counts[end] = counts.get(end, 0) + 1
            faults += wrong
            print(f"{starts} {kind}: {found} {wrong}", flush=True)
    detail = (
        f"{starts} starts and resumptions in {rounds} rounds of {WRITERS} at once, new, stopped,"
        f" killed or held by a stopped process, with a reader beside them: {counts['done']} ended"
        f" their run, {counts['refused']} were refused in one line; every folder equal bit for bit"
        f" to one run left alone; {len(faults)} mixed, lost or broken"
    )
    print(detail)
    if given.out is not None:
        row = {"value": len(faults), "unit": f"faults in {starts} starts", "detail": detail}
        command = f"python studies/trust/races.py --starts {given.starts} --out {given.out}"
        record(given.out, "races", [row], command)
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}: {faults[:3]}")


if __name__ == "__main__":
    main()
