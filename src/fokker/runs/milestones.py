r"""Milestones: when the samples of a run are judged, declared before it starts.

A step that takes the number of training images seen past a multiple of `every` is followed by an
FID of `few` samples, and one that takes it past a number in `at` by one of `many`. Image i of a
seed is one image, so the few are the first of the many. A run that is stopped in between goes on
with the judgement that is missing, by the same weights.

`quality.jsonl` in the run folder has a row for each.
"""

__all__ = ["Milestones", "read_quality", "write_quality"]

import json
import os

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoints import BROKEN
from .. import checks
from ..files import first_line, read_regular, write_text

FILE = "quality.jsonl"
LONGEST = 2**26  # bytes of the file


@dataclass(frozen=True)
class Milestones:
    r"""The images of training after which samples are judged by FID, declared beforehand."""

    every: int = 0
    """The training images between two FIDs of few samples; none if zero."""
    few: int = 10_000
    """The samples of an FID along the way."""
    at: tuple[int, ...] = ()
    """The numbers of training images after which FID is computed with many samples."""
    many: int = 50_000
    """The samples of such an FID."""

    def __post_init__(self) -> None:
        checks.at_least(0, every=self.every)
        checks.at_least(2, few=self.few, many=self.many)
        if not isinstance(self.at, tuple):
            raise ValueError(f"expected `at` to be a tuple of integers, got {self.at!r}")
        checks.positive_integer(**{f"at[{i}]": n for i, n in enumerate(self.at)})

    @property
    def any(self) -> bool:
        r"""Whether anything is declared."""
        return bool(self.every or self.at)

    def counts(self, step: int, batch: int) -> list[int]:
        r"""Returns the numbers of samples to judge after a step, the least first."""
        before, seen = (step - 1) * batch, step * batch
        found = set()
        if self.every and seen // self.every > before // self.every:
            found.add(self.few)
        if any(before < n <= seen for n in self.at):
            found.add(self.many)
        return sorted(found)


def read_quality(folder: Path) -> list[dict[str, Any]]:
    r"""Reads the rows of a run folder; none if there is no such file."""
    path = folder / FILE
    if not os.path.lexists(path):
        return []
    content = read_regular(path, LONGEST, folder)
    try:
        rows = [json.loads(text) for text in content.decode().splitlines()]
        for row in rows:
            if not isinstance(row, dict) or type(row["step"]) is not int:
                raise ValueError(f"got {checks.brief(row)}")
    except (*BROKEN, RecursionError) as error:
        raise ValueError(f"expected rows with a step in {path}, {first_line(error)}") from None
    return rows


def write_quality(folder: Path, rows: list[dict[str, Any]]) -> None:
    r"""Writes the rows of a run folder."""
    write_text(folder / FILE, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
