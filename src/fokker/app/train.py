r"""`fokker train toy | table | denoising | generation`."""

__all__ = ["TrainDenoising", "TrainGeneration", "TrainTable", "TrainToy"]

import sys
import tyro

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
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
from typing import Any, Literal

from .judge import judgement
from .. import checks
from ..compute.ranks import first_rank
from ..data.sources import name_of
from ..networks import unet, wideresnet
from ..runs.config import Config, ImageData, Network, ResNet, UNet
from ..runs.folder import Run
from ..runs.presets import generation_config, image_config, preset, table_config

AnyNetwork = Network | ResNet | UNet
DIGITS = ("mnist", "svhn")  # a mirror image is none


@dataclass(frozen=True)
class Train:
    r"""Options of every training command."""

    steps: int | None = None
    """The number of steps; the preset's if not given."""
    batch: int | None = None
    """The number of points, or images, a step; the preset's if not given."""
    width: int | None = None
    """The number of units a hidden layer, or of channels of a U-Net's first level; the preset's if not
    given."""
    rate: float | None = None
    """The learning rate, of Adam; the preset's if not given."""
    clip: float | None = None
    """The largest norm of the gradient; not clipped if not given."""
    compile: bool = False
    """Compile the training step: tens of seconds once, then faster steps. On a GPU, steps on images
    always are."""
    slices: int = 1
    """Take each batch in so many slices one after another, where it does not fit into memory: the
    same gradient up to rounding."""
    evaluate: int | None = None
    """The number of steps between evaluations and checkpoints; the preset's if not given."""
    seed: int = 0
    """The seed of weights, data and noise."""
    device: str = "cpu"
    """The device to train on."""
    out: Path | None = None
    """The run folder; named under runs/ if not given."""
    resume: bool = False
    """Go on with the run in --out, from its newest whole checkpoint."""
    restarts: tuple[int, ...] = ()
    """The steps at which the rate begins anew. With --resume, the last step of a run that has ended, and
    more --steps: it goes on."""
    restartable: bool = False
    """Go on with the run in --out if there is one, begin it if not: for jobs that are restarted."""
    on_divergence: Literal["stop", "roll-back"] = "stop"
    """Stop a run that diverges, or roll it back to its last good checkpoint with a lower rate and
    another seed, a few times."""
    keep: int | None = None
    """The number of checkpoints kept, beside the best; the preset's if not given."""
    minutes: float | None = None
    """Save and stop after so many minutes, to be resumed; train to the end if not given."""
    tensorboard: bool = False
    """Also write the curves for TensorBoard into the run folder."""

    def with_options(self, base: Config) -> Config:
        r"""Returns a configuration changed by the options that were given."""
        given = {"steps": self.steps, "batch": self.batch, "rate": self.rate, "clip": self.clip}
        changed: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        changed["restarts"] = self.restarts
        return replace(
            base,
            network=self.with_width(base.network),
            optimization=replace(base.optimization, **changed),
            seed=self.seed,
            device=self.device,
            compile=base.compile or self.compile,
            slices=self.slices,
            evaluate=base.evaluate if self.evaluate is None else self.evaluate,
            keep=base.keep if self.keep is None else self.keep,
            guard=replace(base.guard, policy=self.on_divergence),
        )

    def with_width(self, network: AnyNetwork) -> AnyNetwork:
        r"""Returns a network of the width that was given."""
        if self.width is None:
            return network
        if isinstance(network, ResNet):
            expected = f"no width for the Wide ResNet of this preset, {network}"
            raise ValueError(f"expected {expected}, got {self.width}")
        return replace(network, width=self.width)

    def train(self, base: Config, name: str) -> Run:
        r"""Trains with a progress bar, and says where the run is."""
        from ..runs.tracking import tensorboard
        from ..runs.training import fit

        config, out = self.with_options(base), self.out or Path("runs") / name
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        shown = (*columns, TimeRemainingColumn(), SpeedColumn())
        curves = tensorboard(out) if self.tensorboard else nullcontext(lambda step, line: None)
        with curves as log, Progress(*shown, disable=not first_rank()) as bar:
            task = bar.add_task(name, total=config.optimization.steps)

            def tick(step: int, line: dict[str, Any]) -> None:
                bar.update(task, completed=step)
                log(step, line)
                if "nll" in line or "rmse_0.3" in line:
                    bar.console.print(judgement(line))

            resume = "if-any" if self.restartable else self.resume
            try:
                run = fit(config, out, resume, tick, self.minutes, bar.console.print)
            except (ValueError, OSError):  # refused: one line says why, without a bar before it
                bar.update(task, visible=False)
                raise
            bar.update(task, completed=run.step)  # a run that was done already has no tick
        if not first_rank():
            sys.exit(0)  # the report is the first rank's
        print(f"run: {out}")
        return run


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
        from .report import write_report

        base = preset(self.preset, self.objective, self.data)
        run = self.train(base, f"{self.data}-{self.objective}-{self.seed}")
        print(f"report: {write_report(run)}")


@dataclass(frozen=True)
class TrainTable(Train):
    """Train a density of your own points, judge it on rows kept aside and write a report."""

    data: Path = tyro.MISSING
    """The file: .csv, .tsv, .npy or .parquet, one point a row."""
    held_out: float = 0.2
    """The share of rows kept aside: half to choose the weights by, half to judge them by."""
    patience: int | None = None
    """The number of evaluations without a better one after which training stops; the preset's if
    not given."""

    def run(self) -> None:
        from .report import write_report

        base = table_config(str(self.data), self.held_out)
        patience = base.patience if self.patience is None else self.patience
        run = self.train(replace(base, patience=patience), f"{self.data.stem}-{self.seed}")
        if run.step < run.config.optimization.steps:
            print(f"stopped after step {run.step}: {patience} evaluations brought no better one")
        print(f"{judgement(run.judged)}\nby {run.weights}")
        print(f"report: {write_report(run)}")
        print(f"scores of points: fokker score {run.path} {self.data}")


@dataclass(frozen=True)
class TrainDenoising(Train):
    """Train an energy of images at one noise level or many, judged by denoising."""

    data: str = "mnist"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files as
    Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    side: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd, cd (paper); dcd, dcd-limit, reference (fokker)."""
    form: str | None = None
    """The form of the energy: pool, sum or square of the paper's Wide ResNet; inner, square, pool or
    sum of our U-Net. The preset's, pool and inner, if not given."""

    def run(self) -> None:
        from .report import write_report

        images = ImageData(self.data, self.data_dir, self.side)
        base = image_config(self.preset, self.objective, images, self.device, self.seed)
        base = replace(base, network=self.with_form(base.network))
        run = self.train(base, f"{name_of(self.data)}-{self.objective}-{self.seed}")
        print(judgement(run.judged))
        print(f"report: {write_report(run)}")
        print(f"denoise a picture: fokker denoise {run.path} noisy.png -o clean.png")

    def with_form(self, network: AnyNetwork) -> AnyNetwork:
        r"""Returns a network with the form that was given."""
        if self.form is None:
            return network
        if not isinstance(network, ResNet | UNet) or network.form == "denoiser":
            raise ValueError(
                f"expected no form for {self.objective}, no energy, got {self.form!r}"
            )
        forms = wideresnet.FORMS if isinstance(network, ResNet) else unet.FORMS
        checks.one_of(forms, form=self.form)
        return replace(network, form=self.form)


@dataclass(frozen=True)
class TrainGeneration(Train):
    """Train an energy of images at every noise level, to draw new images from."""

    data: str = "cifar10"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files as
    Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    side: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    flip: bool = True
    """Mirror training images at random: not for letters. Digits, mnist and svhn, never are."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd, dcd-limit (paper); dcd, dcd-surrogate, dcd-limit, reference (fokker)."""
    size: str = "15m"
    """The size of the network: small, 15m or large."""
    levels: str | None = None
    """The law of the noise levels: log-normal, uniform, grid or vp; the preset's if not given."""
    form: str | None = None
    """How the divergence is estimated: stein, hutchinson (their Laplacians), surrogate, path, limit (no
    step, which is denoising score matching) or hutchinson-limit; the method's if not given."""
    weight: str | None = None
    """The weight of a level: one, variance or edm; the preset's if not given."""
    time_score: float = 0.0
    """The weight of the score in time, which makes energies of all levels comparable."""
    muon: float | None = None
    """The rate of Muon, which moves the kernels and matrices of the U-Net; zero for Adam alone, the
    preset's if not given."""
    preview: int | None = None
    """The number of samples drawn at each evaluation; the preset's if not given."""

    def run(self) -> None:
        from .report import write_report

        flip = self.flip and name_of(self.data) not in DIGITS
        images = ImageData(self.data, self.data_dir, self.side, flip)
        base = generation_config(
            self.preset,
            self.objective,
            images,
            self.size,
            self.device,
            self.seed,
            self.time_score,
            self.levels,
            self.form,
            self.weight,
        )
        base = base if self.preview is None else replace(base, preview=self.preview)
        if self.muon is not None:
            changed = replace(base.optimization, muon=self.muon or None)
            base = replace(base, optimization=changed)
        method = self.objective if self.form is None else f"dcd-{self.form}"
        name = f"{name_of(self.data)}-{self.preset}-{method}-{self.size}-{self.seed}"
        run = self.train(base, name)
        print(judgement(run.judged))
        print(f"report: {write_report(run)}")
        print(f"images: fokker sample {run.path} -n 64 -o samples.png")


class SpeedColumn(ProgressColumn):
    r"""Steps a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} steps/s")
