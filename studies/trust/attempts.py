r"""Attempts: a function called in a process of its own, whose memory and time are measured.

What it may do is return, or raise a `ValueError` or an `OSError` of one line. Anything else is a
fault: another exception, several lines, a death, more memory or more time than it may take.
"""

__all__ = ["Outcome", "attempt", "run_command"]

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings

from collections.abc import Callable
from fokker.app.cli import main
from typing import Any, NamedTuple

LONGEST = 600  # characters of an error
FORK = multiprocessing.get_context("fork")


class Outcome(NamedTuple):
    r"""How an attempt ended."""

    end: str  # done, refused, or what was wrong
    said: str  # the error
    fault: bool
    seconds: float
    memory: int  # bytes at the peak beyond those at the start


def child(work: Callable[[], Any], pipe: Any) -> None:
    warnings.simplefilter("ignore")
    os.setsid()
    before = peak()
    end, said, fault = "done", "", False
    try:
        work()
    except (ValueError, OSError) as error:
        end, said = "refused", str(error)
        if "\n" in said or len(said) > LONGEST:
            end, fault = "a long error", True
    except BaseException as error:  # noqa: BLE001 - it is the result
        end, said, fault = type(error).__name__, traceback.format_exc()[-2000:], True
    pipe.send((end, said, fault, peak() - before))


def peak() -> int:
    r"""Returns the largest memory that this process ever had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def attempt(work: Callable[[], Any], seconds: float = 20.0, memory: int = 2**30) -> Outcome:
    r"""Calls a function in a fork of this process and returns how that ended.

    Arguments:
        work: The function.
        seconds: The time that it may take.
        memory: The bytes that it may take beyond what this process has.
    """
    mine, theirs = FORK.Pipe()
    process, begin = FORK.Process(target=child, args=(work, theirs)), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which do nothing here
        process.start()
    theirs.close()
    late = not mine.poll(seconds)
    try:
        end, said, fault, used = ("too slow", "", True, 0) if late else mine.recv()
    except EOFError:
        process.join()
        end, said, fault, used = f"died with {process.exitcode}", "", True, 0
    if late and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    if used > memory:
        end, fault = f"took {used / 2**20:.0f} MiB", True
    return Outcome(end, said, fault, time.perf_counter() - begin, used)


def run_command(args: list[str]) -> None:
    r"""Runs a command of fokker. One that is refused is a `ValueError` with what it wrote to
    standard error; lines that do not begin with the name of the program are a fault."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = out, errors
        code = 0
        try:
            main(args)
        except SystemExit as stop:
            code = int(stop.code or 0)
        errors.seek(0)
        lines = errors.read().splitlines()
    strange = [line for line in lines if not line.startswith("fokker: ")]
    if strange or code not in {0, 2, 3, 130}:
        raise RuntimeError(f"exit code {code}, and on standard error: {strange[:5]}")
    if code:
        raise ValueError(lines[-1] if lines else "nothing was said")
