r"""Photographs: their noise, files of 16 bits, folders, deviations, restoration, the commands."""

import io
import itertools
import math
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fokker import fit
from fokker.app.cli import main
from fokker.data.deep import encode, is_deep, read_picture, save_picture
from fokker.data.picture import read_png, save_png
from fokker.images.denoise import denoise_picture
from fokker.images.noise import deviation, estimate_sigma, likeliest_sigma
from fokker.images.operators import Blur, Downscale, Mask, gaussian_kernel
from fokker.images.photograph import noise_of, of_255
from fokker.images.restore import geometric_levels, restore
from fokker.networks import UNetEnergy
from fokker.objectives import TimeScore
from fokker.runs.config import Config, ImageData, Optimization, UNet
from fokker.runs.presets import photograph_config
from fokker.runs.shipped import PHOTOGRAPHS, names
from fokker.runs.toml import dumps, loads
from fokker.tasks.cleaning import progress
from pathlib import Path
from PIL import Image

MINI = str(Path(__file__).parent / "data/mnist-mini")
S2 = 0.5**2


class Pixels:
    r"""The exact energy of independent pixels N(0, S2), a sum of local ones."""

    local, reach, multiple = True, 0, 1

    def density(self, x, sigma):
        v = S2 + sigma**2
        return (x.square() / (2 * v) + torch.log(2 * math.pi * v) / 2).sum(1)

    def __call__(self, x, sigma):
        return self.density(x, sigma).sum((1, 2))


def smooth_picture(h=128, w=160, seed=0):
    r"""A picture of few waves and an edge, in [-1, 1]."""
    i, j = torch.meshgrid(torch.arange(h) / h, torch.arange(w) / w, indexing="ij")
    x = 0.4 * torch.sin(7 * i + 3 * j) + 0.3 * (i > 0.5) - 0.2
    return x[None].double()


# --- noise ---


@pytest.mark.parametrize("sigma", [5, 25, 75])
def test_known_noise_is_estimated(sigma, generator):
    x = smooth_picture() + sigma / 127.5 * torch.randn(1, 128, 160, generator=generator)
    assert 127.5 * float(estimate_sigma(x[None])) == pytest.approx(sigma, rel=0.05)


def test_black_borders_and_flat_ones_do_not_hide_noise(generator):
    x = smooth_picture(192, 192) + 0.2 * torch.randn(1, 192, 192, generator=generator)
    flat, black = x.clone(), x.clone()
    flat[:, :60] = 0.3
    black[:, :60] = (-1.1 + 0.2 * torch.randn(1, 60, 192, generator=generator)).clamp(-1, 1)
    for picture in (flat, black):
        assert float(estimate_sigma(picture[None])) == pytest.approx(0.2, rel=0.07)


def test_the_likeliest_level_is_that_of_the_noise(generator):
    r"""For N(0, S2) pixels the maximum of the likelihood is mean(x²) - S2, exactly."""
    x = (0.25 + 0.16) ** 0.5 * torch.randn(1, 40, 40, generator=generator)
    expected = math.sqrt(float(x.square().mean()) - S2)
    found, how = noise_of(Pixels(), x, (1, 8, 8), 0.01, 2.0)
    assert how == "by the energy" and found == pytest.approx(expected, rel=2e-3)
    for start in (0.02, 1.9):  # wherever it begins
        denoise = lambda y, s: S2 / (S2 + s**2) * y
        assert likeliest_sigma(denoise, x, start, 0.01, 2.0) == pytest.approx(expected, rel=2e-3)


def test_correlated_pixels_have_the_noise_of_the_largest_likelihood(generator):
    r"""Against the likelihood itself, on a grid, of a Gaussian with correlated neighbors."""
    n, sigma = 48, 0.15
    places = torch.cartesian_prod(torch.arange(n), torch.arange(n)).double()
    prior = 0.3 * torch.exp(-torch.cdist(places, places) / 2)
    values, vectors = torch.linalg.eigh(prior)
    z = torch.randn(n * n, generator=generator, dtype=torch.double)
    noise = torch.randn(n * n, generator=generator, dtype=torch.double)
    x = vectors @ (values.clamp_min(0).sqrt() * z) + sigma * noise
    u, logs = vectors.T @ x, torch.linspace(-3, -1, 4001).double()
    spread = values + (2 * logs).exp()[:, None]
    best = float(logs[(spread.log() + u**2 / spread).sum(1).argmin()].exp())

    def denoise(y, s):
        return (vectors @ (values / (values + s**2) * (vectors.T @ y.flatten()))).view_as(y)

    # the one probe errs by the entries off the diagonal
    gain = values / (values + best**2)
    jacobian = (vectors * gain) @ vectors.T
    error = math.sqrt(2) * float((jacobian - jacobian.diag().diag()).norm())
    pull = float(((1 - gain) ** 2).sum())  # the second derivative of the likelihood
    found = likeliest_sigma(denoise, x.view(1, n, n), 0.4, 0.01, 2.0)
    assert abs(found / best - 1) < 5 * error / pull / 2 < 0.2


def test_noise_beyond_the_levels_is_found_by_wavelets(generator):
    x = 0.64 * torch.randn(1, 40, 40, generator=generator)
    assert noise_of(Pixels(), x, (1, 8, 8), 0.01, 0.3)[1] == "by wavelets"
    other = Pixels()
    other.local = False  # its evaluations take long
    assert noise_of(other, x, (1, 8, 8), 0.01, 2.0)[1] == "by wavelets"
    with pytest.raises(FloatingPointError, match="takes noise away"):
        likeliest_sigma(lambda y, s: 2 * y, x, 0.1, 0.01, 2.0)


def test_the_likeliest_level_of_colour_in_a_grey_energy(generator):
    r"""The energy of three parts with noise c σ each."""
    from fokker.images.color import SCALES, from_parts

    sigma, scales = 0.4, torch.tensor(SCALES)[:, None, None]
    u = 0.5 * torch.randn(3, 64, 64, generator=generator)
    u = u + sigma * scales * torch.randn(3, 64, 64, generator=generator)
    found, how = noise_of(Pixels(), from_parts(u), (1, 8, 8), 0.01, 2.0)
    assert how == "by the energy" and found == pytest.approx(sigma, rel=0.06)


def test_deviations_are_those_of_the_posterior(generator):
    r"""Of a Gaussian prior with correlated neighbors the posterior variance is known."""
    n, sigma = 8, 0.3
    places = torch.cartesian_prod(torch.arange(n), torch.arange(n)).double()
    prior = 0.3 * torch.exp(-torch.cdist(places, places) / 0.8)
    gain = prior @ torch.linalg.inv(prior + sigma**2 * torch.eye(n * n))
    x = torch.randn(1, n, n, generator=generator)
    denoise = lambda x: (x.flatten(1) @ gain.T).reshape(x.shape)
    variance = (prior - gain @ prior).diagonal().reshape(1, n, n)
    exact = F.avg_pool2d(variance, 7, 1, 3, count_include_pad=False).sqrt()
    assert torch.allclose(deviation(denoise, x, sigma, 8), exact, atol=1e-9)  # no neighbors
    near = deviation(denoise, x, sigma, 4)
    assert float((near / exact - 1).abs().max()) < 0.02
    assert float((deviation(denoise, x, sigma, 1) / exact - 1).abs().max()) > 0.02


def test_deviations_hold_where_neighbors_count_as_much_as_the_pixel():
    r"""Of a denoiser that is the mean over 13×13 pixels, whose derivative is flat."""
    sigma, x = 0.3, torch.zeros(1, 48, 48)
    denoise = lambda x: F.avg_pool2d(x, 13, 1, 6)
    exact = sigma / 13
    inside = deviation(denoise, x, sigma)[:, 8:-8, 8:-8]
    assert float(inside.square().mean().sqrt()) == pytest.approx(exact, rel=0.2)
    assert float((inside == 0).float().mean()) < 0.05  # without the window, 40 %


# --- files ---


@pytest.mark.parametrize("channels", [1, 3])
def test_files_of_16_bits(tmp_path, channels):
    v = np.random.default_rng(0).integers(0, 65536, (channels, 6, 9)).astype(np.uint16)
    (tmp_path / "a.png").write_bytes(encode(v))
    assert is_deep(encode(v))
    with Image.open(io.BytesIO(encode(v))) as image:  # another reader agrees on the high bytes
        seen = np.asarray(image)
    high = seen if channels == 1 else seen.transpose(2, 0, 1).astype(np.uint16) * 256 + (v & 255)
    assert (high == v).all()
    x, bits = read_picture(tmp_path / "a.png")
    assert bits == 16 and x.shape == v.shape and float((x + 1).min()) >= 0
    save_picture(tmp_path / "b.png", x, bits)
    assert (tmp_path / "b.png").read_bytes() == encode(v)  # nothing is lost
    save_png(tmp_path / "c.png", x)
    y, bits = read_picture(tmp_path / "c.png")
    assert bits == 8 and float((x - y).abs().max()) <= 1.01 / 255
    (tmp_path / "d.png").write_bytes(encode(v)[:-40])
    with pytest.raises(ValueError, match=r"d\.png: expected a whole image"):
        read_picture(tmp_path / "d.png")


# --- jobs ---


def test_a_local_energy_denoises_without_seams(generator):
    torch.manual_seed(3)
    net = UNetEnergy(1, 4, (1, 1), 1, (), local=True, dtype="float64")
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    x = torch.randn(1, 40, 56, generator=generator)
    whole = x - 0.3**2 * (x - net.denoise(x[None], 0.3)[0]) / 0.3**2
    done = []
    out, _ = denoise_picture(net, x, (1, 64, 64), 0.3, clip=False, tile=16, watch=done.append)
    assert torch.allclose(out, whole, atol=1e-9)
    assert sum(done) == pytest.approx(1.0) and len(done) == 12
    odd, _ = denoise_picture(net, x[:, :39, :53], (1, 64, 64), 0.3)
    assert odd.shape == (1, 39, 53)


@pytest.mark.parametrize("own", [1, 3])
@pytest.mark.parametrize(
    "operator",
    [
        Downscale(2),
        Blur(gaussian_kernel(0.5)),
        Mask((torch.arange(144) % 3 > 0).view(12, 12) * 1.0),
    ],
    ids=["scale", "blur", "mask"],
)
def test_restoration_of_independent_pixels(operator, own, generator):
    r"""Against the closed form: the ridge estimate, pixel weights S2 + σ² at the last level."""
    s, last = 0.05, 2 / 127.5
    y = 0.3 * torch.randn(
        1, own, *operator(torch.zeros(1, own, 12, 12)).shape[2:], generator=generator
    )
    hidden, y = y, operator.seen_of(y)  # what a file has at hidden pixels does not count
    found = restore(Pixels(), hidden[0], (1, 8, 8), operator, s, 0.001, 1.0, steps=40)
    h, w = operator.domain(*y.shape[2:])
    a = operator(torch.eye(h * w).reshape(-1, 1, h, w)).flatten(1).T
    v = S2 + last**2
    gain = torch.linalg.solve(a.T @ a / s**2 + torch.eye(h * w) / v, a.T / s**2)
    if own == 1:
        expected = (gain @ y.flatten()).reshape(1, h, w)
        assert torch.allclose(found.picture, expected.clamp(-1, 1), atol=1e-2)
    else:  # each part has its own noise, on the scale of the prior
        from fokker.images.color import SCALES, from_parts, to_parts

        parts = []
        for u, c in zip(to_parts(y[0]), SCALES, strict=True):
            ridge = a.T @ a / (c * s) ** 2 + torch.eye(h * w) / v
            parts.append(torch.linalg.solve(ridge, a.T @ u.flatten() / (c * s) ** 2))
        expected = from_parts(torch.stack(parts).reshape(3, h, w))
        assert torch.allclose(found.picture, expected.clamp(-1, 1), atol=1e-2)
    assert found.samples is None
    again = restore(Pixels(), y[0], (1, 8, 8), operator, s, 0.001, 1.0, steps=40)
    assert found.energy == again.energy and torch.equal(found.picture, again.picture)


def test_samples_of_a_restoration(generator):
    y = 0.3 * torch.randn(1, 6, 6, generator=generator)
    found = restore(
        Pixels(), y, (1, 8, 8), Downscale(2), 0.05, 0.001, 1.0,
        samples=400, moves=12, generator=generator,
    )  # fmt: skip
    assert found.samples.shape == (400, 1, 12, 12) and 0.2 < found.acceptance < 1
    a = Downscale(2)(torch.eye(144).reshape(-1, 1, 12, 12)).flatten(1).T
    precision = a.T @ a / 0.05**2 + torch.eye(144) / (S2 + (2 / 127.5) ** 2)
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    ratio = found.deviation.flatten() / sd
    assert float((ratio.mean() - 1).abs()) < 0.03 and float((ratio - 1).abs().max()) < 0.2


def test_a_grey_picture_under_a_colour_energy(generator):
    r"""Noise √C s in each of C channels: the posterior of independent channels has their mean."""
    y = 0.3 * torch.randn(1, 4, 4, generator=generator)
    found = restore(Pixels(), y, (3, 8, 8), Downscale(2), 0.1, 0.001, 1.0, steps=40)
    a = Downscale(2)(torch.eye(64).reshape(-1, 1, 8, 8)).flatten(1).T
    ridge = a.T @ a / (3 * 0.01) + torch.eye(64) / (S2 + (2 / 127.5) ** 2)
    expected = torch.linalg.solve(ridge, a.T @ y.flatten() / (3 * 0.01)).reshape(1, 8, 8)
    assert torch.allclose(found.picture, expected, atol=1e-2)


def test_levels():
    assert geometric_levels(0.1, 0.8, 4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    with pytest.raises(ValueError, match="low < high"):
        geometric_levels(0.8, 0.1, 4)
    assert of_255(sigma=25.5) == pytest.approx(0.2)


# --- commands ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    base = photograph_config("dcd-central", ImageData(MINI, size=24, flip=True, crop=16))
    config = Config(
        base.data,
        base.objective,
        UNet(8, 1, fold=2, multipliers=(1, 1), attention=(), local=True),
        Optimization(steps=30, batch=8, rate=5e-3, warmup=5, muon=0.01),
        evaluate=15,
    )
    return fit(config, tmp_path_factory.mktemp("photographs") / "run").path


def test_a_time_score_is_a_tie():
    config = photograph_config("dcd-central", ImageData("x", crop=64), time=0.1)
    assert config.objective.ties == (TimeScore(0.1),)
    assert loads(dumps(config)) == config


def test_the_preset():
    config = photograph_config("dcd-central", ImageData("x", crop=64))
    net = config.network.build((1, 64, 64))
    assert 2 * sum(p.numel() for p in net.parameters()) <= 4 * 2**20  # bytes in bfloat16
    assert net.local and net.reach < 128
    law = config.objective.level
    assert (127.5 * law.low, 127.5 * law.high) == pytest.approx((1, 100))
    with pytest.raises(ValueError, match="time score only of an energy"):
        photograph_config("reference", ImageData("x"), time=0.1)
    with pytest.raises(ValueError, match="a method at --objective"):
        photograph_config("cd", ImageData("x"))
    assert PHOTOGRAPHS in names()


def test_training_lowers_the_error(trained):
    from fokker.runs.loading import load

    first, last = load(trained).metrics[0], load(trained).metrics[-1]
    assert {k for k in last if k.startswith("rmse")} == {"rmse_0.3", "rmse_0.6"}
    assert last["rmse_0.3"] < 0.29 and last["step"] == 30 and first["step"] == 15
    assert load(trained).shape == (1, 16, 16)


@pytest.mark.filterwarnings("always")
def test_the_commands(tmp_path, capsys, trained, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    grey = (smooth_picture(64, 72) + 0.2 * torch.randn(1, 64, 72)).float()
    save_picture(folder / "a.png", grey, 16)
    save_png(folder / "b.png", grey.expand(3, -1, -1) + 0.1 * torch.randn(3, 64, 72))
    run = ["--energy", str(trained)]
    main(["denoise", "in", *run, "--sigma", "25", "--tile", "64"])
    out = capsys.readouterr().out
    assert "noise 25 of 255 (given): clean/a.png" in out
    a, bits = read_picture(tmp_path / "clean/a.png")
    assert bits == 16 and a.shape == (1, 64, 72)
    assert read_picture(tmp_path / "clean/b.png")[0].shape == (3, 64, 72)
    main(["denoise", "in/a.png", *run, "--sigma", "25", "--uncertainty"])
    out = capsys.readouterr().out
    other = read_picture(tmp_path / "clean.png")[0]
    assert float((other - a).abs().max()) < 1e-4  # whatever the tiles
    shown = 127.5 * (read_png(tmp_path / "clean-deviation.png") + 1) / 4
    said = float(out.split("deviation ")[1].split()[0])
    assert float(shown.mean()) == pytest.approx(said, abs=0.2) and 1 < said < 25
    main(["denoise", "in/a.png", *run])
    assert "(estimated by the energy): clean.png" in capsys.readouterr().out
    save_png(tmp_path / "mask.png", (torch.rand(1, 64, 72) > 0.5) * 2.0 - 1)
    save_png(tmp_path / "kernel.png", torch.zeros(1, 3, 3))
    for options, size in (
        (["--mask", "mask.png", "--samples", "2"], (1, 64, 72)),
        (["--scale", "2"], (1, 128, 144)),
        (["--blur", "gaussian:1"], (1, 70, 78)),
        (["--blur", "kernel.png"], (1, 66, 74)),
    ):
        quick = ["--levels", "2", "--steps", "1", "--moves", "2"]
        main(["restore", "in/a.png", *run, *options, *quick])
        assert "posterior energy" in capsys.readouterr().out
        assert read_picture(tmp_path / "restored.png")[0].shape == size
    for name in ("mean", "deviation", "sample-1", "sample-2"):
        assert (tmp_path / f"restored-{name}.png").exists()


def refused(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_commands_say_what_is_wrong(tmp_path, capsys, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_png(Path("a.png"), torch.zeros(1, 16, 16))
    save_png(Path("small.png"), torch.ones(1, 4, 4))
    Path("none").mkdir()
    say = lambda *options: refused(capsys, "restore", "a.png", "--energy", trained, *options)
    assert "expected one of --blur, --mask and --scale, got none" in say()
    assert "got --mask and --scale" in say("--scale", "2", "--mask", "a.png")
    assert "a number of pixels at --blur gaussian:S, got 'x'" in say("--blur", "gaussian:x")
    assert "gaussian:S or the file of a kernel at --blur, got 'box'" in say("--blur", "box")
    assert "a square kernel of odd side" in say("--blur", "small.png")
    assert "the size of the mask, (4, 4), got (16, 16)" in say("--mask", "small.png")
    assert "another file than the picture" in say("--scale", "2", "--out", "a.png")
    assert "expected pictures" in refused(capsys, "denoise", "none")
    assert "another folder" in refused(capsys, "denoise", ".", "--out", ".")
    save_png(Path("none/x.png"), torch.zeros(1, 4, 4))
    Path("none/x.bmp").write_bytes(b"")
    assert "different names, got two of x.png" in refused(capsys, "denoise", "none")


def test_crops_are_turned_windows(generator):
    from fokker.data.images import Images

    pixels = torch.arange(2 * 7 * 9, dtype=torch.uint8).reshape(2, 1, 7, 9)
    images = Images(pixels, "counted", "train")
    u = ((images.batch(400, generator, crop=3) + 1) * 127.5).round().long()
    windows = {
        tuple(torch.rot90(pixels[n, 0, i : i + 3, j : j + 3], k).long().flatten().tolist()): k
        for n in range(2) for i in range(5) for j in range(7) for k in range(4)
    }  # fmt: skip
    seen = {windows[tuple(crop.flatten().tolist())] for crop in u[:, 0]}  # or a KeyError
    assert u.shape == (400, 1, 3, 3) and seen == {0, 1, 2, 3}
    firsts = u[:, 0].amin((1, 2)) % 63
    assert int(firsts.min()) == 0 and int(firsts.max()) == 4 * 9 + 6  # every place, to the corners
    with pytest.raises(ValueError, match="expected crop between 1 and 7, got 8"):
        images.batch(1, generator, crop=8)


def test_a_long_job_says_how_long_it_takes(monkeypatch, capsys):
    clock = itertools.count(0.0, 0.75)  # a look each
    monkeypatch.setattr("fokker.pace.perf_counter", lambda: next(clock))
    with progress("long.png") as watch:
        for _ in range(10):
            watch(0.01)
    # three looks after the first, at 2.25 seconds, 3 % were done
    assert capsys.readouterr().err.count("long.png: about 80 seconds") == 1
    with progress("short.png") as watch:
        for _ in range(10):
            watch(0.1)
    assert "about" not in capsys.readouterr().err
