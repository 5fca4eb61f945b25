r"""Normal scores: each column by its rank.

.. math:: u_d = \Phi^{-1}\big( F_d(z_d) \big), \quad |u_d| \leq 4,

with :math:`F_d` the distribution of the column in the training rows, linear between at most 1,000
of its quantiles; a value that stands for many rows takes the middle of their ranks. It is the same
for every monotone scale of a column, so heavy tails and skewed columns do not decide alone. Of the
columns that are constant the standardized value is kept, up to 4.
"""

__all__ = ["NormalScores"]

import math
import torch

from collections.abc import Mapping
from torch import Tensor, nn

from .mixture import other

MOST = 4.0  # standard deviations
KNOTS = 1000


class NormalScores(nn.Module):
    r"""Creates the map from standardized columns :math:`(B, d)` to normal scores of unit
    variance.

    Arguments:
        rows: The training rows, :math:`(N, d)`.
    """

    knots: Tensor
    left: Tensor
    right: Tensor
    mean: Tensor
    scale: Tensor
    steady: Tensor  # 1 where a column is constant, 0 elsewhere

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        n = len(rows)
        levels = torch.linspace(0, 1, min(n, KNOTS), dtype=rows.dtype)
        ordered = rows.sort(0).values
        at = (levels * (n - 1)).round().long()
        knots = ordered[at].T.contiguous()  # (d, Q), with repeated values
        self.register_buffer("knots", knots)
        # the lowest and the highest level of each knot's value
        q = knots.shape[1]
        first = torch.searchsorted(knots, knots)
        last = torch.searchsorted(knots, knots, right=True) - 1
        self.register_buffer("left", levels[first.clamp_max(q - 1)])
        self.register_buffer("right", levels[last.clamp_max(q - 1)])
        self.register_buffer("steady", (ordered[0] == ordered[-1]).to(rows))
        self.register_buffer("mean", torch.zeros_like(rows[0]))
        self.register_buffer("scale", torch.ones_like(rows[0]))
        scores = self(rows)
        std, mean = torch.std_mean(scores, dim=0, correction=0)
        self.mean = mean
        self.scale = torch.where(std > 0, std, torch.ones_like(std))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "NormalScores":
        r"""Returns the map with these buffers."""
        names = ("knots", "left", "right", "mean", "scale", "steady")
        knots = tensors.get("knots")
        if set(tensors) != set(names) or knots is None or knots.ndim != 2 or not knots.numel():
            raise other(tensors, "normal scores")
        shapes = (knots.shape,) * 3 + (knots.shape[:1],) * 3
        for name, shape in zip(names, shapes, strict=True):
            if tensors[name].shape != shape or tensors[name].dtype != torch.float64:
                raise other(tensors, "normal scores")
        with torch.device("cpu"):
            made = cls(torch.zeros(1, 1))
        for name in names:
            made.register_buffer(name, tensors[name])
        return made

    def forward(self, x: Tensor) -> Tensor:
        y = x.T.contiguous()
        q = self.knots.shape[1]
        above = torch.searchsorted(self.knots, y.detach()).clamp(1, q - 1) if q > 1 else None
        if above is None:
            level = torch.full_like(y, 0.5)
        else:
            low, high = self.knots.gather(1, above - 1), self.knots.gather(1, above)
            a, b = self.right.gather(1, above - 1), self.left.gather(1, above)
            gap = high - low
            share = ((y - low) / torch.where(gap > 0, gap, torch.ones_like(gap))).clamp(0, 1)
            level = a + (b - a) * share
            # at a value that repeats, the middle of its levels
            for side, k in ((high, above), (low, above - 1)):
                middle = (self.left.gather(1, k) + self.right.gather(1, k)) / 2
                level = torch.where(y == side, middle, level)
            level = torch.where(y < self.knots[:, :1], torch.zeros_like(level), level)
            level = torch.where(y > self.knots[:, -1:], torch.ones_like(level), level)
        edge = 0.5 * math.erfc(MOST / math.sqrt(2))
        scores = math.sqrt(2) * torch.erfinv(2 * level.clamp(edge, 1 - edge) - 1)
        scores = torch.where(self.steady[:, None] > 0, y.clamp(-MOST, MOST), scores)
        return (scores.T - self.mean) / self.scale
