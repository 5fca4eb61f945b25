r"""The parts of `MultiTimeDCD` one by one, on all 2-D sets.

Every arm trains the same network with the same optimization and seeds, stacked
(`fokker.compute.stack`), so what differs is the objective: the short term alone, the long term
alone, both, exact score matching in place of the short term, and energy discrepancy at many σ, one
Monte-Carlo divergence from short to long times. The weight of the long term is the preset's, which
was chosen on these sets with the exact density in view; no arm is tuned again.
"""

__all__ = ["ARMS", "Both", "run"]

import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fokker.compute.stack import train_stack
from fokker.derivatives import EnergyLike
from fokker.evolution import MonteCarlo
from fokker.objectives import DCD, LogUniform, MultiTimeDCD, Objective, Output, ScoreMatching
from fokker.runs.presets import PRESETS
from pathlib import Path
from torch import Tensor

from . import results
from .toy import SETS, Float32, judge
from .units import begin

POINTS = 64  # of the long term


@dataclass(frozen=True)
class Both(Objective):
    r"""Creates the weighted sum of two objectives, the second on the first rows of a batch."""

    first: Objective
    second: Objective
    weight: float
    points: int = POINTS

    def compute(
        self, energy: EnergyLike, x: Tensor, state: None, generator: torch.Generator | None
    ) -> Output:
        one = self.first.part(energy, x, None, generator)
        other = self.second.part(energy, x[: self.points], None, generator)
        return Output(one.loss + self.weight * other.loss, None, one.info)


WHOLE = MultiTimeDCD(points=POINTS)
ARMS: dict[str, Objective] = {
    "short + long": WHOLE,
    "short only": WHOLE.short,
    "long only": WHOLE.long,
    "score matching + long": Both(ScoreMatching(), WHOLE.long, WHOLE.weight),
    "energy discrepancy, many σ": DCD(
        evolution=MonteCarlo(16), step=LogUniform(0.01**2, 0.8**2), rate=False
    ),
}


def run(
    path: Path,
    steps: int = 400,
    batch: int = 256,
    width: int = 64,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = (0, 1, 2),
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Trains every arm and writes the rows after each; arms that are in the file already are not
    trained again.

    Arguments:
        path: The file.
        steps: The steps of training.
        batch: The number of points a step.
        width: The units of a layer of the network, else that of the preset.
        sets: The 2-D sets.
        seeds: The seeds.
        device: The device.
        progress: Called with a line an arm.
    """
    network, optimization, _ = PRESETS["fokker"]
    network = replace(network, width=width)
    optimization = replace(optimization, steps=steps, batch=batch, rate=3e-3)
    rows = results.load(path)["rows"] if path.exists() else []
    pairs = [(name, seed) for seed in seeds for name in sets]
    sources = [Float32(name, device) for name, _ in pairs]
    budget = {"steps": steps, "batch": batch, "width": width}
    todo = [arm for arm in ARMS if not any(row["arm"] == arm for row in rows)]
    units = begin("reproduce ablation", len(todo))
    for arm in todo:
        seeded = [seed for _, seed in pairs]
        out = train_stack(
            sources, ARMS[arm], network, optimization, seeded, device, units.within(steps)
        )
        for (name, seed), energy, finite in zip(pairs, out.energies, out.finite, strict=True):
            row = {"arm": arm, "data": name, "seed": seed, **judge(energy, name, finite, device)}
            rows.append(row | budget | {"seconds": round(out.seconds / len(pairs), 3)})
        results.save(path, rows, "fokker reproduce ablation", budget, device)
        units.done()
        progress(f"{arm}: {out.seconds:.0f} s for {len(pairs)} networks")
    return rows
