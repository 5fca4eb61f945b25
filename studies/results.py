r"""Results: figures on disk with where they came from, and the tables made of them.

A figure counts only if a command of this repository produced it. Each study writes one JSON file,

.. code-block:: json

    {"command": "fokker optima", "commit": "...", "time": "...", "hardware": "...",
     "versions": {"torch": "..."}, "config": {}, "rows": [{}]}

and every table in the README and the docs is rendered from such a file, between two markers,
`<!-- results:NAME -->` and `<!-- /results -->`. `fokker tables` renders them anew; a test fails if
a table and its file differ.
"""

__all__ = ["form_of", "load", "made", "markdown", "render", "save"]

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import torch

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fokker.files import first_line, write_text
from fokker.objectives import LevelDCD, Objective
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def commit() -> str:
    r"""Returns the commit of the working tree, with `+` if it has changes, or `unknown`."""
    if "FOKKER_COMMIT" in os.environ:  # where the source travels without its history
        return os.environ["FOKKER_COMMIT"]
    if shutil.which("git") is None:
        return "unknown"
    run = lambda *args: subprocess.run(
        ["git", *args], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    head = run("rev-parse", "--short", "HEAD")
    if head.returncode != 0:
        return "unknown"
    dirty = run("status", "--porcelain", "--untracked-files=no").stdout.strip()
    return head.stdout.strip() + ("+" if dirty else "")


def form_of(objective: Objective) -> str | None:
    r"""Returns the form of a divergence between noise levels with its step; `None` of others."""
    return repr(objective.form) if isinstance(objective, LevelDCD) else None


def hardware(device: str | torch.device = "cpu") -> str:
    r"""Returns the name of a device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found.group(1) if found else model
    return f"{model}, {os.cpu_count()} cores"


def made(device: str | torch.device = "cpu") -> Row:
    r"""Returns where and when a row is made: a file can hold rows of several machines."""
    return {
        "hardware": hardware(device),
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


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
