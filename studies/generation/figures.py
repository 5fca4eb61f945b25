r"""The figures of the generation study. Only generated images are shown, never those of a set."""

__all__ = ["draw_all"]

import matplotlib as mpl
import numpy as np

from collections.abc import Sequence
from fokker.data.picture import save_png, to_float
from fokker.runs.loading import load
from fokker.tasks.image import ImageTask
from matplotlib.figure import Figure
from pathlib import Path

from .judging import nearest
from .parts import Part, Settings, draws_of
from .working import images_of
from .. import results
from ..tables.images import GOALS


def save(fig: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    return path


def label(row: results.Row) -> str:
    other = ", torch" if row["convention"] == "torch" else ""
    muon = ", Muon" if row.get("muon") else ""
    return f"{row['preset']} {row['method']}, {row['size']}{muon}{other}"


def groups(rows: Sequence[results.Row]) -> dict[str, list[results.Row]]:
    found: dict[str, list[results.Row]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row)
    return found


def counts_of(rows: Sequence[results.Row]) -> list[int]:
    r"""Returns the numbers of images that FID was taken with; it compares at equal ones only."""
    return sorted({row["fid_n"] for row in rows})


def along(rows: Sequence[results.Row], data: str, path: Path) -> Path | None:
    r"""Draws FID against the minutes of training, with the marks to pass: a line along each run
    whose snapshots were judged, a square for other last weights at the same number of images, and
    a diamond at a larger one, which is said, since FID falls with it."""
    judged = [r for r in rows if r["kind"] in {"snapshot", "final"} and r["fid"] is not None]
    counts = {row["fid_n"] for row in judged if row["kind"] == "snapshot"}
    if not counts:
        return None
    fig = Figure(figsize=(5.2, 3.4), layout="constrained")
    axis = fig.subplots()
    final = [row for row in judged if row["fid_n"] >= min(counts)]
    for k, (name, line) in enumerate(groups(final).items()):
        told = {n: f"{name}, {n:,} images" if len(counts) > 1 else name for n in sorted(counts)}
        draws = [("snapshot", n, "o-", label) for n, label in told.items()]
        draws += [("final", n, "s", f"{name}, end of a run") for n in sorted(counts)]
        others = [n for n in counts_of(line) if n not in counts]
        draws += [("final", n, "D", f"{name}, {n:,} images") for n in others]
        for kind, n, style, label in draws:
            found = sorted(
                (r["seconds"] / 60, r["fid"]) for r in line if (r["kind"], r["fid_n"]) == (kind, n)
            )
            if found:
                shown = {"ms": 3, "color": f"C{k}", "label": label}
                axis.plot(*zip(*found, strict=True), style, **shown)
    for name, value in GOALS.get(data, {}).items():
        axis.axhline(value, color="0.6", lw=0.8, ls="--")
        place = {"xy": (0.01, value), "xycoords": ("axes fraction", "data")}
        axis.annotate(f"{name}, {value}", **place, fontsize=7, color="0.4", va="bottom")
    axis.set(xlabel="minutes of training", yscale="log", xlim=(0, None))
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks(lambda y, _: f"{y:g}" if f"{y:.0e}"[0] in "1235" else "")
    most = ", ".join(f"{n:,}" for n in sorted(counts))
    axis.set_ylabel(f"FID, {most} images unless said")
    axis.legend(fontsize=6)
    return save(fig, path)


def samplers(rows: Sequence[results.Row], path: Path) -> Path | None:
    r"""Draws FID against evaluations of the network, with the corrector and without."""
    draws = [r for r in rows if r["kind"] in {"steps", "corrector"} and r["fid"] is not None]
    if not draws:
        return None
    fig = Figure(figsize=(5.2, 3.4), layout="constrained")
    axis = fig.subplots()
    looks = (
        ("steps", "heun", "-", ""),
        ("steps", "multistep", ":", ", multistep"),
        ("corrector", "heun", "--", ", corrected"),
    )
    drawn = []
    for name, line in groups(draws).items():
        last = max(row["step"] for row in line)  # draws of the same weights
        line = [row for row in line if row["step"] == last]
        drawn += [(name, line, n) for n in counts_of(line)]
    for k, (name, line, n) in enumerate(drawn):
        for kind, sampler, style, label in looks:
            wanted = (kind, sampler, n)
            found = sorted(
                (r["nfe"], r["fid"])
                for r in line
                if (r["kind"], r["sampler"], r["fid_n"]) == wanted
            )
            if found:
                told = f"{name}{label}, {n:,} images"
                shown = {"marker": "o", "ms": 3, "color": f"C{k}", "label": told}
                axis.plot(*zip(*found, strict=True), style, **shown)
    axis.set(xlabel="evaluations an image", ylabel="FID")
    axis.legend(fontsize=7)
    return save(fig, path)


def energies(place: Path, rows: Sequence[results.Row], path: Path) -> Path | None:
    r"""Draws histograms of the energies of noisy images, a panel a level."""
    measured = [r for r in rows if r["kind"] == "energy"]
    if not measured or not (place / "energies.npz").exists():
        return None
    last = max(row["step"] for row in measured)
    measured = [row for row in measured if row["step"] == last]  # as the arrays
    sigmas = list(dict.fromkeys(row["sigma"] for row in measured))
    fig = Figure(figsize=(2.1 * len(sigmas), 2.3), layout="constrained")
    axes = dict(zip(sigmas, fig.subplots(1, len(sigmas)), strict=True))
    with np.load(place / "energies.npz", allow_pickle=False) as found:
        for row, e in zip(measured, found.values(), strict=True):
            axis = axes[row["sigma"]]
            axis.hist(e, 40, density=True, histtype="step", label=row["set"])
            axis.set(title=f"σ = {row['sigma']:g}", xlabel="E, nats", yticks=[])
    axes[sigmas[0]].legend(fontsize=6)
    return save(fig, path)


def distances(place: Path, path: Path) -> Path | None:
    r"""Draws how far samples and test images are from the nearest training image."""
    if not (place / "nearest.npz").exists():
        return None
    fig = Figure(figsize=(4.2, 2.8), layout="constrained")
    axis = fig.subplots()
    with np.load(place / "nearest.npz", allow_pickle=False) as found:
        high = max(float(d.max()) for d in found.values())
        for name, d in found.items():
            axis.hist(
                d, np.linspace(0, high, 41).tolist(), density=True, histtype="step", label=name
            )
    axis.set(xlabel="RMSE to the nearest training image", yticks=[])
    axis.legend(fontsize=7)
    return save(fig, path)


def draw_all(
    parts: Sequence[Part], folder: Path, rows: Sequence[results.Row], settings: Settings
) -> list[Path]:
    r"""Draws all figures that there is something for, and returns their paths.

    Arguments:
        parts: The parts.
        folder: The folder of the study.
        rows: Its rows.
        settings: What was drawn.
    """
    target = folder / "figures"
    found: list[Path | None] = []
    with mpl.rc_context({"font.size": 8, "font.family": "serif"}):
        for data in dict.fromkeys(Path(part.data).name for part in parts):
            chosen = [row for row in rows if row["data"] == data]
            found += [
                along(chosen, data, target / f"{data}-fid.png"),
                samplers(chosen, target / f"{data}-samplers.png"),
            ]
        for part in parts:
            place = folder / part.name
            if not any((place / "run" / "checkpoint").glob("step-*")):
                continue
            same = lambda row, part=part: all(
                row.get(k) == v
                for k, v in (("preset", part.preset), ("method", part.method), ("size", part.size))
            )
            chosen = [row for row in rows if row["data"] == Path(part.data).name and same(row)]
            found.append(energies(place, chosen, target / f"{part.name}-energies.png"))
            found.append(distances(place, target / f"{part.name}-nearest.png"))
            found += grids(part, folder, target, settings)
    return [path for path in found if path is not None]


def grids(part: Part, folder: Path, target: Path, settings: Settings) -> list[Path]:
    r"""Draws the first samples of a part, and those that are nearest to training images."""
    place = folder / part.name
    run = load(place / "run")
    task = run.loaded()
    assert isinstance(task, ImageTask)
    drawn = draws_of(part, run, folder, len(task.images["train"]), settings)
    paths = []
    for draw in (draw for draw in drawn if draw.kind in {"final", "guided"}):
        images = images_of(place, draw)
        if images is None or not len(images[0]):
            continue
        target.mkdir(parents=True, exist_ok=True)
        x = to_float(images[0])
        name = "samples" if draw.kind == "final" else f"guided-{draw.guidance:g}"
        save_png(first := target / f"{part.name}-{name}.png", x[:64])
        paths.append(first)
        if draw.kind == "final":
            x = x[: settings.near]
            order = nearest(x, task.pixels("train"))[0].argsort()[:16]
            save_png(close := target / f"{part.name}-nearest-samples.png", x[order])
            paths.append(close)
    return paths
