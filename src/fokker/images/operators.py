r"""Linear operators: what a camera, a file or an accident has made of a picture.

A picture x is seen as :math:`y = A x + s \, n` with n standard normal. An operator gives
:math:`A x`, its adjoint, and functions of :math:`A^\top A`:

.. math:: \langle A x, y \rangle = \langle x, A^\top y \rangle, \qquad
    \mathrm{power}(x, a, b, p) = (a I + b \, B^\top B)^p \, x ,

with :math:`B = A` for all but the blur. The power is symmetric and positive definite: the
preconditioner of descent and of Langevin steps (`fokker.images.posterior`).

============  ======================================================  =========================
operator      :math:`A x`                                             :math:`\|A\|`
============  ======================================================  =========================
`Identity`    x                                                       1
`Mask`        x where the mask is one, zero elsewhere                 1
`Downscale`   the mean of each block of K×K pixels                    1 / K
`Blur`        the correlation with a kernel k of side S, where the    at most :math:`\sum |k|`
              kernel fits: S − 1 pixels fewer along each side
============  ======================================================  =========================

A `Blur` sees no pixels beyond the picture x: x has a margin of :math:`(S - 1) / 2` pixels around
y, which is unknown as any other pixel. So nothing is assumed at the borders of y. Its B is the
circular correlation on x, of which A has the rows that do not wrap around.

`Cropped` is an operator on the inside of a larger picture, whose other pixels are unknown.

JPEG is left out: it rounds coefficients, so it is not linear, and what it leaves of a picture is a
cell of possible values, not a mean with Gaussian noise.

Shapes: x :math:`(B, C, H, W)`; an observation :math:`(B, C, h, w)`.
"""

__all__ = ["Blur", "Cropped", "Downscale", "Identity", "Mask", "Operator", "gaussian_kernel"]

import abc
import math
import torch
import torch.nn.functional as F

from dataclasses import dataclass
from torch import Tensor

from .. import checks


class Operator(abc.ABC):
    r"""Abstract linear operator. Subclasses are frozen values."""

    @property
    @abc.abstractmethod
    def norm(self) -> float:
        r"""The largest singular value, or a bound."""

    @abc.abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        r"""Returns :math:`A x`, with shape :math:`(B, C, h, w)`."""

    @abc.abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        r"""Returns :math:`A^\top y`, with shape :math:`(B, C, H, W)`."""

    @abc.abstractmethod
    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        r"""Returns :math:`(a I + b \, B^\top B)^p \, x`, for :math:`a > 0`, :math:`b \geq 0`."""

    @abc.abstractmethod
    def domain(self, h: int, w: int) -> tuple[int, int]:
        r"""Returns the height and the width of the picture of an observation of h×w pixels."""

    @abc.abstractmethod
    def back(self, y: Tensor) -> Tensor:
        r"""Returns a first guess of the picture of an observation, to start from."""

    def seen_of(self, y: Tensor) -> Tensor:
        r"""Returns an observation without what the operator hides: all of it, but of a mask."""
        return y


@dataclass(frozen=True)
class Identity(Operator):
    r"""Creates the operator that leaves a picture as it is: denoising."""

    @property
    def norm(self) -> float:
        return 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        return y

    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        return (a + b) ** p * x

    def domain(self, h: int, w: int) -> tuple[int, int]:
        return h, w

    def back(self, y: Tensor) -> Tensor:
        return y


@dataclass(frozen=True, eq=False)
class Mask(Operator):
    r"""Creates the operator that shows some pixels: inpainting.

    Arguments:
        seen: One where a pixel is seen and zero where it is not, with shape :math:`(H, W)`.
    """

    seen: Tensor

    def __post_init__(self) -> None:
        seen = self.seen
        if seen.ndim != 2 or not ((seen == 0) | (seen == 1)).all() or not (seen == 1).any():
            raise ValueError(
                f"expected a mask of shape (H, W) of zeros and ones, with a one, got shape"
                f" {tuple(seen.shape)} with values from {float(seen.min()):g} to"
                f" {float(seen.max()):g}"
            )

    @property
    def norm(self) -> float:
        return 1.0

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[2:] != self.seen.shape:
            got, expected = tuple(x.shape[2:]), tuple(self.seen.shape)
            raise ValueError(f"expected a picture of the size of the mask, {expected}, got {got}")
        return x * self.seen.to(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self(y)

    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        return (a + b * self.seen.to(x)) ** p * x

    def domain(self, h: int, w: int) -> tuple[int, int]:
        if (h, w) != tuple(self.seen.shape):
            expected = tuple(self.seen.shape)
            raise ValueError(f"expected a picture of the size of the mask, {expected}, got {h, w}")
        return h, w

    def seen_of(self, y: Tensor) -> Tensor:
        return self(y)

    def back(self, y: Tensor) -> Tensor:
        r"""Fills hidden pixels by the mean of seen neighbors, weighted by a Gaussian that is
        widened until it reaches all."""
        seen = self.seen.to(y)[None, None].expand(1, 1, -1, -1)
        out, known = y * seen, seen.clone()
        for sigma in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
            if (known > 0).all():
                break
            weight = smooth(seen, sigma)
            guess = smooth(y * seen, sigma) / weight.clamp_min(1e-30)
            fill = (known == 0) & (weight > 1e-3)
            out, known = torch.where(fill, guess, out), torch.where(fill, 1.0, known)
        mean = (y * seen).sum((2, 3), keepdim=True) / seen.sum()
        return torch.where(known > 0, out, mean)


@dataclass(frozen=True)
class Downscale(Operator):
    r"""Creates the operator that averages blocks of pixels: super-resolution.

    Arguments:
        factor: The side K of a block, 2 or more.
    """

    factor: int

    def __post_init__(self) -> None:
        checks.at_least(2, factor=self.factor)

    @property
    def norm(self) -> float:
        return 1 / self.factor

    def __call__(self, x: Tensor) -> Tensor:
        checks.images(x, multiple=self.factor)
        return F.avg_pool2d(x, self.factor)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.back(y) / self.factor**2

    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        mean = self.back(self(x))
        return a**p * (x - mean) + (a + b / self.factor**2) ** p * mean

    def domain(self, h: int, w: int) -> tuple[int, int]:
        return h * self.factor, w * self.factor

    def back(self, y: Tensor) -> Tensor:
        k = self.factor
        return y.repeat_interleave(k, 2).repeat_interleave(k, 3)


@dataclass(frozen=True, eq=False)
class Blur(Operator):
    r"""Creates the operator that blurs: deconvolution.

    Arguments:
        kernel: The kernel k, with shape :math:`(S, S)` and S odd.
    """

    kernel: Tensor

    def __post_init__(self) -> None:
        k = self.kernel
        if k.ndim != 2 or k.shape[0] != k.shape[1] or k.shape[0] % 2 == 0:
            raise ValueError(f"expected a square kernel of odd side, got shape {tuple(k.shape)}")
        if not (torch.isfinite(k).all() and float(k.abs().sum()) > 0):
            raise ValueError("expected a kernel of finite numbers that are not all zero")

    @property
    def norm(self) -> float:
        return float(self.kernel.abs().sum())

    @property
    def margin(self) -> int:
        r"""The number of pixels of x beyond y on each side."""
        return self.kernel.shape[0] // 2

    def weight(self, x: Tensor) -> Tensor:
        return self.kernel.to(x)[None, None].expand(x.shape[1], 1, -1, -1)

    def __call__(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < self.kernel.shape[0]:
            raise ValueError(
                f"expected a picture of {self.kernel.shape[0]} pixels a side or more, the side of"
                f" the kernel, got {x.shape[2]}x{x.shape[3]}"
            )
        return F.conv2d(x, self.weight(x), groups=x.shape[1])

    def adjoint(self, y: Tensor) -> Tensor:
        return F.conv_transpose2d(y, self.weight(y), groups=y.shape[1])

    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        h, w = x.shape[2:]
        k = x.new_zeros(h, w)
        s = self.kernel.shape[0]
        k[:s, :s] = self.kernel.to(x)
        gain = torch.fft.rfft2(k).abs().square()
        return torch.fft.irfft2((a + b * gain) ** p * torch.fft.rfft2(x), s=(h, w))

    def domain(self, h: int, w: int) -> tuple[int, int]:
        return h + 2 * self.margin, w + 2 * self.margin

    def back(self, y: Tensor) -> Tensor:
        m = self.margin
        return F.pad(y, (m, m, m, m), mode="replicate") / float(self.kernel.sum() or 1.0)


@dataclass(frozen=True, eq=False)
class Cropped(Operator):
    r"""Creates an operator that sees the inside of a larger picture.

    Arguments:
        inner: The operator.
        pad: The number of pixels left, right, above and below that it does not see.
    """

    inner: Operator
    pad: tuple[int, int, int, int]

    @property
    def norm(self) -> float:
        return self.inner.norm

    def crop(self, x: Tensor) -> Tensor:
        r"""Returns the inside of a picture."""
        left, right, top, bottom = self.pad
        return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(self.crop(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return F.pad(self.inner.adjoint(y), self.pad)

    def power(self, x: Tensor, a: float, b: float, p: float) -> Tensor:
        inside = self.crop(x)
        return a**p * x + F.pad(self.inner.power(inside, a, b, p) - a**p * inside, self.pad)

    def domain(self, h: int, w: int) -> tuple[int, int]:
        left, right, top, bottom = self.pad
        height, width = self.inner.domain(h, w)
        return height + top + bottom, width + left + right

    def back(self, y: Tensor) -> Tensor:
        return F.pad(self.inner.back(y), self.pad, mode="replicate")


def gaussian_kernel(sigma: float) -> Tensor:
    r"""Returns a Gaussian kernel of standard deviation `sigma` pixels, cut at 3 of them and of
    sum one, in float64."""
    checks.positive(sigma=sigma)
    checks.between(0.05, 100, sigma=sigma)
    places = torch.arange(-math.ceil(3 * sigma), math.ceil(3 * sigma) + 1, dtype=torch.float64)
    k = torch.exp(-places.square() / (2 * sigma**2))
    return torch.outer(k, k) / k.sum() ** 2


def smooth(x: Tensor, sigma: float) -> Tensor:
    r"""Returns the convolution with a Gaussian, with zeros beyond the picture."""
    k = gaussian_kernel(sigma).to(x).sum(0)
    k, m, c = k / k.sum(), len(k) // 2, x.shape[1]
    rows = F.conv2d(x, k.reshape(1, 1, -1, 1).expand(c, 1, -1, 1), padding=(m, 0), groups=c)
    return F.conv2d(rows, k.reshape(1, 1, 1, -1).expand(c, 1, 1, -1), padding=(0, m), groups=c)
