r"""The studies of composition, of likelihoods and of odd images, at a tiny size."""

import json
import pytest
import torch

from fokker.data.images import Images
from fokker.images.generate import Sampling
from fokker.images.oddness import CHOSEN, LEVELS, Usual, features_of, scores
from fokker.metrics import auroc
from studies import results
from studies.densities import composition, likelihood, ood
from studies.tables.densities import composition_table, one_pass_table, ood_table
from test_generation import Bell
from test_one_pass import Moved, bell_pixels, made_run


def test_the_divergence_of_exact_samples_is_that_of_their_number():
    mass, _ = composition.masses(composition.plane()["ring · bar"])
    assert float(mass.sum()) == pytest.approx(1, abs=1e-3)
    n = 4096
    floor, lower = (
        composition.divergence(composition.exact(mass, k * n, 0), mass) for k in (1, 4)
    )
    assert 2 < floor / lower < 8  # as one over the number
    moved = composition.exact(mass, n, 0) + torch.tensor([0.3, 0.0])
    assert composition.divergence(moved, mass) > 10 * floor


def test_the_modes_of_a_product_are_those_in_common():
    found = composition.space()
    energy, means, weights, variance = found["product"]
    a, b = torch.tensor([0.4, 0.1]), torch.tensor([0.1, 0.5])
    expected = a * b / (a * b).sum()  # modes 0 and 1 alone are in both
    assert torch.allclose(weights[:2], expected.double(), atol=6e-3)
    assert float(weights[2:].abs().max()) < 1e-3
    x = energy.at(composition.LAST)
    g = torch.func.grad(lambda p: x(p).sum())(means[:1].float())
    assert float(g.abs().max()) < 1e-2 and variance == pytest.approx((0.49 + 4e-4) / 2)
    assert found["T = 1/2"][2].sum() == pytest.approx(1)


def test_a_row_of_the_plane():
    kept = {}
    row = next(composition.planar_rows(512, 0, kept))
    assert row["sampler"] == "naive" and row["kl"] > 1 > row["floor"]
    assert kept["ring · bar", "naive"].shape == (512, 2)
    assert "| ring · bar | naive |" in composition_table([row])


def test_blurred_images_keep_their_mean_and_lose_their_detail():
    pixels = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    smooth = ood.blurred(pixels)
    gap = smooth.double().mean((2, 3)) - pixels.double().mean((2, 3))
    assert smooth.shape == pixels.shape and gap.abs().max() < 8
    assert smooth.double().std() < pixels.double().std() / 4
    flat = torch.full((1, 1, 32, 32), 77, dtype=torch.uint8)
    assert torch.equal(ood.blurred(flat), flat)


@pytest.fixture
def run(tmp_path, monkeypatch):
    folder = made_run(tmp_path / "run")
    pixels = {"train": bell_pixels(200, 5, 12), "test": bell_pixels(30, 6, 12)}
    read = lambda source, split, *_, **__: Images(pixels[split], "bell", split)
    monkeypatch.setattr(ood, "read_images", read)
    monkeypatch.setattr("fokker.tasks.ImageTask.pixels", lambda task, split: pixels[split])
    return folder, pixels


def test_rows_of_odd_images(run, tmp_path, monkeypatch):
    folder, pixels = run
    monkeypatch.setattr("fokker.tasks.base.Run.energy_on", lambda *_, **__: Bell(0.3))
    out = tmp_path / "ood.json"
    rows = ood.run(out, str(folder), ("noise", "constant"), 20, 100)
    again = ood.run(out, str(folder), ("noise",), 20, 100)
    assert len(rows) == len(again) == 2 * (3 * len(LEVELS) + 1)
    for row in results.load(out)["rows"]:
        assert {"train", "test", "rule", "level", "auroc", "images", "chosen"} <= set(row)
        assert row["chosen"] == (row["rule"] == CHOSEN)
    area = {(r["test"], r["rule"], r["level"]): r["auroc"] for r in rows}
    assert area["noise", CHOSEN, None] > 0.99 and area["noise", "energy", 0.1] > 0.99
    order = torch.Generator().manual_seed(0)
    some = pixels["train"][torch.randperm(200, generator=order)[:100]]
    own = pixels["test"][torch.randperm(30, generator=order)[:20]]
    known = Usual.fit(features_of(Bell(0.3), some))
    theirs = ood.pixels_of("constant", own, (1, 12, 12), None, 20)
    mine, other = (scores(known, features_of(Bell(0.3), p)) for p in (own, theirs))
    key = ("typicality", 0.3)
    assert area["constant", *key] == pytest.approx(auroc(mine[key], other[key]))
    table = ood_table(rows)
    assert "| **combined** | all | 1.00 |" in table and "noise (20)" in table


def test_rows_of_likelihoods(run, tmp_path, monkeypatch):
    folder, _ = run
    monkeypatch.setattr("fokker.tasks.base.Run.energy_on", lambda *_, **__: Moved())
    monkeypatch.setattr("fokker.tasks.base.Run.loaded", lambda run, fetch: run.task)
    out, sampling = tmp_path / "likelihood.json", Sampling(sigma_min=0.05, sigma_max=20.0)
    likelihood.run(out, [str(folder)], 6, sampling)
    flow, one = results.load(out)["rows"]
    assert (flow["how"], one["how"], one["bpd"]) == ("ode", "one-pass", None)
    assert not out.with_suffix(".png").exists() and "none, not tied" in one_pass_table(out)
    monkeypatch.setattr(likelihood, "is_tied", lambda run: True)
    likelihood.run(out, [str(folder)], 6, sampling)
    flow, one = results.load(out)["rows"]  # in place of those before
    assert one["bpd"] == pytest.approx(flow["bpd"], abs=0.01) and one["residual"] < 0.01
    assert one["correlation"] > 0.999 and (one["images"], flow["dequantization"]) == (6, "uniform")
    assert out.with_suffix(".png").exists() and "1.0000" in one_pass_table(out)
    assert "Not measured yet" in one_pass_table(tmp_path / "none.json")
    assert json.loads(out.read_text())["command"].startswith("fokker reproduce likelihood")
