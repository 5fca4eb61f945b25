r"""`fokker sample`: points or images from a trained run."""

__all__ = ["Sample"]

import tyro

from dataclasses import dataclass

from .guide import Guidance
from ..runs.loading import load
from ..tasks.options import Drawing


@dataclass(frozen=True)
class Sample:
    """Draw from a trained run: points of the learned density, or images from noise."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    drawing: Drawing = Drawing()
    guidance: Guidance = Guidance()

    width: float | None = None
    """The width of the average of the weights, for a run that kept power-function averages."""

    def run(self) -> None:
        run = load(self.run_folder, width=self.width)
        message = run.task.draw(run, self.drawing, self.guidance.find(run))
        if message is not None:
            print(message)
