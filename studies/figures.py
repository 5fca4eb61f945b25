r"""Figures of the studies, as a paper would print them."""

__all__ = ["bench", "denoised", "learned_densities", "sweeps"]

import matplotlib as mpl
import numpy as np
import torch

from collections.abc import Sequence
from fokker.data import toy
from fokker.grid import Grid
from matplotlib.figure import Figure
from pathlib import Path

from . import results

LABELS = {
    "paper-pcd": "PCD (paper)",
    "paper-cd": "CD (paper)",
    "paper-dcd": "DCD (paper)",
    "fokker-ed": "energy discrepancy",
    "fokker-sm": "score matching",
    "torchebm-pcd": "PCD (torchebm)",
    "torchebm-cd": "CD (torchebm)",
    "torchebm-ssm": "SSM (torchebm)",
    "torchebm-sm": "SM (torchebm)",
    "torchebm-dsm": "DSM (torchebm)",
    "torchebm-em": "EM (torchebm)",
    "fokker-dcd": "multi-time DCD",
}


def learned_densities(
    folder: Path, rows: Sequence[results.Row], window: Grid, sets: Sequence[str], path: Path
) -> None:
    r"""Draws the true density of every set and the one each method learned with its first seed.

    A method that diverged on a set leaves its place empty.

    Arguments:
        folder: The folder of the 2-D study, with one `.npz` a method.
        rows: The rows of the study, which say what diverged.
        window: The grid on which the learned densities were saved.
        sets: The sets, one a column.
        path: The file of the figure.
    """
    files = {name: folder / f"{name}.npz" for name in LABELS if (folder / f"{name}.npz").exists()}
    first = min(row["seed"] for row in rows)
    lost = {
        (f"{row['preset']}-{row['method']}", row["data"])
        for row in rows
        if row["diverged"] and row["seed"] == first
    }
    lines = ["truth", *files]
    # the house font of a figure, not of the process
    with mpl.rc_context({"font.size": 9, "font.family": "serif"}):
        fig = Figure(
            figsize=(1.25 * len(sets) + 0.9, 1.25 * len(lines) + 0.3), layout="constrained"
        )
        axes = np.atleast_2d(fig.subplots(len(lines), len(sets), squeeze=False))
        for j, name in enumerate(sets):
            truth = toy(name).density(window.axis()).numpy()
            for i, line in enumerate(lines):
                axis = axes[i, j]
                axis.set(xticks=[], yticks=[])
                if i == 0:
                    axis.set_title(name, fontsize=9)
                if j == 0:
                    axis.set_ylabel(LABELS.get(line, "true density"), fontsize=8)
                density = truth
                if (line, name) in lost:
                    density = None
                elif line != "truth":
                    with np.load(files[line], allow_pickle=False) as saved:
                        density = saved.get(name, None)
                if density is None:
                    axis.text(0.5, 0.5, "diverged", ha="center", va="center", color="0.4")
                    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
                    continue
                image = np.asarray(density, np.float32).reshape(window.size, window.size).T
                extent = (window.low, window.high, window.low, window.high)
                axis.imshow(
                    image, origin="lower", extent=extent, cmap="magma", vmin=0, vmax=truth.max()
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=100)


def sweeps(source: Path, path: Path) -> None:
    r"""Draws the two sweeps: Fisher gap against the step, and KL against the long-time weight.

    Arguments:
        source: The file of the sweeps.
        path: The file of the figure.
    """
    rows = results.load(source)["rows"]
    sets = list(dict.fromkeys(row["data"] for row in rows))
    variants = list(dict.fromkeys(row["sweep"] for row in rows if row["sweep"] != "weight"))
    with mpl.rc_context({"font.size": 9, "font.family": "serif"}):
        fig = Figure(figsize=(3 * (len(sets) + 1), 2.8), layout="constrained")
        axes = fig.subplots(1, len(sets) + 1)
        for axis, name in zip(axes, sets, strict=False):
            for variant in variants:
                line = [r for r in rows if (r["sweep"], r["data"]) == (variant, name)]
                found = [(r["value"], 100 * r["fisher_gap"]) for r in line if not r["diverged"]]
                axis.loglog(*zip(*found, strict=True), marker="o", ms=3, label=variant)
            axis.set(title=f"{name}: step", xlabel="t", ylabel="relative Fisher gap, %")
        axes[0].legend(fontsize=7)
        for name in sets:
            line = [r for r in rows if (r["sweep"], r["data"]) == ("weight", name)]
            found = [(r["value"], r["kl"]) for r in line]
            axes[-1].loglog(*zip(*found, strict=True), marker="o", ms=3, label=name)
        axes[-1].set(title="weight of long times", xlabel="λ", ylabel="KL, nats")
        axes[-1].legend(fontsize=7)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=130)


def bench(rows: Sequence[results.Row], path: Path) -> None:
    r"""Draws the cost of each step as a multiple of the plain one, a panel a network.

    Arguments:
        rows: The rows of the benchmark.
        path: The file of the figure.
    """
    rows = [row for row in rows if row["suite"] == "nets"]
    panels = list(dict.fromkeys((row["net"], row["device"], row["precision"]) for row in rows))
    colours = {"fokker": "tab:blue", "torchebm": "tab:orange", "eager": "0.6"}
    with mpl.rc_context({"font.size": 8, "font.family": "serif"}):
        fig = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
        axes = fig.subplots(1, len(panels), squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            shown = [r for r in rows if (r["net"], r["device"], r["precision"]) == panel]
            shown.sort(key=lambda row: -row["x_plain"])
            labels = [f"{row['name']} ({row['library']})" for row in shown]
            values = [row["x_plain"] for row in shown]
            axis.barh(labels, values, color=[colours[row["library"]] for row in shown])
            axis.bar_label(axis.containers[0], [f"{v:.3g}" for v in values], fontsize=7, padding=2)
            where = panel[1].split(",")[0]
            axis.set_title(f"{panel[0]}\n{where}", fontsize=8)
            axis.set(xlabel="× plain step", xscale="log")
            axis.margins(x=0.15)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=130)


def denoised(folder: Path, data: str, data_dir: str | None, path: Path) -> None:
    r"""Draws test images clean, noisy, and denoised by every method that was judged, σ = 0.6.

    Arguments:
        folder: The folder of the denoising study, with the pictures of each part.
        data: The set.
        data_dir: The folder that holds the named sets.
        path: The file of the figure.
    """
    from fokker.data.picture import to_float
    from fokker.data.sources import name_of
    from fokker.images.denoise import noisy
    from fokker.runs.config import Config, ImageData
    from fokker.tasks.image import ImageTask
    from fokker.tasks.reports.image import strip

    from .denoising import METHODS, SHOWN

    task = ImageTask(Config(ImageData(data, data_dir))).load()
    clean = task.test(SHOWN, torch.device("cpu"))
    lines = {"clean": clean, "σ = 0.6": noisy(clean, 0.6)}
    for preset, method in METHODS:
        place = folder / f"{name_of(data)}-{preset}-{method}.npz"
        if place.exists():
            with np.load(place, allow_pickle=False) as found:
                if "0.6" in found:  # not of one that diverged
                    lines[f"{preset} {method}"] = to_float(torch.from_numpy(found["0.6"]))
    count = min(map(len, lines.values()))
    lines = {label: images[:count] for label, images in lines.items()}
    with mpl.rc_context({"font.size": 8, "font.family": "serif"}):
        path.parent.mkdir(parents=True, exist_ok=True)
        strip(lines).savefig(path, dpi=130)
