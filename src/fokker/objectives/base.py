r"""Objectives: what is minimized to fit an energy to data.

Every objective is a frozen value that is called one way,

.. code-block:: python

    out = objective(energy, x, state, generator)
    out.loss.backward()

and keeps nothing to itself: what must outlive a call (the particles of persistent contrastive
divergence) is handed in as `state` and comes back in `out.state`. The call checks its input; the
computation itself, `part`, is pure and free of host synchronization, for compiled or vectorized
use. A generator of `None` draws from torch's global source.

**Many ranks.** The loss is a mean over the rows of the batch, so it can be shared: rank r of R
takes the rows r, r + R, r + 2R, ... (a `Share`), and the mean over ranks of the `part` of each is
the loss of the whole batch. The rows of every random draw and of the state are shared in the same
way. What is not a mean of rows (the moments of a batch, its first rows) is taken of the whole
batch, which every rank has.

**Slices.** A share can be cut again in the same way, into slices that one device takes one after
another (`fokker.compute.step`): slice s of S of rank r of R is the share of rank r + R s of R S.
"""

__all__ = ["WHOLE", "Objective", "Output", "Share", "interleave"]

import abc
import torch

from collections.abc import Sequence
from torch import Tensor
from typing import Any, ClassVar, NamedTuple

from .. import checks
from ..derivatives import EnergyLike


class Output(NamedTuple):
    r"""The result of an objective."""

    loss: Tensor  # (), to be differentiated in the parameters of the energy
    state: Any  # None, or what the next call needs
    info: dict[str, Tensor]  # detached diagnostics, ()


class Share(NamedTuple):
    r"""The share of one rank among several: of any rows those at r, r + R, r + 2R, ..."""

    rank: int | Tensor = 0  # a tensor (1) in a graph that is traced once for several shares
    ranks: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        r"""Returns the rows of the share."""
        if self.ranks == 1:
            return x
        if isinstance(self.rank, Tensor):
            return x.unflatten(0, (-1, self.ranks)).index_select(1, self.rank).squeeze(1)
        return x[self.rank :: self.ranks]

    def cut(self, slices: int) -> "list[Share]":
        r"""Returns the shares that this one consists of, its rows interleaved."""
        return [Share(self.rank + self.ranks * s, self.ranks * slices) for s in range(slices)]

    def even(self, **counts: int) -> int:
        r"""Returns how many of a named number of rows the share has; raises unless all have as
        many."""
        ((name, n),) = counts.items()
        if n % self.ranks:
            raise ValueError(
                f"expected {name} to be a multiple of {self.ranks}, the number of ranks times"
                f" slices, got {n}"
            )
        return n // self.ranks


WHOLE = Share()  # all rows


def interleave(parts: Sequence[Tensor]) -> Tensor:
    r"""Returns the rows of which these are the shares, put together."""
    return torch.stack(tuple(parts), 1).flatten(0, 1)


class Objective(abc.ABC):  # noqa: B024
    r"""Abstract objective. A subclass writes `compute`, or `part` if its loss is not a mean over
    rows."""

    carries: ClassVar[type] = type(None)  # the class of its state

    def __call__(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: Any = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        r"""Returns the loss of an energy on a batch of data.

        Arguments:
            energy: The energy, :math:`(B, *) \to (B)`.
            x: The data, with shape :math:`(B, *)`, finite.
            state: The state that the last call returned; `None` at first.
            generator: The source of randomness.
        """
        self.accept(state)
        checks.alone(energy)
        return self.part(energy, checks.points(x), state, generator)

    def accept(self, state: Any) -> None:
        r"""Raises unless a state is one of this objective, or `None`."""
        if state is not None and not isinstance(state, self.carries):
            expected = "None" if self.carries is type(None) else f"{self.carries.__name__} or None"
            raise ValueError(
                f"expected state to be {expected}, got {type(state).__name__}; the generator comes"
                " after it"
            )

    def restore(self, tensors: Sequence[Tensor]) -> Any:
        r"""Returns the state that consists of these tensors, as saved; `None` if of none."""
        return self.carries(*tensors) if tensors else None

    def part(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: Any,
        generator: torch.Generator | None,
        share: Share = WHOLE,
    ) -> Output:
        r"""Returns the loss of a share of a batch, without checking the data.

        The mean over the shares of loss, gradient and diagnostics is that of the batch.

        Arguments:
            energy: The energy, :math:`(B, *) \to (B)`.
            x: The whole batch.
            state: The rows of the state that are the share's; `None` at first.
            generator: The source of randomness.
            share: The share.
        """
        return self.compute(energy, share(x), state, generator)

    def compute(
        self, energy: EnergyLike, x: Tensor, state: Any, generator: torch.Generator | None
    ) -> Output:
        r"""Returns the loss, a mean over rows. `part` calls it with the rows of a share."""
        raise TypeError(f"expected {type(self).__name__} to define compute, or part")
