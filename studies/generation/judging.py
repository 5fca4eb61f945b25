r"""The figures of the generation study.

Rows have a `kind`. Those of draws (`final`, `snapshot`, `steps`, `corrector`, `guided`) have FID
and KID with their convention and count, and the cost of a sample. Beside them:

==============  ==================================================================================
`data`          FID of the training against the test images: what a perfect model would have
`nearest`       distance of samples to the nearest training image, beside that of test images:
                the RMSE of pixels in [−1, 1]. A model that repeats its data has shorter ones
`energy`        quantiles of E(x, σ) over noisy images to train on, to test on, and drawn
==============  ==================================================================================

Without weights of Inception there is no FID: its place is `None`, until it is judged with them.
"""

__all__ = ["LEVELS", "collect", "judge", "nearest"]

import json
import numpy as np
import torch

from collections.abc import Callable
from fokker.data.picture import to_float
from fokker.files import write_text
from fokker.images.denoise import noisy
from fokker.images.likelihood import bits_of
from fokker.images.memory import nearest
from fokker.images.quality import judge_images, reference_of
from fokker.metrics import Extractor, fid_between, statistics
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.loading import load
from fokker.tasks import Run
from fokker.tasks.image import ImageTask
from pathlib import Path
from torch import Tensor
from typing import Any

from .parts import Clock, Draw, Part, Settings, draws_of, guide_of
from .working import images_of, snapshots_of, weights_of
from .. import results
from ..units import begin

LEVELS = (0.05, 0.2, 0.5, 1.0, 5.0)  # of the energies
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def write(path: Path, rows: list[results.Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(rows, indent=1, allow_nan=False))


def missing(path: Path, extractor: Extractor | None = None) -> bool:
    r"""Returns whether figures are to be made: none are there, or a FID can be had now, for the
    first time or by other weights of Inception."""
    if not path.exists():
        return True
    rows = json.loads(path.read_text())
    if extractor is None:
        return False
    weights = extractor.weights[:8]
    other = lambda row: row.get("fid", 0) is None or row.get("weights", weights) != weights
    return any(other(row) for row in rows if row.get("diverged") is None)


def judge(
    part: Part,
    folder: Path,
    extractor: Extractor | None,
    settings: Settings = Settings(),
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> bool:
    r"""Judges what a part has drawn, and returns whether all of it is judged.

    Arguments:
        part: The part, trained or being trained.
        folder: The folder of the study.
        extractor: Inception; without it there is no FID.
        settings: What is judged.
        clock: The limit on the time; it is looked at after each figure.
        progress: Called with a line for each figure.
    """
    place, clock = folder / part.name, clock or Clock()
    run, device = load(place / "run"), torch.device(part.device)
    task = run.loaded()
    assert isinstance(task, ImageTask)
    train = task.images["train"]
    head = {"data": Path(part.data).name, "method": part.method, "preset": part.preset}
    head |= {"size": part.size, "seed": part.seed, "params": weights_of(run)}
    head |= {"form": results.form_of(run.config.objective)}
    optimization = run.config.optimization
    head |= {"muon": optimization.muon, "restarts": list(optimization.restarts)}
    where = {"device": results.hardware(part.device), "commit": results.commit()}
    drawn = draws_of(part, run, folder, len(train), settings)
    last = next((draw for draw in drawn if draw.kind == "final"), None)
    found = images_of(place, last) if last is not None else None
    found = found if found is not None and len(found[0]) else None
    jobs: list[tuple[Path, bool, Callable[[], list[results.Row]]]] = []

    def add(name: str, make: Callable[[], list[results.Row]], fid: bool = False) -> None:
        # figures of the other convention lie beside those of tf
        other = "-torch" if fid and settings.convention == "torch" else ""
        jobs.append((place / "rows" / f"{name}{other}.json", fid, make))

    done = True
    for draw in drawn:
        if images_of(place, draw) is None:
            progress(f"{part.name}: {draw.name} is not drawn yet")
            done = False
        else:
            near = lambda draw=draw: distances(part, run, draw, place, train, extractor, settings)
            add(draw.name, lambda near=near: [near()], True)
    if extractor is not None:
        add("data", lambda: [apart(task, extractor, settings)], True)
    step = f"{run.step:08d}"
    if found is not None:
        add(f"nearest-{step}", lambda: closeness(task, found[0], place, device, settings))
    if part.method != "reference":
        if found is not None:
            add(f"energy-{step}", lambda: levels(run, task, found[0], place, device, settings))
        if settings.bits:
            add(f"bits-{step}", lambda: [likelihood(part, run, task, device, settings)])
    jobs = [job for job in jobs if missing(job[0], extractor if job[1] else None)]
    units = begin(f"{part.name}, figures", len(jobs))
    for path, _, make in jobs:
        if clock.over:
            return False
        rows = [{**head, "step": run.step, **row, **where} for row in make()]
        write(path, rows)
        units.done()
        progress(f"{part.name}: {path.stem}")
    return done


def distances(
    part: Part,
    run: Run,
    draw: Draw,
    place: Path,
    train: Any,
    extractor: Extractor | None,
    settings: Settings,
) -> results.Row:
    r"""Returns the row of a draw."""
    found = images_of(place, draw)
    assert found is not None
    images, notes = found
    seconds = snapshots_of(place).get(draw.step)
    if seconds is None:  # the last weights, perhaps long after an evaluation
        seconds = read_checkpoint(place / "run").seconds
    lost = notes[0].get("diverged")
    warm = notes[1:] or notes  # the first file may have waited for a compiler
    spent = sum(h.get("seconds", 0.0) for h in warm)
    rates = [h["acceptance"] for h in notes if h.get("acceptance") is not None]
    row: results.Row = {
        "kind": draw.kind,
        "step": draw.step,
        "train_images": draw.step * run.config.optimization.batch,
        "seconds": seconds,
        "sampler": draw.sampling.sampler,
        "steps": draw.sampling.steps,
        "sigma_min": draw.sampling.sigma_min,
        "sigma_max": draw.sampling.sigma_max,
        "corrector": draw.sampling.corrector,
        "acceptance": sum(rates) / len(rates) if rates else None,
        "nfe": draw.sampling.flow(1).evaluations,
        "images_per_second": None if lost else sum(h["n"] for h in warm) / spent,
        "diverged": lost,
        "fid": None,
        "fid_n": draw.count,
        "convention": None,
        "kid": None,
        "kid_std": None,
        "bpd": None,
    }
    if draw.kind == "guided":
        guide = place.parent / guide_of(part).name / "run"
        row |= {"guidance": draw.guidance, "guide": guide_of(part).size}
        row |= {"guide_step": draw.guide_step, "guide_params": weights_of(load(guide))}
        row |= {"guide_seconds": read_checkpoint(guide).seconds}
    if extractor is not None and lost is None:
        reference = reference_of(train, extractor, settings.batch)
        fid, kid = judge_images(images, reference, extractor, settings.batch)
        row |= {"fid": fid.value, "convention": fid.convention, "weights": fid.weights[:8]}
        if kid is not None:
            row |= {"kid": kid.mean, "kid_std": kid.std}
    return row


def apart(task: ImageTask, extractor: Extractor, settings: Settings) -> results.Row:
    r"""Returns the row of the training against the test images."""
    train = reference_of(task.images["train"], extractor, settings.batch).statistics
    test = statistics(extractor, task.pixels("test"), batch=settings.batch)
    fid = fid_between(train, test)
    return {
        "kind": "data",
        "method": "train-vs-test",
        "preset": "",
        "params": None,
        "muon": None,
        "restarts": None,
        "step": None,
        "fid": fid.value,
        "fid_n": fid.counts[1],
        "convention": fid.convention,
        "weights": fid.weights[:8],
    }


def quantiles(values: Tensor) -> results.Row:
    levels = torch.quantile(values.double().cpu(), torch.tensor(QUANTILES, dtype=torch.float64))
    return {f"q{round(100 * q):02d}": float(v) for q, v in zip(QUANTILES, levels, strict=True)}


def closeness(
    task: ImageTask, images: Tensor, place: Path, device: torch.device, settings: Settings
) -> list[results.Row]:
    r"""Returns how near samples and test images are to training images."""
    train = task.pixels("train")
    sets = {"generated": images[: settings.near], "test": task.pixels("test")[: settings.near]}
    found = {name: nearest(to_float(u.to(device)), train)[0].cpu() for name, u in sets.items()}
    generated, test = (found[name].numpy() for name in ("generated", "test"))
    np.savez(place / "nearest.npz", generated=generated, test=test)
    rows = []
    for name, d in found.items():
        rows.append({"kind": "nearest", "set": name, "images": len(d), **quantiles(d)})
    return rows


def levels(
    run: Run,
    task: ImageTask,
    images: Tensor,
    place: Path,
    device: torch.device,
    settings: Settings,
) -> list[results.Row]:
    r"""Returns the energies of noisy images to train on, to test on, and drawn, by layers in
    float32."""
    rows, kept, energy = [], [], run.energy_on(device, exact=True)
    few = settings.near
    sets = {"train": task.pixels("train"), "test": task.pixels("test"), "generated": images}
    for sigma in LEVELS:
        for name, u in sets.items():
            x = noisy(to_float(u[:few].to(device)), sigma)
            with torch.no_grad():
                e = torch.cat([
                    energy(p, torch.tensor(sigma, device=device)) for p in x.split(settings.batch)
                ])
            kept.append(e.cpu().numpy())
            head = {"kind": "energy", "set": name, "sigma": sigma, "images": len(x)}
            rows.append({**head, "mean": float(e.double().mean()), **quantiles(e)})
    np.savez(place / "energies.npz", *kept)
    return rows


def likelihood(
    part: Part, run: Run, task: ImageTask, device: torch.device, settings: Settings
) -> results.Row:
    r"""Returns the likelihood of test images, in bits a dimension, by layers in float32."""
    energy, test = run.energy_on(device, exact=True), task.pixels("test")[: settings.bits]
    bits, error = bits_of(
        energy, test, task.pixels("train"), part.sampling, settings.batch, device=device
    )
    return {"kind": "bits", "bpd": bits, "bpd_error": error, "bpd_n": len(test)}


def collect(folder: Path) -> list[results.Row]:
    r"""Returns the rows of all parts in a folder; that of the data once, and the likelihood with
    the final draw of its weights."""
    paths = sorted(folder.glob("*/rows/*.json"))
    rows = [row for path in paths for row in json.loads(path.read_text())]
    key = lambda r: (r["data"], r["preset"], r["method"], r["size"], r["step"], r.get("muon"))
    bits = {key(r): r for r in rows if r["kind"] == "bits"}
    data = {(r["data"], r["convention"]): r for r in rows if r["kind"] == "data"}
    kept = [row for row in rows if row["kind"] not in {"bits", "data"}]
    for row in kept:
        if row["kind"] == "final" and key(row) in bits:
            row |= {k: bits[key(row)][k] for k in ("bpd", "bpd_error", "bpd_n")}
    return [*data.values(), *kept]
