r"""Two sweeps on the 2-D sets: the step t of the divergence, and the weight of its long times.

The step trades bias for variance: a long one learns the diffused data, a short one drowns in the
noise of the contrast, unless it is taken in antithetic pairs. The weight of the long times trades
the sharpness of the score for the weights of the modes.
"""

__all__ = ["LAMBDAS", "STEPS", "VARIANTS", "run"]

import json

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker.compute.stack import train_stack
from fokker.evolution import Taylor
from fokker.objectives import DCD, MultiTimeDCD, Objective
from fokker.runs.presets import PRESETS
from pathlib import Path

from . import results
from .toy import Float32, judge
from .units import begin

SETS = ("circles", "rings", "2spirals")
STEPS = (5e-6, 5e-5, 5e-4, 5e-3)
LAMBDAS = (1.0, 10.0, 100.0, 1000.0)
VARIANTS: dict[str, dict] = {
    "bracket at x_t": {"evolution": Taylor("end")},
    "bracket at x_t, pairs": {"evolution": Taylor("end"), "antithetic": True},
    "bracket at x_0, pairs": {"evolution": Taylor("start"), "antithetic": True},
}


def points() -> list[tuple[str, float, Objective]]:
    r"""Returns the points of both sweeps: what is swept, its value, the objective."""
    steps = [
        (name, t, DCD(step=t, **options)) for name, options in VARIANTS.items() for t in STEPS
    ]
    return [*steps, *(("weight", w, MultiTimeDCD(weight=w)) for w in LAMBDAS)]


def run(
    path: Path,
    device: str = "cpu",
    steps: int = 3000,
    batch: int = 1000,
    sets: Sequence[str] = SETS,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Trains every point of both sweeps, with the network of the preset `fokker`, and writes the
    rows after each; points that are in the file already are not trained again."""
    rows = results.load(path)["rows"] if path.exists() else []
    network, optimization, _ = PRESETS["fokker"]
    optimization = replace(optimization, steps=steps, batch=batch)
    made = {(row["sweep"], row["value"]) for row in rows}
    todo = [point for point in points() if (point[0], point[1]) not in made]
    units = begin("reproduce sweep", len(todo))
    for sweep, value, objective in todo:
        sources = [Float32(name, device) for name in sets]
        out = train_stack(
            sources, objective, network, optimization, [0] * len(sets), device,
            units.within(steps),
        )  # fmt: skip
        for name, energy, finite in zip(sets, out.energies, out.finite, strict=True):
            rows.append({
                "sweep": sweep,
                "value": value,
                "data": name,
                "seed": 0,
                **judge(energy, name, finite, device),
                "steps": steps,
                "batch": batch,
                "seconds": round(out.seconds / len(sets), 3),
            })
        results.save(path, rows, f"fokker reproduce sweep --device {device}", device=device)
        units.done()
        progress(f"{sweep} {value:g}: {json.dumps([row['kl'] for row in rows[-len(sets) :]])}")
