r"""The stages of the generation study that need a GPU most: training and drawing."""

__all__ = ["images_of", "sample", "snapshots_of", "train"]

import json
import numpy as np
import shutil
import torch

from collections.abc import Callable
from fokker.compute.field import field_of
from fokker.files import first_line, replacing, save_npy
from fokker.images.generate import DivergedEnergy, generate, tuned
from fokker.pace import Pace
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.loading import load
from fokker.runs.training import Diverged, Interrupted, fit
from fokker.samplers import Field, Guided
from fokker.tasks import Run
from fokker.tasks.image import ImageTask
from fokker.tasks.trained import guided
from pathlib import Path
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing import Any

from .parts import (
    GUIDE,
    Clock,
    Draw,
    Part,
    Settings,
    draws_of,
    guide_of,
    trained_guide,
)

Progress = Callable[[int, dict[str, Any]], None]


def snapshots_of(place: Path) -> dict[int, float]:
    r"""Returns the seconds of training of each snapshot in the folder of a part, by its step."""
    found = {}
    for path in sorted((place / "snapshots").glob("step-*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                found[int(path.stem[5:])] = float((file.metadata() or {})["seconds"])
        except (SafetensorError, KeyError) as error:
            raise ValueError(
                f"{path}: expected a whole snapshot, got {first_line(error)}; delete it to go on"
            ) from None
    return found


def snapshot(place: Path, step: int, seconds: float) -> None:
    r"""Keeps the averaged weights of the newest checkpoint in bfloat16, whole or not at all."""
    target = place / "snapshots" / f"step-{step:08d}.safetensors"
    target.parent.mkdir(exist_ok=True)
    average = read_checkpoint(place / "run").average
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in average.items()}
    with replacing(target) as partial:
        save_file(weights, partial, {"seconds": repr(seconds)})


def train(
    part: Part,
    folder: Path,
    every: float = 2.0,
    clock: Clock | None = None,
    progress: Progress = lambda step, line: None,
) -> bool:
    r"""Trains a part, from where it was stopped, and returns whether it is trained to the end.

    One that diverges ends there: `diverged.txt` says why, and what was saved last is drawn from.
    One that is interrupted is saved, and raises.

    Arguments:
        part: The part.
        folder: The folder of the study.
        every: The minutes of training between snapshots, which follow evaluations.
        clock: The limit on the time; it is saved and stopped there.
        progress: See `fokker.fit`.
    """
    place, clock = folder / part.name, clock or Clock()
    target, config = place / "run", part.config
    if (place / "diverged.txt").exists():
        return True
    started = any((target / "checkpoint").glob("step-*"))
    if started and read_checkpoint(target).step >= config.optimization.steps:
        return True
    if clock.over:
        return False
    if not started:  # what is there was stopped before anything was saved
        shutil.rmtree(target, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    last = max(snapshots_of(place).values(), default=-np.inf)

    def tick(step: int, line: dict[str, Any]) -> None:
        nonlocal last
        seconds = line.get("seconds")
        ended = step in {end for _, end in config.optimization.cycles}
        if seconds is not None and (ended or seconds - last >= 60 * every):
            snapshot(place, step, seconds)
            last = seconds
        progress(step, line)

    try:
        fit(config, target, resume=started, progress=tick, minutes=clock.left)
    except Interrupted as stop:
        if not stop.late:  # Ctrl-C ends the study
            raise
        return False
    except Diverged as error:
        (place / "diverged.txt").write_text(f"{error}\n")
    return True


def images_of(place: Path, draw: Draw) -> tuple[Tensor, list[dict[str, Any]]] | None:
    r"""Returns the images of a draw and how each file was drawn; `None` unless all are there. Of a
    draw that diverged there are none, and how says why."""
    if (why := place / "samples" / draw.name / "diverged.json").exists():
        return torch.empty(0, dtype=torch.uint8), [json.loads(why.read_text())]
    target, at, parts, hows = place / "samples" / draw.name, 0, [], []
    for begin, n in held(target):
        if begin > at:
            return None
        parts.append(torch.from_numpy(np.load(named(target, begin)))[at - begin :])
        hows.append(json.loads(named(target, begin).with_suffix(".json").read_text()))
        at = max(at, begin + n)
    return (torch.cat(parts)[: draw.count], hows) if at >= draw.count else None


def whole(path: Path) -> int:
    r"""Returns the number of images in a file; zero if it, or what is said of it, is cut short."""
    try:
        json.loads(path.with_suffix(".json").read_text())
        return len(np.load(path, mmap_mode="r"))
    except (ValueError, EOFError, FileNotFoundError):
        return 0


def held(target: Path) -> list[tuple[int, int]]:
    r"""Returns the first index and the number of the images in each file of a draw."""
    return [(int(path.stem), n) for path in sorted(target.glob("*.npy")) if (n := whole(path))]


def gaps(target: Path, count: int, chunk: int) -> list[tuple[int, int]]:
    r"""Returns the first index and the number of the images to draw yet, at most a chunk each:
    those in no file, whatever the chunks of the calls before."""
    found, at = [], 0
    for begin, n in [*held(target), (count, 0)]:
        end = min(begin, count)
        found += [(k, min(chunk, end - k)) for k in range(at, end, chunk)]
        at = max(at, begin + n)
    return found


def sample(
    part: Part,
    folder: Path,
    settings: Settings = Settings(),
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> bool:
    r"""Draws the images of a part that are not there yet, and returns whether all are.

    Arguments:
        part: The part, trained or being trained.
        folder: The folder of the study.
        settings: What is drawn.
        clock: The limit on the time; it is looked at after each file of images.
        progress: Called with a line for each file.
    """
    place, clock = folder / part.name, clock or Clock()
    run = load(place / "run")
    task = run.loaded()
    assert isinstance(task, ImageTask)
    energy = run.energy_on(part.device)
    fields: dict[tuple[bool, bool], Field] = {}
    paces: list[Pace] = []  # of the draws

    def tick() -> None:
        paces[-1].done()

    snapshots_of(place)  # all are whole
    if "guided" in settings.kinds and part.size != GUIDE and not trained_guide(part, folder):
        progress(f"{part.name}: no guided draw, {guide_of(part).name} is not trained to its end")
    final = {k: v.clone() for k, v in energy.state_dict().items()}
    for draw in draws_of(part, run, folder, len(task.images["train"]), settings):
        target = place / "samples" / draw.name
        if (target / "diverged.json").exists():
            continue
        for path in sorted(target.glob("*.npy")):
            if not whole(path):
                progress(f"{part.name}: {path} is not whole, and is drawn again")
                path.unlink()
        todo = gaps(target, draw.count, settings.chunk)
        if not todo:
            continue
        if clock.over:
            return False
        target.mkdir(parents=True, exist_ok=True)
        weights = final
        if draw.kind == "snapshot":
            path = place / "snapshots" / f"step-{draw.step:08d}.safetensors"
            weights = {k: v.float() for k, v in load_file(path).items()}
        energy.load_state_dict(weights)  # in place: a compiled field sees them
        exact = draw.sampling.corrector > 0
        kind = (exact, draw.kind == "guided")
        if kind not in fields:
            worse = None
            if draw.kind == "guided":
                worse = (load(folder / guide_of(part).name / "run"), draw.guidance)
            source = guided(run, worse, part.device, exact)
            fields[kind] = field_of(source, part.device, tick, settings.compile)
        field, flow = fields[kind], None
        evaluations = draw.sampling.flow(1).evaluations
        paces.append(Pace(f"{part.name}, {draw.name}", len(todo) * evaluations))
        if isinstance(field.energy, Guided):
            field.energy.weight.fill_(draw.guidance)
        for begin, n in todo:
            if clock.over:
                return False
            try:
                flow = flow or tuned(field, run.shape, draw.sampling, device=part.device)
                drawn = generate(
                    field,
                    n,
                    run.shape,
                    draw.sampling,
                    batch=settings.chunk,
                    first=begin,
                    device=part.device,
                    flow=flow,
                )
            except (DivergedEnergy, FloatingPointError) as error:
                (target / "diverged.json").write_text(json.dumps({"diverged": str(error)}))
                progress(f"{part.name}: {draw.name}, {error}")
                break
            notes = {"seconds": drawn.seconds, "n": n, "nfe": drawn.evaluations}
            notes["acceptance"] = drawn.acceptance
            keep(named(target, begin), drawn.images, notes)
            progress(f"{part.name}: {draw.name}, {begin + n} of {draw.count}")
    energy.load_state_dict(final)
    return True


def named(target: Path, begin: int) -> Path:
    return target / f"{begin:07d}.npy"


def keep(path: Path, images: Tensor, notes: dict[str, Any]) -> None:
    r"""Writes images, whole or not at all; how they were drawn goes first."""
    path.with_suffix(".json").write_text(json.dumps(notes, allow_nan=False))
    save_npy(path, images.numpy())


def weights_of(run: Run) -> int:
    r"""Returns the number of parameters of a run."""
    return sum(p.numel() for p in run.energy.parameters())
