r"""Run folders: what a training run leaves behind, and how it is read.

=====================  ======================================================================
`config.toml`          all that the run depends on (`fokker.config`)
`metrics.jsonl`        one line an evaluation: step, loss, rate, seconds, and the judgement
`checkpoint/step-K/`   `model.safetensors` and `average.safetensors` (the weights and their
                       moving average), `training.pt` (optimizer and objective state: tensors
                       only, read with `weights_only`), `checkpoint.json` (version, step and shape of a point);
                       for a table also `best.safetensors` and `best.json`, the average with the
                       least validation NLL so far: its step, that NLL, columns, mean, std, log Z
                       and the energies of the test rows
`previews/`            samples of one seed after each evaluation, for images if asked for
`report.html`          the report (`fokker.report`)
=====================  ======================================================================

A checkpoint is written beside its place and renamed into it once it is whole and on disk, so what
is there is whole. The last two are kept. Nothing is unpickled but tensors.

A run is read with the weights that its task chooses: the last average on a 2-D set, whose points
are fresh forever, and the best one on a table. Training goes on from the last ones in any case.
"""

__all__ = ["VERSION", "Best", "Checkpoint", "Run", "load", "read_checkpoint", "write_checkpoint"]

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
from .samplers import MALA, Annealed, geometric
from .tasks import TableEnergy, Task, task_of

VERSION = 2  # of the layout above
KEEP = 2  # checkpoints
# what reading a damaged or hostile checkpoint may raise
BROKEN = (SafetensorError, KeyError, ValueError, RuntimeError, EOFError, OSError, UnpicklingError)


class Best(NamedTuple):
    r"""The averaged weights that a run is read with, where its task chooses among them."""

    step: int
    value: float  # the criterion, of which this is the least
    weights: dict[str, Tensor]
    card: dict[str, Any]  # what reading them needs


class Checkpoint(NamedTuple):
    r"""The whole state of a run after a number of steps."""

    step: int
    shape: tuple[int, ...]  # of a point
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    training: dict[str, Any]  # tensors, numbers, lists and dicts of them
    best: Best | None = None


@dataclass(frozen=True)
class Run:
    r"""A trained run."""

    path: Path
    config: Config
    energy: Energy  # of the averaged weights, (B, *) -> (B), in the units of the data
    shape: tuple[int, ...]  # of a point
    step: int  # steps done
    chosen: int  # the step whose weights these are: the last, or the best on validation rows
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl

    @property
    def weights(self) -> str:
        r"""Which weights these are, in words."""
        if not isinstance(self.energy, TableEnergy):
            return f"the weights of step {self.chosen}, the last"
        return f"the weights of step {self.chosen} of {self.step}, the best on the validation rows"

    @property
    def judged(self) -> dict[str, Any]:
        r"""The line of the metrics that judges these weights, or the newest before them."""
        return next((m for m in reversed(self.metrics) if m["step"] <= self.chosen), {})

    def task(self) -> Task:
        r"""Returns the task of the run, with the rows that it was trained on."""
        task = task_of(self.config)
        if isinstance(self.energy, TableEnergy):
            task.check(self.energy.card)
        return task

    def sample(self, n: int, seed: int = 0) -> Tensor:
        r"""Returns n points of the learned density, :math:`(n, D)`, in the units of the data: by MALA
        from a wide Gaussian cooled down (`fokker.samplers.annealed` says what that bends)."""
        table = self.energy if isinstance(self.energy, TableEnergy) else None
        inner, dim = (self.energy, 2) if table is None else (table.energy, len(table.columns))
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(n, dim, generator=generator)
        sampler = Annealed(MALA(1e-4, warmup=100), geometric(30.0, 12), steps=150)
        x = sampler.run(inner, start, 200, generator).samples[-1]
        return x if table is None else table.standardize.inverse(x)


def write_text(path: Path, text: str) -> None:
    r"""Writes a text file, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    r"""Writes a checkpoint into a run folder, whole or not at all, and drops the oldest."""
    root = folder / "checkpoint"
    target = root / f"step-{checkpoint.step:08d}"
    partial = root / f".partial-{checkpoint.step:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        write_parts(partial, checkpoint)
    except (OSError, SafetensorError, RuntimeError) as error:  # a full disk has many names
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"{target}: {first_line(error)}") from error
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    for old in sorted(root.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return target


def write_parts(folder: Path, checkpoint: Checkpoint) -> None:
    r"""Writes the files of a checkpoint, down to the disk."""
    whole = lambda tensors: {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    save_file(whole(checkpoint.model), folder / "model.safetensors")
    save_file(whole(checkpoint.average), folder / "average.safetensors")
    torch.save(checkpoint.training, folder / "training.pt")
    if checkpoint.best is not None:
        step, least, weights, card = checkpoint.best
        save_file(whole(weights), folder / "best.safetensors")
        content = {"step": step, "value": least, "card": card}
        (folder / "best.json").write_text(json.dumps(content, allow_nan=False))
    header = {"version": VERSION, "step": checkpoint.step, "shape": checkpoint.shape}
    (folder / "checkpoint.json").write_text(json.dumps(header))
    for file in folder.iterdir():
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def broken(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"expected a whole checkpoint in {path}, got a broken one: {first_line(error)}"
    )


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
        best = None
        if (path / "best.json").exists():
            said = json.loads((path / "best.json").read_text())
            weights = load_file(path / "best.safetensors")
            best = Best(int(said["step"]), float(said["value"]), weights, said["card"])
        shape = header.get("shape") or [2 if best is None else len(best.card["columns"])]
        return Checkpoint(
            step,
            tuple(shape),
            load_file(path / "model.safetensors"),
            load_file(path / "average.safetensors"),
            torch.load(path / "training.pt", map_location="cpu", weights_only=True),
            best,
        )
    except BROKEN as error:
        raise broken(path, error) from None


def write_metrics(folder: Path, lines: list[dict[str, Any]]) -> None:
    r"""Writes the lines of `metrics.jsonl`."""
    write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def read_metrics(folder: Path, step: int) -> list[dict[str, Any]]:
    r"""Reads the lines of `metrics.jsonl` up to a step; none if there is no such file. What was
    judged after the last checkpoint is judged anew."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["step"] <= step]


def read_config(folder: Path) -> Config:
    r"""Reads the configuration of a run folder."""
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"expected a run folder with a config.toml, got {folder}, which has none")
    return configs.loads(path.read_text())


def build(config: Config, shape: tuple[int, ...]) -> Energy:
    r"""Returns the energy of a configuration, of points of a shape, initialized from its seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return config.network.build(shape)


def load(path: str | Path) -> Run:
    r"""Returns a trained run: its energy, its configuration and its metrics.

    Arguments:
        path: The run folder, or the name of an energy that comes with the package (`fokker.shipped`).

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
        from .shipped import read

        return read(str(path))
    config = read_config(folder)
    checkpoint = read_checkpoint(folder)
    best = checkpoint.best
    if best is None and isinstance(config.data, TableData):
        raise ValueError(
            f"expected weights chosen by validation rows in {folder}, got none: it was stopped"
            " before its first evaluation (resume it), or made by an older fokker (train it again)"
        )
    energy = build(config, checkpoint.shape)
    try:
        energy.load_state_dict(checkpoint.average if best is None else best.weights)
    except RuntimeError as error:
        raise ValueError(
            f"expected weights of the network in {folder / 'config.toml'}, got others: "
            + str(error).splitlines()[-1].strip()
        ) from None
    if best is not None:
        energy = TableEnergy(energy, best.card)
    energy.requires_grad_(False)
    chosen = checkpoint.step if best is None else best.step
    lines = read_metrics(folder, checkpoint.step)
    return Run(folder, config, energy, checkpoint.shape, checkpoint.step, chosen, lines)
