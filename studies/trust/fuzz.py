r"""Files from a stranger: changed at random, read, and refused in one line or not at all.

Valid files of every kind that fokker reads are changed: bits flipped, bytes cut, put in and
spliced with those of another file; numbers made absurd; values of JSON swapped, dropped and
nested; checksums made to fit what was changed, so that they do not hide it. Each is then read in a
process of its own whose memory and time are bounded. It may be read, or refused with a
`ValueError` or an `OSError` of one line. Anything else is a fault: another exception, a line that
does not say what was expected, a crash of the interpreter, memory or time beyond the bound, even
if an error of one line came of it.

An input follows from the seed, its kind and its number (but for times and paths in the run
folders), and a faulty one is kept:

    python studies/trust/fuzz.py --inputs 100000 --out results/trust.json
    python studies/trust/fuzz.py --kind csv --number 17      # one input again
    python studies/trust/fuzz.py --kind csv --replay FILE    # a file that was kept
"""

import argparse
import copy
import faulthandler
import functools
import hashlib
import io
import json
import multiprocessing
import numpy as np
import os
import random
import re
import resource
import struct
import tempfile
import time
import torch
import traceback
import warnings
import zlib

from collections.abc import Callable
from dataclasses import replace
from fokker import fit, load
from fokker.data.images import read_images
from fokker.data.picture import decode
from fokker.data.table import read_table
from fokker.objectives import OBJECTIVES, Grid, LevelDCD, LogNormal, Noisy, Preserving
from fokker.runs import checkpoints, shipped, toml
from fokker.runs import folder as runs
from fokker.runs.checkpoints import Best, Checkpoint, Name
from fokker.runs.config import (
    Config,
    ImageData,
    Network,
    Optimization,
    ResNet,
    TableData,
    UNet,
)
from fokker.studio import request
from fokker.tasks import Run, task_of
from pathlib import Path
from studies.trust import record
from typing import Any, NamedTuple

MEMORY = 3 * 2**30  # bytes a reader may take beyond what its process began with
SECONDS = 10.0  # an input
LONGEST = 500  # characters of an error
MEMORY_DISK = Path("/dev/shm")  # where files are written faster, if there is one
ABSURD = (
    b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"4294967295", b"9223372036854775807",
    b"18446744073709551616", b"-9223372036854775809", b"1e308", b"1e999", b"-1e999", b"nan",
    b"inf", b"NaN", b"Infinity", b"1e-400", b"0x" + b"f" * 6000, b"9" * 400, b"9" * 5000, b"1_000",
    b"1979-05-27",
    b"true", b"null", b"''", b'"x"', b"[]", b"{}", b"[" * 60000, b"{'a':" * 3000,
)  # fmt: skip
VALUES = (
    0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(2**63), 1e308, float("inf"), float("nan"), "", "x",
    "\u0000", "é" * 300, None, True, [], {}, [[]], [1, 2], [-1], [10**30, 0], {"a": 1}, "float64",
    "../x", [1e308] * 3,
)  # fmt: skip
WORDS = (
    b"\x00" * 64,
    b"\xff" * 64,
    b'"',
    b"\n",
    b"\r",
    b"\t",
    b";",
    b",",
    b"\xef\xbb\xbf",
    b"9" * 200_000,
)


# --- changes ---


def absurd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def numbers(rng: random.Random, data: bytearray) -> None:
    found = [*re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data[:200_000])]
    if found:
        one = rng.choice(found)
        data[one.start() : one.end()] = rng.choice(ABSURD)


def words(rng: random.Random, data: bytearray) -> None:
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice((
        0,
        1,
        2 ** (8 * width - 1),
        2 ** (8 * width) - 1,
        rng.getrandbits(8 * width),
    ))
    at = rng.randrange(len(data) + 1)
    data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def change(rng: random.Random, content: bytes, others: tuple[bytes, ...]) -> bytes:
    r"""Returns a file with one to four changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 8, 64, 1024)))
        match rng.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
            case 4:
                data[at:at] = data[at:end] * rng.choice((1, 2, 50))
            case 5:
                other = rng.choice(others)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case 6:
                data[at:at] = rng.choice(WORDS)
            case 7:
                words(rng, data)
            case _:
                numbers(rng, data)
    return bytes(data)


def values(rng: random.Random, tree: Any) -> Any:
    r"""Returns a tree of JSON with one value swapped, dropped, doubled or nested."""
    places, walk = [], [tree]
    while walk:
        node = walk.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk.append(node[key])
    if not places:
        return absurd(rng)
    node, key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1:
            node[key] = copy.deepcopy(rng.choice(places)[0])
        case 2:
            deep: Any = node[key]
            for _ in range(rng.choice((1, 5, 100))):
                deep = [deep]
            node[key] = deep
        case 3 if isinstance(node, dict):
            node[rng.choice(("x", "", "kind", "step", "part-0000.safetensors:0"))] = node.pop(key)
        case _:
            node[key] = absurd(rng)
    return tree


def change_json(rng: random.Random, content: bytes) -> Any:
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = values(rng, tree)
        if not isinstance(tree, dict | list):
            return {}
    return tree


def spell(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b"[" * 100_000


# --- kinds ---


class Kind(NamedTuple):
    r"""A kind of file: how an input of it is made, and how it is read in an empty folder."""

    share: int  # of the inputs
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path], object]


def tables() -> tuple[bytes, ...]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3)).round(4).tolist()
    lines = [",".join(map(str, row)) for row in rows]
    return tuple(
        "\n".join(part).encode()
        for part in (
            ["a,b,c", *lines],
            lines,
            ['"a, x";b;c', *(line.replace(",", ";") for line in lines)],
            ["\ufeffu\tv\tw", *(line.replace(",", "\t") for line in lines), "", ""],
            ["x", "1", "2", "3e5", "-4.5E-3"],
        )
    )


def arrays() -> tuple[bytes, ...]:
    out = []
    for x in (np.arange(12.0).reshape(6, 2), np.arange(5, dtype=">i2"), np.ones((3, 4), "f4").T):
        file = io.BytesIO()
        np.save(file, x)
        out.append(file.getvalue())
    return tuple(out)


def change_array(rng: random.Random, content: bytes) -> bytes:
    r"""Returns an array whose header has another shape or type, and its true length."""
    shape = rng.choice((
        "(0, 1000000000000)", "(1000000000000,)", "(2, -1)", "()", "(3,)",
        "(10000000000, 10000000000)",
        "(6, 2, 1)", "(9" * 300, "(2, 0)", "'x'", "(1.5,)", "(True,)", "((2,),)", "(4, 1000000)",
    ))  # fmt: skip
    kind = rng.choice((
        "'<f8'", "'|O'", "'<f2'", "'|V0'", "'|S1000000000'", "'<c16'", "'<M8[s]'",
        "[('a', '<f8')]",
        "[('a', '<f8', (1000000000,))]", "'<f16'", "'x'", "None", "'<i4'", "'|b1'",
        "'|V2147483647'",
    ))  # fmt: skip
    order = rng.choice(("False", "True", "None"))
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    magic = b"\x93NUMPY" + rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x04\x00"))
    size = struct.pack("<H" if magic[6] == 1 else "<I", len(text))
    return magic + size + text.encode() + content[128:]


def pictures(kind: str) -> tuple[bytes, ...]:
    from PIL import Image

    rng, out = np.random.default_rng(0), []
    for mode, shape in (("L", (5, 7)), ("RGB", (6, 6, 3)), ("RGBA", (8, 8, 4)), ("P", (5, 5))):
        if (kind == "JPEG" and mode in {"RGBA", "P"}) or (kind == "WEBP" and mode == "P"):
            continue
        image = Image.fromarray(rng.integers(0, 255, shape, np.uint8)).convert(mode)
        file = io.BytesIO()
        own = {"exif": image.getexif()} if kind in {"PNG", "JPEG", "WEBP"} else {}
        own |= {"lossless": True} if kind == "WEBP" else {}
        image.save(file, kind, **own)
        out.append(file.getvalue())
    if kind in {"PNG", "WEBP"}:  # moving
        frames = [Image.fromarray(rng.integers(0, 255, (6, 6, 3), np.uint8)) for _ in range(3)]
        file = io.BytesIO()
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        out.append(file.getvalue())
    return tuple(out)


@functools.cache
def zeros(n: int) -> bytes:
    return zlib.compress(bytes(n), 9)


def change_png(rng: random.Random, content: bytes) -> bytes:
    r"""Returns a PNG with a chunk changed, doubled, dropped or put in, and its checksums right."""
    chunks, at = [], 8
    while at < len(content):
        (n,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + n]))
        at += 12 + n
    i = rng.randrange(len(chunks))
    name, body = chunks[i]
    match rng.randrange(6):
        case 0:
            del chunks[i]
        case 1:
            chunks.insert(rng.randrange(len(chunks) + 1), (name, body))
        case 2:
            side = struct.pack(">II", *(rng.choice((0, 1, 8192, 8193, 2**31 - 1)) for _ in "wh"))
            chunks[0] = (chunks[0][0], side + chunks[0][1][8:])
        case 3:
            bomb = zeros(rng.choice((2**10, 2**24, 2**27)))
            kind, head = rng.choice(((b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0"), (b"IDAT", b"")))
            chunks.insert(rng.randrange(1, len(chunks)), (kind, head + bomb))
        case 4:
            kind = rng.choice((
                b"eXIf",
                b"tRNS",
                b"PLTE",
                b"acTL",
                b"fcTL",
                b"fdAT",
                b"iTXt",
                b"gAMA",
            ))
            chunks.insert(
                rng.randrange(1, len(chunks)), (kind, rng.randbytes(rng.choice((1, 8, 26))))
            )
        case _:
            chunks[i] = (name, change(rng, body, (b"x",)))
    out = content[:8]
    for name, body in chunks:
        out += struct.pack(">I", len(body)) + name + body
        out += struct.pack(">I", zlib.crc32(name + body))
    return out


def change_picture(rng: random.Random, kind: str, files: tuple[bytes, ...]) -> bytes:
    content = rng.choice(files)
    if kind == "PNG" and rng.random() < 0.6:
        return change_png(rng, content)
    return change(rng, content, files)


def parquet(columns: dict[str, Any], **how: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **how)
    return file.getvalue()


def image_column(contents: list[bytes | None]) -> dict[str, Any]:
    return {"image": [{"bytes": content, "path": None} for content in contents]}


def read_parquet_images(content: bytes, folder: Path) -> None:
    (folder / "train-0.parquet").write_bytes(content)
    read_images(folder)


def read_file(suffix: str, content: bytes, folder: Path) -> None:
    path = folder / f"x{suffix}"
    path.write_bytes(content)
    read_table(path)


def configurations() -> tuple[bytes, ...]:
    out = [Config(objective=kind()) for kind in OBJECTIVES.values()]
    out += [
        replace(out[0], network=own, data=ImageData())
        for own in (ResNet(), UNet(), UNet(form="pool"))
    ]
    out += [Config(TableData("x.csv"), patience=3), Config(network=Network(confine=None))]
    laws = (Grid(), LogNormal(), Preserving())
    out += [Config(objective=LevelDCD(law)) for law in laws]
    out.append(Config(objective=Noisy(Noisy(LevelDCD()))))
    return tuple(toml.dumps(one).encode() for one in out)


def change_config(rng: random.Random, files: tuple[bytes, ...]) -> bytes:
    content = rng.choice(files)
    if rng.random() < 0.4:
        return change(rng, content, files)
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        i = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[i]
            case 1:
                lines.insert(i, rng.choice(lines))
            case 2:
                deep = ".objective" * rng.choice((1, 2, 3, 4, 8, 9, 20, 40, 1500))
                lines.insert(0, f'objective{deep} = {{kind = "noisy"}}')
            case 3:
                lines[i] = lines[i].partition("=")[0] + "=" + "{a=" * 300 + "1" + "}" * 300
            case _:
                word = (
                    rng.choice(ABSURD).decode() if rng.random() < 0.7 else json.dumps(absurd(rng))
                )
                lines[i] = f"{lines[i].partition('=')[0]}= {word}"
        if not lines:
            break
    return "\n".join(lines).encode()


def read_config(content: bytes, folder: Path) -> None:
    (folder / "config.toml").write_bytes(content)
    runs.read_config(folder)


def one_checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    weights = {"w": torch.randn(3, 4), "b": torch.randn(3).double(), "none": torch.zeros(0, 2)}
    best = Best(1, 0.5, {"w": torch.randn(2)}, {"columns": ["a", "b"]})
    adam = {"w": {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 4)}}
    lines = [{"step": 1, "loss": 0.5, "kl": None}]
    watch = {"norms": [0.1, 0.2], "losses": [1.0]}
    return Checkpoint(1, (2,), weights, weights, adam, (torch.randn(4, 2),), best, lines, 0,
                      (Name(0, 1),), watch, (0.5, Name(0, 1)), 3.0)  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def change_part(rng: random.Random, content: bytes) -> bytes:
    r"""Returns a file of safetensors whose header was changed, and has its true length."""
    (n,) = struct.unpack("<Q", content[:8])
    if rng.random() < 0.3:
        return change(rng, content, (content,))
    header = spell(change_json(rng, content[8 : 8 + n]))
    if rng.random() < 0.2:
        header = change(rng, header, (content,))
    return struct.pack("<Q", len(header)) + header + content[8 + n :]


def change_header(rng: random.Random, content: bytes) -> bytes:
    r"""Returns a header of a checkpoint that was changed, mostly with its checksum right."""
    if rng.random() < 0.2:
        return change(rng, content, (content,))
    tree = change_json(rng, content)
    if isinstance(tree, dict) and "sha256" in tree and rng.random() < 0.9:
        try:
            tree["sha256"] = checkpoints.seal(tree)
        except (ValueError, RecursionError, TypeError):
            return spell(tree)
    return spell(tree)


def change_one(rng: random.Random, files: dict[str, bytes]) -> bytes:
    r"""Returns the name of a file of a folder, a line, and its new content."""
    name = rng.choice([*files])
    content = files[name]
    if name.endswith("checkpoint.json"):
        new = change_header(rng, content)
    elif name.endswith(".safetensors"):
        new = change_part(rng, content)
    elif name.endswith(".json") and rng.random() < 0.8:
        new = spell(change_json(rng, content))
    elif name.endswith(".jsonl") and rng.random() < 0.8:
        new = spell(change_json(rng, content.splitlines()[0]))
    elif name.endswith(".toml"):
        new = change_config(rng, (content,))
    else:
        new = change(rng, content, (content,))
    return name.encode() + b"\n" + new


def lay(files: dict[str, bytes], content: bytes, folder: Path) -> None:
    r"""Writes the files of a folder, one of them changed, with the checksums of what was
    changed."""
    first, _, new = content.partition(b"\n")
    name = first.decode()
    own = files | {name: new}
    if re.fullmatch(r"part-\d+\.safetensors", short := name.rpartition("/")[2]):
        head = name.removesuffix(short) + "checkpoint.json"
        tree = json.loads(own[head])
        tree["files"][short] = {"bytes": len(new), "sha256": hashlib.sha256(new).hexdigest()}
        own[head] = json.dumps(tree | {"sha256": checkpoints.seal(tree)}).encode()
    if (sums := name.removesuffix(short) + "SHA256SUMS") in own and name != sums:
        beside = [k for k in own if k != sums]
        lines = [f"{hashlib.sha256(own[k]).hexdigest()}  {k.rpartition('/')[2]}\n" for k in beside]
        own[sums] = "".join(lines).encode()
    for place, data in own.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_checkpoint(files: dict[str, bytes], content: bytes, folder: Path) -> None:
    lay(files, content, folder)
    checkpoints.newest(folder)


def read_run(files: dict[str, bytes], content: bytes, folder: Path) -> None:
    lay(files, content, folder)
    run = load(folder)
    _ = run.judged, run.weights


def read_shipped(files: dict[str, bytes], content: bytes, folder: Path) -> None:
    lay(files, content, folder)
    _ = shipped.read("mini", folder).judged


def without_report(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".html")}


def a_run() -> dict[str, bytes]:
    own = Config(
        network=Network(width=4, layers=2, confine=0.7),
        optimization=Optimization(steps=2, batch=4),
        objective=OBJECTIVES["sm"](),
        evaluate=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        fit(own, folder)
        return without_report(contents(Path(folder)))


def a_table_run() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv")
        rng = np.random.default_rng(0)
        path.write_text("\n".join(",".join(map(str, row)) for row in rng.normal(size=(30, 2))))
        own = Config(
            TableData(str(path)),
            OBJECTIVES["sm"](),
            Network(width=4, layers=2),
            Optimization(steps=2, batch=4),
            evaluate=2,
        )
        fit(own, Path(folder, "run"))
        return without_report(contents(Path(folder, "run")))


def a_shipped() -> dict[str, bytes]:
    own = Config(ImageData("x"), LevelDCD(conditional=True), UNet(width=8, blocks=1))
    shape = (1, 8, 8)
    energy = own.build(shape)
    for p in energy.parameters():
        torch.nn.init.normal_(p, std=0.1)
    run = Run(Path("x"), own, task_of(own), energy, shape, 3, 3, [{"step": 3, "loss": 0.5}])
    with tempfile.TemporaryDirectory() as folder:
        shipped.export(run, "mini", Path(folder))
        return contents(Path(folder))


def requests() -> tuple[bytes, ...]:
    job = {
        "op": "start",
        "data": "rings",
        "objectives": [toml.encode(OBJECTIVES["dcd"]())],
        "network": toml.encode(Network()) | {"kind": "mlp"},
        "optimization": toml.encode(Optimization()),
        "seed": 3,
    }
    drawn = job | {"points": [[0.1 * i % 1, -0.05 * i % 1] for i in range(20)]}
    drawn["objectives"] = [toml.encode(OBJECTIVES[name]()) for name in ("pcd", "multi-time")]
    return json.dumps(job).encode(), json.dumps(drawn).encode()


def read_request(content: bytes, folder: Path) -> None:
    request.parse(request.read(content.decode(errors="replace")))


def kinds(names: tuple[str, ...] | None = None) -> dict[str, Kind]:
    r"""Returns the kinds; those of `names` alone are prepared."""

    def text(files: tuple[bytes, ...], suffix: str, share: int) -> Kind:
        make = lambda rng: change(rng, rng.choice(files), files)
        return Kind(share, make, functools.partial(read_file, suffix))

    def npy() -> Kind:
        files = arrays()

        def make(rng: random.Random) -> bytes:
            if rng.random() < 0.5:
                return change_array(rng, files[0])
            return change(rng, rng.choice(files), files)

        return Kind(10, make, functools.partial(read_file, ".npy"))

    def picture(kind: str, share: int) -> Kind:
        files = pictures(kind)
        make = lambda rng: change_picture(rng, kind, files)
        return Kind(share, make, lambda content, folder: decode(content, "image"))

    def images() -> Kind:
        png, webp = pictures("PNG"), pictures("WEBP")
        files = tuple(parquet(image_column([png[0]] * 3), compression=c) for c in ("NONE", "ZSTD"))

        def make(rng: random.Random) -> bytes:
            if rng.random() < 0.5:
                return change(rng, rng.choice(files), files)
            rows: list[bytes | None] = [png[1]] * rng.choice((1, 2, 9))
            kind, other = rng.choice((("PNG", png), ("WEBP", webp)))
            rows[rng.randrange(len(rows))] = rng.choice((
                change_picture(rng, kind, other),
                None,
                b"",
            ))
            return parquet(image_column(rows))

        return Kind(3, make, read_parquet_images)

    def columns() -> Kind:
        import pyarrow as pa

        own = {"a": [1.0, 2.0, 3.0], "b": [1, 2, 3], "c": [0.5, 1.5, 2.0]}
        files = tuple(parquet(own, compression=c) for c in ("NONE", "SNAPPY", "GZIP"))
        files += (parquet({"a": [1.0, None, 3.0], "b": ["x", "y", "z"]}),)
        # a few bytes that promise many numbers
        bombs = tuple(
            parquet({"a": pa.array(np.zeros(n))}, compression="ZSTD") for n in (2**20, 2**24)
        )

        def make(rng: random.Random) -> bytes:
            content = rng.choice(bombs) if rng.random() < 0.05 else rng.choice(files)
            return change(rng, content, files)

        return Kind(3, make, functools.partial(read_file, ".parquet"))

    def toml() -> Kind:
        files = configurations()
        return Kind(25, lambda rng: change_config(rng, files), read_config)

    def checkpoint(which: str, share: int) -> Kind:
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.write(Path(folder), one_checkpoint())
            files = contents(Path(folder))
        (name,) = (name for name in files if name.endswith(which))
        make = lambda rng: change_one(rng, {name: files[name]})
        return Kind(share, make, functools.partial(read_checkpoint, files))

    def folder(files: dict[str, bytes], read: Callable[..., Any]) -> Kind:
        return Kind(3, lambda rng: change_one(rng, files), functools.partial(read, files))

    def asked() -> Kind:
        files = requests()

        def make(rng: random.Random) -> bytes:
            content = rng.choice(files)
            return (
                change(rng, content, files)
                if rng.random() < 0.3
                else spell(change_json(rng, content))
            )

        return Kind(5, make, read_request)

    made: dict[str, Callable[[], Kind]] = {
        "toml": toml,
        "checkpoint": lambda: checkpoint("checkpoint.json", 15),
        "safetensors": lambda: checkpoint("part-0000.safetensors", 12),
        "csv": lambda: text(tables(), ".csv", 15),
        "npy": npy,
        "png": lambda: picture("PNG", 10),
        "webp": lambda: picture("WEBP", 5),
        "jpeg": lambda: picture("JPEG", 3),
        "bmp": lambda: picture("BMP", 3),
        "parquet-images": images,
        "parquet-table": columns,
        "run": lambda: folder(a_run(), read_run),
        "table-run": lambda: folder(a_table_run(), read_run),
        "shipped": lambda: folder(a_shipped(), read_shipped),
        "request": asked,
    }
    return {name: make() for name, make in made.items() if names is None or name in names}


# --- running ---


def fault(error: BaseException) -> str | None:
    r"""Returns what is wrong with an error, `None` if it is one that is documented."""
    line = str(error)
    if not isinstance(error, ValueError | OSError):
        return f"expected a ValueError or an OSError, got {type(error).__name__}: {line[:200]}"
    if not line or len(line.splitlines()) != 1 or len(line) > LONGEST:
        return f"expected one line of at most {LONGEST} characters, got {line[:200]!r}"
    if isinstance(error, ValueError) and "expected" not in line:
        return f"expected a line that says what was expected, got {line[:200]!r}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause):
            return f"expected at most {MEMORY} bytes more, got {line[:200]!r}"
        cause = cause.__cause__ or cause.__context__
    return None


def attempt(kind: Kind, content: bytes, root: Path) -> tuple[bool, str | None]:
    r"""Reads an input; returns whether it could be read, and what was wrong with how it was
    refused."""
    with tempfile.TemporaryDirectory(dir=root) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind.read(content, Path(folder))
        except Exception as error:  # noqa: BLE001, what is looked for
            wrong = fault(error)
            where = "".join(traceback.format_exception(error)) if wrong else ""
            return False, wrong and f"{wrong}\n{where[-1500:]}"
    return True, None


def numbered(name: str, seed: int, number: int) -> random.Random:
    return random.Random(f"{seed} {name} {number}")


def work(name: str, seed: int, start: int, end: int, now: Any, said: Any, memory: int) -> None:
    r"""Reads inputs in a process of its own, with bounded memory; writes down the one it is at."""
    torch.set_num_threads(1)
    faulthandler.enable()
    kind = kinds((name,))[name]
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as folder:
        os.environ["FOKKER_CACHE"] = str(Path(folder, "cache"))
        root = Path(folder)
        attempt(kind, kind.make(numbered(name, seed, start)), root)  # imports what it needs
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))
        for number in range(start, end):
            now[0], now[1] = number, time.monotonic()
            content = kind.make(numbered(name, seed, number))
            read, wrong = attempt(kind, content, root)
            now[2] += read
            if wrong:
                said.send((number, wrong, content))
        now[0] = end


def fuzz(
    name: str, seed: int, inputs: int, out: Path, memory: int = MEMORY
) -> tuple[int, list[str]]:
    r"""Returns how many inputs of a kind were read, and the faults, whose inputs are kept.

    Arguments:
        name: The kind.
        seed: The seed.
        inputs: The number of inputs.
        out: The folder for faulty inputs.
        memory: The bytes a reader may take.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fokker", "pyarrow.parquet", "fokker.studio.request"])
    faults, number, read = [], 0, 0

    def keep(number: int, wrong: str, content: bytes | None = None) -> None:
        path = out / f"{name}-{seed}-{number}"
        out.mkdir(parents=True, exist_ok=True)
        if content is None:  # of a process that ended
            content = kinds((name,))[name].make(numbered(name, seed, number))
        path.write_bytes(content)
        again = f"python studies/trust/fuzz.py --kind {name} --replay {path}"
        faults.append(f"{name} {number}: {wrong}\n    {again}")

    while number < inputs:
        now = context.Array("d", [number, 0.0, 0.0])
        heard, said = context.Pipe(duplex=False)
        task = (name, seed, number, inputs, now, said, memory)
        process = context.Process(target=work, args=task, daemon=True)
        process.start()
        said.close()
        while process.is_alive():
            process.join(0.05)
            while heard.poll():
                try:
                    keep(*heard.recv())
                except EOFError:
                    break
            if now[1] and time.monotonic() - now[1] > SECONDS and now[0] < inputs:
                process.kill()
                process.join()
                keep(int(now[0]), f"expected an end within {SECONDS:g} s, got none")
        while heard.poll():
            try:
                keep(*heard.recv())
            except EOFError:
                break
        read += int(now[2])
        if process.exitcode == 0:
            break
        if process.exitcode != -9:
            keep(
                int(now[0]), f"expected the interpreter to live, got exit code {process.exitcode}"
            )
        number = int(now[0]) + 1
        if len(faults) > 50:
            break
    return read, faults


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="*", default=None)
    parser.add_argument("--number", type=int, default=None, help="read one input, without bounds")
    parser.add_argument("--replay", type=Path, default=None, help="read a file, without bounds")
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    chosen = kinds(given.kind and tuple(given.kind))
    if given.number is not None or given.replay is not None:
        ((name, kind),) = chosen.items()
        if given.replay is not None:
            content = given.replay.read_bytes()
        else:
            content = kind.make(numbered(name, given.seed, given.number or 0))
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FOKKER_CACHE"] = folder
            place = Path(folder, "x")
            place.mkdir()
            return print(kind.read(content, place))
    total = sum(kind.share for kind in chosen.values())
    counts, faults, begin = {}, [], time.perf_counter()
    for name, kind in chosen.items():
        inputs, start = -(-given.inputs * kind.share // total), time.perf_counter()
        read, found = fuzz(name, given.seed, inputs, given.faults)
        faults += found
        counts[name] = inputs
        took = time.perf_counter() - start
        print(
            f"{name}: {inputs} inputs, {read} read, {len(found)} faults, {took:.1f} s", flush=True
        )
        print("\n".join(found), end="\n" if found else "")
    each = ", ".join(f"{name} {n:,}" for name, n in counts.items())
    detail = (
        f"read or refused in one line, in {MEMORY / 2**30:g} GiB and {SECONDS:g} s each: {each};"
        f" {len(faults)} faults"
    )
    print(f"{detail}; {time.perf_counter() - begin:.0f} s")
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}; see {given.faults}")
    if given.out is not None:
        row = {"value": sum(counts.values()), "unit": "inputs", "detail": detail}
        command = f"python studies/trust/fuzz.py --inputs {given.inputs} --out {given.out}"
        record(given.out, "fuzz", [row], command)


if __name__ == "__main__":
    main()
