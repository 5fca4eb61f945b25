r"""Normal scores: each column by its rank.

.. math:: u_d = \Phi^{-1}\big( F_d(z_d) \big), \quad |u_d| \leq 4,

at 1,000 quantiles of the column in the training rows or fewer, with :math:`F_d` its distribution
there, and linear between them; a value that stands for many rows takes the middle of their ranks.
Below the least value of the training rows :math:`u_d = -4`, above the largest 4. It is the same
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
    scores: Tensor  # from each of them on, and below the first, (d, Q + 1)
    slopes: Tensor  # up to the next one, (d, Q + 1)
    highest: Tensor  # above the last, (d)
    steady: Tensor  # 1 where a column is constant, 0 elsewhere, (d)

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        n, d = rows.shape
        levels = torch.linspace(0, 1, q := min(n, KNOTS), dtype=rows.dtype)
        ordered = rows.sort(0).values
        knots = ordered[(levels * (n - 1)).round().long()].T.contiguous()  # repeated values, too
        first = torch.searchsorted(knots, knots)
        last = torch.searchsorted(knots, knots, right=True) - 1
        middle = (levels[first.clamp_max(q - 1)] + levels[last.clamp_max(q - 1)]) / 2
        edge = 0.5 * math.erfc(MOST / math.sqrt(2))
        inner = math.sqrt(2) * torch.erfinv(2 * middle.clamp(edge, 1 - edge) - 1)
        gaps = knots.diff(dim=1)
        rises = torch.where(gaps > 0, inner.diff(dim=1) / gaps, torch.zeros_like(gaps))
        flat, lowest = rows.new_zeros(d, 1), rows.new_full((d, 1), -MOST)
        self.register_buffer("knots", knots)
        self.register_buffer("scores", torch.cat([lowest, inner], 1))
        self.register_buffer("slopes", torch.cat([flat, rises, flat], 1))
        self.register_buffer("highest", rows.new_full((d,), MOST))
        self.register_buffer("steady", (ordered[0] == ordered[-1]).to(rows))
        std, mean = torch.std_mean(self(rows), dim=0, correction=0)
        moves = (self.steady == 0) & (std > 0)
        std, mean = torch.where(moves, std, 1.0), torch.where(moves, mean, 0.0)
        self.scores = (self.scores - mean[:, None]) / std[:, None]
        self.slopes = self.slopes / std[:, None]
        self.highest = (self.highest - mean) / std

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "NormalScores":
        r"""Returns the map with these buffers."""
        names = ("knots", "scores", "slopes", "highest", "steady")
        knots = tensors.get("knots")
        if set(tensors) != set(names) or knots is None or knots.ndim != 2 or not knots.numel():
            raise other(tensors, "normal scores")
        d, q = knots.shape
        shapes = ((d, q), (d, q + 1), (d, q + 1), (d,), (d,))
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
        y = x.T.contiguous()
        k = torch.searchsorted(self.knots, y.detach(), right=True)  # of knots up to y
        above = y - self.knots.gather(1, (k - 1).clamp_min(0))
        u = torch.addcmul(self.scores.gather(1, k), self.slopes.gather(1, k), above)
        u = torch.where(y > self.knots[:, -1:], self.highest[:, None], u)
        if self.steady.any():
            u = torch.where(self.steady[:, None] > 0, y.clamp(-MOST, MOST), u)
        return u.T
