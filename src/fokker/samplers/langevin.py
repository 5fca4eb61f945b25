r"""Langevin samplers, unadjusted and Metropolis-adjusted.

The Langevin diffusion leaves :math:`p = e^{-E} / Z` unchanged; the Euler–Maruyama step of size h
does so up to an error of order h:

.. math:: dx_t = -\tfrac{1}{2} \nabla E(x_t) \, dt + dw_t, \qquad
    x' = x - \tfrac{h}{2} \nabla E(x) + \sqrt{h} \, z, \quad z \sim \mathcal{N}(0, I) .

`ULA` takes every step. On :math:`\mathcal{N}(0, s^2)` it is an autoregression that settles at
variance :math:`s^2 / (1 - h / 4 s^2)`, and diverges from :math:`h = 4 s^2` on. `MALA` takes the
step with probability :math:`\min(1, e^{r})` and stays where it is otherwise, where

.. math::
    r = \log \frac{p(x') \, q(x \mid x')}{p(x) \, q(x' \mid x)}
      = E - E' + \tfrac{1}{2} (x' - x) \cdot (\nabla E + \nabla E')
      + \tfrac{h}{8} \big( \|\nabla E\|^2 - \|\nabla E'\|^2 \big)

with :math:`q(x' \mid x) = \mathcal{N}(x'; x - \tfrac{h}{2} \nabla E(x), h I)` and primes for
values at x'. The middle is the error of the trapezoidal rule for :math:`E' - E`: r is of order
:math:`h^{3/2}`. This is exact for every h: p is left unchanged by the transition.
"""

__all__ = ["MALA", "ULA"]

import abc
import math
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor

from .base import Info, Sampler, State
from .streams import Stream
from .. import checks
from ..derivatives import EnergyLike, gradient
from ..shapes import align, dot

Slope = Callable[[Tensor], tuple[Tensor, Tensor]]


def start(energy: EnergyLike, x: Tensor | State, step_size: float) -> State:
    r"""Returns the state of chains at points; of one, its points evaluated anew."""
    if isinstance(x, State):
        x, _, _, h, count, _ = x
    else:
        x = checks.points(x).detach().clone()
        h, count = torch.full((), step_size, dtype=x.dtype, device=x.device), 0
    e, g = gradient(energy, x)
    bad = ~(torch.isfinite(e) & torch.isfinite(g).flatten(1).all(1))
    if bad.any():
        raise FloatingPointError(
            f"expected finite energies and gradients where the chains start, got NaN or"
            f" infinity at {int(bad.sum())} of {len(x)} points, the first at index"
            f" {int(bad.nonzero()[0])} with energy {float(e[bad][0]):.4g}"
        )
    return State(x, e, g, h, count)


@dataclass(frozen=True)
class Langevin(Sampler):
    r"""Abstract sampler that proposes Langevin steps of one size for all chains."""

    step_size: float

    def __post_init__(self) -> None:
        checks.positive(step_size=self.step_size)

    @torch.no_grad()
    def init(self, energy: EnergyLike, x: Tensor | State) -> State:
        return start(energy, x, self.step_size)

    @torch.no_grad()
    def step(
        self, energy: EnergyLike, state: State, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        return self.move(lambda x: gradient(energy, x), state, Stream(generator))

    @abc.abstractmethod
    def move(self, slope: Slope, state: State, stream: Stream) -> tuple[State, Info]:
        r"""Returns the state after one transition, and its info.

        Arguments:
            slope: The energy and its gradient, :math:`(B, *) \to (B), (B, *)`.
            state: The state.
            stream: The source of randomness.
        """

    def propose(self, state: State, stream: Stream) -> Tensor:
        r"""Returns :math:`x - \frac{h}{2} \nabla E(x) + \sqrt{h} \, z`, with shape
        :math:`(B, *)`."""
        x, _, g, h, _, _ = state
        return x - h / 2 * g + torch.sqrt(h) * stream.normal(x)


@dataclass(frozen=True)
class ULA(Langevin):
    r"""Creates the unadjusted Langevin algorithm.

    .. math:: x' = x - \tfrac{h}{2} \nabla E(x) + \sqrt{h} \, z

    It costs one gradient a transition and is biased by order h; no transition reads back from the
    device. A run whose chains leave the finite numbers raises a `FloatingPointError`.

    References:
        | Exponential convergence of Langevin distributions and their discrete approximations
        | (Roberts and Tweedie, 1996)

    Arguments:
        step_size: The step size :math:`h > 0`, a time of `fokker.diffusions.Langevin`.

    Example:
        >>> from fokker.energies import Quadratic
        >>> generator = torch.Generator().manual_seed(0)
        >>> run = ULA(0.4).run(Quadratic(), torch.zeros(5000, 2), 100, generator, burn=20)
        >>> run.samples.shape
        torch.Size([100, 5000, 2])
        >>> float(run.samples.var())  # 1 / (1 - h / 4): the bias
        1.11
    """

    def move(self, slope: Slope, state: State, stream: Stream) -> tuple[State, Info]:
        x = self.propose(state, stream)
        e, g = slope(x)
        info = Info(torch.ones_like(e), e, state.step_size)
        return State(x, e, g, state.step_size, state.count + 1), info


@dataclass(frozen=True)
class MALA(Langevin):
    r"""Creates the Metropolis-adjusted Langevin algorithm.

    .. math:: x' \sim q(\cdot \mid x), \quad
        a = \min \Big( 1, \frac{p(x') \, q(x \mid x')}{p(x) \, q(x' \mid x)} \Big)

    A proposal of infinite energy (:math:`p = 0`) is rejected, as is one of infinite gradient
    (:math:`q(x \mid x') = 0`). One where energy or gradient is NaN, or the energy
    :math:`-\infty`, raises a `FloatingPointError`.

    During the first `warmup` transitions the step size, shared by the chains, seeks the target
    acceptance :math:`a^*` by the Robbins–Monro recursion

    .. math:: \log h_{k+1} = \log h_k + 2 (k + 1)^{-2/3} (\bar{a}_k - a^*)

    with :math:`\bar{a}_k` the mean over the chains. Then it is frozen: while h follows the chains
    the transition does not leave p unchanged, so `run` throws these away unless told otherwise.

    Far out, where E grows faster than a quadratic or :math:`h > 4 s^2` in a direction of width s,
    proposals overshoot and a chain stays where it is for long: start in the bulk, or raise the
    target. The lowest acceptance of a run shows such a chain.

    References:
        | Optimal scaling of discrete approximations to Langevin diffusions
        | (Roberts and Rosenthal, 1998)
        | A tutorial on adaptive MCMC (Andrieu and Thoms, 2008)

    Arguments:
        step_size: The step size :math:`h > 0`, a time of `fokker.diffusions.Langevin`; the first
            one, if there is a warmup.
        target: The target acceptance :math:`a^* \in (0, 1)`; by default the most efficient one in
            high dimension.
        warmup: The number of first transitions that adapt the step size.

    Example:
        >>> from fokker.energies import Quadratic
        >>> generator, start = torch.Generator().manual_seed(0), torch.zeros(2000, 2)
        >>> run = MALA(0.4, warmup=50).run(Quadratic(), start, 100, generator)
        >>> float(run.samples.var()), run.acceptance.mean  # no bias, and the target
        (1.00, 0.57)
    """

    target: float = 0.574
    warmup: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.share(target=self.target)
        checks.at_least(0, warmup=self.warmup)

    @property
    def transient(self) -> int:
        return self.warmup

    def move(self, slope: Slope, state: State, stream: Stream) -> tuple[State, Info]:
        x, e, g, h, count, _ = state
        y = self.propose(state, stream)
        ey, gy = slope(y)
        norm = dot(gy, gy)
        r = e - ey + dot(y - x, g + gy) / 2 + h / 8 * (dot(g, g) - norm)
        r = torch.where((ey == math.inf) | (norm == math.inf), -math.inf, r)
        bad = torch.isnan(r) | (ey == -math.inf)
        if bad.any():
            raise FloatingPointError(
                f"expected an energy and gradient that are not NaN, nor -infinity, got"
                f" {int(bad.sum())} of {len(x)} proposals with one at transition {count}, step"
                f" size {float(h):.4g}, the first at chain {int(bad.nonzero()[0])} with energy"
                f" {float(ey[bad][0]):.4g}"
            )
        a = torch.exp(r.clamp(max=0))
        take = stream.uniform(x) < a
        e = torch.where(take, ey, e)
        take = align(take, x)
        x, g = torch.where(take, y, x), torch.where(take, gy, g)
        info = Info(a, e, h)
        if count < self.warmup:
            h = h * torch.exp(2 * (count + 1) ** (-2 / 3) * (a.mean() - self.target))
        return State(x, e, g, h, count + 1), info
