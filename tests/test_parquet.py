r"""Parquet bombs: a few bytes that ask for gigabytes are refused before they are decoded."""

import io
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fokker.data import parquet
from fokker.data.images import read_images
from fokker.data.parquet import Header, sizes
from fokker.data.table import read_table
from PIL import Image


def save(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def images(contents):
    return {"image": [{"bytes": content, "path": None} for content in contents]}


def png(side, value=0):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["NONE", "SNAPPY", "ZSTD", "GZIP"])
@pytest.mark.parametrize("nulls", [False, True])
def test_the_walk_ends_where_the_column_ends(tmp_path, version, compression, nulls):
    rng = np.random.default_rng(0)
    x = rng.normal(size=5000)
    column = pa.array(x, mask=rng.random(5000) < 0.2 if nulls else None)
    path = save(
        tmp_path / "x.parquet",
        {"a": column, "b": pa.array(rng.integers(0, 3, 5000)), "c": pa.array([b"x" * 99] * 5000)},
        compression=compression, data_page_version=version, data_page_size=1000,
        row_group_size=2000, write_page_checksum=True,
    )  # fmt: skip
    with path.open("rb") as file:
        own = pq.ParquetFile(file)
        found = sizes(file, own, range(3))
    assert 1000 < found.largest < 20_000 and found.length == path.stat().st_size


def test_few_bytes_that_stand_for_many_numbers(tmp_path, monkeypatch):
    path = save(tmp_path / "x.parquet", {"a": np.zeros(2**20)}, compression="ZSTD")
    assert path.stat().st_size < 10_000 and len(read_table(path).values) == 2**20
    monkeypatch.setattr(parquet, "FREE", 2**20)
    with pytest.raises(ValueError, match=r"1048576 numbers are more than \d+"):
        read_table(path)


def test_a_page_that_swells_is_refused(tmp_path, monkeypatch):
    noise = np.arange(2**17, dtype=np.float64) * 1e-300
    table = save(
        tmp_path / "x.parquet", {"a": noise}, compression="ZSTD", data_page_size=2**24,
        use_dictionary=False,
    )  # fmt: skip
    folder = tmp_path / "set"
    folder.mkdir()
    save(folder / "train-0.parquet", images([bytes(2**20)]), compression="ZSTD")
    monkeypatch.setattr(parquet, "PAGE", 2**16)
    for read, place in ((read_table, table), (read_images, folder)):
        with pytest.raises(ValueError, match=r"a page of \d+ bytes, 1\d+ decompressed, is beyond"):
            read(place)


@pytest.mark.parametrize(
    "kind",
    [
        pa.array([b"x" * 80] * 4, pa.binary(80)),
        pa.array(["a"] * 4),
        pa.array([True] * 4),
        pa.array([[1.0]] * 4),
        pa.array(["a"] * 4).dictionary_encode(),
        pa.array([1] * 4, pa.timestamp("s")),
        pa.array([None] * 4),
        pa.array([1] * 4, pa.decimal256(40)),
    ],
    ids=lambda a: str(a.type)[:12],
)
def test_types_are_known_before_values_are_read(tmp_path, monkeypatch, kind):
    path = save(tmp_path / "x.parquet", {"a": kind})
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was decoded"))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match=r"column 1 'a': expected numbers, got"):
        read_table(path)


def test_an_image_that_is_repeated_without_end(tmp_path, monkeypatch):
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    save(tmp_path / "train-0.parquet", images([png(256)] * 50))
    assert len(read_images(tmp_path)) == 50
    monkeypatch.setattr(parquet, "FREE", 2**20)
    monkeypatch.setattr(parquet, "SHARE", 1)
    save(tmp_path / "train-0.parquet", images([png(256, 1)] * 50))
    with pytest.raises(ValueError, match=r"row 6: expected at most \d+ bytes of pixels, got more"):
        read_images(tmp_path)
    monkeypatch.setattr("fokker.data.images.FEW", 3)
    monkeypatch.setattr("fokker.data.images.SMALLEST", 10_000)
    with pytest.raises(ValueError, match=r"50 images in \d+ bytes are over 3"):
        read_images(tmp_path)


def test_two_columns_of_one_name_are_refused_soon(tmp_path):
    names = [f"x{i}" for i in range(20_000)] + ["x0"]
    path = tmp_path / "x.csv"
    path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    with pytest.raises(ValueError, match=r"column 20001: expected a name of its own, got 'x0'"):
        read_table(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not end"),
        (b"\x15", "does not end"),
        (b"\x15" + b"\xff" * 11, "a number in the header"),
        (b"\x1c" * 40, "nested too deeply"),
        (b"\x19" * 40, "nested too deeply|does not end"),
        (b"\x1b", "a field of kind 11"),
        (b"\x18\xff\xff\xff\xff\x7f", "does not end"),
        (b"\x19\xf3\xff\xff\xff\xff\x7f" + b"\x00" * 9, "does not end"),
    ],
)
def test_a_header_that_is_none(data, message):
    with pytest.raises(ValueError, match=message):
        Header(data).fields()
