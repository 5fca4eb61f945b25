r"""What packing a run in half precision changes, and the sizes of packs.

A small U-Net is trained on images for half of its steps and packed twice, whole and in half
precision. Both packs are unpacked and trained to the end; a third run, the same with another seed
throughout, shows how much two runs differ anyway. The default network is packed after one step.

    python studies/trust/packing.py --data svhn --out results/trust.json
"""

import argparse
import math
import tempfile

from dataclasses import replace
from fokker import fit
from fokker.runs.checkpoints import newest
from fokker.runs.config import Config, ImageData, UNet
from fokker.runs.packing import pack, unpack
from fokker.runs.presets import generation_config
from fokker.runs.training import Interrupted
from fokker.tasks import task_of
from pathlib import Path
from studies.trust import record
from typing import Any


def config_of(data: str, steps: int, seed: int = 0) -> Config:
    base = generation_config("fokker", "dcd-limit", ImageData(data, size=16), seed=seed)
    optimization = replace(base.optimization, steps=steps, batch=32, warmup=steps // 10)
    network = UNet(24, 1, multipliers=(1, 2))
    return replace(base, network=network, optimization=optimization, preview=0, evaluate=steps)


def begin(config: Config, folder: Path, step: int) -> Path:
    r"""Trains a run to a step, and stops it there."""
    try:
        fit(config, folder, watch=lambda k, loss, average: k == step)
    except Interrupted:
        return folder
    raise ValueError(f"expected a run with more than {step} steps, got {config.optimization}")


def distance(a: Path, b: Path) -> float:
    r"""Returns the distance of the averaged weights of two runs."""
    first, second = newest(a).average, newest(b).average
    return math.sqrt(sum(float((v - second[k]).square().sum()) for k, v in first.items()))


def halves(data: str, steps: int, root: Path) -> dict[str, Any]:
    r"""Returns the row of the comparison."""
    config = config_of(data, steps)
    run = begin(config, root / "run", steps // 2)
    for name, half in (("exact", False), ("half", True)):
        pack(run, root / f"{name}.pack", half=half)
        unpack(root / f"{name}.pack", root / name)
        fit(config, root / name, resume=True)
    fit(config_of(data, steps, 1), root / "other")
    runs = {name: fit(config, root / name, resume=True) for name in ("exact", "half")}
    runs["other"] = fit(config_of(data, steps, 1), root / "other", resume=True)
    errors = {name: run.metrics[-1]["rmse_0.3"] for name, run in runs.items()}
    moved, apart = distance(run, root / "exact"), distance(root / "exact", root / "half")
    gap = abs(errors["half"] - errors["exact"]) / errors["exact"]
    seeds = abs(errors["other"] - errors["exact"]) / errors["exact"]
    detail = (
        f"{task_of(config).title} at 16×16, packed after {steps // 2} of {steps} steps in half"
        f" precision: the error of denoising changes by {100 * gap:.3f} %, by another seed by"
        f" {100 * seeds:.2f} %; the weights end {100 * apart / moved:.2f} % of their way after the"
        " pack apart"
    )
    return {"value": round(100 * gap, 4), "unit": "% of the error", "detail": detail}


def sizes(data: str, root: Path) -> dict[str, Any]:
    r"""Returns the row of the sizes of the default network."""
    base = generation_config("fokker", "dcd-limit", ImageData(data))
    config = replace(base, optimization=replace(base.optimization, batch=1), preview=0)
    run = begin(config, root / "default", 1)
    whole = pack(run, root / "default.pack").bytes / 2**20
    half = pack(run, root / "default-half.pack", half=True).bytes / 2**20
    detail = (
        f"the default network, weights, average and all moments: {whole:.1f} MiB, in half"
        f" precision {half:.1f} MiB"
    )
    return {"value": round(whole, 1), "unit": "MiB", "detail": detail}


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="svhn")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as place:
        rows = [
            halves(given.data, given.steps, Path(place)),
            sizes(given.data, Path(place)),
        ]
    for row in rows:
        print(row["detail"])
    if given.out is not None:
        command = f"python studies/trust/packing.py --data {given.data} --out {given.out}"
        record(given.out, "pack", rows, command)


if __name__ == "__main__":
    main()
