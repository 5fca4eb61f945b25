r"""How much noise a picture has, and how sure a denoised one is.

**By wavelets** (`estimate_sigma`). The finest diagonal details of a picture, by Daubechies' filter
of four vanishing moments, are noise where the picture is smooth. Their root mean square is taken
in each block of 32×32 places, and the estimate is the 5 % quantile over the blocks, divided by
that of white noise of deviation one on as many blocks. The quantile finds the smoothest blocks, so
that texture counts for less than in the median of all details (Donoho & Johnstone, 1994). Left
out, while others are there, are blocks where more than 0.5 % of the places have no detail at all,
such as a border that was added, or of the pixels are black or white, where a file has cut noise
off. A picture with a side below 64 pixels has too few blocks: there it is the median over Haar's
details.

**By the energy** (`likeliest_sigma`). Where the levels of an energy are tied, so that
:math:`E(x, \sigma) = -\log p_\sigma(x)` up to one constant (the time score of `LevelDCD`), the
likelihood of the picture is a function of its noise, and the estimate is

.. math:: \hat\sigma = \arg\min_\sigma E(x, \sigma) ,

found on a grid of levels and then by golden sections.

**The posterior deviation** of a pixel (`deviation`). For the exact denoiser :math:`D(x, \sigma) =
\mathbb{E}[x_0 \mid x]`

.. math:: \mathrm{Cov}[x_0 \mid x] = \sigma^2 \, \frac{\partial D}{\partial x}
    = \sigma^2 (I - \sigma^2 \nabla^2 E) ,

and the variance of a pixel is its diagonal. With :math:`z` random signs on every r-th pixel along
both axes and zero elsewhere, :math:`z_i (\partial D \, z)_i` is that of pixel i but for what its
neighbors r pixels away and further have to do with it, of random sign; :math:`r^2` such combs
cover all pixels. The derivative is a difference of two pictures, D at x and at x + 0.1 σ z.
"""

__all__ = ["deviation", "estimate_sigma", "likeliest_sigma"]

import math
import torch
import torch.nn.functional as F

from collections.abc import Callable
from torch import Tensor

from .. import checks

DAUBECHIES = (
    0.23037781330885523, 0.7148465705525415, 0.6308807679295904, -0.02798376941698385,
    -0.18703481171888114, 0.030841381835986965, 0.032883011666982945, -0.010597401784997278,
)  # fmt: skip
BLOCK, QUANTILE = 32, 0.05
CUT = 0.005  # share of a block that may be black or white, or without detail
NOTHING = 1e-6  # the size of no detail, to rounding
SHIFT = 0.1  # of a comb, in units of the noise
GOLDEN = (math.sqrt(5) - 1) / 2


def estimate_sigma(x: Tensor) -> Tensor:
    r"""Returns an estimate of the noise in each image by wavelets, with shape (B).

    Fine texture counts as noise. A file holds no pixels beyond black and white: where all of its
    noise was cut off there, the estimate is too low.

    Arguments:
        x: The images in [−1, 1], with shape (B, C, H, W) and H and W at least 2.
    """
    checks.points(checks.images(x))
    if min(x.shape[2:]) < 2:
        size = f"{x.shape[2]}x{x.shape[3]}"
        raise ValueError(
            f"expected 2 pixels a side or more to estimate the noise, got {size}; give its sigma"
        )
    if min(x.shape[2:]) < 2 * BLOCK:
        return by_median(x)
    return torch.stack([by_blocks(one) for one in x])


def by_median(x: Tensor) -> Tensor:
    r"""Returns the median size of Haar's details over that of a standard normal, 0.6745."""
    h, w = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = x[:, :, :h, :w]
    detail = x[..., ::2, ::2] - x[..., 1::2, ::2] - x[..., ::2, 1::2] + x[..., 1::2, 1::2]
    return (detail / 2).abs().flatten(1).median(1).values / 0.67449


def by_blocks(x: Tensor) -> Tensor:
    r"""Returns the estimate by the smoothest blocks of an image (C, H, W), with shape ()."""
    found, still = blocks(x[:, None])
    inside = F.pad((x[:, None].abs() >= 1).to(x), (0, 1 - len(DAUBECHIES)) * 2)
    cut = F.avg_pool2d(inside, BLOCK, BLOCK // 2).flatten()
    for keep in ((cut <= CUT) & (still <= CUT), still <= CUT):
        if int(keep.sum()) >= max(4, len(found) // 50):
            found = found[keep]
            break
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x[:, None].shape, generator=generator, dtype=x.dtype).to(x.device)
    return torch.quantile(found, QUANTILE) / torch.quantile(blocks(noise)[0], QUANTILE)


def blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns the root mean square of the diagonal details in each block of images
    (C, 1, H, W), and the share of places without any."""
    low = x.new_tensor(DAUBECHIES)
    high = low.flip(0) * (-1) ** torch.arange(len(low), device=x.device)
    detail = F.conv2d(x, torch.outer(high, high)[None, None])
    pool = lambda v: F.avg_pool2d(v, BLOCK, BLOCK // 2).flatten()
    return pool(detail.square()).sqrt(), pool((detail.abs() < NOTHING).to(x))


def likeliest_sigma(
    energy: Callable[[float], float], low: float, high: float, grid: int = 12, steps: int = 20
) -> float:
    r"""Returns the level at which a picture has the least energy.

    Arguments:
        energy: The energy of the picture at a level, of an energy whose levels are tied.
        low: The lowest level.
        high: The highest level.
        grid: The number of levels of the grid, evenly spaced in their logarithm.
        steps: The number of golden sections.
    """
    checks.positive(low=low, high=high)
    checks.at_least(3, grid=grid)
    if low >= high:
        raise ValueError(f"expected low < high, got {low:g} and {high:g}")
    a, b = math.log(low), math.log(high)
    logs = [a + (b - a) * k / (grid - 1) for k in range(grid)]
    values = [energy(math.exp(v)) for v in logs]
    if not all(math.isfinite(v) for v in values):
        raise FloatingPointError(f"expected finite energies at all levels, got {values}")
    k = min(range(grid), key=values.__getitem__)
    a, b = logs[max(0, k - 1)], logs[min(grid - 1, k + 1)]
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    ec, ed = energy(math.exp(c)), energy(math.exp(d))
    for _ in range(steps):
        if ec < ed:
            b, d, ed = d, c, ec
            c = b - GOLDEN * (b - a)
            ec = energy(math.exp(c))
        else:
            a, c, ec = c, d, ed
            d = a + GOLDEN * (b - a)
            ed = energy(math.exp(d))
    return math.exp((a + b) / 2)


def deviation(
    denoise: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: float,
    spacing: int = 4,
    clean: Tensor | None = None,
) -> Tensor:
    r"""Returns the posterior standard deviation of each pixel, shaped as the picture.

    A negative variance, which a network or a far neighbor may give, becomes zero.

    Arguments:
        denoise: The denoiser at this level, from a picture to a picture, without clipping.
        x: The noisy picture, with shape :math:`(C, H, W)`.
        sigma: The standard deviation of its noise.
        spacing: The spacing r of a comb; :math:`r^2` evaluations of the denoiser.
        clean: The denoised picture, if it is known.
    """
    checks.positive(sigma=sigma)
    checks.positive_integer(spacing=spacing)
    clean = denoise(x) if clean is None else clean
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
    variance = torch.zeros_like(x)
    for i in range(spacing):
        for j in range(spacing):
            z = torch.zeros_like(x)
            z[:, i::spacing, j::spacing] = signs[:, i::spacing, j::spacing]
            change = (denoise(x + SHIFT * sigma * z) - clean) / (SHIFT * sigma)
            variance += z * change
    return sigma * variance.clamp_min(0).sqrt()
