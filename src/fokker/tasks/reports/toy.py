r"""The figures of a report on a 2-D set: against the truth."""

__all__ = ["curves_figure", "density_figure", "field_figure"]

import torch

from matplotlib.figure import Figure
from torch import Tensor
from typing import Any

from .page import figure
from ...data import Planar
from ...derivatives import score
from ...energies import Energy
from ...grid import Grid


def density_figure(energy: Energy, data: Planar, samples: Tensor) -> Figure:
    r"""Draws the true density, the learned one, and samples of it."""
    half = min(data.box(3.0), 1.5 * 4 * data.scale)
    grid = Grid(-half, half, 240)
    truth = data.density(grid.axis()).numpy()
    e = grid.evaluate(energy, torch.float32).double()
    learned = torch.exp(-e - grid.log_normalizer(e)).reshape(grid.size, grid.size).numpy()
    fig = figure(9.6, 3.4)
    axes = fig.subplots(1, 3)
    extent = (-half, half, -half, half)
    for axis, title, image in (
        (axes[0], "true density", truth),
        (axes[1], "learned density", learned),
    ):
        axis.imshow(image.T, origin="lower", extent=extent, cmap="magma", vmin=0, vmax=truth.max())
        axis.set_title(title)
    axes[2].scatter(samples[:, 0], samples[:, 1], s=1.5, color="#b5367a", alpha=0.7)
    axes[2].set(title="samples", xlim=(-half, half), ylim=(-half, half), aspect="equal")
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    return fig


def field_figure(energy: Energy, data: Planar) -> Figure:
    r"""Draws the energy with its score over it, the true one beside the learned one.

    Energies are cut at 25 nats above the least; arrows are directions, as lengths vary too much.
    """
    half = min(data.box(3.0), 1.5 * 4 * data.scale)
    grid, arrows = Grid(-half, half, 200), Grid(-half, half, 26)
    points = arrows.points(torch.float32)
    truth = -torch.log(data.density(grid.axis()))
    learned = grid.evaluate(energy, torch.float32).reshape(grid.size, grid.size).double()
    fields = [
        ("true energy (bright is likely) and score", truth, data.noise > 0 and data.score(points)),
        ("learned energy and score", learned, score(energy, points)),
    ]
    fig = figure(9.6, 4.9)
    for axis, (title, e, s) in zip(fig.subplots(1, 2), fields, strict=True):
        e = (e - e.min()).clamp_max(25)
        axis.contourf(grid.axis(), grid.axis(), e.T, levels=24, cmap="viridis_r")
        if isinstance(s, Tensor):  # a density that jumps has no score
            unit = s / s.norm(dim=1, keepdim=True).clamp_min(1e-12)
            axis.quiver(*points.T, *unit.T, color="white", scale=40)
        axis.set(title=title, xticks=[], yticks=[], aspect="equal")
        axis.set(xlim=(-half, half), ylim=(-half, half))
    return fig


def curves_figure(metrics: list[dict[str, Any]]) -> Figure:
    r"""Draws the curves of training."""
    fig = figure(9.6, 2.7)
    axes = fig.subplots(1, 4)
    named = (("loss", "loss"), ("fisher_gap", "relative Fisher gap"), ("kl", "KL, nats"),
             ("off_mass", "mass off the data"))  # fmt: skip
    for axis, (key, title) in zip(axes, named, strict=True):
        found = [(m["step"], m[key]) for m in metrics if m.get(key) is not None]
        if found:
            axis.plot(*zip(*found, strict=True), marker="o", ms=2.5, color="#b5367a")
            if key != "loss":
                axis.set_yscale("log")
        axis.set(title=title, xlabel="step")
    return fig
