r"""Which images of a set are odd to an energy, and where.

An energy of every level denoises what it knows well. With the noisy image :math:`x + \sigma
\varepsilon` the squared error at pixel i, averaged over channels,

.. math:: r_i(x, \sigma) = \tfrac{1}{C} \, \| D(x + \sigma \varepsilon, \sigma)_i - x_i \|^2 ,

has, over noise and data, the least mean that any denoiser can have, and is high where x is unlike
the data. Levels count alike: each is divided by the mean of :math:`r` over all images and pixels.
The **map** of an image is the mean over levels and draws of the noise, smoothed over its
neighborhood by a Gaussian of two pixels; its **score** is the mean of the map, 1 for the mean
image of the set.

The noise is the same for all images, so scores differ by the images alone. To tell whether an
image is of the set at all, see `fokker.images.oddness`; this says where one differs.
"""

__all__ = ["LEVELS", "Misfit", "misfit"]

import torch
import torch.nn.functional as F

from torch import Tensor
from typing import Any, NamedTuple

from .. import checks
from ..data.picture import to_float

LEVELS = (0.2, 0.5, 1.0)  # of the noise
WIDTH = 2.0  # pixels, of the Gaussian that smooths a map


class Misfit(NamedTuple):
    r"""How odd images are."""

    scores: Tensor  # (N)
    maps: Tensor  # (N, H, W)

    @property
    def order(self) -> list[int]:
        r"""The images, the oddest first."""
        return torch.argsort(self.scores, descending=True, stable=True).tolist()


@torch.no_grad()
def misfit(
    energy: Any,
    pixels: Tensor,
    draws: int = 2,
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Misfit:
    r"""Returns how odd images are to an energy of every level, and where.

    Arguments:
        energy: The energy, with a method `denoise(x, σ)`.
        pixels: The images, bytes (N, C, H, W).
        draws: The number of draws of the noise at each level.
        batch: The number of images at once.
        seed: The seed of the noise.
        device: The device of the energy.
    """
    checks.positive_integer(draws=draws, batch=batch)
    generator = torch.Generator().manual_seed(checks.seed(seed))
    total = torch.zeros(len(pixels), *pixels.shape[2:])
    for sigma in LEVELS:
        noises = torch.randn(draws, *pixels.shape[1:], generator=generator).to(device)
        parts = []
        for part in pixels.split(batch):
            clean = to_float(part.to(device))
            miss = [energy.denoise(clean + sigma * z, sigma) - clean for z in noises]
            parts.append(torch.stack(miss).square().mean((0, 2)).cpu())
        error = torch.cat(parts)
        total += error / error.mean().clamp(min=torch.finfo(error.dtype).tiny) / len(LEVELS)
    maps = smooth(total, WIDTH)
    return Misfit(total.flatten(1).mean(1), maps)


def smooth(maps: Tensor, width: float) -> Tensor:
    r"""Returns maps (N, H, W) averaged over neighborhoods by a Gaussian, mirrored at the edge."""
    reach = min(round(3 * width), min(maps.shape[1:]) - 1)
    offsets = torch.arange(-reach, reach + 1, dtype=maps.dtype)
    kernel = torch.exp(-(offsets**2) / (2 * width**2))
    kernel = kernel / kernel.sum()
    x = F.pad(maps[:, None], [reach] * 4, mode="reflect")
    x = F.conv2d(x, kernel.reshape(1, 1, 1, -1))
    return F.conv2d(x, kernel.reshape(1, 1, -1, 1))[:, 0]
