r"""Run folders: what a training run leaves behind, and how it is read.

=====================  ======================================================================
`config.toml`          all that the run depends on (`fokker.runs.config`, `fokker.runs.toml`)
`metrics.jsonl`        one line an evaluation: step, loss, rate, seconds, diagnostics and the
                       judgement; and one an event, a divergence and what was done about it
`checkpoint/step-K/`   the whole state after K steps (`fokker.runs.checkpoints`)
`previews/`            samples of one seed after each evaluation, for images if asked for
`report.html`          the report (`fokker.app.report`)
=====================  ======================================================================

A run is read with the weights that its task chooses: the last average on a 2-D set, whose points
are fresh forever, and the best one on a table. Training goes on from the last ones in any case.
"""

__all__ = ["VERSION", "Best", "Checkpoint", "Run", "load", "read_checkpoint", "write_checkpoint"]

import json
import os
import torch

from dataclasses import dataclass
from pathlib import Path
from torch import Tensor
from typing import Any

from . import toml
from .checkpoints import BROKEN, VERSION, Best, Checkpoint, first_line, read
from .checkpoints import newest as read_checkpoint
from .checkpoints import write as write_checkpoint
from ..checks import brief
from .config import Config, TableData, ToyData
from ..energies import Energy
from ..metrics.density import square
from ..samplers import MALA, Annealed, geometric, invert, invert_anywhere
from ..tasks import TableEnergy, Task, task_of


@dataclass(frozen=True)
class Run:
    r"""A trained run."""

    path: Path
    config: Config
    energy: Energy  # of the averaged weights, (B, *) -> (B), in the units of the data
    shape: tuple[int, ...]  # of a point
    step: int  # steps done
    chosen: int  # the step whose weights these are: the last, or the best on validation rows
    metrics: list[dict[str, Any]]  # one line an evaluation
    events: tuple[dict[str, Any], ...] = ()  # divergences, and what was done about them

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
        r"""Returns n points of the learned density, :math:`(n, D)`, in the units of the data.

        In two dimensions the points are exact and independent (`fokker.samplers.inversion`); on a 2-D set
        the density is that on the square by which the run is judged. In other dimensions they are the ends
        of MALA chains that start from a wide Gaussian and are cooled down; nothing checks that these
        have arrived (`fokker.samplers.annealed`).
        """
        generator = torch.Generator().manual_seed(seed)
        if isinstance(self.config.data, ToyData):
            return invert(self.energy, square(self.config.data.build()), n, generator).samples
        if not isinstance(self.energy, TableEnergy):
            raise ValueError(f"expected a run on points, got {self.path}: see fokker.images.generate")
        inner, dim = self.energy.energy, len(self.energy.columns)
        if dim == 2:
            x = invert_anywhere(inner, n, generator).samples
        else:
            start = torch.randn(n, dim, generator=generator)
            sampler = Annealed(MALA(1e-4, warmup=100), geometric(30.0, 12), steps=150)
            x = sampler.run(inner, start, 200, generator).samples[-1]
        return self.energy.standardize.inverse(x)


def write_text(path: Path, text: str) -> None:
    r"""Writes a text file, whole or not at all, down to the disk."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_metrics(folder: Path, lines: list[dict[str, Any]]) -> None:
    r"""Writes the lines of `metrics.jsonl`."""
    write_text(
        folder / "metrics.jsonl",
        "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines),
    )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    r"""Reads the lines of `metrics.jsonl`; none if there is no such file."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        return [
            (line := json.loads(text)) | {"step": int(line["step"])}
            for text in path.read_text().splitlines()
        ]
    except BROKEN as error:
        raise ValueError(
            f"expected lines of JSON with a step in {path}, got {first_line(error)}"
        ) from None


def read_config(folder: Path) -> Config:
    r"""Reads the configuration of a run folder."""
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"expected a run folder with a config.toml, got {folder}, which has none")
    with path.open("rb") as file:
        content = file.read(4 * toml.LONGEST + 1)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected a text in UTF-8 in {path}, got {error}") from None
    return toml.loads(text)


def build(config: Config, shape: tuple[int, ...]) -> Energy:
    r"""Returns the energy of a configuration, of points of a shape, initialized from its seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return config.network.build(shape)


def restore(
    config: Config, shape: tuple[int, ...], weights: dict[str, Tensor], place: Path
) -> Energy:
    r"""Returns the energy of a configuration with weights that were read.

    The network is made without storage first: one that does not fit the weights is refused before it
    takes any memory, so that a file of a few bytes cannot ask for a network of any size.

    Arguments:
        config: The configuration.
        shape: The shape of a point.
        weights: The weights by name.
        place: Where the configuration lies, for the error.
    """
    try:
        with torch.device("meta"):
            blank = config.network.build(shape).state_dict()
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
    energy = build(config, shape)
    energy.load_state_dict(weights)
    return energy


def load(path: str | Path, best: bool = False) -> Run:
    r"""Returns a trained run: its energy, its configuration and its metrics.

    Arguments:
        path: The run folder, or the name of an energy that comes with the package (`fokker.runs.shipped`).
        best: Whether to read the best judged checkpoint instead of the newest; for a run that got worse.

    Example:
        >>> from fokker import fit
        >>> from fokker.runs.config import Network, Optimization
        >>> from tempfile import TemporaryDirectory
        >>> short = Config(network=Network(width=8), optimization=Optimization(steps=2))
        >>> with TemporaryDirectory() as folder:
        ...     run = load(fit(short, folder).path)
        >>> run.step, run.energy(torch.zeros(1, 2)).shape
        (2, torch.Size([1]))
    """
    from . import shipped

    folder = Path(path)
    # a folder of images may have the name of a shipped energy
    own = str(path) in shipped.names() and not (folder / "config.toml").exists()
    if own or not folder.is_dir():
        return shipped.read(str(path))
    config = read_config(folder)
    checkpoint = read_checkpoint(folder)
    if best and checkpoint.leader is not None:
        checkpoint = read(folder / "checkpoint" / str(checkpoint.leader[1]))
    chosen = checkpoint.best
    if chosen is None and isinstance(config.data, TableData):
        raise ValueError(
            f"expected weights chosen by validation rows in {folder}, got none: it was stopped"
            " before its first evaluation (resume it), or made by an older fokker (train it again)"
        )
    weights = checkpoint.average if chosen is None else chosen.weights
    energy = restore(config, checkpoint.shape, weights, folder / "config.toml")
    if chosen is not None:
        try:
            energy = TableEnergy(energy, chosen.card)
        except BROKEN as error:
            raise ValueError(
                f"expected the columns of a table in {folder}, got others: {first_line(error)}"
            ) from None
    energy.requires_grad_(False)
    found = read_metrics(folder)
    lines = checkpoint.lines  # those that go with the weights
    if lines is None:
        lines = [line for line in found if line["step"] <= checkpoint.step]
    return Run(
        folder,
        config,
        energy,
        checkpoint.shape,
        checkpoint.step,
        checkpoint.step if chosen is None else chosen.step,
        [line for line in lines if "event" not in line],
        tuple(line for line in found if "event" in line),
    )
