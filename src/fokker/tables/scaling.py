r"""Normal scores: each column by its rank.

.. math:: u_d = \Phi^{-1}\big( F_d(z_d) \big), \quad |u_d| \leq 4,

with :math:`F_d` the distribution of the column in the training rows, linear between at most 1,000
of its quantiles; a value that stands for many rows takes the middle of their ranks. It is the same
for every monotone scale of a column, so heavy tails and skewed columns do not decide alone. Of the
columns that are constant the standardized value is kept, up to 4. The scores of the training rows
have mean 0 and variance 1 then.
"""

__all__ = ["NormalScores"]

import math
import torch

from collections.abc import Mapping
from torch import Tensor, nn

from .mixture import NUMBERS, other

MOST = 4.0  # standard deviations
KNOTS = 1000


class NormalScores(nn.Module):
    r"""Creates the map from standardized columns :math:`(B, d)` to normal scores of unit
    variance.

    Arguments:
        rows: The training rows, :math:`(N, d)`.
    """

    knots: Tensor  # the quantiles, ascending, (d, Q)
    gaps: Tensor  # 1 / the gap between two of them, 0 where there is none, (d, Q + 1)
    middles: Tensor  # the score at each of them, (d, Q + 1)
    mean: Tensor  # (d)
    scale: Tensor  # (d)
    steady: Tensor  # 1 where a column is constant, 0 elsewhere, (d)

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        n, d = rows.shape
        levels = torch.linspace(0, 1, q := min(n, KNOTS), dtype=rows.dtype)
        ordered = rows.sort(0).values
        knots = ordered[(levels * (n - 1)).round().long()].T.contiguous()  # repeated values, too
        first = torch.searchsorted(knots, knots)
        last = torch.searchsorted(knots, knots, right=True) - 1
        middles = normal((levels[first.clamp_max(q - 1)] + levels[last.clamp_max(q - 1)]) / 2)
        gaps = knots.diff(dim=1)
        gaps = torch.where(gaps > 0, 1 / gaps, torch.zeros_like(gaps))
        edge = rows.new_zeros(d, 1)
        self.register_buffer("knots", knots)
        self.register_buffer("gaps", torch.cat([edge, gaps, edge], 1))
        self.register_buffer("middles", torch.cat([edge, middles], 1))
        self.register_buffer("steady", (ordered[0] == ordered[-1]).to(rows))
        self.register_buffer("mean", torch.zeros_like(rows[0]))
        self.register_buffer("scale", torch.ones_like(rows[0]))
        std, mean = torch.std_mean(self(rows), dim=0, correction=0)
        self.mean = mean
        self.scale = torch.where(std > 0, std, torch.ones_like(std))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "NormalScores":
        r"""Returns the map with these buffers."""
        names = ("knots", "gaps", "middles", "mean", "scale", "steady")
        knots = tensors.get("knots")
        if set(tensors) != set(names) or knots is None or knots.ndim != 2 or not knots.numel():
            raise other(tensors, "normal scores")
        d, q = knots.shape
        shapes = ((d, q), (d, q + 1), (d, q + 1), (d,), (d,), (d,))
        for name, shape in zip(names, shapes, strict=True):
            if tensors[name].shape != shape or tensors[name].dtype != torch.float64:
                raise other(tensors, "normal scores")
        with torch.device("cpu"):
            made = cls(torch.zeros(1, 1, dtype=torch.float64))
        for name in names:
            made.register_buffer(name, tensors[name])
        return made

    def forward(self, x: Tensor) -> Tensor:
        step = max(1, NUMBERS // x.shape[1])
        return torch.cat([self.evaluate(part) for part in x.split(step)])

    def evaluate(self, x: Tensor) -> Tensor:
        y, q = x.T.contiguous(), self.knots.shape[1]
        k = torch.searchsorted(self.knots, y.detach(), right=True)  # of knots up to y
        beyond = y - self.knots.gather(1, (k - 1).clamp_min(0))
        level = torch.addcmul((k - 1).to(y), beyond, self.gaps.gather(1, k)) / max(q - 1, 1)
        u = torch.where((beyond == 0) & (k > 0), self.middles.gather(1, k), normal(level))
        if self.steady.any():
            u = torch.where(self.steady[:, None] > 0, y.clamp(-MOST, MOST), u)
        return (u.T - self.mean) / self.scale


def normal(level: Tensor) -> Tensor:
    r"""Returns the quantiles of the normal distribution at levels, at most `MOST`."""
    edge = 0.5 * math.erfc(MOST / math.sqrt(2))
    return math.sqrt(2) * torch.erfinv(2 * level.clamp(edge, 1 - edge) - 1)
