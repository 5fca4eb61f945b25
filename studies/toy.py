r"""The 2-D study: the paper's Table 2 and its figure of learned densities.

Sets × seeds of one method train as one stack (`fokker.compute.stack`). Every method leaves a part
in the folder of the study as soon as it is done, so a study that was stopped goes on where it was;
the parts together are `results/toy.json`.

A run counts as **diverged** if a loss or weight was not finite, or if it ends with a score
matching loss above zero, that of a flat energy.
"""

__all__ = ["METHODS", "Arm", "collect", "run"]

import json
import math
import numpy as np
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fokker.compute.stack import train_stack
from fokker.data import PLANAR, toy
from fokker.energies import Energy
from fokker.files import write_text
from fokker.grid import Grid
from fokker.metrics import PlanarReport
from fokker.runs.config import Config, Optimization, ToyData
from fokker.runs.presets import PRESETS
from fokker.tasks import ToyTask
from pathlib import Path
from typing import Any

from . import results

SETS = tuple(name for name in PLANAR if name != "pinwheel")  # those of the paper
METHODS = (
    ("paper", "dcd"),
    ("paper", "cd"),
    ("paper", "pcd"),
    ("fokker", "sm"),
    ("fokker", "ed"),
    ("fokker", "dcd"),
)
WINDOW = Grid(-1.1, 1.1, 160)  # what the figure shows


@dataclass(frozen=True)
class Arm:
    r"""One method on some sets with some seeds."""

    preset: str
    method: str
    sets: Sequence[str] = SETS
    seeds: Sequence[int] = (0, 1, 2)
    steps: int | None = None  # the preset's if not given
    batch: int | None = None
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.method}"

    @property
    def optimization(self) -> Optimization:
        given = {"steps": self.steps, "batch": self.batch}
        base = PRESETS[self.preset][1]
        return replace(base, **{k: v for k, v in given.items() if v is not None})


def judge(energy: Energy, name: str, finite: bool, device: str) -> results.Row:
    r"""Returns the figures of one learned energy, `None` where there are none."""
    data = toy(name)
    if finite:
        row: results.Row = {**ToyTask(Config(ToyData(name))).judge(energy, torch.device(device))}
    else:
        row = dict.fromkeys(PlanarReport._fields)
        row["optimum"] = data.optimum() if math.isfinite(data.optimum()) else None
    row["diverged"] = row["sm_loss"] is None or row["sm_loss"] > 0 or row["kl"] is None
    return row


def check_done(part: Arm, folder: Path) -> None:
    r"""Raises if there are rows of a part that it would not have now, as after --quick."""
    target, optimization = folder / f"{part.name}.json", part.optimization
    if not target.exists():
        return
    rows = json.loads(target.read_text())
    wanted = {
        "steps": optimization.steps,
        "batch": optimization.batch,
        "networks": len(part.sets) * len(part.seeds),
    }
    for name, value in wanted.items():
        found = {len(rows)} if name == "networks" else {row[name] for row in rows}
        if found != {value}:
            got = ", ".join(map(str, sorted(found))) or "none"
            raise ValueError(
                f"{target}: expected a part with {name} {value}, got {got}; give another --out"
            )


def run(part: Arm, folder: Path, progress: Callable[[int], None] = lambda step: None) -> None:
    r"""Trains a part and writes its rows and its learned densities, unless they are there."""
    target = folder / f"{part.name}.json"
    if target.exists():
        return
    network, _, objectives = PRESETS[part.preset]
    pairs = [(name, seed) for seed in part.seeds for name in part.sets]
    out = train_stack(
        [Float32(name, part.device) for name, _ in pairs],
        objectives[part.method],
        network,
        part.optimization,
        [seed for _, seed in pairs],
        part.device,
        progress,
    )
    rows, densities = [], {}
    for (name, seed), energy, finite in zip(pairs, out.energies, out.finite, strict=True):
        rows.append({
            "data": name,
            "method": part.method,
            "preset": part.preset,
            "library": "fokker",
            "seed": seed,
            **judge(energy, name, finite, part.device),
            "steps": part.optimization.steps,
            "batch": part.optimization.batch,
            "seconds": round(out.seconds / len(pairs), 3),
            "stacked": len(pairs),
            "device": results.hardware(part.device),
            "commit": results.commit(),
        })
        if seed == part.seeds[0] and finite:
            densities[name] = density(energy, part.device)
    write(part.name, rows, densities, folder)


def density(energy: Energy, device: str) -> np.ndarray:
    r"""Returns the density of an energy on the window of the figure."""
    e = WINDOW.evaluate(energy, torch.float32, torch.device(device)).double().cpu()
    return torch.exp(-e - WINDOW.log_normalizer(e)).numpy().astype(np.float16)


def write(name: str, rows: list[results.Row], densities: dict[str, Any], folder: Path) -> None:
    r"""Writes a part of the study, its rows last, so that a part that is there is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **densities)
    write_text(folder / f"{name}.json", json.dumps(rows, indent=1, allow_nan=False))


@dataclass(frozen=True)
class Float32:
    r"""A planar set on a device, in float32."""

    name: str
    device: str

    def sample(self, n: int, generator: torch.Generator | None = None) -> torch.Tensor:
        return toy(self.name).sample(n, generator, self.device, torch.float32)


def collect(folder: Path) -> list[results.Row]:
    r"""Returns the rows of all parts in a folder."""
    paths = sorted(p for p in folder.glob("*.json"))
    if not paths:
        raise ValueError(f"expected parts of a study in {folder}, got none; run it first")
    return [row for path in paths for row in json.loads(path.read_text())]
