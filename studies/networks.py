r"""Trials of U-Nets: which one has the lowest FID after the same time of training.

Each candidate (`fokker.runs.presets.CANDIDATES`) trains on one set of images by `fokker.fit` under
our preset `dcd-limit`, Adam and Muon, for the same number of seconds. The number of steps is a
setting, and the rate falls to zero at its end, so a trial has two phases:

1. **Timing.** A run takes `WARM` steps and then `CHUNKS` chunks of `EACH` steps. The time of a
step is that
   of the fastest chunk: other processes that compile may use the device too. Nothing is evaluated
   or saved.
2. **Training.** A fresh run takes as many steps as fit into the time, warm-up included. It is
   evaluated after its last step alone.

Then the averaged weights are saved in bfloat16, test images are denoised at three levels, and FID
is computed on samples of 18 Heun steps. Compilation counts in no figure.

Trials may run side by side in processes of their own. They trace and compile at the same time, and
a lock gives the device to one of them at a time: for its timing, then from its first training step
to its last sample. The folder of the study holds

=================================  ================================================================
`timings/NAME.json`                the time of a step, used again by later trials
`TRIAL/run/`                       the run (`fokker.runs.folder`)
`TRIAL/weights.safetensors`        its averaged weights in bfloat16
`TRIAL/samples.png`                its first samples
`TRIAL/row.json`                   its figures
=================================  ================================================================

A trial with a row is not run again. One without a row goes on with its run, which is saved by the
clock: with `split` a trial that cannot end by the deadline trains until then, and another call, on
another machine if the run was packed (`fokker pack`), takes the steps that are left.

**Variants.** A trial is named by its network and what else differs from the preset, such as
`fold-128+attention=0+heads=2+batch=512+muon=0.02+mean=-0.8+augment=0.12`: fields of the U-Net
(width, blocks, fold, multipliers, attention, heads), of the optimizers (batch, rate, muon, beta2,
ema, warmup), the mean and std of the logarithm of the levels, their weight (one, variance, edm),
flip and augment. The values of a tuple are joined by commas.
"""

__all__ = [
    "Settings",
    "TooLate",
    "Trial",
    "changed",
    "collect",
    "parameters",
    "prepare",
    "run",
    "run_all",
]

import contextlib
import gc
import itertools
import json
import math
import shutil
import tempfile
import time
import torch
import typing

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from filelock import FileLock
from fokker import checks
from fokker.compute.field import CompiledField
from fokker.data.picture import save_png, to_float
from fokker.data.sources import name_of
from fokker.files import write_text
from fokker.images.denoise import LEVELS, denoise, noisy, rmse
from fokker.images.generate import DivergedEnergy, Sampling, generate
from fokker.images.quality import described, judge_images, reference_of
from fokker.metrics import Extractor, load_inception
from fokker.runs.checkpoints import names, newest
from fokker.runs.config import Config, ImageData, UNet
from fokker.runs.folder import read_config
from fokker.runs.guard import Guard
from fokker.runs.presets import CANDIDATES, generation_config
from fokker.runs.toml import decode, encode
from fokker.runs.training import SAVE, Diverged, Interrupted, fit
from fokker.samplers import Field
from fokker.tasks import Run, task_of
from fokker.tasks.image import ImageTask
from multiprocessing import get_context
from pathlib import Path
from safetensors.torch import save_file
from torch.backends import cudnn
from typing import Any, Self

from . import results
from .generation.parts import MIRRORED

WARM, CHUNKS, EACH = 10, 12, 10  # steps before timing, chunks of steps, steps a chunk
WARMUP = (
    5  # the rate rises over a fifth of the steps, or as long as the preset says if that is less
)
LEAST = 60.0  # seconds of training for which it is worth to begin
MARGIN = 60.0  # seconds from the last step to the row, where no trial has told yet
SHOWN = 64  # samples in the picture

KEY = ("name", "data", "seed", "minutes", "batch")  # what tells rows apart

Say = Callable[[str], None]


class TooLate(Exception):
    r"""A trial was not started, because it could not end in time."""


class Timed(Exception):
    r"""Enough steps are timed."""


@dataclass(frozen=True)
class Trial:
    r"""One candidate on one set."""

    name: str  # a key of CANDIDATES, and the changes of a variant
    data: str = "celeba32"
    data_dir: str | None = None
    device: str = "cpu"
    seed: int = 0
    minutes: float = 2.5  # of training
    batch: int = 256
    quick: bool = False  # a small network, for tests and a first look on a CPU

    @property
    def candidate(self) -> str:
        r"""The name of the network."""
        return self.name.split("+")[0]

    @property
    def changes(self) -> dict[str, str]:
        r"""What differs from the preset, by the name of the setting."""
        pairs = [part.partition("=") for part in self.name.split("+")[1:]]
        return {key: value for key, _, value in pairs}

    @property
    def images(self) -> int:
        r"""The number of images a training step."""
        return int(self.changes.get("batch", self.batch))

    @property
    def kind(self) -> str:
        r"""The name of what is timed."""
        return f"{name_of(self.data)}-{self.name}-b{self.batch}"

    @property
    def folder(self) -> str:
        return f"{self.kind}-m{self.minutes:g}-s{self.seed}"

    @property
    def key(self) -> tuple[Any, ...]:
        r"""The values of `KEY` in its row."""
        return (self.name, name_of(self.data), self.seed, self.minutes, self.images)

    def config(self, steps: int) -> Config:
        r"""Returns the configuration of a run of so many steps."""
        images = ImageData(self.data, self.data_dir, flip=name_of(self.data) in MIRRORED)
        base = generation_config("fokker", "dcd-limit", images, device=self.device, seed=self.seed)
        assert isinstance(base.network, UNet)
        network = replace(CANDIDATES[self.candidate], precision=base.network.precision)
        optimization = replace(base.optimization, steps=steps, batch=self.batch)
        config = replace(base, network=network, optimization=optimization)
        config = changed(config, self.changes)
        warmup = min(config.optimization.warmup, steps // WARMUP)
        network = config.network
        assert isinstance(network, UNet)
        if self.quick:
            network = replace(network, width=8, blocks=1)
        return replace(
            config,
            network=network,
            optimization=replace(config.optimization, warmup=warmup),
            evaluate=steps,
            preview=0,
            guard=Guard("stop"),  # a trial that diverges is a result
        )


@dataclass(frozen=True)
class Settings:
    r"""How trials are evaluated, and until when they may last."""

    fid: int = 10_000  # images of the FID; none if zero
    inception: Path | None = None
    chunk: int = 1000  # images drawn at once
    tested: int = 2000  # test images that are denoised
    batch: int = 250  # images at once in Inception and in denoising
    sampling: Sampling = Sampling()
    deadline: float | None = None  # by time.time()
    split: bool = False  # whether a trial that cannot end by then begins, and goes on later


class Turn:
    r"""Creates the turn of a trial on the device: a context for `fit`, and a clock of its steps.

    The lock is taken as the context is entered and kept afterwards, until `release`.

    Arguments:
        lock: The lock of the device.
        device: The device.
        deadline: The time by which the trial must end, by `time.time`; none if not given.
        needed: The seconds that it takes.
    """

    def __init__(
        self, lock: FileLock, device: str, deadline: float | None = None, needed: float = 0.0
    ) -> None:
        self.lock, self.device, self.deadline, self.needed = lock, device, deadline, needed
        self.ready, self.start, self.seconds = 0.0, 0.0, 0.0

    def check(self) -> None:
        r"""Raises if the trial could not end in time."""
        if self.deadline is not None and time.time() + self.needed > self.deadline:
            left = max(0.0, self.deadline - time.time())
            raise TooLate(
                f"not started: it takes {self.needed / 60:.1f} minutes, and {left / 60:.1f} are"
                " left"
            )

    def __enter__(self) -> Self:
        self.ready = time.perf_counter()
        self.lock.acquire()
        try:
            self.check()
        except TooLate:
            self.release()
            raise
        synchronize(self.device)
        if torch.device(self.device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stop(self) -> None:
        r"""Stops the clock."""
        synchronize(self.device)
        self.seconds = time.perf_counter() - self.start

    def release(self) -> None:
        self.lock.release(force=True)


PLACES = {
    "network": ("width", "blocks", "fold", "multipliers", "attention", "heads"),
    "optimization": ("batch", "rate", "muon", "beta2", "ema", "warmup"),
    "level": ("mean", "std"),
    "objective": ("weight",),
    "data": ("flip", "augment"),
}


def changed(config: Config, changes: Mapping[str, str]) -> Config:
    r"""Returns a configuration with settings changed by their names; see the module."""
    known = {key: place for place, keys in PLACES.items() for key in keys}
    for key, text in changes.items():
        if key not in known:
            raise checks.unknown(key, list(known), "a setting", "a variant")
        objective: Any = config.objective
        parts = {
            "network": config.network,
            "optimization": config.optimization,
            "level": objective.level,
            "objective": objective,
            "data": config.data,
        }
        part: Any = parts[known[key]]
        hint = typing.get_type_hints(type(part))[key]
        value: Any = value_of(text)
        if typing.get_origin(hint) is tuple and not isinstance(value, list):
            value = [value]
        value = decode(hint, value, f"{key}={text}")
        part = replace(part, **{key: value})
        match known[key]:
            case "level":
                config = replace(config, objective=replace(objective, level=part))
            case "data":
                network = replace(config.network, augmented=part.augment > 0)  # pyright: ignore
                config = replace(config, data=part, network=network)
            case place:
                config = replace(config, **{place: part})
    return config


def value_of(text: str) -> Any:
    r"""Returns a value of a variant: a number, true or false, a word, or a list of numbers."""
    if text in {"true", "false"}:
        return text == "true"
    if "," in text:
        return [value_of(part) for part in text.split(",") if part]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def lock_of(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / "turn.lock")


def forget() -> None:
    r"""Frees the memory of runs that are over."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parameters(name: str, shape: tuple[int, ...] = (3, 32, 32)) -> int:
    r"""Returns the number of parameters of a candidate on images of a shape."""
    with torch.device("meta"):
        network = Trial(name).config(1).network
        return sum(p.numel() for p in network.build(shape).parameters())


def measure(trial: Trial, folder: Path) -> results.Row:
    r"""Returns the milliseconds and the memory of a training step, from the folder if they are
    there.

    Arguments:
        trial: The trial.
        folder: The folder of the study.
    """
    path, hardware = folder / "timings" / f"{trial.kind}.json", results.hardware(trial.device)
    if path.exists() and (found := json.loads(path.read_text()))["device"] == hardware:
        return found
    chunks, each = (2, 1) if trial.quick else (CHUNKS, EACH)
    warm = 1 if trial.quick else WARM
    marks: list[float] = []

    def tick(step: int, line: dict[str, Any]) -> None:
        if step < warm or (step - warm) % each:
            return
        synchronize(trial.device)
        marks.append(time.perf_counter())
        if len(marks) > chunks:
            raise Timed

    turn, clock = Turn(lock_of(folder), trial.device), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        try:
            fit(trial.config(10**6), Path(place) / "run", progress=tick, turn=turn)
        except Timed:
            pass
        finally:
            peak = None
            if torch.device(trial.device).type == "cuda":
                peak = torch.cuda.max_memory_reserved(trial.device) / 2**30
            turn.release()
    spans = [1000 * (b - a) / each for a, b in itertools.pairwise(marks)]
    row = {
        "ms": min(spans),
        "ms_chunks": spans,
        "peak_gib": peak,
        "compile_seconds": turn.ready - clock,
        "device": hardware,
    }
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps(row))
    forget()
    return row


def field_of(trial: Trial, config: Config, shape: tuple[int, ...], settings: Settings) -> Field:
    r"""Returns the field of the sampler, compiled on a GPU, of a network that is not trained yet.

    Weights that are loaded into its energy later are those it uses.
    """
    energy = config.build(shape).to(trial.device).requires_grad_(False)
    field = Field(energy) if trial.device == "cpu" else CompiledField(energy)
    if field.one_size and settings.fid:
        # by the calls to come, whose strides the compiled code depends on
        few = replace(settings.sampling, steps=2)
        with contextlib.suppress(DivergedEnergy):  # it is not trained
            generate(field, settings.chunk, shape, few, 0, settings.chunk, device=trial.device)
    return field


def prepare(trial: Trial, folder: Path, settings: Settings) -> None:
    r"""Compiles the step and the field of a trial, into the cache of the compiler, and times the
    step."""
    measure(trial, folder)
    config = trial.config(1)
    field_of(trial, config, task_of(config).load().shape, settings)


def margin(folder: Path) -> float:
    r"""Returns the seconds that a trial takes after its last step, by those before it."""
    found = [json.loads(p.read_text())["evaluation_seconds"] for p in folder.glob("*/row.json")]
    return max(found, default=MARGIN)


def run(
    trial: Trial,
    folder: Path,
    settings: Settings,
    extractor: Extractor | None = None,
    say: Say = print,
) -> results.Row:
    r"""Runs a trial, unless its row is there, and returns its row.

    Arguments:
        trial: The trial.
        folder: The folder of the study.
        settings: How it is evaluated.
        extractor: Inception; read from the file of the settings if not given.
        say: Called with a line a phase.
    """
    place = folder / trial.folder
    if (path := place / "row.json").exists():
        return json.loads(path.read_text())
    device, lock = torch.device(trial.device), lock_of(folder)
    started = bool(names(place / "run" / "checkpoint"))
    before = newest(place / "run").seconds if started else 0.0
    rest = 60 * trial.minutes - before + margin(folder)
    turn = Turn(
        lock, trial.device, settings.deadline, min(rest, LEAST) if settings.split else rest
    )
    turn.check()
    timing = measure(trial, folder)
    steps = max(1, math.floor(60_000 * trial.minutes / timing["ms"]))
    if started:  # what another machine has begun has the steps that fitted there
        steps = read_config(place / "run").optimization.steps
    config = trial.config(steps)
    say(f"{trial.folder}: {timing['ms']:.1f} ms a step, {steps} steps to take")
    task = task_of(config).load()
    assert isinstance(task, ImageTask)
    field = field_of(trial, config, task.shape, settings)
    energy: Any = field.energy
    if settings.fid and extractor is None:
        extractor = load_inception(settings.inception, device=trial.device)
    if not started:
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)

    def tick(step: int, line: dict[str, Any]) -> None:
        if step == steps and not line:
            turn.stop()

    row: results.Row = {
        "name": trial.name,
        "data": name_of(trial.data),
        "preset": "fokker",
        "method": "dcd-limit",
        "seed": trial.seed,
        "minutes": trial.minutes,
        "batch": trial.images,
        "params": sum(p.numel() for p in energy.parameters()),
        "ms": timing["ms"],
        "images_per_second": 1000 * trial.images / timing["ms"],
        "peak_gib": timing["peak_gib"],
        "compile_seconds": timing["compile_seconds"],
        "steps": steps,
        "images_seen": steps * trial.images,
        "seconds": None,
        "gpu_minutes": None,
        "diverged": None,
        **{f"rmse_{sigma}": None for sigma in LEVELS},
        "rmse_n": None,
        "sampler": settings.sampling.sampler,
        "sampler_steps": settings.sampling.steps,
        "samples_per_second": None,
        "fid": None,
        "fid_n": settings.fid,
        "convention": None,
        "weights": None,
        "kid": None,
        "kid_std": None,
    }
    images, drawn, clock = None, None, time.perf_counter()
    try:
        trained = train(config, place / "run", started, tick, turn, settings)
        clock = time.perf_counter()
        seconds = before + turn.seconds
        row |= {"seconds": seconds, "gpu_minutes": seconds / 60}
        row |= {"restarts": trained.history.figures["restarts"]}
        say(f"{trial.folder}: trained in {seconds:.0f} s")
        weights = trained.energy.state_dict()
        low = {k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()}
        save_file(low, place / "weights.safetensors", {"seconds": repr(seconds)})
        energy.load_state_dict(weights)  # in place: a compiled field uses them
        row |= errors(field, task, device, settings)
        if settings.fid:
            chunks = math.ceil(settings.fid / settings.chunk)  # whole ones: each is compiled once
            drawn = generate(
                field,
                chunks * settings.chunk,
                task.shape,
                settings.sampling,
                batch=settings.chunk,
                device=trial.device,
            )
            assert extractor is not None
            images = described(drawn.images[: settings.fid], extractor, settings.batch)
    except (Diverged, DivergedEnergy) as error:
        row["diverged"] = str(error)
    finally:
        turn.release()
    if drawn is not None and images is not None and extractor is not None:
        save_png(place / "samples.png", to_float(drawn.images[:SHOWN]))
        row["samples_per_second"] = len(drawn.images) / drawn.seconds
        reference = reference_of(task.images["train"], extractor, settings.batch)
        fid, kid = judge_images(images, reference, extractor, settings.batch)
        row |= {"fid": fid.value, "convention": fid.convention, "weights": fid.weights[:8]}
        if kid is not None:
            row |= {"kid": kid.mean, "kid_std": kid.std}
    row |= {
        "evaluation_seconds": time.perf_counter() - clock,
        "config": encode(config),
        "device": results.hardware(trial.device),
        "commit": results.commit(),
    }
    write_text(path, json.dumps(row, indent=1, allow_nan=False))
    forget()
    return row


def train(
    config: Config,
    place: Path,
    started: bool,
    tick: Callable[[int, dict[str, Any]], None],
    turn: Turn,
    settings: Settings,
) -> Run:
    r"""Trains the run of a trial, or goes on with it; raises `TooLate` at the deadline of a trial
    that is split."""
    end = settings.deadline if settings.split else None
    over = lambda *_: end is not None and time.time() > end
    options: dict[str, Any] = {"progress": tick, "turn": turn, "watch": over}
    try:
        return fit(config, place, started, **options, save=SAVE if settings.split else None)
    except Interrupted as stop:
        if not (stop.late or over()):
            raise
        raise TooLate(f"stopped after step {stop.step}; the same command goes on") from None


def errors(field: Field, task: ImageTask, device: torch.device, settings: Settings) -> results.Row:
    r"""Returns the RMSE of denoised test images at each level."""
    clean, found = task.test(settings.tested, device), {}
    energy: Any = field.energy
    with cudnn.flags(enabled=True, benchmark=False):  # few batches of this shape
        for sigma in LEVELS:
            x = noisy(clean, sigma)
            parts = [denoise(energy, p, sigma).detach() for p in x.split(settings.batch)]
            value = float(rmse(torch.cat(parts), clean).mean())
            found[f"rmse_{sigma}"] = value if math.isfinite(value) else None
    return {**found, "rmse_n": len(clean)}


def collect(path: Path, fresh: Sequence[results.Row], command: str) -> list[results.Row]:
    r"""Adds rows to a file of results, in place of those of the same trials, and returns all."""
    key = lambda row: tuple(row.get(k) for k in KEY)
    old = results.load(path)["rows"] if path.exists() else []
    new = {key(row) for row in fresh}
    rows = [row for row in old if key(row) not in new] + list(fresh)
    where = ", ".join(sorted({row["device"] for row in rows}))
    results.save(path, rows, command, where=where)
    return rows


def run_all(
    trials: Sequence[Trial],
    folder: Path,
    target: Path,
    settings: Settings,
    command: str,
    jobs: int = 1,
    only_prepare: bool = False,
    say: Say = lambda text: None,
) -> None:
    r"""Runs trials, and writes each row as soon as it is there; one that fails leaves the others.

    Arguments:
        trials: The trials, in the order in which they begin.
        folder: The folder of the study.
        target: The file of the rows. Trials that are in it are left out.
        settings: How trials are evaluated.
        command: The command, for the file.
        jobs: The number of trials that are prepared side by side; they take turns on the device.
        only_prepare: Whether to compile and time alone.
        say: Called with a line a trial.
    """
    rows = results.load(target)["rows"] if target.exists() else []
    done = {tuple(row.get(k) for k in KEY) for row in rows}
    todo = []
    for trial in trials:
        if trial.key in done:
            say(f"{trial.folder}: in {target} already")
        elif not only_prepare or trial.kind not in {t.kind for t in todo}:
            todo.append(trial)
    failed = []

    def end(trial: Trial, call: Callable[[], Any]) -> None:
        r"""Writes the row of a trial that is over, or says why there is none."""
        try:
            row = call()
        except TooLate as error:
            say(f"{trial.folder}: {error}")
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001, the others go on
            failed.append(trial.folder)
            say(f"{trial.folder}: {type(error).__name__}: {error}")
        else:
            if only_prepare:
                return say(f"{trial.folder}: compiled and timed")
            collect(target, [row], command)
            text = f"FID {row['fid']:.2f}" if row["fid"] is not None else "no FID"
            say(f"{trial.folder}: {row['diverged'] or text}, in {target}")

    def reference() -> Extractor | None:
        r"""Computes what FID compares to, once for all trials: they find it in the cache."""
        if not todo or not settings.fid or only_prepare:
            return None
        extractor = load_inception(settings.inception, device=todo[0].device)
        task = task_of(todo[0].config(1)).load()
        assert isinstance(task, ImageTask)
        reference_of(task.images["train"], extractor, settings.batch)
        return extractor

    work: Any = prepare if only_prepare else run
    if jobs == 1:
        extractor = reference()
        for trial in todo:
            options = {} if only_prepare else {"extractor": extractor, "say": say}
            end(
                trial,
                lambda trial=trial, options=options: work(trial, folder, settings, **options),
            )
    elif todo:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            with lock_of(folder):  # trials compile meanwhile
                found = {pool.submit(work, trial, folder, settings): trial for trial in todo}
                reference()
            forget()
            for future in as_completed(found):
                end(found[future], future.result)
    if failed:
        raise ValueError(f"expected all trials to end, got {', '.join(failed)} that did not")
