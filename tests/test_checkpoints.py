r"""Checkpoints: whole, checked, in pieces, and the newest whole one is found."""

import importlib.util
import json
import math
import pytest
import re
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.objectives import PCD
from fokker.runs import checkpoints
from fokker.runs.checkpoints import VERSION, Best, Checkpoint, Name, names, newest, read, write
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.toml import dumps
from pathlib import Path

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def made(step=1, **other):
    torch.manual_seed(step)
    weights = {
        "a.weight": torch.randn(30, 40),
        "a.view": torch.randn(8, 6, 3, 3).to(memory_format=torch.channels_last)[1:],
        "scalar": torch.tensor(math.pi, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "half": torch.randn(5).bfloat16(),
        "flags": torch.tensor([True, False]),
        'odd "név"': torch.arange(3),
    }
    weights["tied"] = weights["a.weight"]
    adam = {"a.weight": {"step": torch.tensor(3.0), "exp_avg": torch.randn(30, 40)}}
    best = Best(step, 0.1 + 0.2, {"w": torch.randn(2)}, {"columns": ["é"], "mean": [0.1]})
    average = {k: v.clone() for k, v in weights.items()}
    lines = [{"step": step, "loss": 1 / 3, "kl": None}]
    state = (torch.randn(7, 2),)
    own = Checkpoint(step, (2,), weights, average, adam, state, best, lines)
    return own._replace(**({"back": (Name(0, step),)} | other))


def same(a, b):
    flat = lambda c: dict(checkpoints.named(c))
    x, y = flat(a), flat(b)
    bare = lambda c: c._replace(
        model={}, average={}, adam={}, state=(), best=c.best._replace(weights={})
    )
    equal = lambda s, t: s.dtype == t.dtype and s.shape == t.shape and torch.equal(s, t)
    return x.keys() == y.keys() and all(equal(x[k], y[k]) for k in x) and bare(a) == bare(b)


@pytest.mark.parametrize("limit", [1500, 4096, checkpoints.LIMIT])
def test_what_is_read_is_what_was_written(tmp_path, limit):
    saved = made(trial=2, back=(Name(0, 1), Name(2, 1)), leader=(0.1, Name(0, 1)),
                 watch={"norms": [0.1], "losses": [1e300]})  # fmt: skip
    path = write(tmp_path, saved, limit=limit)
    assert path.name == "step-00000001.2" and same(read(path), saved)
    parts = sorted(path.glob("part-*.safetensors"))
    assert max(p.stat().st_size for p in parts) <= limit
    assert (len(parts) > 5) == (limit < checkpoints.LIMIT)
    assert {p.name for p in path.iterdir()} == {"checkpoint.json", *(p.name for p in parts)}


def test_nothing_is_pickled():
    for file in (ROOT / "src/fokker").rglob("*.py"):
        assert not re.search(r"torch\.(load|save)\(|import pickle|object_list", file.read_text())


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def reheader(path, seal=True, **changes):
    content = json.loads((path / "checkpoint.json").read_text()) | changes
    if seal:
        content["sha256"] = checkpoints.seal(content)
    (path / "checkpoint.json").write_text(json.dumps(content))


def rename_part(path):
    content = json.loads((path / "checkpoint.json").read_text())
    content["files"] = {"../part-0000.safetensors": next(iter(content["files"].values()))}
    reheader(path, **content)


SPOILED = {
    "a bit of a part": (lambda p: flip(p / "part-0000.safetensors"), "is not what was written"),
    "a bit of the header": (
        lambda p: write_text(p, (p / "checkpoint.json").read_text().replace("0.33", "0.34")),
        "checkpoint.json is not what was written",
    ),
    "a part cut short": (
        lambda p: (p / "part-0001.safetensors").write_bytes(b""),
        "part-0001.safetensors has 0 bytes instead of",
    ),
    "a part that is gone": (lambda p: (p / "part-0001.safetensors").unlink(), "part-0001"),
    "no header": (lambda p: (p / "checkpoint.json").unlink(), "checkpoint.json"),
    "a header of another kind": (lambda p: write_text(p, "[3]"), "list indices"),
    "a part of another folder": (rename_part, "is no name of a part"),
    "another step": (lambda p: reheader(p, seal=False, step=7), "is not what was written"),
    "a shape that does not fit": (
        lambda p: reheader(
            p,
            tensors=json.loads((p / "checkpoint.json").read_text())["tensors"]
            | {"state/0": {"shape": [7, 3], "dtype": "float32"}},
        ),
        "state/0 has 14 numbers",
    ),
    "a header without end": (
        lambda p: write_text(p, " " * (checkpoints.HEADER + 1)),
        "at most 16777216 bytes",
    ),
}


def write_text(path, text):
    (path / "checkpoint.json").write_text(text)


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_checkpoint_is_passed_over(tmp_path, how):
    spoil, message = SPOILED[how]
    old = made(1)
    write(tmp_path, old, limit=4096)
    path = write(tmp_path, made(2, back=(Name(0, 1), Name(0, 2))), limit=4096)
    spoil(path)
    with pytest.warns(UserWarning, match=f"{message}.*; passed over for step-00000001"):
        assert same(newest(tmp_path), old)
    spoil(tmp_path / "checkpoint/step-00000001")
    with pytest.raises(
        ValueError, match=f"a whole checkpoint in .*00002, got a broken.*{message}"
    ):
        newest(tmp_path)


def test_the_last_the_best_and_the_newest_stay(tmp_path):
    back, leader = (), None
    for step, value in ((1, 5.0), (2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)):
        back = (*back, Name(0, step))[-2:]
        leader = min(leader or (math.inf, None), (value, Name(0, step)))
        write(tmp_path, made(step, back=back, leader=leader))
    assert [n.step for n in names(tmp_path / "checkpoint")] == [2, 4, 5]
    # an interruption between evaluations, twice: what can be rolled back to stays
    write(tmp_path, made(6, back=back, leader=leader))
    write(tmp_path, made(7, back=back, leader=leader))
    assert [n.step for n in names(tmp_path / "checkpoint")] == [2, 4, 5, 7]
    # a later trial is newer, whatever its step, and what it left behind goes
    write(tmp_path, made(5, trial=1, back=(Name(0, 4),), leader=leader))
    assert [str(n) for n in names(tmp_path / "checkpoint")] == [
        "step-00000002", "step-00000004", "step-00000005.1"
    ]  # fmt: skip
    assert newest(tmp_path).name == Name(1, 5)


def test_what_a_killed_run_left_is_not_read_and_goes(tmp_path):
    write(tmp_path, made(1))
    left = tmp_path / "checkpoint/.partial-step-00000002"
    left.mkdir()
    (left / "checkpoint.json").write_text("{")
    assert newest(tmp_path).step == 1
    write(tmp_path, made(2))
    assert not left.exists()


def test_a_write_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    write(tmp_path, made(1))
    monkeypatch.setattr(checkpoints.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="step-00000002: full"):
        write(tmp_path, made(2))
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "checkpoint").iterdir()] == ["step-00000001"]
    assert same(newest(tmp_path), made(1))


SMALL = Config(
    ToyData("moons"),
    PCD(1, buffer=32),
    Network(width=8, layers=3, confine=0.7),
    Optimization(steps=6, batch=16),
    evaluate=2,
)


def test_a_folder_of_an_older_version_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint/step-00000004"
    path.mkdir(parents=True)
    (tmp_path / "config.toml").write_text(dumps(SMALL))
    write_text(path, json.dumps({"version": 2, "step": 4, "shape": [2]}))
    expected = rf"of version {VERSION} in .*, got version 2; train it again"
    with pytest.raises(ValueError, match=expected):
        load(tmp_path)
    with pytest.raises(ValueError, match=expected):
        fit(SMALL, tmp_path, resume=True)


def test_a_run_resumes_from_the_newest_whole_one_and_says_so(tmp_path):
    said = []
    whole = fit(SMALL, tmp_path / "whole")
    fit(replace(SMALL), tmp_path / "run", resume="if-any", say=said.append)
    assert said == []  # there was nothing to resume: it began
    flip(tmp_path / "run/checkpoint/step-00000006/part-0000.safetensors")
    with pytest.warns(
        UserWarning, match="step-00000006, got a broken one.*; passed over for step-0"
    ):
        run = fit(SMALL, tmp_path / "run", resume="if-any", say=said.append)
    assert said == [f"resumed from step-00000004 in {tmp_path / 'run'}, 2 steps to go"]
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.energy.parameters(), whole.energy.parameters(), strict=True)
    )
    (tmp_path / "early").mkdir()  # killed before its first checkpoint
    (tmp_path / "early/config.toml").write_text(dumps(SMALL))
    assert fit(SMALL, tmp_path / "early", resume="if-any").step == 6


def test_a_difference_between_runs_is_found():
    spec = importlib.util.spec_from_file_location("kill", ROOT / "studies/trust/kill.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    a, b = made(1), made(1)
    assert script.difference(a, b) is None
    b.adam["a.weight"]["exp_avg"][3, 4] += 1e-7
    assert script.difference(a, b) == "adam a.weight exp_avg"
