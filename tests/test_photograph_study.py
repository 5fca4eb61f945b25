r"""The study of photographs: its rows against closed forms, at small size."""

import json
import math
import pytest
import torch
import torch.nn.functional as F

from fokker.app.cli import main
from fokker.data.picture import save_png
from fokker.images.noise import estimate_sigma
from pathlib import Path
from studies import photographs as study
from studies import results
from studies.tables.photographs import (
    coverage_table,
    noise_table,
    photograph_table,
    posterior_table,
    restoration_table,
)

ROOT = Path(__file__).parents[1]


def test_coverage_is_that_of_a_normal(generator):
    truth = torch.randn(1, 60, 60, generator=generator)
    spread = 0.1 + torch.rand(1, 60, 60, generator=generator)
    found = truth + spread * torch.randn(1, 60, 60, generator=generator)
    counts = study.covered(found, spread, truth)
    assert counts[:, 0].tolist() == [900] * 4
    for k, share in ((1, 0.6827), (2, 0.95)):
        error = math.sqrt(share * (1 - share) / 900)
        assert float((counts[:, k] / 900 - share).abs().max()) < 5 * error


def test_rows(generator):
    truth = torch.zeros(1, 16, 16)
    estimates = [
        (study.Estimate(truth + 0.2, torch.full_like(truth, 0.15), 30.0), truth, 1.0),
        (study.Estimate(truth + 0.1, torch.full_like(truth, 0.15), 20.0), truth, 3.0),
    ]
    row = study.row_of("set", "denoise", 25.0, "one", estimates, pictures=2, side=None)
    assert row["psnr"] == pytest.approx(
        10 * math.log10(4 / 0.04) / 2 + 10 * math.log10(4 / 0.01) / 2
    )
    assert (row["seconds"], row["coverage68"], row["coverage95"]) == (2.0, 0.5, 1.0)
    assert row["sigma_error"] == pytest.approx(0.2)
    table = photograph_table([row])
    assert "| set, 2 pictures | one | 23.01, " in table and "50 / 100" in table
    restored = {**row, "task": "deblur"}
    assert "deblur | one | 23.01" in restoration_table([restored])
    assert "deblur" not in table


def test_the_table_of_posteriors():
    row = {
        "dimension": 64, "operator": "blur", "corrected": True, "weighted": True,
        "mean_error": 0.001, "covariance_error": 0.02, "weight_error": 0.003, "acceptance": 0.5,
        "particles": 4096, "seconds": 9.6,
    }  # fmt: skip
    assert "| 64 | blur | **corrected** | yes | 0.1 | 2.0 | 0.3 | 0.50 | 4,096 | 10 |" in (
        posterior_table([row])
    )


def test_what_the_command_refuses(tmp_path, capsys):
    folder = tmp_path / "few"
    folder.mkdir()
    save_png(folder / "a.png", torch.zeros(1, 16, 16))

    def say(*options):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", "photographs", "--data", str(tmp_path), *options])
        assert stop.value.code == 2
        return capsys.readouterr().err

    assert "a task at --tasks" in say("--tasks", "sharpen")
    assert "a method at --methods" in say("--methods", "magic")
    assert "expected photographs, *.png" in say("--sets", "none", "--tasks", "deblur")
    (x,) = study.pictures(folder, 0, 8)
    assert x.shape == (1, 8, 8)


def test_the_command_keeps_one_row_of_a_kind(tmp_path, capsys, monkeypatch):
    r"""The command runs whole with a method that needs no energy, and replaces its rows."""
    folder = tmp_path / "few"
    folder.mkdir()
    save_png(folder / "a.png", torch.zeros(1, 16, 16))
    half = lambda y, sigma, truth: study.Estimate(y / 2)
    monkeypatch.setattr(study, "methods", lambda *args: {"half": half})
    out = tmp_path / "photographs.json"
    args = ["--data", str(tmp_path), "--sets", "few", "--tasks", "denoise", "--sigmas", "25"]
    for _ in range(2):
        main(["reproduce", "photographs", *args, "--results", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    # what is left of the noise is half of it: 20 log10(2 / (25 / 127.5 / 2)) up to its spread
    assert row["psnr"] == pytest.approx(20 * math.log10(2 * 127.5 / 12.5), abs=1.0)
    assert "few, denoise, sigma 25, half" in capsys.readouterr().out


def test_a_plain_denoiser_is_a_method_too(tmp_path, generator):
    r"""Of pictures whose sides are no multiples of its own; an energy has the same network."""
    folder = tmp_path / "few"
    folder.mkdir()
    for k in range(4):
        save_png(folder / f"{k}.png", torch.rand(1, 24, 24, generator=generator) * 2 - 1)
    run = tmp_path / "reference"
    main([
        "train", "photographs", "--data", str(folder), "--objective", "reference", "--steps", "2",
        "--batch", "2", "--crop", "16", "--out", str(run),
    ])  # fmt: skip
    (method,) = study.methods(("energy",), str(run), False).values()
    y = torch.rand(1, 21, 18, generator=generator) * 2 - 1
    found = method(y, 0.2, y).picture
    assert found.shape == y.shape and torch.isfinite(found).all()
    whole = method(F.pad(y, (0, 2, 0, 3), mode="reflect"), 0.2, y).picture[:, :21, :18]
    assert torch.allclose(found, whole, atol=1e-6)
    for options, what in ((("blind",), "the noise"), (("energy",), "deviations")):
        with pytest.raises(ValueError, match=f"{what}, got .*, a plain denoiser"):
            study.methods(options, str(run), options == ("energy",))


def test_a_large_picture_and_the_table_of_coverage(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(study.large, "__defaults__", (64,))
    out = tmp_path / "photographs.json"
    main(["reproduce", "photographs", "--tasks", "large", "--results", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["data"], row["task"], row["side"]) == ("waves", "large", 64)
    assert row["psnr"] > 20 * math.log10(2 * 127.5 / 25) + 5 and row["megabytes"] >= 0
    assert "waves, large, sigma 25" in capsys.readouterr().out
    covered = {**row, "task": "denoise", "quartiles68": [0.7] * 4, "quartiles95": [0.95] * 4}
    table = coverage_table([row, covered])
    assert "waves, 1 pictures, middle 64² | photographs | 25 | 70.0 / 95.0 |" in table


def test_estimates_of_noise(generator):
    i = torch.arange(128.0).expand(1, 128, 128) / 128 - 0.5
    wavelets = lambda y: float(estimate_sigma(y[None]))
    row = study.estimates("waves", [i, -i], 25.0, "wavelets", wavelets, pictures=2, side=None)
    assert row["sigma_error"] <= row["sigma_error_most"] < 0.05 and row["psnr"] is None
    assert "waves, 2 pictures | wavelets | " in noise_table([row])


def test_what_the_docs_say_of_photographs():
    docs = " ".join((ROOT / "docs/photographs.md").read_text().split())
    rows = results.load(ROOT / "results/photographs.json")["rows"]
    own = {
        r["sigma"]: r["psnr"]
        for r in rows
        if (r["data"], r["task"], r["method"]) == ("bsd68", "denoise", "photographs")
        and r["pictures"] == 68
    }
    for name, figures in study.PUBLISHED.items():
        shown = " / ".join(f"{v:.2f}" for v in figures)
        assert f"{name.split(',')[0]} {shown}" in docs
    best = study.PUBLISHED["DnCNN, published"]
    sigmas = (15.0, 25.0, 50.0)
    squares = {(r["method"], r["sigma"]): r["psnr"] for r in rows if r["side"] == 128}
    above = [squares["photographs", s] - squares["bm3d", s] for s in sigmas]
    assert f"BM3D by {above[0]:.2f}, {above[1]:.2f} and {above[2]:.2f} dB" in docs
    (large,) = (r for r in rows if r["task"] == "large")
    said = f"takes {large['seconds']:.1f} s on two threads of an idle machine, and"
    assert f"{said} {large['megabytes']:,} MB more" in docs and large["threads"] == 2
    gains = [own[s] - v for s, v in zip(sigmas, best, strict=True)]
    sure = [r for r in rows if r["task"] == "denoise" and r["quartiles68"] is not None]
    assert len(sure) == 3 and all(0.92 <= v <= 0.97 for r in sure for v in r["quartiles95"])
    wide = [(r["sigma"], k) for r in sure for k, v in enumerate(r["quartiles68"]) if v > 0.73]
    assert wide == [(25.0, 0), (50.0, 0)]  # the smoothest quarter
    assert all(v >= 0.63 for r in sure for v in r["quartiles68"])
    own_noise = [r for r in rows if r["task"] == "noise" and r["method"] == "photographs"]
    assert len(own_noise) == 6 and all(r["sigma_error"] < 0.05 for r in own_noise)
    assert min(gains) > 0 and f"by {', '.join(f'{v:.2f}' for v in gains[:2])} and" in docs
    assert f"and {gains[2]:.2f} dB" in docs


def test_posteriors_are_within_two_percent_with_the_correction():
    rows = results.load(ROOT / "results/posterior.json")["rows"]
    assert {(r["dimension"], r["operator"]) for r in rows} == {
        (d, name) for d in (64, 256) for name in ("identity", "blur", "mask", "downscale")
    }
    for r in rows:
        errors = [r[f"{name}_error"] for name in ("mean", "covariance", "weight")]
        if r["corrected"] and r["weighted"]:
            assert max(errors) < 0.02, r
        elif not r["corrected"]:
            assert max(errors) > 0.05, r
