r"""The state of a run: all that a step changes, and the way it came.

A step moves the weights by Adam, or Adam and Muon, along the gradients of a
`fokker.compute.step.Step`, averaged over ranks, and the average of the weights follows. All
randomness of step k comes from a generator seeded by the run's seed, the trial and k. A state can
be saved, restored, judged, and rolled back to what was saved.
"""

__all__ = ["Line", "State", "kept", "step_generator", "writing"]

import math
import time
import torch
import warnings

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import get_ema_multi_avg_fn
from typing import Any

from .averages import write_snapshot
from .checkpoints import Best, Checkpoint, Name, read
from .checkpoints import write as write_checkpoint
from .config import Config
from .folder import write_metrics
from .guard import Fall, Watch, diagnose
from .history import add_start
from .owner import Owner
from ..compute.averages import decay
from ..compute.muon import Muon
from ..compute.ranks import Ranks
from ..compute.schedule import decay_at, rate_at
from ..compute.step import Gradients, Step
from ..networks import UNetDenoiser, UNetEnergy
from ..tasks import Task

Line = dict[str, Any]
lerp_ = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]

# what optimizers keep of a parameter
MOMENTS = {torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"}, Muon: {"momentum"}}
FLOOR = 0.01  # a judgement below is as good as perfect: many times as much may still be well


def step_generator(
    config: Config, k: int, trial: int = 0, device: torch.device | None = None
) -> torch.Generator:
    r"""Returns the generator of step k of a trial, the same on all ranks."""
    place = torch.device(config.device) if device is None else device
    seed = config.seed * 2_000_003 + trial * 1_000_000_007 + k
    return torch.Generator(place).manual_seed(seed % 2**63)


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


class State:
    r"""All that changes while a run is trained, and the way it came.

    Arguments:
        config: The configuration.
        folder: The run folder.
        task: The task.
        ranks: The ranks.
        owner: The owner of the run folder; one that holds nothing if not given.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        task: Task,
        ranks: Ranks,
        owner: Owner | None = None,
    ) -> None:
        self.owner = Owner(folder) if owner is None else owner
        self.config, self.folder, self.task, self.ranks = config, folder, task, ranks
        self.energy = task.network().to(ranks.device)
        self.average = [v.detach().clone() for v in self.energy.state_dict().values()]
        optimization = config.optimization
        self.powers = [[v.clone() for v in self.average] for _ in optimization.widths]
        fused = ranks.device.type == "cuda"
        torch.backends.cudnn.benchmark = fused  # all batches have one shape
        betas = (optimization.beta1, optimization.beta2)
        hidden: list[Parameter] = []
        if optimization.muon is not None:  # the configuration has it only for a U-Net
            assert isinstance(self.energy, UNetEnergy | UNetDenoiser)
            hidden = self.energy.hidden
        apart = set(hidden)
        others = [p for p in self.energy.parameters() if p not in apart]
        adam = torch.optim.Adam(others, optimization.rate, betas, fused=fused)
        # each optimizer, with the factor of its rate
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [(adam, 1.0)]
        if optimization.muon is not None:
            self.optimizers.append((
                Muon(hidden, optimization.muon),
                optimization.muon / optimization.rate,
            ))
        self.step = Step(self.energy, config.objective, config.compile, ranks.share, config.slices)
        self.shadow = task.network().to(ranks.device).requires_grad_(False)
        self.done, self.trial = 0, 0
        self.saved = 0  # the step that was saved last
        self.inner: Any = None  # the objective's
        self.best: Best | None = None
        self.lines: list[Line] = []
        self.back: tuple[Name, ...] = ()
        self.leader: tuple[float, Name] | None = None
        self.watch = Watch(config.guard, ranks.device)
        self.before, self.clock = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        r"""The seconds of training so far, those before a stop among them."""
        return self.before + time.perf_counter() - self.clock

    def averaged(self) -> dict[str, Tensor]:
        r"""Returns the average of the weights by name."""
        return dict(zip(self.energy.state_dict(), self.average, strict=True))

    def powered(self) -> tuple[dict[str, Tensor], ...]:
        r"""Returns the power-function averages by name."""
        return tuple(dict(zip(self.energy.state_dict(), p, strict=True)) for p in self.powers)

    def restore(self, saved: Checkpoint) -> None:
        r"""Goes back to a checkpoint."""
        if len(saved.powers) != len(self.powers):
            raise ValueError(
                f"expected {len(self.powers)} power-function averages in the checkpoint, got"
                f" {len(saved.powers)}"
            )
        device, share = self.ranks.device, self.ranks.share
        if saved.best is not None:
            self.task.check_card(saved.best.card)
        self.energy.load_state_dict(saved.model)
        self.average = [saved.average[name].to(device) for name in self.energy.state_dict()]
        self.powers = [
            [p[name].to(device) for name in self.energy.state_dict()] for p in saved.powers
        ]
        names = {p: name for name, p in self.energy.named_parameters()}
        for optimizer, _ in self.optimizers:
            optimizer.state.clear()
            for p in optimizer.param_groups[0]["params"]:
                # as Adam lays them out: moments like the parameter, the count where it wants it
                held = {} if saved.adam is None else saved.adam.get(names[p], {})
                wanted = MOMENTS[type(optimizer)]
                if held and set(held) != wanted:
                    raise ValueError(
                        f"expected {', '.join(sorted(wanted))} of {names[p]} in the"
                        " checkpoint, for"
                        f" {type(optimizer).__name__}, got {', '.join(sorted(held))}"
                    )
                for field, v in held.items():
                    if field == "step":
                        v = v.to(device if device.type == "cuda" else "cpu")
                    else:
                        v = torch.empty_like(p).copy_(v).detach()
                    optimizer.state[p][field] = v
        state = [share(t).to(device).contiguous() for t in saved.state]
        self.inner = self.config.objective.restore(state)
        self.done, self.trial, self.best = saved.step, saved.trial, saved.best
        self.lines, self.back, self.leader = list(saved.lines or ()), saved.back, saved.leader
        self.watch = Watch(self.config.guard, device, saved.watch)
        self.before, self.clock = saved.seconds, time.perf_counter()

    def begin(self) -> None:
        r"""Goes back to the start."""
        fresh = State(self.config, self.folder, self.task, self.ranks)
        weights = {name: v.detach().clone() for name, v in fresh.energy.state_dict().items()}
        powers = tuple(dict(weights) for _ in self.powers)
        self.restore(Checkpoint(0, self.task.shape, weights, dict(weights), powers=powers))

    def checkpoint(self) -> Checkpoint:
        r"""Returns the checkpoint of now; every rank must ask for it."""
        states = {p: s for optimizer, _ in self.optimizers for p, s in optimizer.state.items()}
        adam = {n: dict(states[p]) for n, p in self.energy.named_parameters() if p in states}
        return Checkpoint(
            self.done,
            self.task.shape,
            self.energy.state_dict(),
            self.averaged(),
            adam,
            tuple(self.ranks.gather(t) for t in self.inner or ()),
            self.best,
            self.lines,
            self.trial,
            self.back,
            self.watch.memory,
            self.leader,
            round(self.seconds, 3),
            self.powered(),
        )

    def advance(
        self, x: Tensor, generator: torch.Generator, flag: bool, label: Tensor | None = None
    ) -> tuple[Gradients, float]:
        r"""Takes a step; returns what it found, and its rate."""
        optimization, k = self.config.optimization, self.done
        out, flags = self.ranks.mean(self.step(x, self.inner, generator, label), [float(flag)])
        out.assign(self.energy)
        norm = get_total_norm(list(out.gradients.values()))
        if optimization.clip is not None:
            clip_grads_with_norm_(self.energy.parameters(), optimization.clip, norm)
        rate = rate_at(k, optimization) * self.config.guard.slower**self.trial
        for optimizer, factor in self.optimizers:
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
        self.inner = out.state
        trained = dict(self.energy.named_parameters())  # buffers are constants
        now = {n: v for n, v in self.energy.state_dict().items() if n in trained}
        moving = lambda means: [
            m for n, m in zip(self.energy.state_dict(), means, strict=True) if n in now
        ]
        get_ema_multi_avg_fn(decay_at(k, optimization))(
            moving(self.average), list(now.values()), k
        )
        self.done = k + 1
        for width, power in zip(optimization.widths, self.powers, strict=True):
            lerp_(moving(power), list(now.values()), 1 - decay(self.done, width))
        self.watch.note(self.done, out.loss, norm, flags.sum())
        return out, rate

    def rehearse(self) -> None:
        r"""Takes the next step and forgets it, so that it is traced and compiled."""
        generator = step_generator(self.config, self.done, self.trial, self.ranks.device)
        x, label = self.task.labelled(self.config.optimization.batch, generator)
        self.step(x, self.inner, generator, label)
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def judge(self, x: Tensor, info: dict[str, float]) -> Line:
        r"""Returns the diagnostics of the weights and the judgement of their average, on every
        rank.

        Arguments:
            x: The points of the last step.
            info: The diagnostics of the objective at the last step.
        """
        ranks = self.ranks
        ranks.agree([*self.energy.state_dict().values(), *self.average])
        self.shadow.load_state_dict(self.averaged())
        line: Line = {k: v if math.isfinite(v) else None for k, v in info.items()}
        line |= self.watch.line()
        line |= ranks.once(lambda: diagnose(self.energy, self.config.objective, x, info))
        line |= self.task.judge(self.shadow, ranks.device, ranks)
        return line | {"seconds": ranks.tell(round(self.seconds, 3))}

    def improve(self, line: Line) -> Fall | None:
        r"""Keeps the weights that a judgement is for if they are better than those before, and
        returns a divergence if it is many times worse than the best."""
        name, merit, criterion = Name(self.trial, self.done), self.task.merit, self.task.criterion
        value = None if merit is None else line.get(merit)
        if value is not None and (self.leader is None or value < self.leader[0]):
            self.leader = (value, name)
        if criterion is None:
            bound = math.inf
            if self.leader is not None:
                bound = self.config.guard.factor * max(self.leader[0], FLOOR)
            if value is not None and value > bound:
                reason = (
                    f"{merit} explodes ({value:.3g} after step {self.done}, beyond {bound:.3g})"
                )
                return Fall(self.done, reason)
            return None
        if line[criterion] is None:
            return Fall(self.done, f"{criterion} is not finite after step {self.done}")
        if self.best is None or line[criterion] < self.best.value:
            weights = {k: v.detach().cpu().clone() for k, v in self.averaged().items()}
            device = self.ranks.device
            card = self.task.card(self.shadow, device) if self.ranks.first else {}
            self.best = Best(self.done, line[criterion], weights, card)
        return None

    def complete(self) -> None:
        r"""Adds to the chosen weights what is found only once, at the end of training."""
        best, ranks = self.best, self.ranks
        if best is None:
            return
        self.shadow.load_state_dict(best.weights)
        card, line = ranks.once(lambda: self.task.complete(self.shadow, ranks.device))
        self.best = best._replace(card={**best.card, **card})
        for k, old in enumerate(self.lines):
            if old["step"] == best.step and "event" not in old:
                self.lines[k] = {**old, **line}

    def patient(self) -> bool:
        r"""Whether training goes on although the last judgements brought nothing better."""
        best, patience = self.best, self.config.patience
        if best is None or patience is None:
            return True
        return sum("event" not in m and m["step"] > best.step for m in self.lines) < patience

    def regret(self) -> str | None:
        r"""Returns what to know where the last judgement is far worse than the best, twice as bad.

        Not on a table: there a criterion, which may be negative, has chosen the weights to be
        used.
        """
        merit = None if self.task.criterion else self.task.merit
        judged = [line for line in self.lines if merit in line]
        if self.leader is None or merit is None or not judged:
            return None
        last, (least, name) = judged[-1][merit], self.leader
        if last is not None and last <= 2 * least:
            return None
        got = "not finite" if last is None else f"{last:.3g}"
        return (
            f"the last weights are worse ({merit} {got}) than those of {name} ({least:.3g}), which"
            f" are kept: fokker.load({str(self.folder)!r}, best=True)"
        )

    def write(self, checkpoint: Checkpoint | None = None) -> None:
        r"""Writes the metrics, and a checkpoint if there is one; for rank 0."""
        with writing(self.folder, self.saved):
            self.owner.check()
            write_metrics(self.folder, self.lines)
            if checkpoint is not None:
                self.owner.known.add(checkpoint.name)
                write_checkpoint(self.folder, checkpoint, self.config.keep, self.owner.known)

    @property
    def copied(self) -> bool:
        r"""Whether the power-function averages of the last step are to be copied."""
        return self.config.snapshots > 0 and self.done % self.config.snapshots == 0

    def keep(self) -> None:
        r"""Writes the metrics and a checkpoint of now, and the copy that is due; every rank must
        ask for it."""
        checkpoint = self.checkpoint()

        def work() -> None:
            self.write(checkpoint)
            if self.copied:
                with writing(self.folder, self.saved):
                    write_snapshot(self.folder, self.done, list(self.powered()))

        self.ranks.once(work)
        self.saved = self.done

    def begin_part(self) -> None:
        r"""Notes that training starts here, or starts again; for rank 0."""
        with writing(self.folder, self.saved):
            self.owner.check()
            add_start(self.folder, self.done, self.seconds, self.ranks.device)

    def preview(self) -> None:
        r"""Leaves a picture of the averaged weights, where the task has one to draw."""
        ranks = self.ranks
        with writing(self.folder, self.saved):
            self.owner.check()
            self.task.preview(self.shadow, ranks.device, self.folder, self.done, ranks)

    def roll_back(self, fall: Fall) -> Line:
        r"""Goes back to the last good checkpoint, or further if it was gone back to already, for
        another trial; returns the event."""
        trial, lines, back, spent = self.trial, self.lines, self.back, self.seconds
        if back and back[-1].trial < trial:  # no evaluation since the last fall
            back = back[:-1]
        while back:
            path = self.folder / "checkpoint" / str(back[-1])
            try:
                self.restore(read(path))
                break
            except ValueError as error:
                warnings.warn(f"{error}; passed over", stacklevel=2)
                back = back[:-1]
        else:
            self.begin()
        self.trial, self.back, self.before = trial + 1, back, spent
        event = {
            "step": fall.step,
            "event": "rolled back",
            "reason": fall.reason,
            "to": self.done,
            "trial": self.trial,
            "rate": self.config.optimization.rate * self.config.guard.slower**self.trial,
        }
        self.lines += [m for m in lines if "event" in m and m not in self.lines] + [event]
        return event
