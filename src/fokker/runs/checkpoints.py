r"""Checkpoints: the whole state of a run in pieces, each of which is checked when it is read.

=========================  ==================================================================
`part-0000.safetensors`    tensors, at most 15 MiB a file; a longer tensor is cut
`checkpoint.json`          version, step and shape of a point; where each tensor lies; the length
                           and SHA-256 of every part; what is no tensor; its own SHA-256
=========================  ==================================================================

The tensors are `model/NAME` and `average/NAME`, the weights and their moving average;
`power-I/NAME`, their power-function averages, if any;
`adam/NAME/FIELD`, the state of the optimizer; `state/I`, that of the objective; `best/NAME`, the
weights that a table is read with. Nothing is pickled, and nothing is read beyond the lengths that
were written down.

**Written whole or not at all**: into a folder beside its place, every file down to the disk, then
the folder, then renamed. A crash leaves the checkpoint before it. **Read whole or not at all**:
`newest` passes over what is cut short, changed or missing, and says so. The last `keep`
checkpoints of an evaluation stay, with the newest of any kind and the best judged.

A run that was rolled back goes on under the number of its next trial. A checkpoint of a later
trial is newer, whatever its step: `step-00000500`, then `step-00000300.1`.
"""

__all__ = ["LIMIT", "VERSION", "Best", "Checkpoint", "Name", "newest", "read", "write"]

import hashlib
import json
import math
import os
import re
import shutil
import torch
import warnings

from collections.abc import Iterable, Iterator
from pathlib import Path
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from typing import Any, NamedTuple

from ..checks import brief
from ..files import first_line, inner_folder, open_regular, read_regular, sync

VERSION = 3  # of the layout above
LIMIT = 15 * 2**20  # bytes a part
HEADER = 2**24  # bytes of checkpoint.json
LEFT = re.compile(r"\.partial-(old-)?step-\d{8,}(\.\d+)?")  # by a run that was killed
DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
# what reading a damaged or hostile checkpoint may raise
BROKEN = (
    SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OSError,
    OverflowError,
)  # fmt: skip


class Name(NamedTuple):
    r"""The name of a checkpoint, in the order in which they are made."""

    trial: int
    step: int

    def __str__(self) -> str:
        return f"step-{self.step:08d}" + (f".{self.trial}" if self.trial else "")

    @classmethod
    def of(cls, text: str) -> "Name | None":
        r"""Returns the name that a folder has, `None` if it is no checkpoint's."""
        found = re.fullmatch(r"step-(\d{8,})(?:\.(\d+))?", text)
        return found and cls(int(found.group(2) or 0), int(found.group(1)))


class Best(NamedTuple):
    r"""The averaged weights that a run is read with, where its task chooses among them."""

    step: int
    value: float  # the criterion, of which this is the least
    weights: dict[str, Tensor]
    card: dict[str, Any]  # what reading them needs


class Checkpoint(NamedTuple):
    r"""The whole state of a run after a number of steps."""

    step: int
    shape: tuple[int, ...]  # of a point
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    adam: dict[str, dict[str, Tensor]] | None = None  # by parameter; None if it was not kept
    state: tuple[Tensor, ...] = ()  # of the objective
    best: Best | None = None
    lines: list[dict[str, Any]] | None = None  # of metrics.jsonl; None if they are only there
    trial: int = 0  # the number of times that the run was rolled back
    back: tuple[Name, ...] = ()  # what it can be rolled back to: evaluations, and itself
    watch: dict[str, list[float]] | None = None  # what the guard remembers
    leader: tuple[float, Name] | None = None  # the least judgement so far, and whose it is
    seconds: float = 0.0  # of training so far
    powers: tuple[dict[str, Tensor], ...] = ()  # averages, by the width of the configuration

    @property
    def name(self) -> Name:
        r"""The name of its folder."""
        return Name(self.trial, self.step)


# --- writing ---


def named(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    r"""Yields the tensors of a checkpoint with their names."""
    for kind in ("model", "average"):
        for name, t in getattr(checkpoint, kind).items():
            yield f"{kind}/{name}", t
    for i, weights in enumerate(checkpoint.powers):
        for name, t in weights.items():
            yield f"power-{i}/{name}", t
    for name, fields in (checkpoint.adam or {}).items():
        for field, t in fields.items():
            yield f"adam/{name}/{field}", t
    for i, t in enumerate(checkpoint.state):
        yield f"state/{i}", t
    if checkpoint.best is not None:
        for name, t in checkpoint.best.weights.items():
            yield f"best/{name}", t


def parts(tensors: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    r"""Yields the pieces of each part: flat tensors, with what safetensors writes about each of
    them no more than a limit of bytes."""
    held: dict[str, Tensor] = {}
    free = limit
    for name, t in tensors:
        flat, i, whole = t.detach().reshape(-1), 0, False
        about = 160 + 6 * len(name)  # bytes, escaped
        while not whole:
            room = (free - about) // flat.element_size()
            if held and room < min(len(flat) - i, 1024):
                yield held
                held, free = {}, limit
                continue
            piece = flat[i : i + max(room, 1)].cpu().clone()
            held[f"{name}:{i}"] = piece
            i, free = i + len(piece), free - about - piece.nbytes
            whole = i == len(flat)
    if held:
        yield held


def write(
    folder: Path,
    checkpoint: Checkpoint,
    keep: int = 2,
    known: set[Name] | None = None,
    limit: int = LIMIT,
) -> Path:
    r"""Writes a checkpoint into a run folder, whole or not at all, and drops the oldest.

    Arguments:
        folder: The run folder.
        checkpoint: The checkpoint.
        keep: The number of checkpoints of an evaluation that stay, beside the best and the newest.
        known: The checkpoints that may be dropped; all in the folder if not given.
        limit: The bytes of a part.
    """
    root = inner_folder(folder / "checkpoint")
    target = root / str(checkpoint.name)
    partial = root / f".partial-{target.name}"
    for left in root.iterdir():  # of a run that was killed
        if LEFT.fullmatch(left.name) and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
    try:
        partial.mkdir()
        write_parts(partial, checkpoint, limit)
        sync(partial)
        aside = root / f".partial-old-{target.name}"
        if target.exists():  # broken, or the same steps taken again
            target.rename(aside)
        partial.rename(target)
        sync(root)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError, RuntimeError) as error:  # a full disk has many names
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"{target}: {first_line(error)}") from error
    leader = checkpoint.leader
    stay = {checkpoint.name, *checkpoint.back[-keep:], *([leader[1]] if leader else [])}
    found = set(names(root))
    for name in (found if known is None else found & known) - stay:
        shutil.rmtree(root / str(name))
    return target


def write_parts(folder: Path, checkpoint: Checkpoint, limit: int) -> None:
    r"""Writes the files of a checkpoint, down to the disk."""
    files, tensors = {}, {}
    for i, held in enumerate(parts(named(checkpoint), limit)):
        data, file = save(held), f"part-{i:04d}.safetensors"
        with (folder / file).open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        files[file] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for piece in held:
            tensors.setdefault(piece.rpartition(":")[0], {"parts": []})["parts"].append(file)
    for name, t in named(checkpoint):
        tensors[name] |= {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
    best = checkpoint.best
    content = {
        "version": VERSION,
        "step": checkpoint.step,
        "shape": list(checkpoint.shape),
        "trial": checkpoint.trial,
        "back": [list(name) for name in checkpoint.back],
        "leader": checkpoint.leader,
        "watch": checkpoint.watch,
        "seconds": checkpoint.seconds,
        "lines": checkpoint.lines,
        "best": best and {"step": best.step, "value": best.value, "card": best.card},
        "files": files,
        "tensors": tensors,
    }
    content["sha256"] = seal(content)
    with (folder / "checkpoint.json").open("w") as handle:
        handle.write(json.dumps(content, allow_nan=False))
        handle.flush()
        os.fsync(handle.fileno())


def seal(content: dict[str, Any]) -> str:
    r"""Returns the checksum of all that is said in a header but the checksum itself."""
    said = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# --- reading ---


def broken(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"expected a whole checkpoint in {path}, got a broken one: {first_line(error)}"
    )


def names(root: Path) -> list[Name]:
    r"""Returns the names of the checkpoints in a folder, the newest last. A link is none."""
    if not root.is_dir() or root.is_symlink():
        return []
    with os.scandir(root) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(name for text in folders if (name := Name.of(text)) is not None)


def header_of(path: Path) -> dict[str, Any]:
    r"""Returns the header of a checkpoint, unchecked; an empty one if there is none to be read."""
    try:
        content = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def text_of(path: Path) -> str:
    r"""Returns the text of the header of a checkpoint, which lies in `checkpoint/` of a run."""
    return read_regular(path / "checkpoint.json", HEADER, path.parents[1]).decode()


def newest(folder: Path) -> Checkpoint:
    r"""Reads the newest whole checkpoint of a run folder; a warning names each newer one passed
    over.

    Arguments:
        folder: The run folder.
    """
    root = folder / "checkpoint"
    found = names(root)
    if not found:
        raise ValueError(
            f"expected a run with a checkpoint in {folder}, got one that has none yet;"
            " begin it again with --restartable, or train into another folder"
        )
    first: ValueError | None = None
    for name in reversed(found):
        path = root / str(name)
        version = header_of(path).get("version")
        if isinstance(version, int) and version != VERSION:
            advice = "use a newer fokker" if version > VERSION else "train it again"
            raise ValueError(
                f"expected a checkpoint of version {VERSION} in {path}, got version"
                f" {brief(version)};"
                f" {advice}"
            )
        try:
            checkpoint = read(path)
        except ValueError as error:
            if name not in names(root):  # its writer has dropped it meanwhile, for a newer one
                return newest(folder)
            first = first or error
            continue
        if first is not None:
            warnings.warn(f"{first}; passed over for {path.name}", stacklevel=2)
        return checkpoint
    assert first is not None
    raise first


def read(path: Path) -> Checkpoint:
    r"""Reads a checkpoint, whole, or raises a `ValueError` that says what is wrong with it."""
    try:
        header = json.loads(text_of(path))
        if header["sha256"] != seal(header):
            raise ValueError("checkpoint.json is not what was written")
        if header["version"] != VERSION:
            raise ValueError(f"its version is {brief(header['version'])}, not {VERSION}")
        tensors = read_tensors(path, header)
        said, best = header["best"], None
        if said is not None:
            weights = under(tensors, "best")
            best = Best(int(said["step"]), float(said["value"]), weights, dict(said["card"]))
        adam: dict[str, dict[str, Tensor]] = {}
        for name, t in under(tensors, "adam").items():
            parameter, _, field = name.rpartition("/")
            adam.setdefault(parameter, {})[field] = t
        state, leader = under(tensors, "state"), header["leader"]
        lines, watch = header["lines"], header["watch"]
        if lines is not None:
            lines = [line | {"step": int(line["step"])} for line in lines]
        if watch is not None:
            watch = {name: [float(v) for v in values] for name, values in watch.items()}
        return Checkpoint(
            int(header["step"]),
            shape_of(header["shape"]),
            under(tensors, "model"),
            under(tensors, "average"),
            adam,
            tuple(state[str(i)] for i in range(len(state))),
            best,
            lines,
            int(header["trial"]),
            tuple(Name(*map(int, pair)) for pair in header["back"]),
            watch,
            leader and (float(leader[0]), Name(*map(int, leader[1]))),
            float(header["seconds"]),
            tuple(powers(tensors)),
        )
    except BROKEN as error:
        raise broken(path, error) from None


def shape_of(sizes: Any) -> tuple[int, ...]:
    r"""Returns the shape of a point that was read."""
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= 8:
        raise ValueError(f"expected the shape of a point, got {brief(sizes)}")
    for n in sizes:
        if type(n) is not int or not 1 <= n < 2**31:
            raise ValueError(f"expected the shape of a point, got {brief(sizes)}")
    return tuple(sizes)


def under(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {n.removeprefix(f"{kind}/"): t for n, t in tensors.items() if n.startswith(f"{kind}/")}


def powers(tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    r"""Yields the power-function averages in their order."""
    for i in range(len(tensors)):
        if not (weights := under(tensors, f"power-{i}")):
            return
        yield weights


def read_tensors(path: Path, header: dict[str, Any]) -> dict[str, Tensor]:
    r"""Returns the tensors of a checkpoint, each part checked before it is read."""
    pieces: dict[str, dict[int, Tensor]] = {}
    for file, said in header["files"].items():
        if not re.fullmatch(r"part-\d{4,}\.safetensors", file):
            raise ValueError(f"{brief(file)} is no name of a part")
        with open_regular(path / file, LIMIT, path.parents[1]) as handle:
            size, told = os.fstat(handle.fileno()).st_size, int(said["bytes"])
            if size != told:
                raise ValueError(f"{file} has {size} bytes instead of {brief(min(told, LIMIT))}")
            data = handle.read(LIMIT)
        if hashlib.sha256(data).hexdigest() != said["sha256"]:
            raise ValueError(f"{file} is not what was written")
        for piece, t in load(data).items():
            name, _, place = piece.rpartition(":")
            pieces.setdefault(name, {})[int(place)] = t
    tensors = {}
    for name, said in header["tensors"].items():
        dtype, shape = DTYPES[said["dtype"]], [int(n) for n in said["shape"]]
        flat = torch.cat([t for _, t in sorted(pieces.pop(name).items())])
        if flat.dtype != dtype or flat.numel() != math.prod(shape):
            raise ValueError(f"{name[:80]} has {flat.numel()} numbers of {flat.dtype}")
        tensors[name] = flat.reshape(shape)
    if pieces:
        raise ValueError(f"{min(pieces)[:80]} is in a part, but not in checkpoint.json")
    return tensors
