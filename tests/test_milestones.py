r"""Budgets in images, and FIDs that are declared before a run starts."""

import json
import pytest
import torch

from fokker import fit
from fokker.app.cli import main
from fokker.images.generate import Sampling
from fokker.metrics import Extractor
from fokker.objectives import LevelDCD, Limit, LogUniform
from fokker.runs import training
from fokker.runs.checkpoints import newest
from fokker.runs.config import Config, ImageData, Milestones, Optimization, UNet
from fokker.runs.milestones import read_quality
from fokker.runs.toml import dumps, loads
from fokker.runs.training import Interrupted
from fokker.tasks import TooLate
from pathlib import Path
from studies import merge, results

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
CONFIG = Config(
    ImageData(MINI, size=8),
    LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True),
    UNet(8, 1, multipliers=(1,), attention=()),
    Optimization(steps=6, batch=4, muon=0.01),
    evaluate=6,
    milestones=Milestones(every=8, few=3, at=(17,), many=5),
)


def pool(x):
    r"""A stand-in for Inception, to see what is done with features."""
    return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 2).flatten(1)


EXTRACTOR = Extractor(pool, "abcdefghij")


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fokker.tasks.image.load_inception", lambda **options: EXTRACTOR)
    monkeypatch.setattr("fokker.tasks.image.Sampling", lambda: Sampling(steps=3))


def test_what_is_due_after_each_step():
    marks = Milestones(every=10, few=3, at=(12, 40), many=5)
    due = {k: marks.counts(k, 4) for k in range(1, 12)}
    assert {k: v for k, v in due.items() if v} == {3: [3, 5], 5: [3], 8: [3], 10: [3, 5]}
    assert not any(Milestones().counts(k, 4) for k in range(1, 12))
    # a multiple within a step counts once, however large the batch
    assert Milestones(every=10).counts(1, 64) == [10_000]
    with pytest.raises(ValueError, match="within the 24 images of training, got one at 25"):
        Config(CONFIG.data, CONFIG.objective, CONFIG.network, CONFIG.optimization,
               milestones=Milestones(at=(25,)))  # fmt: skip
    assert loads(dumps(CONFIG)) == CONFIG


def test_samples_are_judged_on_the_way_whatever_stops_the_run(tmp_path, monkeypatch):
    said = []
    run = fit(CONFIG, tmp_path / "alone", say=said.append)
    rows = read_quality(tmp_path / "alone")
    assert [(r["step"], r["images_seen"], r["fid_n"]) for r in rows] == [
        (2, 8, 3), (4, 16, 3), (5, 20, 5), (6, 24, 3)
    ]  # fmt: skip
    assert all(r["fid"] > 0 and r["nfe"] == 5 and r["weights"] == "abcdefgh" for r in rows)
    assert all(r["gpu_minutes"] is None and r["seconds"] > 0 for r in rows)
    assert sum("FID" in line for line in said) == 4
    # a call without time for the samples leaves them to the next, which takes no step before
    judge = training.judge_samples

    def late(run, left):
        if run.done == 4:
            raise TooLate
        return judge(run, left)

    monkeypatch.setattr(training, "judge_samples", late)
    with pytest.raises(Interrupted) as stop:
        fit(CONFIG, tmp_path / "parts")
    assert stop.value.late and newest(tmp_path / "parts").step == 4
    assert [r["step"] for r in read_quality(tmp_path / "parts")] == [2]
    monkeypatch.setattr(training, "judge_samples", judge)
    resumed = fit(CONFIG, tmp_path / "parts", resume=True)
    bare = lambda place: [(r["step"], r["fid_n"], r["fid"]) for r in read_quality(place)]
    assert bare(tmp_path / "parts") == bare(tmp_path / "alone")
    for a, b in zip(run.energy.parameters(), resumed.energy.parameters(), strict=True):
        assert torch.equal(a, b)
    # the rows of a run folder go into a file of results, once
    target = tmp_path / "generation.json"
    folder = str(tmp_path / "parts")
    main(["merge", str(target), folder])
    main(["merge", str(target), folder])
    found = results.load(target)["rows"]
    assert [r["step"] for r in found] == [2, 4, 5, 6]
    expected = {"data": "mnist-mini", "kind": "milestone", "seed": 0, "images_seen": 20}
    assert expected.items() <= found[2].items() and found[2]["guidance"] is None
    assert merge.KEYS["generation"]


def test_the_time_for_samples_is_foreseen(tmp_path, monkeypatch):
    task = fit(Config(CONFIG.data, CONFIG.objective, CONFIG.network,
                      Optimization(steps=1, batch=4)), tmp_path / "run").loaded()  # fmt: skip
    monkeypatch.setattr("fokker.tasks.image.CHUNK", 2)
    monkeypatch.setattr("fokker.tasks.image.BATCH", 2)
    energy = task.network()
    with pytest.raises(TooLate):
        task.quality(energy, [6], torch.device("cpu"), left=lambda: 1e-6)
    (row,) = task.quality(energy, [2], torch.device("cpu"), left=lambda: 1e-6)  # nothing left
    assert row["fid_n"] == 2


def test_a_budget_in_images(tmp_path, capsys):
    args = ["train", "generation", "--data", MINI, "--dry-run", "--batch", "512"]
    with pytest.raises(SystemExit) as stop:
        main([*args, "--images", "40_000_000", "--fid-every", "2_000_000", "--fid-at", "10_000_000",
              "40_000_000"])  # fmt: skip
    assert stop.value.code == 0
    config = loads(capsys.readouterr().out)
    assert config.optimization.steps == 78_125
    assert config.milestones == Milestones(2_000_000, at=(10_000_000, 40_000_000))
    for more, message in (
        (["--images", "100", "--steps", "5"], "expected --images or --steps, got both"),
        (["--images", "0"], "expected images to be an integer >= 1"),
        (["--images", "5120", "--fid-at", "6000"], "within the 5,120 images of training"),
    ):
        with pytest.raises(SystemExit):
            main([*args, *more])
        assert message in capsys.readouterr().err


def test_missing_weights_of_inception_are_told_before_training(tmp_path, monkeypatch):
    def missing(**options):
        raise ValueError("expected the weights of Inception")

    monkeypatch.setattr("fokker.tasks.image.load_inception", missing)
    with pytest.raises(ValueError, match="weights of Inception"):
        fit(CONFIG, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert json.loads((tmp_path / "run" / "data.json").read_text())
