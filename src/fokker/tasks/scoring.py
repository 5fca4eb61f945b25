r"""Scores of the points of a file under a run on a table: a file of one line per point.

Columns are matched by name; others are ignored, and named. Beside the log-density and the outlier
score a line can have an alarm and its reasons (`fokker.metrics.attribution`).
"""

__all__ = ["matched", "reasons_of", "score_lines"]

import math
import torch

from collections.abc import Sequence
from torch import Tensor
from typing import Any

from .options import Scoring
from ..checks import brief
from ..data.table import Table
from ..metrics.attribution import threshold

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
        asked, got, none = (
            brief(", ".join(names), 200)[1:-1] for names in (columns, table.columns, missing)
        )
        raise ValueError(f"expected the columns {asked} in {place}, got {got}: no {none}")
    extra = tuple(name for name in table.columns if name not in columns)
    return table.values[:, [table.columns.index(name) for name in columns]], extra


def reasons_of(parts: Tensor, columns: Sequence[str]) -> list[str]:
    r"""Returns the columns that add most, with their parts in nats, one text per point."""
    found = []
    for row in parts:
        order = row.argsort(descending=True)[:REASONS].tolist()
        found.append("; ".join(f"{columns[j]} {row[j]:+.3g}" for j in order if row[j] > 0))
    return found


def score_lines(
    energy: Any, points: Tensor, scoring: Scoring
) -> tuple[list[str], list[list[str]], list[str]]:
    r"""Returns the names of the cells that are asked for, the cells of each point, and notes.

    Arguments:
        energy: The energy of a table, a `PointEnergy`.
        points: The points, in the units of the table.
        scoring: What is asked for.
    """
    names, cells, notes = [], [[] for _ in points], []
    if scoring.alarm_rate is not None:
        reference = torch.tensor(energy.reference, dtype=torch.float64).sort().values
        limit, error = threshold(reference, scoring.alarm_rate)
        alarms = (energy.surprise(points) > limit).tolist()
        names.append("alarm")
        for line, alarm in zip(cells, alarms, strict=True):
            line.append(str(int(alarm)))
        few = ""
        if len(reference) < math.ceil(1 / scoring.alarm_rate):
            few = f"; {len(reference)} rows are too few for this rate"
        notes.append(
            f"{sum(alarms)} alarms; false-alarm rate {scoring.alarm_rate:g} ± {error:.2g}, from"
            f" {len(reference)} {energy.judges}{few}"
        )
    if scoring.explain:
        names.append("reasons")
        for line, text in zip(
            cells, reasons_of(energy.reasons(points), energy.columns), strict=True
        ):
            line.append(text)
    return names, cells, notes
