r"""`fokker reproduce generation`."""

__all__ = ["ReproduceGeneration"]

from dataclasses import dataclass, replace
from fokker import checks
from fokker.metrics import Extractor, load_inception
from fokker.runs.training import Interrupted, check_resume
from fokker.samplers.guidance import check_weight
from pathlib import Path
from rich.console import Console
from rich.table import Column, Table
from typing import Any, Literal

from .parts import METHODS, VARIANTS, Clock, Part, Settings
from .. import results, tables
from ..units import begin


@dataclass(frozen=True)
class ReproduceGeneration:
    """Reproduce the paper's generation study: energies of images, their samples and FID.

    Stages run apart or together, in slices of time: what is done is kept, and a second call goes
    on. With --quick (a small network, few steps and images) FID is left out unless weights of
    Inception are given."""

    data: str = "celeba32"
    """The set: celeba32, cifar10, another name, or a folder."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    methods: tuple[str, ...] = ()
    """Only these, as PRESET-METHOD, such as fokker-dcd-limit; by default all but paper-dcd-grid,
    paper-dcd-grid-bridge, fokker-dcd-central and fokker-dcd-vp."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of the weights, the data and the noise, a part each."""
    size: str = "15m"
    """The size of the network: small, 15m or large."""
    stage: tuple[Literal["train", "sample", "fid", "figures"], ...] = (
        "train",
        "sample",
        "fid",
        "figures",
    )
    """The stages of this call."""
    minutes: float | None = None
    """Save and stop after so many minutes of this call, to be resumed by the same command."""
    device: str = "cpu"
    """The device."""
    steps: int | None = None
    """The number of training steps; the preset's if not given. The rate falls to zero over
    them."""
    restarts: tuple[int, ...] = ()
    """The steps at which the rate begins anew: a run that has ended goes on with its last step
    here, and more --steps."""
    batch: int | None = None
    """The number of images a training step; the preset's if not given."""
    snapshot_minutes: float = 2.0
    """The minutes of training between the snapshots whose FID is taken."""
    samples: int | None = None
    """The images of the final draw; as many as there are training images if not given."""
    few: int = 10_000
    """The images of the other draws."""
    draws: tuple[Literal["final", "snapshot", "steps", "corrector", "guided"], ...] = (
        "final",
        "snapshot",
        "steps",
        "corrector",
        "guided",
    )
    """What is drawn: by the last weights, by each snapshot, with other steps, with a corrector,
    guided by the small network of the study, where there is one."""
    guidance: tuple[float, ...] = (1.5,)
    """The weights of guidance, a draw each."""
    chunk: int = 1000
    """The images drawn at once."""
    convention: Literal["tf", "torch"] = "tf"
    """How images are resized for Inception."""
    inception: Path | None = None
    """The weights of Inception, a safetensors file; FOKKER_INCEPTION or the package if not
    given."""
    bpd: int = 512
    """The test images whose likelihood is taken; none if zero."""
    quick: bool = False
    """A small network, 6 steps of 8, 12 images: shows that it works, not how well."""
    out: Path | None = None
    """The folder of the study; runs/study-generation, or with --quick runs/study-generation-quick,
    if not given."""
    results: Path | None = None
    """Also write all rows to this JSON file."""

    def parts(self) -> list[Part]:
        r"""Returns the parts that were asked for."""
        known = {f"{preset}-{method}": (preset, method) for preset, method in METHODS + VARIANTS}
        names = [f"{preset}-{method}" for preset, method in METHODS]
        for name in self.methods:
            if name not in known:
                raise checks.unknown(name, list(known), "a method", "--methods")
        for seed in self.seeds:
            checks.seed(seed)
        own: Any = {"steps": self.steps, "batch": self.batch, "restarts": self.restarts}
        if self.quick:
            own |= {"steps": self.steps or 6, "batch": self.batch or 8, "quick": True}
        chosen = self.methods or (("fokker-dcd-limit",) if self.quick else names)
        return [
            Part(self.data, *known[name], self.size, self.data_dir, self.device, **own, seed=seed)
            for seed in dict.fromkeys(self.seeds)
            for name in known
            if name in chosen
        ]

    def settings(self) -> Settings:
        checks.positive_integer(few=self.few, chunk=self.chunk)
        if self.samples is not None:
            checks.positive_integer(samples=self.samples)
        if self.bpd != 0:
            checks.at_least(2, bpd=self.bpd)
        checks.not_negative(snapshot_minutes=self.snapshot_minutes)
        if len({f"{check_weight(w):g}" for w in self.guidance}) < len(self.guidance):
            given = ", ".join(f"{w:g}" for w in self.guidance)
            raise ValueError(f"expected different weights of guidance, got {given}")
        base = Settings(
            self.samples,
            self.few,
            self.draws,
            self.guidance,
            self.chunk,
            self.device != "cpu",
            self.convention,
            self.inception,
            self.bpd,
        )
        if not self.quick:
            return base
        return replace(
            base,
            count=self.samples or 12,
            few=min(self.few, 4),
            chunk=min(self.chunk, 8),
            bits=min(self.bpd, 2),
            near=8,
            batch=8,
        )

    def extractor(self, console: Console) -> Extractor | None:
        r"""Returns Inception; without its weights, none of a quick study, and a line that says
        so."""
        try:
            return load_inception(self.inception, self.convention, self.device)
        except ValueError as error:
            if not self.quick or self.inception is not None:
                raise
            console.print(f"FID is skipped: {error}", markup=False, soft_wrap=True)
            return None

    def run(self) -> None:
        try:
            self.work()
        except (Interrupted, KeyboardInterrupt) as stop:
            step = f" after step {stop.step}" if isinstance(stop, Interrupted) else ""
            raise KeyboardInterrupt(
                f"interrupted{step}: what is done is kept, and the same command goes on"
            ) from None

    def work(self) -> None:
        r"""Runs the stages that were asked for."""
        from . import figures
        from .judging import collect, judge
        from .working import sample, train

        console, clock = Console(), Clock(self.minutes)
        usual = Path("runs/study-generation-quick" if self.quick else "runs/study-generation")
        out = usual if self.out is None else self.out
        parts, settings = self.parts(), self.settings()
        for part in parts if "train" in self.stage else ():  # before anything is spent
            place = out / part.name / "run"
            if (place / "config.toml").exists():
                check_resume(part.config, place, "use the settings there, or another --out")
        extractor = self.extractor(console) if "fid" in self.stage else None
        say = lambda text: console.print(text, markup=False, soft_wrap=True)
        done = True
        every = 0.0 if self.quick else self.snapshot_minutes
        trains = len(parts) if "train" in self.stage else 0
        units = begin("reproduce generation, training", trains)
        for part in parts:
            if "train" in self.stage:
                total = part.config.optimization.steps
                within = units.within(total)

                with console.status(part.name) as status:

                    def tick(step: int, line: dict, part=part, s=status, within=within) -> None:  # noqa: ANN001
                        s.update(f"{part.name}: {step} of {part.config.optimization.steps} steps")
                        within(step)
                        if "seconds" in line:
                            say(f"{part.name}: step {step}, {line['seconds'] / 60:.1f} minutes")

                    ended = train(part, out, every, clock, tick)
                units.done()
                if (why := out / part.name / "diverged.txt").exists():
                    say(f"{part.name}: {why.read_text().strip()}")
                else:
                    say(f"{part.name}: {'trained' if ended else 'stopped by the clock and saved'}")
                done = done and ended
        for part in parts:
            if not any((out / part.name / "run" / "checkpoint").glob("step-*")):
                lost = (out / part.name / "diverged.txt").exists()
                say(
                    f"{part.name}: {'diverged before it was saved' if lost else 'not trained yet'}"
                )
                done = done and lost
                continue
            if "sample" in self.stage:
                done = sample(part, out, settings, clock, say) and done
            if "fid" in self.stage:
                done = judge(part, out, extractor, settings, clock, say) and done
        rows = collect(out)
        if self.results is not None and rows:
            command = (
                f"fokker reproduce generation --data {Path(self.data).name} --size {self.size}"
            )
            command += "" if self.steps is None else f" --steps {self.steps}"
            if self.restarts:
                command += f" --restarts {' '.join(map(str, self.restarts))}"
            where = ", ".join(sorted({row["device"] for row in rows}))
            results.save(self.results, rows, command + " --quick" * self.quick, where=where)
        if rows and {"fid", "figures"} & set(self.stage):
            table = Table(*(Column(name, overflow="fold") for name in tables.GENERATION_HEADER))
            for line in tables.generation_rows(rows):
                table.add_row(*(cell.replace("**", "") for cell in line))
            console.print(table)
        if "figures" in self.stage:
            for path in figures.draw_all(parts, out, rows, settings):
                say(f"figure: {path}")
        if not done:
            say("Not all is done: the same command goes on from here.")
        if self.quick:
            say("This was --quick: a slice, not the study.")
