r"""Energies of whole pictures, from energies of parts of them.

**A local energy** (`UNetEnergy` with `local`) is a sum over pixels, :math:`E(x) = \sum_i e_i(x)`,
and :math:`e_i` sees the pixels at most R away. So for any partition of the pixels into tiles T,

.. math:: E(x) = \sum_T E_T(x), \qquad E_T(x) = \sum_{i \in T} e_i(x), \qquad
    \nabla E(x) = \sum_T \nabla E_T(x) ,

exactly, where :math:`E_T` needs the tile and a margin of R pixels alone. The energy of a picture
is one energy, whatever the tiles, and so are its gradient and its denoiser: there are no seams, as
nothing is blended. Memory is that of one tile with its margin (`Tiled`).

**An energy of small images** of p×p pixels becomes one of a picture whose sides are multiples of
p, the mean over S shifts of the sum over tiles,

.. math:: E(x) = \frac{1}{S} \sum_s \sum_T \epsilon(P_T \, x^{(s)}) ,

with :math:`x^{(s)}` the picture rolled by s, zero and half a tile along both axes. Each pixel lies
in S tiles, so a sum of independent pixels is counted once. It is one energy again, a product of
experts. Where the picture wraps around, unrelated pixels meet: there the picture needs a margin of
pixels that are nobody's (`Shifted`).

Both are fields (`fokker.samplers.Field`) of a picture :math:`(B, C, H, W)`.
"""

__all__ = ["Shifted", "Tiled", "padded", "whole"]

import math
import torch
import torch.nn.functional as F

from collections.abc import Callable, Iterator
from torch import Tensor
from typing import Any

from .. import checks
from ..derivatives import gradient
from ..samplers import Field
from ..shapes import constant

Slices = tuple[slice, slice]


class Tiled(Field):
    r"""Creates the field of a local energy, tile by tile.

    Arguments:
        energy: The local energy, with `density(x, σ)`, `reach` and `multiple`.
        tile: The side of a tile without its margin, in pixels.
        watch: Called before each evaluation of a tile.
    """

    margin = 0  # pixels that a picture needs around it

    def __init__(
        self, energy: Any, tile: int = 256, watch: Callable[[], None] = lambda: None
    ) -> None:
        if not hasattr(energy, "density"):
            raise ValueError(f"expected a local energy, with density(x, sigma), got {energy!r}")
        self.multiple = energy.multiple
        checks.positive_integer(tile=tile)
        if tile % self.multiple:
            raise ValueError(f"expected tiles of a multiple of {self.multiple} pixels, got {tile}")
        self.local, self.tile = energy, tile
        self.halo = -(-energy.reach // self.multiple) * self.multiple
        super().__init__(self.total, watch)

    def tiles(self, h: int, w: int) -> Iterator[tuple[Slices, Slices]]:
        r"""Yields each tile with its margin, as slices of the picture, and the tile without it, as
        slices of that."""
        parts = []
        for side in (h, w):
            starts = range(0, side, self.tile)
            spans = [(max(0, a - self.halo), min(side, a + self.tile + self.halo)) for a in starts]
            parts.append([
                (slice(low, high), slice(a - low, min(side, a + self.tile) - low))
                for a, (low, high) in zip(starts, spans, strict=True)
            ])
        for rows, inner_rows in parts[0]:
            for columns, inner_columns in parts[1]:
                yield (rows, columns), (inner_rows, inner_columns)

    def count(self, h: int, w: int) -> int:
        r"""Returns the number of evaluations of a tile that one of a picture takes."""
        return math.ceil(h / self.tile) * math.ceil(w / self.tile)

    def part(self, x: Tensor, sigma: Tensor, inner: Slices) -> Tensor:
        r"""Returns the energy of a tile, with shape :math:`(B)`."""
        self.watch()
        return self.local.density(x, sigma)[:, *inner].sum((1, 2))

    def total(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`E(x, \sigma)`, with shape :math:`(B)`, without a graph."""
        with torch.no_grad():
            return sum(
                (self.part(x[:, :, *outer], sigma, inner)
                 for outer, inner in self.tiles(*x.shape[2:])),
                start=x.new_zeros(len(x)),
            )  # fmt: skip

    def jet(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        level = constant(sigma, x)
        total, slope = x.new_zeros(len(x)), torch.zeros_like(x)
        for outer, inner in self.tiles(*x.shape[2:]):
            part = lambda p, inner=inner: self.part(p, level, inner)
            e, g = gradient(part, x[:, :, *outer].detach())
            total = total + e.detach()
            slope[:, :, *outer] += g.detach()
        return total, slope

    def slope(self, x: Tensor, sigma: float) -> Tensor:
        return sigma * self.jet(x, sigma)[1]


class Shifted(Field):
    r"""Creates the field of a picture from an energy of small images.

    Arguments:
        energy: The energy of images, E(x, σ).
        side: The side p of an image.
        batch: The number of tiles at a time.
        watch: Called before each evaluation of a batch of tiles.
    """

    def __init__(
        self,
        energy: Any,
        side: int,
        batch: int = 16,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        checks.at_least(2, side=side)
        checks.positive_integer(batch=batch)
        self.small, self.side, self.batch = energy, side, batch
        self.multiple = self.margin = side
        self.shifts = (0, side // 2)
        super().__init__(self.total, watch)

    def count(self, h: int, w: int) -> int:
        r"""Returns the number of evaluations of a batch that one of a picture takes."""
        return len(self.shifts) * math.ceil(h * w / self.side**2 / self.batch)

    def cut(self, x: Tensor, shift: int) -> Tensor:
        r"""Returns the tiles of rolled pictures, with shape :math:`(N, C, p, p)`."""
        checks.images(x, multiple=self.side)
        p, (b, c, h, w) = self.side, x.shape
        rolled = x.roll((-shift, -shift), (2, 3)).reshape(b, c, h // p, p, w // p, p)
        return rolled.permute(0, 2, 4, 1, 3, 5).reshape(-1, c, p, p)

    def join(self, tiles: Tensor, like: Tensor, shift: int) -> Tensor:
        r"""Returns the pictures whose tiles these are: the inverse of `cut`."""
        p, (b, c, h, w) = self.side, like.shape
        x = tiles.reshape(b, h // p, w // p, c, p, p).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(like.shape).roll((shift, shift), (2, 3))

    def total(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`E(x, \sigma)`, with shape :math:`(B)`, without a graph."""
        total = x.new_zeros(len(x))
        with torch.no_grad():
            for shift in self.shifts:
                for_each = []
                for tiles in self.cut(x, shift).split(self.batch):
                    self.watch()
                    for_each.append(self.small(tiles, sigma))
                total = total + torch.cat(for_each).reshape(len(x), -1).sum(1)
        return total / len(self.shifts)

    def jet(self, x: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        level, count = constant(sigma, x), len(self.shifts)
        total, slope = x.new_zeros(len(x)), torch.zeros_like(x)
        for shift in self.shifts:
            parts = []
            for tiles in self.cut(x.detach(), shift).split(self.batch):
                self.watch()
                parts.append(gradient(lambda p: self.small(p, level), tiles))
            energies, slopes = (torch.cat(column).detach() for column in zip(*parts, strict=True))
            total = total + energies.reshape(len(x), -1).sum(1) / count
            slope = slope + self.join(slopes, x, shift) / count
        return total, slope

    def slope(self, x: Tensor, sigma: float) -> Tensor:
        return sigma * self.jet(x, sigma)[1]


def whole(
    energy: Any, shape: tuple[int, ...], tile: int = 256, watch: Callable[[], None] = lambda: None
) -> Tiled | Shifted:
    r"""Returns the field of pictures of an energy of images at every level.

    Arguments:
        energy: The energy.
        shape: The shape (C, h, w) of the images that it was trained on.
        tile: The side of a tile of a local energy.
        watch: Called before each evaluation of a part.
    """
    if getattr(energy, "local", False):
        return Tiled(energy, tile, watch)
    if shape[1] != shape[2]:
        raise ValueError(f"expected an energy of square images, got {shape[2]}x{shape[1]}")
    return Shifted(energy, shape[1], watch=watch)


def padded(h: int, w: int, field: Tiled | Shifted) -> tuple[int, int, int, int]:
    r"""Returns how many pixels a picture needs left, right, above and below it, for the sides and
    the margin of a field, as `F.pad` takes them."""
    sides = []
    for side in (w, h):
        low = field.margin // 2
        total = -(-(side + 2 * low) // field.multiple) * field.multiple
        sides += [low, total - side - low]
    return tuple(sides)  # pyright: ignore[reportReturnType]


def extend(x: Tensor, pad: tuple[int, int, int, int]) -> Tensor:
    r"""Returns pictures with so many pixels around them, reflected as far as there are pixels, the
    last one repeated beyond."""
    h, w = x.shape[2:]
    most = min(max(pad), h - 1, w - 1)
    near = tuple(min(p, most) for p in pad)
    x = F.pad(x, near, mode="reflect") if most else x
    rest = tuple(p - n for p, n in zip(pad, near, strict=True))
    return F.pad(x, rest, mode="replicate") if any(rest) else x
