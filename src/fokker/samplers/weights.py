r"""Weights of particles in islands: how even they are, and resampling.

Shapes: logarithmic weights :math:`(G, n)`, one row per island.
"""

__all__ = ["combine", "effective_share", "resample", "uneven"]

import math
import torch

from torch import Tensor

EVEN = 0.5  # effective share of the weights below which an island is resampled


def effective_share(log_w: Tensor) -> Tensor:
    r"""Returns :math:`(\sum w)^2 / n \sum w^2` of the weights of each island, :math:`(G, n) \to
    (G)`."""
    first, second = (torch.logsumexp(k * log_w, 1) for k in (1, 2))
    return torch.exp(2 * first - second) / log_w.shape[1]


def uneven(log_w: Tensor) -> Tensor:
    r"""Returns whether each island is to be resampled, :math:`(G, n) \to (G)`: its weights are
    uneven, or a particle lies where the density is zero."""
    return (effective_share(log_w) < EVEN) | torch.isneginf(log_w).any(1)


def resample(log_w: Tensor, generator: torch.Generator | None) -> Tensor:
    r"""Returns the indices of n particles drawn within each island in proportion to their
    weights, :math:`(G, n) \to (G, n)`.

    Systematic resampling: index i is drawn :math:`\lfloor n W_i \rfloor` or
    :math:`\lceil n W_i \rceil` times.
    """
    islands, n = log_w.shape
    cumulative = torch.softmax(log_w, dim=1).cumsum(1)
    u = torch.rand(islands, 1, generator=generator, dtype=log_w.dtype, device=log_w.device)
    levels = (torch.arange(n, device=log_w.device) + u) / n * cumulative[:, -1:]
    return torch.searchsorted(cumulative, levels).clamp_max(n - 1)


def combine(log_z: Tensor) -> tuple[float, float]:
    r"""Returns the logarithm of the mean of islands' estimates, and its standard error."""
    mean = torch.logsumexp(log_z, 0) - math.log(len(log_z))
    spread = torch.exp(log_z - mean).std() / math.sqrt(len(log_z))
    return float(mean), float(spread)
