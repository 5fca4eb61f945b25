r"""Odd images, and memory: every rule against an energy whose answers are known."""

import csv
import io
import json
import math
import numpy as np
import pytest
import torch

from fokker.app.cli import main
from fokker.data.picture import save_png, to_float
from fokker.data.sources import at_hand
from fokker.images.memory import memory_of, nearest
from fokker.images.oddness import CHOSEN, LEVELS, RULES, Features, Usual, features_of, scores
from fokker.metrics import auroc
from PIL import Image
from test_generation import Bell
from test_one_pass import bell_pixels, made_run


def test_the_area_is_a_probability():
    a, b = torch.randn(300), torch.randn(200) + 1
    pairs = (b[:, None] > a).double().mean() + (b[:, None] == a).double().mean() / 2
    assert auroc(a, b) == pytest.approx(float(pairs))
    assert auroc(b, a) == pytest.approx(1 - float(pairs))
    assert auroc(torch.ones(4), torch.ones(3)) == pytest.approx(0.5)
    a, b = torch.randint(3, (50,)).double(), torch.randint(3, (40,)).double()  # with ties
    pairs = (b[:, None] > a).double().mean() + (b[:, None] == a).double().mean() / 2
    assert auroc(a, b) == pytest.approx(float(pairs))
    for bad in ((torch.ones(0), torch.ones(1)), (torch.ones(2), torch.tensor([math.nan]))):
        with pytest.raises(ValueError, match="scores"):
            auroc(*bad)


def test_features_are_energies_and_norms():
    pixels = bell_pixels(7)
    found = features_of(Bell(), pixels, (0.1, 2.0), batch=3)
    x = to_float(pixels).double()
    for k, sigma in enumerate((0.1, 2.0)):
        v = 0.25 + sigma**2
        norm = x.flatten(1).norm(dim=1) / v
        assert torch.allclose(found.norm[:, k], norm)
        assert torch.allclose(found.energy[:, k], Bell()(x, torch.tensor(sigma)))
    with pytest.raises(FloatingPointError, match="at 7 of 7 images"):
        features_of(lambda x, s: Bell()(x, s) * math.nan, pixels)


def test_the_rules_are_what_they_say():
    r"""Features drawn from a Gaussian: the combined rule is a chi-square, whatever their scale,
    its p-values are uniform, and typicality sees both ends."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.tril(torch.randn(8, 8, generator=generator)) + 3 * torch.eye(8)

    def sample(n):
        z = torch.randn(n, 8, generator=generator) @ mix.T
        return Features(1000 + 50 * z[:, :4], torch.exp(5 + 0.01 * z[:, 4:]))

    usual, new = Usual.fit(sample(8000)), sample(4000)
    distance = usual.distance(new)
    assert abs(float(distance.mean()) - 8) < 0.3 and abs(float(distance.var()) - 16) < 2.5
    p = usual.p_values(new)
    assert abs(float(p.mean()) - 0.5) < 0.03 and 0 < float(p.min()) < 1e-2
    found = scores(usual, new)
    assert set(found) == {(r, s) for r in RULES[:3] for s in LEVELS} | {(CHOSEN, None)}
    moved = lambda by: Features(new.energy + by, new.norm)
    for by, plain in ((2000.0, 1.0), (-2000.0, 0.0)):
        other = scores(usual, moved(by))
        assert auroc(found["energy", 0.1], other["energy", 0.1]) == pytest.approx(plain, abs=1e-3)
        assert auroc(found["typicality", 0.1], other["typicality", 0.1]) > 0.99
        assert auroc(found["combined", None], other["combined", None]) > 0.99
    with pytest.raises(ValueError, match="expected 32 images or more"):
        Usual.fit(sample(31))


def test_memory_of_an_energy_that_remembers():
    r"""The density of noise around the training images: at low levels they are far likelier."""
    train, test = bell_pixels(30, 5), bell_pixels(30, 6)  # not the seed of the noise
    points = to_float(train).flatten(1)

    def remembers(x, sigma):
        square = torch.cdist(x.flatten(1), points.to(x)).square()
        return -torch.logsumexp(-square / (2 * sigma**2), 1)

    rows = {row.sigma: row for row in memory_of(remembers, train, test)}
    assert rows[0.01].auroc > 0.99 and rows[0.01].gap > 5 * rows[0.01].error > 0
    assert rows[0.01].gap == pytest.approx(rows[0.01].test - rows[0.01].train)
    knows = {row.sigma: row for row in memory_of(Bell(0.3), train, test)}
    assert all(abs(row.gap) < 5 * row.error for row in knows.values())
    assert abs(knows[0.01].auroc - 0.5) < 0.3
    # against the closed form, with the same noise
    eps = torch.randn(train.shape, generator=torch.Generator().manual_seed(0))
    own = Bell(0.3)(to_float(train) + 0.1 * eps, torch.tensor(0.1)).mean()
    assert knows[0.1].train == pytest.approx(float(own), rel=1e-4)


def test_the_nearest_other():
    pixels = bell_pixels(20)
    x = to_float(pixels)
    distances = torch.cdist(x.flatten(1), x.flatten(1)) / 4
    itself, index = nearest(x, pixels, chunk=7)
    assert itself.abs().max() < 1e-3 and torch.equal(index, torch.arange(20))
    distances.fill_diagonal_(math.inf)
    found, index = nearest(x, pixels, chunk=7, others=True)
    assert torch.allclose(found, distances.min(1).values, atol=1e-5)
    assert torch.equal(index, distances.argmin(1))


@pytest.fixture
def trained(tmp_path):
    return made_run(tmp_path / "run")


def table(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.fixture
def bell(monkeypatch):
    r"""Runs have the energy of Gaussian images, and these as their data."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr("fokker.tasks.base.Run.energy_on", lambda run, *_, **__: Bell(0.3))
    pixels = {"train": bell_pixels(400, 5, 12), "test": bell_pixels(40, 6, 12)}
    monkeypatch.setattr("fokker.tasks.ImageTask.pixels", lambda task, split: pixels[split])
    return pixels


def test_the_score_command(trained, bell, tmp_path, capsys):
    folder, out = tmp_path / "pictures", tmp_path / "scores.csv"
    folder.mkdir()
    for k in range(3):
        save_png(folder / f"{k}.png", to_float(bell["test"][k]))
    save_png(folder / "white.png", torch.ones(1, 12, 12))
    Image.fromarray(np.full((30, 20), 128, np.uint8)).save(folder / "grey.png")
    (folder / "notes.txt").write_text("no picture")
    main(["score", str(trained), str(folder), "--out", str(out), "--alarm-rate", "0.02"])
    said = capsys.readouterr().out
    assert "5 pictures" in said and "1 pictures cropped and resized to 12 pixels" in said
    assert "128 training images kept aside" in said and "2 alarms at a rate of 0.02" in said
    rows = {r["file"].rsplit("/", 1)[-1]: r for r in table(out)}
    assert set(rows) == {"0.png", "1.png", "2.png", "white.png", "grey.png"}
    assert [rows[k]["alarm"] for k in ("0.png", "1.png", "white.png", "grey.png")] == list("0011")
    x = to_float(bell["test"][:1])
    for sigma in LEVELS:
        exact = float(Bell(0.3)(x, torch.tensor(sigma)))
        assert float(rows["0.png"][f"energy_{sigma:g}"]) == pytest.approx(exact, rel=1e-4)
    # the failure of a plain energy: a grey picture is likelier than any that was trained on
    assert float(rows["grey.png"]["energy_0.1"]) < float(rows["0.png"]["energy_0.1"])
    assert float(rows["grey.png"]["combined"]) > float(rows["0.png"]["combined"])
    main(["score", str(trained), str(folder / "0.png"), "--out", str(out)])
    assert len(table(out)) == 1 and "1 pictures" in capsys.readouterr().out


def test_without_training_images_there_are_energies_alone(
    trained,
    bell,
    tmp_path,
    capsys,
    monkeypatch,
):
    monkeypatch.setattr("fokker.runs.config.ImageData.absent", lambda data: "hub")
    monkeypatch.setattr("fokker.runs.config.ImageData.at_hand", False)
    save_png(tmp_path / "x.png", to_float(bell["test"][0]))
    args = ["score", str(trained), str(tmp_path / "x.png"), "--out", str(tmp_path / "s.csv")]
    main(args)
    assert "no rule compares with training images" in capsys.readouterr().out
    (row,) = table(tmp_path / "s.csv")
    assert "energy_0.1" in row and "combined" not in row
    with pytest.raises(SystemExit):
        main([*args, "--alarm-rate", "0.1"])
    assert "--fetch fetches them" in capsys.readouterr().err


def test_a_shipped_energy_scores_where_its_images_are_not(tmp_path, capsys, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.delenv("FOKKER_DATA", raising=False)
    assert not at_hand("celeba32", None) and not at_hand(str(tmp_path / "none"), None)
    (tmp_path / "celeba32").mkdir()
    assert at_hand("celeba32", tmp_path) and at_hand(str(tmp_path), None)
    save_png(tmp_path / "x.png", torch.zeros(3, 32, 32))
    args = ["score", "celeba32", str(tmp_path / "x.png"), "--out", str(tmp_path / "s.csv")]
    main(args)
    assert "no rule compares with training images" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*args, "--alarm-rate", "0.1"])
    said = capsys.readouterr().err
    assert "for --alarm-rate, got none" in said and "--fetch" not in said


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("none.png", [], "a picture or a folder of pictures, got none"),
        ("empty", [], "expected pictures (.png"),
        ("x.png", ["--explain"], "a run on a table for --explain"),
        ("x.png", ["--out", "s.txt"], "--out to end in .csv"),
        ("x.png", ["--usual", "10"], "expected 32 images or more"),
        ("rgb.png", [], "expected a grey image, got colour"),
    ],
)
def test_what_is_wrong_is_said(
    place,
    options,
    message,
    trained,
    bell,
    tmp_path,
    capsys,
):
    (tmp_path / "empty").mkdir()
    save_png(tmp_path / "x.png", to_float(bell["test"][0]))
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)).save(
        tmp_path / "rgb.png"
    )
    out = [] if "--out" in options else ["--out", str(tmp_path / "s.csv")]
    with pytest.raises(SystemExit):
        main(["score", str(trained), str(tmp_path / place), *out, *options])
    assert message in capsys.readouterr().err


def test_the_memory_command(trained, bell, capsys):
    main(["evaluate", str(trained), "--memory", "40", "--json"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["memory_n"] == 40
    for sigma in (0.01, 1.0):
        gap, error = line[f"memory_gap_{sigma:g}"], line[f"memory_error_{sigma:g}"]
        assert abs(gap) < 5 * error and 0.2 < line[f"memory_auroc_{sigma:g}"] < 0.8
    assert line["nearest_test"] == pytest.approx(line["nearest_train"], rel=0.1)
    main(["evaluate", str(trained), "--memory", "10"])
    assert "energy of 10 test images minus that of training images" in capsys.readouterr().out
