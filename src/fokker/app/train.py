r"""`fokker train toy | table | denoising | photographs | generation`.

The options of a command are those below and one for each setting of the configuration
(`settings.py`).
"""

__all__ = ["TrainDenoising", "TrainGeneration", "TrainPhotographs", "TrainTable", "TrainToy"]

import shlex
import sys
import tyro

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing import Any, ClassVar

from .output import mute
from .report import write_report
from .settings import Setting, Source, apply, with_settings
from .. import checks
from ..compute.ranks import first_rank
from ..objectives import LevelDCD
from ..pace import Pace, told
from ..runs.config import (
    Config,
    Correction,
    ImageData,
    Milestones,
    Network,
    Optimization,
    ResNet,
    TableData,
    ToyData,
    UNet,
)
from ..runs.guard import Guard
from ..runs.presets import (
    generation_config,
    image_config,
    mixture_config,
    photograph_config,
    preset,
    table_config,
)
from ..runs.toml import dumps
from ..runs.tracking import tensorboard
from ..runs.training import SAVE, fit
from ..tasks import Run, task_of

DIGITS = ("mnist", "svhn")  # their mirror images are not digits
COMMON = (
    Source(Optimization, ("optimization",), off=("clip", "muon")),
    Source(Config, (), off=("patience",)),
    Source(Guard, ("guard",), {"policy": "on_divergence"}, "guard_"),
)
TABLES = {"mixture": mixture_config, "network": table_config}
TOLD = {"form": "network_form", "augmented": ""}  # the last is set with the augmentation
MARKS = {"every": "fid_every", "few": "fid_few", "at": "fid_at", "many": "fid_many"}
IMAGES = {"source": "", "size": "side", "flip": "", "crop": ""}  # options by fields of ImageData
PLAIN = {**IMAGES, "augment": "", "drop": ""}  # without what only an energy of levels is told


@dataclass(frozen=True)
class Train:
    r"""Options of every training command that are no settings of the run."""

    out: Path | None = None
    """The run folder; named under runs/ if not given."""
    resume: bool = False
    """Continue the run in --out, from its newest whole checkpoint."""
    restartable: bool = False
    """Continue the run in --out if there is one, begin it if not: for jobs that are restarted."""
    minutes: float | None = None
    """Save and stop after this many minutes of this call, to be resumed; train to the end if not
    given. Reading the data, compiling and FIDs count."""
    save_minutes: float = SAVE
    """Save after this many minutes at the latest, also between evaluations: what a process that is
    killed loses, at most."""
    tensorboard: bool = False
    """Also write the curves for TensorBoard into the run folder."""
    dry_run: bool = False
    """Print the resolved configuration and train nothing."""
    settings: ClassVar[dict[str, Setting]] = {}

    def given(self, option: str, default: Any) -> Any:
        r"""Returns the value of an option that a setting has made, or a default if it was not
        given."""
        value = getattr(self, option)
        return default if value is None else value

    def train(self, base: Config, name: str) -> Run:
        r"""Trains with a progress bar and prints where the run is.

        Arguments:
            base: The configuration of the preset, changed here by the options that were given.
            name: The name of the run folder under runs/ if none is given.
        """
        config, out = apply(self, self.moved(self.counted(base))), self.out or Path("runs") / name
        if self.dry_run:
            print(dumps(config), end="")
            sys.exit(0)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
        )
        columns = (*columns, TimeRemainingColumn(), SpeedColumn())
        task = task_of(config)
        curves = tensorboard(out) if self.tensorboard else nullcontext(lambda step, line: None)
        output = Output()
        bars = Progress(*columns, console=output, disable=not first_rank())
        with curves as log, bars as bar:
            shown = bar.add_task(name, total=config.optimization.steps)
            silent = output.is_terminal or self.minutes is not None or not first_rank()
            pace: list[Callable[[float], None]] = []  # from the first step of this call on

            def tick(step: int, line: dict[str, Any]) -> None:
                bar.update(shown, completed=step)
                if not pace:
                    begun = Pace(name, say=None if silent else told)
                    pace.append(begun.within(config.optimization.steps, step))
                pace[0](step)
                log(step, line)
                if task.judges(line):
                    output.print(task.describe(line))

            resume = "if-any" if self.restartable else self.resume
            try:
                run = fit(
                    config,
                    out,
                    resume,
                    tick,
                    self.minutes,
                    output.print,
                    watch=lambda step, loss, average: output.closed,
                    save=self.save_minutes,
                )
            except (ValueError, OSError):  # one line follows; no bar before it
                bar.update(shown, visible=False)
                raise
            bar.update(shown, completed=run.step)  # a run that had ended before has no tick
        if not first_rank():
            sys.exit(0)  # the first rank writes the report
        print(f"run: {out}")
        return run

    def counted(self, base: Config) -> Config:
        r"""Returns a configuration with as many steps as a budget of images has, if one was
        given."""
        images = getattr(self, "images", None)
        if images is None:
            return base
        checks.positive_integer(images=images)
        if (steps := self.given("steps", None)) is not None:
            raise ValueError(f"expected --images or --steps, got both, {images} and {steps}")
        batch = self.given("batch", base.optimization.batch)
        checks.positive_integer(batch=batch)
        steps = -(-images // batch)
        warmup = min(base.optimization.warmup, steps // 5)
        return replace(
            base, optimization=replace(base.optimization, steps=steps, batch=batch, warmup=warmup)
        )

    def moved(self, base: Config) -> Config:
        r"""Returns a configuration with the augmentation that was asked for, of which the network
        is told."""
        p = getattr(self, "augment", None)
        if not p:
            return base
        data: Any = base.data
        network: Any = base.network
        data, network = replace(data, augment=p), replace(network, augmented=True)
        return replace(base, data=data, network=network)

    def report(self, run: Run, hint: str = "") -> None:
        r"""Prints the judgement of a run, writes its report and prints what to do next."""
        print(f"{run.task.describe(run.judged)}\nby {run.weights}")
        print(f"report: {write_report(run)}")
        if hint:
            print(hint)


@with_settings(*COMMON, Source(ToyData, ("data",), {"name": ""}), Source(Network, ("network",)))
@dataclass(frozen=True)
class TrainToy(Train):
    """Train an energy on a 2-D set, judge it against the exact density and write a report."""

    data: str = "rings"
    """The set: swissroll, circles, rings, moons, 8gaussians, 2spirals, checkerboard, pinwheel."""
    preset: str = "fokker"
    """The settings: paper (the appendix's) or fokker (our own)."""
    objective: str = "dcd"
    """The method: dcd, cd, pcd; with preset fokker also sm, ssm, dsm, ed, recovery."""

    def run(self) -> None:
        base = preset(self.preset, self.objective, self.data)
        run = self.train(base, f"{self.data}-{self.objective}-{self.given('seed', 0)}")
        self.report(run)


@with_settings(
    *COMMON,
    Source(TableData, ("data",), {"path": ""}),
    Source(Correction, ("network",)),
    Source(Network, ("network",)),
)
@dataclass(frozen=True)
class TrainTable(Train):
    """Train a density of your own points, judge it on rows kept aside and write a report."""

    data: Path = tyro.MISSING
    """The file: .csv, .tsv, .npy or .parquet, one point per row."""
    preset: str = "mixture"
    """The settings: mixture (a mixture of Gaussians under a learned correction; seconds) or
    network (a perceptron alone, by the multi-time divergence; minutes)."""

    def run(self) -> None:
        if self.preset not in TABLES:
            raise checks.unknown(self.preset, list(TABLES), "a preset", "--preset")
        base = TABLES[self.preset](str(self.data))
        run = self.train(base, f"{self.data.stem}-{self.given('seed', 0)}")
        if run.step < run.config.optimization.steps:
            spent = f"{run.config.patience} evaluations brought no better one"
            print(f"stopped after step {run.step}: {spent}")
        self.report(run, "scores of points: " + command("score", run.path, self.data))


@with_settings(
    *COMMON,
    Source(ImageData, ("data",), PLAIN),
    Source(UNet, ("network",), {"augmented": "", "classes": ""}),
    Source(ResNet, ("network",)),
)
@dataclass(frozen=True)
class TrainDenoising(Train):
    """Train an energy of images at one noise level or many, judged by denoising."""

    data: str = "mnist"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files
    as Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd, dcd-path, dcd-bridge, cd (paper); dcd, dcd-central, dcd-limit, reference
    (fokker)."""

    def run(self) -> None:
        images = ImageData(self.data)
        device, seed = self.given("device", "cpu"), self.given("seed", 0)
        if self.objective == "reference" and (form := self.given("form", None)) is not None:
            raise ValueError(f"expected no form for reference, a plain denoiser, got {form!r}")
        base = image_config(self.preset, self.objective, images, device, seed)
        run = self.train(base, f"{images.title}-{self.objective}-{seed}")
        words = command("denoise", "noisy.png", "--energy", run.path)
        self.report(run, f"denoise a picture: {words}")


@with_settings(
    *COMMON,
    Source(ImageData, ("data",), {**IMAGES, "crop": "crop"}),
    Source(UNet, ("network",)),
)
@dataclass(frozen=True)
class TrainPhotographs(Train):
    """Train an energy of photographs at noise of 1 to 100 of 255, to denoise and to restore."""

    data: str = tyro.MISSING
    """A folder of photographs of one size (image files, or Parquet files as Hugging Face lays them
    out), hub:OWNER/NAME or the name of a set. One file in ten is kept aside for tests."""
    objective: str = "dcd-central"
    """The method: dcd-central, dcd-limit or reference (a plain denoiser, no energy)."""
    time_score: float = 0.0
    """The weight of the time score, which ties the noise levels; none if zero."""

    def run(self) -> None:
        images = ImageData(self.data, flip=True, crop=64)
        device, seed = self.given("device", "cpu"), self.given("seed", 0)
        base = photograph_config(self.objective, images, device, seed, self.time_score)
        run = self.train(base, f"{images.title}-photographs-{seed}")
        words = command("denoise", "noisy.png", "--energy", run.path)
        self.report(run, f"denoise a picture: {words}")


@with_settings(
    *COMMON,
    Source(ImageData, ("data",), IMAGES),
    Source(Milestones, ("milestones",), MARKS),
    Source(LevelDCD, ("objective",), {"sigma_data": "", "conditional": ""}),
    Source(UNet, ("network",), TOLD),
)
@dataclass(frozen=True)
class TrainGeneration(Train):
    """Train an energy of images at every noise level, to draw new images from."""

    data: str = "cifar10"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files
    as Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    flip: bool = True
    """Mirror training images at random: not for letters. Digits, mnist and svhn, never are."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd, dcd-grid, dcd-grid-bridge, dcd-limit (paper); dcd, dcd-central, dcd-limit,
    dcd-vp, reference (fokker)."""
    size: str = "base"
    """The size of the network: small, base or large."""
    images: int | None = None
    """The number of training images in all, such as 40_000_000, in place of --steps: a budget that
    is fixed before the run starts."""
    levels: str | None = None
    """The law of the noise levels: log-normal, uniform, grid, vp or wide (log-normal, and a
    quarter log-uniform from 0.002 to 80, as a likelihood needs); the preset's if not given."""
    form: str | None = None
    """The form of the divergence: limit, central, bridge, path or hutchinson; that of the method
    if not given."""
    step: float | None = None
    """The step of the form, a share of the variance of the noise; its own if not given."""
    time_score: float = 0.0
    """The weight of the time score, which ties the energies of all levels together."""
    classify: float = 0.0
    """The weight of the classification of noise levels, which ties them too."""
    adam_alone: bool = False
    """Move all weights by Adam, without Muon."""

    def run(self) -> None:
        images = ImageData(self.data)
        images = replace(images, flip=self.flip and images.title not in DIGITS)
        device, seed = self.given("device", "cpu"), self.given("seed", 0)
        checks.not_negative(time_score=self.time_score, classify=self.classify)
        options = {"levels": self.levels, "form": self.form, "step": self.step}
        options |= {"time": self.time_score, "classify": self.classify}
        base = generation_config(
            self.preset, self.objective, images, self.size, device, seed, **options
        )
        if self.adam_alone:
            base = replace(base, optimization=replace(base.optimization, muon=None))
        method = self.objective if self.form is None else f"dcd-{self.form}"
        run = self.train(base, f"{images.title}-{self.preset}-{method}-{self.size}-{seed}")
        self.report(run, "images: " + command("sample", run.path, "-n", "64", "-o", "samples.png"))


def command(name: str, *words: object) -> str:
    r"""Returns a command of fokker as a shell reads it, whatever a path holds."""
    return shlex.join(["fokker", name, *map(str, words)])


class Output(Console):
    r"""Standard output. What cannot be printed any more, as after `| head -1`, ends no step:
    training is told to save and stop."""

    closed = False

    def on_broken_pipe(self) -> None:
        self.closed = True
        mute()

    def print(self, *words: Any, **options: Any) -> None:
        options = {"markup": False, **options}  # brackets in a path are none
        try:
            super().print(*words, **options)
        except OSError:  # a full disk, a terminal that has gone
            self.on_broken_pipe()


class SpeedColumn(ProgressColumn):
    r"""Steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} steps/s")
