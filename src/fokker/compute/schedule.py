r"""The settings of the optimizers, and how the learning rate and the average of the weights change
with the step.

The rate rises linearly over the warm-up, then stays or falls as half a cosine to zero. A restart
begins both anew. With :math:`\eta` the rate, a cycle from step a to b, and a warm-up of w steps,
step k has

.. math:: \eta_k = \eta \, \min\Big(1, \frac{k - a + 1}{w + 1}\Big) \,
    \tfrac{1}{2} \Big(1 + \cos \pi \frac{k - a}{b - a}\Big) .
"""

__all__ = ["Optimization", "decay_at", "rate_at"]

import itertools
import math

from dataclasses import dataclass
from typing import Literal

from .averages import WIDEST
from .. import checks


@dataclass(frozen=True)
class Optimization:
    r"""Adam, with Muon if asked for, their schedule and the moving average of the weights."""

    steps: int = 5000
    """The number of steps."""
    batch: int = 1000
    """The number of points a step."""
    rate: float = 1e-3
    """Adam's learning rate, the first one."""
    beta1: float = 0.9
    """The decay of Adam's first moment."""
    beta2: float = 0.99
    """The decay of Adam's second moment."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How the rate falls: not at all, or as half a cosine to zero."""
    warmup: int = 0
    """The number of first steps over which the rate rises from zero, linearly."""
    ema: float = 0.999
    """The decay of the average of the weights that is evaluated and saved; 0 for none. Early on
    it is lower, (1 + k) / (10 + k) at step k."""
    clip: float | None = None
    """The largest norm of the gradient; longer ones are scaled down to it."""
    restarts: tuple[int, ...] = ()
    """The steps at which the rate begins anew, with its warm-up, and falls towards the next of
    them or the end: a run that has ended goes on under the same configuration with its last step
    here and more steps."""
    widths: tuple[float, ...] = ()
    """The widths of power-function averages of the weights that are kept beside that of `ema`,
    such as 0.05 and 0.1 of the steps: the width that is used is chosen after training
    (`fokker.compute.averages`)."""
    muon: float | None = None
    """The first rate of Muon (`fokker.compute.muon`), on the same schedule, for the kernels and
    matrices inside a U-Net; Adam moves the others. Adam moves all if not given."""

    def __post_init__(self) -> None:
        checks.positive_integer(steps=self.steps, batch=self.batch)
        checks.positive(rate=self.rate)
        checks.between(0, 1, beta1=self.beta1, beta2=self.beta2, ema=self.ema)
        checks.one_of(("constant", "cosine"), schedule=self.schedule)
        if not isinstance(self.warmup, int) or self.warmup < 0:
            raise ValueError(f"expected warmup to be a number of steps, got {self.warmup!r}")
        if not isinstance(self.restarts, tuple) or not all(type(r) is int for r in self.restarts):
            raise ValueError(f"expected restarts to be a tuple of integers, got {self.restarts!r}")
        checks.between(0, 100, **{"the number of restarts": len(self.restarts)})
        if any(a >= b for a, b in self.cycles):
            given = ", ".join(map(str, self.restarts))
            raise ValueError(
                f"expected restarts in ascending order between 0 and the {self.steps} steps,"
                f" got {given}"
            )
        numbers = isinstance(self.widths, tuple) and all(map(checks.number, self.widths))
        if not numbers or not all(0.001 <= w <= WIDEST for w in self.widths):
            raise ValueError(f"expected widths from 0.001 to {WIDEST}, got {self.widths!r}")
        if self.clip is not None:
            checks.positive(clip=self.clip)
        if self.muon is not None:
            checks.positive(muon=self.muon)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        r"""The first step of each fall of the rate, and the step after its last."""
        return list(itertools.pairwise((0, *self.restarts, self.steps)))


def rate_at(k: int, optimization: Optimization) -> float:
    r"""Returns the learning rate of step k."""
    begin, end = max(cycle for cycle in optimization.cycles if cycle[0] <= k)
    rate = optimization.rate * min(1.0, (k - begin + 1) / (optimization.warmup + 1))
    if optimization.schedule == "constant":
        return rate
    return rate * (1 + math.cos(math.pi * (k - begin) / (end - begin))) / 2


def decay_at(k: int, optimization: Optimization) -> float:
    r"""Returns the decay of the average of the weights after step k, lower early on."""
    return min(optimization.ema, (1 + k) / (10 + k)) if optimization.ema > 0 else 0.0
