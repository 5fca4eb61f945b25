r"""The command line: `fokker COMMAND --help`."""

__all__ = ["main"]

import importlib
import io
import os
import signal
import sys
import time
import torch
import types
import typing
import tyro
import warnings

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from .denoise import Denoise
from .doctor import Doctor
from .evaluate import Evaluate
from .export import Export
from .folder import TrainImages
from .output import mute
from .pack import Pack, Unpack
from .report import Report
from .restore import Restore
from .sample import Sample
from .score import Score
from .studio import Studio
from .train import TrainDenoising, TrainGeneration, TrainPhotographs, TrainTable, TrainToy
from .. import __version__, checks
from ..compute.ranks import first_rank
from ..files import first_line
from ..runs.training import Interrupted
from ..samplers import Unreliable

# how torch says that a number does not fit into its type
OVERFLOW = ("without overflow", "out of range for type", "Overflow when unpacking")
LINGER = 10.0  # seconds that other ranks leave the first to say what is wrong

# a command is one or two words; the second picks among the classes under the first
COMMANDS: dict[str, type | dict[str, type] | str] = {
    "train": {
        "toy": TrainToy,
        "table": TrainTable,
        "denoising": TrainDenoising,
        "photographs": TrainPhotographs,
        "generation": TrainGeneration,
        "images": TrainImages,
    },
    "evaluate": Evaluate,
    "sample": Sample,
    "score": Score,
    "denoise": Denoise,
    "restore": Restore,
    "export": Export,
    "pack": Pack,
    "unpack": Unpack,
    "report": Report,
    "studio": Studio,
    "doctor": Doctor,
    # in studies/ of a clone, not in the package: a summary here, the class there
    "reproduce": "Run a study of the paper's figures and ours.",
    "bench": "Time one training step of every objective, and of its rivals.",
    "optima": "Print the exact optimum of every 2-D set, beside the paper's Table 2.",
    "tables": "Render the tables of the documents anew from the files in results/.",
    "merge": "Join files of results that hold parts of one study.",
}

SHORT = {"-n": "--n", "-o": "--out", "--class": "--classes"}
OPTIONAL = tyro.constructors.ConstructorRegistry()


@OPTIONAL.primitive_rule
def optional(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    r"""Reads a `T | None` as a T: who does not want to give one leaves the option out."""
    kinds = typing.get_args(info.type) if isinstance(info.type, types.UnionType) else ()
    if len(kinds) != 2 or kinds[1] is not type(None) or kinds[0] not in {int, float, str, Path}:
        return None
    kind = kinds[0]
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def parse(args: list[str]) -> Any:
    r"""Returns the command that the arguments ask for, ready to run."""
    words: list[str] = []
    found: Any = COMMANDS
    while isinstance(found, dict):
        if not args or args[0] not in found:
            if args and args[0] not in {"-h", "--help"}:
                raise checks.unknown(
                    args[0], list(found), "a command", " ".join(["fokker", *words])
                )
            lines = [f"  {name:12}{summary(entry)}" for name, entry in found.items()]
            print("\n".join([f"usage: {' '.join(['fokker', *words])} COMMAND --help", *lines]))
            if not words:
                print("first steps: fokker train toy; fokker doctor says what is installed")
            sys.exit(0 if args else 2)
        words.append(args[0])
        found, args = found[args[0]], args[1:]
        if isinstance(found, str):
            found = study(words[-1])
    with without_colors():
        return tyro.cli(
            found,
            prog=" ".join(["fokker", *words]),
            args=[SHORT.get(word, word) for word in args],
            registry=OPTIONAL,
            # options of a part of a command stand beside its own
            config=(tyro.conf.OmitArgPrefixes,),
        )


@contextmanager
def without_colors() -> Generator[None, None, None]:
    r"""Lets tyro write without colours where NO_COLOR is set, or where its errors go to a file:
    it asks TERM alone, and whether standard output is a terminal."""
    before = os.environ.get("TERM")
    if before is None or (sys.stderr.isatty() and not os.environ.get("NO_COLOR")):
        yield
        return
    os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        os.environ["TERM"] = before


def study(name: str) -> type | dict[str, type]:
    r"""Returns a command that lives in `studies/` of a clone, beside the package."""
    root = Path(__file__).parents[3]
    if not (root / "studies/commands.py").is_file():
        raise ValueError(
            f"expected a clone of the repository for `fokker {name}`, got an installed"
            " package, which"
            " has no studies: git clone it and run `make test` there"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module("studies.commands").COMMANDS[name]


def summary(entry: type | dict[str, type] | str) -> str:
    r"""Returns the first sentence of a command, or the words that may follow it."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, dict):
        return " | ".join(entry)
    return (entry.__doc__ or "").strip().split("\n")[0]


def one_line(text: object) -> str:
    r"""Returns a text with what a terminal would obey escaped: a path or a name of a column may
    hold a new line, or colours."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def out_of_memory(error: Exception) -> bool:
    r"""Returns whether an error says that more memory was asked for than there is."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in checks.TOO_MUCH)


def lost(error: Exception) -> bool:
    r"""Returns whether an error says that another rank has ended."""
    words = str(error).lower()
    return "RANK" in os.environ and any(word in words for word in ("gloo", "nccl", "connection"))


def main(args: list[str] | None = None) -> None:
    r"""Runs a command. Bad input is one line on stderr and exit code 2. Under torchrun the first
    rank alone prints it, but for memory, which may be short on any."""
    args = sys.argv[1:] if args is None else args
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # all is imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if args == ["--version"]:
        return print(f"fokker {__version__}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever it cannot encode, as in ASCII
            stream.reconfigure(errors="backslashreplace")

    def say(text: object) -> None:
        if first_rank():
            print(f"fokker: {one_line(text)}", file=sys.stderr)

    def fail(text: object, code: int) -> NoReturn:
        say(text)
        if not first_rank():  # torchrun ends all ranks when one ends: let the first do so
            time.sleep(LINGER)
        sys.exit(code)

    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    command = None
    try:
        command = parse(args)
        if getattr(command, "device", None) is not None:
            checks.device(command.device)
        command.run()
        sys.stdout.flush()
    except BrokenPipeError:  # as after `| head -1`
        mute()
        sys.exit(128 + signal.SIGPIPE)
    except Unreliable as error:  # samples that are not to be trusted
        fail(f"no samples: {error}", 4)
    except (ValueError, OSError) as error:
        line = str(error)
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            place = Path(str(error.filename))
            line = f"expected a file that exists, got {place}"
            if not place.parent.is_dir():
                line = f"expected a folder that exists, got {place.parent}, for {place.name}"
        elif isinstance(error, OSError) and error.filename is not None and error.strerror:
            line = f"expected a place to read or write, got {error.filename}: {error.strerror}"
        fail(line, 2)
    except (OverflowError, ZeroDivisionError) as error:
        fail(f"expected numbers of a usual size, got one too large or too small: {error}", 2)
    except FloatingPointError as error:  # training diverged, or a chain did
        fail(error, 3)
    except (MemoryError, RuntimeError, TypeError) as error:
        if any(words in str(error) for words in OVERFLOW):
            fail(f"expected numbers of a usual size, got others: {first_line(error)}", 2)
        if lost(error):
            print(
                f"fokker: expected all ranks to go on, got one that ended (rank"
                f" {os.environ['RANK']} waited for it): {first_line(error)}",
                file=sys.stderr,
            )
            sys.exit(1)
        if not out_of_memory(error):
            raise
        where = f" on rank {os.environ['RANK']}" if "RANK" in os.environ else ""
        hint = ""
        if command is not None and hasattr(command, "slices"):  # of training
            hint = f"; a step needs less with --slices {2 * (command.slices or 1)}"
        line = f"expected what fits into memory{where}, got more: {first_line(error)}{hint}"
        print(f"fokker: {line}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as error:
        say(error)
        sys.exit(130)
    except KeyboardInterrupt as error:
        say(str(error) or "interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
