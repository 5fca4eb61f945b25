"""A new kind of data in one file: windows of a time series.

`WindowData` describes the data, `WindowTask` says how it is loaded, judged, sampled and reported,
and `register` makes both known. After that `fit`, `fokker evaluate`, `fokker sample` and
`fokker report` work on such runs.
Full: about 30 s on one core; --quick: a few steps.
"""

import math
import numpy as np
import sys
import torch

from dataclasses import dataclass
from fokker import Energy, fit
from fokker.app.report import write_report
from fokker.compute.ranks import ALONE, Ranks
from fokker.metrics import score_matching_loss
from fokker.objectives import DenoisingScoreMatching
from fokker.runs.config import Config, Data, Network, Optimization
from fokker.tasks import Line, PointTask, Run, register
from fokker.tasks.reports.page import embed, figure
from pathlib import Path
from tempfile import TemporaryDirectory
from torch import Tensor
from typing import Self


@dataclass(frozen=True)
class WindowData(Data):
    "Windows of a series: a .npy file of one column, and the number of values per window."

    path: str
    length: int = 8

    @property
    def title(self) -> str:
        return Path(self.path).stem


class WindowTask(PointTask):
    "The task of windows: the first 90 % of the series to train on, the rest to judge by."

    kind = "windows of a time series"
    merit = "sm_loss"

    def load(self) -> Self:
        series = torch.from_numpy(np.load(self.config.data.path)).float()
        if not torch.isfinite(series).all():
            raise ValueError(
                f"{self.config.data.path}: expected finite values, got NaN or infinity"
            )
        windows = ((series - series.mean()) / series.std()).unfold(0, self.config.data.length, 1)
        cut = int(0.9 * len(windows))
        self.windows, self.held_out = windows[:cut], windows[cut:]
        self.shape = (self.config.data.length,)
        return self

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(self.windows), (n,), generator=generator, device=generator.device)
        return self.windows.to(generator.device)[rows]

    def judge(self, energy: Energy, device: torch.device, ranks: Ranks = ALONE) -> Line:
        loss = score_matching_loss(energy, self.held_out.to(device))
        return {"sm_loss": loss if math.isfinite(loss) else None}

    def describe(self, line: Line) -> str:
        return f"step {line['step']}: score matching loss {line['sm_loss']} on held-out windows"

    def report(self, run: Run) -> str:
        page, samples = figure(9.6, 3.0), run.sample(20)
        for axis, x, title in zip(
            page.subplots(1, 2), (self.windows[:20], samples), ("data", "samples"), strict=True
        ):
            axis.plot(x.T)
            axis.set_title(title)
        return embed(page, run.path / "windows.png", "windows of the data and samples")


register("windows", WindowData, WindowTask)

if __name__ == "__main__":
    quick = "--quick" in sys.argv
    with TemporaryDirectory() as folder:
        t = torch.arange(3000) / 5
        np.save(Path(folder, "wave.npy"), (torch.sin(t) + 0.1 * torch.randn(3000)).numpy())
        config = Config(
            WindowData(str(Path(folder, "wave.npy"))),
            DenoisingScoreMatching(0.2),
            Network(width=64, confine=3.0),
            Optimization(steps=4 if quick else 1500, batch=256),
            evaluate=2 if quick else 500,
        )
        run = fit(config, Path(folder, "run"))
        print(run.task.describe(run.judged))
        for name, x in (("data", run.loaded().windows), ("samples", run.sample(500))):
            print(f"{name}: neighbors differ by {(x[:, 1:] - x[:, :-1]).std():.2f}")
        print(f"report of {write_report(run).stat().st_size} bytes")
