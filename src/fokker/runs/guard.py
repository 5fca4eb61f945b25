r"""The guard: what a run does when it diverges, and the numbers that foresee it.

Training an energy diverges in two ways. Numbers stop being finite; or they stay finite and
explode, as when the Langevin chains of contrastive divergence become unstable
(:math:`h \lambda > 4` for a step h and a curvature :math:`\lambda`) and the energy of their far
ends is pushed without bound: then loss and gradient grow twentyfold in a hundred steps, each step
a little beyond the last. So every step is held against a long memory. With :math:`n_k` the norm of
the gradient (before it is clipped), :math:`L_k` the loss and med the median over the last 1,000
steps, which lags 500 behind, step k diverges if

.. math::
    n_k \text{ or } L_k \text{ is not finite}, \quad n_k > F \, \mathrm{med}(n),
    \quad\text{or}\quad
    |L_k| > F \max(1, \mathrm{med} |L|) ,

with :math:`F = 10^3`, the last two once 50 steps have been seen. The two numbers of a step stay on
the device and are read every few steps, and always before anything is saved: nothing is read back
in between, and no checkpoint holds what the guard has not seen. An evaluation diverges too, if
what it judges by, the KL of a 2-D run or the RMSE of denoised images, is F times the best so far
(or F times 0.01, if that is more).

**Policies.** `stop` ends the run with the checkpoint before. `roll-back` goes back to it, with the
rate multiplied by a factor and another seed of the steps; if that diverges before the next
evaluation, to the one before, and so on to the start. After a number of trials it stops. The way
is a function of the configuration alone, so a run that was killed and resumed takes it again, bit
for bit.

**What foresees it**, in every line of `metrics.jsonl`:

================  ===========================================================================
`gradient_norm`   its median over the last 1,000 steps
`gradient_peak`   its largest value over them
`score_norm`      the root mean square of :math:`\|\nabla E\|` at points of the batch
`energy_gap`      the mean energy of the chains' ends less that of the data: far from 0, the
                  chains and the data are far apart
`acceptance`      the share of the objective's Langevin steps that a Metropolis test would take:
                  near 0, they are too long for the energy
================  ===========================================================================
"""

__all__ = ["Fall", "Guard", "Watch", "diagnose", "finite"]

import bisect
import math
import torch

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal, NamedTuple

from .. import checks
from ..derivatives import EnergyLike, gradient
from ..objectives import CD, PCD, Denoising, LevelDCD, Noisy, Objective
from ..samplers import MALA

WINDOW, FEW = 1000, 50  # steps of a running median, and the least it is taken of
POINTS = 256  # where the score is measured
LEVEL = 0.3  # the noise there, for an energy of levels


@dataclass(frozen=True)
class Guard:
    r"""What a run does when it diverges."""

    policy: Literal["stop", "roll-back"] = "stop"
    """Stop, or roll back to the last good checkpoint with a lower rate and another seed."""
    trials: int = 3
    """The number of times that a run is rolled back at most."""
    slower: float = 0.5
    """The factor of the rate at each."""
    factor: float = 1e3
    """How many times the running median of the gradient's norm, or of the loss, is a divergence;
    and how many times the best judgement so far."""
    every: int = 10
    """The number of steps between readings of loss and norm from the device."""

    def __post_init__(self) -> None:
        checks.one_of(("stop", "roll-back"), policy=self.policy)
        checks.positive_integer(trials=self.trials, every=self.every)
        checks.between(0, 1, slower=self.slower)
        checks.positive(slower=self.slower, factor=self.factor)
        if self.factor <= 1:
            raise ValueError(f"expected factor above 1, got {self.factor!r}")


class Fall(NamedTuple):
    r"""A divergence."""

    step: int
    reason: str


class Memory:
    r"""The last numbers of a row, and their median."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.last = deque(values, WINDOW)
        self.ordered = sorted(self.last)

    def append(self, value: float) -> None:
        r"""Remembers a number, and forgets the oldest if there are many."""
        if len(self.last) == WINDOW:
            del self.ordered[bisect.bisect_left(self.ordered, self.last[0])]
        self.last.append(value)
        bisect.insort(self.ordered, value)

    @property
    def median(self) -> float:
        r"""The median, the upper one of two."""
        return self.ordered[len(self.ordered) // 2]


class Watch:
    r"""Holds every step against the steps before it.

    Arguments:
        guard: The guard.
        device: The device of the run.
        memory: What a watch before this one remembered.
    """

    def __init__(
        self,
        guard: Guard,
        device: torch.device | str = "cpu",
        memory: dict[str, list[float]] | None = None,
    ) -> None:
        saved = memory or {"norms": [], "losses": []}
        self.guard = guard
        self.norms, self.losses = Memory(saved["norms"]), Memory(saved["losses"])
        self.ring = torch.zeros(guard.every, 3, dtype=torch.float32, device=device)
        self.unread: list[int] = []  # steps

    @property
    def memory(self) -> dict[str, list[float]]:
        r"""What it remembers."""
        return {"norms": list(self.norms.last), "losses": list(self.losses.last)}

    @property
    def full(self) -> bool:
        r"""Whether the next step has no room before what there is is read."""
        return len(self.unread) == self.guard.every

    def note(self, step: int, loss: Tensor, norm: Tensor, flag: Tensor) -> None:
        r"""Keeps the numbers of a step on the device."""
        self.ring[len(self.unread)] = torch.stack([loss.float(), norm.float(), flag.float()])
        self.unread.append(step)

    def read(self) -> tuple[Fall | None, bool]:
        r"""Returns the first step since the last reading that diverged, if one did, and whether
        any of their flags was up."""
        rows = self.ring[: len(self.unread)].tolist()
        fall = None
        for step, (loss, norm, _) in zip(self.unread, rows, strict=True):
            if (reason := self.judge(step, loss, norm)) is not None:
                fall = Fall(step, reason)
                break
            self.norms.append(norm)
            self.losses.append(abs(loss))
        self.unread = []
        return fall, any(flag > 0 for *_, flag in rows)

    def judge(self, step: int, loss: float, norm: float) -> str | None:
        for what, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                return f"the {what} is not finite ({value}) at step {step}"
        if len(self.norms.last) < FEW:
            return None
        usual, size, factor = self.norms.median, self.losses.median, self.guard.factor
        for what, value, limit in (
            ("norm of the gradient", norm, factor * usual if usual > 0 else math.inf),
            ("loss", abs(loss), factor * max(1.0, size)),
        ):
            if value > limit:
                return f"the {what} explodes ({value:.3g} at step {step}, beyond {limit:.3g})"
        return None

    def line(self) -> dict[str, float]:
        r"""Returns the diagnostics of the gradient."""
        return {"gradient_norm": self.norms.median, "gradient_peak": self.norms.ordered[-1]}


def chains(objective: Objective) -> CD | PCD | None:
    r"""Returns the objective with Langevin chains of the energy itself that an objective is or
    holds."""
    if isinstance(objective, Noisy):
        return chains(objective.objective)
    return objective if isinstance(objective, CD | PCD) else None


def diagnose(
    energy: EnergyLike, objective: Objective, x: Tensor, info: dict[str, Any]
) -> dict[str, float | None]:
    r"""Returns the diagnostics of an energy; `None` where there is no finite answer.

    Arguments:
        energy: The energy, :math:`(B, *) \to (B)` or with a level.
        objective: The objective.
        x: Points of the data.
        info: The diagnostics of the objective's last step.
    """
    if isinstance(objective, Denoising):  # a vector field has no energy
        return {}
    x = x[:POINTS]
    generator = torch.Generator(x.device).manual_seed(0)
    at_level: Any = energy
    if isinstance(objective, LevelDCD) and objective.conditional:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        x, levels = x + LEVEL * noise, torch.full_like(x.flatten(1)[:, 0], LEVEL)
        at_level = lambda p: energy(p, levels)  # pyright: ignore[reportCallIssue]
    slope = gradient(at_level, x)[1].detach()
    line: dict[str, Any] = {"score_norm": slope.flatten(1).square().sum(1).mean().sqrt()}
    if "negative" in info and "energy" in info:
        line["energy_gap"] = info["negative"] - info["energy"]
    if (kind := chains(objective)) is not None:
        line["acceptance"] = acceptance(at_level, x, kind.step_size, generator)
    found = {name: float(value) for name, value in line.items()}
    return {name: v if math.isfinite(v) else None for name, v in found.items()}


def acceptance(
    energy: EnergyLike, x: Tensor, step_size: float, generator: torch.Generator
) -> Tensor | float:
    r"""Returns the mean acceptance of a Langevin step; NaN if a proposal has no energy."""
    sampler = MALA(step_size)
    try:
        _, info = sampler.step(energy, sampler.init(energy, x), generator)
    except FloatingPointError:
        return math.nan
    return info.acceptance.mean()


def finite(tensors: Sequence[Tensor]) -> bool:
    r"""Returns whether all numbers are."""
    return all(bool(torch.isfinite(t).all()) for t in tensors)
