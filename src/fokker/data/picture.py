r"""Pictures: one image, from the bytes of a file to pixels, and back.

Pixels are bytes u of shape :math:`(C, H, W)`, one channel for grey and three for red, green and
blue. A model sees

.. math:: x = u / 127.5 - 1 \in [-1, 1] , \qquad u = \mathrm{round}(127.5 \, (x + 1)) ,

and the second undoes the first exactly.

A file is PNG, JPEG, WebP or BMP, by its content and not its name. It is turned upright if it says
how (EXIF), transparent pixels are laid on white, a palette is looked up, of an animation the first
frame is taken, and of 16-bit colour the high byte. Deeper grey, CMYK and the like are refused.

A file need not be trusted: its header is read first, and it is decoded only if it is at most 64
MiB long and promises :math:`8192^2` pixels or fewer. Whatever is wrong with it is a `ValueError`
of one line that opens with its place.
"""

__all__ = [
    "as_channels",
    "decode",
    "describe",
    "place_of_png",
    "read_png",
    "save_png",
    "to_float",
    "to_uint8",
]

import io
import math
import numpy as np
import torch
import warnings

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from .. import checks
from ..files import check_place, read_regular, replacing

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")  # 8 bits a channel or fewer
SIDE = 8192
BYTES = 2**26
GAP = 2  # pixels between the images of a grid
BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def describe(shape: tuple[int, ...]) -> str:
    r"""Returns a shape :math:`(C, H, W)` in words."""
    c, h, w = shape
    return f"{w}x{h} {'grey' if c == 1 else 'colour'}"


@contextmanager
def whole(place: str) -> Generator[None, None, None]:
    r"""Says which image could not be decoded, and why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except BOMB:
        raise ValueError(f"{place}: expected at most {SIDE}x{SIDE} pixels, got more") from None
    except Exception as error:  # of many kinds, on damaged bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{place}: expected a whole image: {reason}") from error


def decode(content: bytes, place: str, size: int | None = None) -> np.ndarray:
    r"""Returns the pixels of an encoded image, uint8 of shape :math:`(C, H, W)`.

    Arguments:
        content: The bytes.
        place: Where they lie, for the error.
        size: The side of the square that is cropped from the centre and resized, antialiased; the
            image stays as it is if not given.
    """
    if len(content) > BYTES:
        raise ValueError(f"{place}: expected at most {BYTES} bytes, got {len(content)}")
    with whole(place):
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)  # reads the header alone
        except UnidentifiedImageError:
            image = None
    if image is None:
        got = f"{len(content)} bytes that are none, {content[:12]!r}"
        raise ValueError(f"{place}: expected a {', '.join(FORMATS)} image, got {got}")
    if image.mode not in MODES:
        raise ValueError(
            f"{place}: expected grey or RGB of 8 bits a channel, got mode {image.mode}"
        )
    if not 0 < image.width * image.height <= SIDE**2:
        got = f"{image.width}x{image.height}"
        raise ValueError(f"{place}: expected at most {SIDE}x{SIDE} pixels, got {got}")
    with whole(place):
        ImageOps.exif_transpose(image, in_place=True)
        grey = image.mode in {"1", "L", "LA"}
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("L" if grey else "RGB")
        if size is not None:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            image = image.crop((left, top, left + side, top + side))
            image = image.resize((size, size), Image.Resampling.LANCZOS)
        x = np.asarray(image)
    return x[None] if grey else x.transpose(2, 0, 1)


def as_channels(x: np.ndarray, channels: int, place: str) -> np.ndarray:
    r"""Returns pixels :math:`(C, H, W)` with 1 or 3 `channels`: grey is repeated thrice, and three
    equal channels are taken for grey."""
    if channels not in {1, 3}:
        raise ValueError(f"expected 1 channel or 3, got {channels!r}")
    if len(x) == channels:
        return x
    if len(x) == 1:
        return np.repeat(x, 3, axis=0)
    if not (x == x[:1]).all():
        raise ValueError(f"{place}: expected a grey image, got colour")
    return x[:1]


def to_float(pixels: Tensor) -> Tensor:
    r"""Returns pixels of dtype uint8 as floats in [-1, 1], in float32."""
    if pixels.dtype != torch.uint8:
        raise ValueError(f"expected pixels of dtype uint8, got {pixels.dtype}")
    return pixels.to(torch.float32).div_(127.5).sub_(1)


def to_uint8(x: Tensor) -> Tensor:
    r"""Returns finite floats as pixels of dtype uint8. What lies outside [-1, 1], as samples may,
    becomes black or white."""
    u = checks.points(x).detach().to(torch.float32).add(1).mul(127.5)
    return u.round_().clamp_(0, 255).to(torch.uint8)


def place_of_png(path: Path) -> Path:
    r"""Returns the path of a PNG to be, if one can be written there; it need not be there yet."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a name that ends in .png")
    if path.is_dir():
        raise ValueError(f"{path}: expected a file to write to, got a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: expected a folder {path.parent} to write to, got none")
    check_place(path)
    return path


def save_png(path: Path, x: Tensor, columns: int | None = None) -> None:
    r"""Writes an image, or a grid of images row by row on white, as a PNG.

    Arguments:
        path: The file.
        x: An image :math:`(C, H, W)` or images :math:`(B, C, H, W)`, in [-1, 1], C 1 or 3.
        columns: The number of images beside each other; a square grid if not given.
    """
    path = place_of_png(path)
    if x.ndim not in {3, 4} or x.shape[-3] not in {1, 3}:
        raise ValueError(
            f"expected x of shape (C, H, W) or (B, C, H, W) with C 1 or 3, got {tuple(x.shape)}"
        )
    u = to_uint8(x).cpu().reshape(-1, *x.shape[-3:])
    b, c, h, w = u.shape
    columns = math.ceil(math.sqrt(b)) if columns is None else columns
    checks.positive_integer(columns=columns)
    columns = min(columns, b)
    rows = math.ceil(b / columns)
    grid = u.new_full((c, rows * (h + GAP) - GAP, columns * (w + GAP) - GAP), 255)
    for k, one in enumerate(u):
        top, left = k // columns * (h + GAP), k % columns * (w + GAP)
        grid[:, top : top + h, left : left + w] = one
    image = Image.fromarray(grid[0].numpy() if c == 1 else grid.permute(1, 2, 0).numpy())
    with replacing(path) as partial:
        image.save(partial, "PNG")


def read_png(path: Path, channels: int | None = None) -> Tensor:
    r"""Reads an image, a PNG or another of the formats above, as float32 in [-1, 1] of shape
    :math:`(C, H, W)`.

    Arguments:
        path: The file.
        channels: The number of channels to return, 1 or 3: a grey image has its channel repeated,
            and a colour image must have three equal ones to become grey. As in the file if not
            given.
    """
    path = Path(path)
    x = decode(read_bytes(path), str(path))
    if channels is not None:
        x = as_channels(x, channels, str(path))
    return to_float(torch.from_numpy(x.copy()))


def read_bytes(path: Path) -> bytes:
    r"""Returns the bytes of a file, as many as an image may have at most."""
    return read_regular(path, BYTES)
