r"""The command line: `fokker COMMAND --help`."""

__all__ = ["main"]

import math
import sys
import tyro

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from rich.console import Console
from rich.table import Table
from typing import Annotated

from . import results, tables
from .data import PLANAR


@dataclass(frozen=True)
class Optima:
    """Print the exact score matching optimum of every 2-D set, beside the paper's Table 2."""

    scale: float = 0.25
    """The factor of every set; 1/4 is the scale that explains the paper's table."""
    out: Path | None = None
    """Also write the figures to this JSON file."""

    def run(self) -> None:
        rows = []
        for name, kind in PLANAR.items():
            data = kind(scale=self.scale)
            value = data.optimum()
            rows.append({
                "data": name,
                "scale": self.scale,
                "noise": data.noise,
                "optimum": value if math.isfinite(value) else None,
            })
        if self.out is not None:
            results.save(self.out, rows, f"fokker optima --scale {self.scale} --out {self.out}")
        table = Table(*tables.OPTIMA_HEADER)
        for row in tables.optima_rows(rows):
            table.add_row(*row)
        Console().print(table)


@dataclass(frozen=True)
class Tables:
    """Render the tables of the documents anew from the files in results/."""

    root: Path = Path()
    """The root of the repository."""

    def run(self) -> None:
        for path in tables.documents(self.root):
            text = path.read_text()
            fresh = tables.render(text, self.root)
            path.write_text(fresh)
            print(f"{path}: {'rendered anew' if fresh != text else 'unchanged'}")


Command = (
    Annotated[Optima, tyro.conf.subcommand("optima")]
    | Annotated[Tables, tyro.conf.subcommand("tables")]
)


def main(args: list[str] | None = None) -> None:
    r"""Runs a command. Bad input is one line on stderr and exit code 2."""
    command: Callable = tyro.cli(Command, prog="fokker", description=__doc__, args=args).run
    try:
        command()
    except (ValueError, OSError) as error:
        print(f"fokker: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
