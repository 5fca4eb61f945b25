r"""A run folder has one writer: whoever comes second is refused, and nothing is mixed or lost."""

import json
import multiprocessing
import os
import pytest
import shutil
import signal
import time
import torch

from dataclasses import replace
from fokker.objectives import ScoreMatching
from fokker.runs.checkpoints import names
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.folder import read_config
from fokker.runs.loading import load
from fokker.runs.owner import Owner
from fokker.runs.training import Interrupted, fit

SMALL = Config(
    ToyData("moons"),
    ScoreMatching(),
    Network(width=8, layers=3),
    Optimization(steps=6, batch=16),
    evaluate=2,
)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


SPAWN = multiprocessing.get_context("spawn")


def test_one_owner_at_a_time(tmp_path):
    with Owner(tmp_path) as first, Owner(tmp_path) as second:
        first.take()
        expected = rf"a run folder that nobody else writes to, got .*, which process {os.getpid()}"
        with pytest.raises(ValueError, match=expected):
            second.take()
    with Owner(tmp_path) as third:  # free again
        third.take()
    said = json.loads((tmp_path / ".lock").read_text())
    assert said["pid"] == os.getpid() and said.keys() == {"host", "pid", "since"}


def hold(folder, ready):
    with Owner(folder) as owner:
        owner.take()
        ready.set()
        time.sleep(60)


def test_the_folder_of_a_killed_owner_is_free_and_of_a_stopped_one_is_not(tmp_path):
    ready = SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(tmp_path, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    os.kill(process.pid, signal.SIGSTOP)
    expected = rf"which process {process.pid} on .* holds"
    with Owner(tmp_path) as owner, pytest.raises(ValueError, match=expected):
        owner.take()
    process.kill()
    process.join()
    with Owner(tmp_path) as owner:
        owner.take()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": 1}', '{"pid": "x"}', "\0" * 5000])
def test_a_lock_that_says_nothing_is_still_a_lock(tmp_path, monkeypatch, content):
    monkeypatch.setattr("fokker.runs.owner.WAIT", 0.0)
    with Owner(tmp_path) as first, Owner(tmp_path) as second:
        first.take()
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(ValueError, match=r"which another process holds"):
            second.take()


def test_a_lock_that_is_no_file_is_refused(tmp_path):
    for make in (
        lambda path: path.symlink_to(tmp_path / "precious"),
        os.mkfifo,
        lambda path: path.mkdir(),
    ):
        make(tmp_path / ".lock")
        with Owner(tmp_path) as owner, pytest.raises(ValueError, match=r"a regular file or none"):
            owner.take()
        assert not (tmp_path / "precious").exists()
        (shutil.rmtree if (tmp_path / ".lock").is_dir() else os.unlink)(tmp_path / ".lock")


def test_a_second_run_is_refused_while_the_first_trains(tmp_path):
    refused = []

    def progress(step, line):
        if line:
            for resume in (False, True, "if-any"):
                with pytest.raises(ValueError, match=r"nobody else writes to") as error:
                    fit(replace(SMALL, seed=1 - bool(resume)), tmp_path / "run", resume)
                refused.append(error)

    fit(SMALL, tmp_path / "run", progress=progress)
    assert len(refused) == 9 and load(tmp_path / "run").step == 6
    assert read_config(tmp_path / "run") == SMALL


def test_a_writer_deletes_only_what_it_knows(tmp_path):
    r"""Another writer that no lock kept out leaves checkpoints, older and newer."""
    run = tmp_path / "run"

    def progress(step, line):
        if step == 2 and line:
            for name in ("step-00000001", "step-00000099", "step-00000003.4"):
                shutil.copytree(run / "checkpoint/step-00000002", run / "checkpoint" / name)
            (run / "checkpoint/notes").mkdir()

    fit(replace(SMALL, keep=1), run, progress=progress)
    assert [str(name) for name in names(run / "checkpoint")] == [
        "step-00000001", "step-00000006", "step-00000099", "step-00000003.4"
    ]  # fmt: skip
    assert (run / "checkpoint/notes").is_dir()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_nothing_is_written_into_a_folder_that_was_taken_away(tmp_path, how):
    run = tmp_path / "run"

    def progress(step, line):
        if step == 2 and line:
            shutil.rmtree(run)
            if how == "replaced":
                fit(replace(SMALL, seed=5), run)

    with pytest.raises(OSError, match=r"removed or replaced"):
        fit(SMALL, run, progress=progress)
    if how == "replaced":
        assert load(run).config.seed == 5 and load(run).step == 6
    else:
        assert not run.exists()


def race(folder, seed, gate, out):
    try:
        gate.wait(60)
        fit(replace(SMALL, seed=seed), folder)
        out.put((seed, "done"))
    except (ValueError, Interrupted) as error:
        out.put((seed, str(error)))


def test_of_two_runs_started_at_once_one_is_whole(tmp_path):
    gate, out = SPAWN.Barrier(2), SPAWN.Queue()
    both = [
        SPAWN.Process(target=race, args=(tmp_path / "run", seed, gate, out)) for seed in (1, 2)
    ]
    for process in both:
        process.start()
    ends = dict(out.get(timeout=120) for _ in both)
    for process in both:
        process.join()
    (winner,) = (seed for seed, end in ends.items() if end == "done")
    (refused,) = (end for end in ends.values() if end != "done")
    assert "nobody else writes to" in refused or "which holds a run" in refused
    assert load(tmp_path / "run").config.seed == winner and load(tmp_path / "run").step == 6


def test_a_resume_of_no_run_makes_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"a run folder with a config.toml"):
        fit(SMALL, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
