r"""Fields of time-dependent energies whose evaluation is one flat graph.

Each derivative that a flow asks for is traced at the first call for points of a shape
(`fokker.compute.tracing`) and kept. On a GPU the graph is then captured
(`fokker.compute.graphs`) and replayed by one launch: an evaluation of a U-Net is thousands of
kernels, and launching them one by one takes longer than running them. That needs no compiler and
seconds once, so it is the default of `field_of` on a GPU. `CompiledField` compiles the graph as
well: minutes once, then faster.

What a replay returns is copied out of it, as the next replay fills the same memory again.
"""

__all__ = ["CompiledField", "TracedField", "field_of"]

import torch
import torch.utils._pytree as pytree

from collections.abc import Callable
from functools import partial
from torch import Tensor
from typing import Any, ClassVar

from .tracing import Traced, trace
from ..samplers.field import Conditional, Field
from ..shapes import constant


class TracedField(Field):
    r"""Creates the field of a time-dependent energy, its derivatives traced, and captured on a
    GPU.

    Hand the same field to all runs: it is traced once for points of a shape. Weights that change
    in place are seen.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`.
        watch: Called before each evaluation, to show how far a run is.
    """

    one_size = True
    compile: ClassVar[bool] = False

    def __init__(self, energy: Conditional, watch: Callable[[], None] = lambda: None) -> None:
        super().__init__(energy, watch)
        self.traces: dict[Any, Traced] = {}

    def call(self, function: Callable[..., Any], x: Tensor, sigma: float) -> Any:
        self.watch()
        level = constant(sigma, x)
        key = (function, x.shape, x.stride(), x.dtype, x.device)
        if key not in self.traces:
            options = {"compile": self.compile, "capture": x.is_cuda}
            self.traces[key] = trace(partial(function, self.energy), x, level, **options)
        traced = self.traces[key]
        out = traced(x, level, noise=traced.draw())
        return pytree.tree_map(torch.clone, out) if traced.capture else out


class CompiledField(TracedField):
    r"""Creates the field of a time-dependent energy, its derivatives compiled.

    Hand the same field to all runs: it is compiled once for points of a shape. Arguments are those
    of `TracedField`.
    """

    compile: ClassVar[bool] = True


def field_of(
    energy: Conditional,
    device: torch.device | str,
    watch: Callable[[], None] = lambda: None,
    compile: bool = False,
) -> Field:
    r"""Returns the field that is fastest on a device: captured on a GPU, plain on others.

    Arguments:
        energy: The energy, from points :math:`(B, *)` and a level :math:`()` to :math:`(B)`, or
            its field, which is returned.
        device: The device of the energy.
        watch: Called before each evaluation, to show how far a run is.
        compile: Whether the derivatives are compiled as well.
    """
    if isinstance(energy, Field):
        return energy
    if compile:
        return CompiledField(energy, watch)
    kind = TracedField if torch.device(device).type == "cuda" else Field
    return kind(energy, watch)
