r"""Files that are written whole or not at all.

A file is written beside its place, brought down to the disk and renamed: a crash or a full disk
leaves the old file as it was.
"""

__all__ = ["first_line", "replacing", "save_npy", "sync", "write_bytes", "write_text"]

import numpy as np
import os

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    r"""Brings a file or a folder down to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    r"""Yields the place to write a file to; it replaces the file at `path` if nothing fails.

    Arguments:
        path: The file to replace or to create.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    r"""Writes a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    r"""Writes a text file in UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def save_npy(path: Path, array: np.ndarray) -> None:
    r"""Writes an array as a .npy file, whole or not at all."""
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, array)


def first_line(error: Exception) -> str:
    r"""Returns the first line of an error, cut if it is long."""
    line = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return f"no {line}" if isinstance(error, KeyError) else line
