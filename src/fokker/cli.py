r"""The command line: `fokker COMMAND --help`."""

__all__ = ["main"]

import json
import numpy as np
import os
import sys
import time
import torch
import types
import typing
import tyro
import warnings

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
from typing import Annotated, Any, Literal, NoReturn

from . import __version__, checks
from .config import Config, ImageData, unknown
from .generation import Sampling
from .presets import generation_config, image_config, preset, table_config
from .ranks import Ranks, join
from .runs import Run, load
from .studies.commands import (
    Bench,
    Optima,
    ReproduceDenoising,
    ReproduceEstimators,
    ReproduceMixtures,
    ReproduceSweep,
    ReproduceToy,
    Tables,
)
from .studies.generation.command import ReproduceGeneration
from .tasks import ImageTask
from .training import Interrupted

LINGER = 10.0  # seconds that other ranks leave the first to say what is wrong


@dataclass(frozen=True)
class Train:
    r"""Options of every training command."""

    steps: int | None = None
    """The number of steps; the preset's if not given."""
    batch: int | None = None
    """The number of points a step; the preset's if not given."""
    width: int | None = None
    """The number of units a hidden layer; the preset's if not given."""
    rate: float | None = None
    """The learning rate; the preset's if not given."""
    clip: float | None = None
    """The largest norm of the gradient; not clipped if not given."""
    compile: bool = False
    """Compile the training step: tens of seconds once, then faster steps. On a GPU, steps on images
    always are."""
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
        changed = {k: v for k, v in given.items() if v is not None}
        network = base.network if self.width is None else replace(base.network, width=self.width)
        return replace(
            base,
            network=network,
            optimization=replace(base.optimization, **changed),
            seed=self.seed,
            device=self.device,
            compile=base.compile or self.compile,
            evaluate=base.evaluate if self.evaluate is None else self.evaluate,
            keep=base.keep if self.keep is None else self.keep,
            guard=replace(base.guard, policy=self.on_divergence),
        )

    def train(self, base: Config, name: str) -> Run:
        r"""Trains with a progress bar, and says where the run is."""
        from .tracking import tensorboard
        from .training import fit

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
            run = fit(config, out, resume, tick, self.minutes, bar.console.print)
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
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), or a folder: Parquet files as
    Hugging Face lays them out, or image files."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    size: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd, cd (paper); dcd, dcd-limit, reference (fokker)."""

    def run(self) -> None:
        from .report import write_report

        images = ImageData(self.data, self.data_dir, self.size)
        base = image_config(self.preset, self.objective, images, self.device, self.seed)
        run = self.train(base, f"{Path(self.data).name}-{self.objective}-{self.seed}")
        print(judgement(run.judged))
        print(f"report: {write_report(run)}")
        print(f"denoise a picture: fokker denoise {run.path} noisy.png -o clean.png")


@dataclass(frozen=True)
class TrainGeneration(Train):
    """Train an energy of images at every noise level, to draw new images from."""

    data: str = "cifar10"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), or a folder: Parquet files as
    Hugging Face lays them out, or image files."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    side: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    flip: bool = True
    """Mirror training images at random: not for digits and letters."""
    preset: str = "fokker"
    """The settings: paper or fokker."""
    objective: str = "dcd-limit"
    """The method: dcd (paper); dcd, dcd-surrogate, dcd-limit, reference (fokker)."""
    size: str = "15m"
    """The size of the network: small, 15m or large."""
    time_score: float = 0.0
    """The weight of the score in time, which makes energies of all levels comparable."""
    preview: int | None = None
    """The number of samples drawn at each evaluation; the preset's if not given."""

    def run(self) -> None:
        from .report import write_report

        images = ImageData(self.data, self.data_dir, self.side, self.flip)
        base = generation_config(
            self.preset,
            self.objective,
            images,
            self.size,
            self.device,
            self.seed,
            self.time_score,
        )
        base = base if self.preview is None else replace(base, preview=self.preview)
        name = f"{Path(self.data).name}-{self.preset}-{self.objective}-{self.size}-{self.seed}"
        run = self.train(base, name)
        print(judgement(run.judged))
        print(f"report: {write_report(run)}")
        print(f"images: fokker sample {run.path} -n 64 -o samples.png")


@dataclass(frozen=True)
class Export:
    """Make a shipped energy of a run: its average weights in bfloat16, with a card and checksums."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    name: tyro.conf.Positional[str]
    """The name of the energy, for fokker.load and fokker sample."""
    to: Path | None = None
    """The folder of the energies; that of the package if not given."""
    note: Path | None = None
    """A file whose text goes into the card, such as the figures measured."""

    def run(self) -> None:
        from . import shipped

        text = "" if self.note is None else self.note.read_text()
        folder = shipped.export(load(self.run_folder), self.name, self.to or shipped.ROOT, text)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{folder}: {size / 2**20:.2f} MiB")


@dataclass(frozen=True)
class Denoise:
    """Denoise a picture of any size with a trained run."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    picture: tyro.conf.Positional[Path]
    """The noisy picture."""
    sigma: float | None = None
    """The standard deviation of its noise, for pixels in [-1, 1]; estimated if not given."""
    add_noise: float | None = None
    """First add noise of this standard deviation: shows what a run can do on a clean picture."""
    device: str = "cpu"
    """The device to run on."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("clean.png")
    """The file of the denoised picture."""

    def run(self) -> None:
        from .data.picture import read_png, save_png
        from .denoising import denoise_picture
        from .generation import suited
        from .tasks.image import level_of

        run = load(self.run_folder)
        if not isinstance(run.config.data, ImageData):
            raise ValueError(f"expected a run on images, got {self.run_folder}, which is not")
        x = read_png(self.picture)
        if self.add_noise is not None:
            x = x + self.add_noise * torch.randn(
                x.shape, generator=torch.Generator().manual_seed(0)
            )
            save_png(noisy := self.out.with_stem(f"{self.out.stem}-noisy"), x)
            print(f"noisy: {noisy}")
        level = level_of(run.config.objective)
        energy, device = suited(run, self.device), torch.device(self.device)
        clean, sigma = denoise_picture(energy, x.to(device), run.shape, self.sigma, level)
        save_png(self.out, clean.cpu())
        how = "given" if self.sigma is not None else "estimated"
        print(f"noise {sigma:.3f} ({how}): {self.out}")


def first_rank() -> bool:
    r"""Whether this process speaks and writes: alone, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


class SpeedColumn(ProgressColumn):
    r"""Steps a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} steps/s")


def judgement(line: dict[str, Any]) -> str:
    r"""Returns one line that judges an energy."""
    form = lambda key, how: "none" if line.get(key) is None else format(line[key], how)
    if "nll_gaussian" in line:
        return (
            f"step {line['step']}: NLL training {form('nll_train', '.3f')}, validation"
            f" {form('nll_validation', '.3f')}, test {form('nll', '.3f')} ±"
            f" {form('nll_error', '.3f')} nats (a Gaussian: {form('nll_gaussian', '.3f')}),"
            f" effective share {form('ess', '.1%')}"
        )
    if "rmse_0.3" in line:
        levels = [f"{form(k, '.4f')} at {k[5:]}" for k in line if k.startswith("rmse_")]
        return f"step {line['step']}: RMSE of denoised test images {', '.join(levels)}"
    return (
        f"step {line['step']}: Fisher gap {form('fisher_gap', '.2%')}, KL {form('kl', '.4f')} nats,"
        f" off the data {form('off_mass', '.2%')}"
    )


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained run: against the exact density, on the test rows, or by denoising and samples."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    json: bool = False
    """Print JSON."""
    fid: int | None = None
    """For images: also the FID and KID of so many samples against the training images."""
    bpd: int | None = None
    """For images: also the likelihood of so many test images, in bits a dimension."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = Sampling()
    seed: int = 0
    """The seed of the samples."""
    convention: Literal["tf", "torch"] = "tf"
    """How images are resized for Inception."""
    inception: Path | None = None
    """The weights of Inception, a safetensors file; FOKKER_INCEPTION or the package if not given."""
    batch: int = 64
    """The number of images at once."""
    device: str | None = None
    """The device; that of the run if not given."""

    def run(self) -> None:
        from .tasks import TableEnergy

        run = load(self.run_folder)
        energy = run.energy.energy if isinstance(run.energy, TableEnergy) else run.energy
        with join(checks.device(self.device or run.config.device)) as ranks:
            task, device = ranks.each(run.task), ranks.device
            found = task.judge(energy.to(device), device, ranks)
            line: dict[str, Any] = {"step": run.chosen, **found}
            said = [judgement(line), f"by {run.weights}"]
            if self.fid is not None or self.bpd is not None:
                if not isinstance(task, ImageTask):
                    raise ValueError(
                        f"expected a run on images for --fid and --bpd, got {run.path}"
                    )
                self.images(run, task, ranks, line, said)
        if ranks.first:
            print(json.dumps(line) if self.json else "\n".join(said))

    def images(
        self, run: Run, task: ImageTask, ranks: Ranks, line: dict[str, Any], said: list[str]
    ) -> None:
        r"""Adds what samples and likelihood say, on the first rank."""
        from .generation import bits_of, check_trained, generate, suited
        from .metrics import described, judge_images, load_inception, reference_of

        check_trained(run)
        device = ranks.device
        energy, train = suited(run, device), task.images["train"]
        extractor = None
        if self.fid is not None:
            checks.positive_integer(fid=self.fid)
            given = (self.inception, self.convention, device)
            extractor = ranks.each(lambda: load_inception(*given))
        if self.bpd is not None:
            test = ranks.each(lambda: task.pixels("test"))[: self.bpd]
            how = (self.sampling, self.batch, self.seed, device)
            bits, error = bits_of(energy, test, train.pixels, *how, ranks=ranks)
            line |= {"bpd": bits, "bpd_error": error, "bpd_n": len(test)}
            said.append(
                f"{bits:.3f} ± {error:.3f} bits a dimension ({len(test):,} test images with uniform"
                f" noise, by the flow from {self.sampling.sigma_min:g} to"
                f" {self.sampling.sigma_max:g})"
            )
        if self.fid is not None and extractor is not None:
            how = (self.sampling, self.seed, self.batch, 0, device)
            drawn = generate(energy, self.fid, run.shape, *how, ranks=ranks)
            features = described(drawn.images, extractor, self.batch, ranks)
            if not ranks.first:  # nothing is left to share out: the reference is made once a set
                return
            reference = reference_of(train, extractor, self.batch)
            fid, kid = judge_images(features, reference, extractor)
            line |= {"fid": fid.value, "fid_n": self.fid, "convention": fid.convention}
            line |= {"nfe": drawn.evaluations, "kid": None if kid is None else kid.mean}
            said += [f"{fid}, {drawn.evaluations} evaluations an image", str(kid)]


@dataclass(frozen=True)
class Score:
    """Write the log-density and the outlier score of points under a run on a table."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    points: tyro.conf.Positional[Path]
    """The file of the points, with the columns that were trained on."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("scores.csv")
    """The file of the scores: a row a point."""

    def run(self) -> None:
        from .data.table import read_table
        from .tasks import TableEnergy, energies

        run = load(self.run_folder)
        energy = run.energy
        if not isinstance(energy, TableEnergy):
            raise ValueError(f"expected a run on a table, got {self.run_folder}, one on a 2-D set")
        table = read_table(self.points)
        if table.columns != energy.columns:
            raise ValueError(
                f"expected the columns {', '.join(energy.columns)} in {self.points},"
                f" got {', '.join(table.columns)}"
            )
        log_density = -energies(energy, table.values, torch.device("cpu"))
        outlier = energy.outlier_score(table.values)
        lines = [f"{a:.6g},{b:.6g}" for a, b in zip(log_density, outlier, strict=True)]
        self.out.write_text("\n".join(["log_density,outlier", *lines]) + "\n")
        print(f"{len(lines)} points: {self.out}, by {run.weights}")


@dataclass(frozen=True)
class Sample:
    """Draw from a trained run: points by MALA from a wide Gaussian cooled down, images from noise."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    n: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    """The number of points or images; 1000 or 64 if not given."""
    seed: int = 0
    """The seed. Image i of a seed is the same for any number of images."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file: .csv or .npy of points; .png, a grid, or .npy, bytes (N, C, H, W), of images.
    samples.csv or samples.png if not given."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = Sampling()
    batch: int = 64
    """The number of images at once."""
    device: str = "cpu"
    """The device for images."""
    compile: bool = False
    """Compile the network for images: minutes once, then faster."""

    def run(self) -> None:
        run = load(self.run_folder)
        images = isinstance(run.config.data, ImageData)
        n = (64 if images else 1000) if self.n is None else self.n
        out = Path("samples.png" if images else "samples.csv") if self.out is None else self.out
        kinds = (".png" if images else ".csv", ".npy")
        checks.positive_integer(n=n, batch=self.batch)
        if out.suffix not in kinds:
            raise ValueError(f"expected --out to end in {' or '.join(kinds)}, got {out}")
        if images:
            with join(self.device) as ranks:
                self.images(run, n, out, ranks)
        elif first_rank():
            self.points(run, n, out)

    def images(self, run: Run, n: int, out: Path, ranks: Ranks) -> None:
        from .data.picture import save_png, to_float
        from .generation import check_trained, generate, suited
        from .samplers import Field

        check_trained(run)
        field = Field(suited(run, ranks.device), self.compile)
        how = (self.sampling, self.seed, self.batch, 0, ranks.device)
        drawn = generate(field, n, run.shape, *how, ranks=ranks)
        if not ranks.first:
            return
        if out.suffix == ".npy":
            np.save(out, drawn.images.numpy())
        else:
            save_png(out, to_float(drawn.images))
        rate = "" if drawn.acceptance is None else f", acceptance {drawn.acceptance:.2f}"
        print(
            f"{n} images: {out}, {drawn.evaluations} evaluations an image, {drawn.seconds:.1f} s"
            f"{rate}, by {run.weights}"
        )

    def points(self, run: Run, n: int, out: Path) -> None:
        from .tasks import TableEnergy

        x = run.sample(n, self.seed).numpy()
        if out.suffix == ".npy":
            np.save(out, x)
        else:
            names = run.energy.columns if isinstance(run.energy, TableEnergy) else ("x0", "x1")
            np.savetxt(out, x, delimiter=",", header=",".join(names), comments="")
        print(f"{n} points: {out}, by {run.weights}")


@dataclass(frozen=True)
class Report:
    """Write the report of a trained run anew."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""

    def run(self) -> None:
        from .report import write_report

        print(write_report(load(self.run_folder)))


@dataclass(frozen=True)
class Doctor:
    """Print what this machine has for fokker, and what is missing. Nothing is downloaded."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from .doctor import examine, lines

        found = examine()
        print(json.dumps(found, indent=2) if self.json else "\n".join(lines(found)))


@dataclass(frozen=True)
class Studio:
    """Train and look at 2-D energies on a local page; pip install 'fokker[studio]'."""

    port: int = 8377
    """The port on this machine; 0 for any that is free."""
    browser: bool = True
    """Open the page in a browser."""
    runs: Path = Path("runs")
    """The folder that runs are exported to."""

    def run(self) -> None:
        from .studio.server import serve

        serve(self.port, self.browser, self.runs)


# a command is one or two words; the second picks among the classes under the first
COMMANDS: dict[str, type | dict[str, type]] = {
    "train": {
        "toy": TrainToy,
        "table": TrainTable,
        "denoising": TrainDenoising,
        "generation": TrainGeneration,
    },
    "evaluate": Evaluate,
    "sample": Sample,
    "score": Score,
    "denoise": Denoise,
    "export": Export,
    "report": Report,
    "reproduce": {
        "toy": ReproduceToy,
        "sweep": ReproduceSweep,
        "mixtures": ReproduceMixtures,
        "estimators": ReproduceEstimators,
        "denoising": ReproduceDenoising,
        "generation": ReproduceGeneration,
    },
    "studio": Studio,
    "bench": Bench,
    "optima": Optima,
    "tables": Tables,
    "doctor": Doctor,
}

OPTIONAL = tyro.constructors.ConstructorRegistry()


@OPTIONAL.primitive_rule
def optional(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    r"""Reads a `T | None` as a T: who does not want to give one leaves the option out."""
    kinds = typing.get_args(info.type) if isinstance(info.type, types.UnionType) else ()
    if len(kinds) != 2 or kinds[1] is not type(None) or kinds[0] not in {int, float, str, Path}:
        return None
    kind = kinds[0]
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def parse(args: list[str]) -> Any:
    r"""Returns the command that the arguments ask for, ready to run."""
    words: list[str] = []
    found: Any = COMMANDS
    while isinstance(found, dict):
        if not args or args[0] not in found:
            if args and args[0] not in {"-h", "--help"}:
                raise unknown(args[0], list(found), "a command", " ".join(["fokker", *words]))
            lines = [f"  {name:12}{summary(entry)}" for name, entry in found.items()]
            print("\n".join([f"usage: {' '.join(['fokker', *words])} COMMAND --help", *lines]))
            if not words:
                print("first steps: fokker train toy; fokker doctor says what is installed")
            sys.exit(0 if args else 2)
        words.append(args[0])
        found, args = found[args[0]], args[1:]
    return tyro.cli(found, prog=" ".join(["fokker", *words]), args=args, registry=OPTIONAL)


def summary(entry: type | dict[str, type]) -> str:
    r"""Returns the first sentence of a command, or the words that may follow it."""
    if isinstance(entry, dict):
        return " | ".join(entry)
    return (entry.__doc__ or "").strip().split("\n")[0]


def main(args: list[str] | None = None) -> None:
    r"""Runs a command. Bad input is one line on stderr and exit code 2. Under torchrun the first rank
    alone prints it."""
    args = sys.argv[1:] if args is None else args
    if args == ["--version"]:
        return print(f"fokker {__version__}")
    say = lambda text: print(f"fokker: {text}", file=sys.stderr) if first_rank() else None

    def fail(text: object, code: int) -> NoReturn:
        say(text)
        if not first_rank():  # torchrun ends all ranks when one ends: let the first do so
            time.sleep(LINGER)
        sys.exit(code)

    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        command = parse(args)
        if getattr(command, "device", None) is not None:
            checks.device(command.device)
        command.run()
    except (ValueError, OSError) as error:
        said = str(error)
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            said = f"expected a file that exists or a folder to write to, got {error.filename}"
        fail(said, 2)
    except FloatingPointError as error:  # training diverged, or a chain did
        fail(error, 3)
    except Interrupted as error:
        say(error)
        sys.exit(130)


if __name__ == "__main__":
    main()
