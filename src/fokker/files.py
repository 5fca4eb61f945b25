r"""Files: read only if they are regular, and written whole or not at all.

**Reading.** A file from a stranger may be a pipe that never ends, a device or a link to another
place. `open_regular` opens nothing but a regular file of a bounded length, and below a folder that
came from a stranger it follows no link.

**Writing.** A file is written beside its place, brought down to the disk and renamed: a crash or a
full disk leaves the old file as it was. What is being written has a name of its own,
`.NAME.XXXXXXXX.partial`, and is locked while its writer lives. What a killed writer left behind is
removed by the next one that writes to that place.
"""

__all__ = [
    "beside",
    "check_place",
    "first_line",
    "inner_folder",
    "open_regular",
    "read_regular",
    "replacing",
    "save_npy",
    "sweep",
    "sync",
    "write_bytes",
    "write_text",
]

import contextlib
import errno
import fcntl
import numpy as np
import os
import re
import secrets
import shutil
import stat

from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe is not waited for
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
NAME = 200  # bytes of a file name that its partial file repeats


# --- reading ---


def check_regular(found: os.stat_result, path: Path, limit: int) -> None:
    r"""Raises unless a file is a regular one, and no longer than a limit."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "a special file")
        raise ValueError(f"{path}: expected a regular file, got {kind}")
    if found.st_size > limit:
        raise ValueError(f"{path}: expected at most {limit} bytes, got {found.st_size}")


def open_regular(path: Path, limit: int, root: Path | None = None) -> BufferedReader:
    r"""Opens a regular file to read. Anything else is a `ValueError` that says what it is.

    Arguments:
        path: The file.
        limit: The bytes that it may have.
        root: A folder above it, below which no link is followed; links are followed if not given.
    """
    path = Path(path)
    try:
        if root is None:
            check_regular(path.stat(), path, limit)  # opening a device may do something to it
            handle = os.open(path, READ)
        else:
            handle = open_below(path, limit, root)
    except OSError as error:  # with the whole path
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        check_regular(os.fstat(handle), path, limit)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_below(path: Path, limit: int, root: Path) -> int:
    r"""Returns the descriptor of a file below a folder, reached without following a link."""
    *folders, name = path.relative_to(root).parts
    place = os.open(root, FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in folders:
            try:
                inner = os.open(part, FOLDER, dir_fd=place)
            except OSError as error:
                if part == ".." or error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                    raise
                raise ValueError(f"{path}: expected {part} to be a folder, got a link") from None
            os.close(place)
            place = inner
        check_regular(os.stat(name, dir_fd=place, follow_symlinks=False), path, limit)
        return os.open(name, READ | os.O_NOFOLLOW, dir_fd=place)
    finally:
        os.close(place)


def read_regular(path: Path, limit: int, root: Path | None = None) -> bytes:
    r"""Returns the bytes of a regular file; see `open_regular`."""
    with open_regular(path, limit, root) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grew, or hides its length
        raise ValueError(f"{path}: expected at most {limit} bytes, got more")
    return content


# --- writing ---


def sync(path: Path) -> None:
    r"""Brings a file or a folder down to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(handle: int) -> bool:
    r"""Returns whether a file could be locked for this process; it is unlocked when it is
    closed. Where a file system has no locks, none can."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def still(handle: int, path: Path) -> bool:
    r"""Returns whether a path still leads to the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    r"""Removes a file or a folder, and no more than a link itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    r"""Removes what killed writers of a path left beside it: what is this user's and no live
    process has locked."""
    wanted = re.compile(re.escape(stem(path)) + r"\.[0-9a-f]{8}\.partial")
    with os.scandir(path.parent) as entries:
        found = [Path(entry.path) for entry in entries if wanted.fullmatch(entry.name)]
    for left in found:
        with contextlib.suppress(OSError):  # another writer is removing it, or it is no file
            if os.lstat(left).st_uid != os.geteuid() or left.is_symlink():
                continue
            handle = os.open(left, READ | os.O_NOFOLLOW)
            try:
                if locked(handle):
                    remove(left)
            finally:
                os.close(handle)


def stem(path: Path) -> str:
    return "." + os.fsdecode(os.fsencode(path.name)[:NAME])


@contextmanager
def beside(path: Path, folder: bool = False) -> Generator[Path, None, None]:
    r"""Yields a new, empty file or folder beside a path; it goes unless it is renamed.

    Arguments:
        path: The place that it is for.
        folder: Whether it is a folder.
    """
    sweep(path)
    while True:
        partial = path.with_name(f"{stem(path)}.{secrets.token_hex(4)}.partial")
        if folder:
            partial.mkdir()
            try:
                handle = os.open(partial, FOLDER)
            except FileNotFoundError:  # swept before it was opened
                continue
        else:
            handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # where a file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if still(handle, partial):  # not swept before it was locked
            break
        os.close(handle)
    try:
        yield partial
    finally:
        try:
            if still(handle, partial):
                remove(partial)
        finally:
            os.close(handle)


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    r"""Yields the place to write a file to; it replaces the file at `path` if nothing fails. A
    failure to write is an `OSError` that names `path`.

    Arguments:
        path: The file to replace or to create.
    """
    path = Path(path)
    try:
        with beside(path) as partial:
            with contextlib.suppress(FileNotFoundError):
                partial.chmod(stat.S_IMODE(path.stat().st_mode))
            yield partial
            sync(partial)
            partial.replace(path)
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO, error.strerror or first_line(error), str(path)
        ) from error


def check_place(path: Path) -> None:
    r"""Raises unless a file can be written to a path, beside and renamed: before any work."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise ValueError(f"expected a place for a file, got {path}, which is no regular file")
    try:
        with beside(path):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def inner_folder(path: Path) -> Path:
    r"""Returns a folder in a run folder, made if it is missing; a link is refused, which may lead
    anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"expected a folder of its own, got {path}, which is a link or a file")
    path.mkdir(exist_ok=True)
    return path


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
