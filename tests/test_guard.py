r"""The guard: divergence is seen, recorded and answered, and no NaN is saved."""

import importlib.util
import json
import math
import numpy as np
import os
import pytest
import signal
import time
import torch

from dataclasses import replace
from fokker import load
from fokker.app.report import write_report
from fokker.energies import Quadratic
from fokker.objectives import CD, PCD, LevelDCD, Noisy, ScoreMatching
from fokker.runs.checkpoints import Name, named, names, newest, read
from fokker.runs.config import Config, Network, Optimization, TableData, ToyData
from fokker.runs.guard import FEW, WINDOW, Guard, Memory, Watch, diagnose
from fokker.runs.state import State
from fokker.runs.toml import dumps, loads
from fokker.runs.training import Diverged, Interrupted, fit
from fokker.tasks.toy import ToyTask
from pathlib import Path

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def see(guard, rows, memory=None, block=None):
    r"""The first divergence of a row of losses and norms, read in blocks."""
    watch = Watch(guard, memory=memory)
    for step, (loss, norm) in enumerate(rows, 1):
        watch.note(step, *map(torch.tensor, (loss, norm, 0.0)))
        if watch.full or (block and step % block == 0) or step == len(rows):
            fall, _ = watch.read()
            if fall is not None:
                return fall, watch
    return None, watch


def test_a_median_that_runs():
    values = torch.randn(3 * WINDOW, dtype=torch.float64).tolist()
    memory = Memory(values[:10])
    for value in values[10:]:
        memory.append(value)
    assert memory.median == sorted(values[-WINDOW:])[WINDOW // 2]
    assert Memory(list(memory.last)).ordered == memory.ordered


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((math.nan, 1.0), "the loss is not finite (nan) at step 101"),
        ((1.0, math.inf), "the norm of the gradient is not finite (inf) at step 101"),
        ((1.0, 2100.0), "the norm of the gradient explodes (2.1e+03 at step 101, beyond 2e+03)"),
        ((-1100.0, 2.0), "the loss explodes (1.1e+03 at step 101, beyond 1e+03)"),
    ],
)
def test_what_diverges(bad, reason):
    usual = [(-0.5, 2.0)] * 100
    fall, _ = see(Guard(), [*usual, bad, *usual])
    assert fall == (101, reason)
    assert see(Guard(), [*usual, (-900.0, 1900.0), *usual])[0] is None
    few = [(0.0, 1e-3)] * (FEW - 1)
    assert see(Guard(), [*few, (0.0, 50.0)])[0] is None  # the first steps may differ by much


def test_growth_that_is_slow_by_the_step_is_seen_and_never_early():
    growth = [(-(20 ** (k / 100)), 20 ** (k / 100)) for k in range(1500)]
    fall, _ = see(Guard(), growth)
    assert fall is not None and fall.step < 700  # as CD on rings: twentyfold in a hundred steps
    falls = [(5.0 / (1 + k), 300.0 / (1 + k)) for k in range(1500)]
    assert see(Guard(), falls)[0] is None


def test_what_is_seen_does_not_depend_on_when_it_is_read():
    torch.manual_seed(0)
    rows = [(float(a), float(b)) for a, b in torch.randn(180, 2).abs()] + [(0.0, 5e4)]
    whole, _ = see(Guard(), rows)
    assert whole is not None and whole == see(Guard(every=3), rows, block=7)[0]
    # remembered across a stop
    _, first = see(Guard(), rows[:100])
    watch = Watch(Guard(), memory=json.loads(json.dumps(first.memory)))
    watch.note(181, *map(torch.tensor, (0.0, 5e4, 1.0)))
    fall, flag = watch.read()
    assert fall is not None and fall.step == 181 and flag


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "ignore"}, "policy to be one of stop, roll-back, got 'ignore'"),
        ({"trials": 0}, "trials to be an integer >= 1, got 0"),
        ({"slower": 1.5}, "slower between 0 and 1, got 1.5"),
        ({"slower": 0.0}, "slower to be a finite number > 0, got 0.0"),
        ({"factor": 0.5}, "factor above 1, got 0.5"),
        ({"every": -1}, "every to be an integer >= 1, got -1"),
    ],
)
def test_bad_guards_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Guard(**changes)


def test_diagnostics_are_those_of_the_closed_form():
    x = torch.randn(4000, 2)
    info = {"energy": 1.0, "negative": 3.5}
    line = diagnose(Quadratic(0.5), CD(1, 1e-3), x, info)
    few = x[:256]
    assert line["score_norm"] == pytest.approx(float((16 * few.square().sum(1)).mean().sqrt()))
    assert line["energy_gap"] == pytest.approx(2.5)
    assert line["acceptance"] > 0.99
    # beyond h = 4 s^2 a step overshoots, and a Metropolis test refuses it
    assert diagnose(Quadratic(0.5), Noisy(PCD(1, 4.0), 0.1), x, info)["acceptance"] < 0.1
    leveled = lambda p, s: (p.square().sum(1) / 2) / s**2
    line = diagnose(leveled, LevelDCD(conditional=True), x, {})
    assert set(line) == {"score_norm"} and line["score_norm"] > 10
    assert diagnose(lambda p: p.sum(1) * math.inf, CD(), x, {})["score_norm"] is None


# --- runs ---

CONFIG = Config(
    ToyData("moons"),
    CD(1),
    Network(width=8, layers=3, confine=0.7),
    Optimization(steps=12, batch=16, schedule="constant"),
    evaluate=3,
    guard=Guard("roll-back", every=2),
)


def fragile(monkeypatch, limit=0.6e-3, after=7):
    r"""Makes an energy that no step beyond a number survives unless the rate is below a limit."""
    advance = State.advance

    def spoiled(self, *given):
        out, rate = advance(self, *given)
        if self.done >= after and rate > limit:
            with torch.no_grad():
                next(iter(self.energy.parameters())).mul_(math.nan)
        return out, rate

    monkeypatch.setattr(State, "advance", spoiled)


def same(a, b):
    x, y = (dict(named(newest(run.path))) for run in (a, b))
    bare = lambda run: [{k: v for k, v in m.items() if k != "seconds"} for m in run.metrics]
    return all(torch.equal(x[k], y[k]) for k in x) and bare(a) == bare(b) and a.events == b.events


def test_a_rolled_back_run_goes_on_slower_and_is_the_same_when_resumed(tmp_path, monkeypatch):
    fragile(monkeypatch)
    said = []
    whole = fit(CONFIG, tmp_path / "whole", say=said.append)
    (event,) = whole.events
    assert event == {
        "step": 8, "event": "rolled back", "reason": "the loss is not finite (nan) at step 8",
        "to": 6, "trial": 1, "rate": 5e-4,
    }  # fmt: skip
    assert (
        len(said) == 1 and "rolled back to step 6, trial 1 of 3 at 0.5 times the rate" in said[0]
    )
    assert [m["step"] for m in whole.metrics] == [3, 6, 9, 12]
    assert [m["rate"] for m in whole.metrics] == [1e-3, 1e-3, 5e-4, 5e-4]
    assert all({"gradient_norm", "score_norm", "energy_gap", "acceptance"} <= set(m)
               for m in whole.metrics)  # fmt: skip
    assert newest(tmp_path / "whole").name == Name(1, 12)
    page = write_report(whole).read_text()
    assert "Divergence" in page and "rolled back to step 6" in page and "acceptance" in page

    # stopped before the fall, and again between it and the next evaluation
    def interrupt(at):
        def progress(done, line):
            if done == at and not line:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)

        return progress

    for at in (5, 7, 8, 11):
        with pytest.raises((Interrupted, Diverged)):
            fit(CONFIG, tmp_path / "parts", resume="if-any", progress=interrupt(at))
    parts = fit(CONFIG, tmp_path / "parts", resume=True)
    assert same(parts, whole)


def test_further_back_each_time_then_an_honest_stop(tmp_path, monkeypatch):
    fragile(monkeypatch, limit=0.0)
    with pytest.raises(
        Diverged, match=r"after 3 trials: .* step 8; step 6 is kept .* the best .kl .* is step-"
    ) as stop:
        fit(CONFIG, tmp_path / "run")
    assert str(stop.value).endswith("clip=1, or the preset fokker")  # it was rolled back already
    run = load(tmp_path / "run")
    assert [e.get("to") for e in run.events] == [6, 3, 6, None]
    assert run.events[-1]["event"] == "stopped" and run.step == 6
    for name in names(tmp_path / "run/checkpoint"):
        saved = read(tmp_path / "run/checkpoint" / str(name))
        assert all(torch.isfinite(t).all() for _, t in named(saved))
    best = load(tmp_path / "run", best=True)
    assert best.judged["kl"] == min(m["kl"] for m in run.metrics)
    # a run that falls before its first checkpoint begins again
    fragile(monkeypatch, limit=0.6e-3, after=2)
    fresh = fit(
        replace(CONFIG, optimization=replace(CONFIG.optimization, steps=6)), tmp_path / "b"
    )
    assert fresh.events[0]["to"] == 0 and fresh.step == 6


@pytest.mark.parametrize("last", [0.5, 1.9, None])
def test_a_run_that_got_worse_says_so_at_its_end(tmp_path, monkeypatch, last):
    values = iter([0.9, 0.2, 0.3, last])
    monkeypatch.setattr(ToyTask, "judge", lambda self, *_: {"kl": next(values)})
    said = []
    config = replace(CONFIG, guard=Guard())
    fit(config, tmp_path / "run", say=said.append)
    got = "not finite" if last is None else f"{last:.3g}"
    assert len(said) == 1 and f"worse (kl {got}) than those of step-00000006 (0.2)" in said[0]
    assert load(tmp_path / "run", best=True).step == 6
    values = iter([0.9, 0.2, 0.3, 0.39])  # no worse than may be
    fit(config, tmp_path / "other", say=said.append)
    assert len(said) == 1


def test_a_likelihood_may_be_negative(tmp_path):
    rows = 1e-3 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "rows.npy", rows.numpy())
    said = []
    config = replace(CONFIG, data=TableData(str(tmp_path / "rows.npy")))
    run = fit(config, tmp_path / "run", say=said.append)
    assert run.metrics[-1]["nll_validation"] < 0
    assert said == []


def test_a_judgement_that_explodes_is_a_divergence(tmp_path, monkeypatch):
    values = iter([0.9, 0.2, 199.0, 201.0])
    monkeypatch.setattr(ToyTask, "judge", lambda self, *_: {"kl": next(values)})
    with pytest.raises(
        Diverged,
        match=r"kl explodes \(201 after step 12, beyond 200\); step 9 is kept .* the best",
    ):
        fit(replace(CONFIG, guard=Guard()), tmp_path / "run")
    assert load(tmp_path / "run").step == 9
    values = iter([1e-6, 9.9, 1e-3, 1e-3])  # near perfect: no yardstick
    fit(replace(CONFIG, guard=Guard()), tmp_path / "other")
    values = iter([0.2, 300.0, 0.2, 0.2, 0.2])
    run = fit(CONFIG, tmp_path / "back")
    assert [e["to"] for e in run.events] == [3] and run.step == 12


def test_the_guard_is_saved_with_the_configuration():
    config = replace(CONFIG, guard=Guard("roll-back", 5, 0.1, 50.0, 7), keep=4)
    assert loads(dumps(config)) == config


@pytest.mark.filterwarnings("ignore:expected data with a standard deviation near 1")
def test_hostile_settings_leave_no_silent_nan(tmp_path):
    spec = importlib.util.spec_from_file_location("hostile", ROOT / "studies/trust/hostile.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    some = dict(list(script.matrix())[::5])
    ends = set()
    for i, (name, config) in enumerate(some.items()):
        policy = "stop" if i % 2 else "roll-back"
        config = replace(
            config,
            guard=replace(config.guard, policy=policy, trials=1),
            optimization=replace(config.optimization, steps=8),
        )
        outcome = script.attempt(config, tmp_path / str(i))
        assert outcome.silent == [], name
        ends.add(outcome.end)
    assert {"finished", "stopped"} <= ends
    # and the audit finds one that is there
    whole = fit(replace(script.SMALL, objective=ScoreMatching(), evaluate=24), tmp_path / "sound")
    assert script.audit(whole.path) == []
    metrics = whole.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss": ', '"loss": NaN, "was": '))
    assert script.audit(whole.path) == ["metrics: loss"]
    with pytest.raises(ValueError, match=r"noise of 0, or of 0.01 or more .* got 1e-30"):
        ToyData("rings", noise=1e-30)
