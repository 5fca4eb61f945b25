r"""A photograph: its noise, the picture without it, and how sure that is.

Noise is of pixels in [−1, 1] here; `of_255` and `to_255` are the units of the command line, where
a photograph has 256 shades: :math:`\sigma_{255} = 127.5 \, \sigma`.
"""

__all__ = ["Clean", "clean_photograph", "noise_of", "of_255", "to_255"]

import torch

from collections.abc import Callable
from torch import Tensor
from typing import Any, NamedTuple

from .color import SCALES
from .denoise import denoise_picture
from .noise import deviation, estimate_sigma, likeliest_sigma
from .. import checks

LEAST, MOST = 0.5, 255.0  # of 255
SEEN = 256  # side of the middle of a picture whose likelihood is asked for
SPACING = 4  # of the combs of the deviation


def of_255(**values: float) -> float:
    r"""Returns noise in units of 255 as that of pixels in [−1, 1]; one named value.

    Raises unless it lies between 0.5 and 255.
    """
    ((name, value),) = values.items()
    if not (checks.number(value) and LEAST <= value <= MOST):
        raise ValueError(
            f"expected {name} to be a finite number of 255 shades, from {LEAST:g} to {MOST:g}, got"
            f" {checks.brief(value)}; noise s of pixels in [0, 1] is 255 s, of pixels in [-1, 1]"
            " 127.5 s"
        )
    return value / 127.5


def to_255(sigma: float) -> float:
    r"""Returns noise of pixels in [−1, 1] in units of 255."""
    return 127.5 * sigma


def noise_of(
    energy: Any, picture: Tensor, shape: tuple[int, ...], low: float, high: float
) -> tuple[float, str]:
    r"""Returns an estimate of the noise of a picture, and how it was found.

    By a local energy it is the likeliest noise of the middle of the picture. By another, whose
    evaluations take long, and beyond the levels that it was trained on, it is found by wavelets.

    Arguments:
        energy: The energy.
        picture: The picture, with shape :math:`(C, H, W)`.
        shape: The shape of the images that it was trained on.
        low: The lowest level that it was trained on.
        high: The highest.
    """
    sigma = float(estimate_sigma(picture[None]))
    if not sigma > 0:
        raise ValueError("expected a noisy picture, got one without noise; give its sigma")
    least = low / min(SCALES) if len(picture) > shape[0] else low
    if getattr(energy, "local", False) and least < sigma < high:
        top, left = (max(0, (side - SEEN) // 2) for side in picture.shape[1:])
        x = picture[:, top : top + SEEN, left : left + SEEN]
        raw = lambda y, s: denoise_picture(energy, y, shape, s, clip=False)[0]
        found = likeliest_sigma(raw, x, sigma, least, high)
        if least < found < high:
            return found, "by the energy"
    return sigma, "by wavelets"


class Clean(NamedTuple):
    r"""A denoised photograph."""

    picture: Tensor  # (C, H, W), in [−1, 1]
    deviation: Tensor | None  # (C, H, W), of each pixel, if it was asked for


def clean_photograph(
    energy: Any,
    picture: Tensor,
    shape: tuple[int, ...],
    sigma: float,
    level: float | None = None,
    rule: str = "one-step",
    sure: bool = False,
    tile: int = 256,
    watch: Callable[[float], None] = lambda share: None,
) -> Clean:
    r"""Returns a photograph without its noise.

    Arguments:
        energy: The energy.
        picture: The noisy picture, with shape :math:`(C, H, W)`.
        shape: The shape of the images that the energy was trained on.
        sigma: The standard deviation of the noise.
        level: The level of an energy of one level.
        rule: What such an energy does.
        sure: Whether the posterior deviation of the pixels is returned as well.
        tile: The side of a tile of a local energy.
        watch: Called with the share of the work that was done since the last call.
    """
    if sure and level is not None:
        raise ValueError("expected an energy of every level for deviations, got one of one level")
    times = 1 + (SPACING**2 if sure else 0)
    tick = lambda share: watch(share / times)

    def raw(x: Tensor) -> Tensor:
        out, _ = denoise_picture(
            energy, x, shape, sigma, level, rule=rule, clip=False, tile=tile, watch=tick
        )
        return out

    clean = raw(picture)
    if not torch.isfinite(clean).all():
        raise FloatingPointError(f"expected a finite picture at noise {sigma:.4g}, got NaN")
    spread = deviation(raw, picture, sigma, SPACING, clean) if sure else None
    return Clean(clean.clamp(-1, 1), spread)
