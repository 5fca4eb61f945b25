r"""Shapes of tensors.

A point has shape :math:`(B, *)` with :math:`D = \prod *` coordinates, an energy :math:`(B)`, a
time :math:`()` or :math:`(B)`, an image :math:`(B, C, H, W)`.
"""

__all__ = ["align", "constant", "dimension", "dot"]

import math
import torch

from torch import Tensor


def align(c: Tensor, x: Tensor) -> Tensor:
    r"""Appends axes to `c`, of shape :math:`()` or :math:`(B)`, until it broadcasts with `x`."""
    return c.reshape(c.shape + (1,) * (x.ndim - c.ndim)) if c.ndim else c


def constant(c: float, x: Tensor) -> Tensor:
    r"""Returns the number `c` as a tensor :math:`()` with the dtype and device of `x`."""
    if abs(c) > torch.finfo(x.dtype).max:
        raise ValueError(f"expected a number within the range of {x.dtype}, got {c!r}")
    return torch.full((), c, dtype=x.dtype, device=x.device)


def dot(a: Tensor, b: Tensor) -> Tensor:
    r"""Returns the inner product of each pair of points, :math:`(B, *), (B, *) \to (B)`."""
    return (a * b).sum(tuple(range(1, a.ndim)))  # no flatten: it would copy channels-last images


def dimension(x: Tensor) -> int:
    r"""Returns the number :math:`D` of coordinates of each point of `x`."""
    return math.prod(x.shape[1:])
