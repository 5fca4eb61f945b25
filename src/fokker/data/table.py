r"""Tables: a user's own points, one a row, read from a file.

A model is trained on the standardized points :math:`z_d = (x_d - m_d) / s_d`, with m and s the
mean and the std of each column of the training rows. Its density in the units of the file follows
from the change of variables,

.. math:: \log p_x(x) = \log p_z(z) - \sum_d \log s_d .

===========================  ===================================================================
suffix                       content
===========================  ===================================================================
``.csv``, ``.tsv``           UTF-8 text, columns separated by commas, tabs or semicolons
``.npy``                     an array :math:`(N, D)`, or :math:`(N)` for a single column
``.parquet``                 columns of numbers
===========================  ===================================================================

The first line of a text is a header if none of its cells is a number; columns without names are
called `x0`, `x1` and so on. Blank lines are left out before the first row and after the last.
Nothing else is skipped, filled in or replaced: a cell that is not a finite number is an error that
names the file, the line or row and the column, all counted from 1.

Shapes: points are :math:`(N, D)`, with :math:`N \geq 2` rows and :math:`D \geq 1` columns.
"""

__all__ = ["Standardize", "Table", "read_table", "split"]

import csv
import io
import math
import numpy as np
import torch

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from torch import Tensor

from .. import checks

LIMIT = (2 - 2**-24) * 2.0**127  # from here on a number rounds to infinity in float32
MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")


@dataclass(frozen=True, eq=False)
class Table:
    r"""Creates a table.

    Arguments:
        values: The points, finite, with shape :math:`(N, D)`.
        columns: The names of the D columns.
    """

    values: Tensor
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        shape = checks.points(self.values, "values").shape
        if len(shape) != 2 or shape[1] != len(self.columns):
            raise ValueError(
                f"expected values of shape (N, {len(self.columns)}) for columns"
                f" {', '.join(self.columns)}, got shape {tuple(shape)}"
            )


def read_table(path: Path) -> Table:
    r"""Reads a table from a file, by its suffix.

    Numbers are parsed in float64 and stored in float32, which keeps seven digits: subtract from
    a column such as a date in seconds (1.7e9) its offset before it is saved.

    Arguments:
        path: A file `.csv`, `.tsv`, `.npy` or `.parquet`.

    Returns:
        The table, whose values have shape :math:`(N, D)`.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected a file {', '.join(READERS)}, got {path.suffix!r}")
    values, columns = reader(path)
    if len(values) < 2:
        raise ValueError(f"{path}: expected 2 rows or more, got {len(values)}")
    return Table(torch.from_numpy(values.astype(np.float32)), columns)


def numbered(d: int) -> tuple[str, ...]:
    r"""Returns the names of D columns without names."""
    return tuple(f"x{j}" for j in range(d))


def named(place: str, names: Sequence[str]) -> tuple[str, ...]:
    r"""Returns the names of the columns if there are any, none is empty and all are different."""
    if not names:
        raise ValueError(f"{place}: expected one column or more, got none")
    for j, name in enumerate(names):
        if not name:
            raise ValueError(f"{place}, column {j + 1}: expected a name, got an empty one")
        if name in names[:j]:
            first = names.index(name) + 1
            raise ValueError(
                f"{place}, column {j + 1}: expected different names, got {name!r} again, which is"
                f" column {first}"
            )
    return tuple(names)


def number(text: str) -> float:
    r"""Returns the number that a cell spells, without Python's `1_000`."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def is_number(text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True


def fault(text: str) -> str:
    r"""Returns what is wrong with a cell that is not a finite number of float32."""
    shown = repr(text if len(text) <= 40 else text[:37] + "...")
    if text.strip().lower() in MISSING:
        return f"expected a finite number, got a missing value, {shown}"
    if not is_number(text):
        return f"expected a number, got the text {shown}"
    if "inf" in text.lower():
        return f"expected a finite number, got {shown}"
    return f"expected a number that float32 holds, below {LIMIT:.3g} in size, got {shown}"


def read_text(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise ValueError(f"{path}, line {line}: expected UTF-8, got the byte {byte:#x}") from None

    first, columns, line, values = 0, (), 0, array("d")
    try:
        for line, cells in records(text, separator(text)):
            if not first:
                first, numbers = line, [is_number(cell) for cell in cells]
                columns = numbered(len(cells))
                if not any(numbers):
                    columns = named(f"{path}, line {line}", [cell.strip() for cell in cells])
                    continue
                if not all(numbers):
                    raise ValueError(
                        f"{path}, line {line}: expected a header without numbers or a row of"
                        f" numbers, got both, {cells[numbers.index(False)]!r} and"
                        f" {cells[numbers.index(True)]!r}"
                    )
            if len(cells) != len(columns):
                raise ValueError(
                    f"{path}, line {line}: expected {len(columns)} cells as in line {first}, got"
                    f" {len(cells) or 'a blank line'}"
                )
            for j, cell in enumerate(cells):
                if not (is_number(cell) and abs(value := number(cell)) < LIMIT):
                    place = f"{path}, line {line}, column {j + 1} ({columns[j]!r})"
                    raise ValueError(f"{place}: {fault(cell)}")
                values.append(value)
    except csv.Error as error:
        raise ValueError(f"{path}, after line {line}: expected cells, got {error}") from None

    if not first:
        raise ValueError(f"{path}: expected rows of numbers, got an empty file")
    if not values:
        raise ValueError(f"{path}: expected rows below the header of line {first}, got none")
    return np.frombuffer(values).reshape(-1, len(columns)), columns


def records(text: str, delimiter: str, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    r"""Yields each record of a text with its first line, less blank lines before and after."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    line, blank, begun = 1, 0, False
    for cells in reader:
        if not cells or (len(cells) == 1 and cells[0].isspace()):
            blank = blank or line
        else:
            if begun and blank:
                yield blank, []
            yield line, cells
            blank, begun = 0, True
        line = reader.line_num + 1


def separator(text: str) -> str:
    r"""Returns what separates the columns: a comma only where no tab or semicolon does."""
    for mark in "\t;":
        for _, cells in records(text, mark, strict=False):
            if len(cells) > 1:
                return mark
            break
    return ","


@contextmanager
def decoding(path: Path) -> Iterator[io.BufferedReader]:
    r"""Opens a binary file. What its library raises on damaged bytes becomes a `ValueError`."""
    with path.open("rb") as file:
        try:
            yield file
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path}: expected a whole {path.suffix} file, got {reason}") from error


def check_cells(
    path: Path, values: np.ndarray, columns: Sequence[str], cell: Callable[[int, int], object]
) -> None:
    r"""Raises on the first number that float32 does not hold, as `cell(row, column)` shows it."""
    bad = ~(np.abs(values) < LIMIT)
    if bad.any():
        i, j = map(int, np.argwhere(bad)[0])
        place = f"{path}, row {i + 1}, column {j + 1} ({columns[j]!r})"
        raise ValueError(f"{place}: {fault(str(cell(i, j)))}")


def read_npy(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    with decoding(path) as file:
        x = np.lib.format.read_array(file, allow_pickle=False)
    if x.dtype.kind not in "iuf":
        raise ValueError(f"{path}: expected an array of real numbers, got dtype {x.dtype}")
    if x.ndim not in {1, 2} or 0 in x.shape[1:]:
        raise ValueError(f"{path}: expected an array of shape (N, D) or (N), got shape {x.shape}")
    x = x.reshape(len(x), -1) if len(x) else x.reshape(0, 1)
    with np.errstate(over="ignore"):  # of longer floats, found below
        values = x.astype(np.float64)
    columns = numbered(x.shape[1])
    check_cells(path, values, columns, lambda i, j: x[i, j])
    return values, columns


def read_parquet(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with decoding(path) as file:
        table = pq.ParquetFile(file).read()
    columns = named(str(path), table.column_names)
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    for j, field in enumerate(table.schema):
        if not any(kind(field.type) for kind in kinds):
            place = f"{path}, column {j + 1} ({field.name!r})"
            raise ValueError(f"{place}: expected numbers, got type {field.type}")
    parts = [column.cast(pa.float64(), safe=False).to_numpy() for column in table.columns]
    values = np.stack(parts, axis=1)  # a null is NaN here
    check_cells(path, values, columns, lambda i, j: table.column(j)[i].as_py())
    return values, columns


READERS = {".csv": read_text, ".tsv": read_text, ".npy": read_npy, ".parquet": read_parquet}


@dataclass(frozen=True)
class Standardize:
    r"""Creates the map :math:`z_d = (x_d - m_d) / s_d`, computed in float64.

    Arguments:
        mean: The mean :math:`m_d` of each column.
        std: The std :math:`s_d > 0` of each column.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"expected one mean and one std a column, got {len(self.mean)} and {len(self.std)}"
            )
        checks.positive(**{f"std[{d}]": s for d, s in enumerate(self.std)})
        if not all(map(math.isfinite, self.mean)):
            raise ValueError(f"expected finite means, got {self.mean}")

    @classmethod
    def fit(cls, values: Tensor, columns: Sequence[str] | None = None) -> "Standardize":
        r"""Returns the map that gives `values` mean zero and mean square one.

        Arguments:
            values: The points, with shape :math:`(N, D)`.
            columns: The names of the columns, which the error of a constant column shows.
        """
        x = checks.points(values, "values").detach().flatten(1).double()
        columns = numbered(x.shape[1]) if columns is None else columns
        for name, low, high in zip(columns, x.amin(0), x.amax(0), strict=True):
            if low == high:
                raise ValueError(
                    f"expected column {name!r} to vary, got {float(low)!r} in all {len(x)} rows;"
                    f" leave it out"
                )
        mean = x.mean(0)
        size = (x - mean).abs().amax(0)  # a factor, lest squares under- or overflow
        std = size * ((x - mean) / size).square().mean(0).sqrt()
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    @property
    def log_volume(self) -> float:
        r"""The sum :math:`\sum_d \log s_d`, which a log-density of z exceeds that of x by."""
        return math.fsum(map(math.log, self.std))

    def __call__(self, x: Tensor) -> Tensor:
        r"""Returns z for points x of shape :math:`(*, D)`, with the dtype of `x`."""
        mean, std = self.constants(x)
        return ((x.double() - mean) / std).to(x.dtype)

    def inverse(self, z: Tensor) -> Tensor:
        r"""Returns x for points z of shape :math:`(*, D)`, with the dtype of `z`."""
        mean, std = self.constants(z)
        return (mean + std * z.double()).to(z.dtype)

    def constants(self, x: Tensor) -> Tensor:
        r"""Returns the mean and the std, with shape :math:`(2, D)`, for points like `x`."""
        if x.shape[-1:] != (len(self.mean),) or not x.is_floating_point():
            raise ValueError(
                f"expected floating points of shape (*, {len(self.mean)}), got {x.dtype} of shape"
                f" {tuple(x.shape)}"
            )
        return torch.tensor((self.mean, self.std), dtype=torch.float64, device=x.device)


def split(values: Tensor, held_out: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Splits points at random into those to train on and those held out, at least one in each.

    Arguments:
        values: The points, with shape :math:`(N, *)` and :math:`N \geq 2`.
        held_out: The fraction to hold out, between 0 and 1, both excluded.
        seed: The seed of the permutation, which with N determines the split.

    Returns:
        The training points and the held-out ones. No row is in both; equal rows may be.
    """
    checks.between(0, 1, held_out=held_out)
    if held_out in {0, 1} or len(values) < 2:
        raise ValueError(
            f"expected held_out strictly between 0 and 1 and 2 rows or more, got"
            f" held_out={held_out} and {len(values)} rows"
        )
    n = min(max(round(held_out * len(values)), 1), len(values) - 1)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    order = order.to(values.device)
    return values[order[n:]], values[order[:n]]
