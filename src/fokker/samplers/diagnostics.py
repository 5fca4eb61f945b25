r"""Diagnostics of Markov chains, one value for each coordinate.

Let B chains of S samples be cut in halves, :math:`M = 2 B` chains of :math:`N = \lfloor S / 2
\rfloor`. With W the mean of the variances within chains and :math:`V / N` the variance of their
means, the pooled variance is

.. math:: \hat{v} = \tfrac{N - 1}{N} W + \tfrac{1}{N} V .

**R-hat** is :math:`\sqrt{\hat{v} / W}`: 1 when the chains agree, above when they have not mixed;
below 1.01 is the advice. Chains that have mixed are at :math:`1 + \tau / 2 N`, so it also asks for
chains of some length, however many there are. It is taken of normal scores,
:math:`\Phi^{-1}((r - 3/8) / (N M + 1/4))` for the rank r among all, so that heavy tails do no
harm, and once more of the distance to the median, which sees chains that agree in place and not in
scale. The larger counts.

**The effective sample size** is the number of independent samples whose mean has the same
variance,

.. math::
    n = \frac{N M}{\tau}, \quad \tau = -1 + 2 \sum_{k \geq 0} P_k, \quad
    P_k = \rho_{2k} + \rho_{2k+1}, \quad
    \rho_t = 1 - \frac{W - \bar{c}_t}{\hat{v}},

with :math:`\bar{c}_t` the mean autocovariance at lag t. For a reversible chain :math:`P_k` is
positive and falls with k; the estimate is cut at the first that is not positive, and made to fall
(Geyer's initial monotone sequence).

Shapes: samples :math:`(S, B, *)` give :math:`(*)`. A coordinate that never moves has neither, and
gives NaN.

References:
    | Rank-normalization, folding, and localization: an improved R-hat (Vehtari et al., 2021)
    | https://arxiv.org/abs/1903.08008
    | Practical Markov Chain Monte Carlo (Geyer, 1992)
"""

__all__ = ["Acceptance", "acceptance", "ess", "rhat", "standard_error"]

import math
import torch

from torch import Tensor
from typing import NamedTuple


class Acceptance(NamedTuple):
    r"""The acceptance of a run: a chain that is stuck shows as a low `lowest`."""

    mean: float  # over chains and transitions
    lowest: float  # of the chain that accepts least
    highest: float  # of the chain that accepts most


def acceptance(rates: Tensor) -> Acceptance:
    r"""Returns the mean, lowest and highest acceptance of probabilities :math:`(S, B)`."""
    chains = rates.mean(0)
    return Acceptance(float(chains.mean()), float(chains.min()), float(chains.max()))


def halves(samples: Tensor) -> Tensor:
    r"""Returns the halves of the chains in double precision, :math:`(S, B, *) \to (N, M, *)`.

    The middle sample of an odd number is dropped.
    """
    if samples.ndim < 2 or samples.numel() == 0:
        raise ValueError(f"expected samples of shape (S, B, *), got shape {tuple(samples.shape)}")
    if len(samples) < 4:
        raise ValueError(f"expected S >= 4 samples a chain, two a half, got S = {len(samples)}")
    if not torch.isfinite(samples).all():
        raise ValueError(
            f"expected finite samples, got {int((~torch.isfinite(samples)).sum())} of"
            f" {samples.numel()} values NaN or infinite"
        )
    n = len(samples) // 2
    return torch.cat([samples[:n], samples[-n:]], dim=1).double()


def normal_scores(x: Tensor) -> Tensor:
    r"""Returns the normal scores of the ranks among all chains, ties sharing their mean rank."""
    flat = x.reshape(x.shape[0] * x.shape[1], -1).T.contiguous()  # one row a coordinate
    ordered = flat.sort(dim=1).values
    below = torch.searchsorted(ordered, flat)
    upto = torch.searchsorted(ordered, flat, right=True)
    ranks = (below + upto + 1) / 2  # from 1; rejections make ties
    scores = torch.special.ndtri((ranks.double() - 3 / 8) / (flat.shape[1] + 1 / 4))
    return scores.T.reshape(x.shape)


def variances(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns W and :math:`\hat{v}` of chains :math:`(N, M, *)`, with shape :math:`(*)`."""
    n = len(x)
    within = x.var(0).mean(0)
    return within, (n - 1) / n * within + x.mean(0).var(0)


def rhat(samples: Tensor) -> Tensor:
    r"""Returns the rank-normalized split R-hat, with shape :math:`(*)`.

    Arguments:
        samples: The samples, with shape :math:`(S, B, *)` and :math:`S \geq 4`.
    """
    x = halves(samples)
    median = x.flatten(0, 1).median(0).values
    both = [variances(normal_scores(y)) for y in (x, (x - median).abs())]
    bulk, tail = (torch.sqrt(pooled / within) for within, pooled in both)
    return torch.maximum(bulk, tail)


def ess(samples: Tensor) -> Tensor:
    r"""Returns the effective sample size of the mean, with shape :math:`(*)`.

    It may exceed the number of samples, if they are anticorrelated.

    Arguments:
        samples: The samples, with shape :math:`(S, B, *)` and :math:`S \geq 4`.
    """
    x = halves(samples)
    n, m = x.shape[:2]
    within, pooled = variances(x)
    # the autocovariance is the inverse transform of the power spectrum, padded against wrapping
    spectrum = torch.fft.rfft(x - x.mean(0), n=2 * n, dim=0)
    power = spectrum.real.square().add_(spectrum.imag.square())
    covariance = torch.fft.irfft(power.mean(1), n=2 * n, dim=0)[:n] / n
    rho = 1 - (within - covariance) / pooled
    rho[0] = 1
    pairs = rho[: n - n % 2].unflatten(0, (-1, 2)).sum(1)
    falling = pairs.cummin(0).values.clamp(min=0)  # zero from the first that is not positive
    tau = 2 * falling.sum(0) - 1
    # Stan's bound: a tau near zero is noise, not so strong an anticorrelation
    return n * m / tau.clamp(min=1 / math.log10(n * m))


def standard_error(samples: Tensor) -> Tensor:
    r"""Returns the Monte-Carlo standard error of the mean, with shape :math:`(*)`.

    Arguments:
        samples: The samples, with shape :math:`(S, B, *)` and :math:`S \geq 4`.
    """
    return torch.sqrt(variances(halves(samples))[1] / ess(samples))
