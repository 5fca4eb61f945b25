r"""Run folders: what a training run leaves behind, and how it is read.

=====================  ======================================================================
`config.toml`          all that the run depends on (`fokker.config`)
`metrics.jsonl`        one line an evaluation: step, loss, rate, seconds, and the judgement
`checkpoint/step-K/`   `model.safetensors` and `average.safetensors` (the weights and their
                       moving average), `training.pt` (optimizer and objective state: tensors
                       only, read with `weights_only`), `checkpoint.json` (version and step)
`table.json`           for a table: columns, mean, std, log Z and the energies of the rows kept
                       aside
`report.html`          the report (`fokker.report`), for a 2-D set
=====================  ======================================================================

A checkpoint is written beside its place and renamed into it once it is whole and on disk, so what
is there is whole. The last two are kept. Nothing is unpickled but tensors.
"""

__all__ = ["VERSION", "Checkpoint", "Run", "load", "read_checkpoint", "write_checkpoint"]

import json
import os
import shutil
import torch

from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing import Any, NamedTuple

from . import config as configs
from .config import Config, TableData
from .energies import Energy
from .tasks import TableEnergy

VERSION = 1  # of the layout above
KEEP = 2  # checkpoints
# what reading a damaged or hostile checkpoint may raise
BROKEN = (SafetensorError, KeyError, ValueError, RuntimeError, EOFError, OSError, UnpicklingError)


class Checkpoint(NamedTuple):
    r"""The whole state of a run after a number of steps."""

    step: int
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    training: dict[str, Any]  # tensors, numbers, lists and dicts of them


@dataclass(frozen=True)
class Run:
    r"""A trained run."""

    path: Path
    config: Config
    energy: Energy  # of the averaged weights, (B, d) -> (B), in the units of the data
    step: int  # steps done
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    r"""Writes a checkpoint into a run folder, whole or not at all, and drops the oldest."""
    root = folder / "checkpoint"
    target = root / f"step-{checkpoint.step:08d}"
    partial = root / f".partial-{checkpoint.step:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    whole = lambda tensors: {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    save_file(whole(checkpoint.model), partial / "model.safetensors")
    save_file(whole(checkpoint.average), partial / "average.safetensors")
    torch.save(checkpoint.training, partial / "training.pt")
    header = {"version": VERSION, "step": checkpoint.step}
    (partial / "checkpoint.json").write_text(json.dumps(header))
    for file in partial.iterdir():
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    for old in sorted(root.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return target


def broken(path: Path, error: Exception) -> ValueError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"expected a whole checkpoint in {path}, got a broken one: {why}")


def read_checkpoint(folder: Path) -> Checkpoint:
    r"""Reads the newest checkpoint of a run folder."""
    found = sorted((folder / "checkpoint").glob("step-*"))
    if not found:
        raise ValueError(
            f"expected a run with a checkpoint in {folder}, got one that has none yet;"
            " train it again"
        )
    path = found[-1]
    try:
        header = json.loads((path / "checkpoint.json").read_text())
        version, step = int(header["version"]), int(header["step"])
    except BROKEN as error:
        raise broken(path, error) from None
    if version > VERSION:
        raise ValueError(
            f"expected a checkpoint of version {VERSION} or older in {path}, got version"
            f" {version}; use a newer fokker"
        )
    try:
        return Checkpoint(
            step,
            load_file(path / "model.safetensors"),
            load_file(path / "average.safetensors"),
            torch.load(path / "training.pt", map_location="cpu", weights_only=True),
        )
    except BROKEN as error:
        raise broken(path, error) from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    r"""Reads the lines of `metrics.jsonl`; none if there is no such file."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_config(folder: Path) -> Config:
    r"""Reads the configuration of a run folder."""
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"expected a run folder with a config.toml, got {folder}, which has none")
    return configs.loads(path.read_text())


def build(config: Config, dim: int) -> Energy:
    r"""Returns the energy of a configuration, of `dim` coordinates, initialized from its seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return config.network.build(dim)


def read_card(folder: Path) -> dict[str, Any]:
    r"""Reads the `table.json` of a run on a table."""
    path = folder / "table.json"
    if not path.exists():
        raise ValueError(f"expected a {path.name} in the run folder {folder}, got none")
    return json.loads(path.read_text())


def load(path: str | Path) -> Run:
    r"""Returns a trained run: its energy, its configuration and its metrics.

    Arguments:
        path: The run folder.

    Example:
        >>> from fokker import fit
        >>> from fokker.config import Network, Optimization
        >>> from tempfile import TemporaryDirectory
        >>> short = Config(network=Network(width=8), optimization=Optimization(steps=2))
        >>> with TemporaryDirectory() as folder:
        ...     run = load(fit(short, folder).path)
        >>> run.step, run.energy(torch.zeros(1, 2)).shape
        (2, torch.Size([1]))
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"expected a run folder, got {folder}, which does not exist")
    config = read_config(folder)
    checkpoint = read_checkpoint(folder)
    card = read_card(folder) if isinstance(config.data, TableData) else None
    energy = build(config, 2 if card is None else len(card["columns"]))
    try:
        energy.load_state_dict(checkpoint.average)
    except RuntimeError as error:
        raise ValueError(
            f"expected weights of the network in {folder / 'config.toml'}, got others: "
            + str(error).splitlines()[-1].strip()
        ) from None
    if card is not None:
        energy = TableEnergy(energy, card)
    energy.requires_grad_(False)
    return Run(folder, config, energy, checkpoint.step, read_metrics(folder))
