r"""The report of a run on a table: what can be said without a truth.

The curve of the NLL is drawn on the rows that chose the weights, beside that of a Gaussian on the
same rows; the numbers are of the test rows, which chose nothing.
"""

__all__ = ["body"]

import numpy as np
import torch

from matplotlib.figure import Figure
from torch import Tensor

from .page import embed, figure, rows
from ...runs.folder import Run
from ...tasks import TableEnergy, TableTask, energies

COLUMNS = 4  # in the pair plot
VALUES = 6  # columns beside an unusual row
UNUSUAL = 12  # rows
SAMPLES = 400
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
        for j in range(n):
            axis = axes[i, j]
            axis.set(xlim=limits[j])
            axis.tick_params(labelsize=7, labelbottom=i == n - 1, labelleft=j == 0 and i > 0)
            if i == n - 1:
                axis.set_xlabel(label(columns[j]))
            if j == 0:
                axis.set_ylabel(label(columns[i]))
            if i == j:
                how = {"bins": bins, "range": limits[i], "density": True}
                axis.hist(values[:, i].numpy(), color=DATA, alpha=0.45, label="data", **how)
                axis.hist(
                    samples[:, i].numpy(), color=MODEL, histtype="step", label="samples", **how
                )
                axis.set(yticks=[])
                continue
            cloud, color = (points, DATA) if i > j else (samples, MODEL)
            axis.scatter(cloud[:, j], cloud[:, i], s=3, color=color, alpha=0.6, linewidths=0)
            axis.set(ylim=limits[i])
    axes[0, 0].legend(fontsize=7, frameon=False)
    return fig


def curves_figure(run: Run, gaussian: float) -> Figure:
    r"""Draws the NLL over the steps, and the loss."""
    fig = figure(9.6, 3.0)
    left, right = fig.subplots(1, 2, width_ratios=(2, 1))
    steps = [line["step"] for line in run.metrics]
    for key, name, color in (
        ("nll_train", "training rows", DATA),
        ("nll_validation", "validation rows", MODEL),
    ):
        left.plot(
            steps, [m[key] for m in run.metrics], marker="o", ms=2.5, color=color, label=name
        )
    left.axhline(gaussian, color="0.4", ls="--", lw=1, label="a Gaussian, validation rows")
    left.axvline(run.chosen, color="0.6", lw=1, label=f"chosen: step {run.chosen}")
    left.set(title="negative log-likelihood, nats", xlabel="step")
    left.legend(fontsize=7, frameon=False)
    right.plot(steps, [m["loss"] for m in run.metrics], marker="o", ms=2.5, color=MODEL)
    right.set(title="loss", xlabel="step")
    return fig


def histogram_figure(logs: dict[str, Tensor]) -> Figure:
    r"""Draws the log-densities of several sets of points, cut below the last percent of all."""
    low, high = np.quantile(torch.cat(list(logs.values())).numpy(), (0.01, 1.0))
    fig = figure(9.6, 2.8)
    axis = fig.subplots()
    for (name, values), color in zip(logs.items(), (DATA, TEST, MODEL), strict=True):
        axis.hist(
            values.clamp_min(float(low)).numpy(), bins=40, range=(low, high), density=True, color=color,
            histtype="step", lw=1.4, label=name,
        )  # fmt: skip
    axis.set(title="log-density, nats", yticks=[])
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    return fig


def unusual(task: TableTask, energy: TableEnergy, logs: Tensor) -> str:
    r"""Returns the table of the rows with the least log-density, by their number in the file."""
    shown, lines = task.columns[:VALUES], []
    for i in logs.argsort()[:UNUSUAL].tolist():
        (part,) = (name for name, which in task.rows.items() if i in which)
        score = float(energy.outlier_score(task.values[i : i + 1]))
        values = (f"{v:.6g}" for v in task.values[i, : len(shown)])
        lines.append([str(i + 1), part, f"{logs[i]:.2f}", f"{score:.3f}", *values])
    return rows(lines, ("row", "part", "log-density", "outlier score", *shown))


def numbers(run: Run, task: TableTask) -> str:
    r"""Returns the table of the judgement of the chosen weights."""
    line = run.judged
    form = lambda key, how: "none" if line[key] is None else format(line[key], how)
    sizes = " / ".join(str(len(which)) for which in task.rows.values())
    gain = None if line["nll_gaussian"] is None else line["nll_gaussian"] - line["nll"]
    return rows([
        ("rows: training / validation / test", sizes),
        ("NLL of the test rows, nats", f"{form('nll', '.3f')} ± {form('nll_error', '.3f')}"),
        ("the same of a Gaussian", form("nll_gaussian", ".3f")),
        ("gain over the Gaussian, nats a row", "none" if gain is None else f"{gain:.3f}"),
        ("NLL of the validation rows, which chose", form("nll_validation", ".3f")),
        ("NLL of as many training rows", form("nll_train", ".3f")),
        ("effective share of the sample for Z", form("ess", ".1%")),
        ("score matching loss, in standard deviations", form("sm_loss", ".2f")),
        ("seconds of training", f"{run.metrics[-1]['seconds']:.1f}"),
    ])


def body(run: Run) -> str:
    r"""Returns the body of the page, and saves its pictures."""
    task, energy = run.task(), run.energy
    if not (isinstance(task, TableTask) and isinstance(energy, TableEnergy)):
        raise ValueError(f"expected a run on a table, got one on {run.config.data}")
    samples, cpu = run.sample(SAMPLES), torch.device("cpu")
    every = -energies(energy, task.values, cpu)
    logs = {
        "training rows": every[task.rows["training"]],
        "test rows": every[task.rows["test"]],
        "samples of the model": -energies(energy, samples, cpu),
    }
    gaussian = task.gaussian(task.validation)
    pairs = embed(
        pair_figure(task.values, samples, task.columns), run.path / "pairs.png", "columns"
    )
    histogram = embed(histogram_figure(logs), run.path / "log_density.png", "log-densities")
    curves = embed(curves_figure(run, gaussian), run.path / "curves.png", "curves of training")
    places = "" if task.dim == 1 else ", the former below the diagonal and the latter above it"
    more = f" Columns after the {COLUMNS}th are not drawn." if task.dim > COLUMNS else ""
    return f"""
<h2>On rows kept aside</h2>
{numbers(run, task)}
<p class="sub">Believe an NLL whose effective share is a few percent or more.</p>
<h2>Data and samples</h2>
{pairs}
<p class="sub">Rows of the table and {SAMPLES} samples of the model, by annealed MALA{places}. Axes hold
99 % of the rows.{more}</p>
<h2>Log-density</h2>
{histogram}
<p class="sub">Where training rows are more likely than test rows, the model knows them by heart.
The first bin also holds all that is below it.</p>
<h2>Training</h2>
{curves}
<h2>Most unusual rows</h2>
{unusual(task, energy, every)}
<p class="sub">Rows count from 1, without a header. The outlier score is the share of test rows that
are more likely.</p>"""
