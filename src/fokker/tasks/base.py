r"""Tasks: what a kind of data means for a run.

A task owns everything that depends on the kind of its data: how it is loaded, how a batch is
drawn, how an energy is judged and in which words, how samples are drawn and written, how points
are scored, and the body of the report. The training loop, the commands and the studio ask the task
and never ask which kind it is.

`Task(config)` reads nothing; `load` reads the data. The methods before it in this class work
without data, so that a run can be sampled where its data is not.
"""

__all__ = ["Line", "Plane", "PointTask", "Run", "Task", "TooLate"]

import abc
import csv
import io
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from torch import Tensor
from typing import Any, ClassVar, NamedTuple, Self

from .options import Denoising, Drawing, Evaluation, Restoration, Scoring
from .. import checks
from ..compute.ranks import ALONE, Ranks, first_rank
from ..energies import Denoiser, Energy
from ..files import save_npy, write_bytes
from ..grid import Grid
from ..networks.convolution import Precise
from ..runs.config import Config
from ..runs.history import History
from ..samplers import Sampled, draw

Line = dict[str, Any]  # of metrics.jsonl


class TooLate(Exception):
    r"""There is no time left for a job; it is done by the next call."""


class Plane(NamedTuple):
    r"""Data in the plane, as the studio draws it."""

    half: float  # half the side of the window
    step: float  # step size of a Langevin chain
    data: Tensor  # (N, 2)
    scores: Tensor | None  # (M, 2), the true scores of the first points, where there is a truth
    true_energy: Callable[[Grid], Tensor]  # at the centers of a grid
    exact: bool  # whether that is the truth, not an estimate
    units: Callable[[Tensor], Tensor]  # from the plane to the units of training
    rows: dict[str, Tensor]  # rows in the units of training, by the name of their likelihood


@dataclass(frozen=True)
class Run:
    r"""A trained run."""

    path: Path
    config: Config
    task: "Task"  # its data is not loaded
    energy: Energy | Denoiser  # averaged weights, float32, (B, *) -> (B) in the units of the data
    shape: tuple[int, ...]  # of a point
    step: int  # steps done
    chosen: int  # the step whose weights these are: the last, or the best on validation rows
    metrics: list[Line]  # one line per evaluation
    events: tuple[Line, ...] = ()  # divergences, and what was done about them
    starts: tuple[Line, ...] = ()  # of training, see `fokker.runs.history`
    seconds: float = 0.0  # of training
    average: str = ""  # how the weights were averaged, in words, if not as usual

    @property
    def weights(self) -> str:
        r"""Which weights these are, in words."""
        return f"the weights of step {self.chosen}{self.task.choice(self.step)}{self.average}"

    @property
    def history(self) -> History:
        r"""What the run has seen, and how it came about."""
        seen = self.step * self.config.optimization.batch
        return History(seen, self.task.noun, self.seconds, self.starts)

    @property
    def judged(self) -> Line:
        r"""The line of the metrics that judges these weights, or the newest before them."""
        return next((m for m in reversed(self.metrics) if m["step"] <= self.chosen), {})

    def loaded(self, fetch: bool = False) -> Any:
        r"""Returns the task of the run with its data loaded, the data that it was trained on.

        Arguments:
            fetch: Whether data that is not on this machine is fetched from the network. The run
                may be a stranger's: its configuration alone reaches nothing.
        """
        absent = self.config.data.absent()
        if absent is not None and not fetch:
            raise ValueError(
                f"expected the data of {self.path} on this machine, got none of {absent}; --fetch"
                " fetches it from the Hugging Face hub"
            )
        return self.task.load().check(self)

    def sample(self, n: int, seed: int = 0, force: bool = False) -> Tensor:
        r"""Returns n points of the learned density, :math:`(n, D)`, in the units of the data.

        Raises `fokker.samplers.Unreliable`, with the reason, if they are not to be trusted.

        Arguments:
            n: The number of points.
            seed: The seed.
            force: Whether points that are not to be trusted are returned all the same.
        """
        drawn = self.draw(n, seed)
        if not force:
            drawn.verdict.trust()
        return drawn.points

    def draw(self, n: int, seed: int = 0) -> Sampled:
        r"""Returns n points of the learned density, and the verdict on them."""
        return self.task.sample(self, n, seed)

    def energy_on(self, device: torch.device | str, exact: bool = False) -> Any:
        r"""Returns the energy on a device, its layers in the precision of the configuration.

        On a CPU, which is slow in bfloat16, and where values of the energy count, the layers are
        in float32.

        Arguments:
            device: The device.
            exact: Whether values of the energy count, as for an acceptance or a likelihood. In
                bfloat16 they are off by nats.
        """
        if exact and isinstance(self.energy, Denoiser):
            raise ValueError(
                f"expected an energy, because its values are needed, got {self.path}, a denoiser"
            )
        energy = self.energy.to(device)
        if exact or torch.device(device).type == "cpu" or not isinstance(energy, Precise):
            return energy
        return energy.cast(self.config.precision)


class Task(abc.ABC):
    r"""Abstract task. Constructing one reads nothing.

    Arguments:
        config: The configuration of the run.
    """

    kind: ClassVar[str]  # in words, such as "a table"
    criterion: ClassVar[str | None] = (
        None  # figure whose least value chooses weights; None: the last
    )
    noun: ClassVar[str] = "points"  # what a batch consists of
    merit: ClassVar[str | None] = None  # figure whose least value marks the best checkpoint
    shape: tuple[int, ...]  # of a point; known once the data is loaded

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def title(self) -> str:
        r"""The name of the data."""
        return self.config.data.title

    def refuse(self, what: str, run: "Run") -> ValueError:
        r"""Returns the error of a job that this kind of data does not have."""
        return ValueError(f"expected {what}, got {run.path}, a run on {self.kind}")

    # --- without data ---

    def choice(self, step: int) -> str:
        r"""Returns how the weights of a run were chosen, in words, after its last step."""
        return ", the last"

    @abc.abstractmethod
    def describe(self, line: Line) -> str:
        r"""Returns the judgement of an energy in words, on one line."""

    def judges(self, line: Line) -> bool:
        r"""Returns whether a line of the metrics holds a judgement."""
        return self.merit in line

    def wrap(self, energy: Any, card: Line | None) -> Any:
        r"""Returns the energy in the units of the data, from the trained one and what `card`
        returned."""
        return energy

    def blank(self, shape: tuple[int, ...], weights: dict[str, Tensor]) -> Energy | Denoiser:
        r"""Returns the network that weights which were read are for, in float32 layers; the
        weights are put into it afterwards.

        Arguments:
            shape: The shape of a point.
            weights: The weights by name.
        """
        return self.config.build(shape, "float32")

    def unwrap(self, energy: Any) -> Any:
        r"""Returns the trained energy from the one in the units of the data."""
        return energy

    def sample(self, run: "Run", n: int, seed: int) -> Sampled:
        r"""Returns n points of the learned density, in the units of the data, and the verdict on
        them; raises `fokker.samplers.Unreliable` if there is nothing to return."""
        raise self.refuse("a run on points to draw points from", run)

    @abc.abstractmethod
    def draw(self, run: "Run", drawing: Drawing, guide: "tuple[Run, float] | None") -> str | None:
        r"""Draws samples, writes them to a file and returns a line about it, on the first rank.

        Arguments:
            run: The run.
            drawing: How many, how, and the file.
            guide: A worse run of the same data to be guided away from, and the weight.
        """

    def check_guide(self, run: "Run", guide: "Run") -> None:
        r"""Raises unless another run can guide the samples of a run."""
        raise self.refuse("a run on images for --guide", run)

    def denoise(self, run: "Run", picture: Path, out: Path, denoising: Denoising) -> str:
        r"""Denoises a picture, writes it to a file and returns a line about it."""
        raise self.refuse("a run on images to denoise with", run)

    def restore(self, run: "Run", picture: Path, out: Path, restoration: Restoration) -> str:
        r"""Restores a picture, writes it to a file and returns lines about it."""
        raise self.refuse("a run on images to restore with", run)

    def score(self, run: "Run", points: Path, out: Path, scoring: Scoring = Scoring()) -> str:
        r"""Scores the points of a file, writes the scores to another and returns a line about
        it."""
        raise self.refuse("a run on a table to score points with", run)

    def shippable(self, run: "Run") -> Config:
        r"""Returns the configuration under which a run is shipped: for a CPU, without paths of a
        machine."""
        raise self.refuse("a run on images to export", run)

    # --- with data ---

    @abc.abstractmethod
    def load(self) -> Self:
        r"""Reads the data and returns the task."""

    def check(self, run: "Run") -> Self:
        r"""Returns the task if its data is what a run was trained on."""
        return self

    def fingerprint(self) -> str | None:
        r"""Returns a hash of the data; `None` where the configuration says all that there is."""
        return None

    def check_card(self, card: Line) -> None:  # noqa: B027
        r"""Raises unless the data is what it was when `card` returned this."""

    def network(self) -> Energy | Denoiser:
        r"""Returns the network to train, at its start."""
        return self.config.build(self.shape)

    @abc.abstractmethod
    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Returns n training points, :math:`(n, *)` in float32, on the device of the
        generator."""

    def labelled(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        r"""Returns n training points as `batch` does, and the classes that the network is told;
        `None` of one without classes."""
        return self.batch(n, generator), None

    @abc.abstractmethod
    def judge(self, energy: Any, device: torch.device, ranks: Ranks = ALONE) -> Line:
        r"""Returns the figures that judge an energy, the same on all ranks; `None` where one is
        not finite.

        Arguments:
            energy: The energy, in the units of training.
            device: The device of the energy.
            ranks: The ranks that share the work.
        """

    def card(self, energy: Any, device: torch.device) -> Line:
        r"""Returns what reading the run needs beside its weights, in the types of JSON."""
        return {}

    def complete(self, energy: Any, device: torch.device) -> tuple[Line, Line]:
        r"""Returns what is found only once, at the end of training, of the chosen weights: for the
        card, and for their line of the metrics."""
        return {}, {}

    def preview(  # noqa: B027
        self, energy: Any, device: torch.device, folder: Path, step: int, ranks: Ranks = ALONE
    ) -> None:
        r"""Saves a picture of an energy after a step in a run folder, where the task has one to
        draw."""

    def prepare_quality(self, device: torch.device) -> None:
        r"""Reads what `quality` needs, so that what is missing is told before training; raises
        where the samples of this kind of data have no FID."""
        raise ValueError(f"expected FIDs only for a run on images, got {self.kind}")

    def quality(
        self,
        energy: Any,
        counts: Sequence[int],
        device: torch.device,
        ranks: Ranks = ALONE,
        left: Callable[[], float | None] = lambda: None,
    ) -> list[Line]:
        r"""Returns how near samples are to the training data, a line for each number of samples.

        Arguments:
            energy: The energy, in the units of training.
            counts: The numbers of samples, the least first.
            device: The device of the energy.
            ranks: The ranks that share the work.
            left: The seconds that are left, `None` without a limit; raises `TooLate` where they do
                not suffice.
        """
        raise ValueError(f"expected FIDs only for a run on images, got {self.kind}")

    def evaluate(
        self,
        run: "Run",
        evaluation: Evaluation,
        guide: "tuple[Run, float] | None",
        ranks: Ranks,
    ) -> tuple[Line, list[str]]:
        r"""Returns the figures that judge a run, and the same in words."""
        if evaluation.asked:
            given = " and ".join(f"--{name}" for name in evaluation.asked)
            raise self.refuse(f"a run on images for {given}", run)
        return self.judge_run(run, ranks)

    def judge_run(self, run: "Run", ranks: Ranks) -> tuple[Line, list[str]]:
        r"""Returns the judgement of the weights of a run, and the same in words."""
        energy = self.unwrap(run.energy).to(ranks.device)
        line = {"step": run.chosen, **self.judge(energy, ranks.device, ranks)}
        return line, [self.describe(line), f"by {run.weights}"]

    @abc.abstractmethod
    def report(self, run: "Run") -> str:
        r"""Returns the body of the report in HTML, and saves its pictures in the run folder."""

    def plane(self) -> Plane:
        r"""Returns the data in the plane, as the studio draws it."""
        raise ValueError(f"expected data in the plane, got {self.config.data}")


class PointTask(Task):
    r"""Abstract task of points :math:`(N, D)`."""

    def columns(self, run: Run) -> tuple[str, ...]:
        r"""Returns the names of the columns of a point."""
        return tuple(f"x{i}" for i in range(run.shape[0]))

    def cells(self, run: Run, rows: list[list[float]]) -> list[list[Any]]:
        r"""Returns the cells of points as a text holds them."""
        return rows

    def sample(self, run: Run, n: int, seed: int) -> Sampled:
        generator = torch.Generator().manual_seed(seed)
        return draw(run.energy, n, dim=run.shape[0], generator=generator)

    def draw(self, run: Run, drawing: Drawing, guide: tuple[Run, float] | None) -> str | None:
        n, out = drawing.place(1000, Path("samples.csv"), (".csv", ".npy"))
        if given := ", ".join(drawing.sampling.changed):
            raise self.refuse(f"{given} only for a run on images", run)
        if not first_rank():
            return None
        drawn = run.draw(n, checks.seed(drawing.seed))
        if not drawing.force:
            drawn.verdict.trust()
        x = drawn.points.numpy()
        if out.suffix == ".npy":
            save_npy(out, x)
        else:
            text = io.StringIO(newline="")
            csv.writer(text).writerows([self.columns(run), *self.cells(run, x.tolist())])
            write_bytes(out, text.getvalue().encode())
        return f"{n} points: {out}, by {run.weights}\n{drawn.verdict.sentence}"
