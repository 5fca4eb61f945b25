r"""Results: figures on disk with where they came from, and the tables made of them.

A figure counts only if a command of this repository produced it. Each study writes one JSON file,

.. code-block:: json

    {"command": "fokker optima", "commit": "...", "time": "...", "hardware": "...",
     "versions": {"torch": "..."}, "config": {}, "rows": [{}]}

and every table in the README and the docs is rendered from such a file, between two markers,
`<!-- results:NAME -->` and `<!-- /results -->`. `fokker tables` renders them anew; a test fails if
a table and its file differ.
"""

__all__ = [
    "commit",
    "form_of",
    "hardware",
    "load",
    "markdown",
    "provenance",
    "render",
    "rows_of",
    "save",
]

import json
import platform
import re
import torch

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fokker.files import first_line, write_text
from fokker.objectives import LevelDCD, Objective
from fokker.runs.history import commit, hardware
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def form_of(objective: Objective) -> str | None:
    r"""Returns the form of a divergence between noise levels with its step; `None` of others."""
    return repr(objective.form) if isinstance(objective, LevelDCD) else None


def provenance(device: str | torch.device = "cpu") -> Row:
    r"""Returns where a row comes from, for files whose rows are made on several machines."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = {"commit": commit(), "time": now, "hardware": hardware(device)}
    return made | {"torch": torch.__version__}


def rows_of(content: Row) -> list[Row]:
    r"""Returns the rows of a file, each with its provenance: its own, or that of the file."""
    made = {key: content[key] for key in ("commit", "time", "hardware")}
    made["torch"] = content["versions"]["torch"]
    return [{**row, **{key: row.get(key, value) for key, value in made.items()}}
            for row in content["rows"]]  # fmt: skip


def save(
    path: Path,
    rows: Sequence[Row],
    command: str,
    config: Row | None = None,
    device: str | torch.device = "cpu",
    where: str | None = None,
) -> None:
    r"""Writes rows with their provenance, whole or not at all. A value that does not exist is
    `None`; NaN and infinity are refused.

    Arguments:
        path: The file.
        rows: The figures.
        command: The command that made them.
        config: The settings that are not in the rows.
        device: The device that they were made on.
        where: The name of the hardware, where the rows were made elsewhere.
    """
    content = {
        "command": command,
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(device) if where is None else where,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "config": config or {},
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text_of(content))


def text_of(content: Row) -> str:
    r"""Returns the text of a file: a line per entry, and per row."""
    dump = lambda value: json.dumps(value, separators=(",", ":"), allow_nan=False)
    rows = ",\n".join(map(dump, content["rows"]))
    head = [f'"{key}":{dump(value)}' for key, value in content.items() if key != "rows"]
    return "{" + ",\n".join([*head, f'"rows":[\n{rows}\n]']) + "}\n"


def load(path: Path) -> Row:
    r"""Reads a file that `save` wrote."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:  # no text, or no JSON
        raise ValueError(f"expected a file of results, got {path}: {first_line(error)}") from None
    rows = content.get("rows") if isinstance(content, dict) else None
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise ValueError(f"expected a file of results, got {path}, which has no rows")
    return content


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def render(text: str, tables: dict[str, Callable[[], str]]) -> str:
    r"""Returns a document with the table between each pair of markers made anew.

    Arguments:
        text: The document.
        tables: The table of each name.
    """

    def table(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in tables:
            raise ValueError(f"expected a table, one of {', '.join(tables)}, got {name!r}")
        return f"<!-- results:{name} -->\n{tables[name]()}\n<!-- /results -->"

    return re.sub(r"<!-- results:([\w-]+) -->\n.*?<!-- /results -->", table, text, flags=re.DOTALL)
