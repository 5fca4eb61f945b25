r"""The record of checks, and its table."""

import os
import pytest
import time
import torch

from dataclasses import replace
from fokker import fit
from fokker.app.cli import parse
from fokker.files import write_bytes
from fokker.runs.checkpoints import newest
from studies import results, tables
from studies.trust import full_disk, races, record
from studies.trust.attempts import attempt, run_command

ROW = {"value": 3, "unit": "kills survived", "detail": "3 kills in 1 run"}


def test_a_check_replaces_its_own_rows_only(tmp_path):
    path = tmp_path / "results/trust.json"
    record(path, "kill", [ROW, ROW], "python kill.py")
    record(path, "soak", [ROW | {"value": 0.5, "unit": "%"}], "python soak.py")
    record(path, "kill", [ROW | {"value": 30}], "python kill.py --kills 30")
    kill, soak = results.load(path)["rows"]
    assert (kill["check"], kill["value"], kill["command"]) == (
        "kill", 30, "python kill.py --kills 30"
    )  # fmt: skip
    assert (soak["check"], soak["value"], soak["command"]) == ("soak", 0.5, "python soak.py")
    assert {"commit", "time", "hardware"} <= kill.keys()
    text = "<!-- results:trust -->\n<!-- /results -->"
    lines = tables.render(text, tmp_path).splitlines()
    assert any("| kill | 30 | kills survived | 3 kills in 1 run |" in line for line in lines)
    assert any("rank-equality" in line and "not measured yet" in line for line in lines)
    assert not any("kill" in line and "not measured yet" in line for line in lines)
    only = tables.render(text.replace("trust", "scaling"), tmp_path)
    assert "kill" not in only and "not measured yet: `torchrun" in only


def test_a_row_has_a_value_a_unit_and_a_detail(tmp_path):
    with pytest.raises(ValueError, match="a row of value, unit and detail, got"):
        record(tmp_path / "a.json", "kill", [{"value": 3}], "x")


def test_attempts_are_told_apart():
    kib = lambda n: bytearray(n * 1024)
    assert attempt(lambda: None)[:3] == ("done", "", False)
    assert attempt(lambda: kib(10**6) and None).end == "done"
    assert attempt(lambda: [1, 2][2:][0]).end == "IndexError"
    assert attempt(lambda: os._exit(3)).end == "died with 3"
    assert attempt(lambda: time.sleep(9), seconds=0.2).end == "too slow"
    assert attempt(lambda: kib(10**6) and None, memory=2**28).fault

    def refuse(text):
        raise ValueError(text)

    assert attempt(lambda: refuse("expected x"))[:3] == ("refused", "expected x", False)
    assert attempt(lambda: refuse("expected\nx")).fault


def test_commands_are_told_apart(tmp_path):
    refused = attempt(lambda: run_command(["report", str(tmp_path)]))
    assert refused.end == "refused" and "config.toml" in refused.said
    assert attempt(lambda: run_command(["doctor"])).end == "done"


def test_a_full_disk_is_noticed(tmp_path):
    r"""The study finds a command that writes in place."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "x").write_bytes(b"old" * 5000)

    def careless(place):
        (place / "x").write_bytes(b"new" * 5000)

    new = {"x": b"new" * 5000}
    job = full_disk.Job("x", careless, careless, ("x",), lambda place: None)
    found = full_disk.once(job, place, 4096, False, new)
    assert any("neither as it was nor new" in text for text in found)
    (place / "x").write_bytes(b"old" * 5000)
    careful = job._replace(work=lambda place: write_bytes(place / "x", b"new" * 5000))
    assert full_disk.once(careful, place, 4096, False, new) == ["refused"]
    assert full_disk.once(careful, place, 10**6, False, new) == ["done"]


def test_the_commands_of_the_full_disk_are_understood(tmp_path, monkeypatch):
    understood = []
    monkeypatch.setattr(full_disk, "run_command", lambda words: understood.append(parse(words)))
    jobs = full_disk.commands(tmp_path)
    for job in jobs:
        if job.prepare is job.work:  # a command line and no more
            job.work(tmp_path)
    assert {type(command).__name__ for command in understood} >= {"Score", "Sample", "Denoise"}
    assert {"pack", "unpack", "restore", "export", "train"} <= {job.name for job in jobs}


@pytest.mark.slow
@pytest.mark.parametrize("kind", races.KINDS)
def test_a_race_has_one_whole_run(tmp_path, kind):
    torch.set_default_dtype(torch.float32)
    wholes = []
    for seed in range(races.SEEDS):
        fit(replace(races.CONFIG, seed=seed), tmp_path / f"whole-{seed}")
        wholes.append(newest(tmp_path / f"whole-{seed}"))
    assert races.race(kind, tmp_path / "run", wholes)[1] == []
