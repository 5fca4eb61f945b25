r"""The task of a table of points.

A table has few rows, which a network soon knows by heart. `TableTask` standardizes them and splits
them in three: training rows; **validation** rows, by which the weights that a run keeps are chosen;
and **test** rows, by which those are judged. The least of many numbers is too good, so the NLL on the
rows that choose is no measure of a model; that on rows which took no part in it is. It judges by what
can be known without a truth,

.. math:: \mathrm{NLL} = \mathbb{E} \, E(z) + \log Z + \sum_d \log s_d

in nats and in the units of the file, beside that of a single Gaussian. Z is estimated by importance
sampling from Gaussians about the training rows, blurred at three widths, and a wide one, which finds
what mass is far from all rows; `ess`, the effective share of that sample, says whether to believe it
(a few percent or more). A point's **outlier score** is the share of the test rows that are more
likely than it: near 1 for an outlier.
"""

__all__ = ["TableEnergy", "TableTask", "energies"]

import math
import torch
import warnings

from pathlib import Path
from torch import Tensor
from typing import Any

from .base import Task
from ..analytic import GaussianMixture
from ..checks import brief
from ..compute.ranks import ALONE, Ranks
from ..data.table import Standardize, read_table, split
from ..derivatives import EnergyLike, Hutchinson, value
from ..energies import Energy
from ..metrics import log_normalizer, score_matching_loss
from ..runs.config import TableData

FEW = 3  # rows whose mean says little
COLUMNS = 1024  # at most: the proposal for Z has a matrix of them for each center
CENTERS = 200  # training rows in the proposal for Z
DRAWS = 8000  # points of the importance sample
WIDTH = 0.3  # of the Gaussians about them, in standard deviations of the data
FAR, REACH = 0.2, 3.0  # the share of the wide Gaussian in it, and its width


class TableTask(Task):
    r"""Creates the task of a table.

    Arguments:
        data: The file and the share of its rows kept aside.
        seed: The seed of the split.
    """

    criterion = merit = "nll_validation"

    def __init__(self, data: TableData, seed: int) -> None:
        table, self.path = read_table(Path(data.path)), data.path
        self.columns, self.values = table.columns, table.values
        self.dim = len(table.columns)
        if self.dim > COLUMNS:
            raise ValueError(f"{data.path}: expected at most {COLUMNS} columns, got {self.dim}")
        self.shape = (self.dim,)
        if len(table.values) < 3:
            raise ValueError(
                f"{data.path}: expected 3 rows or more to train, validate and test on,"
                f" got {len(table.values)}"
            )
        rows = split(len(table.values), data.held_out, seed)
        self.rows = dict(zip(("training", "validation", "test"), rows, strict=True))
        train, validation, test = (table.values[which] for which in rows)
        try:
            self.standardize = Standardize.fit(train, table.columns)
        except ValueError as error:
            raise ValueError(f"{data.path}, rows to train on: {error}") from None
        self.train, self.validation, self.test = map(self.standardize, (train, validation, test))
        if len(test) < FEW:
            warnings.warn(
                f"{data.path}: expected {FEW} or more rows to judge by, got {len(test)}, and"
                f" {len(validation)} to choose the weights by; the figures say little",
                stacklevel=2,
            )

    def check(self, card: dict[str, Any]) -> None:
        mine, said = self.standardize, (*card["mean"], *card["std"])
        # a sum may round in another order
        near = lambda a, b, s: abs(a - b) <= 1e-9 * s
        same = tuple(card["columns"]) == self.columns
        if not (same and all(map(near, mine.mean + mine.std, said, 2 * mine.std))):
            raise ValueError(f"expected the rows that were trained on, got others in {self.path}")

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        rows = self.train.to(generator.device)
        which = torch.randint(len(rows), (n,), generator=generator, device=rows.device)
        return rows[which]

    def normalizer(self, energy: EnergyLike, device: torch.device) -> tuple[float, float, float]:
        r"""Returns :math:`\log Z` in standardized units, its standard error and the effective share."""
        centers = self.train[:CENTERS].to(device)
        means = torch.cat((centers, centers.new_zeros(1, self.dim)))
        variances, shares = means.new_full((2, len(means)), 1.0)
        variances[:-1], variances[-1] = WIDTH**2, REACH**2
        shares[:-1], shares[-1] = (1 - FAR) / len(centers), FAR
        covariances = variances[:, None, None] * torch.eye(self.dim, device=device)
        proposal = GaussianMixture(means, covariances, shares)
        generator = torch.Generator(device).manual_seed(0)
        log_z, error, ess = map(float, log_normalizer(energy, proposal, DRAWS, generator))
        return log_z, error, ess

    def gaussian(self, points: Tensor) -> float:
        r"""Returns the NLL of standardized points under the Gaussian with the moments of the training
        rows, in the units of the file; NaN if a column follows from others, or rows are too few."""
        x, train = points.double(), self.train.double()
        factor, failed = torch.linalg.cholesky_ex(torch.cov(train.T).reshape(self.dim, self.dim))
        if failed or factor.diagonal().min() < 1e-6:  # no more than the digits of float32
            return math.nan
        z = torch.linalg.solve_triangular(factor, (x - train.mean(0)).T, upper=False)
        constant = self.dim * math.log(2 * math.pi) / 2 + self.standardize.log_volume
        return float(z.square().sum(0).mean() / 2 + factor.diagonal().log().sum()) + constant

    def judge(
        self, energy: Energy, device: torch.device, ranks: Ranks = ALONE
    ) -> dict[str, float | None]:
        return ranks.once(lambda: self.judge_alone(energy, device))

    def judge_alone(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        log_z, error, ess = self.normalizer(energy, device)
        shift = log_z + self.standardize.log_volume
        # as many training rows as validation rows, which come in random order
        train = energies(energy, self.train[: len(self.validation)], device)
        validation = energies(energy, self.validation, device)
        test = energies(energy, self.test, device)
        spread = float(test.std()) if len(test) > 1 else math.nan
        generator = torch.Generator(device).manual_seed(0)
        line = {
            "sm_loss": score_matching_loss(energy, self.test.to(device), Hutchinson(4), generator),
            "nll_train": float(train.mean()) + shift,
            "nll_validation": float(validation.mean()) + shift,
            "nll": float(test.mean()) + shift,
            "nll_error": math.hypot(error, spread / math.sqrt(len(test))),
            "nll_gaussian": self.gaussian(self.test),
            "ess": ess,
        }
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def card(self, energy: Energy, device: torch.device) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "mean": list(self.standardize.mean),
            "std": list(self.standardize.std),
            "log_z": self.normalizer(energy, device)[0],
            # of the test rows, in standardized units
            "energies": energies(energy, self.test, device).sort().values.tolist(),
        }


def energies(energy: EnergyLike, points: Tensor, device: torch.device) -> Tensor:
    r"""Returns the energies of points, :math:`(N, D) \to (N)`, in float64 on the CPU."""
    with torch.no_grad():
        parts = [value(energy, part.to(device)) for part in points.split(8192)]
    return torch.cat(parts).double().cpu()


class TableEnergy(Energy):
    r"""Creates the energy of points in the units of a table, from that of standardized ones.

    It is normalized as well as :math:`\log Z` is known: :math:`E = -\log p`.

    Arguments:
        energy: The energy of standardized points.
        card: What `TableTask.card` returned of it.
    """

    def __init__(self, energy: Energy, card: dict[str, Any]) -> None:
        super().__init__()
        self.energy, self.card, self.columns = energy, card, tuple(card["columns"])
        self.standardize = Standardize(tuple(card["mean"]), tuple(card["std"]))
        self.log_z, self.reference = float(card["log_z"]), [float(e) for e in card["energies"]]
        if len(self.columns) != len(self.standardize.mean) or not self.reference:
            raise ValueError(f"expected a mean of each column and energies, got {brief(card)}")

    def forward(self, x: Tensor) -> Tensor:
        shift = self.log_z + self.standardize.log_volume
        return value(self.energy, self.standardize(x)) + shift

    def outlier_score(self, x: Tensor) -> Tensor:
        r"""Returns the share of the test rows that are more likely than each point."""
        e = energies(self.energy, self.standardize(x), x.device)
        reference = torch.tensor(self.reference, dtype=torch.float64)
        return torch.searchsorted(reference, e).double() / len(reference)
