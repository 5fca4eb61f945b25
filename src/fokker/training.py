r"""Training: one energy, from a configuration to a run folder.

A step draws a fresh batch, evaluates the objective, and lets Adam move the weights; the average of
the weights follows. All randomness of step k comes from a generator seeded by the pair of the run's
seed and k, so a run that was stopped and resumed takes the very steps it would have taken: on a CPU
the result is the same bit for bit.

Once every `evaluate` steps the run is judged and saved. A loss that is not finite stops it there;
what was saved last is kept. On a table the weights that do best on the validation rows are kept
beside the last, and training stops once `patience` evaluations have brought no better ones.
"""

__all__ = ["Diverged", "Interrupted", "fit"]

import math
import signal
import threading
import time
import torch

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from typing import Any

from .config import Config, dumps
from .energies import Energy
from .runs import (
    Best,
    Checkpoint,
    Run,
    build,
    load,
    read_checkpoint,
    read_config,
    read_metrics,
    write_checkpoint,
    write_metrics,
    write_text,
)
from .stack import decay_at, rate_at
from .step import Step
from .tasks import Task, task_of

Progress = Callable[[int, dict[str, Any]], None]
Watch = Callable[[int, Tensor, dict[str, Tensor]], bool]


class Diverged(FloatingPointError):
    r"""Training met a value that is not finite. What was saved last is kept."""


class Interrupted(Exception):
    r"""Training was interrupted, and saved."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(
            f"stopped after step {step} and saved; resume with --resume --out {folder}"
        )
        self.folder, self.step = folder, step


def step_generator(config: Config, k: int) -> torch.Generator:
    r"""Returns the generator of step k."""
    device = torch.device(config.device)
    return torch.Generator(device).manual_seed((config.seed * 2_000_003 + k) % 2**63)


@contextmanager
def stop_requests() -> Generator[list[int], None, None]:
    r"""Collects SIGINT and SIGTERM instead of raising, so that a step is never cut in half."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _: caught.append(number)) for kind in kinds}
    try:
        yield caught
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def kept(folder: Path, step: int) -> str:
    return f"step {step} is kept in {folder}" if step else "nothing was saved"


@contextmanager
def writing(folder: Path, step: int) -> Generator[None, None, None]:
    r"""Says which run folder could not be written to, and the step that was saved there last."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"expected a run folder that can be written to, got {folder}: {error};"
            f" {kept(folder, step)}"
        ) from error


def better(best: Best | None, line: dict[str, Any], task: Task, energy: Energy) -> Best | None:
    r"""Returns the weights to read the run with after a judgement: those judged, if they are better;
    none where the task does not choose."""
    if task.criterion is None:
        return None
    if line[task.criterion] is None:
        raise Diverged(
            f"{task.criterion} is not finite after step {line['step']}; what was saved before is kept"
        )
    if best is not None and best.value <= line[task.criterion]:
        return best
    weights = {name: v.detach().cpu().clone() for name, v in energy.state_dict().items()}
    device = next(iter(energy.parameters())).device
    return Best(line["step"], line[task.criterion], weights, task.card(energy, device))


def fit(
    config: Config,
    out: str | Path,
    resume: bool = False,
    progress: Progress = lambda step, line: None,
    minutes: float | None = None,
    watch: Watch = lambda step, loss, average: False,
) -> Run:
    r"""Trains an energy and returns the run, which lies in a folder.

    Arguments:
        config: All that the run depends on.
        out: The run folder. It must not hold a run yet, unless it is resumed.
        resume: Whether to go on from the newest checkpoint in the folder.
        progress: Called after each evaluation with the number of steps done and the line of
            `metrics.jsonl`, and once a step with an empty line.
        minutes: The minutes after which it saves and stops, as if interrupted; none if not given.
        watch: Called once a step with the number of steps done, the loss and the averaged weights,
            which the next step overwrites. If it returns true, training saves and stops, as if
            interrupted; the last step is the end in any case.
    """
    folder, device = Path(out), torch.device(config.device)
    optimization, objective = config.optimization, config.objective
    task = task_of(config)
    energy = build(config, task.shape).to(device)
    average = [v.detach().clone() for v in energy.state_dict().values()]
    betas = (optimization.beta1, optimization.beta2)
    fused = device.type == "cuda"
    adam = torch.optim.Adam(energy.parameters(), optimization.rate, betas, fused=fused)
    step = Step(energy, objective, config.compile)
    start, before, lines, state, best = 0, 0.0, [], None, None

    # the folder: a new one, or what was left there
    if resume:
        if read_config(folder) != config:
            raise ValueError(
                f"expected the configuration in {folder / 'config.toml'}, got another one;"
                " resume without changes, or train into a new folder"
            )
        saved = read_checkpoint(folder)
        best = saved.best
        if best is not None:
            task.check(best.card)
        energy.load_state_dict(saved.model)
        average = [saved.average[name].to(device) for name in energy.state_dict()]
        adam.load_state_dict(saved.training["adam"])
        state = objective.restore([t.to(device) for t in saved.training["state"]])
        start = saved.step
        lines = read_metrics(folder, start)
        before = lines[-1]["seconds"] if lines else 0.0
    else:
        if (folder / "config.toml").exists():
            raise ValueError(
                f"expected a new folder, got {folder}, which holds a run; use --resume to go on"
                " with it, or another --out"
            )
        text = dumps(config)
        with writing(folder, start):
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "config.toml", text)
    with writing(folder, start):
        write_metrics(folder, lines)

    def averaged() -> dict[str, Tensor]:
        return dict(zip(energy.state_dict(), average, strict=True))

    def patient() -> bool:
        if best is None or config.patience is None:
            return True
        return sum(line["step"] > best.step for line in lines) < config.patience

    shadow = build(config, task.shape).to(device).requires_grad_(False)
    finite, last = torch.ones((), dtype=torch.bool, device=device), math.nan
    clock, saved_at = time.perf_counter(), start
    with stop_requests() as stops:
        for k in range(start, optimization.steps):
            if not patient():
                break

            # one step
            generator = step_generator(config, k)
            x = task.batch(optimization.batch, generator)
            result = step(x, state, generator)
            result.assign(energy)
            if optimization.clip is not None:
                torch.nn.utils.clip_grad_norm_(energy.parameters(), optimization.clip)
            rate = rate_at(k, optimization)
            adam.param_groups[0]["lr"] = rate
            adam.step()
            state = result.state
            follow = get_ema_multi_avg_fn(decay_at(k, optimization))
            follow(average, list(energy.state_dict().values()), k)
            finite &= torch.isfinite(result.loss)
            done = k + 1
            progress(done, {})
            asked = watch(done, result.loss, averaged())

            # judge, save, stop
            due = done % config.evaluate == 0 or done == optimization.steps
            late = minutes is not None and time.perf_counter() - clock > 60 * minutes
            stopping = bool(stops) or ((late or asked) and done < optimization.steps)
            if due or stopping:
                sound = all(bool(torch.isfinite(p).all()) for p in energy.parameters())
                if not (finite and sound):
                    raise Diverged(
                        f"the loss or a weight is not finite within steps {saved_at + 1} to {done}"
                        f" (last finite loss {last:.4g}); {kept(folder, saved_at)}. Try a lower"
                        " rate, clip=1, or the preset fokker"
                    )
                last = float(result.loss)
                line: dict[str, Any] = {"step": done, "loss": last, "rate": rate}
                if due:
                    shadow.load_state_dict(averaged())
                    line |= {name: float(v) for name, v in result.info.items()}
                    line |= task.judge(shadow, device)
                    line["seconds"] = round(before + time.perf_counter() - clock, 3)
                    lines.append(line)
                    best = better(best, line, task, shadow)
                training = {"adam": adam.state_dict(), "state": list(state or ())}
                with writing(folder, saved_at):
                    write_metrics(folder, lines)
                    write_checkpoint(
                        folder,
                        Checkpoint(
                            done, task.shape, energy.state_dict(), averaged(), training, best
                        ),
                    )
                saved_at = done
                progress(done, line)
            if stopping:
                raise Interrupted(folder, done)
    return load(folder)
