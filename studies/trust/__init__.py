r"""Checks of trust: what was tried to break a run, and what came of it.

A check is a command of this repository that ends in rows {check, value, unit, detail} of
`results/trust.json`. Checks are made at different times and places, so each row carries its own
command, commit, time and hardware.
"""

__all__ = ["record"]

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .. import results


def record(path: Path, check: str, rows: Sequence[results.Row], command: str) -> None:
    r"""Puts the rows of a check into a file of results, in the place of the older ones of that
    check.

    Arguments:
        path: The file, `results/trust.json`.
        check: The name of the check.
        rows: Its rows, each of a value, a unit and a detail.
        command: The command that made them.
    """
    for row in rows:
        if row.keys() != {"value", "unit", "detail"}:
            raise ValueError(f"expected a row of value, unit and detail, got {sorted(row)}")
    before = results.load(path)["rows"] if path.exists() else []
    now = {
        "command": command,
        "commit": results.commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": results.hardware(),
    }
    kept = [row for row in before if row["check"] != check]
    added = [{"check": check, **row, **now} for row in rows]
    results.save(path, sorted(kept + added, key=lambda row: row["check"]), command)
