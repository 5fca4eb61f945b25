r"""The derivatives of a time-dependent energy that a flow asks for.

Let :math:`E(x, \sigma)` be the energy of data plus noise of standard deviation :math:`\sigma`, of
score :math:`-\nabla E`. By Tweedie's formula the mean of the data given x is :math:`D(x, \sigma) =
x
- \sigma^2 \nabla E(x, \sigma)`, and the flow that carries one law to the next is

.. math:: \frac{dx}{d\sigma} = \sigma \, \nabla E(x, \sigma) = \frac{x - D(x, \sigma)}{\sigma} .

An energy may offer `denoise(x, sigma)`, its own way to D (that of `UNetEnergy` has the factors of
EDM); the flow is then taken from it, and from the gradient otherwise.
"""

__all__ = ["Conditional", "Field", "finite"]

import torch

from collections.abc import Callable
from torch import Tensor
from typing import Any

from ..derivatives import gradient
from ..shapes import constant

Conditional = Callable[[Tensor, Tensor], Tensor]


def jet(energy: Conditional, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`E(x, \sigma)` and :math:`\nabla E(x, \sigma)`."""
    return gradient(lambda x: energy(x, sigma), x)


def slope(energy: Conditional, x: Tensor, sigma: Tensor) -> Tensor:
    r"""Returns :math:`dx / d\sigma`, with shape :math:`(B, *)`."""
    denoise = getattr(energy, "denoise", None)
    if denoise is None:
        return sigma * jet(energy, x, sigma)[1]
    clean = denoise(x, sigma)
    if clean.shape != x.shape:
        raise ValueError(
            f"expected the denoiser to keep the shape {tuple(x.shape)} of its points,"
            f" got {tuple(clean.shape)}"
        )
    return (x - clean) / sigma


def finite(g: Tensor, sigma: float) -> Tensor:
    r"""Returns the gradient or slope `g` of points at a level if it is finite."""
    bad = ~torch.isfinite(g).flatten(1).all(1)
    if bad.any():
        raise FloatingPointError(
            f"expected a finite score at sigma {sigma:.4g}, got NaN or infinity at"
            f" {int(bad.sum())} of {len(g)} points, the first at index {int(bad.nonzero()[0])}"
        )
    return g


class Field:
    r"""Creates the field of a time-dependent energy.

    `fokker.compute.field` has one whose derivatives are compiled.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        watch: Called before each evaluation, to show how far a run is.
    """

    one_size = False  # whether all batches should have one size, as each size is compiled

    def __init__(
        self,
        energy: Conditional,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        if not callable(energy):
            raise ValueError(f"expected a callable energy of (x, sigma), got {energy!r}")
        self.energy, self.watch = energy, watch

    def jet(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`E(x, \sigma)` and :math:`\nabla E(x, \sigma)`."""
        return self.call(jet, x, sigma)

    def slope(self, x: Tensor, sigma: float) -> Tensor:
        r"""Returns :math:`dx / d\sigma`, with shape :math:`(B, *)`; finite, or raises."""
        return finite(self.call(slope, x, sigma), sigma)

    def call(self, function: Callable[..., Any], x: Tensor, sigma: float) -> Any:
        r"""Returns a function of the energy, points and their level."""
        self.watch()
        return function(self.energy, x, constant(sigma, x))
