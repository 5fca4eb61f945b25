r"""Compiled fields of time-dependent energies.

Each derivative that a flow asks for becomes one flat graph at the first call for points of a shape
(`fokker.compute.tracing`), is compiled and kept.
"""

__all__ = ["CompiledField"]

from collections.abc import Callable
from functools import partial
from torch import Tensor
from typing import Any

from .tracing import Traced, trace
from ..samplers.field import Conditional, Field
from ..shapes import constant


class CompiledField(Field):
    r"""Creates the field of a time-dependent energy, its derivatives compiled.

    Hand the same field to all runs: it is compiled once for points of a shape.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        watch: Called before each evaluation, to show how far a run is.
    """

    one_size = True

    def __init__(self, energy: Conditional, watch: Callable[[], None] = lambda: None) -> None:
        super().__init__(energy, watch)
        self.traces: dict[Any, Traced] = {}

    def call(self, function: Callable[..., Any], x: Tensor, sigma: float) -> Any:
        self.watch()
        level = constant(sigma, x)
        key = (function, x.shape, x.stride(), x.dtype, x.device)
        if key not in self.traces:
            self.traces[key] = trace(partial(function, self.energy), x, level, compile=True)
        traced = self.traces[key]
        return traced(x, level, noise=traced.draw())
