r"""The studies, small: they go on where they stopped, and say what diverged."""

import numpy as np
import pytest
import torch

from dataclasses import replace
from fokker.app.cli import main
from fokker.evolution import Taylor
from fokker.objectives import DCD, ScoreMatching
from fokker.runs import presets
from fokker.runs.config import Network, Optimization
from pathlib import Path
from studies import mixtures, results, sweep, toy

ROOT = Path(__file__).parents[1]
NETWORK = Network(width=8, layers=3, confine=0.7)
QUICK = Optimization(steps=3, batch=16)
WILD = Optimization(steps=3, batch=16, rate=1e30)  # weights overflow at once


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


class Stop(Exception):
    pass


def counting(monkeypatch, module, stop_after=None):
    r"""Counts the stacks that a study trains, and stops it before the one after some."""
    trained, train = [], module.train_stack

    def counted(*args, **options):
        if len(trained) == stop_after:
            raise Stop
        trained.append(args)
        return train(*args, **options)

    monkeypatch.setattr(module, "train_stack", counted)
    return trained


def fields(name):
    r"""The fields of the rows in a committed result: what tables and figures read."""
    return set(results.load(ROOT / f"results/{name}.json")["rows"][0])


# --- 2-D sets ---


def part(monkeypatch, optimization=QUICK):
    own = presets.PRESETS["fokker"]._replace(network=NETWORK, optimization=optimization)
    monkeypatch.setitem(presets.PRESETS, "fokker", own)
    return toy.Arm("fokker", "sm", ("moons", "circles"), (0, 1))


def test_toy_rows(monkeypatch, tmp_path):
    small, steps = part(monkeypatch), []
    toy.run(small, tmp_path, steps.append)
    rows = toy.collect(tmp_path)
    assert [(row["seed"], row["data"]) for row in rows] == [
        (0, "moons"), (0, "circles"), (1, "moons"), (1, "circles")
    ]  # fmt: skip
    assert all(set(row) == fields("toy") for row in rows)
    assert {(row["steps"], row["batch"], row["stacked"]) for row in rows} == {(3, 16, 4)}
    assert all(row["kl"] > 0 and row["preset"] == "fokker" for row in rows)
    assert steps[-1] == 3
    with np.load(tmp_path / "fokker-sm.npz", allow_pickle=False) as densities:
        assert set(densities) == {"moons", "circles"}
        assert densities["moons"].sum() * toy.WINDOW.cell == pytest.approx(1, rel=0.01)


def test_toy_goes_on_where_it_stopped(monkeypatch, tmp_path):
    small, trained = part(monkeypatch), counting(monkeypatch, toy)
    toy.run(small, tmp_path)
    before = (tmp_path / "fokker-sm.json").read_bytes()
    toy.run(small, tmp_path)
    assert len(trained) == 1 and (tmp_path / "fokker-sm.json").read_bytes() == before
    (tmp_path / "fokker-sm.json").unlink()  # as if stopped before the part was whole
    toy.run(small, tmp_path)
    assert len(trained) == 2


def test_a_slice_of_the_toy_study_is_not_taken_for_it(monkeypatch, tmp_path, capsys):
    small, trained = part(monkeypatch), counting(monkeypatch, toy)
    toy.run(small, tmp_path)
    toy.check_done(small, tmp_path)
    for other, message in (
        (replace(small, steps=4), "expected a part with steps 4, got 3; give another --out"),
        (replace(small, batch=8), "expected a part with batch 8, got 16; give"),
        (replace(small, seeds=(0,)), "expected a part with networks 2, got 4; give"),
    ):
        with pytest.raises(ValueError, match=message):
            toy.check_done(other, tmp_path)
    with pytest.raises(SystemExit) as stop:  # of any method, before one is trained
        main(["reproduce", "toy", "--methods", "fokker-dcd", "--out", str(tmp_path)])
    assert stop.value.code == 2 and len(trained) == 1
    assert "expected a part with networks 21, got 4" in capsys.readouterr().err


def test_toy_marks_what_diverged(monkeypatch, tmp_path):
    toy.run(part(monkeypatch, WILD), tmp_path)
    rows = toy.collect(tmp_path)
    assert all(row["diverged"] and row["kl"] is None for row in rows)
    assert all(set(row) == fields("toy") and row["optimum"] < 0 for row in rows)
    with np.load(tmp_path / "fokker-sm.npz", allow_pickle=False) as densities:
        assert not densities.files
    with pytest.raises(ValueError, match=r"expected parts of a study in .*empty, got none"):
        toy.collect(tmp_path / "empty")


def test_a_finite_run_worse_than_a_flat_energy_has_diverged():
    steep = lambda x: 1e3 * x.square().sum(1)
    assert toy.judge(steep, "moons", True, "cpu")["diverged"]
    flat = lambda x: x.square().sum(1)
    assert not toy.judge(flat, "moons", True, "cpu")["diverged"]


# --- sweeps ---


def tiny_sweep(monkeypatch, optimization=QUICK):
    own = presets.PRESETS["fokker"]._replace(network=NETWORK, optimization=optimization)
    monkeypatch.setitem(presets.PRESETS, "fokker", own)
    monkeypatch.setattr(sweep, "STEPS", (5e-5, 5e-3))
    monkeypatch.setattr(sweep, "LAMBDAS", (1.0,))
    monkeypatch.setattr(sweep, "VARIANTS", {"pairs": {"evolution": Taylor(), "antithetic": True}})
    return {"steps": 3, "batch": 16, "sets": ("moons", "circles")}


def test_sweep_goes_on_where_it_stopped(monkeypatch, tmp_path):
    small, path = tiny_sweep(monkeypatch), tmp_path / "sweep.json"
    with monkeypatch.context() as patch:
        counting(patch, sweep, stop_after=1)
        with pytest.raises(Stop):
            sweep.run(path, **small)
    first = results.load(path)["rows"]
    assert [(row["sweep"], row["value"]) for row in first] == [("pairs", 5e-5)] * 2
    trained, said = counting(monkeypatch, sweep), []
    sweep.run(path, **small, progress=said.append)
    content = results.load(path)
    rows = content["rows"]
    assert len(trained) == 2 and rows[:2] == first
    points = [("pairs", 5e-5), ("pairs", 5e-3), ("weight", 1.0)]
    assert [(row["sweep"], row["value"], row["data"]) for row in rows] == [
        (*point, name) for point in points for name in ("moons", "circles")
    ]
    assert all(set(row) == fields("sweep") and not row["diverged"] for row in rows)
    assert [line.split(":")[0] for line in said] == ["pairs 0.005", "weight 1"]
    assert content["command"] == "fokker reproduce sweep --device cpu"


def test_sweep_marks_what_diverged(monkeypatch, tmp_path):
    small, path = tiny_sweep(monkeypatch, WILD), tmp_path / "sweep.json"
    sweep.run(path, **small)
    rows = results.load(path)["rows"]
    assert len(rows) == 6 and all(row["diverged"] and row["kl"] is None for row in rows)


# --- mixtures ---


def tiny_mixtures(monkeypatch, optimization=QUICK):
    monkeypatch.setattr(mixtures, "NETWORK", NETWORK)
    monkeypatch.setattr(mixtures, "OPTIMIZATION", optimization)
    monkeypatch.setattr(mixtures, "METHODS", {"dcd-short": DCD(), "sm": ScoreMatching()})
    return {"dimensions": (2, 3), "seeds": (0, 1)}


@pytest.mark.slow
def test_mixtures_go_on_where_they_stopped(monkeypatch, tmp_path):
    small, path = tiny_mixtures(monkeypatch), tmp_path / "mixtures.json"
    with monkeypatch.context() as patch:
        counting(patch, mixtures, stop_after=3)
        with pytest.raises(Stop):
            mixtures.run(path, **small)
    first = results.load(path)["rows"]
    assert [(row["d"], row["method"]) for row in first[::2]] == [
        (2, "dcd-short"), (2, "sm"), (3, "dcd-short")
    ]  # fmt: skip
    trained, said = counting(monkeypatch, mixtures), []
    mixtures.run(path, **small, progress=said.append)
    rows = results.load(path)["rows"]
    assert len(trained) == 1 and rows[:6] == first and len(rows) == 8
    assert all(set(row) == fields("mixtures") for row in rows)
    assert [row["seed"] for row in rows] == [0, 1] * 4 and {row["steps"] for row in rows} == {3}
    assert len(said) == 1 and said[0].startswith("d=3 sm: gap ")
    mixtures.run(tmp_path / "other.json", steps=2, dimensions=(2,), seeds=(0,))
    assert {row["steps"] for row in results.load(tmp_path / "other.json")["rows"]} == {2}


def test_mixtures_mark_what_diverged(monkeypatch, tmp_path):
    small, path = tiny_mixtures(monkeypatch, WILD), tmp_path / "mixtures.json"
    mixtures.run(path, **small)
    rows = results.load(path)["rows"]
    assert len(rows) == 8
    for row in rows:
        assert row["diverged"] and row["kl"] is None and row["fisher_gap"] is None
