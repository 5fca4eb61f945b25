r"""The command line: `fokker COMMAND --help`."""

__all__ = ["main"]

import json
import numpy as np
import sys
import torch
import tyro

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
from typing import Annotated, Any

from . import checks
from .config import Config, ImageData, unknown
from .presets import image_config, preset, table_config
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
from .training import Interrupted


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
    """Compile the training step: tens of seconds once, then faster steps."""
    evaluate: int | None = None
    """The number of steps between evaluations and checkpoints; the preset's if not given."""
    seed: int = 0
    """The seed of weights, data and noise."""
    device: str = "cpu"
    """The device to train on."""
    out: Path | None = None
    """The run folder; named under runs/ if not given."""
    resume: bool = False
    """Go on with the run in --out, from its newest checkpoint."""
    minutes: float | None = None
    """Save and stop after so many minutes, to be resumed; train to the end if not given."""

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
            compile=self.compile,
            evaluate=base.evaluate if self.evaluate is None else self.evaluate,
        )

    def train(self, base: Config, name: str) -> Run:
        r"""Trains with a progress bar, and says where the run is."""
        from .training import fit

        config, out = self.with_options(base), self.out or Path("runs") / name
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), SpeedColumn()) as bar:
            task = bar.add_task(name, total=config.optimization.steps)

            def tick(step: int, line: dict[str, Any]) -> None:
                bar.update(task, completed=step)
                if "nll" in line or "rmse_0.3" in line:
                    bar.console.print(judgement(line))

            run = fit(config, out, self.resume, tick, self.minutes)
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

    data: Path = Path("points.csv")
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
        energy, device = run.energy.to(self.device), torch.device(self.device)
        clean, sigma = denoise_picture(energy, x.to(device), run.shape, self.sigma, level)
        save_png(self.out, clean.cpu())
        how = "given" if self.sigma is not None else "estimated"
        print(f"noise {sigma:.3f} ({how}): {self.out}")


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
    """Judge a trained run: against the exact density, or on the test rows."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from .tasks import TableEnergy

        run = load(self.run_folder)
        energy = run.energy.energy if isinstance(run.energy, TableEnergy) else run.energy
        device = torch.device(run.config.device)
        line = {"step": run.chosen, **run.task().judge(energy.to(device), device)}
        print(json.dumps(line) if self.json else f"{judgement(line)}\nby {run.weights}")


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
    """Draw points from a trained run, by MALA from a wide Gaussian cooled down."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000
    """The number of points."""
    seed: int = 0
    """The seed of the chains."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("samples.csv")
    """The file of the points: .csv or .npy."""

    def run(self) -> None:
        from .tasks import TableEnergy

        if self.out.suffix not in {".csv", ".npy"}:
            raise ValueError(f"expected --out to end in .csv or .npy, got {self.out}")
        checks.positive_integer(n=self.n)
        run = load(self.run_folder)
        x = run.sample(self.n, self.seed).numpy()
        if self.out.suffix == ".npy":
            np.save(self.out, x)
        else:
            names = run.energy.columns if isinstance(run.energy, TableEnergy) else ("x0", "x1")
            np.savetxt(self.out, x, delimiter=",", header=",".join(names), comments="")
        print(f"{self.n} points: {self.out}, by {run.weights}")


@dataclass(frozen=True)
class Report:
    """Write the report of a trained run anew."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""

    def run(self) -> None:
        from .report import write_report

        print(write_report(load(self.run_folder)))


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
    "train": {"toy": TrainToy, "table": TrainTable, "denoising": TrainDenoising},
    "evaluate": Evaluate,
    "sample": Sample,
    "score": Score,
    "denoise": Denoise,
    "report": Report,
    "reproduce": {
        "toy": ReproduceToy,
        "sweep": ReproduceSweep,
        "mixtures": ReproduceMixtures,
        "estimators": ReproduceEstimators,
        "denoising": ReproduceDenoising,
    },
    "studio": Studio,
    "bench": Bench,
    "optima": Optima,
    "tables": Tables,
}


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
            sys.exit(0 if args else 2)
        words.append(args[0])
        found, args = found[args[0]], args[1:]
    return tyro.cli(found, prog=" ".join(["fokker", *words]), args=args)


def summary(entry: type | dict[str, type]) -> str:
    r"""Returns the first sentence of a command, or the words that may follow it."""
    if isinstance(entry, dict):
        return " | ".join(entry)
    return (entry.__doc__ or "").strip().split("\n")[0]


def main(args: list[str] | None = None) -> None:
    r"""Runs a command. Bad input is one line on stderr and exit code 2."""
    args = sys.argv[1:] if args is None else args
    try:
        parse(args).run()
    except (ValueError, OSError) as error:
        print(f"fokker: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:  # training diverged, or a chain did
        print(f"fokker: {error}", file=sys.stderr)
        sys.exit(3)
    except Interrupted as error:
        print(f"fokker: {error}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
