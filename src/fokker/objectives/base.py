r"""Objectives: what is minimized to fit an energy to data.

Every objective is a frozen value that is called one way,

.. code-block:: python

    out = objective(energy, x, state, generator)
    out.loss.backward()

and keeps nothing to itself: what must outlive a call (the particles of persistent contrastive
divergence) is handed in as `state` and comes back in `out.state`. The call checks its input; the
computation itself, `compute`, is pure and free of host synchronization, for compiled or vectorized
use. A generator of `None` draws from torch's global source.
"""

__all__ = ["Objective", "Output"]

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


class Objective(abc.ABC):
    r"""Abstract objective. A subclass writes `compute`."""

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
        if state is not None and not isinstance(state, self.carries):
            expected = "None" if self.carries is type(None) else f"{self.carries.__name__} or None"
            raise ValueError(
                f"expected state to be {expected}, got {type(state).__name__}; the generator is the"
                " fourth argument"
            )
        return self.compute(energy, checks.points(x), state, generator)

    def restore(self, tensors: Sequence[Tensor]) -> Any:
        r"""Returns the state that consists of these tensors, as saved; `None` if of none."""
        return self.carries(*tensors) if tensors else None

    @abc.abstractmethod
    def compute(
        self, energy: EnergyLike, x: Tensor, state: Any, generator: torch.Generator | None
    ) -> Output:
        r"""Returns the loss without checking the data."""
