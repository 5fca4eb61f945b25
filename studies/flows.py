r"""How far samples are from where the flow leads, and what each method asks of the network for it.

Images of an energy of every level are drawn from the same noise with few steps and with many of
Heun's, which stand for the exact flow; the error is the RMSE of their pixels, in [−1, 1].

**Schedules.** With 8, 12 or 16 evaluations an image the levels matter. Each method with each
exponent :math:`\rho` and each last level of EDM's ladder is measured in the same way; the exact
flow ends at the lowest level. The best of them is marked `chosen`. An energy that is known, such
as that of a mixture, can be measured as well (`measure`).

    fokker reproduce flows --out results/flows.json
"""

__all__ = ["SCHEDULED", "TRIALS", "Schedule", "choose", "draw", "measure", "run", "schedules"]

import math
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fokker import load
from fokker.compute.field import field_of
from fokker.pace import Pace
from fokker.samplers import FLOWS, Field, karras
from fokker.tasks.trained import check_trained
from pathlib import Path
from torch import Tensor

from . import results

TRIALS = (
    ("euler", 35), ("heun", 9), ("heun", 12), ("heun", 18),
    ("multistep", 12), ("multistep", 18), ("multistep", 24), ("multistep", 35),
    ("multistep3", 12), ("multistep3", 18), ("multistep3", 24), ("multistep3", 35),
)  # fmt: skip
SCHEDULED = (8, 12, 16)  # evaluations
RHOS = (3.0, 5.0, 7.0, 9.0)
LOWEST = (0.002, 0.01, 0.03)  # last levels
USUAL = {"suite": "methods", "rho": 7.0, "sigma_min": 0.002}  # of rows that do not say
FLOW = karras(18)  # its ends are those of the exact flow


@dataclass(frozen=True)
class Schedule:
    r"""A method and its levels."""

    sampler: str
    steps: int
    rho: float = 7.0
    sigma_min: float = 0.002

    @property
    def levels(self) -> tuple[float, ...]:
        return karras(self.steps, self.sigma_min, FLOW[0], self.rho)

    @property
    def evaluations(self) -> int:
        r"""The number of evaluations, a sample."""
        return FLOWS[self.sampler](self.levels).evaluations


def schedules(
    evaluations: Sequence[int] = SCHEDULED,
    samplers: Sequence[str] = ("heun", "multistep", "multistep3"),
    rhos: Sequence[float] = RHOS,
    lowest: Sequence[float] = LOWEST,
) -> list[Schedule]:
    r"""Returns the schedules with at most so many evaluations, and nearest to them."""
    found = []
    for n in evaluations:
        for sampler in samplers:
            slopes = FLOWS[sampler].slopes
            steps = (n - 1) // slopes + 1
            found += [Schedule(sampler, steps, rho, low) for rho in rhos for low in lowest]
    return list(dict.fromkeys(found))


def draw(
    field: Field, schedule: Schedule, n: int, shape: Sequence[int], device: str = "cpu"
) -> Tensor:
    r"""Returns n samples of a schedule, the same noise for all schedules."""
    flow, seed = FLOWS[schedule.sampler](schedule.levels), torch.Generator().manual_seed(0)
    options = {"batch": min(n, 250), "device": device, "dtype": torch.get_default_dtype()}
    return flow.run(field, n, shape, seed, **options).samples


def measure(
    field: Field,
    trials: Sequence[Schedule],
    n: int,
    shape: Sequence[int],
    fine: int = 100,
    device: str = "cpu",
    limit: Callable[[Tensor], Tensor] = lambda x: x.clamp(-1, 1),
    progress: Callable[[str], None] = lambda text: None,
) -> list[results.Row]:
    r"""Returns the error of schedules against the exact flow, a row each.

    Arguments:
        field: The field of the energy.
        trials: The schedules.
        n: The number of samples.
        shape: The shape of a sample.
        fine: The steps of Heun's method that stand for the exact flow.
        device: The device of the energy.
        limit: What is done to samples before they are compared.
        progress: Called with a line for each schedule.
    """
    reference = Schedule("heun", fine)
    exact, rows = limit(draw(field, reference, n, shape, device)), []
    for trial in trials:
        found = limit(draw(field, trial, n, shape, device))
        error = math.sqrt(float((found - exact).square().mean()))
        row = {"sampler": trial.sampler, "steps": trial.steps, "error": error}
        row |= {"evaluations": trial.evaluations, "rho": trial.rho, "sigma_min": trial.sigma_min}
        rows.append(row | {"images": n, "fine": reference.evaluations})
        text = f"{trial.steps} steps of {trial.sampler}, rho {trial.rho:g}, to {trial.sigma_min:g}"
        progress(f"{text}: {error:.4f}")
    return rows


def choose(
    rows: Sequence[results.Row], evaluations: Sequence[int] = SCHEDULED
) -> dict[int, results.Row]:
    r"""Returns the row with the least error within each number of evaluations that is measured."""
    found, least = {}, 0
    for n in sorted(evaluations):
        within = [row for row in rows if row["evaluations"] <= n]
        if any(row["evaluations"] > least for row in within):
            found[n] = min(within, key=lambda row: row["error"])
        least = n
    return found


def run(
    names: Sequence[str],
    trials: Sequence[Schedule],
    images: int,
    fine: int,
    device: str,
    progress: Callable[[str], None],
    suite: str = "methods",
    units: Pace | None = None,
) -> list[results.Row]:
    r"""Returns the rows of runs, or of energies that come with the package."""
    rows = []
    for name in names:
        trained = load(name)
        check_trained(trained)
        field = field_of(
            trained.energy_on(device, exact=True), device, units.done if units else lambda: None
        )
        say = lambda text, name=name: progress(f"{name}, {text}")
        found = measure(field, trials, images, trained.shape, fine, device, progress=say)
        rows += [{"suite": suite, "run": trained.path.name, **row} for row in found]
    return rows


def add(out: Path, fresh: Sequence[results.Row], device: str) -> list[results.Row]:
    r"""Puts rows into a file, in the place of those of the same schedules; returns all."""
    fields = ("suite", "run", "sampler", "steps", "rho", "sigma_min")
    key = lambda row: tuple((USUAL | row)[field] for field in fields)
    before = results.rows_of(results.load(out)) if out.exists() else []
    fresh = [{**row, **results.provenance(device)} for row in fresh]
    new = {key(row) for row in fresh}
    rows = [row for row in before if key(row) not in new] + fresh
    where = "; ".join(sorted({row["hardware"] for row in rows}))
    results.save(out, rows, "fokker reproduce flows", where=where)
    return rows
