r"""The Wasserstein distance between two sets of points.

.. math:: W_p(x, y) = \Big( \min_\pi \sum_{ij} \pi_{ij} \|x_i - y_j\|^p \Big)^{1/p}

over couplings :math:`\pi` with uniform marginals, solved exactly as a linear program by POT. Two
samples of the same law are a positive distance apart, which falls as the samples grow: compare at
equal sizes.
"""

__all__ = ["wasserstein"]

import torch

from torch import Tensor

from .. import checks


def wasserstein(x: Tensor, y: Tensor, p: float = 2.0) -> float:
    r"""Returns the Wasserstein distance of two point sets.

    Arguments:
        x: Points, with shape :math:`(N, *)`.
        y: Points, with shape :math:`(M, *)`.
        p: The order :math:`p \geq 1`.

    Example:
        >>> x = torch.randn(50, 2)
        >>> wasserstein(x, x + torch.tensor([3.0, 4.0]))  # a shift costs its length
        5.0000
    """
    import ot

    checks.between(1, float("inf"), p=p)
    x, y = (
        checks.points(z, n).detach().flatten(1).double().cpu() for z, n in ((x, "x"), (y, "y"))
    )
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"expected points of one dimension, got {x.shape[1]} and {y.shape[1]} coordinates"
        )
    cost = torch.cdist(x, y) ** p
    uniform: list[float] = []  # empty weights stand for equal ones
    total = ot.emd2(uniform, uniform, cost.numpy(), numItermax=10_000_000)
    return float(torch.as_tensor(total)) ** (1 / p)
