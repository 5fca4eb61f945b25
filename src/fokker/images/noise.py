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

**By the energy** (`likeliest_sigma`). The density of noisy pictures obeys the heat equation, with
:math:`\tau = \sigma^2`: :math:`\partial_\tau p = \tfrac{1}{2} \Delta p`, so

.. math:: \partial_\tau \log p_\sigma(x) = \tfrac{1}{2} \big( \|\nabla E(x, \sigma)\|^2
    - \Delta E(x, \sigma) \big) ,

and the constant of a level is not needed. The likeliest noise of a picture of N pixels is where
this is zero: by the denoiser :math:`D = x - \tau \nabla E`, where

.. math:: \tau = \frac{\|x - D(x, \sigma)\|^2}{N - \mathrm{div} \, D(x, \sigma)} .

Its two sides cross once where the likelihood has one maximum: the crossing is bracketed and found
by false position (the Illinois method), in the logarithm of the noise. The divergence is
:math:`v \cdot \partial D \, v` with v of random signs: of as many pixels as a picture has, one v
is enough.

**The posterior deviation** of a pixel (`deviation`). For the exact denoiser :math:`D(x, \sigma) =
\mathbb{E}[x_0 \mid x]`

.. math:: \mathrm{Cov}[x_0 \mid x] = \sigma^2 \, \frac{\partial D}{\partial x}
    = \sigma^2 (I - \sigma^2 \nabla^2 E) ,

and the variance of a pixel is its diagonal. With :math:`z` random signs on every r-th pixel along
both axes and zero elsewhere, :math:`z_i (\partial D \, z)_i` is that of pixel i but for what its
neighbors r pixels away and further have to do with it, of random sign; :math:`r^2` such combs
cover all pixels. The mean over a window of 7×7 pixels takes most of these away: where a picture is
smooth they are as large as the diagonal. The derivative is a difference of two pictures, D at x
and at x + 0.1 σ z.
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
WINDOW = 7  # pixels over which a variance is averaged
SHIFT = 0.1  # of a comb, in units of the noise
CLOSE = 1e-3  # a change of the logarithm of the noise that ends the search


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
    denoise: Callable[[Tensor, float], Tensor],
    x: Tensor,
    start: float,
    low: float,
    high: float,
    steps: int = 12,
) -> float:
    r"""Returns the level at which a picture is likeliest, between the lowest and the highest.

    Arguments:
        denoise: The denoiser at a level, from a picture to a picture, without clipping.
        x: The picture.
        start: The level from which to begin.
        low: The lowest level.
        high: The highest level.
        steps: The most steps once it is bracketed.
    """
    checks.positive(start=start, low=low, high=high)
    if low >= high:
        raise ValueError(f"expected low < high, got {low:g} and {high:g}")
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
    inside = lambda value: min(max(value, math.log(low)), math.log(high))

    def step(log: float) -> float:
        r"""Returns the logarithm of the right side at a level."""
        sigma = math.exp(log)
        clean, shift = denoise(x, sigma), SHIFT * sigma
        change = float((signs * (denoise(x + shift * signs, sigma) - clean)).sum()) / shift
        left, rest = x.numel() - change, float((x - clean).square().sum())
        if not (math.isfinite(rest) and rest > 0 and left > 0):
            raise FloatingPointError(
                f"expected a denoiser that takes noise away at {sigma:.4g}, got {rest:.4g} of"
                f" noise in {left:.4g} of {x.numel()} pixels"
            )
        return math.log(rest / left) / 2

    a = inside(math.log(start))
    fa = step(a) - a
    if abs(fa) < CLOSE**2:
        return math.exp(a)
    b = inside(a + 2 * fa)
    fb = step(b) - b
    while fa * fb > 0 and math.log(low) < b < math.log(high):
        a, fa, b = b, fb, inside(b + 2 * (b - a))
        fb = step(b) - b
    for _ in range(steps):
        if fa * fb > 0 or abs(a - b) < CLOSE:  # beyond the levels, or found
            break
        c = (a * fb - b * fa) / (fb - fa)
        fc = step(c) - c
        a, fa = (b, fb) if fb * fc <= 0 else (a, fa / 2)
        moved, b, fb = abs(c - b), c, fc
        if moved < CLOSE:
            break
    return math.exp(b)


def deviation(
    denoise: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: float,
    spacing: int = 4,
    clean: Tensor | None = None,
) -> Tensor:
    r"""Returns the posterior standard deviation of each pixel, shaped as the picture.

    Its variance is the mean over the pixels around it. A negative one, which a network may give,
    becomes zero.

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
    around = F.avg_pool2d(variance, WINDOW, 1, WINDOW // 2, count_include_pad=False)
    return sigma * around.clamp_min(0).sqrt()
