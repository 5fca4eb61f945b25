r"""`fokker evaluate`: how good a trained run is."""

__all__ = ["Evaluate"]

import json
import tyro

from dataclasses import dataclass

from .guide import Guidance
from .. import checks
from ..compute.ranks import join
from ..runs.loading import load
from ..tasks.options import Evaluation


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained run: against the exact density, on the test rows, or by denoising and
    samples."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    json: bool = False
    """Print JSON."""
    evaluation: Evaluation = Evaluation()
    guidance: Guidance = Guidance()
    widths: tuple[float, ...] = ()
    """The widths of averages of the weights, each judged in turn, for a run that kept
    power-function averages."""
    fetch: bool = False
    """Fetch the images of the run from the Hugging Face hub if they are not on this machine."""
    device: str | None = None
    """The device; that of the run if not given."""

    def run(self) -> None:
        evaluation, name = self.evaluation, self.guidance.guide
        if name is not None and evaluation.fid is None:
            raise ValueError(f"expected --fid with --guide, whose samples it judges, got {name}")
        evaluation.check()  # before anything is computed
        for width in self.widths or (None,):
            self.judge(width)

    def judge(self, width: float | None) -> None:
        r"""Judges the run with one average of its weights, and prints what was found."""
        run = load(self.run_folder, width=width)
        guide = self.guidance.find(run)
        with join(checks.device(self.device or run.config.device)) as ranks:
            task = ranks.each(lambda: run.loaded(self.fetch))
            line, words = task.evaluate(run, self.evaluation, guide, ranks)
        if run.starts:
            line, words = line | run.history.figures, [*words, run.history.sentence]
        if width is not None:
            line |= {"width": width}
        if ranks.first:
            print(json.dumps(line) if self.json else "\n".join(words))
