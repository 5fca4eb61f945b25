r"""The report of a run on images: what it makes of noise, and its samples while it was trained."""

__all__ = ["body", "strip"]

import math
import torch

from matplotlib.figure import Figure
from torch import Tensor

from .page import embed, figure, picture, rows
from ...images.denoise import denoise, errors
from ...runs.folder import Run
from ...tasks.image import LEVELS, ImageTask, noisy

SHOWN = 10  # images
PREVIEWS = 4  # grids of samples


def strip(lines: dict[str, Tensor], width: float = 9.6) -> Figure:
    r"""Draws rows of images in [−1, 1], each with a label, (B, C, H, W) each."""
    count = len(next(iter(lines.values())))
    fig = figure(width, width / (count + 1.4) * len(lines))
    axes = fig.subplots(len(lines), count, squeeze=False)
    for row, (label, images) in zip(axes, lines.items(), strict=True):
        for axis, image in zip(row, images, strict=True):
            pixels = ((image.float().clamp(-1, 1) + 1) / 2).permute(1, 2, 0).cpu().numpy()
            axis.imshow(
                pixels.squeeze(2) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1
            )
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(label, rotation=0, ha="right", va="center")
    return fig


def curves(run: Run) -> Figure:
    fig = figure(9.6, 2.7)
    left, right = fig.subplots(1, 2)
    left.plot([m["step"] for m in run.metrics], [m["loss"] for m in run.metrics], color="#b5367a")
    left.set(title="loss", xlabel="step")
    for sigma in LEVELS:
        key = f"rmse_{sigma}"
        found = [(m["step"], m[key]) for m in run.metrics if m.get(key) is not None]
        right.plot(*zip(*found, strict=True), marker="o", ms=2.5, label=f"σ = {sigma}")
    right.set(title="RMSE of denoised test images", xlabel="step", yscale="log")
    right.legend()
    return fig


def body(run: Run) -> str:
    r"""Returns the body of the page, and saves its pictures."""
    task = run.task()
    if not isinstance(task, ImageTask):
        raise TypeError(f"expected a run on images, got one on {type(task).__name__}")
    clean = task.test(SHOWN, torch.device("cpu"))
    lines = {"clean": clean}
    numbers = []
    for sigma in LEVELS:
        x = noisy(clean, sigma)
        out = denoise(run.energy, x, sigma, task.level)
        lines |= {f"σ = {sigma}": x, "denoised" + " " * len(lines): out}
        e = errors(out, clean)
        numbers.append([str(sigma), *("none" if v is None else f"{v:.4g}" for v in e)])
    pictures = embed(strip(lines), run.path / "denoised.png", "clean, noisy and denoised images")
    drawn = embed(curves(run), run.path / "curves.png", "curves of training")
    previews = sorted((run.path / "previews").glob("step-*.png"))
    shown = previews[:: -max(1, math.ceil(len(previews) / PREVIEWS))][::-1]  # the last one is
    drawings = "".join(
        f"<h2>Samples after step {int(path.stem[5:])}</h2>\n{picture(path, 'samples')}\n"
        for path in shown
    )
    these = f"these {len(clean)} test images" if len(clean) > 1 else "this one test image"
    header = ("σ", "mean of RMSE", "RMSE of mean", "PSNR, dB", "SSIM")
    return f"""{drawings}<h2>Denoising</h2>
{pictures}
<h2>Errors of {these}</h2>
{rows(numbers, header)}
<h2>Training</h2>
{drawn}"""
