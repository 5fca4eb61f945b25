r"""Parallel tempering: chains at several temperatures that trade places.

At temperature T the density is :math:`p_T \propto e^{-E / T}`. K replicas of B chains run side by
side, one at each temperature of a ladder :math:`1 = T_1 < \dots < T_K`, and after each transition
neighbors trade their points with probability

.. math:: \min \big( 1, \, e^{(1 / T_k - 1 / T_{k+1}) (E(x_k) - E(x_{k+1}))} \big),

pairs :math:`(1, 2), (3, 4), \dots` after even transitions and :math:`(2, 3), \dots` after odd
ones. This leaves the product of the densities as it is, so the chains at :math:`T_1 = 1` sample p,
and a hot chain, which crosses barriers, hands its mode down. Unlike annealing it has no last
crossing: the weights of the modes come out right if it runs for long enough.

The state holds the chains at :math:`T = 1`; the hotter replicas are its memory.
"""

__all__ = ["Tempered"]

import torch

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from torch import Tensor

from .base import Info, Sampler, State
from .streams import Stream
from .. import checks
from ..derivatives import EnergyLike, value
from ..shapes import align


@dataclass(frozen=True)
class Tempered(Sampler):
    r"""Creates chains at rising temperatures that trade places.

    The step size of the sampler is multiplied by T (`MALA`, whose step is a variance) or
    :math:`\sqrt{T}` (`HMC`); a warmup adapts it at each temperature on its own.

    References:
        | Replica Monte Carlo simulation of spin glasses (Swendsen and Wang, 1986)
        | Parallel tempering: theory, applications, and new perspectives (Earl and Deem, 2005)
        | https://arxiv.org/abs/physics/0508111

    Arguments:
        sampler: The sampler at each temperature.
        temperatures: The ladder, which rises from 1. See `geometric`.
        power: The power of T by which the step size grows.

    Example:
        >>> from fokker.analytic import GaussianMixture
        >>> from fokker.samplers import MALA
        >>> far = GaussianMixture(torch.tensor([[-6.0], [6.0]]), 1.0, torch.tensor([0.2, 0.8]))
        >>> sampler = Tempered(MALA(0.5), (1.0, 3.0, 9.0, 27.0))
        >>> generator = torch.Generator().manual_seed(0)
        >>> run = sampler.run(far, torch.zeros(100, 1), 1000, generator, burn=200)
        >>> float((run.samples > 0).float().mean())
        0.8
    """

    sampler: Sampler
    temperatures: Sequence[float]
    power: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # to hash
        ladder = self.temperatures
        checks.positive(power=self.power)
        if len(ladder) < 2 or ladder[0] != 1 or any(a >= b for a, b in pairwise(ladder)):
            raise ValueError(f"expected two temperatures or more that rise from 1, got {ladder}")
        checks.positive(**{f"temperatures[{k}]": t for k, t in enumerate(ladder)})

    @property
    def transient(self) -> int:
        return self.sampler.transient

    def tempered(self, energy: EnergyLike, k: int) -> EnergyLike:
        r"""Returns the energy :math:`E / T_k`."""
        temperature = self.temperatures[k]
        return energy if temperature == 1 else lambda x: value(energy, x) / temperature

    @torch.no_grad()
    def init(self, energy: EnergyLike, x: Tensor | State) -> State:
        known = isinstance(x, State)
        places = (x.memory[0], *x.memory[1:]) if known else (x,) * len(self.temperatures)
        inner = []
        for k, temperature in enumerate(self.temperatures):
            state = self.sampler.init(self.tempered(energy, k), places[k])
            grown = state.step_size if known else state.step_size * temperature**self.power
            inner.append(state._replace(step_size=grown))
        return inner[0]._replace(memory=tuple(inner))

    @torch.no_grad()
    def step(
        self, energy: EnergyLike, state: State, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        found: list[State] = []
        infos: list[Info] = []
        for k, inner in enumerate(state.memory):
            inner, info = self.sampler.step(self.tempered(energy, k), inner, generator)
            found.append(inner)
            infos.append(info)
        stream = Stream(generator)
        for k in range(state.count % 2, len(found) - 1, 2):
            found[k], found[k + 1] = self.trade(k, found[k], found[k + 1], stream)
        cold = found[0]._replace(memory=tuple(found))
        return cold, infos[0]._replace(energy=cold.energy)

    def trade(self, k: int, cold: State, hot: State, stream: Stream) -> tuple[State, State]:
        r"""Returns two neighbors after the trade."""
        low, high = self.temperatures[k : k + 2]
        # energies and gradients of a state are those of E / T
        gap = (1 / low - 1 / high) * (low * cold.energy - high * hot.energy)
        take = stream.uniform(cold.x) < torch.exp(gap.clamp(max=0))

        def swap(a: Tensor, b: Tensor, factor: float) -> tuple[Tensor, Tensor]:
            which = align(take, a)
            return torch.where(which, b * factor, a), torch.where(which, a / factor, b)

        (x, y), (e, f), (g, h) = (
            swap(cold.x, hot.x, 1.0),
            swap(cold.energy, hot.energy, high / low),
            swap(cold.gradient, hot.gradient, high / low),
        )
        return cold._replace(x=x, energy=e, gradient=g), hot._replace(x=y, energy=f, gradient=h)
