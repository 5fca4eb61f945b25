r"""Run folders: what a training run leaves behind, and how it is read.

=====================  ======================================================================
`config.toml`          all that the run depends on (`fokker.runs.config`, `fokker.runs.toml`)
`data.json`            the SHA-256 of the data, to know it again when the run is resumed
`starts.jsonl`         one line for each start of training (`fokker.runs.history`)
`metrics.jsonl`        one line an evaluation: step, loss, rate, seconds, diagnostics and the
                       judgement; and one an event, a divergence and what was done about it
`quality.jsonl`        one row for each FID at a milestone (`fokker.runs.milestones`)
`averages/`            copies of power-function averages (`fokker.runs.averages`)
`checkpoint/step-K/`   the whole state after K steps (`fokker.runs.checkpoints`)
`previews/`            samples of one seed after each evaluation, for images if asked for
`report.html`          the report (`fokker.app.report`)
`.lock`                who trains into the folder (`fokker.runs.owner`)
=====================  ======================================================================

A run is read with the weights that its task chooses: the last average on a 2-D set, whose points
are fresh forever, and the best one on a table. Training goes on from the last ones in any case.
"""

__all__ = ["read_config", "read_metrics", "read_run", "restore", "write_metrics"]

import json
import os
import torch

from pathlib import Path
from torch import Tensor
from typing import Any

from . import toml
from .averages import average_of
from .checkpoints import BROKEN, newest, read
from .config import Config
from .history import read_starts
from ..checks import brief, number
from ..energies import Denoiser, Energy
from ..files import first_line, read_regular, write_text
from ..tasks import Run, Task, task_of

METRICS = 2**28  # bytes of metrics.jsonl
TRIES = 5  # times that a run which is replaced is read again


def write_metrics(folder: Path, lines: list[dict[str, Any]]) -> None:
    r"""Writes the lines of `metrics.jsonl`."""
    write_text(
        folder / "metrics.jsonl",
        "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines),
    )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    r"""Reads the lines of `metrics.jsonl`; none if there is no such file."""
    path = folder / "metrics.jsonl"
    if not os.path.lexists(path):
        return []
    content = read_regular(path, METRICS, folder)
    try:
        return [line_of(json.loads(text)) for text in content.decode().splitlines()]
    except (*BROKEN, RecursionError) as error:
        raise ValueError(
            f"expected lines of JSON with a step in {path}, got {first_line(error)}"
        ) from None


def line_of(value: Any) -> dict[str, Any]:
    r"""Returns a line of the metrics that was read: a step, numbers and `None`, and the words of
    an event, or why a figure is unknown. Any other raises."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a table, got {brief(value)}")
    for name, entry in value.items():
        words = name == "unknown" or ("event" in value and name in {"event", "reason"})
        if not (isinstance(entry, str) if words else entry is None or number(entry)):
            kind = "a text" if words else "a finite number or null"
            raise ValueError(f"expected {kind} at {brief(name, 40)}, got {brief(entry)}")
    if "event" in value and not {"reason", "step"} <= value.keys():
        raise ValueError("expected the step and the reason of an event")
    if type(value["step"]) is not int or not 0 <= value["step"] < 2**63:
        raise ValueError(f"expected a number of steps, got {brief(value['step'])}")
    return value


def read_config(folder: Path) -> Config:
    r"""Reads the configuration of a run folder."""
    path = folder / "config.toml"
    if not os.path.lexists(path):
        raise ValueError(f"expected a run folder with a config.toml, got {folder}, which has none")
    content = read_regular(path, 4 * toml.LONGEST, folder)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected a text in UTF-8 in {path}, got {error}") from None
    return toml.loads(text)


def restore(
    task: Task, shape: tuple[int, ...], weights: dict[str, Tensor], place: Path
) -> Energy | Denoiser:
    r"""Returns the energy of a configuration with weights that were read.

    The network is made without storage first: one that does not fit the weights is refused before
    it takes any memory, so that a file of a few bytes cannot ask for a network of any size.

    Arguments:
        task: The task of the run.
        shape: The shape of a point.
        weights: The weights by name.
        place: Where the configuration lies, for the error.
    """
    try:
        with torch.device("meta"):
            blank = task.blank(shape, weights).state_dict()
    except (RuntimeError, OverflowError) as error:
        raise ValueError(
            f"expected a network of a usual size in {place}: {first_line(error)}"
        ) from None
    for name in sorted(blank.keys() | weights.keys()):
        mine, theirs = blank.get(name), weights.get(name)
        if mine is None or theirs is None or mine.shape != theirs.shape:
            shapes = ["none" if t is None else str(tuple(t.shape)) for t in (mine, theirs)]
            raise ValueError(
                f"expected weights of the network in {place}, got others: {brief(name)} is"
                f" {shapes[0]} there and {shapes[1]} here"
            )
    energy = task.blank(shape, weights)
    energy.load_state_dict(weights)
    return energy


def identity(folder: Path) -> tuple[int, ...]:
    r"""Returns what tells the run in a folder from another that is put in its place."""
    place, config = os.stat(folder), os.lstat(folder / "config.toml")
    return (place.st_dev, place.st_ino, config.st_ino, config.st_mtime_ns, config.st_size)


def read_run(folder: Path, best: bool = False, width: float | None = None) -> Run:
    r"""Returns the run in a folder; see `fokker.load`.

    A run that is replaced by another while it is read is read again, so that the weights are never
    those of another configuration.
    """
    for _ in range(TRIES):
        try:
            before = identity(folder)
        except OSError:  # what is missing, in words
            return read_once(folder, best, width)
        try:
            run = read_once(folder, best, width)
        except (ValueError, OSError):
            if same(folder, before):
                raise
            continue
        if same(folder, before):
            return run
    raise ValueError(
        f"expected a run that stays while it is read, got {folder}, which was replaced {TRIES}"
        " times"
    )


def same(folder: Path, before: tuple[int, ...]) -> bool:
    r"""Returns whether the run in a folder is the one that it was."""
    try:
        return identity(folder) == before
    except OSError:
        return False


def read_once(folder: Path, best: bool, width: float | None) -> Run:
    r"""Returns the run in a folder that nobody replaces meanwhile."""
    config = read_config(folder)
    checkpoint, task = newest(folder), task_of(config)
    if best and checkpoint.leader is not None:
        checkpoint = read(folder / "checkpoint" / str(checkpoint.leader[1]))
    chosen = checkpoint.best
    weights, average = checkpoint.average if chosen is None else chosen.weights, ""
    if width is not None:
        if best or chosen is not None:
            raise ValueError(f"expected no width with the best weights, got {width:g}")
        weights, error = average_of(folder, config, width, checkpoint=checkpoint)
        average = f", averaged with width {width:g}, a profile off by {100 * error:.1f} %"
    energy = restore(task, checkpoint.shape, weights, folder / "config.toml")
    try:
        energy = task.wrap(energy, None if chosen is None else chosen.card)
        lines = None if checkpoint.lines is None else [line_of(m) for m in checkpoint.lines]
    except BROKEN as error:
        raise ValueError(f"{folder}: {first_line(error)}") from None
    energy.requires_grad_(False)
    found = read_metrics(folder)
    if lines is None:  # not those that go with the weights
        lines = [line for line in found if line["step"] <= checkpoint.step]
    return Run(
        folder,
        config,
        task,
        energy,
        checkpoint.shape,
        checkpoint.step,
        checkpoint.step if chosen is None else chosen.step,
        [line for line in lines if "event" not in line],
        tuple(line for line in found if "event" in line),
        tuple(read_starts(folder)),
        checkpoint.seconds,
        average,
    )
