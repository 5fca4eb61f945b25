r"""Contrastive divergence, plain and persistent.

CD is DCD with the Langevin diffusion of the energy itself, under which the model is stationary,
:math:`E^{(T)} = E`, and gradients stopped at the diffused points:

.. math::
    L_{CD} = \mathbb{E} \, E_\theta(x_0) - \mathbb{E}_{x_T \sim \mathrm{sg}[p_{d,\theta}^{(T)}]}
    E_\theta(x_T), \qquad x \leftarrow x - \tfrac{h}{2} \nabla E(x) + \sqrt{h} \, z .

The stop-gradient leaves out :math:`\mathbb{E}_{p_T}[\log(p_T / p_\theta) \, \partial_\theta \log
p_T]`. (The paper has :math:`\log p_\theta` alone in it, and calls the term non-negligible in the
limit where it vanishes.) As :math:`T \to 0` what is kept is half of the true gradient, in the same
direction. Its expected value at the truth is zero, but for the :math:`O(h)` bias of the
discretized chain.

**The term that is left out** is :math:`-\partial_\theta \mathrm{KL}(p_T \| p_\theta)` through
:math:`p_T` alone. With x the end of a chain as a function of :math:`\theta`,

.. math:: L_{KL} = \mathbb{E} \, \mathrm{sg}[E](x) - H[p_T]

has the gradient of that KL: the first part pulls ends downhill, and the entropy H drives them
apart. H is estimated by distances :math:`\rho` to the third neighbor among the ends,
:math:`D \, \mathbb{E} \log \rho` up to a constant. So :math:`L_{CD} + w L_{KL}` has with
:math:`w = -1` the whole gradient of the divergence. Du et al. (2020) add it with :math:`w = +1`,
which minimizes the KL: as :math:`T \to 0` it takes away the half that the stop-gradient keeps,
and it asks of the energy that its chains mix.

PCD starts the chains where they ended, from a buffer of particles; a share of them restarts each
time. Row i of a batch of B draws one of the particles i, i + B, i + 2B, ..., each as likely: every
particle comes up as often as in a random subset, and many ranks can share the buffer without a
word.
"""

__all__ = ["CD", "PCD", "Particles"]

import torch

from contextlib import nullcontext
from dataclasses import dataclass
from torch import Tensor
from typing import ClassVar, Literal, NamedTuple

from .base import WHOLE, Objective, Output, Share
from .. import checks
from ..derivatives import EnergyLike, gradient, value
from ..diffusions import Langevin
from ..shapes import align, constant, dimension, dot

NEIGHBOR = 3  # in the plane the gradient by the first neighbor has no variance


def langevin(
    energy: EnergyLike,
    x: Tensor,
    steps: int,
    step_size: Tensor,
    generator: torch.Generator | None,
    graph: bool = False,
) -> Tensor:
    r"""Returns where Langevin chains end after `steps` Euler–Maruyama steps.

    The step size is one for all, :math:`()`, or one a chain, :math:`(B)`. The ends depend on the
    parameters of the energy if a `graph` is asked for.
    """
    diffusion, zero = Langevin(energy), torch.zeros_like(step_size)
    with nullcontext() if graph else torch.no_grad():
        for _ in range(steps):
            mean, std = diffusion.kernel(x, zero, step_size)
            z = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            x = mean + align(std, x) * z
    return x


def contrast(energy: EnergyLike, data: Tensor, model: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    r"""Returns the mean energy of data less that of model points, in one pass, and diagnostics."""
    e = value(energy, torch.cat([data, model]))
    positive, negative = e[: len(data)].mean(), e[len(data) :].mean()
    return positive - negative, {"energy": positive.detach(), "negative": negative.detach()}


def divergence_of_ends(energy: EnergyLike, x: Tensor) -> Tensor:
    r"""Returns a loss with the gradient of :math:`\mathrm{KL}(p_T \| p_\theta)` through the ends x
    of chains alone."""
    with torch.no_grad():
        slope = gradient(energy, x)[1]
        flat = x.flatten(1)
        squares = flat.square().sum(1)
        apart = squares[:, None] + squares - 2 * flat @ flat.T
        neighbor = torch.topk(apart, NEIGHBOR + 1, largest=False).indices[:, -1]
    between = x - x[neighbor]
    entropy = dimension(x) / 2 * torch.log(dot(between, between))
    return (dot(slope, x) - entropy).mean()


def with_term(
    loss: Tensor, info: dict[str, Tensor], weight: float, energy: EnergyLike, ends: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    r"""Returns a loss and its diagnostics with the weighted term of the ends of chains."""
    term = divergence_of_ends(energy, ends)
    return loss + weight * term, {**info, "term": term.detach()}


def check_term(weight: float, share: Share) -> None:
    r"""Raises if a term is asked of a part of the rows, as neighbors are sought among all."""
    if weight and share.ranks > 1:
        raise ValueError(
            f"expected no term with several ranks or slices, got term={weight} for"
            f" {share.ranks} of them"
        )


@dataclass(frozen=True)
class CD(Objective):
    r"""Creates contrastive divergence with k Langevin steps from the data, CD-k.

    The defaults are the paper's in 2-D.

    References:
        | Training Products of Experts by Minimizing Contrastive Divergence (Hinton, 2002)
        | Improved Contrastive Divergence Training of Energy Based Models (Du et al., 2020)
        | https://arxiv.org/abs/2012.01316

    Arguments:
        steps: The number k of Langevin steps.
        step_size: The step size :math:`h > 0` of each, a time of `fokker.diffusions.Langevin`.
        term: The weight w of the term that the stop-gradient leaves out: -1 for the whole gradient
            of the divergence, 1 as Du et al. add it, 0 for none. It differentiates through the
            chain.
    """

    steps: int = 10
    step_size: float = 1e-3
    term: float = 0.0

    def __post_init__(self) -> None:
        checks.positive_integer(steps=self.steps)
        checks.positive(step_size=self.step_size)
        checks.between(-1e6, 1e6, term=self.term)

    def part(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
        share: Share = WHOLE,
    ) -> Output:
        check_term(self.term, share)
        return super().part(energy, x, state, generator, share)

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        size, graph = constant(self.step_size, x), self.term != 0
        ends = langevin(energy, x, self.steps, size, generator, graph)
        loss, info = contrast(energy, x, ends.detach())
        if graph:
            loss, info = with_term(loss, info, self.term, energy, ends)
        return Output(loss, None, info)


class Particles(NamedTuple):
    r"""The replay buffer of persistent contrastive divergence."""

    x: Tensor  # (N, *)


@dataclass(frozen=True)
class PCD(Objective):
    r"""Creates persistent contrastive divergence.

    Each call draws one particle a data point from the buffer, of those that are its row's,
    replaces a share of them by fresh draws, moves all by k Langevin steps and puts them back. The
    buffer is the state; at first it is filled with fresh draws.

    The defaults are the paper's in 2-D (its text has 10 Langevin steps where its appendix has 20).
    The chains are those of a model that changes slowly, so the expected gradient at the truth is
    zero only once they have mixed.

    References:
        | Training Restricted Boltzmann Machines using Approximations to the Likelihood Gradient
          (Tieleman, 2008)
        | Implicit Generation and Modeling with Energy-Based Models (Du & Mordatch, 2019)
        | https://arxiv.org/abs/1903.08689

    Arguments:
        steps: The number k of Langevin steps a call.
        step_size: The step size :math:`h > 0` of each, a time of `fokker.diffusions.Langevin`.
        buffer: The number N of particles.
        restart: The share of chains that start anew, between 0 and 1.
        source: Where chains start: `"noise"`, a Gaussian with the mean and standard deviation of
            the batch in each coordinate, or `"data"`, points of the batch.
        term: The weight w of the term that the stop-gradient leaves out, as in `CD`, through the k
            steps of the call.

    Example:
        >>> from fokker.energies import Quadratic
        >>> objective, state = PCD(buffer=300), None
        >>> for x in torch.randn(3, 100, 2):  # three batches
        ...     loss, state, info = objective(Quadratic(), x, state)
        >>> state.x.shape
        torch.Size([300, 2])
    """

    steps: int = 20
    step_size: float = 1e-3
    buffer: int = 10_000
    restart: float = 0.05
    source: Literal["noise", "data"] = "noise"
    term: float = 0.0

    carries: ClassVar[type] = Particles

    def __post_init__(self) -> None:
        checks.positive_integer(steps=self.steps, buffer=self.buffer)
        checks.positive(step_size=self.step_size)
        checks.between(0, 1, restart=self.restart)
        checks.one_of(("noise", "data"), source=self.source)
        checks.between(-1e6, 1e6, term=self.term)

    def fresh(self, x: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        r"""Returns `n` new starting points of chains."""
        if self.source == "data":
            return x[torch.randint(len(x), (n,), generator=generator, device=x.device)]
        z = torch.randn((n, *x.shape[1:]), generator=generator, dtype=x.dtype, device=x.device)
        return x.mean(0) + x.std(0, correction=0) * z

    def part(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: Particles | None = None,
        generator: torch.Generator | None = None,
        share: Share = WHOLE,
    ) -> Output:
        check_term(self.term, share)
        rows, N = share(x), share.even(buffer=self.buffer)
        particles = self.fresh(x, N, generator) if state is None else state.x
        if len(rows) > len(particles) or particles.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"expected at least {len(rows)} particles of shape {tuple(x.shape[1:])}, one per"
                f" data point, got a buffer of shape {tuple(particles.shape)}"
            )
        B, N = len(rows), len(particles)
        row = torch.arange(B, device=x.device)
        among = (N - 1 - row) // B + 1  # the number of particles of each row
        u = torch.rand(B, generator=generator, device=x.device)
        which = row + B * torch.minimum((u * among).long(), among - 1)  # u n may round up to n
        anew = torch.rand(B, generator=generator, device=x.device) < self.restart
        start = torch.where(align(anew, x), self.fresh(x, B, generator), particles[which])
        size, graph = constant(self.step_size, x), self.term != 0
        ends = langevin(energy, start, self.steps, size, generator, graph)
        model = ends.detach()
        loss, info = contrast(energy, rows, model)
        if graph:
            loss, info = with_term(loss, info, self.term, energy, ends)
        return Output(loss, Particles(particles.index_put((which,), model)), info)
