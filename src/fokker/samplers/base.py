r"""Markov chains that sample an energy.

A sampler is a transition kernel :math:`K(x' \mid x)`, applied to B chains at once, whose law tends
to :math:`p = e^{-E} / Z` (or near it, see `ULA`) from any start,

.. math:: x_{k+1} \sim K(\cdot \mid x_k), \qquad
    \frac{1}{S B} \sum_{k, b} f(x_k^{(b)}) \to \mathbb{E}_p \, f(x) .

A subclass writes one transition; this base owns the loop. The first `burn` transitions are thrown
away, the next `steps` are run and every `thin`-th of them is kept, :math:`S = \lfloor steps / thin
\rfloor` samples a chain.

All that the future of the chains depends on, randomness aside, is in their `State`. A run that
goes on from the state of another, with the same generator, is the run that was never interrupted.

Shapes: points :math:`(B, *)`, one a chain, energies :math:`(B)`, samples :math:`(S, B, *)`.
Nothing here builds a graph: gradients do not flow through a chain.
"""

__all__ = ["Info", "Run", "Sampler", "State"]

import abc
import torch

from torch import Tensor
from typing import Any, NamedTuple

from . import diagnostics
from .. import checks
from ..derivatives import EnergyLike


class State(NamedTuple):
    r"""The state of B chains."""

    x: Tensor  # (B, *)
    energy: Tensor  # (B), at x
    gradient: Tensor  # (B, *), at x
    step_size: Tensor  # (), h
    count: int  # transitions so far  # pyright: ignore[reportIncompatibleMethodOverride]
    memory: Any = None  # what else the sampler knows: its mass, its hotter replicas


class Info(NamedTuple):
    r"""What is worth knowing of one transition; stacked along a first axis in a `Run`."""

    acceptance: Tensor  # (B), the probability with which the proposal is accepted
    energy: Tensor  # (B), after the transition
    step_size: Tensor  # (), h of the transition


class Run(NamedTuple):
    r"""The outcome of a run: the last state, the samples, and the info of each transition."""

    state: State
    samples: Tensor  # (S, B, *)
    info: Info  # (steps, B), (steps, B), (steps): thinning does not thin it

    def rhat(self) -> Tensor:
        r"""Returns the split R-hat of each coordinate, with shape :math:`(*)`."""
        return diagnostics.rhat(self.samples)

    def ess(self) -> Tensor:
        r"""Returns the effective sample size of each coordinate, with shape :math:`(*)`."""
        return diagnostics.ess(self.samples)

    def tree(self) -> Any:
        r"""Returns the samples and their statistics as an `xarray.DataTree`, which ArviZ 1.x
        reads: `posterior` with `x` of shape (chain, draw, \*), and `sample_stats`.

        Needs xarray 2024.10 or later. A run with thinning has the statistics of all transitions.
        """
        try:
            import xarray
        except ImportError as error:
            raise ValueError("expected xarray to export a run, got none: install it") from error
        x = self.samples.transpose(0, 1).cpu().numpy()
        axes = [f"x_dim_{k}" for k in range(x.ndim - 2)]
        chains = lambda v: (("chain", "draw"), v.T.cpu().numpy())
        statistics = {
            "acceptance_rate": chains(self.info.acceptance),
            "lp": chains(-self.info.energy),  # up to a constant
            "step_size": ("draw", self.info.step_size.cpu().numpy()),
        }
        groups = {
            "posterior": xarray.Dataset({"x": (("chain", "draw", *axes), x)}),
            "sample_stats": xarray.Dataset(statistics),
        }
        return xarray.DataTree.from_dict(groups)

    @property
    def acceptance(self) -> diagnostics.Acceptance:
        r"""The acceptance: its mean, and that of the worst and of the best chain."""
        return diagnostics.acceptance(self.info.acceptance)


class Sampler(abc.ABC):
    r"""Abstract sampler. Subclasses are frozen values."""

    @property
    def transient(self) -> int:
        r"""The number of first transitions whose kernel is not yet the final one."""
        return 0

    @abc.abstractmethod
    def init(self, energy: EnergyLike, x: Tensor | State) -> State:
        r"""Returns the state of chains that start at points.

        Given a state, its points are evaluated anew and its step size and count are kept: for an
        energy that has changed since, such as a model in training.

        Arguments:
            energy: The energy, :math:`(B, *) \to (B)`.
            x: The points, with shape :math:`(B, *)`, or a state.
        """

    @abc.abstractmethod
    def step(
        self, energy: EnergyLike, state: State, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        r"""Returns the state after one transition, and its info.

        Arguments:
            energy: The energy, the one at which the state was evaluated.
            state: The state.
            generator: The source of randomness; the global one if not given.
        """

    @torch.no_grad()
    def run(
        self,
        energy: EnergyLike,
        x: Tensor | State,
        steps: int,
        generator: torch.Generator | None = None,
        burn: int | None = None,
        thin: int = 1,
    ) -> Run:
        r"""Returns the samples of `burn + steps` transitions.

        Arguments:
            energy: The energy, :math:`(B, *) \to (B)`.
            x: The points to start from, with shape :math:`(B, *)`, or the state to go on from.
            steps: The number of transitions after the burn-in.
            generator: The source of randomness; the global one if not given.
            burn: The number of first transitions to throw away. By default, what is left of the
                transient of the sampler: the warmup of `MALA`, the hot rungs of `Annealed`.
            thin: The number of transitions to a kept sample.
        """
        checks.positive_integer(steps=steps, thin=thin)
        if thin > steps:
            raise ValueError(
                f"expected thin <= steps, so as to keep a sample, got {thin} > {steps}"
            )
        state = x if isinstance(x, State) else self.init(energy, x)
        burn = max(0, self.transient - state.count) if burn is None else burn
        checks.at_least(0, burn=burn)
        for _ in range(burn):
            state, _ = self.step(energy, state, generator)
        samples = state.x.new_empty(steps // thin, *state.x.shape)
        infos = []
        for k in range(steps):
            state, info = self.step(energy, state, generator)
            infos.append(info)
            if (k + 1) % thin == 0:
                samples[k // thin] = state.x
        info = Info(*map(torch.stack, zip(*infos, strict=True)))
        # once is enough: a NaN or infinite coordinate never becomes finite again
        if not all(torch.isfinite(v).all() for v in (state.x, state.gradient, info.energy)):
            raise FloatingPointError(
                f"expected finite chains, got NaN or infinity within {state.count} transitions of"
                f" {self}, at step size {float(state.step_size):.4g}: try a smaller one, or MALA,"
                " which rejects moves that go astray"
            )
        return Run(state, samples, info)
