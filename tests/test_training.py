r"""Training into a run folder: resumed runs are the same, and nothing good is lost."""

import errno
import json
import math
import os
import pytest
import shutil
import signal
import subprocess
import sys
import time
import torch

from contextlib import contextmanager
from dataclasses import replace
from fokker.app.cli import main
from fokker.app.report import write_report
from fokker.compute import step
from fokker.metrics import evaluate_planar
from fokker.objectives import CD, PCD, MultiTimeDCD
from fokker.runs import state, training
from fokker.runs.checkpoints import VERSION
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.config import Config, ImageData, Network, Optimization, TableData, ToyData
from fokker.runs.folder import read_metrics
from fokker.runs.loading import load
from fokker.runs.toml import dumps
from fokker.runs.training import Diverged, Interrupted, fit
from fokker.tasks import task_of
from pathlib import Path

CONFIG = Config(
    ToyData("moons"),
    MultiTimeDCD(points=16),
    Network(width=12, layers=3, features=4, confine=0.7),
    Optimization(steps=8, batch=32),
    evaluate=4,
)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


class Stop(Exception):
    pass


def stop_at(step):
    def progress(done, line):
        if done == step and line:
            raise Stop

    return progress


@pytest.mark.parametrize(
    "objective",
    [MultiTimeDCD(points=16), CD(2), PCD(2, buffer=64)],
    ids=lambda o: type(o).__name__,
)
@pytest.mark.parametrize("ema", [0.0, 0.999])
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, objective, ema):
    config = replace(
        CONFIG, objective=objective, optimization=replace(CONFIG.optimization, ema=ema)
    )
    whole = fit(config, tmp_path / "whole")
    with pytest.raises(Stop):
        fit(config, tmp_path / "parts", progress=stop_at(4))
    parts = fit(config, tmp_path / "parts", resume=True)
    a, b = (read_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert a.step == b.step == 8
    for x, y in ((a.model, b.model), (a.average, b.average)):
        assert all(torch.equal(x[k], y[k]) for k in x)
    same = lambda lines: [{k: v for k, v in m.items() if k != "seconds"} for m in lines]
    assert same(whole.metrics) == same(parts.metrics)
    assert [m["step"] for m in parts.metrics] == [4, 8]


def test_a_run_that_ended_goes_on_as_one_that_knew_it_would(tmp_path):
    ended = CONFIG.optimization
    once = replace(CONFIG, optimization=replace(ended, steps=12, restarts=(8,)))
    twice = replace(CONFIG, optimization=replace(ended, steps=20, restarts=(8, 12)))
    whole = fit(twice, tmp_path / "whole")
    for config in (CONFIG, once, twice):
        parts = fit(config, tmp_path / "parts", resume="if-any")
        assert parts.config == config and parts.step == config.optimization.steps
    a, b = (read_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(a.model[k], b.model[k]) for k in a.model)
    assert all(torch.equal(a.average[k], b.average[k]) for k in a.average)
    rates = {m["step"]: m["rate"] for m in parts.metrics}
    assert rates == {m["step"]: m["rate"] for m in whole.metrics}
    assert (
        rates[8] < rates[12] < rates[16]
    )  # the ends of cycles of 8 and 4, the middle of one of 8

    # steps before the end cannot be changed any more, and one that forgot to say where it ended is told
    known, hint = (
        "optimization.steps is {} here and 20 there",
        ".*with --restarts 8 12 20 it goes on",
    )
    for steps, restarts, more in (
        (30, (8, 12), hint),
        (30, (8, 13, 20), hint),
        (30, (20,), hint),
        (15, (8, 12), ".* new folder$"),
    ):
        other = replace(CONFIG, optimization=replace(ended, steps=steps, restarts=restarts))
        with pytest.raises(ValueError, match=f"got another one, {known.format(steps)}{more}"):
            fit(other, tmp_path / "parts", resume=True)
        assert load(tmp_path / "parts").config == twice
    more = replace(twice.optimization, steps=30, restarts=(8, 12, 20), rate=0.5)
    with pytest.raises(ValueError, match=r"got another one, optimization.rate is 0.5 here and"):
        fit(replace(CONFIG, optimization=more), tmp_path / "parts", resume=True)


def test_steps_that_were_not_taken_can_be_changed(tmp_path):
    fit(CONFIG, tmp_path / "run")
    far = replace(CONFIG, optimization=replace(CONFIG.optimization, steps=900, restarts=(8,)))
    with pytest.raises(Interrupted):  # before its first step is over
        fit(far, tmp_path / "run", resume=True, minutes=0)
    folder = tmp_path / "run" / "checkpoint"
    shutil.rmtree(folder / "step-00000009")
    assert load(tmp_path / "run").config == far and load(tmp_path / "run").step == 8
    near = replace(CONFIG, optimization=replace(CONFIG.optimization, steps=10, restarts=(8,)))
    assert fit(near, tmp_path / "run", resume=True).step == 10  # a slip is no trap
    with pytest.raises(ValueError, match=r"optimization\.steps is 900 here and 10 there"):
        fit(far, tmp_path / "run", resume=True)  # now they were taken


def test_two_restarts_at_once(tmp_path):
    fit(CONFIG, tmp_path / "run")
    twice = replace(CONFIG.optimization, steps=16, restarts=(8, 12))
    assert fit(replace(CONFIG, optimization=twice), tmp_path / "run", resume=True).step == 16


def test_restarts_are_judged_although_no_evaluation_falls_there(tmp_path):
    config = replace(CONFIG, optimization=replace(CONFIG.optimization, steps=11, restarts=(6,)))
    assert [m["step"] for m in fit(config, tmp_path).metrics] == [4, 6, 8, 11]


def test_what_resume_may_be(tmp_path):
    for given in ("yes", 1, None):
        with pytest.raises(ValueError, match=f"True, False or 'if-any', got {given!r}"):
            fit(CONFIG, tmp_path, resume=given)


@pytest.mark.parametrize("change", ["a cell", "a name", "an order"])
def test_other_data_of_the_same_name_is_not_trained_on(tmp_path, change):
    points = tmp_path / "points.csv"
    lines = [f"{math.sin(i):.3f},{math.cos(3 * i):.3f}" for i in range(40)]
    points.write_text("\n".join(["u,v", *lines]))
    config = replace(CONFIG, data=TableData(str(points)))
    with pytest.raises(Interrupted):  # before anything was judged
        fit(config, tmp_path / "run", watch=lambda step, *_: step == 2)
    changed = {
        "a cell": ["u,v", *lines[:-1], "0.5,0.5"],
        "a name": ["u,w", *lines],
        "an order": ["u,v", *lines[::-1]],
    }
    points.write_text("\n".join(changed[change]))
    for resume in (True, "if-any"):
        with pytest.raises(ValueError, match=r"the data that the run in .* began with, got other"):
            fit(config, tmp_path / "run", resume)
    points.write_text("\n".join(["u,v", *lines]))
    assert fit(config, tmp_path / "run", True).step == 8


def test_the_data_of_every_kind_has_a_fingerprint(tmp_path):
    mini = str(Path(__file__).parent / "data/mnist-mini")
    first = task_of(replace(CONFIG, data=ImageData(mini))).load()
    assert (
        first.fingerprint() == task_of(replace(CONFIG, data=ImageData(mini))).load().fingerprint()
    )
    first.images["test"].pixels[-1, 0, 5, 5] ^= 1
    assert (
        first.fingerprint() != task_of(replace(CONFIG, data=ImageData(mini))).load().fingerprint()
    )
    assert task_of(CONFIG).load().fingerprint() is None  # the configuration says all


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"step": 8, "loss": "x"}, "expected a finite number or null at 'loss', got 'x'"),
        ({"step": 8, "kl": [1]}, "at 'kl'"),
        ({"step": 8, "kl": float("inf")}, "at 'kl'"),
        ({"step": True}, "at 'step'"),
        ({"step": 2.5}, "a number of steps"),
        ({"loss": 1.0}, "no 'step'"),
        ({"step": 8, "event": 3, "reason": "x"}, "expected a text at 'event'"),
        ({"step": 8, "event": "x"}, "the step and the reason of an event"),
        ([1], "a table"),
    ],
)
def test_odd_lines_of_the_metrics_are_refused(tmp_path, line, message):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=message):
        read_metrics(tmp_path)


def test_a_report_of_metrics_that_lack_something_is_one_line(tmp_path):
    run = fit(CONFIG, tmp_path)
    for metrics in ([], [{"step": 8}], [{"step": 8, "loss": None}]):
        odd = replace(run, metrics=metrics)
        try:
            write_report(odd)
        except ValueError as error:
            assert "expected metrics as training writes them" in str(error)
            assert "\n" not in str(error)


def test_seeds_matter(tmp_path):
    a, b, c = (
        fit(replace(CONFIG, seed=s), tmp_path / n) for s, n in ((0, "a"), (0, "b"), (1, "c"))
    )
    x = torch.randn(5, 2)
    assert torch.equal(a.energy(x), b.energy(x))
    assert not torch.allclose(a.energy(x), c.energy(x))


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63 - 1])
def test_every_seed_that_trains_is_read_again(tmp_path, seed):
    run = fit(replace(CONFIG, seed=seed), tmp_path)
    assert load(tmp_path).config.seed == seed and run.step == 8


def test_a_configuration_that_cannot_be_read_again_is_not_trained(tmp_path):
    wide = replace(CONFIG, device="cpu" + " " * 20_000)
    with pytest.raises(ValueError, match=r"at most 16384 characters|a device"):
        fit(wide, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_what_was_trained(tmp_path):
    run = fit(CONFIG, tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.config == CONFIG and again.step == 8
    x = torch.randn(5, 2)
    assert again.energy(x).shape == (5,) and torch.equal(run.energy(x), again.energy(x))
    line = again.metrics[-1]
    report = evaluate_planar(again.energy, ToyData("moons").build())
    assert line["kl"] == pytest.approx(report.kl, rel=1e-5)
    assert line["fisher_gap"] == pytest.approx(report.fisher_gap, rel=1e-5)
    assert line["seconds"] > 0


def test_divergence_stops_and_keeps_what_was_good(tmp_path, monkeypatch):
    with pytest.raises(Stop):
        fit(CONFIG, tmp_path / "run", progress=stop_at(4))
    kept = read_checkpoint(tmp_path / "run")
    made, build = [], Config.build
    monkeypatch.setattr(Config, "build", lambda *args: made.append(build(*args)) or made[-1])

    def poison(done, line):
        if done == 5:
            made[0].a.layers[0].weight.data[0, 0] = math.nan

    with pytest.raises(Diverged, match=r"not finite \(nan\) at step 6; step 4 is kept"):
        fit(CONFIG, tmp_path / "run", resume=True, progress=poison)
    after = read_checkpoint(tmp_path / "run")
    assert after.step == 4
    assert all(torch.equal(kept.model[k], after.model[k]) for k in kept.model)


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    def interrupt(done, line):
        if done == 3 and not line:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    with pytest.raises(
        Interrupted, match=r"after step 3 and saved; resume with the same options and --resume"
    ):
        fit(CONFIG, tmp_path / "run", progress=interrupt)
    assert read_checkpoint(tmp_path / "run").step == 3
    run = fit(CONFIG, tmp_path / "run", resume=True)
    whole = fit(CONFIG, tmp_path / "whole")
    x = torch.randn(5, 2)
    assert run.step == 8 and torch.equal(run.energy(x), whole.energy(x))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_stops(tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped after step 3 and saved; resume"):
        fit(CONFIG, tmp_path, watch=lambda step, *_: step == 3 and os.kill(os.getpid(), number))
    assert load(tmp_path).step == 3 and signal.getsignal(number) == before


def test_under_nohup_a_hangup_is_nothing(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        watch = lambda step, *_: step == 3 and os.kill(os.getpid(), signal.SIGHUP)
        assert fit(CONFIG, tmp_path, watch=watch).step == 8
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_rank_whose_torchrun_was_killed_saves_and_stops(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    parent = os.getppid()

    def watch(step, *_):
        if step == 3:
            monkeypatch.setattr(os, "getppid", lambda: parent + 1)

    with pytest.raises(Interrupted, match=r"stopped after step 4 and saved"):
        fit(CONFIG, tmp_path, watch=watch)
    assert load(tmp_path).step == 4


def test_a_pipe_that_is_closed_saves_and_stops(tmp_path, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    small = ("--steps", "40", "--batch", "16", "--width", "8", "--evaluate", "1")
    with os.fdopen(write, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as stop:
            main(["train", "toy", "--data", "moons", *small, "--out", str(tmp_path / "r")])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 130 and "stopped after step 2 and saved; resume" in line
    assert load(tmp_path / "r").step == 2


def test_checkpoints_are_whole_and_few(tmp_path):
    fit(replace(CONFIG, evaluate=2), tmp_path / "run")
    found = sorted(p.name for p in (tmp_path / "run/checkpoint").iterdir())
    assert found == ["step-00000006", "step-00000008"]


# --- folders that cannot be written to: refused by the kernel, even to root ---


def fails(path, when, how):
    r"""Trains, does something after the checkpoint of a step, and returns the line of the
    error."""

    def progress(done, line):
        if done == when and line:
            how()

    with pytest.raises(OSError) as caught:
        fit(WIDE, path, progress=progress)
    (line,) = str(caught.value).splitlines()
    return line


WIDE = replace(CONFIG, network=replace(CONFIG.network, width=64))


def same_as_whole(tmp_path):
    whole, run = fit(WIDE, tmp_path / "whole"), fit(WIDE, tmp_path / "run", resume=True)
    x = torch.randn(5, 2)
    assert run.step == 8 and torch.equal(run.energy(x), whole.energy(x))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_out_that_cannot_be_written_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(training, "step_generator", lambda *_: pytest.fail("a step was taken"))
    for out in ("/proc/fokker", "/proc/version/run"):
        with pytest.raises(SystemExit) as stop:
            main(["train", "toy", "--data", "moons", "--steps", "1", "--out", out])
        (line,) = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2
        assert line.startswith(
            f"fokker: expected a run folder that can be written to, got {out}: "
        )
        assert line.endswith("; nothing was saved")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_disk_that_is_full_keeps_the_last_checkpoint(tmp_path):
    import resource

    folder, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        line = fails(folder, 4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in line and line.endswith(f"; step 4 is kept in {folder}")
    assert load(folder).step == 4 and load(folder).metrics[-1]["step"] == 4
    same_as_whole(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_checkpoint_that_is_cut_short_is_none(tmp_path):
    import resource

    # the weights are longer than the limit, the metrics are not
    folder, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        line = fails(folder, 4, limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in line and line.endswith(f"; step 4 is kept in {folder}")
    assert [p.name for p in (folder / "checkpoint").iterdir()] == ["step-00000004"]
    assert load(folder).step == 4 and load(folder).metrics[-1]["step"] == 4
    same_as_whole(tmp_path)


def test_losing_the_folder_in_the_middle_is_exit_code_2(tmp_path, capsys, monkeypatch):
    writes, write = [], state.write_checkpoint

    def full(*args):
        writes.append(args)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "step-00000002")
        return write(*args)

    monkeypatch.setattr(state, "write_checkpoint", full)
    small = ("--steps", "3", "--batch", "16", "--width", "8", "--evaluate", "1")
    with pytest.raises(SystemExit) as stop:
        main(["train", "toy", "--data", "moons", *small, "--out", str(tmp_path / "r")])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "No space left" in line and "step 1 is kept" in line
    assert load(tmp_path / "r").step == 1


def write(path, text):
    path.write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: (r / "config.toml").unlink(), "a run folder with a config.toml"),
        (lambda r: write(r / "config.toml", "seed ="), "a configuration in TOML"),
        (
            lambda r: [
                write(p / "checkpoint.json", '{"version": 99, "step": 1}')
                for p in (r / "checkpoint").iterdir()
            ],
            f"version {VERSION} in .* got version 99; use a newer fokker",
        ),
        (
            lambda r: [write(p, "") for p in r.glob("checkpoint/*/part-0000.safetensors")],
            "a whole checkpoint in .* got a broken one",
        ),
        (
            lambda r: [write(p / "checkpoint.json", "{") for p in (r / "checkpoint").iterdir()],
            "a whole checkpoint in .* got a broken one",
        ),
        (
            lambda r: write(
                r / "config.toml",
                (r / "config.toml").read_text().replace("width = 12", "width = 13"),
            ),
            "weights of the network in .* got others",
        ),
    ],
)
def test_spoiled_runs_are_named(tmp_path, spoil, message):
    fit(replace(CONFIG, optimization=Optimization(1, 8), evaluate=1), tmp_path / "run")
    spoil(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "run")


def test_missing_and_unfinished_runs_are_named(tmp_path):
    with pytest.raises(ValueError, match="which does not exist"):
        load(tmp_path / "nothing")
    fit(replace(CONFIG, optimization=Optimization(1, 8), evaluate=1), tmp_path / "run")
    with pytest.raises(ValueError, match="which holds a run; use --resume"):
        fit(CONFIG, tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"expected the configuration in .*config.toml, got another"
    ):
        fit(replace(CONFIG, seed=3), tmp_path / "run", resume=True)
    # one that never came to a checkpoint: the advice of either line can be followed
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text(dumps(CONFIG))
    with pytest.raises(ValueError, match="without a checkpoint; use --restartable to begin"):
        fit(CONFIG, bare)
    with pytest.raises(ValueError, match="has none yet; begin it again with --restartable"):
        fit(CONFIG, bare, resume=True)
    assert fit(CONFIG, bare, resume="if-any").step == 8
    with pytest.raises(OSError, match=r"a.csv"):
        fit(replace(CONFIG, data=TableData("a.csv")), tmp_path / "table")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("name", ["moons", "checkerboard"])
def test_report(tmp_path, name):
    config = replace(CONFIG, data=ToyData(name))
    run = fit(config, tmp_path / "run")
    page = write_report(run).read_text()
    assert page.count("data:image/png;base64,") == 3 and "://" not in page
    assert "prefers-color-scheme: dark" in page and "MultiTimeDCD" in page
    assert ("none" in page) == (name == "checkerboard")
    for picture in ("density.png", "field.png", "curves.png"):
        assert (tmp_path / "run" / picture).stat().st_size > 5000


@pytest.mark.parametrize("file", ["density.png", "report.html"])
def test_a_report_that_cannot_be_written_is_named(tmp_path, file):
    run = fit(CONFIG, tmp_path / "run")
    (tmp_path / "run" / file).mkdir()
    with pytest.raises(
        OSError, match=r"a report can be written to, got .*; the run itself is kept"
    ):
        write_report(run)


def test_commands(tmp_path, monkeypatch, capsys):
    run = lambda *args: subprocess.run(
        [sys.executable, "-m", "fokker", *args],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    small = ("--steps", "2", "--batch", "16", "--width", "8", "--evaluate", "1")
    done = run("train", "toy", "--data", "circles", *small, "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "Fisher gap" in done.stdout and (tmp_path / "r/report.html").exists()
    monkeypatch.chdir(tmp_path)  # in this process from here on: starting one takes seconds
    main(["evaluate", "r", "--json"])
    assert json.loads(capsys.readouterr().out)["step"] == 2
    main(["sample", "r", "-n", "5", "-o", "s.npy"])
    assert (tmp_path / "s.npy").exists()
    (tmp_path / "closed").write_text("")  # a file where a folder must be
    for args, message in (
        (("train", "toy", "--data", "ring"), "got 'ring'; did you mean 'rings'?"),
        (("train", "toy", "--objective", "cdd"), "got 'cdd'; did you mean 'cd'?"),
        (("train", "tpy"), "got 'tpy'; did you mean 'toy'?"),
        (("evaluate", "nothing"), "which does not exist"),
        (("sample", "r", "-o", "s.txt"), "to end in .csv or .npy, got s.txt"),
        (("train", "toy", *small, "--out", "closed/r"), "closed"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        said = capsys.readouterr().err
        assert stop.value.code == 2, args
        assert message in said and len(said.strip().splitlines()) == 1


def test_a_watcher_sees_every_step_and_may_stop(tmp_path):
    seen, whole = [], []
    run = fit(CONFIG, tmp_path / "whole", watch=lambda *step: bool(whole.append(step)))
    assert [step for step, *_ in whole] == list(range(1, 9))
    torch.testing.assert_close(whole[-1][2], dict(run.energy.state_dict()), rtol=0, atol=0)

    def watch(step, loss, average):
        seen.append(float(loss))
        return step >= 3

    with pytest.raises(Interrupted, match="after step 3"):
        fit(CONFIG, tmp_path / "stopped", watch=watch)
    assert seen == [float(loss) for _, loss, _ in whole[:3]]
    again = fit(CONFIG, tmp_path / "stopped", resume=True)
    torch.testing.assert_close(again.energy.state_dict(), run.energy.state_dict(), rtol=0, atol=0)
    # at the last step there is nothing left to stop
    assert fit(CONFIG, tmp_path / "last", watch=lambda step, *_: step == 8).step == 8


def test_a_turn_begins_when_all_is_ready(tmp_path, monkeypatch):
    r"""The step is compiled before the turn, and the seconds of the run begin with it."""
    events, trace = [], step.trace

    def slow(function, *inputs, compile=False, capture=False):  # the compiler has tests of its own
        events.append(f"trace, compile={compile}")
        time.sleep(0.5)
        return trace(function, *inputs)

    @contextmanager
    def turn():
        events.append("turn")
        try:
            yield
        finally:
            events.append("over")

    monkeypatch.setattr(step, "trace", slow)
    config = replace(
        CONFIG, compile=True, optimization=Optimization(steps=2, batch=32), evaluate=2
    )
    run = fit(config, tmp_path, turn=turn(), watch=lambda step, *_: bool(events.append(step)))
    assert events == ["trace, compile=True", "turn", 1, 2, "over"]
    plain = fit(replace(config, compile=False), tmp_path / "plain")
    torch.testing.assert_close(run.energy.state_dict(), plain.energy.state_dict(), rtol=0, atol=0)
