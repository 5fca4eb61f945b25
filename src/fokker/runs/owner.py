r"""Owners: a run folder has one writer at a time.

Who trains into a folder holds a lock on the file `.lock` in it (`flock`). The kernel grants it to
one process alone and frees it when that process ends, however it ends; a process that is stopped
(SIGSTOP) keeps it. The file says who the holder is, for the error of whoever comes second. It is
never removed: a lock on a removed file keeps nobody out.

An owner deletes only checkpoints that it found when it took the folder or wrote itself, and writes
nothing once the folder or its lock was removed or replaced.
"""

__all__ = ["Owner"]

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
import warnings

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .checkpoints import Name, names
from ..checks import brief
from ..files import still

LONGEST = 1000  # bytes of a lock file
WAIT = 1.0  # seconds for a new holder to say who it is
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Owner:
    r"""Creates the owner of a run folder, which does not hold it yet. As a context it lets go of
    the folder at the end.

    Arguments:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".lock"
        self.handle: int | None = None
        self.known: set[Name] = set()  # checkpoints that may be deleted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def take(self) -> None:
        r"""Takes the folder, which exists, or raises a `ValueError` that says who holds it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self.path, flags, 0o644)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
                raise self.odd() from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise self.odd()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    "expected a run folder that nobody else writes to, got"
                    f" {self.folder}, which {self.holder(handle)} holds; wait for its end or stop"
                    " it, or train into another folder"
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                warnings.warn(
                    f"expected a file system with locks, got {self.folder}: {error.strerror};"
                    " see to it that no other run writes there",
                    stacklevel=2,
                )
            claim = {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(claim).encode() + b"\n", 0)
        except BaseException:
            os.close(handle)
            raise
        self.handle = handle
        self.check()  # not a folder that was removed meanwhile
        self.known = set(names(self.folder / "checkpoint"))

    def odd(self) -> ValueError:
        return ValueError(f"expected a regular file or none, got {self.path}, which is neither")

    def holder(self, handle: int) -> str:
        r"""Returns who holds the folder, in words, as the lock file says."""
        end = time.monotonic() + WAIT
        while True:
            try:
                claim: dict[str, Any] = json.loads(os.pread(handle, LONGEST, 0))
                host, pid, since = str(claim["host"]), int(claim["pid"]), str(claim["since"])
                if host == socket.gethostname():
                    with contextlib.suppress(PermissionError):  # of another user
                        os.kill(pid, 0)  # not the holder before, which has ended
                return f"process {pid} on {brief(host, 60)[1:-1]} (since {brief(since, 40)[1:-1]})"
            except (ValueError, LookupError, TypeError, OSError, OverflowError):
                if time.monotonic() > end:
                    return "another process"
                time.sleep(0.02)

    def check(self) -> None:
        r"""Raises unless the folder is still held."""
        if self.handle is not None and not still(self.handle, self.path):
            raise OSError(
                errno.ESTALE,
                "the folder or its lock was removed or replaced while it was written to",
                str(self.folder),
            )
