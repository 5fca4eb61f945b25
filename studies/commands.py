r"""The commands of the studies: `fokker reproduce ...`, `fokker optima`, `fokker tables` and
`fokker merge`."""

__all__ = [
    "COMMANDS",
    "Bench",
    "Merge",
    "Optima",
    "ReproduceAblation",
    "ReproduceCD",
    "ReproduceEstimators",
    "ReproduceFlows",
    "ReproduceMixtures",
    "ReproduceNetworks",
    "ReproduceNormalizer",
    "ReproduceSamples",
    "ReproduceSweep",
    "ReproduceTables",
    "ReproduceToy",
    "ReproduceVariance",
    "Tables",
]

import math
import time
import tyro

from dataclasses import dataclass, replace
from fokker import checks
from fokker.data import PLANAR
from fokker.data.sources import name_of
from fokker.files import check_place
from fokker.pace import told, words
from pathlib import Path
from rich.console import Console
from rich.table import Column, Table
from typing import ClassVar, Literal

from . import results, tables
from .densities.commands import ReproduceComposition, ReproduceLikelihood, ReproduceOOD
from .generation.command import ReproduceGeneration
from .picture_commands import ReproducePhotographs, ReproducePosterior
from .units import begin


@dataclass(frozen=True)
class Optima:
    """Print the exact score matching optimum of every 2-D set, beside the paper's Table 2."""

    scale: float = 0.25
    """The factor of every set; 1/4 is the scale that explains the paper's table."""
    out: Path | None = None
    """Also write the figures to this JSON file."""

    def run(self) -> None:
        rows = []
        for name, kind in PLANAR.items():
            data = kind(scale=self.scale)
            value = data.optimum()
            rows.append({
                "data": name,
                "scale": self.scale,
                "noise": data.noise,
                "optimum": value if math.isfinite(value) else None,
            })
        if self.out is not None:
            results.save(self.out, rows, f"fokker optima --scale {self.scale} --out {self.out}")
        table = Table(*tables.OPTIMA_HEADER)
        for row in tables.optima_rows(rows):
            table.add_row(*row)
        Console().print(table)


@dataclass(frozen=True)
class Tables:
    """Render the tables of the documents anew from the files in results/."""

    root: Path = Path()
    """The root of the repository."""

    def run(self) -> None:
        for path in tables.documents(self.root):
            text = path.read_text()
            fresh = tables.render(text, self.root)
            path.write_text(fresh)
            print(f"{path}: {'rendered anew' if fresh != text else 'unchanged'}")


@dataclass(frozen=True)
class Merge:
    """Join files of results that hold parts of one study, such as seeds that ran side by side.

    Each row keeps where it was made. Rows that contradict each other are refused, and then
    nothing is written."""

    file: tyro.conf.Positional[Path]
    """The file of the study, such as results/normalizer.json; made if there is none."""
    parts: tyro.conf.Positional[tuple[Path, ...]]
    """The files that hold its parts; for the generation study also run folders, whose FIDs at
    milestones are its rows."""
    study: str | None = None
    """The study, such as normalizer; by default the name of the file."""

    def run(self) -> None:
        from . import merge

        if not self.parts:
            raise ValueError("expected files to merge, got none")
        kind = self.file.stem if self.study is None else self.study
        if kind not in merge.KEYS:
            raise checks.unknown(kind, list(merge.KEYS), "a study", "the file or --study")
        came = merge.merge(self.file, self.parts, kind)
        total = len(results.load(self.file)["rows"])
        print(f"{self.file}: {came} rows came, {total} in all")


@dataclass(frozen=True)
class ReproduceToy:
    """Reproduce the paper's 2-D study: its Table 2 and the figure of learned densities.

    A study that was stopped goes on where it was. On a GPU the whole takes minutes; on a CPU,
    --quick does a small slice of it."""

    out: Path | None = None
    """The folder of the study, one part a method; runs/study-toy, or with --quick
    runs/study-toy-quick, if not given."""
    device: str = "cpu"
    """The device to train on."""
    quick: bool = False
    """Two sets, one seed and 150 steps of 200 points: shows that it works, not how well."""
    methods: tuple[str, ...] = ()
    """Only these, as PRESET-METHOD, such as fokker-dcd; all by default."""
    results: Path | None = None
    """Also write all rows to this JSON file."""

    def run(self) -> None:
        from . import figures, toy

        names = [f"{preset}-{method}" for preset, method in toy.METHODS]
        for name in self.methods:
            if name not in names:
                raise checks.unknown(name, names, "a method", "--methods")
        usual = Path("runs/study-toy-quick" if self.quick else "runs/study-toy")
        out = usual if self.out is None else self.out
        console = Console()
        slice_ = {"sets": ("moons", "rings"), "seeds": (0,), "steps": 150, "batch": 200}
        own = slice_ if self.quick else {}
        parts = [toy.Arm(p, method, device=self.device, **own) for p, method in toy.METHODS]
        for part in parts:  # before anything is spent
            toy.check_done(part, out)
        chosen = [part for part in parts if not self.methods or part.name in self.methods]
        todo = [part for part in chosen if not (out / f"{part.name}.json").exists()]
        units = begin("reproduce toy", len(todo))
        for part in chosen:
            total = part.optimization.steps
            within = units.within(total)
            with console.status(part.name) as status:

                def tick(k: int, part=part, s=status, total=total, within=within) -> None:  # noqa: ANN001
                    s.update(f"{part.name}: {k} of {total} steps")
                    within(k)

                toy.run(part, out, tick)
            if part in todo:
                units.done()
            console.print(f"{part.name}: done, in {out / (part.name + '.json')}")
        rows = toy.collect(out)
        if self.results is not None:
            command = "fokker reproduce toy" + (" --quick" if self.quick else "")
            where = ", ".join(sorted({row["device"] for row in rows}))
            results.save(self.results, rows, command, where=where)
        table = Table(*tables.TOY_HEADER)
        for line in tables.toy_rows(rows):
            table.add_row(*line)
        console.print(table)
        figure = out / "learned-densities.webp"
        sets = [name for name in toy.SETS if any(row["data"] == name for row in rows)]
        figures.learned_densities(out, rows, toy.WINDOW, sets, figure)
        console.print(f"figure: {figure}")
        if self.quick:
            console.print("This was --quick: a slice, not the study.")


@dataclass(frozen=True)
class ReproduceSweep:
    """Sweep the step of the divergence and the weight of its long times on three 2-D sets."""

    out: Path = Path("results/sweep.json")
    """The file of the figures; points that are in it already are not trained again."""
    device: str = "cpu"
    """The device to train on."""
    steps: int = 3000
    """The number of steps of each point."""

    def run(self) -> None:
        from . import figures, sweep

        sweep.run(self.out, self.device, self.steps, progress=print)
        figure = self.out.with_suffix(".png")
        figures.sweeps(self.out, figure)
        print(f"figure: {figure}")


@dataclass(frozen=True)
class ReproduceMixtures:
    """Train on Gaussian mixtures in d = 8, 32 and 64 and judge against the exact density."""

    out: Path = Path("results/mixtures.json")
    """The file of the figures; methods that are in it already are not trained again."""
    device: str = "cpu"
    """The device to train on."""
    steps: int | None = None
    """The number of steps of each; 5000 if not given."""

    def run(self) -> None:
        from . import mixtures

        mixtures.run(self.out, self.device, self.steps, progress=print)


@dataclass(frozen=True)
class ReproduceDenoising:
    """Reproduce the paper's denoising study: its Table 4, our energies, and the bound.

    Each method on each set trains in a run folder of its own; a study that was stopped goes on
    where it was."""

    data: tuple[str, ...] = ("mnist", "fashion_mnist", "cifar10", "svhn")
    """The sets, by name or as folders."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    methods: tuple[str, ...] = ()
    """Only these, as PRESET-METHOD, such as fokker-dcd; by default all but paper-dcd-path,
    paper-dcd-bridge and fokker-dcd-central."""
    device: str = "cpu"
    """The device to train on."""
    steps: int | None = None
    """The number of steps; the preset's if not given."""
    images: int = 2000
    """The number of test images."""
    minutes: float | None = None
    """Save and stop after so many minutes of a method, to be resumed."""
    jobs: int = 1
    """The number of methods that are compiled side by side; they take turns on the device."""
    quick: bool = False
    """Small networks, 30 steps of 8, 16 test images: shows that it works, not how well."""
    out: Path | None = None
    """The folder of the study; runs/study-denoising, or with --quick runs/study-denoising-quick,
    if not given."""
    results: Path | None = None
    """Also write all rows to this JSON file."""

    def run(self) -> None:
        from . import denoising, figures

        known = {f"{p}-{m}": (p, m) for p, m in (*denoising.METHODS, *denoising.VARIANTS)}
        for name in self.methods:
            if name not in known:
                raise checks.unknown(name, list(known), "a method", "--methods")
        chosen = [known[name] for name in self.methods] or denoising.METHODS
        checks.positive_integer(images=self.images, jobs=self.jobs)
        sets = [name_of(data) for data in self.data]
        if len(set(sets)) < len(sets):
            raise ValueError(f"expected sets of different names, got {', '.join(sets)}")
        usual = Path("runs/study-denoising-quick" if self.quick else "runs/study-denoising")
        out = usual if self.out is None else self.out
        console = Console()
        count = 16 if self.quick else self.images
        parts = [
            denoising.Cell(data, preset, method, self.data_dir, self.device, self.steps)
            for data in self.data
            for preset, method in chosen
        ]
        if self.quick:
            parts = [replace(part, steps=30, batch=8, quick=True) for part in parts]
        todo = [part for part in parts if not (out / f"{part.name}.json").exists()]
        units = begin("reproduce denoising", len(todo))

        def say(text: str) -> None:
            units.done()
            console.print(text)

        if self.jobs > 1:
            denoising.run_all(parts, out, count, self.jobs, self.minutes, say)
        for part in parts if self.jobs == 1 else ():
            total = part.config.optimization.steps
            within = units.within(total)
            with console.status(part.name) as status:

                def tick(step: int, line: dict, part=part, s=status, within=within) -> None:  # noqa: ANN001
                    s.update(f"{part.name}: {step} of {part.config.optimization.steps} steps")
                    within(step)

                denoising.run(part, out, count, tick, self.minutes)
            if part in todo:
                units.done()
            console.print(f"{part.name}: done, in {out / (part.name + '.json')}")
        rows = denoising.collect(out)
        if self.results is not None:
            command = "fokker reproduce denoising" + (" --quick" if self.quick else "")
            where = ", ".join(sorted({row["device"] for row in rows}))
            results.save(self.results, rows, command, where=where)
        table = Table(*tables.DENOISING_HEADER)
        for line in tables.denoising_rows(rows):
            table.add_row(*(cell.replace("**", "") for cell in line))
        console.print(table)
        for data in self.data:
            figure = out / f"{name_of(data)}.png"
            figures.denoised(out, data, self.data_dir, figure)
            console.print(f"figure: {figure}")
        if self.quick:
            console.print("This was --quick: a slice, not the study.")


@dataclass(frozen=True)
class ReproduceNormalizer:
    """Measure log Z by particles on targets where it is known, or on learned tables.

    Rows are written after each seed; those in the file already are not made again. Seeds can be
    shared out among processes, each with a file of its own; `fokker merge` joins the files."""

    seeds: int = 40
    """The number of seeds."""
    first_seed: int = 0
    """The first of them."""
    dimensions: tuple[int, ...] = (2, 10, 30, 60, 100, 300)
    """The dimensions of the mixtures."""
    targets: tuple[str, ...] = ()
    """Only these targets, such as mixture-far or funnel; all if not given."""
    base: Literal["mixture", "gaussian"] = "mixture"
    """What is fitted to exact samples as the base: a mixture of at most four Gaussians, or one."""
    tables: Path | None = None
    """The folder of ADBench's tables: measure learned tables instead."""
    steps: int = 200
    """The number of training steps on each table."""
    minutes: float | None = None
    """Stop after so many minutes; the same command goes on."""
    device: str = "cpu"
    """The device, in float32 on a CPU, on one thread, and in float64 on a GPU."""
    out: Path = Path("results/normalizer.json")
    """The file of the figures."""

    def run(self) -> None:
        import torch

        from .sampling import normalizer, targets

        torch.set_num_threads(1)
        checks.positive_integer(seeds=self.seeds, steps=self.steps)
        checks.at_least(0, first_seed=self.first_seed)
        say = Console().print
        if self.tables is not None:
            return normalizer.run_tables(self.out, self.tables, self.steps, progress=say)
        chosen = targets.targets(self.dimensions)
        names = list(dict.fromkeys(name for name, _ in chosen))
        for name in self.targets:
            if name not in names:
                raise checks.unknown(name, names, "a target", "--targets")
        chosen = [pair for pair in chosen if pair[0] in (self.targets or names)]
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        normalizer.run(self.out, seeds, chosen, self.base, self.minutes, self.device, say)


@dataclass(frozen=True)
class ReproduceSamples:
    """Hold what is drawn against the model's own density, on all 2-D sets and both presets.

    A study that was stopped goes on where it was."""

    n: int = 10_000
    """The number of points."""
    steps: int = 1000
    """The number of training steps."""
    out: Path = Path("results/samples.json")
    """The file of the figures; rows that are in it already are not made again."""

    def run(self) -> None:
        import torch

        from .sampling import samples

        torch.set_num_threads(1)

        checks.positive_integer(n=self.n, steps=self.steps)
        samples.run(self.out, self.n, self.steps, Console().print)


@dataclass(frozen=True)
class ReproduceTables:
    """Find anomalies in the tables of ADBench, or measure their densities, beside the usual
    methods.

    Rows are written after each table; those in the file already are not run again."""

    data: Path
    """The folder of the tables, NUMBER_NAME.npz with X and y."""
    what: Literal["anomalies", "trials", "likelihood", "fits", "sizes", "ranks"] = "anomalies"
    """The study of anomalies; the trials by which defaults were chosen, on 15 sets; held-out
    likelihoods; every table through `fokker train table` with its defaults; the seconds by the
    size of a table, made up; or the figure of the mean ranks, drawn from results/tables.json."""
    rows: int = 10_000
    """The largest number of rows of a table, those to test on included."""
    all_rows: bool = False
    """With --what fits, all rows of every table instead."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """The seeds."""
    settings: tuple[Literal["normal", "mixed"], ...] = ("normal", "mixed")
    """Trained on normal rows, and with anomalies among the training rows."""
    methods: tuple[str, ...] = ()
    """Only these; all if not given."""
    tables: tuple[str, ...] = ()
    """Only these, as 6_cardio; all if not given."""
    out: Path | None = None
    """The file of the figures; results/tables.json, results/tables_trials.json,
    results/likelihood_tables.json, results/tables_fits.json, results/tables_sizes.json or
    docs/figures/tables-ranks.png if not given."""

    def run(self) -> None:
        import torch

        from . import anomalies, likelihoods, ranking, table_fits, table_sizes

        torch.set_num_threads(1)
        checks.positive_integer(rows=self.rows)
        if self.all_rows and self.what != "fits":
            raise ValueError(f"expected --what fits with --all-rows, got --what {self.what}")
        if self.what == "ranks":
            out = self.out or Path("docs/figures/tables-ranks.png")
            ranking.draw(Path("results/tables.json"), out)
            print(f"figure: {out}")
            return
        if self.what == "sizes":
            table_sizes.run(self.out or Path("results/tables_sizes.json"), progress=print)
            return
        if self.what == "fits":
            most = None if self.all_rows else self.rows
            limit = "--all-rows" if most is None else f"--rows {most}"
            table_fits.run(
                self.out or Path("results/tables_fits.json"),
                self.data,
                self.tables or None,
                most,
                f"fokker reproduce tables --what fits {limit}",
                print,
            )
            return
        kind = {
            "anomalies": ("tables", anomalies.METHODS),
            "trials": ("tables_trials", anomalies.TRIALS),
            "likelihood": ("likelihood_tables", likelihoods.METHODS),
        }
        name, known = kind[self.what]
        for method in self.methods:
            if method not in known:
                raise checks.unknown(method, list(known), "a method", "--methods")
        chosen = {m: f for m, f in known.items() if m in (self.methods or known)}
        out = self.out or Path(f"results/{name}.json")
        command = f"fokker reproduce tables --what {self.what} --rows {self.rows}"
        names = self.tables or None
        if self.what == "likelihood":
            likelihoods.run(out, self.data, chosen, names, self.seeds, self.rows, command, print)
            return
        if self.what == "trials":
            names = self.tables or anomalies.CHOSEN
            if other := [name for name in names if name not in anomalies.CHOSEN]:
                raise checks.unknown(other[0], list(anomalies.CHOSEN), "a table", "--tables")
        anomalies.run(
            out, self.data, chosen, names, self.settings, self.seeds, self.rows, command, print
        )


@dataclass(frozen=True)
class ReproduceEstimators:
    """Measure variance and cost of every estimator of the divergence, on points and on images."""

    out: Path | None = None
    """The file of the figures; results/estimators.json, or with --quick
    runs/estimators-quick.json, if not given."""
    quick: bool = False
    """A few draws and rounds: shows that it works, not the figures."""

    def run(self) -> None:
        import torch

        from . import estimators

        torch.set_num_threads(1)
        if self.quick:
            out = self.out or Path("runs/estimators-quick.json")
            estimators.run(out, steps=3, batch=16, draws=3, rounds=2, progress=print)
        else:
            estimators.run(self.out or Path("results/estimators.json"), progress=print)


@dataclass(frozen=True)
class ReproduceVariance:
    """Measure variance and bias of the gradient of each form, on two modes and on a U-Net."""

    data: str = "celeba32"
    """The set of 32×32 color images, by name or as a folder."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    draws: int = 32
    """The number of gradients of each form on the U-Net, even."""
    batch: int = 8
    """The number of images of each gradient."""
    out: Path = Path("results/variance.json")
    """The file of the figures."""

    def run(self) -> None:
        from . import variance

        checks.positive_integer(batch=self.batch)
        own = (self.data, self.data_dir, self.draws, self.batch)
        variance.run(self.out, *own, progress=print)


@dataclass(frozen=True)
class ReproduceAblation:
    """Train the parts of the multi-time divergence one by one on all 2-D sets, three seeds."""

    out: Path = Path("results/ablation.json")
    """The file of the figures; arms that are in it already are not trained again."""
    device: str = "cpu"
    """The device to train on."""
    steps: int = 400
    """The number of steps of each network."""
    batch: int = 256
    """The number of points a step."""
    width: int = 64
    """The units of a layer."""

    def run(self) -> None:
        from . import ablation

        checks.positive_integer(steps=self.steps, batch=self.batch, width=self.width)
        own = (self.out, self.steps, self.batch, self.width)
        ablation.run(*own, device=self.device, progress=print)


@dataclass(frozen=True)
class ReproduceCD:
    """Put CD, CD with the term it leaves out, and DCD side by side in 2-D, tuned equally."""

    out: Path = Path("results/cd.json")
    """The file of the figures; trials that are in it already are not run again."""
    device: str = "cpu"
    """The device to train on."""
    steps: int = 500
    """The number of steps of each network."""
    batch: int = 200
    """The number of points a step."""
    width: int = 64
    """The units of a layer."""

    def run(self) -> None:
        from . import cd

        checks.positive_integer(steps=self.steps, batch=self.batch, width=self.width)
        own = (self.out, self.steps, self.batch, self.width)
        cd.run(*own, device=self.device, progress=print)


@dataclass(frozen=True)
class ReproduceNetworks:
    """Train candidate U-Nets on one set of images for the same time each, and compare their FID.

    A row is written after each trial. Trials that are in the file already are left out, so the
    same command goes on after a stop. Compiled code is kept in the folder that
    TORCHINDUCTOR_CACHE_DIR names."""

    names: tuple[str, ...] = ()
    """The candidates, in order, such as fold-128, or variants of them, such as
    fold-128+batch=512+muon=0.02 (`studies/networks.py`); all candidates if not given."""
    data: str = "celeba32"
    """The set: celeba32, cifar10, another name, or a folder."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    minutes_each: float = 2.5
    """The minutes of training of each trial, without compilation and evaluation."""
    seeds: tuple[int, ...] = (0,)
    """The seeds, a trial each."""
    batch: int = 256
    """The number of images a training step."""
    device: str = "cpu"
    """The device."""
    fid: int = 10_000
    """The number of samples for FID; none if zero."""
    inception: Path | None = None
    """The weights of Inception, a safetensors file; FOKKER_INCEPTION or the package if not
    given."""
    chunk: int = 1000
    """The number of samples drawn at once."""
    jobs: int = 1
    """The number of trials that are compiled side by side; they take turns on the device."""
    stop_after_minutes: float | None = None
    """Start no trial that cannot end within so many minutes of this call."""
    split: bool = False
    """Begin a trial that cannot end in time all the same: it is saved, and the same command goes
    on with it."""
    prepare: bool = False
    """Only compile and time the steps, in as many processes as there are candidates."""
    quick: bool = False
    """Small networks, few steps of the sampler: shows that it works, not how well."""
    out: Path | None = None
    """The folder of the runs; runs/study-networks, or with --quick runs/study-networks-quick, if
    not given."""
    results: Path | None = None
    """The file of the rows; results/networks.json, or with --quick networks.json in the folder of
    the runs, if not given."""

    def run(self) -> None:
        from fokker.runs.training import Interrupted

        from . import networks

        known = list(networks.CANDIDATES)
        names = self.names or tuple(known)
        for name in names:
            if name.split("+")[0] not in known:
                raise checks.unknown(name, known, "a network", "--names")
            networks.Trial(name).config(1)  # a variant of known settings
        checks.positive(minutes_each=self.minutes_each)
        checks.positive_integer(batch=self.batch, jobs=self.jobs, chunk=self.chunk)
        if self.fid != 0:
            checks.at_least(2, fid=self.fid)
        if self.stop_after_minutes is not None:
            checks.not_negative(stop_after_minutes=self.stop_after_minutes)
        usual = Path("runs/study-networks-quick" if self.quick else "runs/study-networks")
        out = usual if self.out is None else self.out
        target = self.results
        if target is None:
            target = out / "networks.json" if self.quick else Path("results/networks.json")
        settings = networks.Settings(self.fid, self.inception, min(self.chunk, self.fid or 1))
        if self.stop_after_minutes is not None:
            deadline = time.time() + 60 * self.stop_after_minutes
            settings = replace(settings, deadline=deadline, split=self.split)
        if self.quick:
            sampling = replace(settings.sampling, steps=3)
            settings = replace(settings, sampling=sampling, tested=8, batch=8)
        own = (self.data, self.data_dir, self.device)
        trials = [
            networks.Trial(name, *own, seed, self.minutes_each, self.batch, self.quick)
            for seed in dict.fromkeys(self.seeds)
            for name in dict.fromkeys(names)
        ]
        console = Console()
        say = lambda text: console.print(text, markup=False, soft_wrap=True)
        for name in dict.fromkeys(names):
            say(f"{name}: {networks.parameters(name) / 1e6:.1f} million parameters")
        command = (
            f"fokker reproduce networks --data {name_of(self.data)} --minutes-each"
            f" {self.minutes_each:g} --batch {self.batch}" + " --quick" * self.quick
        )
        jobs = len(trials) if self.prepare and self.jobs == 1 else self.jobs
        if not self.prepare:
            minutes = words(60 * self.minutes_each * len(trials))
            told(f"reproduce networks: about {minutes} of training, and compilation and FID")
        try:
            networks.run_all(trials, out, target, settings, command, jobs, self.prepare, say)
        except (Interrupted, KeyboardInterrupt):
            raise KeyboardInterrupt(
                "interrupted: trials that ended are kept, and the same command goes on"
            ) from None
        if target.exists():
            table = Table(*(Column(name, overflow="fold") for name in tables.NETWORKS_HEADER))
            for line in tables.networks_rows(results.load(target)["rows"]):
                table.add_row(*line)
            console.print(table)
        if self.quick:
            say("This was --quick: a slice, not the study.")


@dataclass(frozen=True)
class Bench:
    """Time one training step of every objective, and of its rivals, side by side.

    Rows are added to the file after each network; a row that is timed again replaces the old one.
    Compiled code is kept in the folder that TORCHINDUCTOR_CACHE_DIR names."""

    KEY: ClassVar = (
        "suite",
        "library",
        "name",
        "net",
        "batch",
        "shape",
        "device",
        "precision",
        "compiled",
    )  # what tells rows apart

    nets: tuple[str, ...] = ("mlp-2d",)
    """The networks: mlp-2d, wrn-28-10, wrn-16-8, wrn-10-1, unet-15m, unet-fused."""
    names: tuple[str, ...] = ()
    """Only these steps, such as dcd-limit; all by default."""
    device: str = "cpu"
    """The device."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the layers of image networks."""
    rounds: int = 15
    """The number of interleaved rounds."""
    compile: bool = True
    """Whether our steps are compiled."""
    rivals: bool = True
    """Whether torchebm's steps are timed too, if it is installed."""
    growth: bool = False
    """Instead, how steps grow with dimension, batch and image size."""
    threads: int = 1
    """The number of threads on a CPU."""
    out: Path = Path("runs/bench.json")
    """The file of the figures."""

    def run(self) -> None:
        import torch

        from . import bench, figures

        for name in self.nets:
            if name not in bench.NETS:
                raise checks.unknown(name, list(bench.NETS), "a network", "--nets")
            known = bench.names_of(bench.NETS[name])
            for step in self.names:
                if step not in known:
                    raise checks.unknown(step, known, f"a step of {name}", "--names")
        checks.positive_integer(rounds=self.rounds, threads=self.threads)
        self.before()  # what cannot be kept is not timed
        self.out.parent.mkdir(parents=True, exist_ok=True)
        check_place(self.out)
        torch.set_num_threads(self.threads)
        console = Console()
        if self.growth:
            fresh = bench.growth(
                self.device, self.precision, self.rounds, self.compile, progress=console.print
            )
            self.keep(fresh)
            self.show(console, fresh)
            return
        for name in self.nets:
            fresh = bench.bench(
                bench.NETS[name],
                self.names or None,
                self.device,
                self.precision,
                self.rounds,
                self.compile,
                self.rivals,
                progress=console.print,
            )
            self.keep(fresh)
            self.show(console, fresh)
        figure = self.out.with_suffix(".png")
        figures.bench(results.load(self.out)["rows"], figure)
        console.print(f"figures: {self.out}, {figure}")

    def before(self) -> list[results.Row]:
        r"""Returns the rows of the file, none if there is no file."""
        rows = results.load(self.out)["rows"] if self.out.exists() else []
        for row in rows:
            if lacks := [field for field in self.KEY if field not in row]:
                raise ValueError(
                    f"expected rows of fokker bench in {self.out}, got one without {lacks[0]}"
                )
        return rows

    def keep(self, fresh: list[results.Row]) -> None:
        r"""Adds rows to the file, in place of the same ones from before."""
        key = lambda row: tuple(str(row[field]) for field in self.KEY)
        old = self.before()
        fresh = [{**row, "commit": results.commit()} for row in fresh]
        new = {key(row) for row in fresh}
        rows = [row for row in old if key(row) not in new] + fresh
        where = ", ".join(sorted({row["device"] for row in rows}))
        results.save(self.out, rows, "fokker bench", where=where)

    def show(self, console: Console, fresh: list[results.Row]) -> None:
        table = Table(*tables.BENCH_HEADER)
        for line in tables.bench_rows(fresh):
            table.add_row(*line)
        console.print(table)


@dataclass(frozen=True)
class ReproduceFlows:
    """Measure samplers with few evaluations against the exact flow, and choose their levels."""

    runs: tuple[str, ...] = ("celeba32", "cifar10")
    """The runs, or energies that come with the package."""
    images: int = 16
    """The number of images."""
    fine: int = 100
    """The steps of Heun's method that stand for the exact flow."""
    evaluations: tuple[int, ...] = (8, 12, 16)
    """The numbers of evaluations whose levels are chosen; the methods alone if none are given."""
    samplers: tuple[str, ...] = ("heun", "multistep", "multistep3")
    """The methods whose levels are chosen."""
    rhos: tuple[float, ...] = (3.0, 5.0, 7.0, 9.0)
    """The exponents of the ladder."""
    lowest: tuple[float, ...] = (0.002, 0.01, 0.03)
    """The last levels of the ladder."""
    only_schedules: bool = False
    """Leave out the usual ladders, for which there are rows already."""
    device: str = "cpu"
    """The device."""
    out: Path | None = None
    """Also put the figures into this JSON file, such as results/flows.json."""

    def run(self) -> None:
        from fokker.samplers import FLOWS

        from . import flows

        checks.positive_integer(images=self.images)
        checks.at_least(2, fine=self.fine, evaluations=min(self.evaluations, default=2))
        for name in self.samplers:
            if name not in FLOWS:
                raise checks.unknown(name, list(FLOWS), "a method", "--samplers")
        console = Console()
        say = lambda text: console.print(text, markup=False, soft_wrap=True)
        usual = [] if self.only_schedules else [flows.Schedule(*t) for t in flows.TRIALS]
        more = flows.schedules(self.evaluations, self.samplers, self.rhos, self.lowest)
        each = sum(trial.evaluations for trial in (*usual, *more))
        each += flows.Schedule("heun", self.fine).evaluations * (bool(usual) + bool(more))
        units = begin("reproduce flows", len(self.runs) * each)
        how = (self.images, self.fine, self.device, say)
        rows = flows.run(self.runs, usual, *how, units=units) if usual else []
        chosen = flows.run(self.runs, more, *how, "schedules", units) if more else []
        rows += chosen
        for name in dict.fromkeys(row["run"] for row in chosen):
            own = [row for row in chosen if row["run"] == name]
            for n, best in flows.choose(own, self.evaluations).items():
                text = f"--sampler {best['sampler']} --steps {best['steps']} --rho {best['rho']:g}"
                say(f"{name}, {n} evaluations: {text} --sigma-min {best['sigma_min']:g}, error"
                    f" {best['error']:.4f}")  # fmt: skip
        if self.out is not None:
            flows.add(self.out, rows, self.device)


COMMANDS: dict[str, type | dict[str, type]] = {
    "reproduce": {
        "toy": ReproduceToy,
        "sweep": ReproduceSweep,
        "tables": ReproduceTables,
        "mixtures": ReproduceMixtures,
        "normalizer": ReproduceNormalizer,
        "samples": ReproduceSamples,
        "estimators": ReproduceEstimators,
        "denoising": ReproduceDenoising,
        "generation": ReproduceGeneration,
        "networks": ReproduceNetworks,
        "flows": ReproduceFlows,
        "variance": ReproduceVariance,
        "ablation": ReproduceAblation,
        "cd": ReproduceCD,
        "composition": ReproduceComposition,
        "likelihood": ReproduceLikelihood,
        "ood": ReproduceOOD,
        "posterior": ReproducePosterior,
        "photographs": ReproducePhotographs,
    },
    "bench": Bench,
    "optima": Optima,
    "tables": Tables,
    "merge": Merge,
}
