r"""The page of a report: its look, its pictures, its tables."""

__all__ = ["embed", "figure", "picture", "rows", "write_page"]

import base64
import html
import io

from collections.abc import Iterable, Sequence
from matplotlib.figure import Figure
from pathlib import Path

from ... import __version__
from ...runs.folder import Run
from ...runs.toml import dumps

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
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; }
td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: normal; color: var(--mute); }
td:nth-child(n+2) { font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: .8rem; border: 1px solid var(--line); padding: .8rem; }
"""


def figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def put(path: Path, data: bytes) -> None:
    r"""Writes a file of a report, or says which folder it could not be written to."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(
            f"expected a folder that a report can be written to, got {path.parent}: {error};"
            " the run itself is kept"
        ) from error


def embed(fig: Figure, path: Path, alt: str) -> str:
    r"""Saves a figure as a picture of its own and returns it as an HTML image."""
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=140, format="png")
    put(path, buffer.getvalue())
    code = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{code}">'


def picture(path: Path, alt: str) -> str:
    r"""Returns a PNG file as an HTML image, pixels kept sharp."""
    code = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<img alt="{html.escape(alt)}" style="image-rendering: pixelated"'
        f' src="data:image/png;base64,{code}">'
    )


def rows(lines: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    r"""Returns an HTML table."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    content = [row(header, "th")] if header else []
    content += [row(line, "td") for line in lines]
    return f'<div class="wide"><table>{"".join(content)}</table></div>'


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


def write_page(run: Run, title: str, body: str) -> Path:
    r"""Writes the report of a run, with a body of HTML, and returns its path."""
    kind, name = type(run.config.objective).__name__, html.escape(title)
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name} · {kind} · fokker</title><style>{STYLE}</style>
<h1>{name}</h1>
<p class="sub">{kind}, {run.step} steps, seed {run.config.seed}, fokker {__version__};
{run.weights}</p>
{events(run)}
{body}
{diagnostics(run)}
<h2>Configuration</h2>
<pre>{html.escape(dumps(run.config))}</pre>
</html>
"""
    path = run.path / "report.html"
    put(path, page.encode())
    return path
