r"""The tables of the README and the docs, each made from a file in `results/`."""

__all__ = ["OPTIMA_HEADER", "PAPER_TABLE_2", "documents", "optima_rows", "render"]

from collections.abc import Sequence
from pathlib import Path

from . import results

# "Estimated SM loss of learned EBM", Luo et al. 2023, Table 2: DCD-VE, CD, PCD (None: diverged)
PAPER_TABLE_2: dict[str, tuple[float | None, float | None, float | None]] = {
    "swissroll": (-2398.81, None, None),
    "circles": (-131.37, -130.03, -108.54),
    "rings": (-758.33, None, None),
    "moons": (-200.67, -195.72, -193.76),
    "8gaussians": (-120.09, -117.29, -97.59),
    "2spirals": (-470.92, None, None),
    "checkerboard": (-178.43, -67.22, -124.27),
}

# what a Monte-Carlo prototype gave for the optimum, to about 1 %
PROTOTYPE: dict[str, float] = {
    "swissroll": -203,
    "circles": -133,
    "rings": -1245,
    "moons": -209,
    "8gaussians": -122.6,
    "2spirals": -660,
}

OPTIMA_HEADER = ("set", "noise", "exact optimum", "prototype", "paper: DCD", "CD", "PCD")


def number(value: float | None, missing: str = "–") -> str:
    return missing if value is None else f"{value:.2f}".replace("-", "−")


def optima_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the table of optima."""
    lines = []
    for row in rows:
        name = row["data"]
        paper = PAPER_TABLE_2.get(name)
        theirs = ["–"] * 3 if paper is None else [number(v, "+∞") for v in paper]
        rough = PROTOTYPE.get(name)
        prototype = "–" if rough is None else f"{rough:g}".replace("-", "−")
        optimum = number(row["optimum"], "−∞")
        lines.append([name, f"{row['noise']:.3g}", optimum, prototype, *theirs])
    return lines


def documents(root: Path) -> list[Path]:
    r"""Returns the documents that hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def render(text: str, root: Path) -> str:
    r"""Returns a document with its tables made anew from `results/`."""
    rows = lambda name: results.load(root / "results" / f"{name}.json")["rows"]
    tables = {
        "optima": lambda: results.markdown(OPTIMA_HEADER, optima_rows(rows("optima"))),
        "step-time": lambda: results.markdown(STEP_HEADER, step_rows(rows("step_time"))),
    }
    return results.render(text, tables)


STEP_HEADER = (
    "library",
    "step",
    "ms (median)",
    "spread",
    "× torchebm exact SM",
    "× torchebm CD-10",
)


def step_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the table of step times."""
    return [
        [
            row["library"],
            row["name"],
            f"{row['ms']:.0f}",
            f"{row['spread']:.0f}",
            f"{row['x_sm']:.2f}",
            f"{row['x_cd']:.2f}",
        ]
        for row in rows
    ]
