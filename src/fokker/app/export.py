r"""`fokker export`: a shipped energy from a run."""

__all__ = ["Export"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..files import read_regular
from ..runs import shipped
from ..runs.loading import load

NOTE = 2**20  # bytes of a note


@dataclass(frozen=True)
class Export:
    """Make a shipped energy from a run: its average weights in bfloat16, with a card and
    checksums."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    name: tyro.conf.Positional[str]
    """The name of the energy, for fokker.load and fokker sample."""
    to: Path | None = None
    """The folder of the energies; that of the package if not given."""
    note: Path | None = None
    """A file whose text goes into the card, such as the figures measured."""
    width: float | None = None
    """The width of the average of the weights, for a run that kept power-function averages."""

    def run(self) -> None:
        text = "" if self.note is None else read_regular(self.note, NOTE).decode()
        folder = shipped.export(
            load(self.run_folder, width=self.width), self.name, self.to or shipped.ROOT, text
        )
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{folder}: {size / 2**20:.2f} MiB")
