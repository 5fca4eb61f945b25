r"""The task of a table whose network is a `Correction`: a mixture of Gaussians, fitted in seconds,
under a learned correction.

This is what `fokker train table` trains. It works on any finite table: columns may be constant,
offset, coarse or heavy-tailed; values may be missing, and columns of a text may be of categories
(`fokker.tables.columns` says how they are taken). Columns of texts that tell single rows apart,
as names and dates do, are left out with a warning. Rows are split as `TableTask` splits them.

- The **mixture** is fitted to the training rows (`fokker.tables.stacking`); it is normalized and
  sampled exactly.
- The **correction** is trained by the objective of the run, the limit form of `LevelDCD`, on
  energies of every noise level; the weights with the least divergence on the validation rows are
  chosen. At the end it is kept if it makes the validation rows more likely by more than two
  standard errors, with :math:`\log Z` found from samples of the mixture
  (`fokker.tables.correction`); if not, the density is the mixture, and :math:`\log Z = 0`.
- **Outliers** are found by the surprise (`fokker.tables.surprise`), which is fitted to all rows
  of the file. The outlier score is the share of held-out rows, each judged by experts that were
  fitted without it, that are less odd.

The test rows judge the density, and take part in nothing but the surprise.
"""

__all__ = ["MixtureEnergy", "MixtureTask"]

import dataclasses
import math
import torch
import warnings

from copy import deepcopy
from functools import cached_property
from pathlib import Path
from torch import Tensor
from typing import Any, Self

from .base import Line, Run
from .scoring import Reasons
from .table import FEW, PointEnergy, TableTask, finite
from ..checks import brief
from ..data.table import Table, read_table, split
from ..energies import Energy
from ..runs.config import Config, Correction, TableData
from ..samplers import Sampled, Verdict
from ..tables.columns import OFF, Category, Columns, Number
from ..tables.correction import draw, tilt
from ..tables.model import TableModel

ERRORS = 2.0  # standard errors by which the correction must be a gain
SHARE = 0.01  # the least effective share of the weights of log Z


class MixtureTask(TableTask):
    r"""Creates the task of a table and its mixture."""

    repeated = 1000
    explained = (
        "The outlier score is the share of held-out rows that are less odd. The reasons are what"
        " columns add to the surprise, above that of the nearest likely row."
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.network, Correction)
        self.correction = config.network
        self.held_out = config.objective

    # --- without data ---

    def cells(self, run: Run, rows: list[list[float]]) -> list[list[Any]]:
        energy = run.energy
        assert isinstance(energy, MixtureEnergy)
        texts = energy.categories or ((),) * len(energy.columns)
        cell = lambda v, t: "" if math.isnan(v) else t[int(v)] if t else v
        return [[cell(v, t) for v, t in zip(row, texts, strict=True)] for row in rows]

    def describe(self, line: Line) -> str:
        said = super().describe(line)
        if "corrected" not in line:
            return said
        kept = "kept" if line["corrected"] else "left out"
        return (
            f"{said}\nthe correction is {kept}: gain on validation rows {line['gain']:+.3f} ±"
            f" {line['gain_error']:.3f} nats"
        )

    def wrap(self, energy: Any, card: Line | None) -> "MixtureEnergy":
        if card is None:
            raise ValueError(
                "expected weights chosen by validation rows, got none: the run was stopped"
                " before its first evaluation; resume it"
            )
        return MixtureEnergy(energy, card, self.correction.level)

    def blank(self, shape: tuple[int, ...], weights: dict[str, Tensor]) -> TableModel:
        return TableModel.of(weights, self.correction.bound)

    def sample(self, run: Run, n: int, seed: int) -> Sampled:
        r"""Returns n points of the learned density, independent and exact, and the verdict on
        them."""
        energy = run.energy
        assert isinstance(energy, MixtureEnergy)
        return energy.sample(n, torch.Generator().manual_seed(seed))

    # --- with data ---

    def load(self) -> Self:
        data, seed = self.source, self.config.seed
        assert isinstance(data, TableData)
        table, self.path = without_identifiers(Path(data.path)), data.path
        self.whole, self.names, self.values = table, table.columns, table.values
        if len(table.values) < FEW:
            raise ValueError(
                f"{data.path}: expected {FEW} rows or more to train, validate and test on, got"
                f" {len(table.values)}"
            )
        rows = split(len(table.values), data.held_out, seed)
        self.rows = dict(zip(("training", "validation", "test"), rows, strict=True))
        train = table.values[rows[0]]
        self.table = Columns.fit(train.numpy(), self.names, table.categories)
        self.every = torch.from_numpy(self.table.encode(table.values.numpy()))
        fitted = self.every[rows[0]]
        self.varies = fitted.amin(0) < fitted.amax(0)
        self.steady = fitted[0].where(~self.varies, math.nan)
        if not self.varies.any():
            raise ValueError(
                f"{data.path}: expected a column that varies, got {len(train)} equal rows to train"
                " on"
            )
        inner = self.every[:, self.varies]
        self.train, self.validation, self.test = (inner[which] for which in rows)
        self.dim = inner.shape[1]
        self.shape = (self.dim,)
        self.log_volume = self.table.log_volume
        return self

    @cached_property
    def start(self) -> TableModel:
        r"""The model at the start of training."""
        correction = self.correction
        return TableModel.fit(
            self.every[self.rows["training"]],
            self.every,
            self.varies,
            correction.width,
            correction.bound,
            self.config.seed,
        )

    def network(self) -> TableModel:
        return deepcopy(self.start)

    def check_card(self, card: Line) -> None:
        if card.get("table") != table_card(self.table, self.steady):
            raise ValueError(f"expected the rows that were trained on, got others in {self.path}")

    def judge_alone(self, energy: Energy, device: torch.device) -> Line:
        # as many training rows as validation rows, which come in random order
        return finite({
            "divergence_train": self.divergence(
                energy, self.train[: len(self.validation)], device
            ),
            "divergence": self.divergence(energy, self.validation, device),
        })

    def card(self, energy: Energy, device: torch.device) -> Line:
        return {"table": table_card(self.table, self.steady)}

    def complete(self, energy: Any, device: torch.device) -> tuple[Line, Line]:
        density = energy.density.to("cpu")
        found = tilt(density, self.correction.level, torch.Generator().manual_seed(0))
        with torch.no_grad():
            gain = -density.correction(self.validation, self.correction.level) - found.log_z
        mean = float(gain.mean())
        error = math.hypot(found.error, float(gain.std(correction=0)) / math.sqrt(len(gain)))
        kept = mean > ERRORS * error and len(gain) > FEW and found.share > SHARE
        energy.to(device)
        card = {
            "corrected": int(kept),
            "log_z": found.log_z if kept else 0.0,
            "log_z_error": found.error if kept else 0.0,
            "unknown": "",
        }
        line = self.likelihood(energy, device, card)
        more = {"corrected": int(kept), "gain": mean, "gain_error": error, "ess": found.share}
        return card, line | more

    def likelihood(self, energy: Any, device: torch.device, card: Line) -> Line:
        inner = Inner(energy, self.correction.level if card["corrected"] else None)
        return super().likelihood(inner.to("cpu"), torch.device("cpu"), card)

    def judge_run(self, run: Run, ranks: Any) -> tuple[Line, list[str]]:
        energy = run.energy
        assert isinstance(energy, MixtureEnergy)
        model = energy.model.to(ranks.device)
        line = {"step": run.chosen, **self.judge(model, ranks.device, ranks)}
        line |= ranks.once(lambda: self.complete(model, ranks.device))[1]
        return line, [self.describe(line), f"by {run.weights}"]

    def pairs(self, samples: Tensor) -> Any:
        from .reports import table as figures

        drawn = [
            j
            for j, column in enumerate(self.table.columns)
            if isinstance(column, Number) and not column.constant
        ][: figures.COLUMNS]
        if not drawn:
            return ""
        data, model = (x[:, drawn] for x in (self.values, samples))
        data, model = (x[~x.isnan().any(1)] for x in (data, model))
        names = tuple(self.names[j] for j in drawn)
        return figures.pair_figure(data, model, names) if len(data) and len(model) else ""

    def trust(self, energy: Any) -> str:
        known = "The density is a mixture of Gaussians: log Z is known exactly."
        if energy.level is not None:
            known = "log Z is found from samples of the mixture under the correction."
        if len(self.table.owners) == len(self.table.columns) and not energy.categories:
            return known
        return (
            f"{known} Each category, and each mark of a missing value, counts as a number that is"
            " 0 or 1: their part of the likelihoods depends on the least width of a Gaussian."
        )


class Inner(Energy):
    r"""Creates the density of standardized columns that vary, up to its constant.

    Arguments:
        model: The model.
        level: The level of the correction; none if it is left out.
    """

    def __init__(self, model: TableModel, level: float | None) -> None:
        super().__init__()
        self.model, self.level = model, level

    def forward(self, x: Tensor) -> Tensor:
        density = self.model.density
        return density.base(x) if self.level is None else density.tilted(x, self.level)


class MixtureEnergy(PointEnergy):
    r"""Creates the energy :math:`E = -\log p` of points in the units of a table.

    Arguments:
        model: The model of standardized points.
        card: What `MixtureTask.card` and `MixtureTask.complete` returned of it.
        level: The level at which the correction is read, if it is kept.
    """

    unknown = ""
    mixed = normalized = True
    judges = "held-out rows"

    def __init__(self, model: TableModel, card: Line, level: float) -> None:
        super().__init__()
        self.model, self.card = model, card
        self.table, self.steady = table_of(card["table"])
        self.varies = self.steady.isnan()
        self.columns = self.table.names
        texts = [c.texts if isinstance(c, Category) else () for c in self.table.columns]
        self.categories = tuple(texts) if any(texts) else ()
        inside = model.density.base.centers.shape[1]
        if len(self.table.owners) != model.rows.shape[1] or int(self.varies.sum()) != inside:
            raise ValueError(
                f"expected a table of {model.rows.shape[1]} columns, {inside} of which vary, got"
                f" {len(self.table.owners)} and {int(self.varies.sum())}"
            )
        self.completed = "corrected" in card  # else training was stopped before its end
        self.level = level if self.completed and card["corrected"] else None
        self.log_z = float(card["log_z"]) if self.completed else 0.0
        self.energy = Inner(model, self.level)
        self.reference = model.reference.tolist()

    def inner(self, x: Tensor) -> Tensor:
        r"""Returns standardized points, :math:`(N, d)` in float64."""
        z = self.table.encode(x.detach().double().cpu().numpy())
        return torch.from_numpy(z).to(x.device)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        off = OFF * (z != self.steady)[:, ~self.varies].to(z).sum(1)
        return self.energy(z[:, self.varies]) + off + self.log_z + self.table.log_volume

    def surprise(self, x: Tensor) -> Tensor:
        r"""Returns how odd points are, by which their outlier scores are ordered."""
        z = self.inner(x)
        return torch.cat([self.model.oddness(part) for part in z.split(8192)])

    def reasons(self, x: Tensor) -> Reasons:
        r"""Returns what each column adds to the surprise of points above that of the nearest
        likely row."""
        found = [self.model.reasons(z) for z in self.inner(x).split(1024)]
        parts, near = (torch.cat(part).numpy() for part in zip(*found, strict=True))
        gathered = torch.from_numpy(self.table.gather(parts))
        return Reasons(gathered, torch.from_numpy(self.table.numbers(near)))

    def sample(self, n: int, generator: torch.Generator) -> Sampled:
        r"""Returns n points and the verdict on them."""
        z = self.steady.expand(n, -1).clone()
        base = self.model.density.base
        if self.level is None:
            z[:, self.varies] = base.sample(n, generator)
            said = f"exact samples of a mixture of {len(base.centers)} Gaussians"
        else:
            z[:, self.varies] = draw(self.model.density, self.level, n, generator)
            said = "samples of a mixture of Gaussians, accepted by the correction"
        points = torch.from_numpy(self.table.numbers(z.numpy()))
        return Sampled(points, Verdict(said, (), {"log_z": self.log_z, "ess": float(n)}))


def without_identifiers(path: Path) -> Table:
    r"""Returns the table of a file without columns of texts that tell single rows apart, and says
    so."""
    table = read_table(path, mixed=True)
    left = table.identifiers()
    if not left:
        return table
    names = ", ".join(table.columns[j] for j in left)
    kept = [j for j in range(len(table.columns)) if j not in left]
    if not kept:
        raise ValueError(
            f"{path}: expected columns of numbers or of a few categories, got only"
            f" {brief(names)}, of texts that tell rows apart: turn them into numbers"
        )
    warnings.warn(
        f"{path}: left out, as their texts tell single rows apart: {brief(names)}; turn dates into"
        " numbers to keep them",
        stacklevel=2,
    )
    return table.select(kept)


def table_card(table: Columns, steady: Tensor) -> Line:
    r"""Returns the map of a table in the types of JSON, and the coordinates that are constant
    (NaN for those that vary)."""
    columns = [list(dataclasses.asdict(column).values()) for column in table.columns]
    columns = [[list(v) if isinstance(v, tuple) else v for v in column] for column in columns]
    values = [None if math.isnan(v) else v for v in steady.tolist()]
    return {"columns": columns, "steady": values}


def table_of(card: Line) -> tuple[Columns, Tensor]:
    r"""Returns the map, and the coordinates that are constant, of which `table_card` returned
    this."""
    found = [column_of(values) for values in card["columns"]]
    owners = tuple(j for j, column in enumerate(found) for _ in range(column.width))
    steady = [math.nan if v is None else v for v in card["steady"]]
    if len(steady) != len(owners) or not all(type(v) is float for v in steady):
        raise ValueError(
            f"expected the value of each of {len(owners)} coordinates that is constant, got"
            f" {brief(card['steady'])}"
        )
    return Columns(tuple(found), False, owners), torch.tensor(steady, dtype=torch.float64)


def column_of(values: list[Any]) -> Number | Category:
    r"""Returns the column whose fields these are."""
    if len(values) == 2:
        name, texts = values
        whole = isinstance(texts, list) and texts and all(type(t) is str for t in texts)
        if type(name) is not str or not whole:
            raise ValueError(f"expected the name and the texts of a column, got {brief(values)}")
        return Category(name, tuple(texts))
    kinds = {"name": str, "constant": bool, "gaps": bool}
    fields = [field.name for field in dataclasses.fields(Number)]
    for name, value in zip(fields, values, strict=True):
        right = type(value) is kinds.get(name, float)
        if not right or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"expected {name} of a column, got {brief(value)}")
    made = Number(*values)
    if not made.scale > 0:
        raise ValueError(f"expected a scale > 0 of column {made.name!r}, got {made.scale}")
    return made
