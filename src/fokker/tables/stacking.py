r"""The base: a mixture of mixtures, weighted by held-out rows.

.. math:: p_0(z) = \sum_j w_j \, p_j(z), \quad
    w = \arg\max_w \sum_n \log \sum_j w_j \, p_j^{(-n)}(z_n) ,

of mixtures of 1 to 32 Gaussians, of kernel densities at three widths, round and in the shape of
the covariance, and of two broad Gaussians of 3 and 30 standard deviations, without which a row far
from all others would be impossible. The weights maximize the likelihood of held-out rows
(stacking), where :math:`p_j^{(-n)}` was fitted without row n; so the base is about as good as the
best of them. The narrower of the broad Gaussians has a weight of 1 / (N + 1) or more. All of it is
one mixture of Gaussians: :math:`Z = 1`, samples are exact. No Gaussian is narrower than 0.01
standard deviations of the data: the density of a column with few different values depends on that
floor.

References:
    | Linearly Combining Density Estimators via Stacking (Smyth and Wolpert, 1999)
"""

__all__ = ["mixing", "stack"]

import math
import torch

from collections.abc import Callable
from torch import Tensor

from .mixture import (
    LEADING,
    Clusters,
    LevelEnergy,
    Plane,
    Rows,
    Stack,
    leading,
    most_rows,
    spacing,
)

COMPONENTS = (1, 2, 4, 8, 16, 32)
PER_COMPONENT = 10  # rows
ITERATIONS = 30
SHRINKS = (1.0, 0.02)  # of the covariances: where columns nearly follow from others, the least
WIDTHS = (0.35, 0.7, 1.4)  # of the kernels, in units of the spacing
FLOOR = 0.01
ROWS = 4000  # that mixtures are fitted to, at most
BROAD = (3.0, 30.0)  # widths of the Gaussians that hold rows far from all others
FOLDS, WHOLE = 5, 1500  # of the cross-validation; above so many rows only one fold is held out
HELD = 2000  # held-out rows of a fold, at most
LEAST = 1e-3  # weight

Candidate = Callable[[Tensor, Plane, torch.Generator], LevelEnergy]


def candidates(n: int, d: int) -> list[Candidate]:
    r"""Returns what the base is made of, for n training rows of d columns; the first is broad."""

    def broad(width: float) -> Candidate:
        return lambda z, plane, g: Rows(torch.zeros_like(z[:1]), width)

    def clusters(k: int, shrink: float) -> Candidate:
        return lambda z, plane, g: Clusters.fit(z[:ROWS], k, FLOOR, ITERATIONS, g, shrink, plane)

    def kernel(width: float, round_: bool) -> Candidate:
        def fit(z: Tensor, plane: Plane, g: torch.Generator) -> LevelEnergy:
            rows = z[: most_rows(d)]
            if round_:
                return Rows(rows, max(width * spacing(rows), FLOOR))
            return Rows.shaped(rows, width, FLOOR)

        return fit

    few = [broad(width) for width in BROAD]
    few += [
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
    n, d = z.shape
    found = candidates(n * (FOLDS - 1) // FOLDS, d)
    logs = []
    for fold in torch.arange(n).chunk(FOLDS)[: FOLDS if n <= WHOLE else 1] if n > 1 else ():
        others = torch.ones(n, dtype=torch.bool)
        others[fold] = False
        held, rows = z[fold[:HELD]], z[others]
        plane = leading(rows[:ROWS])
        logs.append(torch.stack([-fit(rows, plane, generator)(held) for fit in found], 1))
    weights = mixing(torch.cat(logs)) if logs else z.new_full((len(found),), 1 / len(found))
    weights[0] = weights[0].clamp_min(1 / (n + 1))  # no held-out row need have been far
    kept = [j for j in range(len(found)) if j == 0 or weights[j] >= LEAST]
    plane = leading(z[:ROWS])
    return Stack([found[j](z, plane, generator) for j in kept], weights[kept])


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
