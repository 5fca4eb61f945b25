r"""Parquet bombs: files of a few bytes that ask for gigabytes.

Tables and sets of images are written so that little on the disk stands for much in memory: equal
numbers run-length encoded, dictionaries, pages that swell, wide types, many row groups, one
picture repeated. Each is read in a process of its own. It may be read or be refused in one line,
within bounded memory and time.

    python studies/trust/parquet_bombs.py --out results/trust.json
"""

import argparse
import io
import numpy as np
import os
import pyarrow as pa
import pyarrow.parquet as pq
import tempfile

from collections.abc import Callable, Iterator
from fokker.data.images import read_images
from fokker.data.table import read_table
from functools import partial
from pathlib import Path
from PIL import Image
from studies.trust import record
from studies.trust.attempts import attempt
from typing import Any

MEMORY = 3 * 2**29  # bytes that a reader may take, as a picture of 8192x8192 takes 1.1 GiB
SECONDS = 60.0
CODECS = ("ZSTD", "GZIP", "SNAPPY", "NONE")


def png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG")
    return file.getvalue()


def repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    r"""Returns a column of one value that takes no memory here: its indices are zeros."""
    indices = pa.array(np.zeros(rows, np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], kind))


def tables() -> Iterator[tuple[str, Callable[[Path], None]]]:
    r"""Yields bombs that call themselves tables, each with how it is written."""

    def write(rows: int, kind: pa.DataType, codec: str, dictionary: bool) -> Callable[..., None]:
        def run(path: Path) -> None:
            batch = 2**22
            schema = pa.schema([("a", kind)])
            options = {"compression": codec, "use_dictionary": dictionary, "schema": schema}
            value = pa.array([0] * min(rows, batch)).cast(kind)
            with pq.ParquetWriter(path, data_page_size=2**28, **options) as file:
                for _ in range(-(-rows // batch)):
                    file.write_table(pa.table([value], schema), row_group_size=2**26)

        return run

    for codec in CODECS[:2]:
        for kind in (pa.float64(), pa.int64(), pa.float32(), pa.int8(), pa.decimal128(38)):
            for rows in (2**24, 2**26, 2**27):
                name = f"{rows} zeros of {kind}, {codec}"
                yield name, write(rows, kind, codec, True)
        yield f"2^25 plain zeros, {codec}", write(2**25, pa.float64(), codec, False)
        yield f"2^27 plain zeros, {codec}", write(2**27, pa.float64(), codec, False)

    def wide(path: Path) -> None:
        names = [f"c{i}" for i in range(20_000)]
        pq.write_table(pa.table({name: np.zeros(1) for name in names}), path)

    def fixed(path: Path) -> None:
        column = repeated(bytes(80), pa.binary(80), 2**26)
        pq.write_table(pa.table({"a": column}), path, store_schema=False)

    def text(path: Path) -> None:
        column = repeated("x" * 2**20, pa.string(), 2**14)
        pq.write_table(pa.table({"a": column}), path, compression="ZSTD", store_schema=False)

    def listed(path: Path) -> None:
        column = pa.array([np.zeros(2**22)])
        pq.write_table(pa.table({"a": column}), path, compression="ZSTD")

    def groups(path: Path) -> None:
        pq.write_table(pa.table({"a": np.zeros(60_000)}), path, row_group_size=1)

    yield from (("20,000 columns", wide), ("fixed bytes", fixed), ("long texts", text))
    yield from (("a long list", listed), ("60,000 row groups", groups))


def pictures() -> Iterator[tuple[str, Callable[[Path], None]]]:
    r"""Yields bombs that call themselves sets of images, each with how it is written."""

    def write(contents: list[bytes], codec: str, **options: Any) -> Callable[[Path], None]:
        def run(path: Path) -> None:
            column = pa.array([{"bytes": c, "path": None} for c in contents])
            pq.write_table(pa.table({"image": column}), path, compression=codec, **options)

        return run

    small, large = png(2048), png(8192)
    for codec in CODECS:
        yield f"one picture 2,000 times, {codec}", write([small] * 2000, codec)
        yield f"one large picture 100 times, {codec}", write([large] * 100, codec)
    for codec in CODECS[:2]:
        for size, count in ((2**20, 500), (2**25, 20), (2**26 - 100, 12), (2**28, 2)):
            name = f"{count} times {size} zeros, {codec}"
            yield name, write([bytes(size)] * count, codec)
            yield f"{name}, plain", write([bytes(size)] * count, codec, use_dictionary=False)
    yield "a million of one pixel", write([png(1)] * 10**6, "ZSTD")
    yield "a million of nothing", write([b""] * 10**6, "ZSTD")
    yield "a million without an image", write([None] * 10**6, "ZSTD")  # type: ignore[list-item]


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=None, help="bombs of each kind")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    ends, faults, worst, longest = {"done": 0, "refused": 0}, [], 0, 0.0
    readers = (
        ("table", tables(), "x.parquet", read_table),
        ("images", pictures(), "train-0.parquet", lambda path: read_images(path.parent)),
    )
    for kind, bombs, file, read in readers:
        for name, write in list(bombs)[: given.most]:
            with tempfile.TemporaryDirectory() as root:
                os.environ["FOKKER_CACHE"] = f"{root}/cache"
                path = Path(root, file)
                attempt(partial(write, path), 300.0, 2**34)  # its memory is not counted below
                outcome = attempt(partial(read, path), SECONDS, MEMORY)
                size = path.stat().st_size
            worst, longest = max(worst, outcome.memory), max(longest, outcome.seconds)
            ends[outcome.end] = ends.get(outcome.end, 0) + 1
            if outcome.fault:
                faults.append(name)
            print(
                f"{kind}, {name}, {size} bytes: {outcome.end}, {outcome.memory / 2**20:.0f} MiB,"
                f" {outcome.seconds:.1f} s, {outcome.said[-120:]}",
                flush=True,
            )
    count = sum(ends.values())
    detail = (
        f"{count} bombs: {ends['done']} read, {ends['refused']} refused in one line; at most"
        f" {worst / 2**20:.0f} MiB and {longest:.1f} s, where {MEMORY / 2**20:,.0f} MiB and"
        f" {SECONDS:.0f} s are allowed; {len(faults)} faults"
    )
    print(detail, *faults, sep="\n")
    if given.out is not None:
        row = {"value": len(faults), "unit": f"faults in {count} files", "detail": detail}
        command = f"python studies/trust/parquet_bombs.py --out {given.out}"
        record(given.out, "parquet-bombs", [row], command)
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}")


if __name__ == "__main__":
    main()
