r"""Annealing: from an easy density to the one wanted.

At temperature T the density is :math:`p_T \propto e^{-E / T} \propto p^{1/T}`: the barriers
between its modes are T times lower. A sampler is run along a ladder of falling temperatures,

.. math:: T_1 > T_2 > \dots > T_K, \qquad p_{T_1} \to p_{T_2} \to \dots \to p_{T_K} = p,

and each rung starts where the one before it ended, at points of nearly its own law. As in a well
of width s the density :math:`p_T` has width :math:`\sqrt{T} s`, the step size follows the
temperature, :math:`h \propto T`.

**The weights of the modes are those of the temperature at which chains cease to cross**, not those
of p. Between modes of weights :math:`w_k` and one shape they are :math:`\propto w_k^{1/T}`: right
for equal weights, and too even for unequal ones unless the ladder is slow where crossing ends.
"""

__all__ = ["Annealed", "geometric"]

import torch

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from torch import Tensor

from .base import Info, Sampler, State
from .. import checks
from ..derivatives import EnergyLike, value


def geometric(hottest: float, rungs: int, coldest: float = 1.0) -> tuple[float, ...]:
    r"""Returns a geometric ladder, :math:`T_k = T_1 \, (T_K / T_1)^{(k - 1) / (K - 1)}`.

    With equal ratios the overlap of neighbors is the same along the ladder, where the energy has
    a constant heat capacity (a quadratic well has).

    Arguments:
        hottest: The first temperature :math:`T_1`.
        rungs: The number :math:`K \geq 2` of temperatures.
        coldest: The last temperature :math:`T_K < T_1`.

    Example:
        >>> geometric(8.0, 4)
        (8.0, 4.0, 2.0, 1.0)
    """
    checks.positive(hottest=hottest, coldest=coldest)
    checks.positive_integer(rungs=rungs)
    if rungs < 2 or hottest <= coldest:
        raise ValueError(
            f"expected two rungs or more and hottest > coldest, got rungs={rungs},"
            f" hottest={hottest}, coldest={coldest}"
        )
    ratio = coldest / hottest
    inner = (hottest * ratio ** (k / (rungs - 1)) for k in range(1, rungs - 1))
    return (float(hottest), *inner, float(coldest))


@dataclass(frozen=True)
class Annealed(Sampler):
    r"""Creates a sampler that cools down, :math:`E / T_1, \dots, E / T_K`.

    After `steps` transitions at a temperature the next begins: energies and gradients are
    evaluated anew, the step size is multiplied by :math:`T_{k+1} / T_k`, and the sampler starts
    its own count from zero, so that a warmup takes place at each temperature. The last goes on for
    as long as it is run. The energies of states and infos are :math:`E / T`.

    `run` throws away all temperatures but the last (and the warmup at that) unless told otherwise.

    References:
        | Optimization by Simulated Annealing (Kirkpatrick et al., 1983)

    Arguments:
        sampler: The sampler at each temperature; its step size is the one at :math:`T = 1`.
        temperatures: The ladder, one temperature or more, each below the one before; usually to
            end at 1. See `geometric`.
        steps: The number of transitions at each temperature.
    """

    sampler: Sampler
    temperatures: Sequence[float]
    steps: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # to hash
        if not self.temperatures:
            raise ValueError("expected one temperature or more, got none")
        checks.positive(**{f"temperatures[{k}]": t for k, t in enumerate(self.temperatures)})
        if any(a <= b for a, b in pairwise(self.temperatures)):
            raise ValueError(f"expected falling temperatures, got {self.temperatures}")
        checks.positive_integer(steps=self.steps)

    @property
    def transient(self) -> int:
        return (len(self.temperatures) - 1) * self.steps + self.sampler.transient

    def rung(self, count: int) -> int:
        r"""Returns the index of the temperature after `count` transitions."""
        return min(count // self.steps, len(self.temperatures) - 1)

    def tempered(self, energy: EnergyLike, rung: int) -> EnergyLike:
        r"""Returns the energy :math:`E / T` of a rung."""
        return lambda x: value(energy, x) / self.temperatures[rung]

    @torch.no_grad()
    def init(self, energy: EnergyLike, x: Tensor | State) -> State:
        rung = self.rung(x.count) if isinstance(x, State) else 0
        state = self.sampler.init(self.tempered(energy, rung), x)
        if isinstance(x, State):
            return state
        return state._replace(step_size=state.step_size * self.temperatures[0])

    @torch.no_grad()
    def step(
        self, energy: EnergyLike, state: State, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        rung, count = self.rung(state.count), state.count
        temperature, within = self.temperatures[rung], count - rung * self.steps
        tempered = self.tempered(energy, rung)
        try:
            if rung > 0 and within == 0:
                cooling = temperature / self.temperatures[rung - 1]
                state = self.sampler.init(tempered, state)
                state = state._replace(step_size=state.step_size * cooling)
            state, info = self.sampler.step(tempered, state._replace(count=within), generator)
        except FloatingPointError as error:
            raise FloatingPointError(f"at temperature {temperature:.4g}: {error}") from error
        return state._replace(count=count + 1), info
