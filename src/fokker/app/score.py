r"""`fokker score`: points of a file under a run on a table, pictures under one on images."""

__all__ = ["Score"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..runs.loading import load
from ..tasks.options import Scoring


@dataclass(frozen=True)
class Score:
    """Write the log-density and the outlier score of points under a run on a table, or how odd
    pictures are to an energy of images."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder, or the name of a shipped energy."""
    points: tyro.conf.Positional[Path]
    """The file of the points, with the columns that were trained on, in any order; of an energy of
    images a picture, or a folder of pictures."""
    out: Path = Path("scores.csv")
    """The file of the scores, .csv: one row per point or picture. Not that of the points."""
    scoring: tyro.conf.OmitArgPrefixes[Scoring] = Scoring()

    def run(self) -> None:
        run = load(self.run_folder)
        print(run.task.score(run, self.points, self.out, self.scoring))
