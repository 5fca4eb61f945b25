r"""The history of a run: one line in `starts.jsonl` for each time that its training was started.

A line holds the step at which training went on, the seconds of training up to there, the commit
of fokker, the version of torch, the device and its name, and the time. Lines are added and never
changed, so they survive a restart, a killed process and a move to another machine
(`fokker.runs.packing`). The part of a run that a line opens ends where the next one begins; the
last part ends at the newest checkpoint. Steps that a killed process had not saved are in no part.

The commit is that of the clone that the package lies in, with `+` if its files have changes; that
of the variable `FOKKER_COMMIT` where the source travels without its history; the version of an
installed package; `unknown` otherwise.
"""

__all__ = ["History", "add_start", "commit", "hardware", "read_starts"]

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import torch

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from .checkpoints import BROKEN
from ..checks import brief, number
from ..files import first_line, read_regular, write_text

FILE = "starts.jsonl"
LONGEST = 2**24  # bytes of the file
WORDS = ("commit", "torch", "device", "hardware", "time")  # texts of a line
Line = dict[str, Any]


def commit() -> str:
    r"""Returns the commit of the source, with `+` if it has changes, or what stands for it."""
    if "FOKKER_COMMIT" in os.environ:  # where the source travels without its history
        return os.environ["FOKKER_COMMIT"]
    here = Path(__file__).parent
    if shutil.which("git") is None:
        return installed()
    run = lambda *args: subprocess.run(
        ["git", *args], capture_output=True, text=True, cwd=here, check=False
    )
    head, tracked = run("rev-parse", "--short", "HEAD"), run("ls-files", "--error-unmatch", ".")
    if head.returncode != 0 or tracked.returncode != 0:  # a repository around an installed copy
        return installed()
    dirty = run("status", "--porcelain", "--untracked-files=no", ":/").stdout.strip()
    return head.stdout.strip() + ("+" if dirty else "")


def installed() -> str:
    r"""Returns the version of the installed package, or `unknown`."""
    try:
        return f"fokker {version('fokker')}"
    except PackageNotFoundError:
        return "unknown"


def hardware(device: str | torch.device = "cpu") -> str:
    r"""Returns the name of a device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found.group(1) if found else model
    return f"{model}, {os.cpu_count()} cores"


def add_start(folder: Path, step: int, seconds: float, device: str | torch.device) -> None:
    r"""Adds the line of a start to a run folder.

    Arguments:
        folder: The run folder.
        step: The step after which training goes on.
        seconds: The seconds of training so far.
        device: The device.
    """
    line = {
        "step": step,
        "seconds": round(seconds, 3),
        "commit": commit(),
        "torch": torch.__version__,
        "device": torch.device(device).type,
        "hardware": hardware(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    lines = [*read_starts(folder), line]
    write_text(folder / FILE, "".join(json.dumps(each) + "\n" for each in lines))


def read_starts(folder: Path) -> list[Line]:
    r"""Reads the starts of a run; none if there is no such file."""
    path = folder / FILE
    if not os.path.lexists(path):
        return []
    content = read_regular(path, LONGEST, folder)
    try:
        return [start_of(json.loads(text)) for text in content.decode().splitlines()]
    except (*BROKEN, RecursionError) as error:
        raise ValueError(f"expected the starts of a run in {path}, {first_line(error)}") from None


def start_of(value: Any) -> Line:
    r"""Returns a start that was read; raises if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"got {brief(value)}")
    step: Any = value.get("step")
    seconds: Any = value.get("seconds")
    if type(step) is not int or not 0 <= step < 2**63:
        raise ValueError(f"got the step {brief(step)}")
    if not number(seconds) or seconds < 0:
        raise ValueError(f"got {brief(seconds)} seconds")
    for name in WORDS:
        if not isinstance(value.get(name), str):
            raise ValueError(f"got {brief(value.get(name))} as {name}")
    return value


class History(NamedTuple):
    r"""What a run has seen, and how it came about."""

    examples: int  # drawn for all steps of the weights
    noun: str  # of the examples
    seconds: float  # of training
    starts: tuple[Line, ...]

    @property
    def figures(self) -> Line:
        r"""The same in the types of JSON; minutes on a GPU are `None` if there was none."""
        gpu = any(start["device"] != "cpu" for start in self.starts)
        return {
            f"{self.noun}_seen": self.examples,
            "minutes": self.seconds / 60,
            "gpu_minutes": self.seconds / 60 if gpu else None,
            "restarts": max(0, len(self.starts) - 1),
            "commits": list(dict.fromkeys(start["commit"] for start in self.starts)),
        }

    @property
    def sentence(self) -> str:
        r"""The same in words."""
        figures = self.figures
        kind = "GPU-minutes" if figures["gpu_minutes"] is not None else "minutes"
        places = " and ".join(dict.fromkeys(start["hardware"] for start in self.starts))
        count, n = figures["restarts"], len(figures["commits"])
        return (
            f"{self.examples:,} {self.noun} seen in {self.seconds / 60:.1f} {kind} on"
            f" {places or 'hardware that was not recorded'}, {count} restart{'s'[: count != 1]},"
            f" commit{'s'[: n != 1]} {', '.join(figures['commits']) or 'not recorded'}"
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        r"""A row for each start: time, step, minutes before it, commit, torch, hardware."""
        return [
            (
                start["time"],
                f"{start['step']:,}",
                f"{start['seconds'] / 60:.1f}",
                start["commit"],
                start["torch"],
                start["hardware"],
            )
            for start in self.starts
        ]
