r"""The base: a mixture of mixtures, weighted by held-out rows.

.. math:: p_0(z) = \sum_j w_j \, p_j(z), \quad
    w = \arg\max_w \sum_n \log \sum_j w_j \, p_j^{(-n)}(z_n) ,

of mixtures of 1 to 32 Gaussians and of kernel densities at three widths, round and in the shape of
the covariance. The weights maximize the likelihood of held-out rows (stacking), where
:math:`p_j^{(-n)}` was fitted without row n; so the base is about as good as the best of them. All
of it is one mixture of Gaussians: :math:`Z = 1`, samples are exact. No Gaussian is narrower than
0.01 standard deviations of the data: the density of a column with few different values depends on
that floor.

References:
    | Linearly Combining Density Estimators via Stacking (Smyth and Wolpert, 1999)
"""

__all__ = ["mixing", "stack"]

import math
import torch

from collections.abc import Callable
from torch import Tensor

from .mixture import LEADING, Clusters, LevelEnergy, Rows, Stack, spacing

COMPONENTS = (1, 2, 4, 8, 16, 32)
PER_COMPONENT = 10  # rows
ITERATIONS = 30
SHRINKS = (1.0, 0.02)  # of the covariances: where columns nearly follow from others, the least
WIDTHS = (0.35, 0.7, 1.4)  # of the kernels, in units of the spacing
FLOOR = 0.01
ROWS = 4000  # that mixtures are fitted to, at most
PROTOTYPES = 2000  # rows of a kernel density, at most
FOLDS, WHOLE = 5, 1500  # of the cross-validation; above so many rows only one fold is held out
LEAST = 1e-3  # weight

Candidate = Callable[[Tensor, torch.Generator], LevelEnergy]


def candidates(n: int, d: int) -> list[Candidate]:
    r"""Returns what the base is made of, for n training rows of d columns."""

    def clusters(k: int, shrink: float) -> Candidate:
        return lambda z, g: Clusters.fit(z[:ROWS], k, FLOOR, ITERATIONS, g, shrink)

    def kernel(width: float, round_: bool) -> Candidate:
        def fit(z: Tensor, g: torch.Generator) -> LevelEnergy:
            rows = z[:PROTOTYPES]
            if round_:
                return Rows(rows, max(width * spacing(rows), FLOOR))
            return Rows.shaped(rows, width, FLOOR)

        return fit

    few = [
        clusters(k, shrink)
        for shrink in SHRINKS
        for k in COMPONENTS
        if k == 1 or k * PER_COMPONENT <= n
    ]
    if n < 10:
        return few
    shapes = (True, False) if d <= LEADING else (True,)  # the covariance of many costs too much
    return few + [kernel(width, round_) for round_ in shapes for width in WIDTHS]


def stack(z: Tensor, generator: torch.Generator) -> Stack:
    r"""Returns the mixture of candidates with the weights of the cross-validation."""
    found = candidates(len(z) * (FOLDS - 1) // FOLDS, z.shape[1])
    if len(found) == 1:
        return Stack([found[0](z, generator)], z.new_ones(1))
    logs = []
    for fold in torch.arange(len(z)).chunk(FOLDS)[: FOLDS if len(z) <= WHOLE else 1]:
        others = torch.ones(len(z), dtype=torch.bool)
        others[fold] = False
        held = z[fold[:PROTOTYPES]]
        logs.append(torch.stack([-fit(z[others], generator)(held) for fit in found], 1))
    weights = mixing(torch.cat(logs))
    kept = [j for j in range(len(found)) if weights[j] >= LEAST]
    return Stack([found[j](z, generator) for j in kept], weights[kept])


def mixing(logs: Tensor, iterations: int = 200) -> Tensor:
    r"""Returns the weights of J densities that maximize the likelihood of rows.

    Arguments:
        logs: The log-densities of rows under each, :math:`(N, J)`.
        iterations: The iterations of expectation maximization.
    """
    log_w = torch.zeros_like(logs[0]) - math.log(logs.shape[1])
    for _ in range(iterations):
        share = torch.softmax(log_w + logs, 1)
        log_w = torch.log(share.mean(0).clamp_min(1e-300))
    return torch.exp(log_w)
