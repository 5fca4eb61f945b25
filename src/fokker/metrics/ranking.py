r"""How well scores tell two sets apart.

The area under the ROC curve is the probability that a score of the second set is above one of the
first, ties counted half,

.. math:: \mathrm{AUROC} = P(s_2 > s_1) + \tfrac{1}{2} P(s_2 = s_1) :

1/2 for scores that say nothing, 1 for perfect ones, and below 1/2 for those that say the opposite.
"""

__all__ = ["auroc"]

import torch

from torch import Tensor


def auroc(first: Tensor, second: Tensor) -> float:
    r"""Returns the probability that a score of the second set is above one of the first.

    Arguments:
        first: The scores of the usual, with shape :math:`(N)`.
        second: The scores of the odd, with shape :math:`(M)`.

    Example:
        >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
        0.875
    """
    for name, scores in (("first", first), ("second", second)):
        if scores.ndim != 1 or not len(scores) or torch.isnan(scores).any():
            raise ValueError(
                f"expected {name} to be scores (N) that are not NaN, one or more, got"
                f" {tuple(scores.shape)}"
            )
    usual = first.double().sort().values
    below = torch.searchsorted(usual, second.double().contiguous())
    equal = torch.searchsorted(usual, second.double().contiguous(), right=True) - below
    return float((below.double() + equal.double() / 2).mean() / len(usual))
