r"""Packs: a run carried to another machine in shards, and the history that goes with it."""

import json
import pytest
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app import report
from fokker.app.cli import main
from fokker.objectives import LevelDCD, Limit, LogUniform
from fokker.runs.checkpoints import newest, seal
from fokker.runs.config import Config, ImageData, Network, Optimization, UNet
from fokker.runs.history import read_starts
from fokker.runs.packing import light, pack, unpack, whole
from fokker.runs.training import Interrupted
from pathlib import Path

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
CONFIG = Config(
    ImageData(MINI, size=8),
    LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True),
    UNet(8, 1, multipliers=(1,), attention=()),
    Optimization(steps=8, batch=4, rate=2e-3, muon=0.01),
    evaluate=4,
)

TOY = Config(network=Network(8, 3), optimization=Optimization(steps=8, batch=4), evaluate=4)


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))


def stop_at(step):
    return lambda k, loss, average: k == step


def stopped(folder, step, config=CONFIG):
    r"""A run that was stopped after a step."""
    with pytest.raises(Interrupted):
        fit(config, folder, watch=stop_at(step))
    return folder


def equal(a, b):
    pairs = zip(a.energy.parameters(), b.energy.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_a_run_goes_on_after_it_was_packed_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("FOKKER_COMMIT", "aaaa")
    left_alone = fit(CONFIG, tmp_path / "alone")
    run = stopped(tmp_path / "run", 5)
    packed = pack(run, tmp_path / "pack", shard=20_000)
    sizes = [p.stat().st_size for p in packed.shards]
    assert len(sizes) > 3 and max(sizes) == 20_000 and sum(sizes) == packed.bytes
    assert unpack(tmp_path / "pack", tmp_path / "other") == packed.step == 5
    for path in (tmp_path / "other").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (run / path.relative_to(tmp_path / "other")).read_bytes()
    monkeypatch.setenv("FOKKER_COMMIT", "bbbb")
    moved = fit(CONFIG, tmp_path / "other", resume=True)
    assert equal(moved, left_alone)
    before, after = (newest(p) for p in (tmp_path / "alone", tmp_path / "other"))
    for name, fields in before.adam.items():
        assert all(torch.equal(t, after.adam[name][field]) for field, t in fields.items())


def test_the_history_survives_restarts_and_packs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOKKER_COMMIT", "aaaa")
    run = stopped(tmp_path / "run", 3, TOY)
    pack(run, tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "other")
    monkeypatch.setenv("FOKKER_COMMIT", "bbbb")
    done = fit(TOY, tmp_path / "other", resume=True)
    assert [(s["step"], s["commit"]) for s in done.starts] == [(0, "aaaa"), (3, "bbbb")]
    assert done.starts[1]["seconds"] > 0
    figures = done.history.figures
    assert figures["points_seen"] == 32 and figures["restarts"] == 1
    assert figures["commits"] == ["aaaa", "bbbb"] and figures["gpu_minutes"] is None
    fit(TOY, tmp_path / "other", resume=True)  # it has ended: nothing starts
    assert len(read_starts(tmp_path / "other")) == 2
    main(["evaluate", str(tmp_path / "other"), "--json"])
    assert json.loads(capsys.readouterr().out)["points_seen"] == 32
    told = "1 restart, commits aaaa, bbbb"
    assert "32 points seen in" in done.history.sentence and told in done.history.sentence
    assert told in report.history(done) and report.history(replace(done, starts=())) == ""


def test_starts_that_are_none_are_refused(tmp_path):
    run = stopped(tmp_path / "run", 1, TOY)
    for line in ("[]", '{"step": -1}', "x", '{"step": 1, "seconds": NaN}'):
        (run / "starts.jsonl").write_text(line + "\n")
        with pytest.raises(ValueError, match="expected the starts of a run"):
            load(run)


def test_half_precision_keeps_the_weights_and_little_else_changes(tmp_path):
    run = stopped(tmp_path / "run", 6)
    exact = newest(run)
    full = pack(run, tmp_path / "full").bytes
    half = pack(run, tmp_path / "half", half=True).bytes
    assert half < 0.78 * full  # of a network this small names and headers are a part
    unpack(tmp_path / "half", tmp_path / "other")
    found = newest(tmp_path / "other")
    assert found.adam is not None and exact.adam is not None
    for name, w in exact.model.items():
        assert torch.equal(found.model[name], w)
        distance = (exact.average[name] - w).abs()
        slack = torch.finfo(torch.float32).eps * w.abs()
        error = (found.average[name] - exact.average[name]).abs()
        assert (error <= 2**-8 * distance + 2 * slack).all()
    for name, fields in exact.adam.items():
        for field, t in fields.items():
            other = found.adam[name][field]
            assert other.dtype == t.dtype and ((other - t).abs() <= 2**-8 * t.abs()).all()
            assert field == "step" or not torch.equal(other, t)
    # packed once more it is the same: nothing is lost a second time
    again = whole(light(found))
    assert all(
        torch.equal(again.adam[n][f], t) for n, v in found.adam.items() for f, t in v.items()
    )


def test_what_half_precision_changes_is_far_below_what_training_changes(tmp_path):
    longer = replace(TOY, optimization=replace(TOY.optimization, steps=60), evaluate=60)
    run = stopped(tmp_path / "run", 20, longer)
    pack(run, tmp_path / "half", half=True)
    unpack(tmp_path / "half", tmp_path / "other")
    start = newest(run).model
    exact, half = (fit(longer, p, resume=True) for p in (run, tmp_path / "other"))
    moved, apart = 0.0, 0.0
    for name, w in newest(exact.path).model.items():
        moved += float((w - start[name]).square().sum())
        apart += float((w - newest(half.path).model[name]).square().sum())
    assert 0 < apart < 1e-4 * moved  # 1 % of the distance


def test_packs_that_are_not_whole_are_refused(tmp_path):
    run = stopped(tmp_path / "run", 2, TOY)
    pack(run, tmp_path / "pack", shard=3000)
    place, out = tmp_path / "pack", tmp_path / "other"
    with pytest.raises(ValueError, match="which exists"):
        pack(run, place)
    shard = place / "shard-0001.bin"
    data = shard.read_bytes()
    shard.unlink()
    with pytest.raises(ValueError, match=r"got none of shard-0001\.bin$"):
        unpack(place, out)
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match="other bytes"):
        unpack(place, out)
    shard.write_bytes(data)
    content = json.loads((place / "pack.json").read_text())
    for change in (
        {"files": [content["files"][0] | {"file": "../config.toml"}, *content["files"][1:]]},
        {"files": content["files"][1:]},
        {"version": 2},
        {"shards": [{"file": "/etc/passwd", "bytes": 1, "sha256": ""}]},
    ):
        bad = content | change
        bad["sha256"] = seal(bad)
        (place / "pack.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match="expected a whole pack"):
            unpack(place, out)
    (place / "pack.json").write_text(json.dumps(content | {"step": 1}))
    with pytest.raises(ValueError, match="not what was written"):
        unpack(place, out)
    assert not out.exists() and not list(tmp_path.glob(".other*"))


def test_the_commands(tmp_path, capsys):
    run = stopped(tmp_path / "run", 2, TOY)
    main(["pack", str(run), "--out", str(tmp_path / "pack"), "--shard", "4KiB", "--half"])
    said = capsys.readouterr().out
    assert "step 2" in said and "shards" in said and "8 points seen" in said
    main(["unpack", str(tmp_path / "pack"), "--out", str(tmp_path / "other")])
    assert "step 2" in capsys.readouterr().out
    assert load(tmp_path / "other").step == 2
    with pytest.raises(SystemExit):
        main(["pack", str(run), "--out", str(tmp_path / "x"), "--shard", "big"])
    assert "expected --shard to be a size" in capsys.readouterr().err


def test_a_killed_process_loses_what_came_after_the_last_save(tmp_path):
    r"""Saved by the clock, not by evaluations, which are far apart."""
    rare = replace(TOY, evaluate=8)

    def killed(step, loss, average):
        if step == 6:
            raise KeyboardInterrupt  # nothing is saved on the way out
        return False

    with pytest.raises(KeyboardInterrupt):
        fit(rare, tmp_path / "often", watch=killed, save=0.0)
    assert newest(tmp_path / "often").step == 5
    with pytest.raises(KeyboardInterrupt):
        fit(rare, tmp_path / "rare", watch=killed, save=60.0)
    with pytest.raises(ValueError, match="has none yet"):
        newest(tmp_path / "rare")
    resumed = fit(rare, tmp_path / "often", resume=True)
    assert equal(resumed, fit(rare, tmp_path / "alone", save=None))
    bare = lambda run: [{k: v for k, v in m.items() if k != "seconds"} for m in run.metrics]
    assert bare(resumed) == bare(load(tmp_path / "alone"))


@pytest.mark.slow
def test_the_default_network_packs_into_200_mib(tmp_path):
    import numpy as np

    from fokker.data.picture import save_png
    from fokker.runs.presets import generation_config

    for split in ("train", "test"):
        (tmp_path / "set" / split).mkdir(parents=True)
        for k in range(2):
            x = torch.from_numpy(np.random.default_rng(k).random((1, 3, 32, 32))).float()
            save_png(tmp_path / "set" / split / f"{k}.png", 2 * x - 1)
    base = generation_config("fokker", "dcd-limit", ImageData(str(tmp_path / "set")))
    config = replace(base, optimization=replace(base.optimization, batch=1), preview=0)
    run = stopped(tmp_path / "run", 1, config)
    assert pack(run, tmp_path / "full").bytes < 200 * 2**20
    assert pack(run, tmp_path / "half", half=True).bytes < 130 * 2**20
