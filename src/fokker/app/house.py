r"""`fokker export | doctor | studio`: what is around a run."""

__all__ = ["Doctor", "Export", "Studio"]

import json
import tyro

from dataclasses import dataclass
from pathlib import Path

from ..runs.folder import load


@dataclass(frozen=True)
class Export:
    """Make a shipped energy of a run: its average weights in bfloat16, with a card and checksums."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    name: tyro.conf.Positional[str]
    """The name of the energy, for fokker.load and fokker sample."""
    to: Path | None = None
    """The folder of the energies; that of the package if not given."""
    note: Path | None = None
    """A file whose text goes into the card, such as the figures measured."""

    def run(self) -> None:
        from ..runs import shipped

        text = "" if self.note is None else self.note.read_text()
        folder = shipped.export(load(self.run_folder), self.name, self.to or shipped.ROOT, text)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{folder}: {size / 2**20:.2f} MiB")


@dataclass(frozen=True)
class Doctor:
    """Print what this machine has for fokker, and what is missing. Nothing is downloaded."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from .doctor import examine, lines

        found = examine()
        print(json.dumps(found, indent=2) if self.json else "\n".join(lines(found)))


@dataclass(frozen=True)
class Studio:
    """Train and look at 2-D energies on a local page; pip install 'fokker[studio]'."""

    port: int = 8377
    """The port on this machine; 0 for any that is free."""
    browser: bool = True
    """Open the page in a browser."""
    runs: Path = Path("runs")
    """The folder that runs are exported to."""

    def run(self) -> None:
        from ..studio.server import serve

        serve(self.port, self.browser, self.runs)
