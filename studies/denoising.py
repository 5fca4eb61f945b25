r"""The denoising study: the paper's Table 4, the same with our energies, and the bound.

For each set, each method of `fokker.runs.presets.IMAGE_METHODS` is trained in a run folder of its
own (a study that was stopped goes on where it was), then judged on the first images of the test
split, with the same noise for all methods, at σ = 0.3, 0.6 and 0.9. An energy of one level is
judged by every rule of `fokker.images.denoise`, a row each; the table shows the best rule of each
cell, for CD as for DCD, and names it. Nothing is clipped unless the row says so. The first images,
denoised by the best rule of each level, are kept beside the rows, so that the figure needs no
weights.

Parts may run side by side in processes of their own (`run_all`): steps are traced and compiled,
which takes the processor, while one part at a time trains or is judged on the device, its turn.
"""

__all__ = ["METHODS", "PAPER_TABLE_4", "VARIANTS", "Cell", "collect", "run", "run_all"]

import json
import math
import numpy as np
import torch

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from filelock import FileLock
from fokker import checks
from fokker.data.images import read_images
from fokker.data.picture import to_uint8
from fokker.data.sources import name_of
from fokker.files import write_text
from fokker.images.denoise import LEVELS, RULES, denoise, errors, noisy
from fokker.runs.config import Config, ImageData, Optimization, ResNet, UNet
from fokker.runs.loading import load
from fokker.runs.presets import image_config
from fokker.runs.training import fit
from fokker.tasks import Run
from fokker.tasks.image import ImageTask
from multiprocessing import get_context
from pathlib import Path
from torch import Tensor
from torch.backends import cudnn
from typing import Any

from . import results

SETS = ("mnist", "fashion_mnist", "cifar10", "svhn")
METHODS = (
    ("paper", "dcd"),
    ("paper", "cd"),
    ("fokker", "dcd"),
    ("fokker", "dcd-limit"),
    ("fokker", "reference"),
)
VARIANTS = (  # only where asked for
    ("paper", "dcd-path"),
    ("paper", "dcd-bridge"),
    ("fokker", "dcd-central"),
)
SHOWN = 12  # images in the figure
# "RMSE of denoised images", Luo et al. 2023, Table 4: σ = 0.3, 0.6, 0.9
PAPER_TABLE_4: dict[str, dict[str, tuple[float, float, float]]] = {
    "mnist": {"dcd": (0.165, 0.194, 0.303), "cd": (0.194, 0.390, 1.099)},
    "fashion_mnist": {"dcd": (0.170, 0.217, 0.497), "cd": (0.171, 0.279, 0.872)},
    "cifar10": {"dcd": (0.129, 0.193, 0.244), "cd": (0.154, 0.317, 8.572)},
    "svhn": {"dcd": (0.099, 0.137, 0.294), "cd": (0.124, 0.293, 6.938)},
}


@dataclass(frozen=True)
class Cell:
    r"""One method on one set."""

    data: str
    preset: str
    method: str
    data_dir: str | None = None
    device: str = "cpu"
    steps: int | None = None  # the preset's if not given
    batch: int | None = None
    quick: bool = False  # small networks, for tests and a first look on a CPU

    @property
    def name(self) -> str:
        return f"{name_of(self.data)}-{self.preset}-{self.method}"

    @property
    def config(self) -> Config:
        images = ImageData(self.data, self.data_dir)
        base = image_config(self.preset, self.method, images, self.device)
        given = {"steps": self.steps, "batch": self.batch}
        changed = {k: v for k, v in given.items() if v is not None}
        base = replace(base, optimization=replace(base.optimization, **changed))
        if not self.quick:
            return base
        network = base.network
        if isinstance(network, UNet):
            network = replace(network, width=16, blocks=1)
        elif isinstance(network, ResNet):
            network = replace(network, depth=10, widen=1)
        quick: Optimization = replace(base.optimization, rate=2e-3, warmup=10)
        return replace(base, network=network, optimization=quick, evaluate=10_000)


def finite(value: float | None) -> float | None:
    r"""Returns a figure, `None` if it is infinite or NaN."""
    return value if value is not None and math.isfinite(value) else None


def judge(run: Run, part: Cell, count: int) -> tuple[list[results.Row], dict[str, Tensor]]:
    r"""Returns the rows of a trained run, one a level and rule, clipped and not; and of each level
    the first images as bytes, denoised by the best rule."""
    device = torch.device(part.device)
    task = run.loaded()
    if not isinstance(task, ImageTask):
        raise TypeError(f"expected a run on images, got {run.path}")
    energy = run.energy.to(device)
    clean = task.test(count, device)
    rules = ("tweedie",) if task.level is None else RULES
    config = run.config.optimization
    rows, pictures = [], {}
    for sigma in LEVELS:
        x, least = noisy(clean, sigma), math.inf
        for rule in rules:
            options: Any = {} if task.level is None else {"level": task.level, "rule": rule}
            generator = torch.Generator(device).manual_seed(0)
            parts = [
                denoise(energy, part_, sigma, generator=generator, **options).detach()
                for part_ in x.split(250)  # a Wide ResNet takes much memory
            ]
            out = torch.cat(parts)
            for clipped in (False, True):
                found = errors(out.clamp(-1, 1) if clipped else out, clean)
                if not clipped and found.rmse_mean < least:
                    least, pictures[f"{sigma}"] = found.rmse_mean, to_uint8(out[:SHOWN]).cpu()
                rows.append({
                    "data": name_of(part.data),
                    "method": part.method,
                    "preset": part.preset,
                    "form": results.form_of(run.config.objective),
                    "sigma": sigma,
                    **{k: finite(v) for k, v in found._asdict().items()},
                    "rule": rule,
                    "clipped": clipped,
                    "images": len(clean),
                    "train_images": config.steps * config.batch,
                    "gpu_seconds": run.metrics[-1]["seconds"],
                    "params": sum(p.numel() for p in energy.parameters()),
                    "device": results.hardware(part.device),
                    "commit": results.commit(),
                })
    return rows, pictures


def check_done(part: Cell, target: Path, count: int) -> None:
    r"""Raises if the rows of a part are not those that it would have now, as after --quick."""
    row, config = json.loads(target.read_text())[0], part.config.optimization
    if row["images"] != count:  # there may be fewer
        count = min(count, len(read_images(part.data, "test", part.data_dir)))
    wanted = {"train_images": config.steps * config.batch, "images": count}
    for name, value in wanted.items():
        if row[name] != value:
            raise ValueError(
                f"{target}: expected a part with {name} {value}, got {row[name]}; give"
                " another --out"
            )


def run(
    part: Cell,
    folder: Path,
    count: int = 2000,
    progress: Callable[[int, dict[str, Any]], None] | None = None,
    minutes: float | None = None,
) -> None:
    r"""Trains a part, unless it is trained, and writes its pictures, NAME.npz, and its rows,
    NAME.json.

    Arguments:
        part: The part.
        folder: The folder of the study.
        count: The number of test images.
        progress: See `fokker.fit`.
        minutes: See `fokker.fit`.
    """
    checks.positive_integer(images=count)
    target = folder / f"{part.name}.json"
    if target.exists():
        return check_done(part, target, count)
    place = folder / part.name
    started = (place / "config.toml").exists()
    folder.mkdir(parents=True, exist_ok=True)
    turn = FileLock(folder / "turn.lock")
    tick = progress or (lambda step, line: None)
    trained = fit(part.config, place, started, tick, minutes, turn=turn)
    with turn, cudnn.flags(enabled=True, benchmark=False):  # batches of other shapes, few of each
        rows, pictures = judge(load(trained.path), part, count)
    arrays: dict[str, Any] = {k: v.numpy() for k, v in pictures.items()}
    np.savez(target.with_suffix(".npz"), **arrays)
    write_text(target, json.dumps(rows, indent=1, allow_nan=False))


def run_all(
    parts: Sequence[Cell],
    folder: Path,
    count: int = 2000,
    jobs: int = 1,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    r"""Runs parts side by side, as many at a time as there are jobs; one that fails leaves the
    others.

    Arguments:
        parts: The parts; those of the same shape of image further apart find compiled code.
        folder: The folder of the study.
        count: The number of test images.
        jobs: The number of processes.
        minutes: See `fokker.fit`.
        say: Called with a line a part.
    """
    failed = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = {
            pool.submit(run, part, folder, count, minutes=minutes): part.name for part in parts
        }
        for future in as_completed(found):
            error = future.exception()
            if error is None:
                say(f"{found[future]}: done")
            else:
                failed.append(found[future])
                say(f"{found[future]}: {error}")
    if failed:
        raise ValueError(f"expected all parts to end, got {', '.join(failed)} that did not")


def reached(place: Path, data: str) -> float | None:
    r"""Returns the seconds of training until a run was below the paper's DCD at every level.

    By the evaluations while training, a few hundred images each; `None` if never, or if the paper
    has no such set.

    Arguments:
        place: The folder of the run.
        data: The name of the set.
    """
    path = place / "metrics.jsonl"
    if data not in PAPER_TABLE_4 or not path.exists():
        return None
    goals = dict(zip(LEVELS, PAPER_TABLE_4[data]["dcd"], strict=True))
    for line in map(json.loads, path.read_text().splitlines()):
        found = {sigma: line.get(f"rmse_{sigma}") for sigma in LEVELS}
        if all(v is not None and v <= goals[sigma] for sigma, v in found.items()):
            return line["seconds"]
    return None


def collect(folder: Path) -> list[results.Row]:
    r"""Returns the rows of all parts in a folder, with the seconds to the paper's row
    (`reached`)."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"expected parts of a study in {folder}, got none; run it first")
    return [
        {**row, "seconds_to_paper": reached(folder / path.stem, row["data"])}
        for path in paths
        for row in json.loads(path.read_text())
    ]


def best(rows: Sequence[results.Row], clipped: bool = False) -> list[results.Row]:
    r"""Returns the row with the least error of each set, preset, method and level."""
    found: dict[tuple[Any, ...], results.Row] = {}
    for row in rows:
        if row["clipped"] is not clipped or row["rmse_mean"] is None:
            continue
        key = (row["data"], row["preset"], row["method"], row["sigma"])
        if key not in found or row["rmse_mean"] < found[key]["rmse_mean"]:
            found[key] = row
    return list(found.values())
