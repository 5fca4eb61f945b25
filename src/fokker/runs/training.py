r"""Training: one energy, from a configuration to a run folder.

A step draws a fresh batch, evaluates the objective, and lets Adam, or Adam and Muon, move the
weights; the average of the weights follows. All randomness of step k comes from a generator seeded
by the run's seed and k, so a run that was stopped and resumed takes the very steps it would have
taken: on a CPU, with the same number of threads, the result is the same bit for bit. Under
`torchrun` every rank takes its share of each step and, on images, of each judgement
(`fokker.compute.ranks`), and rank 0 writes.

Once every `evaluate` steps the run is judged and saved, and leaves a preview if it is to. It is
saved by the clock as well, so that a process that is killed loses two minutes at most. A run
that diverges stops, or is rolled back (`fokker.runs.guard`); what was saved before is kept, and
nothing that is not finite is ever saved. On a table the weights that do best on the validation
rows are kept beside the last, and training stops once `patience` evaluations have brought no
better ones.
"""

__all__ = ["Diverged", "Interrupted", "fit"]

import json
import os
import signal
import threading
import time

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from torch import Tensor
from typing import Any, Literal

from .checkpoints import Name, names, newest, read
from .config import Config
from .folder import read_config, read_run
from .guard import Fall, finite
from .owner import Owner
from .quality import judge_samples
from .state import Line, State, kept, step_generator, writing
from .toml import difference, dumps, loads
from .. import checks
from ..compute.ranks import join, orphan
from ..files import inner_folder, read_regular, write_text
from ..tasks import Run, Task, TooLate, task_of

MARK = 1000  # bytes of data.json
SAVE = 1.5  # minutes from one checkpoint to the next: with its writing, less than two
Progress = Callable[[int, Line], None]
Look = Callable[[int, Tensor, dict[str, Tensor]], bool]


class Diverged(FloatingPointError):
    r"""Training diverged. What was saved last is kept."""


class Interrupted(Exception):
    r"""Training was interrupted, or its time was over, and saved."""

    def __init__(self, folder: Path, step: int, late: bool = False) -> None:
        super().__init__(
            f"stopped after step {step} and saved; resume with the same options and --resume"
            f" --out {folder}"
        )
        self.folder, self.step, self.late = folder, step, late


@contextmanager
def stop_requests() -> Generator[list[int], None, None]:
    r"""Collects SIGINT, SIGTERM and SIGHUP instead of raising, so that no step is cut in half. A
    signal that is ignored, as SIGHUP under nohup, stays so."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    kinds = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    kinds = [kind for kind in kinds if signal.getsignal(kind) != signal.SIG_IGN]
    before = {kind: signal.signal(kind, lambda number, _: caught.append(number)) for kind in kinds}
    try:
        yield caught
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


Resume = bool | Literal["if-any"]


def check_resume(config: Config, folder: Path, instead: str) -> bool:
    r"""Returns whether a configuration has other steps or restarts than the run in a folder, which
    goes on as long as the rate was the same in all steps that it took; refuses any that differs in
    more.

    Arguments:
        config: The configuration.
        folder: The run folder.
        instead: What to do where it is refused.
    """
    saved, optimization = read_config(folder), config.optimization
    there, found = saved.optimization, names(folder / "checkpoint")
    done = found[-1].step if found else 0
    taken, before = ([c for c in o.cycles if c[0] < done] for o in (optimization, there))
    same = config
    if taken == before:
        same = replace(
            config, optimization=replace(optimization, steps=there.steps, restarts=there.restarts)
        )
    if (other := difference(same, saved)) is None:
        return same != config
    over = config.patience is not None and done < there.steps
    cause = other.startswith(("optimization.steps ", "optimization.restarts "))
    if cause and before and optimization.steps > before[-1][1] and not over:
        turns = " ".join(str(end) for _, end in before)
        instead += f"; with --restarts {turns} it goes on after its end"
    raise ValueError(
        f"expected the configuration in {folder / 'config.toml'}, got another one, {other};"
        f" {instead}"
    )


def write_config(folder: Path, config: Config, saved: int = 0) -> None:
    r"""Writes the configuration of a run folder, where a step was saved."""
    text = dumps(config)
    with writing(folder, saved):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.toml", text)


def check_data(folder: Path, task: Task) -> None:
    r"""Raises unless the data is what it was when the run in a folder began; keeps a hash of it
    where there is none yet."""
    path, mark = folder / "data.json", task.fingerprint()
    if mark is None:
        return
    if not os.path.lexists(path):
        with writing(folder, 0):
            write_text(path, json.dumps({"sha256": mark}) + "\n")
        return
    try:
        said = json.loads(read_regular(path, MARK, folder))["sha256"]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"expected the SHA-256 of the data in {path}, got none") from error
    if said != mark:
        raise ValueError(
            f"expected the data that the run in {folder} began with, got other data of"
            f" {task.title}; train into another folder"
        )


def open_folder(
    folder: Path, config: Config, resume: Resume, owner: Owner, task: Task
) -> tuple[list[int] | None, bool]:
    r"""Makes and takes a run folder, or finds the newest whole checkpoint in it; returns its name,
    if any, and whether the configuration there is another yet, with other steps."""
    if resume is True:
        read_config(folder)  # before anything is written where there is no run
    with writing(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        owner.take()
        for name in ("checkpoint", "previews"):  # no links, which would be written through
            if os.path.lexists(folder / name):
                inner_folder(folder / name)
    holds = (folder / "config.toml").exists()
    if resume is True or (resume and holds):
        changed = check_resume(
            config, folder, "resume without changes, or train into a new folder"
        )
        check_data(folder, task)
        if resume is True or names(folder / "checkpoint"):
            return list(newest(folder).name), changed
        return None, changed
    if holds and not names(folder / "checkpoint"):
        raise ValueError(
            f"expected a new folder, got {folder}, which holds a run without a checkpoint; use"
            " --restartable to begin the same again, or another --out"
        )
    if holds:
        raise ValueError(
            f"expected a new folder, got {folder}, which holds a run; use --resume to go on"
            " with it, or another --out"
        )
    check_data(folder, task)
    write_config(folder, config)
    return None, False


def fit(
    config: Config,
    out: str | Path,
    resume: Resume = False,
    progress: Progress = lambda step, line: None,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    watch: Look = lambda step, loss, average: False,
    turn: AbstractContextManager[Any] | None = None,
    save: float | None = SAVE,
) -> Run:
    r"""Trains an energy and returns the run, which lies in a folder.

    Arguments:
        config: All that the run depends on.
        out: The run folder. It must not hold a run yet, unless it is resumed.
        resume: Whether to go on from the newest whole checkpoint in the folder. `"if-any"` begins
            where there is none, for a job that is restarted by its scheduler.
        progress: Called after each evaluation with the number of steps done and the line of
            `metrics.jsonl`, and once a step with an empty line; on rank 0.
        minutes: The minutes after which it saves and stops, as if interrupted; none if not given.
            Reading and compiling count, but for a run that waits for its turn.
        say: Called with what is worth knowing: the checkpoint resumed from, a divergence; on rank
            0.
        watch: Called once a step with the number of steps done, the loss and the averaged
            weights, which the next step overwrites. If it returns true, training saves and
            stops, as if
            interrupted; the last step is the end in any case.
        turn: Entered when all is ready to train, the step compiled, and left when training is
            over: a lock by which several runs that are prepared side by side take turns on a
            device. The seconds of a run begin there.
        save: The minutes after which it is saved even if no evaluation is due; none if not given.
    """
    if not isinstance(config, Config):
        raise ValueError(
            f"expected a Config, of fokker.runs.presets, got {checks.brief(config)}; to train an"
            " energy of your own on points in memory: fokker.fit_energy(energy, objective, data)"
        )
    folder, clock = Path(out), time.perf_counter()
    if not isinstance(resume, bool) and resume != "if-any":
        raise ValueError(f"expected resume to be True, False or 'if-any', got {resume!r}")
    if minutes is not None:
        checks.not_negative(minutes=minutes)
    if save is not None:
        checks.not_negative(save=save)
    if (again := loads(dumps(config))) != config:  # whatever is trained can be read again
        raise ValueError(
            "expected a configuration that TOML can hold, got one that is read as another:"
            f" {difference(config, again) or config}"
        )
    with join(config.device) as ranks, stop_requests() as stops, Owner(folder) as owner:
        if not ranks.first:
            progress, say = (lambda step, line: None), (lambda text: None)
        run = State(config, folder, ranks.each(task_of(config).load), ranks, owner)
        run.step.even(config.optimization.batch)
        found, changed = ranks.once(lambda: open_folder(folder, config, resume, owner, run.task))
        if found is not None:
            name = Name(*found)
            run.restore(read(folder / "checkpoint" / str(name)))
            run.saved = run.done
            rest = f"{config.optimization.steps - run.done} steps to go"
            if not run.patient():
                rest = f"which had ended: {config.patience} evaluations brought no better one"
                if changed:
                    raise ValueError(f"expected a run that can go on, got {folder}, {rest}")
            say(f"resumed from {name} in {folder}, {rest}")
        if changed:  # only now that nothing can be refused
            ranks.once(lambda: write_config(folder, config, run.saved))
        ranks.once(run.write)
        if config.milestones.any:
            ranks.each(lambda: run.task.prepare_quality(ranks.device))
        if run.done < config.optimization.steps:
            ranks.once(run.begin_part)
        if config.compile and run.done < config.optimization.steps:
            run.rehearse()
        if minutes is not None and turn is None:
            minutes = max(0.0, minutes - (time.perf_counter() - clock) / 60)
        with turn or nullcontext():
            train(run, stops, progress, minutes, say, watch, save)
        return read_run(folder)


def train(
    run: State,
    stops: list[int],
    progress: Progress,
    minutes: float | None,
    say: Callable[[str], None],
    watch: Look,
    save: float | None = SAVE,
) -> None:
    r"""Takes the steps that are left; see `fit`."""
    config, ranks = run.config, run.ranks
    optimization = config.optimization
    run.clock = clock = saved = time.perf_counter()
    asked = False  # to stop
    orphaned = orphan()
    ends = {*optimization.restarts, optimization.steps}  # steps that are always judged
    left = lambda: None if minutes is None else clock + 60 * minutes - time.perf_counter()
    judge_due(run, left, say)  # what a call before had no time for
    while run.done < optimization.steps and run.patient():
        # one step
        late = minutes is not None and time.perf_counter() - clock > 60 * minutes
        asked = asked or late or bool(stops) or orphaned()
        generator = step_generator(config, run.done, run.trial, ranks.device)
        x, label = run.task.labelled(optimization.batch, generator)
        result, rate = run.advance(x, generator, asked, label)
        progress(run.done, {})
        asked = watch(run.done, result.loss, run.averaged()) or asked or bool(stops)

        # look at it, every few steps and before it is saved
        due = run.done % config.evaluate == 0 or run.done in ends
        stopping = ranks.size == 1 and asked and run.done < optimization.steps
        stale = save is not None and time.perf_counter() - saved > 60 * save
        if ranks.size > 1:  # the first rank's clock, where all ranks look at it
            stale = run.watch.full and ranks.tell(stale)
        mark = bool(config.milestones.counts(run.done, optimization.batch))
        stale = stale or mark or run.copied  # saved before its samples are judged
        if not (due or stopping or stale or run.watch.full):
            continue
        fall, flagged = run.watch.read()
        stopping = stopping or (ranks.size > 1 and flagged and run.done < optimization.steps)
        if (
            fall is None
            and (due or stopping or stale)
            and not finite(list(run.energy.parameters()))
        ):
            # between evaluations the next loss will tell, as it would have without the request
            stopping = stale = mark = False
            if due:
                fall = Fall(run.done, f"a weight is not finite after step {run.done}")

        # judge
        line: Line = {"step": run.done, "loss": float(result.loss), "rate": rate}
        if due and fall is None:
            line |= run.judge(x, {name: float(v) for name, v in result.info.items()})
            fall = run.improve(line)
        if fall is not None:
            recover(run, fall, say)
            progress(run.done, {})
            continue

        # save
        if due:
            run.lines.append(line)
            run.back = (*run.back, Name(run.trial, run.done))[-config.keep :]
            if run.done == optimization.steps or not run.patient():
                run.complete()
        if due or stopping or stale:
            run.keep()
            saved = time.perf_counter()
            if due:
                run.preview()
            if due or stopping:
                progress(run.done, line)
        if stopping:
            raise Interrupted(run.folder, run.done, late and not stops)
        if mark:
            judge_due(run, left, say)
    if (text := run.regret()) is not None:
        say(text)


def judge_due(run: State, left: Callable[[], float | None], say: Callable[[str], None]) -> None:
    r"""Judges the samples that are due after the last step, and says how good they are; raises
    `Interrupted` if there is no time."""
    try:
        rows = judge_samples(run, left)
    except TooLate:
        raise Interrupted(run.folder, run.done, True) from None
    for row in rows:
        found = f"FID {row['fid']:.2f} of {row['fid_n']:,} samples"
        found = f"no FID, {row['unknown']}" if row["fid"] is None else found
        say(f"{row['images_seen']:,} images: {found}")


def recover(run: State, fall: Fall, say: Callable[[str], None]) -> None:
    r"""Rolls a run that diverged back to its last good checkpoint, or raises `Diverged`."""
    guard, optimization = run.config.guard, run.config.optimization
    if guard.policy == "roll-back" and run.trial < guard.trials:
        run.roll_back(fall)
        run.ranks.once(run.write)
        say(
            f"{fall.reason}: rolled back to step {run.done}, trial {run.trial} of"
            f" {guard.trials} at {guard.slower**run.trial:g} times the rate"
        )
        return
    run.lines.append({"step": fall.step, "event": "stopped", "reason": fall.reason})
    run.ranks.once(run.write)
    again = f" after {run.trial} trials" if run.trial else ""
    best = ""
    if run.leader is not None:
        best = f", the best ({run.task.merit} {run.leader[0]:.3g}) is {run.leader[1]}"
    rest = "or the preset fokker"
    if guard.policy == "stop":
        rest = "the preset fokker, or --on-divergence roll-back"
    rates = "rate, clip=1" if optimization.muon is None else "rate and muon"
    raise Diverged(
        f"diverged{again}: {fall.reason}; {kept(run.folder, run.saved)}{best}. Try a lower"
        f" {rates}, {rest}"
    )
