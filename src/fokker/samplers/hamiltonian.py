r"""Hamiltonian Monte Carlo: long moves along the energy's own dynamics.

A momentum :math:`v \sim \mathcal{N}(0, I)` is added in the coordinates :math:`x = L u`, in which
the particle moves by :math:`\dot{u} = v, \dot{v} = -\nabla_u E`. This keeps
:math:`H = E + \tfrac{1}{2} \|v\|^2` and volume, and so does the leapfrog step of size
:math:`\epsilon`, H up to order :math:`\epsilon^2`:

.. math:: v \leftarrow v - \tfrac{\epsilon}{2} L^\top \nabla E(x), \quad
    x \leftarrow x + \epsilon L v, \quad
    v \leftarrow v - \tfrac{\epsilon}{2} L^\top \nabla E(x) .

After l leaps the move is taken with probability :math:`\min(1, e^{H - H'})`, which makes it exact
for every :math:`\epsilon`. l is drawn between 1 and `leaps`, the same for all chains: a fixed
length would resonate with a well of that period. A step that is too long drives a path outwards
until the energy overflows; such a path is rejected. L is the **mass**, as
:math:`M = (L L^\top)^{-1}`: with :math:`L L^\top` the covariance of p all directions are equally
wide.

In the **warmup** the step seeks a target acceptance :math:`a^*` by dual averaging, with
:math:`\bar{a}_m` the mean acceptance over the chains at transition m,

.. math::
    \eta_m = \tfrac{1}{m + 10} \sum_{j \leq m} (a^* - \bar{a}_j), \quad
    \log \epsilon_m = \log 10 \epsilon_0 - 20 \sqrt{m} \, \eta_m, \quad
    \log \bar{\epsilon}_m = m^{-3/4} \log \epsilon_m + (1 - m^{-3/4}) \log \bar{\epsilon}_{m-1} .

In its middle the mass is set to the covariance of the points that the chains visited in the
second quarter, shrunk as if five more points of a small variance had been seen, and the search for
the step begins anew. Then both are frozen.
"""

__all__ = ["HMC"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Literal, NamedTuple

from .base import Info, Sampler, State
from .langevin import start
from .streams import Stream
from .. import checks
from ..derivatives import EnergyLike, gradient
from ..shapes import align, dot

FIRST = 0.3  # step size where all directions are about one wide
DIVERGED = 1000.0  # a rise of the energy along a path, in nats, from which the path is lost

Mass = Literal["unit", "diagonal", "dense"]


class Memory(NamedTuple):
    r"""What a chain of HMC remembers of its warmup."""

    factor: Tensor | None  # L: (D, D), or (D) if diagonal; none for the identity
    shortfall: Tensor  # (), sum of a* - a since the search began
    mean_log_step: Tensor  # (), log of the averaged step
    first_step: Tensor  # (), at which the search began
    visits: int  # points seen for the mass
    total: Tensor  # (D), of these points
    products: Tensor  # (D, D) or (D), of these points


@dataclass(frozen=True)
class HMC(Sampler):
    r"""Creates Hamiltonian Monte Carlo.

    References:
        | MCMC using Hamiltonian dynamics (Neal, 2011)
        | https://arxiv.org/abs/1206.1901
        | The No-U-Turn sampler (Hoffman and Gelman, 2014), for dual averaging
        | https://arxiv.org/abs/1111.4246

    Arguments:
        step_size: The step size :math:`\epsilon > 0`; the first one, if there is a warmup.
        leaps: The largest number of leapfrog steps per transition.
        target: The target acceptance :math:`a^* \in (0, 1)`.
        warmup: The number of first transitions that adapt step and mass.
        mass: The mass that the warmup fits: `unit` for none, `diagonal` or `dense`.

    Example:
        >>> from fokker.energies import Function
        >>> wide = Function(lambda x: (x / torch.tensor([1.0, 30.0])).square().sum(1) / 2)
        >>> generator, start = torch.Generator().manual_seed(0), torch.zeros(200, 2)
        >>> run = HMC(0.1, warmup=200).run(wide, start, 200, generator)
        >>> float(run.samples[..., 1].std())
        30.
    """

    step_size: float
    leaps: int = 10
    target: float = 0.8
    warmup: int = 0
    mass: Mass = "diagonal"

    def __post_init__(self) -> None:
        checks.positive(step_size=self.step_size)
        checks.positive_integer(leaps=self.leaps)
        checks.share(target=self.target)
        checks.at_least(0, warmup=self.warmup)
        checks.one_of(("unit", "diagonal", "dense"), mass=self.mass)

    @property
    def transient(self) -> int:
        return self.warmup

    @torch.no_grad()
    def init(self, energy: EnergyLike, x: Tensor | State) -> State:
        state = start(energy, x, self.step_size)
        if isinstance(x, State):
            return state._replace(memory=x.memory)
        return state._replace(memory=self.forget(state, None))

    def forget(self, state: State, factor: Tensor | None) -> Memory:
        r"""Returns the memory of a search that begins."""
        flat = state.x.flatten(1)
        dim, zero = flat.shape[1], flat.new_zeros(())
        products = flat.new_zeros((dim, dim) if self.mass == "dense" else (dim,))
        log_step = torch.log(state.step_size)
        return Memory(factor, zero, log_step, state.step_size, 0, flat.new_zeros(dim), products)

    @torch.no_grad()
    def step(
        self, energy: EnergyLike, state: State, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        stream, factor, size = Stream(generator), state.memory.factor, state.step_size
        x, e, g = state.x, state.energy, state.gradient
        v = stream.normal(x)
        before = e + dot(v, v) / 2
        device = None if generator is None else generator.device
        leaps = int(torch.randint(1, self.leaps + 1, (), generator=generator, device=device))
        y, ey, gy = x, e, g
        diverged = torch.zeros_like(e, dtype=torch.bool)
        for _ in range(leaps):
            v = v - size / 2 * stretch(factor, gy, transpose=True)
            y = y + size * stretch(factor, v)
            diverged |= ey - e > DIVERGED
            ey, gy = gradient(energy, y)
            v = v - size / 2 * stretch(factor, gy, transpose=True)
        r = before - ey - dot(v, v) / 2
        # a path that leaves the finite numbers is rejected: p is zero there, or the step too long
        r = torch.where(torch.isfinite(ey) & torch.isfinite(r), r, -math.inf)
        # NaN on a path that had not diverged before is a fault of the energy
        lost = torch.isnan(ey) & torch.isfinite(y).flatten(1).all(1) & ~diverged
        if lost.any() or (ey == -math.inf).any():
            raise FloatingPointError(
                "expected an energy that is not NaN, nor -infinity, got one at"
                f" {int((lost | (ey == -math.inf)).sum())} of {len(x)} proposals at transition"
                f" {state.count}, step size {float(size):.4g}"
            )
        a = torch.exp(r.clamp(max=0))
        take = stream.uniform(x) < a
        e = torch.where(take, ey, e)
        x, g = torch.where(align(take, x), y, x), torch.where(align(take, x), gy, g)
        following = state._replace(x=x, energy=e, gradient=g, count=state.count + 1)
        if state.count < self.warmup:
            following = self.adapt(following, a.mean())
        return following, Info(a, e, size)

    def adapt(self, state: State, acceptance: Tensor) -> State:
        r"""Returns the state after a transition of the warmup, with its step and mass adapted."""
        memory, count, middle = state.memory, state.count, self.warmup // 2
        since = count if count <= middle or self.mass == "unit" else count - middle
        shortfall = memory.shortfall + self.target - acceptance
        fall = 20 * math.sqrt(since) * shortfall / (since + 10)
        log_step = torch.log(10 * memory.first_step) - fall
        share = since**-0.75
        mean = share * log_step + (1 - share) * memory.mean_log_step
        memory = memory._replace(shortfall=shortfall, mean_log_step=mean)
        if self.mass != "unit" and middle // 2 < count <= middle:
            flat = state.x.flatten(1)
            more = flat.T @ flat if self.mass == "dense" else flat.square().sum(0)
            memory = memory._replace(
                visits=memory.visits + len(flat),
                total=memory.total + flat.sum(0),
                products=memory.products + more,
            )
        size = torch.exp(mean if count == self.warmup else log_step)
        state = state._replace(step_size=size, memory=memory)
        if self.mass != "unit" and count == middle:
            state = state._replace(step_size=torch.full_like(size, FIRST))
            return state._replace(memory=self.forget(state, fitted(memory)))
        return state


def fitted(memory: Memory) -> Tensor | None:
    r"""Returns the factor L of the covariance of the visited points; the one before if they are
    too few."""
    n, mean = memory.visits, memory.total / max(memory.visits, 1)
    if n < 2:
        return memory.factor
    dense = memory.products.ndim == 2
    square = torch.outer(mean, mean) if dense else mean.square()
    covariance = (memory.products - n * square) / (n - 1)
    variances = covariance.diagonal() if dense else covariance
    small = 1e-3 * variances.mean().clamp_min(torch.finfo(variances.dtype).tiny)
    keep = n / (n + 5)
    if not dense:
        return torch.sqrt(keep * variances.clamp_min(0) + (1 - keep) * small)
    eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    factor, failed = torch.linalg.cholesky_ex(keep * covariance + (1 - keep) * small * eye)
    return torch.sqrt(variances.clamp_min(small)).diag() if failed else factor


def stretch(factor: Tensor | None, v: Tensor, transpose: bool = False) -> Tensor:
    r"""Returns :math:`L v` or :math:`L^\top v` of each point, shaped as the points."""
    if factor is None:
        return v
    flat = v.flatten(1)
    if factor.ndim == 1:
        return (flat * factor).reshape(v.shape)
    return (flat @ (factor if transpose else factor.T)).reshape(v.shape)
