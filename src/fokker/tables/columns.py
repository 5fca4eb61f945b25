r"""Columns: from the table of a user to standardized numbers, and back.

A table is an array :math:`(N, D)` or a pandas frame. Each of its columns becomes one or more
coordinates, in float64:

- **numbers**: :math:`z = (x - m) / s` with the mean and the standard deviation of the training
  rows. Of a column that is constant there, nothing is known of the units in which it varies: a row
  that has its value is at 0, any other at 4 or -4.
- **categories** (text, `category`, booleans in a frame; in an array their numbers): one
  coordinate per category, 1 or 0. Two different categories are as far apart as two average values
  of a number: a squared distance of 2. A category that the training rows do not have is 0 in all
  coordinates.
- **missing values**: a number is replaced by the median of the training rows, and one more
  coordinate says that it was missing, if the training rows have missing values there. A missing
  category is a category of its own.

Columns of a frame are matched by name. Extra columns are ignored with a warning that names them,
missing ones are an error. Columns of texts that tell single rows apart, as names and dates do, are
left out with a warning (`fokker.data.table.identifies`).
"""

__all__ = ["Columns", "Names"]

import numpy as np
import warnings

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import brief
from ..data.table import identifies

STEADY = 1e-15  # a spread below this share of the largest value is rounding
SAME = 1e-9  # the share of a constant that a value may be off and count as it
OFF = 1000.0  # nats by which a row is less likely for each constant that it does not have
OTHER = 4.0  # standardized value of one that differs from a constant
MISSING = "(missing)"


class Names(UserWarning):
    r"""Warns that columns of a frame were ignored."""


def is_frame(x: Any) -> bool:
    r"""Returns whether a table has named columns, as a pandas frame."""
    return hasattr(x, "columns") and hasattr(x, "iloc") and hasattr(x, "dtypes")


@dataclass(frozen=True)
class Number:
    r"""Creates the map of a column of numbers."""

    name: str
    mean: float
    scale: float
    constant: bool
    median: float
    gaps: bool  # whether training rows have missing values

    @property
    def width(self) -> int:
        return 1 + self.gaps

    @classmethod
    def fit(cls, name: str, x: np.ndarray) -> "Number":
        known = x[~np.isnan(x)]
        gaps = len(known) < len(x)
        if not len(known):  # nothing but missing values
            return cls(name, 0.0, 1.0, True, 0.0, gaps)
        unit = float(np.abs(known).max()) or 1.0  # squares of 1e300 overflow
        first = float(known[0])  # an offset, which would cancel
        shift = known / unit - first / unit
        mean, scale = first + float(shift.mean()) * unit, float(shift.std()) * unit
        constant = scale <= STEADY * unit
        if constant:
            mean, scale = first, 1.0
        return cls(name, mean, scale, constant, float(np.median(known)), gaps)

    def decode(self, z: np.ndarray) -> list[Any]:
        x = z[:, 0] * (0.0 if self.constant else self.scale) + self.mean
        return [
            None if self.gaps and row[1] > 0.5 else float(v) for v, row in zip(x, z, strict=True)
        ]


@dataclass(frozen=True)
class Category:
    r"""Creates the map of a column of categories."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.values)

    @classmethod
    def fit(cls, name: str, x: np.ndarray) -> "Category":
        return cls(name, tuple(sorted(set(texts(x)))))

    @property
    def texts(self) -> tuple[str, ...]:
        r"""The categories without the missing one, which is the last."""
        return tuple(value for value in self.values if value != MISSING)

    def codes(self, x: np.ndarray) -> np.ndarray:
        r"""Returns the numbers of categories, -1 for those that are not known."""
        number = {value: k for k, value in enumerate(self.values)}
        return np.array([number.get(value, -1) for value in texts(x)], dtype=float)

    def encode(self, codes: np.ndarray) -> np.ndarray:
        r"""Returns the coordinates of categories by their numbers, NaN for a missing one."""
        if MISSING in self.values:
            codes = np.where(np.isnan(codes), self.values.index(MISSING), codes)
        return (codes[:, None] == np.arange(self.width)).astype(float)

    def decode(self, z: np.ndarray) -> list[Any]:
        return [self.values[k] for k in z.argmax(1)]


def texts(x: np.ndarray) -> list[str]:
    r"""Returns categories as texts; a missing one is a category of its own."""
    return [MISSING if v is None else str(v) for v in x.tolist()]


@dataclass(frozen=True)
class Columns:
    r"""Creates the map of a table."""

    columns: tuple[Number | Category, ...]
    named: bool  # whether by the names of a frame
    owners: tuple[int, ...] = ()  # the column of each coordinate
    left: tuple[str, ...] = ()  # columns of the frame that were left out

    @classmethod
    def fit(
        cls, x: Any, names: Sequence[str] = (), categories: Sequence[Sequence[str]] = ()
    ) -> "Columns":
        r"""Returns the map that the training rows define.

        Arguments:
            x: The rows, an array or a frame.
            names: The names of the columns of an array; x0, x1 and so on if not given.
            categories: The texts of each column of categories of an array, whose values are their
                numbers, and none for a column of numbers; none at all if all are of numbers.
        """
        left: list[str] = []
        if not is_frame(x):
            x = np.asarray(x, dtype=float)
            names = names or [f"x{j}" for j in range(x.shape[1])]
            found = []
            for j, name in enumerate(names):
                if known := tuple(categories[j]) if categories else ():
                    gaps = (MISSING,) if np.isnan(x[:, j]).any() else ()  # the last of them
                    found.append(Category(name, known + gaps))
                else:
                    found.append(Number.fit(name, x[:, j]))
        else:
            found = []
            for j, name in enumerate(x.columns):
                kind = x.iloc[:, j].dtype
                values = x.iloc[:, j]
                if is_number(kind):
                    found.append(Number.fit(str(name), numbers(values, str(name))))
                    continue
                made = Category.fit(str(name), known := labels(values))
                if identifies(len(made.texts), len(known)):
                    left.append(str(name))
                else:
                    found.append(made)
        if left:
            names = brief(", ".join(left))
            if not found:
                raise ValueError(
                    f"expected columns of numbers or of a few categories, got only {names}, of"
                    " texts that tell rows apart: turn them into numbers"
                )
            warnings.warn(
                f"left out, as their texts tell single rows apart: {names}; turn dates into"
                " numbers to keep them",
                Names,
                stacklevel=4,
            )
        owners = tuple(j for j, column in enumerate(found) for _ in range(column.width))
        return cls(tuple(found), is_frame(x), owners, tuple(left))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def constant(self) -> tuple[str, ...]:
        r"""The columns of numbers that are constant in the training rows."""
        return tuple(c.name for c in self.columns if isinstance(c, Number) and c.constant)

    @property
    def log_volume(self) -> float:
        r"""The sum of :math:`\log s` over the columns of numbers that vary."""
        scales = [c.scale for c in self.columns if isinstance(c, Number) and not c.constant]
        return float(np.log(scales).sum()) if scales else 0.0

    def select(self, x: Any) -> Any:
        r"""Returns the columns of a frame in the order of training, matched by name."""
        if not (self.named and is_frame(x)):
            return x
        given = [str(name) for name in x.columns]
        if missing := [name for name in self.names if name not in given]:
            raise ValueError(
                f"expected the columns {brief(', '.join(self.names))}, got no"
                f" {brief(', '.join(missing))}"
            )
        known = {*self.names, *self.left}
        if extra := [name for name in given if name not in known]:
            warnings.warn(f"ignored columns: {brief(', '.join(extra))}", Names, stacklevel=3)
        return x.iloc[:, [given.index(name) for name in self.names]]

    def encode(self, x: Any) -> np.ndarray:
        r"""Returns the coordinates of rows, :math:`(N, d)` in float64."""
        x = self.select(x)
        frame = is_frame(x)
        x = x if frame else np.asarray(x, dtype=float)
        if x.shape[1] != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} columns, got {x.shape[1]}")
        which = [j for j, column in enumerate(self.columns) if isinstance(column, Number)]
        if frame:
            values = [numbers(x.iloc[:, j], self.columns[j].name) for j in which]
            z = np.stack(values, axis=1) if values else np.empty((len(x), 0))
        else:
            z = x if len(which) == x.shape[1] else x[:, which]
        z, unknown = standardized(z, [c for c in self.columns if isinstance(c, Number)])
        if len(which) == len(self.owners):  # nothing but numbers without gaps
            return z
        starts = np.cumsum([0, *(column.width for column in self.columns)])
        out = np.empty((len(x), len(self.owners)))
        out[:, starts[which]] = z
        for k, j in enumerate(which):
            if self.columns[j].width > 1:
                out[:, starts[j] + 1] = unknown[:, k]
        for j, column in enumerate(self.columns):
            if isinstance(column, Category):
                codes = column.codes(labels(x.iloc[:, j])) if frame else x[:, j]
                out[:, starts[j] : starts[j + 1]] = column.encode(codes)
        return out

    def decode(self, z: np.ndarray) -> list[dict[str, Any]]:
        r"""Returns rows in the units of the table, as one dictionary a row."""
        owners = np.array(self.owners)
        lists = [c.decode(z[:, owners == j]) for j, c in enumerate(self.columns)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*lists, strict=True)]

    def numbers(self, z: np.ndarray) -> np.ndarray:
        r"""Returns rows in the units of an array, :math:`(N, D)`, with NaN for missing values and
        the numbers of categories."""
        owners = np.array(self.owners)
        lists = []
        for j, column in enumerate(self.columns):
            inner = z[:, owners == j]
            if isinstance(column, Category):
                codes = inner.argmax(1).astype(float)
                if MISSING in column.values:
                    codes[codes == column.values.index(MISSING)] = np.nan
                lists.append(codes)
            else:
                lists.append(np.array(column.decode(inner), dtype=float))  # NaN for None
        return np.stack(lists, axis=1)

    def gather(self, parts: np.ndarray) -> np.ndarray:
        r"""Returns the sum of parts of coordinates, :math:`(N, d)`, over those of each column."""
        owners = np.array(self.owners)
        return np.stack([parts[:, owners == j].sum(1) for j in range(len(self.columns))], axis=1)


def standardized(x: np.ndarray, columns: Sequence[Number]) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns the standardized values of columns of numbers, and which of them are missing."""
    mean, scale, median = (
        np.array([getattr(c, name) for c in columns]) for name in ("mean", "scale", "median")
    )
    unknown = np.isnan(x)
    z = (np.where(unknown, median, x) if unknown.any() else x) - mean
    z /= scale
    constant = np.array([c.constant for c in columns], dtype=bool)
    if constant.any():
        off = z[:, constant]
        same = np.abs(off) <= SAME * np.abs(mean[constant])
        z[:, constant] = OTHER * np.sign(np.where(same, 0.0, off))
    return z, unknown


def is_number(kind: Any) -> bool:
    r"""Returns whether the dtype of a column of a frame is one of numbers, not of categories."""
    return getattr(kind, "kind", "O") in "iuf" and str(kind) != "category"


def labels(values: Any) -> np.ndarray:
    r"""Returns a column of categories of a frame, with None for missing values."""
    found = values.to_numpy(dtype=object).copy()
    found[np.asarray(values.isna())] = None
    return found


def numbers(values: Any, name: str) -> np.ndarray:
    r"""Returns a column of a frame as float64, with NaN for missing values."""
    try:
        x = values.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers in column {name!r}: {error}") from None
    if np.isinf(x).any():
        raise ValueError(f"expected finite numbers in column {name!r}, got infinity")
    return x
