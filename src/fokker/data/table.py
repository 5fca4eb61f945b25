r"""Tables: a user's own points, one a row, read from a file.

The points are :math:`(N, D)`, N at least 2. A model is trained on their standardized coordinates
:math:`z_d = (x_d - m_d) / s_d`, with m and s the mean and the std of each column of the training
rows. Its density in the units of the file is

.. math:: \log p_x(x) = \log p_z(z) - \sum_d \log s_d .

A file is ``.csv`` or ``.tsv``, text in UTF-8 whose columns are separated by tabs, semicolons or,
without these, commas; ``.npy``, an array :math:`(N, D)`, or :math:`(N)` for a single column; or
``.parquet``, columns of numbers, at most :math:`2^{28}`. The first line of a text is a header if
none of its cells is a number. Columns without names are called `x0`, `x1` and so on. Blank lines
at the end are left out and nothing else is skipped or filled in: a cell that is not a finite
number is an error that names the file, the column, and the line of the text or the row, counted
from 1.

A **mixed** table may have missing values, NaN here (in a text an empty cell or one of `MISSING`),
and, in a text, columns of categories, whose cells are texts and none a number: a value is the
place of its text in the sorted `categories` of the column then.
"""

__all__ = ["Standardize", "Table", "identifies", "read_table", "shown", "split"]

import csv
import io
import math
import numpy as np
import os
import re
import torch

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from torch import Tensor
from typing import Any

from .parquet import room, sizes
from .. import checks
from ..files import open_regular

LONGEST = 2**33  # bytes of a file
LIMIT = (2 - 2**-24) * 2.0**127  # from here on a number rounds to infinity in float32
NUMBERS = 2**28  # of a Parquet file
CATEGORIES = 100  # texts of a column of categories, at most
ROWS = 2**16  # of a Parquet file, read at once
HEAD = 2**20  # characters in which the separator is looked for
MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")


@dataclass(frozen=True, eq=False)
class Table:
    r"""Creates a table of finite points, :math:`(N, D)` in float64, and the names of D columns.

    Arguments:
        values: The points; in a mixed table NaN for a missing value, and the numbers of the
            categories.
        columns: The names of the columns.
        categories: The texts of each column of categories, sorted, and none for one of numbers;
            empty if all columns are of numbers.
    """

    values: Tensor
    columns: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...] = ()

    def texts(self, j: int) -> tuple[str, ...]:
        r"""Returns the categories of a column, none of one of numbers."""
        return self.categories[j] if self.categories else ()

    def select(self, kept: Sequence[int]) -> "Table":
        r"""Returns the table of some columns."""
        texts = tuple(self.texts(j) for j in kept)
        names = tuple(self.columns[j] for j in kept)
        return Table(self.values[:, list(kept)], names, texts if any(texts) else ())

    def identifiers(self) -> tuple[int, ...]:
        r"""Returns the columns of categories that tell single rows apart."""
        counts = (~self.values.isnan()).sum(0).tolist()
        sizes = [len(self.texts(j)) for j in range(len(self.columns))]
        return tuple(
            j for j, (size, n) in enumerate(zip(sizes, counts, strict=True)) if identifies(size, n)
        )

    def cell(self, i: int, j: int) -> str:
        r"""Returns a value in words."""
        return shown(float(self.values[i, j]), self.texts(j))


def identifies(texts: int, values: int) -> bool:
    r"""Returns whether a column tells single rows apart, as names and dates do: whether it has
    more than `CATEGORIES` different texts, or more than half as many as values."""
    return texts > CATEGORIES or texts > max(2, values / 2)


def shown(value: float, texts: Sequence[str]) -> str:
    r"""Returns a value of a column in words; empty if it is missing."""
    if math.isnan(value):
        return ""
    return texts[int(value)] if texts else f"{value:.6g}"


def read_table(path: Path, mixed: bool = False) -> Table:
    r"""Reads a table from a file, by its suffix. Numbers are kept in float64, with 16 digits.

    Arguments:
        path: The file.
        mixed: Whether missing values and columns of categories are taken.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ValueError(f"{path}: expected one of {', '.join(READERS)}, got {path.suffix!r}")
    if mixed and READERS[suffix] is read_text:
        return read_mixed(path)
    values, columns = READERS[suffix](path)
    wrong = ~(np.abs(values) < LIMIT) & ~(np.isnan(values) & mixed)
    for i, j in np.argwhere(wrong)[:1].tolist():
        raise fault(f"{path}, row {i + 1}", columns, j, str(values[i, j]))
    if not len(values):
        raise ValueError(f"{path}: expected a row or more, got none")
    return Table(torch.from_numpy(np.array(values, dtype=np.float64)), columns)


def numbered(d: int) -> tuple[str, ...]:
    return tuple(f"x{j}" for j in range(d))


def named(place: str, names: Sequence[str]) -> tuple[str, ...]:
    seen: set[str] = set()
    for j, name in enumerate(names or [""]):
        if not name or name in seen:
            got = checks.brief(name, 40)
            raise ValueError(f"{place}, column {j + 1}: expected a name of its own, got {got}")
        seen.add(name)
    return tuple(names)


def number(text: str) -> float | None:
    r"""Returns the number that a cell spells, if it does. Python's `1_000` does not."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def fault(place: str, names: Sequence[str], j: int, text: str) -> ValueError:
    r"""Returns the error of a cell that is not a finite number of float32."""
    got = repr(text[:40])
    if text.strip(" +-").lower() in MISSING:
        got = f"a missing value, {got}"
    elif number(text) is None:
        got = f"the text {got}"
    elif "inf" not in text.lower():
        got = f"{got}, beyond float32 ({LIMIT:.3g})"
    name = checks.brief(names[j], 40)
    return ValueError(f"{place}, column {j + 1} {name}: expected a finite number, got {got}")


def decode(path: Path, read: Callable[[BufferedReader], Any]) -> Any:
    with open_regular(path, LONGEST) as file:
        try:
            return read(file)
        except Exception as error:  # of many kinds, on damaged bytes
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path}: expected a whole {path.suffix} file: {reason}") from error


def scan(path: Path, mixed: bool) -> Iterator[tuple[str, list[str], list[float | None]]]:
    r"""Yields the names of the columns of a text, then, for each row, the place of its line, its
    cells, and the numbers that these spell. Names stand in the cells of the first line or, without
    a header, are made up."""
    text = decode(path, lambda file: file.read().decode("utf-8-sig")).rstrip("\r\n ")
    # in the first row, unquoted; in its beginning, as a match takes memory by the character
    found = re.match(r'(?:"[^"]*"|[^"\r\n\t;])*([\t;])', text[:HEAD])
    mark = found[1] if found else ","
    width, first, line, rows = 0, 0, 0, 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        for cells in reader:
            line, numbers = reader.line_num, [number(cell) for cell in cells]
            place = f"{path}, line {line}"
            if not first:
                first, width = line, len(cells)
                texts = [c for c, v in zip(cells, numbers, strict=True) if v is None]
                if texts == cells:
                    yield place, [*named(place, [cell.strip() for cell in cells])], []
                    continue
                if texts and not mixed:
                    got = f"{checks.brief(texts[0], 40)} beside numbers"
                    raise ValueError(f"{place}: expected only names or only numbers, got {got}")
                yield place, [*numbered(width)], []
            if len(cells) != width:
                expected = f"{width} cells, separated by {mark!r}, as in line {first}"
                raise ValueError(f"{place}: expected {expected}, got {len(cells)}")
            rows += 1
            yield place, cells, numbers
    except csv.Error as error:
        raise ValueError(f"{path}, below line {line}: expected cells, got {error}") from None
    if not rows:
        got = f"only the header of line {first}" if first else "an empty file"
        raise ValueError(f"{path}: expected rows of numbers, got {got}")


def read_text(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    rows, values = scan(path, mixed=False), array("d")
    _, names, _ = next(rows)
    for place, cells, numbers in rows:
        for j, value in enumerate(numbers):
            if value is None or not abs(value) < LIMIT:
                raise fault(place, names, j, cells[j])
            values.append(value)
    return np.frombuffer(values).reshape(-1, len(names)), tuple(names)


def read_mixed(path: Path) -> Table:
    r"""Reads a text with columns of numbers and columns of categories."""
    rows, values = scan(path, mixed=True), array("d")
    _, names, _ = next(rows)
    codes: list[dict[str, int]] = [{} for _ in names]
    seen: list[dict[bool, tuple[str, str]]] = [{} for _ in names]  # the first text and number
    for place, cells, numbers in rows:
        for j, value in enumerate(numbers):
            text = cells[j].strip()
            if value is not None and abs(value) < LIMIT:
                seen[j].setdefault(True, (place, text))
            elif text.strip("+-").lower() in MISSING:
                value = math.nan
            elif value is not None:
                raise fault(place, names, j, cells[j])
            else:
                seen[j].setdefault(False, (place, text))
                value = codes[j].setdefault(text, len(codes[j]))
            values.append(value)
    for name, found in zip(names, seen, strict=True):
        if len(found) == 2:
            (place, text), (other, number) = found[False], found[True]
            raise ValueError(
                f"{place}, column {checks.brief(name, 40)}: expected a number, as {number!r} in"
                f" {other.rpartition(', ')[2]}, got the text {text[:40]!r}; correct it, or leave"
                " the cell empty"
            )
    table = np.array(values).reshape(-1, len(names))
    for j, known in enumerate(codes):
        if known:  # in the order of the texts
            order = {k: place for place, (_, k) in enumerate(sorted(known.items()))}
            column = table[:, j]
            whole = ~np.isnan(column)
            column[whole] = [order[int(k)] for k in column[whole]]
    categories = tuple(tuple(sorted(known)) for known in codes)
    return Table(torch.from_numpy(table), tuple(names), categories if any(categories) else ())


def array_of(file: BufferedReader) -> np.ndarray:
    r"""Returns the array of a file, if the file is as long as its header says."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"version {version} is not 1.0 or 2.0")
    shape, _, dtype = read[version](file)
    size, left = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
    if not dtype.hasobject and size != left:
        raise ValueError(f"{left} bytes are no array of shape {shape} and {dtype}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def read_npy(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    x = decode(path, array_of)
    if x.dtype.kind not in "iuf":
        raise ValueError(f"{path}: expected an array of real numbers, got dtype {x.dtype}")
    if x.ndim not in {1, 2} or 0 in x.shape[1:]:
        raise ValueError(f"{path}: expected an array of shape (N, D) or (N), got shape {x.shape}")
    if not len(x):  # before its columns are counted, of which no row may have any number
        raise ValueError(f"{path}: expected a row or more, got none")
    x = x[:, None] if x.ndim == 1 else x
    return x.astype(np.float64), numbered(x.shape[1])


def read_parquet(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def whole(file: BufferedReader) -> np.ndarray:
        parquet = pq.ParquetFile(file)
        shape = parquet.metadata.num_rows, parquet.metadata.num_columns
        length = sizes(file, parquet, range(shape[1])).length
        most = min(NUMBERS, room(length) // 16)  # bytes that each takes while it is read
        if shape[0] * shape[1] > most:  # a few bytes may stand for any number of them
            raise ValueError(f"{shape[0] * shape[1]} numbers are more than {most}")
        values, at = np.empty(shape), 0
        for batch in parquet.iter_batches(ROWS, use_threads=False):
            if at + len(batch) > len(values):
                raise ValueError(f"there are more than {len(values)} rows")
            for j, column in enumerate(batch.columns):
                numbers = column.cast(pa.float64(), safe=False)
                values[at : at + len(batch), j] = numbers.to_numpy(zero_copy_only=False)
            at += len(batch)
        if at != len(values):
            raise ValueError(f"there are {at} rows instead of {len(values)}")
        return values  # with NaN for null

    schema = decode(path, lambda file: pq.ParquetFile(file).schema_arrow)
    names, real = named(str(path), schema.names), ("is_integer", "is_floating", "is_decimal128")
    for j, kind in enumerate(schema.types):
        if not any(getattr(pa.types, test)(kind) for test in real):
            place = f"{path}, column {j + 1} {checks.brief(names[j], 40)}"
            raise ValueError(f"{place}: expected numbers, got {str(kind)[:80]}")
    return decode(path, whole), names


READERS = {".csv": read_text, ".tsv": read_text, ".npy": read_npy, ".parquet": read_parquet}


@dataclass(frozen=True)
class Standardize:
    r"""Creates the map :math:`z_d = (x_d - m_d) / s_d` of points :math:`(*, D)`, with a mean and
    a std :math:`s_d > 0` for each column.

    It computes in float64. Standardized points are float32 unless asked for otherwise, points in
    the units of the table are float64: a column offset by :math:`10^7` times its std keeps its
    digits.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, self.mean + self.std)) and all(s > 0 for s in self.std)
        if not (finite and len(self.mean) == len(self.std) >= 1):
            raise ValueError(f"expected a finite mean and a std > 0 for each column, got {self}")

    @classmethod
    def fit(cls, values: Tensor, columns: Sequence[str] = ()) -> "Standardize":
        r"""Returns the map after which `values`, :math:`(N, D)`, have mean 0 and mean square 1.
        The error of a constant column calls it by its name in `columns`."""
        x = checks.points(values, "values").detach().flatten(1).double()
        names = columns or numbered(x.shape[1])
        for name, low, high in zip(names, x.amin(0).tolist(), x.amax(0).tolist(), strict=True):
            if low == high:
                raise ValueError(
                    f"expected column {checks.brief(name, 40)} to vary, got {low} in all"
                    f" {len(x)} rows"
                )
        # squares of 1e-300 are zero: in units of a power of two, which costs no digit
        unit = torch.ldexp(torch.ones(x.shape[1]).to(x), torch.frexp(x.abs().amax(0)).exponent)
        std, mean = torch.std_mean(x / unit, dim=0, correction=0)
        return cls(tuple((mean * unit).tolist()), tuple((std * unit).tolist()))

    @property
    def log_volume(self) -> float:
        r"""The sum :math:`\sum_d \log s_d`, by which a log-density of z exceeds that of x."""
        return math.fsum(map(math.log, self.std))

    def __call__(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        mean, std = self.constants(x)
        return ((x.double() - mean) / std).to(dtype)

    def inverse(self, z: Tensor) -> Tensor:
        r"""Returns :math:`x_d = m_d + s_d z_d`, in float64."""
        mean, std = self.constants(z)
        return mean + std * z.double()

    def constants(self, x: Tensor) -> Tensor:
        d = len(self.mean)
        if x.shape[-1:] != (d,) or not x.is_floating_point():
            raise ValueError(f"expected floats of shape (*, {d}), got {x.dtype} {tuple(x.shape)}")
        return torch.tensor((self.mean, self.std), dtype=torch.float64, device=x.device)


def split(n: int, held_out: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    r"""Splits rows at random into those to train on, those to choose by (validation) and those to
    judge by (test), at least one in each. Returns their indices, from 0.

    Arguments:
        n: The number of rows.
        held_out: The fraction to hold out, above 0 and below 1: one half of it each for validation
            and test.
        seed: The seed, which with n and the fraction determines the rows.
    """
    if not (0 < held_out < 1 and n >= 3):
        raise ValueError(f"expected 0 < held_out < 1 of 3 rows or more, got {held_out!r} of {n}")
    k = min(max(round(held_out * n), 2), n - 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[k:], order[: k // 2], order[k // 2 : k]
