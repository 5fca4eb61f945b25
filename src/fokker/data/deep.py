r"""Pictures of 8 or 16 bits a channel.

A PNG may hold pixels v of 16 bits, grey or colour. They are seen as

.. math:: x = v / 32767.5 - 1 \in [-1, 1], \qquad v = \mathrm{round}(32767.5 \, (x + 1)) ,

which lie on the same scale as those of 8 bits (`fokker.data.picture`). All other files, and PNGs
of 16 bits with transparency, are read as there. A picture is written with the bits that it was
read with. What is read is bounded as there.
"""

__all__ = ["read_picture", "save_picture"]

import io
import numpy as np
import struct
import torch
import zlib

from pathlib import Path
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from .picture import SIDE, decode, place_of_png, read_bytes, save_png, to_float, whole
from .. import checks
from ..files import replacing

MAGIC = b"\x89PNG\r\n\x1a\n"
HALF = 32767.5


def is_deep(content: bytes) -> bool:
    r"""Returns whether the bytes of a file are those of a PNG of 16 bits, grey or colour, without
    transparency."""
    if not content.startswith(MAGIC) or len(content) < 29:
        return False
    depth, kind = content[24], content[25]
    return depth == 16 and kind in {0, 2} and b"tRNS" not in content[:4096]


def upright(image: Image.Image, raw: str | None = None) -> np.ndarray:
    r"""Returns the pixels of an opened PNG, turned upright; read in another byte order if
    given."""
    if raw is not None:
        assert isinstance(image, ImageFile.ImageFile)  # its tiles say how it is decoded
        codec, extents, offset, _ = image.tile[0]
        image.tile = [(codec, extents, offset, raw)]  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(ImageOps.exif_transpose(image))


def decode_deep(content: bytes, place: str) -> np.ndarray:
    r"""Returns the pixels of a PNG of 16 bits, uint16 of shape :math:`(C, H, W)`."""
    open_ = lambda: Image.open(io.BytesIO(content), formats=["PNG"])
    with whole(place):
        image = open_()
    if not 0 < image.width * image.height <= SIDE**2:
        got = f"{image.width}x{image.height}"
        raise ValueError(f"{place}: expected at most {SIDE}x{SIDE} pixels, got {got}")
    with whole(place):
        if image.mode != "RGB":
            return upright(image).astype(np.uint16)[None]
        # Pillow keeps one byte of the two of a colour: the high ones, then the low ones
        high, low = upright(image), upright(open_(), "RGB;16L")
        return (high.astype(np.uint16) * 256 + low).transpose(2, 0, 1)


def read_picture(path: Path) -> tuple[Tensor, int]:
    r"""Reads a picture as float32 in [-1, 1] of shape :math:`(C, H, W)`, and returns its bits a
    channel as well, 8 or 16.

    Arguments:
        path: The file: PNG, JPEG, WebP or BMP.
    """
    path = Path(path)
    content = read_bytes(path)
    if not is_deep(content):
        return to_float(torch.from_numpy(decode(content, str(path)).copy())), 8
    values = decode_deep(content, str(path)).astype(np.float64) / HALF - 1
    return torch.from_numpy(values.astype(np.float32)), 16


def save_picture(path: Path, x: Tensor, bits: int = 8) -> None:
    r"""Writes a picture as a PNG of 8 or 16 bits a channel.

    Arguments:
        path: The file.
        x: The picture, with shape :math:`(C, H, W)`, in [-1, 1], C 1 or 3.
        bits: The bits a channel.
    """
    if bits == 8:
        return save_png(path, x)
    if bits != 16:
        raise ValueError(f"expected 8 or 16 bits a channel, got {bits!r}")
    if x.ndim != 3 or len(x) not in {1, 3}:
        raise ValueError(f"expected a picture (C, H, W) with C 1 or 3, got {tuple(x.shape)}")
    path = place_of_png(path)
    values = checks.points(x).detach().cpu().double().add(1).mul(HALF).round().clamp(0, 65535)
    with replacing(path) as partial:
        partial.write_bytes(encode(values.numpy().astype(np.uint16)))


def encode(pixels: np.ndarray) -> bytes:
    r"""Returns the PNG of pixels, uint16 of shape :math:`(C, H, W)`."""
    c, h, w = pixels.shape
    rows = pixels.transpose(1, 2, 0).astype(">u2").reshape(h, -1).view(np.uint8)
    filtered = np.concatenate([np.zeros((h, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", w, h, 16, 0 if c == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b""))
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    return MAGIC + b"".join(chunk(kind, data) for kind, data in parts)
