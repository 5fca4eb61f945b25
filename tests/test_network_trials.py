r"""Trials of networks in small: time, steps, rows that are kept, and the command."""

import json
import pytest
import time
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app.cli import main
from fokker.images.generate import Sampling
from fokker.metrics import Extractor
from fokker.runs.folder import read_config
from fokker.runs.presets import CANDIDATES
from fokker.runs.training import Diverged, Interrupted
from pathlib import Path
from safetensors.torch import load_file
from studies import networks, results, tables

pytestmark = pytest.mark.slow  # it trains, draws and evaluates

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
TRIAL = networks.Trial("fold-128", MINI, minutes=2e-3, batch=2, quick=True)
SETTINGS = networks.Settings(5, chunk=4, tested=4, batch=4, sampling=Sampling(steps=4))


def pool(x):
    r"""A stand-in for Inception, to see what is done with features."""
    return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 2).flatten(1)


EXTRACTOR = Extractor(pool, "0123")


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOKKER_INCEPTION", raising=False)


@pytest.fixture
def timed(tmp_path):
    r"""A folder where a step is known to take 40 ms."""
    path = tmp_path / "study" / "timings" / f"{TRIAL.kind}.json"
    path.parent.mkdir(parents=True)
    row = {"ms": 40.0, "peak_gib": None, "compile_seconds": 0.0, "device": results.hardware()}
    path.write_text(json.dumps(row))
    return tmp_path / "study"


def test_candidates_build():
    counts = {name: networks.parameters(name) / 1e6 for name in CANDIDATES}
    expected = {"small": 2.7, "default": 15.6, "fold-128": 22.4, "fold-192": 50.2}
    for name, millions in expected.items():
        assert counts[name] == pytest.approx(millions, abs=0.06)
    assert counts["fold-96-small"] < 5


def test_variants_change_what_they_name():
    name = "fold-128+attention=0+heads=2+batch=512+muon=0.02+mean=-0.8+augment=0.12+weight=one"
    config = networks.Trial(name).config(10)
    assert config.network.attention == (0,) and config.network.heads == 2
    assert config.network.fold == 2 and config.network.augmented and config.data.augment > 0.1
    assert config.optimization.batch == 512 and config.optimization.muon > 0.015
    assert config.objective.level.mean > -1 and config.objective.weight == "one"
    assert networks.Trial(name).key == (name, "celeba32", 0, 2.5, 512)
    assert networks.parameters(name) > networks.parameters("fold-128") - 2e6
    plain = networks.Trial("fold-128").config(10)
    assert networks.Trial("fold-128+batch=256+flip=true").config(10) == plain
    with pytest.raises(ValueError, match="expected a setting at a variant"):
        networks.Trial("fold-128+colour=3").config(1)


def test_a_trial_that_is_split_goes_on_to_the_same_weights(timed, tmp_path):
    trial = replace(TRIAL, minutes=4e-3)  # six steps
    settings = replace(SETTINGS, fid=0)
    alone = tmp_path / "alone"
    (alone / "timings").mkdir(parents=True)
    for path in (timed / "timings").iterdir():
        (alone / "timings" / path.name).write_bytes(path.read_bytes())
    networks.run(trial, alone, settings)
    halved = iter((0.0, 3600.0))  # minutes that two calls have

    def some(config, out, resume, **options):
        return fit(config, out, resume, **(options | {"minutes": next(halved)}))

    target, said = tmp_path / "networks.json", []
    split = replace(settings, split=True, deadline=time.time() + 3600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "fit", some)
        networks.run_all([trial], timed, target, split, "fokker", say=said.append)
        assert not target.exists() and "stopped after step 1; the same command" in said[-1]
        networks.run_all([trial], timed, target, split, "fokker", say=said.append)
    (row,) = results.load(target)["rows"]
    assert row["steps"] == 6 and row["restarts"] == 1 and row["seconds"] > 0
    a, b = (load(p / trial.folder / "run").energy for p in (alone, timed))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_steps_are_timed_once(tmp_path):
    folder = tmp_path / "study"
    row = networks.measure(TRIAL, folder)
    assert row["ms"] > 0 and len(row["ms_chunks"]) == 2
    assert [p.name for p in folder.iterdir() if p.is_dir()] == ["timings"]  # no run is left
    assert networks.measure(TRIAL, folder) == row
    path = folder / "timings" / f"{TRIAL.kind}.json"
    path.write_text(json.dumps(row | {"device": "another"}))
    assert networks.measure(TRIAL, folder)["device"] == results.hardware()


def test_a_trial(timed):
    said = []
    row = networks.run(TRIAL, timed, SETTINGS, EXTRACTOR, said.append)
    assert row["steps"] == 3 and row["images_seen"] == 6  # 120 ms of 40 each
    place = timed / TRIAL.folder
    config = read_config(place / "run")
    assert config.optimization.steps == 3 and config.evaluate == 3
    assert config.network.fold == 2 and row["config"]["network"]["fold"] == 2
    assert config.optimization.muon is not None
    assert 0 < row["seconds"] == 60 * row["gpu_minutes"]
    assert row["fid"] > 0 and row["fid_n"] == 5 and row["weights"] == "0123"
    assert row["rmse_n"] == 4 and all(row[f"rmse_{s}"] > 0 for s in (0.3, 0.6, 0.9))
    average = load(place / "run").energy.state_dict()
    kept = load_file(place / "weights.safetensors")
    assert all(torch.equal(kept[k], v.bfloat16()) for k, v in average.items())
    assert (place / "samples.png").exists() and len(said) == 2
    stamp = (place / "row.json").stat().st_mtime_ns
    assert networks.run(TRIAL, timed, SETTINGS) == row  # not run again
    assert (place / "row.json").stat().st_mtime_ns == stamp


def test_rows_are_written_one_by_one(timed, tmp_path, monkeypatch):
    target, said, seen = tmp_path / "networks.json", [], []
    trials = [TRIAL, replace(TRIAL, seed=1), replace(TRIAL, seed=2)]
    settings = replace(SETTINGS, fid=0)

    def once(trial, folder, settings, extractor=None, say=print, run=networks.run):
        seen.append((trial.seed, len(results.load(target)["rows"]) if target.exists() else 0))
        if trial.seed == 1:
            raise RuntimeError("lost")
        return run(trial, folder, settings, extractor, say)

    monkeypatch.setattr(networks, "run", once)
    with pytest.raises(ValueError, match=f"got {trials[1].folder} that did not"):
        networks.run_all(trials, timed, target, settings, "fokker", say=said.append)
    assert seen == [(0, 0), (1, 1), (2, 1)]
    assert any("RuntimeError: lost" in line for line in said)
    monkeypatch.undo()
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    said.clear()
    networks.run_all(trials, timed, target, settings, "fokker", say=said.append)
    assert sum("already" in line for line in said) == 2
    rows = results.load(target)["rows"]
    assert sorted(row["seed"] for row in rows) == [0, 1, 2]
    lines = tables.networks_rows(rows)
    assert all(len(line) == len(tables.NETWORKS_HEADER) for line in lines)


def test_no_trial_starts_too_late(timed, tmp_path, monkeypatch):
    target, said = tmp_path / "networks.json", []
    late = replace(SETTINGS, fid=0, deadline=time.time() + 30)  # less than the margin
    networks.run_all([TRIAL], timed, target, late, "fokker", say=said.append)
    assert not target.exists() and "not started: it takes 1.0 minutes" in said[0]
    # the deadline is looked at again when it is the trial's turn
    lock = networks.lock_of(timed)
    turn = networks.Turn(lock, "cpu", time.time() + 1, needed=2)
    with pytest.raises(networks.TooLate), turn:
        pass
    assert not lock.is_locked


def test_a_trial_that_diverges_is_a_row(timed, tmp_path, monkeypatch):
    def lost(*args, **options):
        raise Diverged("diverged: the loss is not finite")

    monkeypatch.setattr(networks, "fit", lost)
    row = networks.run(TRIAL, timed, SETTINGS, EXTRACTOR)
    assert row["diverged"] == "diverged: the loss is not finite" and row["fid"] is None
    assert tables.networks_rows([row])[0][-1] == "diverged"
    assert not networks.lock_of(timed).is_locked

    def stopped(*args, **options):
        raise Interrupted(tmp_path, 3)

    monkeypatch.setattr(networks, "fit", stopped)
    trial = replace(TRIAL, seed=1)
    with pytest.raises(Interrupted):
        networks.run(trial, timed, SETTINGS, EXTRACTOR)
    assert not (timed / trial.folder / "row.json").exists()


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(networks, "load_inception", lambda *args, **options: EXTRACTOR)
    out, target = tmp_path / "study", tmp_path / "networks.json"
    args = ["reproduce", "networks", "--data", MINI, "--quick", "--minutes-each", "0.001"]
    args += ["--batch", "2", "--fid", "3", "--out", str(out), "--results", str(target)]
    main([*args, "--names", "fold-128", "--prepare"])
    assert "compiled and timed" in capsys.readouterr().out and not target.exists()
    main([*args, "--names", "fold-128", "small"])
    said = capsys.readouterr().out
    assert "fold-128: 22.4 million parameters" in said and "a slice" in said
    rows = results.load(target)["rows"]
    assert [row["name"] for row in rows] == ["fold-128", "small"]
    assert all(row["fid"] is not None for row in rows)
    main([*args, "--names", "small"])
    assert "already" in capsys.readouterr().out


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    for given, message in (
        (["--names", "fold-12"], "expected a network"),
        (["--minutes-each", "0"], "expected minutes_each to be a finite number > 0, got 0.0"),
        (["--fid", "1"], "fid"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", "networks", "--out", str(tmp_path / "s"), *given])
        assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
