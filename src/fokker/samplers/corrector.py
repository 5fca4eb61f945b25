r"""Corrections at a noise level, accepted by the energy.

A step of a flow to the level :math:`\sigma` leaves points whose law is nearly
:math:`p_\sigma \propto e^{-E(\cdot, \sigma)}`. Transitions of MALA,

.. math:: x' = x - \tfrac{h}{2} \nabla E(x, \sigma) + \sqrt{h} \, z, \qquad
    h = r \, \sigma^2, \quad z \sim \mathcal{N}(0, I),

taken with the Metropolis probability of :math:`E(\cdot, \sigma)`, leave :math:`p_\sigma` unchanged
and bring any other law nearer to it: the errors of the steps do not add up. The step size is
relative to the variance of the noise, as the energy is nowhere more curved than it makes it,
:math:`\nabla^2 E = I / \sigma^2 - \mathrm{Cov}(\text{data} \mid x) / \sigma^4`: one r serves at
all levels, about :math:`3 \, D^{-1/3}` in D dimensions.

Chains this short move points within a mode; the weights of separated modes are decided where noise
still joins them. And acceptance asks for energies that are right to a fraction of a nat: of a
network in float32, not bfloat16.

References:
    | Score-Based Generative Modeling through SDEs (Song et al., 2021)
    | https://arxiv.org/abs/2011.13456
    | Reduce, Reuse, Recycle: Compositional Generation with Energy-Based Diffusion Models and MCMC
    | (Du et al., 2023), https://arxiv.org/abs/2302.11552
"""

__all__ = ["Corrector"]

import torch

from collections.abc import Sequence
from dataclasses import dataclass
from torch import Tensor

from .base import State
from .field import Field, finite
from .langevin import MALA, Langevin
from .streams import Streams
from .. import checks
from ..shapes import constant


@dataclass(frozen=True)
class Corrector:
    r"""Creates the transitions that follow the step to a level.

    Arguments:
        sampler: `ULA` or `MALA`; its step size is relative to :math:`\sigma^2`. A warmup of MALA
            is that of `Flow.tune`, at each level.
        transitions: The number k of transitions at each level.
        step_sizes: One relative step size a level but the first, from `Flow.tune`. That of the
            sampler at all levels if none is given.
    """

    sampler: Langevin = MALA(0.2)
    transitions: int = 1
    step_sizes: Sequence[float] = ()

    def __post_init__(self) -> None:
        checks.instance(Langevin, ("ULA", "MALA"), sampler=self.sampler)
        checks.positive_integer(transitions=self.transitions)
        object.__setattr__(self, "step_sizes", tuple(self.step_sizes))  # to hash
        checks.positive(**{f"step_sizes[{k}]": h for k, h in enumerate(self.step_sizes)})

    def __call__(
        self, field: Field, x: Tensor, sigma: float, size: float, streams: Streams, tune: bool
    ) -> tuple[State, Tensor]:
        r"""Returns the state after the transitions at a level, and the acceptance :math:`(B)`.

        Arguments:
            field: The field.
            x: The points, with shape :math:`(B, *)`.
            sigma: The level.
            size: The relative step size.
            streams: The source of randomness.
            tune: Whether the transitions are those of the warmup.
        """
        slope = lambda x: field.jet(x, sigma)
        e, g = slope(x)
        count = 0 if tune else self.sampler.transient
        state = State(x, e, finite(g, sigma), constant(size * sigma**2, x), count)
        rates = []
        try:
            for _ in range(self.sampler.transient if tune else self.transitions):
                state, info = self.sampler.move(slope, state, streams)
                rates.append(info.acceptance)
        except FloatingPointError as error:
            raise FloatingPointError(f"at sigma {sigma:.4g}: {error}") from error
        finite(state.gradient, sigma)  # ULA takes every step
        return state, torch.stack(rates).mean(0)
