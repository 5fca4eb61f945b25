r"""Denoising with an energy, and how well it does.

An image is seen as :math:`x = x_0 + \sigma \varepsilon`; the best guess in mean square is
:math:`\mathbb{E}[x_0 | x]`. What an energy makes of it depends on what it has learned.

**An energy of every level**, E(x, σ), has the energy of the noisy data at the level at hand, and
by Tweedie's formula :math:`\mathbb{E}[x_0 | x] = x - \sigma^2 \nabla E(x, \sigma)`, exactly.

**An energy of one level** :math:`\sigma_1`, as in the paper, knows :math:`p_1 = p * \mathcal{N}(0,
\sigma_1^2)` alone. The paper does not say how it denoises at other levels. The rules on offer:

=============  ====================================================================================
`one-step`     :math:`x - \sigma_1^2 \nabla E(x)`: Tweedie at the level of training, whatever σ is
`given`        :math:`x - \sigma^2 \nabla E(x)`: the same with the true σ
`descent`      n steps of :math:`x \to x - \tfrac{\sigma_1^2}{2} \nabla E(x)`, n the nearest to
               :math:`2 (\sigma / \sigma_1)^2`, at least 2
`posterior`    for :math:`\sigma > \sigma_1`, :math:`x = y + \tau \eta` with
               :math:`\tau^2 = \sigma^2 - \sigma_1^2` and :math:`y \sim p_1`; Langevin chains of
               :math:`E(y) + \|x - y\|^2 / 2 \tau^2`, and the mean over them of Tweedie's guess
               from y. Exact as chains go on
=============  ====================================================================================

At :math:`\sigma = \sigma_1` the first two agree and are exact; `posterior` is the first there.

**Pictures** of any size are cut into tiles of the size that was trained on, which overlap by half;
the results are averaged with the weights :math:`\sin^2`. A local energy is one energy of the whole
picture, tile by tile and without seams (`fokker.images.whole`). A colour picture goes through a
grey model as three grey ones that an orthogonal matrix makes of it (`fokker.images.color`). A grey
picture, :math:`y = x_0 + \sigma \varepsilon`, is no colour picture
with three equal channels: its noise would be the same in all of them, and pass for texture. But
the mean of C independent noises of level :math:`\sqrt{C} \sigma` is one of level σ, so

.. math:: x_c = y + \sqrt{C} \sigma (z_c - \bar z), \qquad z_c \sim \mathcal{N}(0, 1),

is the grey image in C channels with independent noise of level :math:`\sqrt{C} \sigma`, and
nothing of y is lost. It is denoised at that level; the result is the mean over channels, and over
a few draws of z.

**Errors.** Over images i with pixels in [−1, 1]: the mean of the RMSE of each, and the RMSE over
all pixels at once, which is never less; PSNR with a range of 2; SSIM (Wang et al., 2004) with its
usual Gaussian window of 11 pixels. Images with a side shorter than the window have no SSIM,
`None`.
"""

__all__ = [
    "LEVELS",
    "RULES",
    "Errors",
    "denoise",
    "denoise_picture",
    "errors",
    "estimate_sigma",
    "noisy",
    "rmse",
]

import math
import torch
import torch.nn.functional as F

from collections.abc import Callable
from torch import Tensor
from typing import Any, NamedTuple

from .color import SCALES, from_parts, to_parts
from .noise import estimate_sigma
from .whole import Tiled, extend, padded
from .. import checks
from ..derivatives import gradient
from ..shapes import align

LEVELS = (0.3, 0.6, 0.9)  # the noise levels by which denoising is judged, the paper's
RULES = ("one-step", "given", "descent", "posterior")
DRAWS = 4  # of the colour of the noise in a grey picture
WINDOW = 11  # of SSIM, pixels


def noisy(clean: Tensor, sigma: float, seed: int = 0) -> Tensor:
    r"""Returns images with noise, the same for the same seed on any device."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(clean.shape, generator=generator)
    return clean + sigma * noise.to(clean.device)


def denoise(
    energy: Any,
    x: Tensor,
    sigma: Tensor | float,
    level: float | None = None,
    rule: str = "one-step",
    clip: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Returns the denoised images.

    Arguments:
        energy: The energy of every level, with a method `denoise(x, σ)`, or one of one level.
        x: The noisy images, with shape (B, C, H, W).
        sigma: The standard deviation of the noise, () or (B); finite and above zero.
        level: The level of an energy of one level.
        rule: What such an energy does, a name in `RULES`.
        clip: Whether the result is clipped to [−1, 1].
        generator: The source of randomness of `posterior`.
    """
    checks.one_of(RULES, rule=rule)
    checks.points(checks.images(x))
    sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    if sigma.shape not in {(), (len(x),)}:
        raise ValueError(f"expected sigma of shape () or ({len(x)},), got {tuple(sigma.shape)}")
    for value in (float(sigma.min()), float(sigma.max())):
        checks.positive(sigma=value)
    if hasattr(energy, "denoise"):
        out = energy.denoise(x, sigma)
    elif level is None:
        raise ValueError("expected the level that the energy was trained at, got None")
    else:
        checks.positive(level=level)
        out = by_rule(energy, x, sigma, level, rule, generator)
    return out.clamp(-1, 1) if clip else out


def by_rule(
    energy: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: Tensor,
    level: float,
    rule: str,
    generator: torch.Generator | None,
    chains: int = 2,
    steps: int = 24,
) -> Tensor:
    r"""Denoises with an energy of one level."""
    slope = lambda y: gradient(energy, y)[1].detach()
    if rule == "given":
        return x - align(sigma, x) ** 2 * slope(x)
    if rule == "descent":
        for _ in range(max(2, round(2 * (float(sigma.max()) / level) ** 2))):
            x = x - level**2 / 2 * slope(x)
        return x
    rest = float(sigma.max()) ** 2 - level**2
    if rule == "one-step" or rest <= 1e-6 * level**2:
        return x - level**2 * slope(x)
    # the step of the chain follows the narrower of the two wells
    h = 1 / (1 / level**2 + 1 / rest)
    y, total = x.repeat(chains, 1, 1, 1), torch.zeros_like(x).repeat(chains, 1, 1, 1)
    seen = y.clone()
    for k in range(steps):
        noise = torch.randn(y.shape, generator=generator, dtype=y.dtype, device=y.device)
        g = slope(y)
        if k >= steps // 2:  # the first half is left to forget the start
            total += y - level**2 * g
        y = y - h / 2 * (g + (y - seen) / rest) + math.sqrt(h) * noise
    return (total / (steps - steps // 2)).unflatten(0, (chains, len(x))).mean(0)


def denoise_picture(
    energy: Any,
    picture: Tensor,
    shape: tuple[int, ...],
    sigma: float | None = None,
    level: float | None = None,
    batch: int = 64,
    rule: str = "one-step",
    clip: bool = True,
    tile: int = 256,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Tensor, float]:
    r"""Returns a picture of any size denoised, and the noise that was assumed.

    Arguments:
        energy: The energy, see `denoise`.
        picture: The noisy picture in [−1, 1], with shape (C, H, W) and C one or three.
        shape: The shape (C, h, w) of the images that were trained on.
        sigma: The standard deviation of the noise; estimated if not given.
        level: The level of an energy of one level.
        batch: The number of tiles at a time.
        rule: What an energy of one level does, a name in `RULES`.
        clip: Whether the result is clipped to [−1, 1].
        tile: The side of a tile of a local energy.
        watch: Called with the share of the work that was done since the last call.
    """
    checks.points(checks.images(picture[None]), "the picture")
    if sigma is None:
        sigma = float(estimate_sigma(picture[None]))
        if not sigma > 0:
            raise ValueError("expected a noisy picture, got one without noise; give its sigma")
    else:
        checks.positive(sigma=sigma)
    channels, planes = shape[0], len(picture)
    if planes == 3 and channels == 1:
        parts = [
            denoise_picture(
                energy, u[None], shape, c * sigma, level, batch, rule, clip, tile,
                lambda share: watch(share / 3),
            )[0]
            for u, c in zip(to_parts(picture), SCALES, strict=True)
        ]  # fmt: skip
        out = from_parts(torch.cat(parts))
    elif planes not in {1, channels}:
        raise ValueError(f"expected a picture of 1 or {channels} channels, got {planes}")
    else:
        noise, x = sigma, picture[None]
        if planes < channels:
            z = torch.Generator().manual_seed(0)
            size = (DRAWS, channels, *picture.shape[1:])
            z = torch.randn(size, generator=z, dtype=picture.dtype).to(picture.device)
            noise = math.sqrt(channels) * sigma
            x = picture + noise * (z - z.mean(1, keepdim=True))
        if getattr(energy, "local", False):
            out = by_energy(energy, x, noise, tile, watch)
        else:
            out = by_tiles(energy, x, shape, noise, level, batch, rule, watch)
        out = out[0] if planes == channels else out.mean((0, 1))[None]
    return (out.clamp(-1, 1) if clip else out), sigma


def by_energy(
    energy: Any, x: Tensor, sigma: float, tile: int, watch: Callable[[float], None]
) -> Tensor:
    r"""Returns pictures denoised by the local energy of all of them, :math:`x - \sigma^2 \nabla
    E`."""
    checks.positive(sigma=sigma)
    h, w = x.shape[2:]
    field = Tiled(energy, tile)
    pad = padded(h, w, field)
    wide = extend(x, pad)
    count = field.count(*wide.shape[2:])
    field.watch = lambda: watch(1 / count)
    inside = (slice(pad[2], pad[2] + h), slice(pad[0], pad[0] + w))
    return x - sigma**2 * field.jet(wide, sigma)[1][:, :, *inside]


def by_tiles(
    energy: Any,
    x: Tensor,
    shape: tuple[int, ...],
    sigma: float,
    level: float | None,
    batch: int,
    rule: str,
    watch: Callable[[float], None],
) -> Tensor:
    r"""Returns pictures denoised in tiles that overlap by half, with shape (B, C, H, W)."""
    (channels, h, w), (height, width) = shape, x.shape[2:]
    # so many tiles that every pixel lies in the middle of some
    up, across = max(h // 2, 1), max(w // 2, 1)
    rows, columns = math.ceil(height / up) + 1, math.ceil(width / across) + 1
    index = lambda n, k, stride, side: reflect(torch.arange((k - 1) * stride + side) - stride, n)
    i = index(height, rows, up, h).to(x.device)
    j = index(width, columns, across, w).to(x.device)
    hat = lambda n: torch.sin(math.pi * (torch.arange(n) + 0.5) / n).square().to(x)
    window = hat(h)[:, None] * hat(w)
    total = x.new_zeros(len(x), channels, len(i), len(j))
    weight = x.new_zeros(len(i), len(j))
    generator = torch.Generator(x.device).manual_seed(0)
    some = max(1, batch // (len(x) * columns))  # rows of tiles at a time: a picture may be large
    for first in range(0, rows, some):
        count = min(some, rows - first)
        band = slice(first * up, (first + count - 1) * up + h)
        part = x[:, :, i[band]][..., j]
        tiles = part.unfold(2, h, up).unfold(3, w, across)  # (N, C, count, columns, h, w)
        flat = tiles.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels, h, w)
        done = []
        for some_tiles in flat.split(batch):
            out = denoise(energy, some_tiles, sigma, level, rule, generator=generator)
            done.append(out.detach() * window)
            watch(len(some_tiles) / (len(x) * rows * columns))
        out = torch.cat(done).reshape(len(x), count, columns, -1).permute(0, 3, 1, 2).flatten(2)
        fold = lambda out, size=part.shape[2:]: F.fold(out, size, (h, w), stride=(up, across))
        total[:, :, band] += fold(out)
        same = window.reshape(1, -1, 1).expand(1, -1, count * columns)
        weight[band] += fold(same)[0, 0]
    inside = (slice(up, up + height), slice(across, across + width))
    return total[:, :, *inside] / weight[inside]


def reflect(i: Tensor, n: int) -> Tensor:
    r"""Returns indices into n places for any integers, reflected at both ends."""
    i = i.remainder(max(2 * (n - 1), 1))
    return torch.where(i < n, i, 2 * (n - 1) - i)


class Errors(NamedTuple):
    r"""How far denoised images are from clean ones."""

    rmse_mean: float  # the mean of the RMSE of each image
    rmse_of_mean: float  # the RMSE over all pixels
    psnr: float  # in dB, the mean over images
    ssim: float | None  # the mean over images; None if a side is shorter than its window


def rmse(out: Tensor, clean: Tensor) -> Tensor:
    r"""Returns the RMSE of each image in float64, with shape (B).

    Arguments:
        out: The denoised images, with shape (B, C, H, W).
        clean: The clean ones.
    """
    if out.shape != clean.shape:
        raise ValueError(
            f"expected images of one shape, got {tuple(out.shape)} and {tuple(clean.shape)}"
        )
    return (out.double() - clean.double()).square().flatten(1).mean(1).sqrt()


def errors(out: Tensor, clean: Tensor) -> Errors:
    r"""Returns the errors of images in [−1, 1]. Arguments are those of `rmse`."""
    each = rmse(out, clean)
    mse = each.square()
    return Errors(
        float(each.mean()),
        float(mse.mean().sqrt()),
        float((10 * torch.log10(4 / mse.clamp(min=1e-12))).mean()),
        None if min(out.shape[2:]) < WINDOW else float(ssim(out.double(), clean.double()).mean()),
    )


def ssim(a: Tensor, b: Tensor) -> Tensor:
    r"""Returns the structural similarity of each pair of images with a range of 2, with shape
    (B)."""
    if min(a.shape[2:]) < WINDOW:
        raise ValueError(
            f"expected images of {WINDOW} pixels a side or more for SSIM,"
            f" got {a.shape[2]}x{a.shape[3]}"
        )
    places = torch.arange(WINDOW, dtype=a.dtype, device=a.device) - WINDOW // 2
    window = torch.exp(-places.square() / 4.5)
    window = window / window.sum()
    kernel = (window[:, None] * window).expand(a.shape[1], 1, -1, -1)
    blur = lambda x: F.conv2d(x, kernel, groups=a.shape[1])
    ma, mb = blur(a), blur(b)
    va, vb, c = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
    one, two = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    map_ = (2 * ma * mb + one) * (2 * c + two)
    map_ = map_ / ((ma**2 + mb**2 + one) * (va + vb + two))
    return map_.flatten(1).mean(1)
