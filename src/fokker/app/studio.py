r"""`fokker studio`: a local page to train and look at 2-D energies."""

__all__ = ["Studio"]

from dataclasses import dataclass
from pathlib import Path


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
