r"""The cache: arrays that are slow to make, kept between runs.

An array lies in `NAME.npy`, to be mapped into memory, beside `NAME.json`: the SHA-256 of that file
and the fingerprint of what the array was made from. Both are written beside their place and
renamed into it, the second last. The file is hashed before it is parsed, each time: one that was
damaged, or cut short by a full disk, is never used but made anew, with a warning. So is the array
where the cache cannot be written to.

The folder is that of the variable `FOKKER_CACHE`, or `~/.cache/fokker`. It may be deleted at any
time.
"""

__all__ = ["cached", "folder"]

import hashlib
import json
import numpy as np
import os
import warnings

from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from ..files import open_regular, read_regular, replacing, write_text

CARD, LONGEST = 2**16, 2**40  # bytes of a .json, and of a .npy
NAME = 40  # characters of a name, up to four bytes each, of the 255 bytes that a file has


def folder() -> Path:
    r"""Returns the folder of the cache."""
    try:
        return Path(os.environ.get("FOKKER_CACHE") or "~/.cache/fokker").expanduser()
    except RuntimeError as error:  # of a user without a name, as in a container
        raise ValueError(
            "expected a home folder, or FOKKER_CACHE to name a folder for what is kept, got"
            f" neither: {error}"
        ) from None


def cached(name: str, fingerprint: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    r"""Returns an array from the cache if it is there and whole; else makes it and keeps it.

    Arguments:
        name: A name for the eye.
        fingerprint: The hash of all that the array depends on.
        make: Called without arguments to make the array.
    """
    path = folder() / f"{name[:NAME]}-{fingerprint[:16]}.npy"
    x = recall(path, fingerprint)
    if x is None:
        x = make()
        keep(path, fingerprint, x)
    return x


def recall(path: Path, fingerprint: str) -> np.ndarray | None:
    r"""Returns a cached array, mapped into memory, if it is there and whole."""
    try:
        saved = json.loads(read_regular(path.with_suffix(".json"), CARD))
        with open_regular(path, LONGEST) as file:
            if saved != card(file, fingerprint):
                raise ValueError("its SHA-256 is not the one written down")
            return mapped(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"expected a whole array in the cache, got {path}: {error}; it is made anew",
            stacklevel=4,
        )
        return None


def keep(path: Path, fingerprint: str, x: np.ndarray) -> None:
    r"""Writes an array into the cache, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            with partial.open("wb") as file:
                np.save(file, x, allow_pickle=False)
            with open_regular(partial, LONGEST) as file:
                text = json.dumps(card(file, fingerprint))
        write_text(path.with_suffix(".json"), text)
    except OSError as error:
        warnings.warn(
            f"expected a cache that can be written to, got {path.parent}:"
            f" {error.strerror or error}; nothing is"
            " kept (set FOKKER_CACHE to another folder)",
            stacklevel=1,  # one place, so that it is said once
        )


def card(file: BufferedReader, fingerprint: str) -> dict[str, str]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"fingerprint": fingerprint, "sha256": digest}


def mapped(file: BufferedReader) -> np.ndarray:
    r"""Returns the array in an open .npy file, mapped into memory: of the file that was hashed,
    whatever has its name by now."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    first = np.lib.format.read_array_header_1_0
    read = first if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, column_major, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    order = "F" if column_major else "C"
    return np.memmap(file, dtype, "c", file.tell(), shape, order)
