r"""Scores of the points of a file under a run on a table: a file of one line per point.

Columns are matched by name; others are ignored, and named. Beside the log-density, the outlier
score and the p-value a line can have an alarm, its reasons, and what the nearest likely row has
instead (`fokker.metrics.attribution`).
"""

__all__ = ["Reasons", "matched", "reasons_of", "score_lines"]

import math
import torch

from collections.abc import Sequence
from torch import Tensor
from typing import Any, NamedTuple

from .options import Scoring
from ..checks import brief
from ..data.table import Table, shown
from ..metrics.attribution import threshold

REASONS = 3  # columns beside a point


def matched(
    table: Table, columns: Sequence[str], place: str, categories: Sequence[Sequence[str]] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    r"""Returns the columns asked for, in their order, and the names of the others.

    Arguments:
        table: The table.
        columns: The names of the columns.
        place: Where the table is from, in words.
        categories: The texts of each column of categories, whose numbers are returned, -1 for a
            text that is not among them, and none for a column of numbers; none at all if all are
            of numbers.
    """
    if missing := [name for name in columns if name not in table.columns]:
        asked, got, none = (
            brief(", ".join(names), 200)[1:-1] for names in (columns, table.columns, missing)
        )
        raise ValueError(f"expected the columns {asked} in {place}, got {got}: no {none}")
    extra = tuple(name for name in table.columns if name not in columns)
    found = table.select([table.columns.index(name) for name in columns])
    values = found.values.clone()
    for j, name in enumerate(columns):
        known, given = categories[j] if categories else (), found.texts(j)
        whole = ~values[:, j].isnan()
        if bool(known) != bool(given) and whole.any():
            kinds = ("texts", "numbers") if known else ("numbers", "texts")
            raise ValueError(
                f"expected {kinds[0]} in column {brief(name, 40)} of {place}, as in the rows that"
                f" were trained on, got {kinds[1]}"
            )
        if given:
            number = [known.index(text) if text in known else -1 for text in given]
            codes = torch.tensor(number, dtype=values.dtype)
            values[whole, j] = codes[values[whole, j].long()]
    return values, extra


class Reasons(NamedTuple):
    r"""Why points are odd."""

    parts: Tensor  # what each column adds to how odd a point is, (N, D)
    likely: Tensor  # the likely point that it is compared with, in the units of the table, (N, D)


def likely_of(
    found: Reasons, columns: Sequence[str], categories: Sequence[Sequence[str]]
) -> list[str]:
    r"""Returns what the likely points have in the columns that add most, one text per point."""
    texts = categories or [()] * len(columns)
    return [
        "; ".join(f"{columns[j]} {shown(float(near[j]), texts[j])}" for j in largest(row))
        for row, near in zip(*found, strict=True)
    ]


def largest(row: Tensor) -> list[int]:
    r"""Returns the columns that add most to how odd a point is."""
    return [j for j in row.argsort(descending=True)[:REASONS].tolist() if row[j] > 0]


def reasons_of(parts: Tensor, columns: Sequence[str]) -> list[str]:
    r"""Returns the columns that add most, with their parts in nats, one text per point."""
    return ["; ".join(f"{columns[j]} {row[j]:+.3g}" for j in largest(row)) for row in parts]


def score_lines(
    energy: Any, points: Tensor, odd: Tensor, scoring: Scoring
) -> tuple[list[str], list[list[str]], list[str]]:
    r"""Returns the names of the cells that are asked for, the cells of each point, and notes.

    Arguments:
        energy: The energy of a table, a `PointEnergy`.
        points: The points, in the units of the table.
        odd: Their surprise.
        scoring: What is asked for.
    """
    names, cells, notes = [], [[] for _ in points], []
    if scoring.alarm_rate is not None:
        reference = torch.tensor(energy.reference, dtype=torch.float64).sort().values
        limit, error = threshold(reference, scoring.alarm_rate)
        alarms = (odd > limit).tolist()
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
        names += ["reasons", "nearest_likely"]
        found = energy.reasons(points)
        texts = reasons_of(found.parts, energy.columns)
        likely = likely_of(found, energy.columns, energy.categories)
        for line, *pair in zip(cells, texts, likely, strict=True):
            line.extend(pair)
    return names, cells, notes
