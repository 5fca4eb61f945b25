r"""Memory or knowledge: are training images likelier than test images?

An energy that knows what images look like finds training and test images alike; one that remembers
its training images finds these likelier. So noise is added to both at a few levels, and

- the **AUROC** of energies, training against test: the probability that a test image has the
  higher energy; 1/2 without memory;
- the **gap**, the mean energy of test images minus that of training images, in nats, with its
  standard error;
- the **nearest** training image of each: the RMSE from a test image to the nearest training image,
  and from a training image to the nearest *other* one. Where the second is far smaller the set
  has near copies, which no model explains.

Test images may differ from training images (another year, other people), so a gap alone is no
proof of memory: at high levels, where nothing can be remembered, it shows how much the sets
differ.
"""

__all__ = ["LEVELS", "Memory", "memory_of", "nearest"]

import torch

from torch import Tensor
from typing import Any, NamedTuple

from .. import checks
from ..data.picture import to_float
from ..energies import Denoiser
from ..metrics.ranking import auroc
from ..shapes import constant

LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)
CHUNK = 250  # images compared with all others at once


class Memory(NamedTuple):
    r"""How energies of training and test images compare at one level."""

    sigma: float
    train: float  # mean energy, nats
    test: float
    gap: float  # test minus training
    error: float  # standard error of the gap
    auroc: float  # 1/2 without memory


@torch.no_grad()
def memory_of(
    energy: Any,
    train: Tensor,
    test: Tensor,
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Memory]:
    r"""Returns how energies of training and test images compare, at each level.

    Arguments:
        energy: The energy of every level.
        train: Training images, two or more, bytes (N, C, H, W).
        test: Test images, likewise.
        batch: The number of images at once.
        seed: The seed of the noise.
        device: The device of the energy.
    """
    if isinstance(energy, Denoiser):
        raise ValueError("expected an energy, to compare images by, got a denoiser")
    checks.at_least(2, train=len(train), test=len(test))
    rows = []
    for sigma in LEVELS:
        generator = torch.Generator().manual_seed(checks.seed(seed))
        found = []
        for pixels in (train, test):
            parts = []
            for part in pixels.split(batch):
                eps = torch.randn(part.shape, generator=generator)
                x = (to_float(part).cpu() + sigma * eps).to(device)
                parts.append(energy(x, constant(sigma, x)).double().cpu())
            found.append(torch.cat(parts))
        seen, unseen = found
        error = (seen.var() / len(seen) + unseen.var() / len(unseen)).sqrt()
        means = float(seen.mean()), float(unseen.mean())
        gap = float(unseen.mean() - seen.mean())
        rows.append(Memory(sigma, *means, gap, float(error), auroc(seen, unseen)))
    return rows


def nearest(
    x: Tensor, train: Tensor, chunk: int = CHUNK, others: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Returns the RMSE of each image to the nearest of a set, and its index.

    Arguments:
        x: Images in [−1, 1], (N, C, H, W).
        train: The set, bytes (M, C, H, W).
        chunk: The number of images at once.
        others: Whether x are the first N images of the set, whose nearest *other* is sought.
    """
    points = to_float(train.to(x.device)).flatten(1)
    squares = points.square().sum(1)
    parts = []
    for begin, part in enumerate(x.flatten(1).split(chunk)):
        gap = part.square().sum(1)[:, None] + squares - 2 * part @ points.T
        if others:
            rows = torch.arange(len(part), device=x.device)
            gap[rows, begin * chunk + rows] = torch.inf
        index = gap.argmin(1)
        exact = (part - points[index]).square().mean(1).sqrt()  # the gap itself cancels
        parts.append((exact, index))
    distances, indices = zip(*parts, strict=True)
    return torch.cat(distances), torch.cat(indices)
