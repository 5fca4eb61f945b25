r"""Reports: one self-contained HTML file a run, to be looked at and passed on.

True and learned density side by side, the energy with its score field, samples, the curves of
training, and the numbers against the optimum. Pictures are inside the file; it follows the reader's
choice of light or dark.
"""

__all__ = ["write_report"]

import base64
import html
import io
import matplotlib as mpl
import torch

from matplotlib.figure import Figure
from pathlib import Path
from torch import Tensor
from typing import Any

from . import __version__
from .config import ToyData, dumps
from .data import Planar
from .derivatives import score
from .energies import Energy
from .grid import Grid
from .runs import Run
from .samplers import MALA

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fcfcf9; --line: #d9d9d2; --mute: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --paper: #16171a; --line: #34363b; --mute: #9a9a95; }
}
body { font: 16px/1.5 Georgia, serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.sub { color: var(--mute); margin-top: .2rem; }
img { width: 100%; height: auto; border-radius: 4px; background: #fff; }
table { border-collapse: collapse; margin: .8rem 0; }
td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
td:nth-child(n+2) { font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: .8rem; border: 1px solid var(--line); padding: .8rem; }
"""


def figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def embed(fig: Figure, path: Path, alt: str) -> str:
    r"""Saves a figure as a picture of its own and returns it as an HTML image."""
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=140, format="png")
    path.write_bytes(buffer.getvalue())
    code = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{code}">'


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
    axes[2].set(title="samples (MALA)", xlim=(-half, half), ylim=(-half, half), aspect="equal")
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


def numbers(run: Run) -> str:
    r"""Returns the table of the last judgement."""
    last = run.metrics[-1] if run.metrics else {}
    lines = (
        ("score matching loss", "sm_loss", "{:.2f}"),
        ("its optimum", "optimum", "{:.2f}"),
        ("relative Fisher gap", "fisher_gap", "{:.3%}"),
        ("KL to the truth, nats", "kl", "{:.4f}"),
        ("negative log-likelihood, nats", "nll", "{:.4f}"),
        ("mass off the data", "off_mass", "{:.3%}"),
        ("seconds of training", "seconds", "{:.1f}"),
    )
    cells = [
        (label, form.format(last[key]) if last.get(key) is not None else "none")
        for label, key, form in lines
    ]
    return "<table>" + "".join(f"<tr><td>{a}</td><td>{b}</td></tr>" for a, b in cells) + "</table>"


def write_report(run: Run) -> Path:
    r"""Writes `report.html` and its pictures into the folder of a run.

    Arguments:
        run: A run on a 2-D set.
    """
    if not isinstance(run.config.data, ToyData):
        raise ValueError(f"expected a run on a 2-D set, got one on {run.config.data}")
    data, folder = run.config.data.build(), run.path
    energy = run.energy.cpu()
    generator = torch.Generator().manual_seed(0)
    start = data.sample(1500, generator, dtype=torch.float32)
    chains = MALA((data.scale * max(data.noise, 0.2)) ** 2, warmup=200)
    drawn = chains.run(energy, start, 50, generator)
    with mpl.rc_context({"font.size": 9, "font.family": "serif"}):
        densities = embed(
            density_figure(energy, data, drawn.samples[-1]), folder / "density.png", "densities"
        )
        field = embed(field_figure(energy, data), folder / "field.png", "energy and score")
        curves = embed(curves_figure(run.metrics), folder / "curves.png", "curves of training")
    name, kind = run.config.data.name, type(run.config.objective).__name__
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(name)} · {kind} · fokker</title><style>{STYLE}</style>
<h1>{html.escape(name)}</h1>
<p class="sub">{kind}, {run.step} steps, seed {run.config.seed}, fokker {__version__}</p>
{densities}
<h2>Against the truth</h2>
{numbers(run)}
<p class="sub">Chains of MALA start at data points; their acceptance is {drawn.acceptance.mean:.2f},
of the worst chain {drawn.acceptance.lowest:.2f}.</p>
<h2>Energy and score</h2>
{field}
<h2>Training</h2>
{curves}
<h2>Configuration</h2>
<pre>{html.escape(dumps(run.config))}</pre>
</html>
"""
    path = folder / "report.html"
    path.write_text(page)
    return path
