r"""Sets of images: what is read, drawn, kept and fetched; what is refused and with which words."""

import hashlib
import io
import json
import numpy as np
import os
import pickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import re
import shutil
import sys
import torch
import warnings

from fokker.data import cache, images, sources
from fokker.data.images import Images, read_images
from fokker.data.picture import to_float
from fokker.data.sources import SETS, name_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pathlib import Path
from PIL import Image
from types import SimpleNamespace

MINI = Path(__file__).parent / "data" / "mnist-mini"
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 4, 6), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (12, 4, 6, 3), dtype=np.uint8)
KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    r"""A cache of its own, and no data folder."""
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOKKER_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


def encode(x: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(x).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def write_rows(path: Path, contents: list, column: str = "image", **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [c if c is None else {"bytes": c, "path": None} for c in contents]
    table = pa.table({column: pa.array(rows, KIND), "label": range(len(rows))})
    pq.write_table(table, path, **options)


def write_files(folder: Path, names: list[str], pixels: np.ndarray) -> None:
    for name, x in zip(names, pixels, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x).save(folder / name)


def assert_pixels(found: Images, x: np.ndarray) -> None:
    r"""Asserts that a set has the pixels (N, H, W) or (N, H, W, C), in order."""
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    assert found.pixels.dtype == torch.uint8 and found.shape == x.shape[1:]
    assert np.array_equal(found.pixels.numpy(), x)


def refused(source: str | Path, message: str, **options) -> None:
    r"""Asserts that a source is refused with one line, which matches the message."""
    with pytest.raises(ValueError) as caught:
        read_images(source, **options)
    assert "\n" not in str(caught.value)
    assert re.fullmatch(message, str(caught.value)), caught.value


def entries(store: Path) -> list[str]:
    return sorted(path.name for path in store.iterdir())


# --- Parquet ---


@pytest.mark.parametrize(("split", "n"), [("train", 300), ("test", 100)])
def test_mnist(split, n):
    found = read_images(MINI, split)
    assert (found.name, found.split, len(found)) == ("mnist-mini", split, n)
    rows = pq.read_table(MINI / f"{split}-00000.parquet")["image"].to_pylist()
    assert_pixels(
        found, np.stack([Image.open(io.BytesIO(row["bytes"])).convert("L") for row in rows])
    )


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("place", ["train-0.parquet", "data/train-00000-of-00001.parquet"])
@pytest.mark.parametrize("column", ["image", "img"])
def test_parquet(folder, kind, place, column):
    contents = [encode(x, kind) for x in COLOUR]
    write_rows(folder / place, contents, column, row_group_size=5)
    assert_pixels(read_images(folder), COLOUR)


def test_shards_in_order(folder):
    parts = ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
    for name, part in zip(parts, (GREY[:3], GREY[3:]), strict=True):
        write_rows(folder / name, [encode(x) for x in part])
    write_rows(folder / "test-00000-of-00001.parquet", [encode(GREY[0])])
    assert_pixels(read_images(folder), GREY)
    assert_pixels(read_images(folder, "test"), GREY[:1])
    (folder / parts[0]).unlink()
    refused(folder, f".*{parts[1]}: expected 2 such files, got 1")


def test_equal_channels_are_grey(folder):
    contents = [encode(x, "WEBP") for x in GREY]
    write_rows(folder / "train-0.parquet", contents)
    assert_pixels(read_images(folder), GREY)
    tinted = np.repeat(GREY[-1][..., None], 3, axis=-1)
    tinted[-1, -1, -1] ^= 1  # one bit of one channel of the last pixel
    write_rows(folder / "train-0.parquet", [*contents[:-1], encode(tinted, "WEBP")])
    expected = np.repeat(GREY[..., None], 3, axis=-1)
    expected[-1] = tinted
    assert_pixels(read_images(folder), expected)


def test_jpeg_rows(folder):
    smooth = np.linspace(0, 255, 48).astype(np.uint8)[None].repeat(32, 0)
    write_rows(folder / "train-0.parquet", [encode(smooth, "JPEG")] * 2)
    found = read_images(folder)
    assert found.shape == (1, 32, 48) and len(found) == 2
    assert np.abs(found.pixels.numpy().astype(int) - smooth).max() <= 8


# --- image files ---


def test_files_at_any_depth_in_order(folder):
    names = ["a.png", "b/c.PNG", "b/d/e.bmp", "b0.webp", "z.png", "é.png"]
    write_files(folder, names[::-1], COLOUR[5::-1])
    Image.fromarray(COLOUR[3]).save(folder / "b0.webp", lossless=True)
    for left_out in (".hidden.png", ".git/x.png", "notes.txt", "b/table.csv"):
        (folder / left_out).parent.mkdir(exist_ok=True)
        (folder / left_out).write_text("not an image")
    which = [name for name in names if sources.hashed_split(name) == "train"]
    assert len(which) >= 3
    assert_pixels(read_images(folder), COLOUR[[names.index(name) for name in which]])


def test_split_by_the_hash_of_the_name(folder):
    names = sorted(f"{k % 3}/{k}.png" for k in range(200))
    write_files(folder, names, np.arange(200, dtype=np.uint8)[:, None, None].repeat(2, 1))
    held = [
        k
        for k, name in enumerate(names)
        if int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) % 10 == 0
    ]
    assert 8 <= len(held) <= 35
    of = lambda split: read_images(folder, split).pixels[:, 0, 0, 0].tolist()
    assert of("test") == held and of("train") == sorted({*range(200)} - {*held})
    for name in names[:100]:  # the others stay where they were
        (folder / name).unlink()
    assert of("test") == [k for k in held if k >= 100]


def test_folders_train_and_test(folder):
    names = [f"{split}/{k}.png" for split in ("other", "test", "train") for k in range(4)]
    write_files(folder, names, GREY)
    assert_pixels(read_images(folder, "test"), GREY[4:8])
    assert_pixels(read_images(folder, "train"), GREY[8:])


def test_sizes(folder):
    write_files(folder, ["train/a.png", "train/b.png", "test/c.png"], GREY[:3])
    Image.fromarray(GREY[1].T).save(folder / "train" / "b.png")
    expected = r".*b\.png: expected 6x4 grey as .*a\.png, got 4x6 grey; size= makes them one size"
    refused(folder, expected)
    found = read_images(folder, size=4)
    assert_pixels(found, np.stack((GREY[0][:, 1:5], GREY[1].T[1:5])))
    assert read_images(folder, size=9).shape == (1, 9, 9)
    assert_pixels(read_images(folder, "test"), GREY[2:3])
    for bad in (0, 2.0, True):
        with pytest.raises(ValueError, match=f"expected size to be an integer >= 1, got {bad!r}"):
            read_images(folder, size=bad)
    with pytest.raises(ValueError, match="expected size between 1 and 8192, got 9999"):
        read_images(folder, size=9999)


# --- the set ---


def test_batch_is_deterministic_and_in_range(generator):
    found = Images(torch.arange(240, dtype=torch.uint8).reshape(10, 3, 2, 4), "x", "train")
    x = found.batch(64, generator)
    assert x.shape == (64, 3, 2, 4) and x.dtype == torch.float32
    assert torch.equal(x, found.batch(64, generator.manual_seed(0)))
    assert not torch.equal(x, found.batch(64, generator))
    known = {tuple(row.flatten().tolist()) for row in to_float(found.pixels)}
    assert {tuple(row.flatten().tolist()) for row in x} <= known
    assert found.to("cpu").pixels.device.type == "cpu"


def test_batch_is_uniform(generator):
    n, rows = 8, 20_000
    found = Images(torch.arange(n, dtype=torch.uint8).reshape(n, 1, 1, 1), "x", "train")
    share = torch.bincount(((found.batch(rows, generator).flatten() + 1) * 127.5).round().long())
    p = 1 / n
    assert ((share / rows - p).abs() <= 5 * (p * (1 - p) / rows) ** 0.5).all()


def test_flips(generator):
    u = torch.randint(256, (2, 3, 5, 7), dtype=torch.uint8)
    plain, mirrored = to_float(u), to_float(u.flip(3))
    found, n = Images(u, "x", "train"), 4000
    x = found.batch(n, generator, flip=True)
    same = lambda y: (x[:, None] == y).flatten(2).all(2)  # (n, 2)
    assert (same(plain) ^ same(mirrored)).sum() == n
    share = same(mirrored).double().mean(0) * 2  # of either row
    assert ((share - 0.5).abs() <= 5 * (0.25 / (n / 2)) ** 0.5).all()
    assert torch.equal(x, found.batch(n, generator.manual_seed(0), flip=True))


def test_refused_sets(generator):
    good = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
    for bad in (good.float(), good[0], good[:0], good.expand(2, 2, 3, 3)):
        with pytest.raises(ValueError, match=r"expected pixels of dtype uint8 and shape"):
            Images(bad, "x", "train")
    found = Images(good, "x", "train")
    with pytest.raises(ValueError, match="expected n to be an integer >= 1, got 0"):
        found.batch(0, generator)
    with pytest.raises(ValueError, match="expected a generator on meta, got one on cpu"):
        found.to("meta").batch(1, generator)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batch_on_a_gpu():
    found = read_images(MINI).to("cuda")
    seeded = lambda: torch.Generator("cuda").manual_seed(0)
    x = found.batch(32, seeded(), flip=True)
    assert x.device == found.pixels.device and x.device.type == "cuda"
    assert torch.equal(x, found.batch(32, seeded(), flip=True))


# --- the cache ---


@pytest.fixture
def once(monkeypatch):
    r"""Counts the images that are decoded."""
    count = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda *args: count.append(1) or decode(*args))
    return count


def test_decoded_once(folder, store, once):
    write_rows(folder / "train-0.parquet", [encode(x) for x in GREY])
    first, second = read_images(folder), read_images(folder)
    assert len(once) == 12 and torch.equal(first.pixels, second.pixels)
    assert_pixels(second, GREY)
    array, card = (store / name for name in reversed(entries(store)))
    assert array.name.startswith("set-train-") and array.suffix == ".npy"
    said = json.loads(card.read_text())
    assert said["sha256"] == hashlib.sha256(array.read_bytes()).hexdigest()
    second.pixels[:] = 0  # is the caller's own
    assert_pixels(read_images(folder), GREY)


def test_the_cache_follows_the_content(folder, store, once):
    path = folder / "train-0.parquet"
    write_rows(path, [encode(x, "BMP") for x in GREY], compression="none", use_dictionary=False)
    before = path.stat()
    assert_pixels(read_images(folder), GREY)
    write_rows(
        path, [encode(x, "BMP") for x in 255 - GREY], compression="none", use_dictionary=False
    )
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime == before.st_mtime
    assert_pixels(read_images(folder), 255 - GREY)
    assert len(once) == 24
    shutil.copytree(folder, folder.parent / "elsewhere" / "set")
    assert_pixels(read_images(folder.parent / "elsewhere" / "set"), 255 - GREY)
    assert len(once) == 24  # it does not matter where it lies
    read_images(folder, size=2)
    assert len(once) == 36 and len(entries(store)) == 6


def flip_a_bit(array: Path, card: Path) -> None:
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)


def cut(array: Path, card: Path) -> None:
    array.write_bytes(array.read_bytes()[:-1])


def garble(array: Path, card: Path) -> None:
    card.write_bytes(b"\xff{")


def replace_card(array: Path, card: Path) -> None:
    card.write_text("[]")


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def plant(array: Path, card: Path) -> None:
    array.write_bytes(pickle.dumps(Bomb()))
    said = json.loads(card.read_text())
    said["sha256"] = hashlib.sha256(array.read_bytes()).hexdigest()
    card.write_text(json.dumps(said))


@pytest.mark.parametrize("damage", [flip_a_bit, cut, garble, replace_card, plant])
def test_a_damaged_cache_is_made_anew(store, once, damage):
    whole = read_images(MINI, "test")
    card, array = (store / name for name in entries(store))
    damage(array, card)
    with pytest.warns(
        UserWarning, match=r"whole array in the cache, got .*npy: .+; it is made anew"
    ):
        found = read_images(MINI, "test")
    assert torch.equal(found.pixels, whole.pixels) and len(once) == 200
    assert torch.equal(read_images(MINI, "test").pixels, whole.pixels) and len(once) == 200


@pytest.mark.parametrize("lost", [".npy", ".json"])
def test_half_a_cache_is_made_anew(store, once, lost):
    read_images(MINI, "test")
    next(store.glob(f"*{lost}")).unlink()
    assert len(read_images(MINI, "test")) == 100 and len(once) == 200
    read_images(MINI, "test")
    assert len(once) == 200


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch, once):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "file" / "cache"))
    for k in (1, 2):
        with pytest.warns(
            UserWarning, match=r"cache that can be written to, got .*cache: .*Not a"
        ):
            assert len(read_images(MINI, "test")) == 100
        assert len(once) == 100 * k


def test_a_full_disk(store, monkeypatch):
    def fail(file, x, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.warns(UserWarning, match="No space left on device; nothing is kept"):
        assert len(read_images(MINI, "test")) == 100
    assert entries(store) == []


def test_the_folder_of_the_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("FOKKER_CACHE")
    assert cache.folder() == Path("/nowhere/.cache/fokker")
    monkeypatch.setenv("FOKKER_CACHE", "~/mine")
    assert cache.folder() == Path("/nowhere/mine")


# --- sets known by name ---


@pytest.mark.parametrize("name", SETS)
def test_a_name_in_the_data_folder(tmp_path, monkeypatch, name):
    grey = SETS[name].channels == 1
    write_rows(tmp_path / name / "train-0.parquet", [encode(x, "WEBP") for x in GREY])
    found = read_images(name, data_dir=tmp_path)
    assert found.name == name
    assert_pixels(found, GREY if grey else GREY[..., None].repeat(3, -1))
    monkeypatch.setenv("FOKKER_DATA", str(tmp_path))
    assert torch.equal(read_images(name).pixels, found.pixels)
    refused(name, ".*: expected test-.*parquet, got only train-0.parquet", split="test")


def test_mnist_is_grey(tmp_path):
    write_rows(tmp_path / "mnist" / "train-0.parquet", [encode(GREY[0]), encode(COLOUR[0])])
    refused("mnist", ".*parquet, row 2: expected a grey image, got colour", data_dir=tmp_path)


def test_no_data_folder(tmp_path):
    expected = "expected data_dir or FOKKER_DATA to be a folder, got .*nowhere"
    refused("mnist", expected, data_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["minst", "nowhere/mnist", ""])
def test_unknown_sources(name):
    refused(
        name,
        "expected a folder of images, hub:OWNER/NAME or one of mnist, fashion_mnist,"
        " cifar10, svhn,"
        f" celeba32, got '{name}', which is none of them",
    )
    refused(Path("mnist"), "expected a folder of images, .* got 'mnist', which is none of them")


class Hub:
    r"""What `datasets` does: a set by id, written as Parquet."""

    def __init__(self):
        self.asked = []

    def load_dataset(self, repo, config, split):
        self.asked.append((repo, config, split))
        column = "img" if "cifar" in repo else "image"
        write = lambda path: write_rows(Path(path), [encode(x) for x in COLOUR], column)
        return SimpleNamespace(to_parquet=write)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("cifar10", ("uoft-cs/cifar10", None, "test")),
        ("svhn", ("ufldl-stanford/svhn", "cropped_digits", "test")),
    ],
)
def test_fetched_once_from_the_hub(store, monkeypatch, name, asked):
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    for _ in range(2):
        found = read_images(name, "test")
        assert_pixels(found, COLOUR)
        assert found.name == name and hub.asked == [asked]
    assert entries(store / "hub" / name) == ["test-00000-of-00001.parquet"]
    read_images(name, "train")  # the other split is fetched by itself
    assert len(hub.asked) == 2


def test_any_set_of_the_hub(store, monkeypatch):
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    for _ in range(2):
        found = read_images("hub:someone/pets", "test")
        assert_pixels(found, COLOUR)
        assert found.name == "pets" and hub.asked == [("someone/pets", None, "test")]
    assert read_images("hub:someone/pets:small").name == "pets-small"
    assert hub.asked[1:] == [("someone/pets", "small", "train")]
    assert entries(store / "hub") == ["someone--pets", "someone--pets--small"]
    for bad in ("hub:", "hub:pets", "hub:a/b/c", "hub:a/b:", "hub:../../x y"):
        refused(bad, f"expected hub:OWNER/NAME or hub:OWNER/NAME:CONFIG, got '{bad}'")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(
        "hub:a/b", r"expected the set hub:a/b, got none; pip install 'fokker\[hub\]' to fetch it"
    )


def test_the_name_of_a_set(tmp_path, monkeypatch):
    (tmp_path / "pets").mkdir()
    (tmp_path / "mnist").symlink_to(tmp_path / "pets")
    monkeypatch.chdir(tmp_path / "pets")
    assert [name_of(source) for source in (".", "../pets/", Path())] == ["pets"] * 3
    monkeypatch.chdir(tmp_path)
    assert name_of("mnist") == "mnist"  # known by name, whatever lies here
    assert name_of(tmp_path / "mnist") == "mnist"  # a link is called as it is called


def test_the_hub_ids():
    hubs = {name: known.hub for name, known in SETS.items()}
    assert hubs["mnist"] == "ylecun/mnist" and hubs["celeba32"] is None
    assert hubs["fashion_mnist"] == "zalando-datasets/fashion_mnist"


def test_nothing_to_fetch_with(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    needed = "expected the set {0} in a folder {0} of data_dir or FOKKER_DATA, got none; {1}"
    fetch = r"pip install 'fokker\[hub\]' to fetch it"
    refused("mnist", needed.format("mnist", fetch), data_dir=tmp_path)
    refused("celeba32", needed.format("celeba32", "it is not on the hub"))


def test_a_hub_that_does_not_answer(store, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no\nanswer")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
    refused(
        "mnist", "expected the set mnist in .*, or train of ylecun/mnist .* got neither: no answer"
    )
    assert entries(store / "hub" / "mnist") == []


# --- what is refused ---


def test_refused_folders(folder):
    refused(folder, f"{folder}: expected train-.*parquet, or images .* got none")
    (folder / "notes.txt").write_text("")
    refused(folder, f"{folder}: expected train-.*parquet, or images .* got none")
    one = "one.png"
    assert sources.hashed_split(one) == "train"
    write_files(folder, [one], GREY[:1])
    expected = "expected images in test, got none of its 1; one file in ten is, by its name"
    refused(folder, f"{folder}: {expected}", split="test")
    write_rows(folder / "validation-0.parquet", [encode(GREY[0])])
    refused(folder, f"{folder}: expected train-.*parquet, got only validation-0.parquet")
    refused(folder, "expected split to be one of train, test, got 'valid'", split="valid")


def test_refused_files(folder):
    write_files(folder, ["train/a.png", "train/b.png", "test/c.png"], COLOUR[:3])
    (folder / "train" / "b.png").write_text("text")
    refused(folder, r".*train/b\.png: expected a PNG, .* got 4 bytes that are none, b'text'")
    Image.fromarray(GREY[0]).save(folder / "train" / "b.png")
    refused(folder, r".*b\.png: expected 6x4 colour as .*a\.png, got 6x4 grey")
    (folder / "train" / "b.png").unlink()
    (folder / "train" / "b.png").symlink_to("nowhere.png")
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        read_images(folder)


PNG = encode(GREY[0])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([PNG] * 10 + [b"", PNG], "row 11: expected a PNG, .* got 0 bytes that are none, b''"),
        ([PNG, b"text"], "row 2: expected a PNG, .* got 4 bytes that are none, b'text'"),
        ([PNG, PNG[:-30]], "row 2: expected a whole image: .+"),
        ([PNG, None], "row 2: expected the bytes of an image, got null"),
        (
            [PNG, encode(GREY[0].T)],
            "row 2: expected 6x4 grey as .*, row 1, got 4x6 grey; size= .*",
        ),
        ([PNG, encode(COLOUR[0])], "row 2: expected 6x4 grey as .*, row 1, got 6x4 colour"),
        ([PNG, encode(GREY[0], "WEBP")], "row 2: expected 6x4 grey .*, got 6x4 colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_rows(folder, contents, message):
    write_rows(folder / "train-0.parquet", contents)
    refused(folder, f"{folder}/train-0.parquet, {message}")


def test_null_bytes(folder):
    rows = pa.array([{"bytes": PNG, "path": "a"}, {"bytes": None, "path": "b"}], KIND)
    pq.write_table(pa.table({"image": rows}), folder / "train-0.parquet")
    refused(folder, ".*row 2: expected the bytes of an image, got null")


@pytest.mark.parametrize(
    ("columns", "got"),
    [
        ({}, "no columns"),
        ({"label": [1], "x": [2]}, "label: int64, x: int64"),
        ({"a\nb": [1]}, "a b: int64"),
        ({"image": [PNG]}, "image: binary"),
        ({"image": [{"path": "a.png"}]}, "image: struct<path: string>"),
        ({"image": [{"bytes": "text"}]}, "image: struct<bytes: string>"),
    ],
)
def test_refused_columns(folder, columns, got):
    pq.write_table(pa.table(columns), folder / "train-0.parquet")
    expected = "expected a column image: struct<bytes: binary, path: string>"
    refused(folder, f"{folder}/train-0.parquet: {expected}, got {got}")


def test_no_rows(folder):
    write_rows(folder / "train-0.parquet", [])
    refused(folder, f"{folder}/train-0.parquet: expected images, got no rows")


def test_too_many(folder, monkeypatch):
    write_rows(folder / "train-0.parquet", [PNG] * 3)
    monkeypatch.setattr(images, "TOTAL", 3 * 24 - 1)
    refused(folder, f"{folder}/train-0.parquet, row 3: expected at most 71 bytes of pixels, .*")
    monkeypatch.setattr(images, "TOTAL", 3 * 24)
    assert len(read_images(folder)) == 3


def test_damaged_parquet(folder):
    path = folder / "train-0.parquet"
    write_rows(path, [PNG] * 3)
    whole = path.read_bytes()
    foreign = [b"", b"PK\x03\x04" + whole, PNG, pickle.dumps(Bomb())]
    for content in [*(whole[:n] for n in range(0, len(whole), 29)), whole[:-1], *foreign]:
        path.write_bytes(content)
        refused(folder, f"{path}: expected a whole .parquet file: .+")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    content=st.binary(max_size=60)
    | st.builds(
        lambda at, byte: PNG[:at] + bytes([byte]) + PNG[at + 1 :],
        st.integers(0, len(PNG) - 1),
        st.integers(0, 255),
    )
)
def test_any_row_is_read_or_refused(folder, content):
    write_rows(folder / "train-0.parquet", [PNG, content])
    try:
        found = read_images(folder)
    except ValueError as error:
        assert str(error).startswith(f"{folder}/train-0.parquet, row 2: expected ")
        assert "\n" not in str(error)
    else:
        assert found.pixels.shape == (2, 1, 4, 6)
        assert np.array_equal(found.pixels[0, 0].numpy(), GREY[0])


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1))
def test_any_parquet_is_read_or_refused(folder, edits):
    path = folder / "train-0.parquet"
    write_rows(path, [PNG] * 2)
    content = bytearray(path.read_bytes())
    for at, byte in edits:
        content[at % len(content)] = byte
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the file says of itself
        try:
            assert len(read_images(folder)) >= 1
        except ValueError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)


def test_a_set_of_a_long_name_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path))
    made = []
    make = lambda: made.append(1) or np.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # the second from the cache
            cache.cached("\U0001f600" * 63 + "-train", "f" * 64, make)
    assert made == [1]
