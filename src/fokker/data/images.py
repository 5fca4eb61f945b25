r"""Images: a set of them, decoded once to bytes and drawn from at random.

A set is :math:`(N, C, H, W)` pixels (`fokker.data.picture`), of one size, grey or colour
throughout: the first image that differs is an error that names it. It is read from a folder of
image files, from a folder of Parquet files with a column `image` (or `img`) of
`struct<bytes, path>`, whose bytes are an encoded image, or by a name, as `fokker.data.sources`
says.

WebP has no grey: three equal channels in every image of a split are taken for one. The named sets
always have their own number of channels. `size` crops a square from the centre of each image and
resizes it, antialiased (Lanczos); without it no pixel is changed.

The pixels are kept in the cache (`fokker.data.cache`) under the hash of the names and contents of
all files read, which costs a tenth of a second for 100 MB and cannot mistake one set for another.
A set has at most 8 GiB of pixels, and a row group of Parquet at most 2 GiB of files.
"""

__all__ = ["Images", "read_images", "read_labels"]

import numpy as np
import torch

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from torch import Tensor
from typing import Any

from . import cache
from .parquet import room, sizes
from .picture import SIDE, as_channels, decode, describe, read_bytes, to_float
from .sources import (
    SETS,
    SPLITS,
    files_of,
    fingerprint,
    from_hub,
    locate,
    name_of,
)
from .. import checks
from ..files import open_regular

VERSION = 1  # of what is cached
TOTAL = 2**33  # bytes of pixels
COLUMNS = ("image", "img")
LABELS = ("label", "labels")
GROUP = 2**31  # bytes of a row group, not compressed
ROWS = 8  # read at once; a row of a small file may be long
AHEAD = 2**26  # bytes of the pages that are read at once
FEW, SMALLEST = 2**16, 8  # images in a file of any length, and bytes of each of more
LONGEST = 2**40  # bytes of a file


@dataclass(frozen=True, eq=False)
class Images:
    r"""Creates a set of images.

    Arguments:
        pixels: The pixels, uint8 of shape :math:`(N, C, H, W)`, with N at least 1 and C 1 or 3.
        name: The name of the set.
        split: The part of it, train or test.

    Example:
        >>> images = Images(torch.full((5, 1, 2, 2), 255, dtype=torch.uint8), "white", "train")
        >>> len(images), images.shape
        (5, (1, 2, 2))
        >>> images.batch(3, torch.Generator().manual_seed(0)).mean((1, 2, 3))
        tensor([1., 1., 1.])
    """

    pixels: Tensor
    name: str
    split: str

    def __post_init__(self) -> None:
        shape, dtype = tuple(self.pixels.shape), self.pixels.dtype
        if not (dtype == torch.uint8 and len(shape) == 4 and shape[1] in {1, 3} and all(shape)):
            raise ValueError(
                "expected pixels of dtype uint8 and shape (N, C, H, W) with N >= 1 and C 1 or 3,"
                f" got {dtype} {shape}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        r"""The shape :math:`(C, H, W)` of an image."""
        _, c, h, w = self.pixels.shape
        return c, h, w

    def to(self, device: torch.device | str) -> "Images":
        r"""Returns the set with its pixels on a device."""
        return replace(self, pixels=self.pixels.to(device))

    def batch(
        self, n: int, generator: torch.Generator, flip: bool = False, crop: int | None = None
    ) -> Tensor:
        r"""Returns n images at random, with replacement: float32 of shape :math:`(n, C, H, W)` in
        [-1, 1], on the device of the pixels.

        Arguments:
            n: The number of images.
            generator: The generator, on that device.
            flip: Whether each image is mirrored left to right with probability 1/2.
            crop: The side of the square that is cut from each at a random place and turned by a
                random multiple of 90 degrees.
        """
        return self.pick(n, generator, flip, crop)[0]

    def pick(
        self, n: int, generator: torch.Generator, flip: bool = False, crop: int | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""Returns what `batch` returns, and the index of each image in the set."""
        checks.positive_integer(n=n)
        device = self.pixels.device
        if generator.device.type != device.type:
            raise ValueError(f"expected a generator on {device}, got one on {generator.device}")
        rows = torch.randint(len(self), (n,), generator=generator, device=device)
        u = self.pixels[rows] if crop is None else self.cut(rows, crop, generator)
        if flip:
            mirrored = torch.randint(2, (n, 1, 1, 1), generator=generator, device=device)
            u = torch.where(mirrored == 1, u.flip(-1), u)
        return to_float(u), rows

    def cut(self, rows: Tensor, side: int, generator: torch.Generator) -> Tensor:
        r"""Returns squares at random places of images, each turned by a random multiple of 90
        degrees."""
        device, (_, h, w) = self.pixels.device, self.shape
        checks.between(1, min(h, w), crop=side)
        draw = lambda most: torch.randint(most, (len(rows), 1), generator=generator, device=device)
        top, left = draw(h - side + 1), draw(w - side + 1)
        i, j = (torch.arange(side, device=device) + start for start in (top, left))
        u = self.pixels[rows[:, None, None], :, i[:, :, None], j[:, None]].permute(0, 3, 1, 2)
        turn = draw(4)[:, :, None, None]
        turned = [torch.rot90(u, k, (2, 3)) for k in range(4)]
        for k in range(1, 4):
            u = torch.where(turn == k, turned[k], u)
        return u


def read_labels(
    source: str | Path, split: str = "train", data_dir: str | Path | None = None
) -> Tensor:
    r"""Returns the classes of a set of images in Parquet files, int64 (N): their column `label`.

    Arguments:
        source: See `read_images`.
        split: The part of the set, train or test.
        data_dir: The folder where named sets lie; that of `FOKKER_DATA` if not given.
    """
    import pyarrow.parquet as pq

    parts = []
    for path in files_of(folder_of(source, split, data_dir), split):
        if path.suffix != ".parquet":
            raise ValueError(f"expected classes in the column label of .parquet, got {path}")
        with open_regular(path, LONGEST) as handle, damage(path):
            file = pq.ParquetFile(handle)
            names = [name for name in LABELS if name in file.schema_arrow.names]
            if not names:
                raise ValueError(f"expected a column label, got {file.schema_arrow.names}")
            column = file.read(columns=names[:1]).column(0)
            values = column.to_numpy()
        if values.dtype.kind not in "iu" or (len(values) and values.min() < 0):
            raise ValueError(f"{path}: expected classes 0, 1, ... in {names[0]}, got others")
        parts.append(torch.from_numpy(values.astype(np.int64)))
    return torch.cat(parts)


def folder_of(source: str | Path, split: str, data_dir: str | Path | None) -> Path:
    r"""Returns the folder in which a set lies, fetched if it must be."""
    if isinstance(source, str) and source in SETS:
        return locate(source, split, data_dir)
    if isinstance(source, str) and source.startswith("hub:"):
        return from_hub(source, split)
    folder = Path(source)
    if not (folder.is_dir() and str(source)):
        got = f"{str(source)!r}, which is none of them"
        raise ValueError(
            f"expected a folder of images, hub:OWNER/NAME or one of {', '.join(SETS)}, got {got}"
        )
    return folder


def read_images(
    source: str | Path,
    split: str = "train",
    data_dir: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
) -> Images:
    r"""Reads a set of images, from the cache if it was decoded before.

    Arguments:
        source: A folder, the name of a set, or `hub:OWNER/NAME`; write `./mnist` for a folder that
            is called so.
        split: The part of the set, train or test.
        data_dir: The folder where named sets lie; that of `FOKKER_DATA` if not given.
        size: The side of the square that each image is cropped and resized to; as they are if not
            given.
        channels: The channels that all images are brought to, 1 or 3; as they are if not given.
    """
    checks.one_of(SPLITS, split=split)
    if size is not None:
        checks.positive_integer(size=size)
        checks.between(1, SIDE, size=size)
    name = name_of(source)
    if isinstance(source, str) and source in SETS:
        channels = SETS[source].channels
    folder = folder_of(source, split, data_dir)
    files = files_of(folder, split)
    key = fingerprint(folder, files, (VERSION, size, channels))
    pixels = cache.cached(f"{name}-{split}", key, lambda: stack(files, size, channels))
    return Images(torch.from_numpy(pixels), name, split)


def stack(files: list[Path], size: int | None, channels: int | None) -> np.ndarray:
    r"""Returns the pixels of all images in files, uint8 of shape :math:`(N, C, H, W)`."""
    out, first, shape, grey = bytearray(), "", (), channels is None
    # a few bytes may stand for any number of pixels
    most = min(TOTAL, room(sum(path.stat().st_size for path in files)))
    for place, content in chain.from_iterable(map(rows, files)):
        x = decode(content, place, size)
        if channels is not None:
            x = as_channels(x, channels, place)
        if not out:
            first, shape = place, x.shape
        if x.shape != shape:
            hint = "; size= makes them one size" if x.shape[1:] != shape[1:] else ""
            expected = f"{describe(shape)} as {first}"
            raise ValueError(f"{place}: expected {expected}, got {describe(x.shape)}{hint}")
        if len(out) + x.size > most:
            raise ValueError(f"{place}: expected at most {most} bytes of pixels, got more")
        grey = grey and bool((x == x[:1]).all())
        out += x.tobytes()
    if not out:
        raise ValueError(f"{files[0]}: expected images, got no rows")
    pixels = np.frombuffer(out, np.uint8).reshape(-1, *shape)
    return np.ascontiguousarray(pixels[:, :1]) if grey else pixels


def rows(path: Path) -> Iterator[tuple[str, bytes]]:
    r"""Yields the place and the bytes of each image in a file."""
    if path.suffix != ".parquet":
        yield str(path), read_bytes(path)
        return
    for k, content in enumerate(parquet_rows(path)):
        place = f"{path}, row {k + 1}"
        if content is None:
            raise ValueError(f"{place}: expected the bytes of an image, got null")
        yield place, content


def parquet_rows(path: Path) -> Iterator[bytes | None]:
    import pyarrow.parquet as pq

    with open_regular(path, LONGEST) as handle:
        with damage(path):
            file = pq.ParquetFile(handle)
            kinds = list(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
        place = f"{image_column(path, dict(kinds))}.bytes"
        with damage(path):
            for i in range(file.num_row_groups):
                size = file.metadata.row_group(i).total_byte_size
                if size > GROUP:
                    raise ValueError(f"a row group of {size} bytes is longer than {GROUP}")
            paths = [file.schema.column(j).path for j in range(len(file.schema))]
            found = sizes(handle, file, [j for j, other in enumerate(paths) if other == place])
            rows, most = file.metadata.num_rows, FEW + found.length // SMALLEST
            if rows > most:
                raise ValueError(f"{rows} images in {found.length} bytes are over {most}")
            # a row of a dictionary may be as long as its page
            count = max(1, min(ROWS, AHEAD // max(1, found.largest)))
            for batch in file.iter_batches(count, columns=[place], use_threads=False):
                yield from batch.column(0).flatten()[0].to_pylist()


def image_column(path: Path, kinds: dict[str, Any]) -> str:
    r"""Returns the column that holds images, of those with these types."""
    import pyarrow as pa

    for name in COLUMNS:
        kind = kinds.get(name, pa.null())
        parts = {part.name: part.type for part in kind} if pa.types.is_struct(kind) else {}
        if parts.get("bytes") in {pa.binary(), pa.large_binary()}:
            return name
    got = " ".join(", ".join(f"{name}: {kind}" for name, kind in kinds.items()).split())
    expected = "a column image: struct<bytes: binary, path: string>"
    raise ValueError(f"{path}: expected {expected}, got {got[:200] or 'no columns'}")


@contextmanager
def damage(path: Path) -> Generator[None, None, None]:
    r"""Says which Parquet file could not be read, and why."""
    try:
        yield
    except Exception as error:  # of many kinds, on damaged bytes
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: expected a whole .parquet file: {reason}") from error
