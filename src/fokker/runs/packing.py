r"""Packs: the state of a run in shards of a given size, to be carried to another machine.

A pack is a folder,

==================  ============================================================================
`shard-0000.bin`    the files of the run one after another, cut at a given number of bytes
`pack.json`         version; the length and SHA-256 of every shard and of every file; its own
                    SHA-256
==================  ============================================================================

It holds what training needs to go on: the configuration, the fingerprint of the data, the metrics,
the starts and the newest whole checkpoint, with the weights, all their averages and the moments of
every optimizer. Generators have no state of their own: the noise of step k comes from the seed and
k. Reports, previews and older checkpoints stay behind. `unpack` writes the same bytes into a new
run folder, whole or not at all: beside its place, the configuration last, so that what a killed
process leaves cannot be read as a run.

**In half precision** (`half`) the moments of the optimizers are rounded to bfloat16, and so is the
difference of each average from the weights,

.. math:: m \to \mathrm{bf16}(m), \qquad a \to \mathrm{bf16}(a - w) .

The weights w keep all their bits. A moment is then off by at most :math:`2^{-9}` of itself, once
per pack, and an average by :math:`2^{-9}` of its distance from the weights, an error that it
forgets as it moves on. `unpack` returns float32.
"""

__all__ = ["Packed", "light", "pack", "unpack", "whole"]

import hashlib
import json
import re
import tempfile

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from torch import Tensor
from typing import Any, NamedTuple

from . import checkpoints
from .averages import snapshots_of
from .checkpoints import BROKEN, Checkpoint, newest, seal
from .owner import Owner
from .. import checks
from ..files import beside, first_line, read_regular, write_bytes, write_text

VERSION = 1
SMALLEST = 2**10  # bytes of a shard
LARGEST = 2**30
LONGEST = 2**34  # bytes of a file of a run
TOTAL = 2**40  # bytes of a pack
HEADER = 2**26  # bytes of pack.json
CONFIG = "config.toml"
FILES = (CONFIG, "data.json", "metrics.jsonl", "starts.jsonl", "quality.jsonl")
INNER = re.compile(
    r"checkpoint/step-\d{8,}(\.\d+)?/(checkpoint\.json|part-\d{4,}\.safetensors)"
    r"|averages/step-\d{8,}\.safetensors"
)
SHARD = re.compile(r"shard-\d{4,}\.bin")


class Packed(NamedTuple):
    r"""What was packed."""

    step: int
    shards: tuple[Path, ...]
    bytes: int


# --- precision ---


def light(checkpoint: Checkpoint) -> Checkpoint:
    r"""Returns a checkpoint with its moments, and its averages as differences from the weights, in
    bfloat16."""

    def less(average: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (a - checkpoint.model[name]).bfloat16() if a.is_floating_point() else a
            for name, a in average.items()
        }

    return every(checkpoint, less, lambda field, t: t if field == "step" else t.bfloat16())


def whole(checkpoint: Checkpoint) -> Checkpoint:
    r"""Returns the checkpoint in float32 that `light` made one in bfloat16 of."""

    def more(average: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: checkpoint.model[name] + d.to(checkpoint.model[name].dtype)
            if d.is_floating_point()
            else d
            for name, d in average.items()
        }

    return every(checkpoint, more, lambda field, t: t if field == "step" else t.float())


def every(
    checkpoint: Checkpoint,
    average: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    moment: Callable[[str, Tensor], Tensor],
) -> Checkpoint:
    r"""Returns a checkpoint with all averages and all moments changed."""
    adam = {
        name: {field: moment(field, t) for field, t in fields.items()}
        for name, fields in (checkpoint.adam or {}).items()
    }
    return checkpoint._replace(
        average=average(checkpoint.average),
        powers=tuple(map(average, checkpoint.powers)),
        adam=None if checkpoint.adam is None else adam,
    )


# --- packing ---


def pack(
    folder: Path,
    out: Path,
    shard: int = 2**24,
    half: bool = False,
    snapshots: bool = False,
) -> Packed:
    r"""Packs the state of a run into a new folder, whole or not at all.

    Arguments:
        folder: The run folder. Nobody may train into it meanwhile.
        out: The folder of the pack, which does not exist yet.
        shard: The bytes of a shard, at most.
        half: Whether moments and averages are rounded to bfloat16.
        snapshots: Whether the copies of power-function averages come along.
    """
    checks.between(SMALLEST, LARGEST, shard=shard)
    if out.exists():
        raise ValueError(f"expected a new folder for the pack, got {out}, which exists")
    if not (folder / CONFIG).exists():
        raise ValueError(f"expected a run folder with a {CONFIG}, got {folder}")
    with Owner(folder) as owner, tempfile.TemporaryDirectory() as place:
        owner.take()
        checkpoint = newest(folder)
        root = folder
        if half:
            root = Path(place)
            checkpoints.write(root, light(checkpoint))
        inner = root / "checkpoint" / str(checkpoint.name)
        paths = [(name, folder / name) for name in FILES if (folder / name).exists()]
        paths += [(f"checkpoint/{inner.name}/{p.name}", p) for p in sorted(inner.iterdir())]
        if snapshots:
            paths += [(f"averages/{p.name}", p) for p in snapshots_of(folder).values()]
        out.parent.mkdir(parents=True, exist_ok=True)
        with beside(out, folder=True) as partial:
            shards, files = write_shards(partial, paths, shard)
            content = {
                "version": VERSION,
                "step": checkpoint.step,
                "half": half,
                "shards": shards,
                "files": files,
            }
            content["sha256"] = seal(content)
            write_text(partial / "pack.json", json.dumps(content, indent=1) + "\n")
            partial.rename(out)
    total = sum(entry["bytes"] for entry in shards)
    return Packed(checkpoint.step, tuple(out / entry["file"] for entry in shards), total)


def write_shards(
    folder: Path, paths: Iterable[tuple[str, Path]], size: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    r"""Writes files one after another into shards; returns what is said of both."""
    shards: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []

    def pieces() -> Iterator[bytes]:
        for name, path in paths:
            data = read_regular(path, LONGEST)
            files.append({"file": name} | mark(data))
            yield data

    def flush(data: bytes) -> None:
        name = f"shard-{len(shards):04d}.bin"
        write_bytes(folder / name, data)
        shards.append({"file": name} | mark(data))

    held = bytearray()
    for data in pieces():
        held += data
        while len(held) >= size:
            flush(bytes(held[:size]))
            del held[:size]
    if held:
        flush(bytes(held))
    return shards, files


def mark(data: bytes) -> dict[str, Any]:
    r"""Returns the length and the SHA-256 of bytes."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


# --- unpacking ---


def unpack(folder: Path, out: Path) -> int:
    r"""Writes a packed run into a new run folder, whole or not at all, and returns its step.

    Arguments:
        folder: The folder of the pack.
        out: The run folder, which does not exist yet.
    """
    if out.exists():
        raise ValueError(f"expected a new run folder, got {out}, which exists")
    content = read_pack(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    with beside(out, folder=True) as partial:
        stream, held = Stream(folder, content["shards"]), b""
        for entry in content["files"]:
            place = partial / entry["file"]
            place.parent.mkdir(parents=True, exist_ok=True)
            data = stream.take(entry["bytes"])
            if mark(data) != {key: entry[key] for key in ("bytes", "sha256")}:
                raise ValueError(f"{folder}: expected {entry['file']} as packed, got other bytes")
            if entry["file"] == CONFIG:
                held = data
            else:
                write_bytes(place, data)
        found = newest(partial)  # whole
        if content["half"]:
            checkpoints.write(partial, whole(found))
        # the last file: without it a folder that a killed process leaves is no run
        write_bytes(partial / CONFIG, held)
        partial.rename(out)
    return found.step


class Stream:
    r"""The bytes of shards one after another; each shard is checked before it is read from."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]]) -> None:
        self.folder, self.rest, self.held = folder, list(shards), bytearray()

    def take(self, count: int) -> bytes:
        r"""Returns the next bytes; fewer where there are no more."""
        while len(self.held) < count and self.rest:
            entry = self.rest.pop(0)
            path = self.folder / entry["file"]
            if not path.exists():
                missing = [e["file"] for e in (entry, *self.rest)]
                gone = [name for name in missing if not (self.folder / name).exists()]
                raise ValueError(
                    f"expected all shards of the pack in {self.folder}, got none of"
                    f" {', '.join(gone)}"
                )
            data = read_regular(path, entry["bytes"], self.folder)
            if mark(data) != {key: entry[key] for key in ("bytes", "sha256")}:
                raise ValueError(f"{path}: expected the shard that was packed, got other bytes")
            self.held += data
        data = bytes(self.held[:count])
        del self.held[:count]
        return data


def read_pack(folder: Path) -> dict[str, Any]:
    r"""Returns what `pack.json` says, checked; raises if it is not what was written."""
    path = folder / "pack.json"
    if not path.exists():
        raise ValueError(f"expected a pack with a pack.json, got {folder}, which has none")
    try:
        content = json.loads(read_regular(path, HEADER, folder))
        if content["sha256"] != seal(content):
            raise ValueError("it is not what was written")
        if content["version"] != VERSION:
            raise ValueError(f"its version is {checks.brief(content['version'])}, not {VERSION}")
        total = 0
        for entry in content["shards"]:
            if not SHARD.fullmatch(entry["file"]) or not 0 < entry["bytes"] <= LARGEST:
                raise ValueError(f"{checks.brief(entry)} is no shard")
            total += entry["bytes"]
        for entry in content["files"]:
            if entry["file"] not in FILES and not INNER.fullmatch(entry["file"]):
                raise ValueError(f"{checks.brief(entry['file'])} is no file of a run")
        if CONFIG not in [entry["file"] for entry in content["files"]]:
            raise ValueError("it has no configuration")
        if total > TOTAL or total != sum(int(entry["bytes"]) for entry in content["files"]):
            raise ValueError("its shards have other bytes than its files")
        return content | {"half": bool(content["half"])}
    except (*BROKEN, RecursionError) as error:
        raise ValueError(f"{path}: expected a whole pack: {first_line(error)}") from None
