r"""The derivatives of a time-dependent energy that a flow asks for.

Let :math:`E(x, \sigma)` be the energy of data plus noise of standard deviation :math:`\sigma`, of
score :math:`-\nabla E`. By Tweedie's formula the mean of the data given x is :math:`D(x, \sigma) = x
- \sigma^2 \nabla E(x, \sigma)`, and the flow that carries one law to the next is

.. math:: \frac{dx}{d\sigma} = \sigma \, \nabla E(x, \sigma) = \frac{x - D(x, \sigma)}{\sigma} .

An energy may offer `denoise(x, sigma)`, its own way to D (that of `UNetEnergy` has the factors of
EDM); the flow is then taken from it, and from the gradient otherwise.
"""

__all__ = ["Conditional", "Field", "finite"]

import torch

from collections.abc import Callable
from functools import partial
from torch import Tensor
from typing import Any

from ..checks import constant
from ..compute.tracing import Traced, trace
from ..derivatives import gradient

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

    Compiled, each derivative becomes one flat graph at the first call for points of a shape
    (`fokker.compute.tracing`) and is kept: hand the same field to all runs.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        compile: Whether its derivatives are compiled.
        watch: Called before each evaluation, to show how far a run is.
    """

    def __init__(
        self,
        energy: Conditional,
        compile: bool = False,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        if not callable(energy):
            raise ValueError(f"expected a callable energy of (x, sigma), got {energy!r}")
        self.energy, self.compile, self.watch = energy, compile, watch
        self.traces: dict[Any, Traced] = {}

    def jet(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`E(x, \sigma)` and :math:`\nabla E(x, \sigma)`."""
        return self.call(jet, x, sigma)

    def slope(self, x: Tensor, sigma: float) -> Tensor:
        r"""Returns :math:`dx / d\sigma`, with shape :math:`(B, *)`; finite, or raises."""
        return finite(self.call(slope, x, sigma), sigma)

    def call(self, function: Callable[..., Any], x: Tensor, sigma: float) -> Any:
        self.watch()
        level = constant(sigma, x)
        if not self.compile:
            return function(self.energy, x, level)
        key = (function, x.shape, x.stride(), x.dtype, x.device)
        if key not in self.traces:
            self.traces[key] = trace(partial(function, self.energy), x, level, compile=True)
        traced = self.traces[key]
        return traced(x, level, noise=traced.draw())
