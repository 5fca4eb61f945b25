r"""Hostile settings: a run ends in finite weights or in an honest stop, never in silent NaN.

A matrix of settings that break training: a huge rate, huge steps, noise next to none, data at the
edge of float32, under both policies of the guard. And, with `--paper`, what the paper's own
settings break: CD and PCD on rings and 2spirals. A run *finishes*, *stops* (its guard says why) or
is *refused* (one line). A NaN is silent if a run finishes or leaves a checkpoint, a metric or an
energy that is not finite.

    python studies/trust/hostile.py --paper --minutes 30 --out results/trust.json
"""

import argparse
import json
import math
import tempfile
import torch

from collections.abc import Iterator
from dataclasses import replace
from fokker import load
from fokker.objectives import (
    CD,
    DCD,
    PCD,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    MultiTimeDCD,
    RecoveryLikelihood,
    ScoreMatching,
)
from fokker.runs.checkpoints import named, names, read
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.guard import Guard
from fokker.runs.presets import preset
from fokker.runs.training import Diverged, Interrupted, fit
from pathlib import Path
from studies.trust import record
from typing import Any, NamedTuple

SMALL = Config(
    ToyData("rings"),
    ScoreMatching(),
    Network(width=16, layers=3),
    Optimization(steps=24, batch=32, schedule="constant"),
    evaluate=6,
    guard=Guard(every=4),
)
OBJECTIVES = {
    "sm": ScoreMatching(),
    "dcd": DCD(),
    "cd": CD(4, 1e-3),
    "pcd": PCD(4, 1e-3, buffer=64),
}


def matrix() -> Iterator[tuple[str, Config]]:
    r"""Yields hostile configurations with their names."""
    for name, objective in OBJECTIVES.items():
        base = replace(SMALL, objective=objective)
        for rate in (1e2, 1e30):
            own = replace(base.optimization, rate=rate)
            yield f"{name}, rate {rate:g}", replace(base, optimization=own)
        for scale in (1e-6, 1e6):
            yield f"{name}, scale {scale:g}", replace(base, data=ToyData("rings", scale))
    for name, objective in {
        "cd, step 1e+04": CD(20, 1e4),
        "cd, step 1e+30": CD(10, 1e30),
        "pcd, step 1e+04": PCD(20, 1e4, buffer=64),
        "dcd, step 1e+30": DCD(step=1e30),
        "dcd, step 1e-44": DCD(step=1e-44),
        "dsm, sigma 1e-30": DenoisingScoreMatching(1e-30),
        "ed, sigma 1e+25": EnergyDiscrepancy(1e25, 2),
        "recovery, sigma 1e+15": RecoveryLikelihood(1e15, 4),
        "multi-time, weight 1e+38": MultiTimeDCD(weight=1e38, points=8),
    }.items():
        yield name, replace(SMALL, objective=objective)


class Outcome(NamedTuple):
    r"""How a run ended."""

    end: str  # finished, stopped, refused or out of time
    silent: list[str]  # what is not finite and should be
    why: str  # of a stop
    trials: int
    last: dict[str, Any]  # the last judgement
    best: dict[str, Any]  # the best


def audit(folder: Path) -> list[str]:
    r"""Returns what in a run folder is not finite."""
    found = []
    for name in names(folder / "checkpoint"):
        for tensor, t in named(read(folder / "checkpoint" / str(name))):
            if t.is_floating_point() and not torch.isfinite(t).all():
                found.append(f"{name}: {tensor}")
    metrics = folder / "metrics.jsonl"
    for text in metrics.read_text().splitlines() if metrics.exists() else ():
        bad = [
            k for k, v in json.loads(text).items() if isinstance(v, float) and not math.isfinite(v)
        ]
        found += [f"metrics: {k}" for k in bad]
    return found


def attempt(config: Config, folder: Path, minutes: float | None = None) -> Outcome:
    r"""Trains, and returns how it ended."""
    end, why = "finished", ""
    try:
        fit(config, folder, minutes=minutes)
    except Diverged as error:
        end, why = "stopped", str(error)
    except Interrupted as error:
        end, why = "out of time", str(error)
    except ValueError as error:
        end, why = "refused", str(error)
    silent, last, best, trials = audit(folder), {}, {}, 0
    if names(folder / "checkpoint"):
        run, leader = load(folder), load(folder, best=True)
        last, best = run.judged, leader.judged
        trials = max((e.get("trial", 0) for e in run.events), default=0)
        assert isinstance(run.config.data, ToyData)
        box = run.config.data.scale * torch.tensor([[0.0, 0.0], [1.0, -1.0], [3.0, 2.0]])
        if end == "finished" and not torch.isfinite(run.energy(box)).all():
            silent.append("energy")
    return Outcome(end, silent, why, trials, last, best)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--minutes", type=float, default=30.0, help="of each run of --paper")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    rows, ends, silent = [], [], []
    with tempfile.TemporaryDirectory() as root:
        for policy in ("stop", "roll-back"):
            for i, (name, config) in enumerate(matrix()):
                guarded = replace(config, guard=replace(config.guard, policy=policy))
                outcome = attempt(guarded, Path(root) / f"{policy}-{i}")
                ends.append(outcome.end)
                silent += outcome.silent
                print(f"{name}, {policy}: {outcome.end} {outcome.silent or ''} {outcome.why[:90]}")
        counts = ", ".join(f"{ends.count(e)} {e}" for e in dict.fromkeys(ends))
        detail = f"{len(ends)} runs of hostile settings: {counts}"
        rows.append({"value": len(silent), "unit": "silent NaN", "detail": detail})
        for method in ("cd", "pcd") if given.paper else ():
            for data in ("rings", "2spirals"):
                config = replace(preset("paper", method, data), guard=Guard("roll-back"))
                outcome = attempt(config, Path(root) / f"{method}-{data}", given.minutes)
                kl = lambda line: "none" if line.get("kl") is None else f"{line['kl']:.3g}"
                detail = (
                    f"paper {method} on {data}: {outcome.end} after {outcome.trials} trials;"
                    f" KL of the best checkpoint {kl(outcome.best)} nats, at step"
                    f" {outcome.best.get('step', 0)}, of the last {kl(outcome.last)}, at step"
                    f" {outcome.last.get('step', 0)}"
                )
                print(detail, outcome.why)
                value = len(outcome.silent)
                rows.append({"value": value, "unit": "silent NaN", "detail": detail})
    print(json.dumps(rows, indent=1))
    if given.out is not None:
        command = f"python studies/trust/hostile.py{' --paper' * given.paper} --out {given.out}"
        record(given.out, "nan", rows, command)
    if any(row["value"] for row in rows):
        raise SystemExit("expected no silent NaN, got some")


if __name__ == "__main__":
    main()
