r"""A folder of pictures: settings from the pictures, and the odd ones found where they are odd."""

import csv
import json
import numpy as np
import pytest
import torch

from dataclasses import replace
from fokker import load
from fokker.app.cli import main
from fokker.images.misfit import misfit, smooth
from fokker.runs import plan as plan_module
from fokker.runs.plan import config_of, plan_of, side_of
from fokker.tasks import task_of
from pathlib import Path
from PIL import Image


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))


def pictures(folder, n=40, size=(40, 34), odd=()):
    r"""Stripes of random phase; odd ones have a square of noise at the upper left."""
    rng = np.random.default_rng(0)
    (folder / "in").mkdir(parents=True)
    for k in range(n):
        x = 127 + 90 * np.sin((np.arange(size[0]) + rng.integers(8)) * np.pi / 4)
        x = np.broadcast_to(x[None, :, None], (size[1], size[0], 3)).copy()
        if k in odd:
            x[4:16, 6:18] = rng.uniform(0, 255, (12, 12, 3))
        Image.fromarray(x.astype(np.uint8)).save(folder / "in" / f"{k:03d}.png")
    return folder


def test_settings_follow_the_pictures_and_the_device(tmp_path):
    assert side_of([(640, 480)] * 20 + [(50, 900)], "cuda") == 64  # one in ten may be smaller
    assert side_of([(640, 480)] * 5 + [(50, 900)] * 5, "cuda") == 48
    assert side_of([(40, 500)], "cpu") == 32 and side_of([(17, 500)], "cpu") == 16
    with pytest.raises(
        ValueError, match="expected pictures of 16 pixels a side or more, got most"
    ):
        side_of([(12, 500)], "cpu")
    small = config_of(tmp_path, 300, 32, "cpu")
    assert small.network.multipliers == (1, 2) and small.network.attention == (1,)
    assert small.data.augment > 0 and small.network.augmented and small.optimization.batch == 32
    large = config_of(tmp_path, 50_000, 64, "cuda")
    assert large.network.multipliers == (1, 2, 2) and large.network.multiple <= 64
    assert large.data.augment == 0 and large.optimization.batch == 128 and large.compile
    assert config_of(tmp_path, 20, 32, "cpu").optimization.batch == 10


def test_a_plan_fits_into_time_and_memory(tmp_path, monkeypatch):
    folder = pictures(tmp_path / "stripes", 12)
    config = config_of(folder, 10, 16, "cpu")
    config = replace(config, network=replace(config.network, width=8))
    task = task_of(config).load()
    plan = plan_of(config, task, 10, 0.5)
    own = plan.config.optimization
    assert 0 < plan.seconds <= 30 or own.steps == 50
    assert f"{own.steps:,} steps of 5" in plan.sentences[1] and "GiB" in plan.sentences[2]

    # a GPU on which a step takes 20 GiB: it is cut until it fits
    gpu = replace(config, device="cuda", optimization=replace(config.optimization, batch=64))
    monkeypatch.setattr(
        plan_module, "measure", lambda c, t: plan_module.Measured(0.1 * c.slices, 20 / c.slices)
    )
    cut = plan_of(gpu, task, 10, 10.0)
    assert cut.config.slices == 4 and cut.memory == 5 and cut.config.optimization.batch == 64
    assert cut.config.optimization.steps == 1500 and "in 4 slices" in cut.sentences[1]


class Stripes:
    r"""The denoiser that knows stripes: the mean of each column."""

    def denoise(self, x, sigma):
        return x.mean(2, keepdim=True).expand_as(x)


def test_the_odd_one_is_found_where_it_is_odd():
    columns = torch.sin(torch.arange(32) * torch.pi / 4)
    x = (127 + 90 * columns).expand(20, 3, 32, 32).clone()
    x[7, :, 4:14, 18:30] = 255 * torch.rand(3, 10, 12, generator=torch.Generator().manual_seed(0))
    found = misfit(Stripes(), x.to(torch.uint8), batch=6)
    assert found.order[0] == 7 and found.scores[7] > 2 * found.scores.median()
    assert found.scores.mean() == pytest.approx(1, rel=1e-5)
    peak = found.maps[7].argmax()
    row, column = divmod(int(peak), 32)
    assert 4 <= row < 14 and 18 <= column < 30
    again = misfit(Stripes(), x.to(torch.uint8)[[7, 3]], batch=2)
    assert again.order[0] == 0
    flat = smooth(torch.ones(2, 9, 9), 2.0)
    torch.testing.assert_close(flat, torch.ones(2, 9, 9))


def test_what_cannot_be_trained_on_is_one_line(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    (tmp_path / "bad").mkdir()
    for k in range(30):
        (tmp_path / "bad" / f"{k}.png").write_text("no picture")
    for folder, message in (
        (tmp_path / "far", "expected a folder of pictures"),
        (tmp_path / "none", "or images"),
        (tmp_path / "bad", ".png: expected a picture"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["train", "images", str(folder), "--out", str(tmp_path / "run")])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and message in error and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_folder_in_one_command(tmp_path, capsys):
    folder, out = pictures(tmp_path / "stripes", 60, odd=(3,)), tmp_path / "run"
    args = ["train", "images", str(folder), "--out", str(out), "--device", "cpu"]
    main([*args, "--dry-run", "--budget", "0.01"])
    assert "expected: " in capsys.readouterr().out and not out.exists()
    main([*args, "--budget", "0.5"])
    said = capsys.readouterr().out
    assert said.index("expected: ") < said.index("samples: ")
    assert "32x32 pixels" in said and "moved about" in said
    for name in ("samples.png", "odd.png", "odd.csv", "report.html"):
        assert (out / name).stat().st_size > 100
    page = (out / "report.html").read_text()
    assert "The oddest pictures" in page and "Samples" in page
    rows = list(csv.reader((out / "odd.csv").open()))
    assert len(rows) == 61 and rows[1][0] == "in/003.png"
    run = load(out)
    main([*args, "--resume"])  # it has ended: shown again
    main(["evaluate", str(out), "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == run.step
    assert Path(run.config.data.source) == folder
