r"""Tasks: what a run is trained on, and how it is judged.

A 2-D set has an exact density: `ToyTask` draws fresh points forever and judges by Fisher gap, KL and
mass off the data (`fokker.metrics`).

A table has rows: `TableTask` standardizes them, keeps a share aside, and judges by what can be known
without a truth, on the rows kept aside,

.. math:: \mathrm{NLL} = \mathbb{E} \, E(z) + \log Z + \sum_d \log s_d

in nats and in the units of the file, beside that of a single Gaussian. Z is estimated by importance
sampling from Gaussians about the training rows, blurred at three widths; `ess`, the effective share
of that sample, says whether to believe it (a few percent or more). A point's **outlier score** is the
share of the rows kept aside that are more likely than it: near 1 for an outlier.
"""

__all__ = ["TableTask", "Task", "ToyTask", "task_of"]

import abc
import json
import math
import torch

from dataclasses import dataclass
from pathlib import Path
from torch import Tensor
from typing import Any

from .analytic import GaussianMixture
from .config import Config, TableData, ToyData
from .data import Planar
from .data.table import Standardize, read_table, split
from .derivatives import EnergyLike, Hutchinson, value
from .energies import Energy
from .metrics import evaluate_planar, log_normalizer, score_matching_loss

CENTERS = 200  # training rows in the proposal for Z
DRAWS = 8000  # points of the importance sample
WIDTH = 0.3  # of the Gaussians about them, in standard deviations of the data


class Task(abc.ABC):
    r"""Abstract task."""

    dim: int  # of a point

    @abc.abstractmethod
    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Returns n training points, :math:`(n, D)` in float32, on the device of the generator."""

    @abc.abstractmethod
    def judge(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        r"""Returns how good an energy is; `None` where there is no answer."""

    def record(self, folder: Path, energy: Energy, device: torch.device) -> None:  # noqa: B027
        r"""Writes what reading the run needs beside its weights; nothing by default."""


@dataclass(frozen=True)
class ToyTask(Task):
    r"""Creates the task of a 2-D set."""

    data: Planar
    dim: int = 2

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        return self.data.sample(n, generator, generator.device, torch.float32)

    def judge(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        report = evaluate_planar(energy, self.data, device=device)
        return {k: v if math.isfinite(v) else None for k, v in report._asdict().items()}


class TableTask(Task):
    r"""Creates the task of a table.

    Arguments:
        data: The file and the share of its rows kept aside.
        seed: The seed of the split.
    """

    def __init__(self, data: TableData, seed: int) -> None:
        table = read_table(Path(data.path))
        train, held = split(table.values, data.held_out, seed)
        self.columns, self.dim = table.columns, train.shape[1]
        self.standardize = Standardize.fit(train, table.columns)
        self.train, self.held = self.standardize(train), self.standardize(held)

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        rows = self.train.to(generator.device)
        which = torch.randint(len(rows), (n,), generator=generator, device=rows.device)
        return rows[which]

    def normalizer(self, energy: EnergyLike, device: torch.device) -> tuple[float, float, float]:
        r"""Returns :math:`\log Z` in standardized units, its standard error and the effective share."""
        centers = self.train[:CENTERS].to(device)
        generator = torch.Generator(device).manual_seed(0)
        found = log_normalizer(energy, GaussianMixture(centers, WIDTH**2), DRAWS, generator)
        log_z, error, ess = (float(v) for v in found)
        return log_z, error, ess

    def judge(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        held = self.held.to(device)
        log_z, error, ess = self.normalizer(energy, device)
        with torch.no_grad():
            e = value(energy, held).double()
        covariance = torch.cov(self.train.double().T).reshape(self.dim, self.dim)
        normal = torch.distributions.MultivariateNormal(self.train.double().mean(0), covariance)
        gaussian = -normal.log_prob(self.held.double()).mean()
        generator = torch.Generator(device).manual_seed(0)
        sm = score_matching_loss(energy, held, Hutchinson(4), generator)
        volume = self.standardize.log_volume
        line = {
            "sm_loss": sm,
            "nll": float(e.mean()) + log_z + volume,
            "nll_error": math.hypot(error, float(e.std()) / math.sqrt(len(e))),
            "nll_gaussian": float(gaussian) + volume,
            "ess": ess,
        }
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def record(self, folder: Path, energy: Energy, device: torch.device) -> None:
        with torch.no_grad():
            e = value(energy, self.held.to(device)).double().cpu()
        content = {
            "columns": list(self.columns),
            "mean": list(self.standardize.mean),
            "std": list(self.standardize.std),
            "log_z": self.normalizer(energy, device)[0],
            "energies": sorted(e.tolist()),  # of the rows kept aside, in standardized units
        }
        partial = folder / "table.partial"
        partial.write_text(json.dumps(content, allow_nan=False))
        partial.replace(folder / "table.json")


def task_of(config: Config) -> Task:
    r"""Returns the task of a configuration."""
    if isinstance(config.data, ToyData):
        return ToyTask(config.data.build())
    return TableTask(config.data, config.seed)


class TableEnergy(Energy):
    r"""Creates the energy of points in the units of a table, from that of standardized ones.

    It is normalized as well as :math:`\log Z` is known: :math:`E = -\log p`.

    Arguments:
        energy: The energy of standardized points.
        card: The content of `table.json`.
    """

    def __init__(self, energy: Energy, card: dict[str, Any]) -> None:
        super().__init__()
        self.energy, self.columns = energy, tuple(card["columns"])
        self.standardize = Standardize(tuple(card["mean"]), tuple(card["std"]))
        self.log_z, self.reference = float(card["log_z"]), list(card["energies"])

    def forward(self, x: Tensor) -> Tensor:
        shift = self.log_z + self.standardize.log_volume
        return value(self.energy, self.standardize(x)) + shift

    def outlier_score(self, x: Tensor) -> Tensor:
        r"""Returns the share of the rows kept aside that are more likely than each point."""
        with torch.no_grad():
            e = value(self.energy, self.standardize(x)).double().cpu()
        reference = torch.tensor(self.reference, dtype=torch.float64)
        return torch.searchsorted(reference, e).double() / len(reference)
