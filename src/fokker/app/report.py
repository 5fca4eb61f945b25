r"""Reports: one self-contained HTML file per run, to be looked at and passed on.

The task of a run writes the body (`fokker.tasks`): on a 2-D set, the true and the learned density,
the energy with its score, samples and the curves of training; on a table, columns of the data and
of samples, log-densities and the most unusual rows; on images, test images clean, noisy and
denoised. The page adds the title, divergences, diagnostics and the configuration. Pictures are
inside the file; it follows the reader's choice of light or dark.
"""

__all__ = ["Report", "write_report"]

import html
import matplotlib as mpl
import tyro

from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..files import check_place, first_line
from ..runs.loading import load
from ..runs.toml import dumps
from ..tasks import Run
from ..tasks.reports.page import put, rows, writing

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1b1b1f; --paper: #fcfcf9; --line: #d9d9d2; --mute: #666;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --paper: #16171a; --line: #34363b; --mute: #9a9a95; }
}
body { font: 16px/1.5 Georgia, serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.sub { color: var(--mute); margin-top: .2rem; }
img { width: 100%; height: auto; border-radius: 4px; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; }
td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: normal; color: var(--mute); }
td:nth-child(n+2) { font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: .8rem; border: 1px solid var(--line); padding: .8rem; }
"""


@dataclass(frozen=True)
class Report:
    """Write the report of a trained run again."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    fetch: bool = False
    """Fetch the images of the run from the Hugging Face hub if they are not on this machine."""

    def run(self) -> None:
        print(write_report(load(self.run_folder), self.fetch))


def write_report(run: Run, fetch: bool = False) -> Path:
    r"""Writes `report.html` and its pictures into the folder of a run, and returns its path.

    Arguments:
        run: A run. Its energy is moved to the CPU.
        fetch: Whether data that is not on this machine is fetched from the network.
    """
    path = run.path / "report.html"
    with writing(path):  # before any work
        check_place(path)
    run.energy.cpu()
    with mpl.rc_context({"font.size": 9, "font.family": "serif"}):
        task = run.loaded(fetch)
        try:
            return write_page(run, task.report(run))
        except (LookupError, TypeError, ArithmeticError) as error:  # of figures that are odd
            if isinstance(error, FloatingPointError):
                raise
            raise ValueError(
                f"expected metrics as training writes them in {run.path}, got others:"
                f" {first_line(error)}"
            ) from error


def events(run: Run) -> str:
    r"""Returns what went wrong in training, and what was done about it; nothing if nothing did."""
    if not run.events:
        return ""
    lines = []
    for event in run.events:
        done = event["event"] + (f" to step {event['to']}" if "to" in event else "")
        rate = f"{event['rate']:.3g}" if "rate" in event else "–"
        lines.append((str(event["step"]), done, rate, event["reason"]))
    return f"<h2>Divergence</h2>{rows(lines, ('step', 'what was done', 'rate', 'reason'))}"


def history(run: Run) -> str:
    r"""Returns what the run has seen, and the table of its starts; nothing of an older run."""
    if not run.starts:
        return ""
    header = ("start", "step", "minutes before", "commit", "torch", "hardware")
    return (
        f"<h2>History</h2>\n<p>{html.escape(run.history.sentence)}</p>\n"
        f"{rows(run.history.rows, header)}"
    )


def diagnostics(run: Run) -> str:
    r"""Returns the table of the numbers that foresee a divergence, at the last evaluation."""
    labels = {
        "gradient_norm": "norm of the gradient, median",
        "gradient_peak": "norm of the gradient, largest",
        "score_norm": "norm of the score at data",
        "energy_gap": "energy of chains less that of data",
        "acceptance": "acceptance of a Langevin step",
    }
    last = run.metrics[-1] if run.metrics else {}
    found = [(text, last[key]) for key, text in labels.items() if key in last]
    if not found:
        return ""
    lines = [(text, "none" if v is None else f"{v:.4g}") for text, v in found]
    return f"<h2>Diagnostics</h2>{rows(lines)}"


def write_page(run: Run, body: str) -> Path:
    r"""Writes the page of a report, with a body of HTML, and returns its path."""
    kind, name = type(run.config.objective).__name__, html.escape(run.task.title)
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name} · {kind} · fokker</title><style>{STYLE}</style>
<h1>{name}</h1>
<p class="sub">{kind}, {run.step} steps, seed {run.config.seed}, fokker {__version__};
{run.weights}</p>
{events(run)}
{body}
{diagnostics(run)}
{history(run)}
<h2>Configuration</h2>
<pre>{html.escape(dumps(run.config))}</pre>
</html>
"""
    path = run.path / "report.html"
    put(path, page.encode())
    return path
