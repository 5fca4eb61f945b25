r"""The figures of a report on a table."""

__all__ = ["COLUMNS", "curves_figure", "histogram_figure", "pair_figure", "scores_figure"]

import numpy as np
import torch

from matplotlib.figure import Figure
from torch import Tensor
from typing import Any

from .page import figure
from ...metrics.attribution import threshold

COLUMNS = 4  # in the pair plot
POINTS = 1000  # rows in a scatter plot, at most
DATA, MODEL, TEST = "#3b4a6b", "#b5367a", "#e08a1e"


def label(name: str) -> str:
    r"""Returns the name of a column as a figure may hold it: short, and no formula."""
    short = name if len(name) <= 20 else name[:19] + "…"
    return short.replace("$", r"\$")


def pair_figure(values: Tensor, samples: Tensor, columns: tuple[str, ...]) -> Figure:
    r"""Draws the first columns against one another: data below the diagonal, samples above, the
    histograms of both on it."""
    n = min(COLUMNS, len(columns))
    low, high = np.quantile(values[:, :n].double().numpy(), (0.005, 0.995), axis=0)
    margin = 0.15 * np.maximum(high - low, 1e-6 * (1 + abs(low)))
    limits = list(zip(low - margin, high + margin, strict=True))
    points = values[:: -(-len(values) // POINTS)]
    bins = min(40, 10 + len(values) // 20)
    fig = figure(9.6, 9.6 if n > 2 else 3.2 * n + 0.4)
    axes = fig.subplots(n, n, squeeze=False)
    for i in range(n):
        both = [x[:, i].double().numpy() for x in (values, samples)]
        for j in range(n):
            axis = axes[i, j]
            axis.set(xlim=limits[j])
            axis.tick_params(labelsize=7, labelbottom=i == n - 1, labelleft=j == 0 and i > 0)
            if i == n - 1:
                axis.set_xlabel(label(columns[j]))
            if j == 0:
                axis.set_ylabel(label(columns[i]))
            if i == j:
                options = {"bins": bins, "range": limits[i], "density": True}
                inside = [x[(x >= low[i] - margin[i]) & (x <= high[i] + margin[i])] for x in both]
                if len(inside[0]):  # all of few ones among zeros may lie outside
                    axis.hist(inside[0], color=DATA, alpha=0.45, label="data", **options)
                if len(inside[1]):
                    axis.hist(inside[1], color=MODEL, histtype="step", label="samples", **options)
                axis.set(yticks=[])
                continue
            cloud, color = (points, DATA) if i > j else (samples, MODEL)
            axis.scatter(cloud[:, j], cloud[:, i], s=3, color=color, alpha=0.6, linewidths=0)
            axis.set(ylim=limits[i])
    axes[0, 0].legend(fontsize=7, frameon=False)
    return fig


def curves_figure(metrics: list[dict[str, Any]], chosen: int) -> Figure:
    r"""Draws the held-out divergence over the steps, and the loss.

    Arguments:
        metrics: The lines of the evaluations.
        chosen: The step whose weights were chosen.
    """
    fig = figure(9.6, 3.0)
    left, right = fig.subplots(1, 2, width_ratios=(2, 1))
    judged = [m for m in metrics if "divergence" in m]
    steps = [line["step"] for line in judged]
    for key, name, color in (
        ("divergence_train", "training rows", DATA),
        ("divergence", "validation rows", MODEL),
    ):
        left.plot(steps, [m[key] for m in judged], marker="o", ms=2.5, color=color, label=name)
    left.axvline(chosen, color="0.6", lw=1, label=f"chosen: step {chosen}")
    left.set(title="held-out divergence, up to a constant", xlabel="step")
    left.legend(fontsize=7, frameon=False)
    right.plot(steps, [m["loss"] for m in judged], marker="o", ms=2.5, color=MODEL)
    right.set(title="loss", xlabel="step")
    return fig


def histogram_figure(logs: dict[str, Tensor]) -> Figure:
    r"""Draws the log-densities of several sets of points, cut below the last percent of all."""
    low, high = np.quantile(torch.cat(list(logs.values())).numpy(), (0.01, 1.0))
    fig = figure(9.6, 2.8)
    axis = fig.subplots()
    for (name, values), color in zip(logs.items(), (DATA, TEST, MODEL), strict=True):
        axis.hist(
            values.clamp_min(float(low)).numpy(), bins=40, range=(low, high), density=True,
            color=color, histtype="step", lw=1.4, label=name,
        )  # fmt: skip
    axis.set(title="log-density, nats", yticks=[])
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    return fig


def scores_figure(odd: Tensor, reference: Tensor, judges: str) -> Figure:
    r"""Draws how odd the rows of a table are, beside rows kept aside, with the thresholds of
    false-alarm rates. What is beyond the last percent is in the last bin."""
    both = torch.cat([odd, reference])
    low, high = np.quantile(both.numpy(), (0.0, 0.99))
    limits = {rate: threshold(reference, rate)[0] for rate in (0.05, 0.01)}
    high = max(high, *limits.values(), low + 1e-6 * (1 + abs(low)))
    fig = figure(9.6, 2.8)
    axis = fig.subplots()
    for name, values, color in (("rows of the table", odd, DATA), (judges, reference, TEST)):
        axis.hist(
            values.clamp_max(float(high)).numpy(), bins=40, range=(low, high), density=True,
            color=color, histtype="step", lw=1.4, label=name,
        )  # fmt: skip
    for (rate, limit), style in zip(limits.items(), ("--", "-"), strict=True):
        name = f"false-alarm rate {rate:.0%}"
        axis.axvline(limit, color="0.6", lw=1, ls=style, label=name)
    axis.set(title="surprise, high for odd rows", yticks=[])
    axis.legend(fontsize=8, frameon=False)
    return fig
