r"""The task of a 2-D set, whose density is exact.

Points are fresh at every step; an energy is judged by Fisher gap, KL and mass off the data
(`fokker.metrics`). Samples are exact: drawn by inversion on the square on which the run is judged.
"""

__all__ = ["ToyTask"]

import math
import torch

from torch import Tensor
from typing import Self

from .base import Line, Plane, PointTask, Run
from ..compute.fitting import check_scale
from ..compute.ranks import ALONE, Ranks
from ..energies import Energy
from ..grid import Grid
from ..metrics import evaluate_planar
from ..metrics.density import square
from ..runs.config import Config, ToyData
from ..samplers import Sampled, draw

DRAWN = 1500  # samples in the report
SHOWN, SCORED = 2000, 250  # points in the studio, and how many of them have their score compared
NUMBERS = (
    ("score matching loss", "sm_loss", ".2f"),
    ("its optimum", "optimum", ".2f"),
    ("relative Fisher gap", "fisher_gap", ".3%"),
    ("KL to the truth, nats", "kl", ".4f"),
    ("negative log-likelihood, nats", "nll", ".4f"),
    ("mass off the data", "off_mass", ".3%"),
    ("seconds of training", "seconds", ".1f"),
)


class ToyTask(PointTask):
    r"""Creates the task of a 2-D set."""

    kind = "a 2-D set"
    merit = "kl"
    shape = (2,)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, ToyData)
        self.data = config.data.build()

    def load(self) -> Self:
        check_scale(self.data.sample(1000, torch.Generator().manual_seed(0)))
        return self

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        return self.data.sample(n, generator, generator.device, torch.float32)

    def judge(self, energy: Energy, device: torch.device, ranks: Ranks = ALONE) -> Line:
        def alone() -> Line:
            report = evaluate_planar(energy, self.data, device=device)
            return {k: v if math.isfinite(v) else None for k, v in report._asdict().items()}

        return ranks.once(alone)

    def describe(self, line: Line) -> str:
        show = lambda key, form: "none" if line.get(key) is None else format(line[key], form)
        return (
            f"step {line['step']}: Fisher gap {show('fisher_gap', '.2%')}, KL"
            f" {show('kl', '.4f')} nats,"
            f" off the data {show('off_mass', '.2%')}"
        )

    def sample(self, run: Run, n: int, seed: int) -> Sampled:
        generator = torch.Generator().manual_seed(seed)
        return draw(run.energy, n, dim=2, generator=generator, grid=square(self.data))

    def report(self, run: Run) -> str:
        from .reports import toy as figures
        from .reports.page import embed, rows

        assert isinstance(run.energy, Energy)
        data, last, path = self.data, run.judged, run.path
        density = figures.density_figure(run.energy, data, run.sample(DRAWN))
        numbers = rows([
            (label, "none" if last.get(key) is None else format(last[key], form))
            for label, key, form in NUMBERS
        ])
        return f"""{embed(density, path / "density.png", "densities")}
<h2>Against the truth</h2>
{numbers}
<p class="sub">The {DRAWN} samples are exact and independent: drawn on a grid, with a rejection
step.</p>
<h2>Energy and score</h2>
{embed(figures.field_figure(run.energy, data), path / "field.png", "energy and score")}
<h2>Training</h2>
{embed(figures.curves_figure(run.metrics), path / "curves.png", "curves of training")}"""

    def plane(self) -> Plane:
        data, generator = self.data, torch.Generator().manual_seed(self.config.seed)
        x = data.sample(SHOWN, generator, dtype=torch.float32)

        def true_energy(grid: Grid) -> Tensor:
            return -torch.log(data.density(grid.axis()).flatten().clamp_min(1e-300))

        return Plane(
            half=min(1.1 * data.box(3.0), 6 * data.scale),
            step=(0.5 * data.scale * max(data.noise, 0.1)) ** 2,
            data=x,
            scores=data.score(x[:SCORED]) if data.noise > 0 else None,
            true_energy=true_energy,
            exact=True,
            units=lambda x: x,
            rows={},
        )
