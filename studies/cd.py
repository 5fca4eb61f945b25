r"""Contrastive divergence, with and without the term it leaves out, beside DCD, in 2-D.

All methods have the same network, optimization, batch and number of steps, and as many trials:
the step size of the chain or the step of the diffusion is tried at four values with seed 0, on all
sets at once. The value with the fewest diverged runs, then the least mean KL, is the choice; it is
judged with the other seeds. The choice is made with the exact density in view, for every method
alike. Every trial is kept.
"""

__all__ = ["METHODS", "run"]

import math

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker.compute.stack import train_stack
from fokker.evolution import Taylor
from fokker.objectives import CD, DCD, Objective
from fokker.runs.presets import PRESETS
from pathlib import Path

from . import results
from .toy import Float32, judge
from .units import begin

SETS = ("circles", "8gaussians", "rings")
CHAINS = (3e-4, 1e-3, 3e-3, 1e-2)
TIMES = (5e-6, 5e-5, 5e-4, 5e-3)
METHODS: dict[str, dict[float, Objective]] = {
    "CD": {h: CD(5, h) for h in CHAINS},
    "CD, whole gradient (w = -1)": {h: CD(5, h, -1.0) for h in CHAINS},
    "CD, Du et al. (w = 1)": {h: CD(5, h, 1.0) for h in CHAINS},
    "DCD": {t: DCD(evolution=Taylor("start"), step=t, antithetic=True) for t in TIMES},
}


def chosen(rows: Sequence[results.Row], method: str) -> float:
    r"""Returns the value of a method with the fewest diverged trials, then the least KL."""

    def rank(value: float) -> tuple[int, float]:
        runs = [
            r for r in rows if (r["method"], r["value"], r["trial"]) == (method, value, "tuning")
        ]
        sound = [row["kl"] for row in runs if not row["diverged"]]
        return len(runs) - len(sound), sum(sound) / len(sound) if sound else math.inf

    return min(METHODS[method], key=rank)


def run(
    path: Path,
    steps: int = 500,
    batch: int = 200,
    width: int = 64,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = (0, 1, 2),
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Tries every value with the first seed, then judges the choice with the others.

    Arguments:
        path: The file; the rows are written after each trial, and trials in it are not run again.
        steps: The steps of training.
        batch: The number of points a step.
        width: The units of a layer of the network, else that of the preset.
        sets: The 2-D sets.
        seeds: The seeds, the first for the choice.
        device: The device.
        progress: Called with a line a trial.
    """
    network, optimization, _ = PRESETS["fokker"]
    network = replace(network, width=width)
    optimization = replace(optimization, steps=steps, batch=batch, rate=3e-3)
    rows = results.load(path)["rows"] if path.exists() else []
    budget = {"steps": steps, "batch": batch, "width": width}

    units = begin("reproduce cd", sum(map(len, METHODS.values())) + len(METHODS))

    def trial(method: str, value: float, kind: str, seeds: Sequence[int]) -> None:
        if any((r["method"], r["value"], r["trial"]) == (method, value, kind) for r in rows):
            return units.skip()
        pairs = [(name, seed) for seed in seeds for name in sets]
        sources = [Float32(name, device) for name, _ in pairs]
        objective, streams = METHODS[method][value], [seed for _, seed in pairs]
        out = train_stack(
            sources, objective, network, optimization, streams, device, units.within(steps)
        )
        for (name, seed), energy, finite in zip(pairs, out.energies, out.finite, strict=True):
            head = {"method": method, "value": value, "trial": kind, "data": name, "seed": seed}
            row = head | judge(energy, name, finite, device) | budget
            rows.append(row | {"seconds": round(out.seconds / len(pairs), 3)})
        results.save(path, rows, "fokker reproduce cd", budget, device)
        units.done()
        progress(f"{method}, {value:g}, {kind}: {out.seconds:.0f} s")

    for method, values in METHODS.items():
        for value in values:
            trial(method, value, "tuning", seeds[:1])
        trial(method, chosen(rows, method), "chosen", seeds[1:])
    return rows
