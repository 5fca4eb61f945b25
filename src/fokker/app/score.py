r"""`fokker score`: points of a file under a run on a table."""

__all__ = ["Score"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..runs.loading import load
from ..tasks.options import Scoring


@dataclass(frozen=True)
class Score:
    """Write the log-density and the outlier score of points under a run on a table."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    points: tyro.conf.Positional[Path]
    """The file of the points, with the columns that were trained on, in any order."""
    out: Path = Path("scores.csv")
    """The file of the scores, .csv: one row per point. Not that of the points."""
    scoring: tyro.conf.OmitArgPrefixes[Scoring] = Scoring()

    def run(self) -> None:
        run = load(self.run_folder)
        print(run.task.score(run, self.points, self.out, self.scoring))
