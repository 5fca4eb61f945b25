r"""The figures of a report on images."""

__all__ = ["curves_figure", "strip"]

from collections.abc import Sequence
from matplotlib.figure import Figure
from torch import Tensor
from typing import Any

from .page import figure


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


def curves_figure(metrics: list[dict[str, Any]], levels: Sequence[float]) -> Figure:
    r"""Draws the loss, and the error of denoised test images at each noise level."""
    fig = figure(9.6, 2.7)
    left, right = fig.subplots(1, 2)
    left.plot([m["step"] for m in metrics], [m["loss"] for m in metrics], color="#b5367a")
    left.set(title="loss", xlabel="step")
    for sigma in levels:
        key = f"rmse_{sigma}"
        found = [(m["step"], m[key]) for m in metrics if m.get(key) is not None]
        right.plot(*zip(*found, strict=True), marker="o", ms=2.5, label=f"σ = {sigma}")
    right.set(title="RMSE of denoised test images", xlabel="step", yscale="log")
    right.legend()
    return fig
