r"""One image: what is decoded, what is refused and with which words, and what is written."""

import io
import numpy as np
import pytest
import re
import struct
import torch
import warnings
import zlib

from fokker.data import picture
from fokker.data.picture import decode, read_png, save_png, to_float, to_uint8
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encode(image: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def header(width: int, height: int) -> bytes:
    r"""A PNG that promises a size, and breaks off in its first line."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(width))[:-5]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def refused(content: bytes, message: str) -> None:
    r"""Asserts that bytes are refused with one line, that opens with their place."""
    with pytest.raises(ValueError) as caught:
        decode(content, "here")
    assert re.fullmatch(f"here: {message}", str(caught.value)), caught.value


# --- what is decoded ---


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_formats(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    x = decode(encode(COLOUR, kind, **options), "here")
    assert x.dtype == np.uint8 and np.array_equal(x, COLOUR.transpose(2, 0, 1))
    x = decode(encode(GREY, kind, **options), "here")
    expected = np.repeat(GREY[None], 3, 0) if kind == "WEBP" else GREY[None]  # it has no grey
    assert np.array_equal(x, expected)


def test_jpeg():
    smooth = np.linspace(0, 255, 64).astype(np.uint8)[None].repeat(48, 0)
    x = decode(encode(smooth, "JPEG", quality=95), "here")
    assert x.shape == (1, 48, 64) and np.abs(x[0].astype(int) - smooth).max() <= 4


def test_bits_and_palettes():
    bits = GREY > 127
    assert np.array_equal(decode(encode(bits), "here")[0], 255 * bits)
    indexed = Image.fromarray(COLOUR).quantize(4)
    assert np.array_equal(
        decode(encode(indexed), "here"), np.asarray(indexed.convert("RGB")).transpose(2, 0, 1)
    )


def test_transparent_pixels_lie_on_white():
    alpha = np.full((5, 7), 255, np.uint8)
    alpha[0], alpha[1] = 0, 51  # a fifth
    for image in (GREY, COLOUR):
        full = np.dstack((image, alpha))
        x = decode(encode(full), "here").transpose(1, 2, 0).squeeze()
        assert x.shape == image.shape
        assert (x[0] == 255).all() and np.array_equal(x[2:], image[2:])
        assert np.abs(x[1] - (0.2 * image[1] + 0.8 * 255)).max() <= 1
    keyed = np.array([[7, 8]], np.uint8)
    assert decode(encode(keyed, transparency=7), "here").tolist() == [[[255, 8]]]
    palette = Image.fromarray(COLOUR).quantize(4)
    first = np.asarray(palette) == 0
    x = decode(encode(palette, transparency=0), "here")
    assert (x[:, first] == 255).all()
    assert np.array_equal(x[:, ~first], decode(encode(palette), "here")[:, ~first])


def test_turned_upright():
    image = Image.fromarray(COLOUR)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise makes it upright
    x = decode(encode(image, "PNG", exif=exif), "here")
    assert np.array_equal(x.transpose(1, 2, 0), np.rot90(COLOUR, -1))


def test_first_frame():
    frames = [Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)]
    content = encode(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode(content, "here"), COLOUR.transpose(2, 0, 1))


def test_size_crops_the_centre_and_resizes():
    wide = np.zeros((6, 10, 3), np.uint8)
    wide[:, 2:8] = COLOUR[:3, :3].repeat(2, 0).repeat(2, 1)  # blocks of 2, red margins
    wide[:, :2, 0] = wide[:, 8:, 0] = 255
    assert np.array_equal(decode(encode(wide), "here", 6), wide[:, 2:8].transpose(2, 0, 1))
    tall = decode(encode(wide.transpose(1, 0, 2)), "here", 6)
    assert np.array_equal(tall, wide[:, 2:8].transpose(2, 1, 0))
    small = decode(encode(wide), "here", 3)
    lanczos = Image.fromarray(wide[:, 2:8]).resize((3, 3), Image.Resampling.LANCZOS)
    assert np.array_equal(small, np.asarray(lanczos).transpose(2, 0, 1))


def test_resizing_is_antialiased():
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    assert np.abs(decode(encode(stripes), "here", 8).astype(int) - 127).max() <= 8


# --- what is refused ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a PNG, JPEG, WEBP, BMP image, got 0 bytes that are none, b''"),
        (b"not an image", "expected a PNG, .* got 12 bytes that are none, b'not an image'"),
        (encode(COLOUR, "GIF"), "expected a PNG, .* bytes that are none, b'GIF.*"),
        (encode(COLOUR, "TIFF"), "expected a PNG, .* bytes that are none, b'II.*"),
        (encode(COLOUR)[:20], "expected a whole image: Truncated File Read"),
        (encode(COLOUR)[:40], "expected a PNG, .* got 40 bytes that are none, b'.x89PNG.*"),
        (encode(GREY.astype(np.uint16)), "expected grey or RGB of 8 bits .* got mode I(;16)?"),
        (
            encode(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"),
            "expected grey or RGB of 8 bits a channel, got mode CMYK",
        ),
        (header(8192, 8193), "expected at most 8192x8192 pixels, got 8192x8193"),
        (header(10_000, 9_500), "expected at most 8192x8192 pixels, got more"),
        (header(50_000, 50_000), "expected at most 8192x8192 pixels, got more"),
        (header(100, 100), "expected a whole image: .+"),
        (header(8192, 8192), "expected a whole image: .+"),  # not too large
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(content, message):
    refused(content, message)


def test_a_bomb_is_an_error_and_no_warning():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        refused(header(10_000, 9_500), "expected at most 8192x8192 pixels, got more")
    assert not said


def test_a_long_file(monkeypatch, tmp_path):
    content = encode(GREY)
    (tmp_path / "x.png").write_bytes(content)
    monkeypatch.setattr(picture, "BYTES", len(content))
    assert decode(content, "here").shape == (1, 5, 7) == read_png(tmp_path / "x.png").shape
    monkeypatch.setattr(picture, "BYTES", len(content) - 1)
    refused(content, f"expected at most {len(content) - 1} bytes, got {len(content)}")
    with pytest.raises(ValueError, match=r"x.png: expected at most"):
        read_png(tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
def test_truncated(kind):
    content = encode(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8), kind)
    for n in range(0, len(content) // 2, 11):
        refused(content[:n], "expected a (PNG|whole image).*")


samples = [
    encode(COLOUR),
    encode(GREY),
    encode(Image.fromarray(COLOUR).quantize(4), transparency=0),
    encode(np.dstack((COLOUR, GREY))),
    encode(COLOUR, "BMP"),
    encode(GREY, "BMP"),
    encode(COLOUR, "WEBP", lossless=True),
    encode(np.dstack((COLOUR, GREY)), "WEBP"),
    encode(COLOUR, "JPEG"),
    encode(COLOUR, "JPEG", progressive=True),
]
edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)


@settings(max_examples=400, deadline=None)
@given(whole=st.sampled_from(samples), edits=edits, cut=st.integers(0, 600), tail=st.binary())
def test_any_bytes_are_decoded_or_refused(whole, edits, cut, tail):
    content = bytearray(whole)
    for at, byte in edits:
        content[at % len(content)] = byte
    content = bytes(content[: max(len(content) - cut, 0)] if cut < 300 else content) + tail
    try:
        x = decode(content, "here")
    except ValueError as error:
        assert str(error).startswith("here: expected ") and "\n" not in str(error)
    else:
        assert x.dtype == np.uint8 and x.ndim == 3 and len(x) in {1, 3}


# --- floats, and PNG ---


def test_to_uint8_undoes_to_float():
    u = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    x = to_float(u)
    assert x.dtype == torch.float32 and x.min() == -1 and x.max() == 1
    assert torch.allclose(x.double(), u.double() / 127.5 - 1, atol=1e-7)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(to_uint8(x.to(dtype)), u)
    step = 0.99 / 255  # less than half of that between two bytes
    assert torch.equal(to_uint8(x + step), u) and torch.equal(to_uint8(x - step), u)


def test_to_uint8_at_the_ends():
    assert to_uint8(torch.tensor([[-1.5, -1.0, 1.0, 9.0]])).tolist() == [[0, 0, 255, 255]]
    with pytest.raises(ValueError, match="expected x to be finite"):
        to_uint8(torch.tensor([[0.0, torch.nan]]))
    with pytest.raises(ValueError, match=r"expected pixels of dtype uint8, got torch.float64"):
        to_float(torch.zeros(1, 2, 2))


@pytest.mark.parametrize("channels", [1, 3])
def test_png_round_trip(tmp_path, channels):
    u = torch.randint(256, (channels, 5, 7), dtype=torch.uint8)
    save_png(tmp_path / "x.png", to_float(u))
    with Image.open(tmp_path / "x.png") as image:
        assert (image.format, image.mode) == ("PNG", "L" if channels == 1 else "RGB")
    x = read_png(tmp_path / "x.png")
    assert x.dtype == torch.float32 and torch.equal(x, to_float(u))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("b", "columns", "shape"),
    [(1, None, (1, 1)), (5, None, (2, 3)), (5, 2, (3, 2)), (3, 9, (1, 3))],
)
def test_grid(tmp_path, channels, b, columns, shape):
    u = torch.randint(255, (b, channels, 4, 6), dtype=torch.uint8)
    save_png(tmp_path / "x.png", to_float(u), columns)
    grid = to_uint8(read_png(tmp_path / "x.png"))
    rows, columns = shape
    assert grid.shape == (channels, 6 * rows - 2, 8 * columns - 2)
    for k in range(b):
        top, left = 6 * (k // columns), 8 * (k % columns)
        assert torch.equal(grid[:, top : top + 4, left : left + 6], u[k])
    assert (grid == 255).all(0).sum() == grid[0].numel() - 24 * b  # white elsewhere


def test_channels_of_a_png(tmp_path):
    grey, colour = tmp_path / "grey.png", tmp_path / "colour.png"
    grey.write_bytes(encode(GREY))
    colour.write_bytes(encode(COLOUR))
    assert read_png(grey).shape == read_png(grey, 1).shape == (1, 5, 7)
    assert torch.equal(read_png(grey, 3), read_png(grey).expand(3, 5, 7))
    save_png(tmp_path / "equal.png", read_png(grey, 3))
    assert torch.equal(read_png(tmp_path / "equal.png", 1), read_png(grey))
    with pytest.raises(ValueError, match=r"colour.png: expected a grey image, got colour"):
        read_png(colour, 1)
    with pytest.raises(ValueError, match="expected 1 channel or 3, got 2"):
        read_png(colour, 2)


def test_refused_png(tmp_path):
    with pytest.raises(ValueError, match=r"x.jpg: expected a name that ends in .png"):
        save_png(tmp_path / "x.jpg", torch.zeros(1, 2, 2))
    for shape in [(2, 2), (2, 4, 4), (1, 1, 1, 2, 2)]:
        with pytest.raises(ValueError, match=rf"C 1 or 3, got {re.escape(str(shape))}"):
            save_png(tmp_path / "x.png", torch.zeros(shape))
    with pytest.raises(ValueError, match="expected columns to be an integer >= 1, got 0"):
        save_png(tmp_path / "x.png", torch.zeros(1, 2, 2), 0)
    with pytest.raises(FileNotFoundError, match=r"x.png"):
        read_png(tmp_path / "x.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=r"folder.png: expected a file to write to, got a folder"):
        save_png(tmp_path / "folder.png", torch.zeros(1, 2, 2))
    with pytest.raises(ValueError, match=r"expected a folder .*none to write to, got none"):
        save_png(tmp_path / "none" / "x.png", torch.zeros(1, 2, 2))
