r"""Scores of the points of a file under a run on a table: a file of one line per point.

Columns are matched by name; others are ignored, and named. Beside the log-density and the outlier
score a line can have an alarm and its reasons (`fokker.metrics.attribution`).
"""

__all__ = ["matched", "reasons", "reasons_of", "score_lines"]

import math
import torch

from collections.abc import Sequence
from torch import Tensor
from typing import Any

from .options import Scoring
from ..data.table import Table
from ..derivatives import value
from ..metrics.attribution import contributions, threshold

REASONS = 3  # columns beside a point
DRAWN = 4096  # points explained at once


def matched(table: Table, columns: Sequence[str], place: str) -> tuple[Tensor, tuple[str, ...]]:
    r"""Returns the columns asked for, in their order, and the names of the others.

    Arguments:
        table: The table.
        columns: The names of the columns.
        place: Where the table is from, in words.
    """
    if missing := [name for name in columns if name not in table.columns]:
        raise ValueError(
            f"expected the columns {', '.join(columns)} in {place}, got"
            f" {', '.join(table.columns)}: no {', '.join(missing)}"
        )
    extra = tuple(name for name in table.columns if name not in columns)
    return table.values[:, [table.columns.index(name) for name in columns]], extra


def reasons(energy: Any, points: Tensor) -> Tensor:
    r"""Returns what each column adds to the energy of points above that of the nearest center of
    the rows, :math:`(N, D)`.

    Arguments:
        energy: The energy of a table, a `TableEnergy`.
        points: The points, in the units of the table.
    """
    means = energy.base.means
    inner = energy.inner(points)
    parts = []
    for z in inner.split(DRAWN):
        start = means.to(z)[torch.cdist(z, means.to(z)).argmin(1)]
        inside = lambda y: value(energy.energy, y)
        parts.append(contributions(inside, z, start).detach())
    return torch.cat(parts).double()


def reasons_of(parts: Tensor, columns: Sequence[str]) -> list[str]:
    r"""Returns the columns that add most, with their parts in nats, one text per point."""
    found = []
    for row in parts:
        order = row.argsort(descending=True)[:REASONS].tolist()
        found.append("; ".join(f"{columns[j]} {row[j]:+.3g}" for j in order if row[j] > 0))
    return found


def score_lines(
    energy: Any, points: Tensor, e: Tensor, scoring: Scoring
) -> tuple[list[str], list[list[str]], list[str]]:
    r"""Returns the names of the cells that are asked for, the cells of each point, and notes.

    Arguments:
        energy: The energy of a table, a `TableEnergy`.
        points: The points, in the units of the table.
        e: Their energies in standardized units.
        scoring: What is asked for.
    """
    names, cells, notes = [], [[] for _ in points], []
    if scoring.alarm_rate is not None:
        reference = torch.tensor(energy.reference, dtype=torch.float64).sort().values
        limit, error = threshold(reference, scoring.alarm_rate)
        alarms = (e > limit).tolist()
        names.append("alarm")
        for line, alarm in zip(cells, alarms, strict=True):
            line.append(str(int(alarm)))
        few = ""
        if len(reference) < math.ceil(1 / scoring.alarm_rate):
            few = f"; {len(reference)} rows are too few for this rate"
        notes.append(
            f"{sum(alarms)} alarms; false-alarm rate {scoring.alarm_rate:g} ± {error:.2g}, from"
            f" {len(reference)} test rows{few}"
        )
    if scoring.explain:
        names.append("reasons")
        for line, text in zip(
            cells, reasons_of(reasons(energy, points), energy.columns), strict=True
        ):
            line.append(text)
    return names, cells, notes
