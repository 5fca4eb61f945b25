r"""Noise-conditional U-Net energies, preconditioned.

Images x are data plus noise of standard deviation :math:`\sigma`; the data has standard deviation
:math:`\sigma_d`. With :math:`u = x / \sqrt{\sigma^2 + \sigma_d^2}`, which has unit variance, and a
scalar :math:`g(u, \sigma)` made by the network, the energy is

.. math::
    E(x, \sigma) = \frac{\|x\|^2}{2 (\sigma^2 + \sigma_d^2)}
    + \tfrac{D}{2} \log 2 \pi (\sigma^2 + \sigma_d^2) - \frac{\sigma_d}{\sigma} \, g(u, \sigma) .

The first two terms are :math:`-\log p` of the noisy data were it Gaussian; the second of them is
no more than a constant at each level, and makes levels comparable (the time score of `LevelDCD`).
By Tweedie's formula the denoiser is

.. math::
    D(x, \sigma) = x - \sigma^2 \nabla E
    = \frac{\sigma_d^2}{\sigma^2 + \sigma_d^2} \, x
    + \frac{\sigma \sigma_d}{\sqrt{\sigma^2 + \sigma_d^2}} \, \nabla_u g(u, \sigma) :

EDM's preconditioning, with :math:`\nabla_u g` for its network F. The scalar has one of four forms,
with U the U-Net, from images to images, and h the features at the positions i of its lowest level:

==========  ================================================  ====================================
`inner`     :math:`g = \langle u, U(u, \sigma) \rangle`       zero at the start
`square`    :math:`g = \tfrac{1}{2} \|U(u, \sigma)\|^2`
`pool`      :math:`g = w \cdot \mathrm{mean}_i \phi(N(h_i))`   the encoder alone; zero at the start
`sum`       :math:`g = w \cdot \sum_i \phi(N(h_i))`            the same, and grows with the image
==========  ================================================  ====================================

One of the last two is the paper's, which does not say how its features are pooled, with its
additional SiLU :math:`\phi` before the last pooling. With `fold` n the U-Net works on blocks of
n×n pixels: each block becomes one pixel of :math:`n^2 C` channels before the first convolution,
and the channels of the last one become pixels again. The first level then has 1 / n of the side of
the image. With `classes` the network is also told the class of an image, or that it is not known
(`fokker.samplers.classes`). A `local` U-Net has no attention, and its inner product is a sum of
local energies,

.. math:: E(x, \sigma) = \sum_i e_i, \qquad e_i = \frac{|x_i|^2}{2 (\sigma^2 + \sigma_d^2)}
    + \tfrac{C}{2} \log 2 \pi (\sigma^2 + \sigma_d^2) - \frac{\sigma_d}{\sigma} \, u_i \cdot U_i ,

each of which sees the pixels at most `reach` away from pixel i (`fokker.images.whole`).

The U-Net is that of DDPM++ except for what is costly to differentiate twice. A
normalization divides each pixel by the root mean square of its channels: elementwise but for a sum
over the axis that is contiguous in memory, so that a compiler fuses it with the activation behind
it. A block is

.. math:: h \to s(h) + W_2 * \phi(a \odot N(W_1 * \phi(N(h))) + b), \qquad \phi = \text{SiLU},

with (a, b) an affine function of the embedding of :math:`\log \sigma`. :math:`W_2` starts at zero,
and so does the last map of an attention: at the start every branch is silent, and no residual sum
needs scaling.

References:
    | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
    | https://arxiv.org/abs/2206.00364
    | Should EBMs model the energy or the score? (Salimans et al., 2021)
"""

__all__ = ["UNetDenoiser", "UNetEnergy"]

import math
import torch
import torch.nn.functional as F

from collections.abc import Callable, Sequence
from torch import Tensor, nn
from typing import Any, Self

from .convolution import DTYPES, Conv2d, Linear, Precise
from .normalization import normalize, wide
from .. import checks
from ..derivatives import gradient
from ..energies import Denoiser, Energy
from ..shapes import align, dimension, dot

FORMS = ("inner", "square", "pool", "sum")
ENCODER = ("pool", "sum")  # forms without a decoder


def halve(h: Tensor) -> Tensor:
    r"""Averages 2×2 pixels, in the memory order channels last."""
    b, c, y, x = h.shape
    h = h.permute(0, 2, 3, 1).reshape(b, y // 2, 2, x // 2, 2, c)
    return h.mean((2, 4)).permute(0, 3, 1, 2)


def double(h: Tensor) -> Tensor:
    r"""Repeats each pixel as 2×2, in the memory order channels last."""
    b, c, y, x = h.shape
    h = h.permute(0, 2, 3, 1)[:, :, None, :, None].expand(b, y, 2, x, 2, c)
    return h.reshape(b, 2 * y, 2 * x, c).permute(0, 3, 1, 2)


def fold_pixels(x: Tensor, n: int) -> Tensor:
    r"""Returns images with blocks of n×n pixels as channels, in the memory order channels last.

    Channel :math:`(i n + j) C + c` at a position holds channel c of row i, column j of its block.

    Arguments:
        x: The images, (B, C, n H, n W).
        n: The side of a block.

    Returns:
        The folded images, (B, n n C, H, W).
    """
    b, c, y, w = x.shape
    x = x.permute(0, 2, 3, 1).reshape(b, y // n, n, w // n, n, c).transpose(2, 3)
    return x.reshape(b, y // n, w // n, n * n * c).permute(0, 3, 1, 2)


def unfold_pixels(h: Tensor, n: int) -> Tensor:
    r"""Returns (B, n n C, H, W) as images (B, C, n H, n W): the inverse of `fold_pixels`."""
    b, c, y, w = h.shape
    h = h.permute(0, 2, 3, 1).reshape(b, y, w, n, n, c // (n * n)).transpose(2, 3)
    return h.reshape(b, n * y, n * w, c // (n * n)).permute(0, 3, 1, 2)


class Embedding(nn.Module):
    r"""Creates features of the noise level and the class, (B) to (B, features).

    Cosines and sines of :math:`\omega \log(\sigma) / 4`, with :math:`\omega` from 1 to 100, go
    through two linear layers. Between them what else is told of an image, (B, told), is added by
    a table that is zero at the start.

    Arguments:
        frequencies: The number of frequencies.
        features: The number of features.
        told: The number of numbers that are told; without a table if zero.
    """

    def __init__(self, frequencies: int, features: int, told: int = 0) -> None:
        super().__init__()
        if told:
            self.table = nn.Parameter(torch.zeros(told, features))
        self.frequencies = frequencies
        self.first = Linear(2 * frequencies, features, math.sqrt(2))
        self.second = Linear(features, features, math.sqrt(2))

    def forward(self, sigma: Tensor, told: Tensor | None = None) -> Tensor:
        omega = torch.logspace(0, 2, self.frequencies, dtype=sigma.dtype, device=sigma.device)
        phase = torch.log(sigma)[:, None] / 4 * omega
        h = torch.cat([torch.cos(phase), torch.sin(phase)], dim=1)
        h = F.silu(self.first(h))
        if told is not None:
            h = h + told.to(h.dtype) @ self.table.to(h.dtype)
        return F.silu(self.second(h))


class Block(nn.Module):
    r"""Creates a residual block of two convolutions, told of the noise between them.

    Arguments:
        channels: The number of channels in.
        out: The number of channels out.
        features: The number of features of the noise level.
    """

    def __init__(self, channels: int, out: int, features: int) -> None:
        super().__init__()
        self.first = Conv2d(channels, out, 3)
        self.affine = Linear(features, 2 * out, 0.0)
        self.second = Conv2d(out, out, 3, gain=0.0)
        self.shortcut = nn.Identity() if channels == out else Conv2d(channels, out, 1)

    def forward(self, h: Tensor, features: Tensor) -> Tensor:
        a, b = self.affine(features)[:, :, None, None].chunk(2, dim=1)
        branch = self.first(F.silu(normalize(h)).to(h.dtype))
        branch = F.silu((1 + a) * normalize(branch) + b).to(h.dtype)
        return self.shortcut(h) + self.second(branch)


class Attention(nn.Module):
    r"""Creates self-attention between pixels, with normalized queries and keys.

    Arguments:
        channels: The number of channels, a multiple of `head`.
        head: The number of channels a head.
        fused: Whether one kernel does it all: faster, but differentiable once only.
    """

    def __init__(self, channels: int, head: int, fused: bool) -> None:
        super().__init__()
        self.head, self.fused = head, fused
        self.inward = Linear(channels, 3 * channels)
        self.outward = Linear(channels, channels, 0.0)

    def forward(self, h: Tensor) -> Tensor:
        tokens = h.permute(0, 2, 3, 1).flatten(1, 2)  # (B, positions, channels)
        tokens = normalize(tokens, 2).to(h.dtype)
        # three products: the gradient of one, cut in three, is a slow stack
        parameters = (p.to(h.dtype).chunk(3) for p in (self.inward.weight, self.inward.bias))
        parts = (F.linear(tokens, w, b) for w, b in zip(*parameters, strict=True))
        # (B, heads, positions, head)
        q, k, v = (part.unflatten(2, (-1, self.head)).transpose(1, 2) for part in parts)
        q, k = normalize(q, 3).to(h.dtype), normalize(k, 3).to(h.dtype)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(2, 3)).to(wide(h.dtype)) / math.sqrt(self.head)
            mixed = torch.softmax(weights, dim=3).to(h.dtype) @ v
        out = self.outward(mixed.transpose(1, 2).flatten(2))
        return h + out.unflatten(1, h.shape[2:]).permute(0, 3, 1, 2)


class Stage(nn.Module):
    r"""Creates a residual block, and attention after it if `attention` is given."""

    def __init__(self, block: Block, attention: Attention | None) -> None:
        super().__init__()
        self.block, self.attention = block, attention

    def forward(self, h: Tensor, features: Tensor) -> Tensor:
        h = self.block(h, features)
        return h if self.attention is None else self.attention(h)


class Resample(nn.Module):
    r"""Creates a change of resolution, `halve` or `double`, with a convolution behind it."""

    def __init__(self, channels: int, resize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.resize = resize
        self.convolution = Conv2d(channels, channels, 3)

    def forward(self, h: Tensor, features: Tensor) -> Tensor:
        return self.convolution(self.resize(h))


class UNetEnergy(Precise, Energy):
    r"""Creates the noise-conditional energy :math:`E(x, \sigma)` of images.

    Its sides must be multiples of :math:`n 2^{L - 1}` with L levels and blocks of n×n pixels
    folded: of 4 by default. The default has 15.6 million parameters, and level 1 of a 32×32 image
    is 16×16.

    Arguments:
        channels: The number of channels of an image.
        width: The number of channels of the first level.
        multipliers: The number of channels of each level, as a multiple of `width`.
        blocks: The number of residual blocks per level in the encoder; one more in the decoder.
        attention: The levels with attention after each block, counted from 0; the middle has it
            too.
        head: The number of channels per attention head.
        heads: The number of heads of every attention, whatever its channels; by `head` if not
            given.
        local: Whether there is no attention at all, in the middle neither.
        fold: The side n of the blocks of pixels that are folded into channels; 1 for none.
        classes: The number of classes that the energy :math:`E(x, \sigma, c)` is told; none if
            zero.
        moves: The number of parameters of an augmentation that it is told
            (`fokker.data.augment`); none if zero.
        form: The form of the scalar g: inner, square, pool or sum.
        sigma_data: The standard deviation :math:`\sigma_d` of the data.
        fused: Whether attention runs as one kernel, which can be differentiated once only: enough
            for samples and energies, not for the gradient of a loss in the score.
        dtype: A name in `DTYPES`, for the layers; norms, softmax and energies run in float32 at
            least.

    Example:
        >>> energy = UNetEnergy()
        >>> x = torch.randn(8, 3, 32, 32)
        >>> energy(x, torch.tensor(0.5)).shape, energy.at(0.5)(x).shape
        (torch.Size([8]), torch.Size([8]))
    """

    def __init__(
        self,
        channels: int = 3,
        width: int = 96,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (1,),
        head: int = 64,
        form: str = "inner",
        sigma_data: float = 0.5,
        fused: bool = False,
        dtype: str = "float32",
        fold: int = 1,
        heads: int | None = None,
        classes: int = 0,
        moves: int = 0,
        local: bool = False,
    ) -> None:
        super().__init__()
        checks.at_least(0, classes=classes, moves=moves)
        checks.positive_integer(channels=channels, width=width, blocks=blocks, head=head)
        checks.positive_integer(fold=fold)
        if local and attention:
            raise ValueError(f"expected no attention of a local network, got it at {attention}")
        if heads is not None:
            checks.positive_integer(heads=heads)
        checks.positive_integer(**{f"multipliers[{i}]": m for i, m in enumerate(multipliers)})
        checks.one_of(FORMS, form=form)
        checks.positive(sigma_data=sigma_data)
        checks.one_of(tuple(DTYPES), dtype=dtype)
        levels, widths = len(multipliers), [m * width for m in multipliers]
        if not levels or not all(level in range(levels) for level in attention):
            raise ValueError(
                f"expected attention at levels 0 to {levels - 1}, one a multiplier, got"
                f" {attention}"
            )
        for c in () if local else (*(widths[level] for level in attention), widths[-1]):
            if heads is None and c % head:
                raise ValueError(f"expected heads that divide {c} channels, got head {head}")
            if heads is not None and c % heads:
                raise ValueError(f"expected heads that divide {c} channels, got {heads} heads")
        self.channels, self.form, self.sigma_data = channels, form, sigma_data
        self.classes, self.moves = classes, moves
        self.dtype, self.fold, self.multiple = DTYPES[dtype], fold, fold * 2 ** (levels - 1)
        self.local, self.depth = local, (levels, blocks)
        features, folded = 4 * width, channels * fold**2

        def stage(channels: int, out: int, attend: bool) -> Stage:
            block = Block(channels, out, features)
            count = head if heads is None else out // heads
            return Stage(block, Attention(out, count, fused) if attend else None)

        self.embedding = Embedding(width // 2, features, classes + (classes > 0) + moves)
        self.stem = Conv2d(folded, width, 3)
        self.encoder, c, skips = nn.ModuleList(), width, [width]
        for level, out in enumerate(widths):
            if level:
                self.encoder.append(Resample(c, halve))
                skips.append(c)
            for _ in range(blocks):
                self.encoder.append(stage(c, out, level in attention))
                skips.append(c := out)
        self.middle = nn.ModuleList([stage(c, c, not local), stage(c, c, False)])
        if form in ENCODER:
            self.head = Linear(c, 1, 0.0)
            return
        self.decoder = nn.ModuleList()
        for level, out in reversed([*enumerate(widths)]):
            for _ in range(blocks + 1):
                self.decoder.append(stage(c + skips.pop(), out, level in attention))
                c = out
            if level:
                self.decoder.append(Resample(c, double))
        self.head = Conv2d(c, folded, 3, gain=1.0 if form == "square" else 0.0)

    @property
    def hidden(self) -> list[nn.Parameter]:
        r"""The kernels and matrices between features: without the stem, the head, and what tells
        the level. Those of the queries, keys and values of an attention are one."""
        apart = {self.stem, self.head, *self.embedding.children()}
        apart |= {m.affine for m in self.modules() if isinstance(m, Block)}
        layers = [m for m in self.modules() if isinstance(m, Conv2d | Linear) and m not in apart]
        return [p for layer in layers for p in layer.parameters() if p.ndim > 1]

    def forward(
        self, x: Tensor, sigma: Tensor | float, label: Tensor | int | None = None
    ) -> Tensor:
        r"""Returns :math:`E(x, \sigma)`, or :math:`E(x, \sigma, c)` of classes () or (B), or of
        all that is told of each image (`told`)."""
        x, sigma = self.check(x, sigma)
        label = self.told(label, x)
        variance = sigma.square() + self.sigma_data**2
        g = self.scalar(x / align(variance.sqrt(), x), sigma, label)
        constant = dimension(x) / 2 * torch.log(2 * math.pi * variance)
        return dot(x, x) / (2 * variance) + constant - self.sigma_data / sigma * g

    def denoise(
        self, x: Tensor, sigma: Tensor | float, label: Tensor | int | None = None
    ) -> Tensor:
        r"""Returns the mean :math:`D(x, \sigma)` of the clean image given the noisy one, and its
        class if it is told."""
        x, sigma = self.check(x, sigma)
        label = self.told(label, x)
        root = (sigma.square() + self.sigma_data**2).sqrt()
        _, slope = gradient(lambda u: self.scalar(u, sigma, label), x / align(root, x))
        skip, out = (self.sigma_data / root) ** 2, sigma * self.sigma_data / root
        return align(skip, x) * x + align(out, x) * slope

    def density(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        r"""Returns the local energies :math:`e_i` of a local network with an inner product, with
        shape (B, H, W); their sum is the energy."""
        self.check_local()
        x, sigma = self.check(x, sigma)
        variance = align((sigma.square() + self.sigma_data**2), x)
        u = x / variance.sqrt()
        products = (u * self.field(u, sigma)).sum(1)
        quadratic = (x.square() / (2 * variance) + torch.log(2 * math.pi * variance) / 2).sum(1)
        return quadratic - self.sigma_data / align(sigma, products) * products

    @property
    def reach(self) -> int:
        r"""How many pixels around its own a local energy sees, at most."""
        self.check_local()
        levels, blocks = self.depth
        # 3×3 kernels on the way down and up again, each one pixel of its level to all sides
        kernels = [4 * blocks + 2 + 2 * (level > 0) + 2 * (level == 0) for level in range(levels)]
        kernels[-1] += 4  # the middle
        pixels = sum(n * self.fold * 2**level for level, n in enumerate(kernels))
        return pixels + self.multiple - 1  # blocks of pixels are seen whole

    def check_local(self) -> None:
        if not self.local or self.form != "inner":
            kind = "local" if self.local else "not local"
            raise ValueError(
                f"expected a local network with an inner product, got one {kind} of form"
                f" {self.form}"
            )

    def scalar(self, u: Tensor, sigma: Tensor, label: Tensor | None = None) -> Tensor:
        r"""Returns :math:`g(u, \sigma)`, with shape (B)."""
        h = self.field(u, sigma, label)
        if self.form in ENCODER:
            h = F.silu(normalize(h))
            return self.head(h.mean((2, 3)) if self.form == "pool" else h.sum((2, 3))).squeeze(1)
        return dot(u, h) if self.form == "inner" else dot(h, h) / 2

    def field(self, u: Tensor, sigma: Tensor, label: Tensor | None = None) -> Tensor:
        r"""Returns the images :math:`U(u, \sigma)`; of `pool` and `sum`, the features of the
        lowest level."""
        features = self.embedding(sigma.reshape(-1).to(wide(self.dtype)), label)
        h = u.to(self.dtype, memory_format=torch.channels_last)
        h = self.stem(h if self.fold == 1 else fold_pixels(h, self.fold))
        skips = [h]
        for step in self.encoder:
            skips.append(h := step(h, features))
        for step in self.middle:
            h = step(h, features)
        if self.form in ENCODER:
            return h
        for step in self.decoder:
            h = step(torch.cat([h, skips.pop()], 1) if isinstance(step, Stage) else h, features)
        h = self.head(F.silu(normalize(h)).to(h.dtype)).to(u.dtype)
        return h if self.fold == 1 else unfold_pixels(h, self.fold)

    def told(self, label: Tensor | int | None, x: Tensor) -> Tensor | None:
        r"""Returns what the network is told of each image, (B or 1, K + 1 + M): which of the K
        classes it has, or none, and the M parameters of its augmentation, zero if they are not
        given; `None` of a network that is told nothing.

        Arguments:
            label: The classes, () or (B); or all of this, (B, K + 1 + M).
            x: The images.
        """
        rows = self.classes + (self.classes > 0)
        width = rows + self.moves
        if not width:
            if label is not None:
                raise ValueError("expected no class for a network that knows none, got some")
            return None
        if isinstance(label, Tensor) and label.ndim == 2:
            if label.shape != (len(x), width):
                raise ValueError(f"expected ({len(x)}, {width}) to be told, got {label.shape}")
            return label
        if label is not None and not self.classes:
            raise ValueError("expected no class for a network that knows none, got some")
        label = self.classes if label is None else label
        label = torch.as_tensor(label, dtype=torch.long, device=x.device)
        if label.shape not in {(), x.shape[:1]}:
            raise ValueError(
                f"expected classes of shape () or ({len(x)},), got {tuple(label.shape)}"
            )
        place = torch.arange(width, device=x.device)
        return ((label.reshape(-1, 1) == place) & (place < rows)).to(x.dtype)

    def check(self, x: Tensor, sigma: Tensor | float) -> tuple[Tensor, Tensor]:
        checks.images(x, self.channels, self.multiple)
        if not isinstance(sigma, Tensor):
            checks.positive(sigma=sigma)
        x = x.to(wide(x.dtype))
        sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
        if sigma.shape not in {(), x.shape[:1]}:
            raise ValueError(
                f"expected sigma of shape () or ({len(x)},), got {tuple(sigma.shape)}"
            )
        return x, sigma


class UNetDenoiser(Precise, Denoiser):
    r"""Creates the denoiser that has :math:`U(u, \sigma)` itself where the energy has a gradient.

    .. math::
        D(x, \sigma) = \frac{\sigma_d^2}{\sigma^2 + \sigma_d^2} \, x
        + \frac{\sigma \sigma_d}{\sqrt{\sigma^2 + \sigma_d^2}} \, U(u, \sigma)

    It is EDM's: a vector field that need not be a gradient. Its error bounds that of an energy of
    the same network from below.

    Arguments:
        channels: The number of channels of an image.
        width: The number of channels of the first level.
        options: The other arguments of `UNetEnergy`, without its form.
    """

    def __init__(self, channels: int = 3, width: int = 96, **options: Any) -> None:
        super().__init__()
        self.unet = UNetEnergy(channels, width, form="inner", **options)
        self.dtype = self.unet.dtype

    @property
    def hidden(self) -> list[nn.Parameter]:
        r"""Those of the U-Net, see `UNetEnergy`."""
        return self.unet.hidden

    def denoise(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        r"""Returns the mean :math:`D(x, \sigma)` of the clean image given the noisy one."""
        x, sigma = self.unet.check(x, sigma)
        sigma_data = self.unet.sigma_data
        root = (sigma.square() + sigma_data**2).sqrt()
        field = self.unet.field(x / align(root, x), sigma)
        return align((sigma_data / root) ** 2, x) * x + align(sigma * sigma_data / root, x) * field

    def cast(self, dtype: str) -> Self:
        other = super().cast(dtype)
        other._modules = {"unet": self.unet.cast(dtype)}
        return other
