r"""Forms: the estimators of the divergence from a noise level on.

A clean point x gets noise of level :math:`\sigma`, and a VE step of variance :math:`\delta`
carries it on. Throughout this package

.. math::
    y = x + \sigma \varepsilon, \qquad z = y + \sqrt{\delta} \, \eta, \qquad
    \sigma_z^2 = \sigma^2 + \delta, \qquad u = (z - x) / \sigma_z^2 ,

:math:`r = \delta / \sigma^2` is the step as a share, and the energy is the same at all points of
a row, asked at one level, :math:`\sqrt{\sigma^2 + \text{reach} \cdot \delta}`: that of the density
it learns. (With E at its own level at each point, an energy :math:`K \sigma` that does not depend
on the point would send the loss to minus infinity.)

A form is a frozen value: its step, how far along it the learned level lies, what it costs, and
its loss of each row. Costs are counted in forward passes; a plain step, value and parameter
gradient, is 3.
"""

__all__ = ["Ask", "Form", "Pair", "Terms", "normal"]

import abc
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor
from typing import ClassVar, NamedTuple

from ...shapes import align

Ask = Callable[[Tensor, Tensor], Tensor]  # energies (B) of points (B, *) at levels (B)


def normal(x: Tensor, generator: torch.Generator | None) -> Tensor:
    r"""Returns standard normal noise with the shape of `x`."""
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)


class Pair(NamedTuple):
    r"""Clean points, and the two noise levels between which the divergence is taken."""

    x: Tensor  # (B, *)
    sigma: Tensor  # (B), the level of y
    delta: Tensor  # (B), the variance from y to z
    level: Tensor  # (B), the level whose density is learned

    @property
    def end(self) -> Tensor:
        r"""The level :math:`\sigma_z` of z, with shape :math:`(B)`."""
        return torch.sqrt(self.sigma**2 + self.delta)

    def noisy(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        r"""Returns y and the noise :math:`\varepsilon` that made it."""
        eps = normal(self.x, generator)
        return self.x + align(self.sigma, self.x) * eps, eps

    def bridge(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        r"""Returns z and :math:`u = (z - x) / \sigma_z^2`."""
        eps, end = normal(self.x, generator), align(self.end, self.x)
        return self.x + end * eps, eps / end


class Terms(NamedTuple):
    r"""The result of a form."""

    loss: Tensor  # (B), of each row, without the weight of its level
    energy: Tensor  # (B), detached
    point: Tensor | None = None  # (B, *), at the learned level; None if no point is


@dataclass(frozen=True)
class Form(abc.ABC):
    r"""Abstract form. A subclass has a `step`, zero for none, and writes `terms`."""

    step: ClassVar[float] = 0.0  # r; a subclass with a step makes it a field
    tied: ClassVar[bool] = True  # whether one of its points has the learned level

    @property
    def reach(self) -> float:
        r"""How far along the step the learned level lies: 0 at y, 1 at z."""
        return 0.0

    @property
    @abc.abstractmethod
    def passes(self) -> float:
        r"""The cost of a step of training in forward passes, by count."""

    @abc.abstractmethod
    def terms(self, energy: Ask, pair: Pair, generator: torch.Generator | None) -> Terms:
        r"""Returns the loss of each row.

        Arguments:
            energy: The energy of points at levels, :math:`(B, *), (B) \to (B)`.
            pair: The clean points and the levels.
            generator: The source of randomness.
        """
