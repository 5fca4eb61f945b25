r"""Answers about odd rows: how odd, by which columns, and what a likely row would be.

S is any measure of how odd a row is, high for odd rows: an energy, or a surprise
(`fokker.tables.surprise`).

**How odd.** The p-value of a row is the share of m held-out rows that are at least as odd,
:math:`p = (1 + \#\{S_i \geq S(x)\}) / (1 + m)`. A threshold for a wanted rate r of false alarms
is a quantile of these; the rate is known to :math:`\sqrt{r (1 - r) / m}`, the standard error of a
binomial share.

**Why.** The nearest likely row :math:`x_0` of a row x is the nearest, in standardized units, of
the training rows that are less odd than half of them.
The value of S at x above that of :math:`x_0` is
an integral along the straight line between them,

.. math:: S(x) - S(x_0) = \sum_d c_d, \quad
    c_d = (x_d - x_{0,d}) \int_0^1 \partial_d S\big(x_0 + t (x - x_0)\big) \, dt ,

and so a sum over columns (integrated gradients): :math:`c_d` is what column d adds. The gradient
of the energy is minus the score, which says where the row would move. The coordinates of one
column (categories, and the mark of a missing value) are added up.

With :math:`t = u^2` the integral is taken at the middles of equal parts of u, more densely near
:math:`x_0`, where S bends most. What the sum misses, a few percent, is shared in proportion to
:math:`|c_d|`, so that the parts add up.

References:
    | Axiomatic Attribution for Deep Networks (Sundararajan et al., 2017)
    | https://arxiv.org/abs/1703.01365
"""

__all__ = ["contributions", "nearest", "p_values", "threshold"]

import math
import torch

from collections.abc import Callable
from torch import Tensor

STEPS = 64  # of the integral


def nearest(rows: Tensor, surprise: Tensor, x: Tensor) -> Tensor:
    r"""Returns the index of the nearest likely row of each point.

    Arguments:
        rows: The rows to choose from, :math:`(N, d)`.
        surprise: Their surprise, :math:`(N)`.
        x: The points, :math:`(B, d)`.
    """
    likely = (surprise <= surprise.median()).nonzero()[:, 0]
    return likely[torch.cdist(x, rows[likely]).argmin(1)]


def contributions(
    surprise: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, steps: int = STEPS
) -> Tensor:
    r"""Returns what each coordinate adds to the surprise between two rows, :math:`(B, d)`.

    Arguments:
        surprise: The surprise, :math:`(B, d) \to (B)`, differentiable.
        x: The rows, :math:`(B, d)`.
        start: The rows to compare with, :math:`(B, d)`.
        steps: The number of points of the integral.
    """
    total = torch.zeros_like(x)
    for k in range(steps):
        u = (k + 0.5) / steps
        y = (start + u**2 * (x - start)).requires_grad_()
        with torch.enable_grad():
            total += 2 * u * torch.autograd.grad(surprise(y).sum(), y)[0]
    parts = (x - start) * total / steps
    with torch.no_grad():
        missed = surprise(x) - surprise(start) - parts.sum(1)
    size = parts.abs()
    return parts + missed[:, None] * size / size.sum(1, keepdim=True).clamp_min(1e-300)


def p_values(reference: Tensor, surprise: Tensor) -> Tensor:
    r"""Returns the p-value of each row.

    Arguments:
        reference: The surprise of m held-out rows, in ascending order.
        surprise: The surprise of rows.
    """
    m = len(reference)
    below = torch.searchsorted(reference, surprise.contiguous())
    return (1 + m - below).double() / (1 + m)


def threshold(reference: Tensor, rate: float) -> tuple[float, float]:
    r"""Returns the surprise above which a share `rate` of normal rows lies, and the binomial
    standard error of the rate, :math:`\sqrt{r (1 - r) / m}`."""
    m = len(reference)
    k = min(max(math.ceil((1 - rate) * (m + 1)) - 1, 0), m - 1)
    return float(reference[k]), math.sqrt(rate * (1 - rate) / m)
