r"""Places that are not as usual: a home that cannot be written to, a terminal without colours, a
process killed while it unpacks, files that are replaced while they are read."""

import json
import numpy as np
import os
import pty
import pytest
import re
import signal
import subprocess
import sys
import torch

from dataclasses import replace
from fokker import files, fit, load
from fokker.data import cache
from fokker.runs import checkpoints, folder
from fokker.runs.config import Config, Network, Optimization
from fokker.runs.packing import pack, unpack
from pathlib import Path
from studies.trust.attempts import attempt

ROOT = Path(__file__).parents[1]
MINI = str(Path(__file__).parent / "data" / "mnist-mini")
TOY = Config(network=Network(8, 3), optimization=Optimization(steps=4, batch=4), evaluate=2)


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))


def weights(run):
    return torch.cat([p.flatten() for p in run.energy.parameters()])


# --- a run that is unpacked ---


def killed_at(count, work):
    r"""Kills this process with SIGKILL before the file of a number is on the disk."""
    left, sync = [count], files.sync

    def counted(path):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        sync(path)

    files.sync = checkpoints.sync = counted
    work()


@pytest.mark.parametrize("half", [False, True])
def test_what_a_killed_unpack_leaves_is_no_run(tmp_path, half):
    whole = fit(TOY, tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "pack", half=half)
    unpack(tmp_path / "pack", tmp_path / "good")
    good, place = weights(load(tmp_path / "good")), tmp_path / "place"
    assert torch.allclose(good, weights(whole), atol=1e-2)
    place.mkdir()
    ends = []
    while not ends or ends[-1] != "done":
        work = lambda: killed_at(len(ends), lambda: unpack(tmp_path / "pack", place / "run"))
        ends.append(attempt(work, 60.0).end)
        for path in [place, *(p for p in place.rglob("*") if p.is_dir())]:
            try:
                found = weights(load(path))
            except (ValueError, OSError):
                assert path != place / "run"
            else:
                assert torch.equal(found, good)
    assert set(ends[:-1]) == {"died with -9"} and len(ends) > 4
    assert sorted(p.name for p in place.iterdir()) == ["run"]  # the last one swept the rest


def test_a_pack_without_a_configuration_is_refused(tmp_path):
    fit(TOY, tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "pack")
    path = tmp_path / "pack/pack.json"
    content = json.loads(path.read_text())
    for entry in content["files"]:
        if entry["file"] == "config.toml":
            entry["file"] = "data.json"
    content["sha256"] = checkpoints.seal(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="it has no configuration"):
        unpack(tmp_path / "pack", tmp_path / "other")
    assert not (tmp_path / "other").exists()


# --- files that are replaced while they are read ---


def two_runs(tmp_path):
    r"""Two runs of one network with other weights and another scale."""
    one = fit(TOY, tmp_path / "run")
    other = fit(replace(TOY, seed=1, evaluate=1), tmp_path / "other")
    return {run.config: weights(run) for run in (one, other)}


def exchange(tmp_path):
    (tmp_path / "run").rename(tmp_path / "kept")
    (tmp_path / "other").rename(tmp_path / "run")
    (tmp_path / "kept").rename(tmp_path / "other")


@pytest.mark.parametrize("name", ["newest", "read_metrics", "read_starts", "restore"])
@pytest.mark.parametrize("times", [1, 10**6])
def test_a_run_replaced_while_it_is_read_is_no_mixture(tmp_path, monkeypatch, name, times):
    known, left, usual = two_runs(tmp_path), [times], getattr(folder, name)

    def replaced(*args):
        if left[0]:
            left[0] -= 1
            exchange(tmp_path)
        return usual(*args)

    monkeypatch.setattr(folder, name, replaced)
    if times > 1:
        with pytest.raises(ValueError, match=r"^expected a run that stays .* replaced 5 times$"):
            load(tmp_path / "run")
        return
    run = load(tmp_path / "run")
    assert torch.equal(known[run.config], weights(run))


@pytest.mark.parametrize("count", range(2))
def test_weights_replaced_while_they_are_read_are_whole_or_refused(tmp_path, monkeypatch, count):
    known, usual, left = two_runs(tmp_path), checkpoints.read_regular, [count]

    def replaced(path, *rest):
        found = usual(path, *rest)
        if path.name == "checkpoint.json":
            if left[0] == 0:
                for part in path.parent.glob("part-*"):
                    there = tmp_path / "other" / part.relative_to(tmp_path / "run")
                    part.with_name("new").write_bytes(there.read_bytes())
                    part.with_name("new").replace(part)
            left[0] -= 1
        return found

    monkeypatch.setattr(checkpoints, "read_regular", replaced)
    try:
        with pytest.warns(UserWarning, match="passed over"):
            run = load(tmp_path / "run")
    except ValueError as error:
        assert "\n" not in str(error) and "expected a whole checkpoint" in str(error)
    else:
        assert run.step == 2 and not torch.equal(known[run.config], weights(run))


def test_a_width_is_of_the_checkpoint_that_was_read(tmp_path, monkeypatch):
    r"""Training may save another one meanwhile."""
    config = replace(TOY, optimization=replace(TOY.optimization, widths=(0.1, 0.2)))
    fit(config, tmp_path / "run")
    calls, newest = [], folder.newest
    monkeypatch.setattr(folder, "newest", lambda path: calls.append(1) or newest(path))
    monkeypatch.setattr(
        "fokker.runs.averages.newest", lambda path: calls.append(1) or newest(path)
    )
    load(tmp_path / "run", width=0.15)
    assert len(calls) == 1


def test_the_cache_gives_the_array_that_was_hashed(tmp_path, monkeypatch):
    make = lambda: np.arange(12.0).reshape(3, 4)
    cache.cached("name", "0" * 64, make)
    (path,) = (tmp_path / "cache").glob("*.npy")
    np.save(tmp_path / "other.npy", np.zeros((3, 4)))
    usual = cache.card

    def replaced(*args):
        found = usual(*args)
        (tmp_path / "other.npy").replace(path)
        return found

    monkeypatch.setattr(cache, "card", replaced)
    assert np.array_equal(cache.cached("name", "0" * 64, make), make())


# --- places that cannot be written to ---

COMMANDS = """
import sys, warnings
from fokker.app.cli import main
from pathlib import Path
out, mini = Path(sys.argv[1]), sys.argv[2]
sizes = ["--steps", "2", "--batch", "4", "--width", "8"]
deep = ["--layers", "3"]
pictures = ["--size", "small", "--side", "8"]
for words in (
    ["doctor"],
    ["train", "toy", *sizes, *deep, "--out", out / "toy"],
    ["train", "generation", "--data", mini, *sizes, *pictures, "--out", out / "images"],
    ["evaluate", out / "toy"],
    ["evaluate", out / "images"],
    ["sample", out / "toy", "-n", "4", "--force", "-o", out / "toy.csv"],
    ["sample", out / "images", "-n", "1", "-o", out / "images.png"],
    ["denoise", out / "images.png", "--energy", out / "images", "-o", out / "clean.png"],
    ["report", out / "images"],
    ["pack", out / "toy", "--out", out / "pack"],
    ["unpack", out / "pack", "--out", out / "again"],
):
    print("+", *words, flush=True)
    main([str(word) for word in words])
"""


def tree(place):
    found = {p: p.stat() for p in place.rglob("*") if "__pycache__" not in p.parts}
    return {p: (s.st_mtime_ns, s.st_size) for p, s in found.items()}


def test_commands_work_where_home_and_cache_cannot_be_written(tmp_path):
    r"""A file in the place of a folder, which root cannot write to either; nor is anything written
    into the package, which may be installed read-only."""
    (tmp_path / "home").touch()
    (tmp_path / "work").mkdir()
    before = tree(ROOT / "src")
    places = ("FOKKER_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    keep = {k: v for k, v in os.environ.items() if k not in places}
    place = {"HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", COMMANDS, str(tmp_path / "work"), MINI]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=keep | place, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stderr.splitlines()
    assert all(line.startswith("fokker: ") for line in lines), done.stderr
    assert any("expected a cache that can be written to" in line for line in lines)
    assert tree(ROOT / "src") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "work"]


# --- a terminal without colours ---

COLOR = re.compile(rb"\x1b\[[0-9;]*m")


def on_a_terminal(words, **environment):
    r"""Returns what a command writes to a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100"} | environment)
        os.execv(sys.executable, [sys.executable, "-m", "fokker", *words])
    written = b""
    while True:
        try:
            some = os.read(terminal, 2**16)
        except OSError:
            break
        if not some:
            break
        written += some
    os.close(terminal)
    os.waitpid(pid, 0)
    return written


def colors(written):
    r"""Returns the codes of colours in what a terminal was sent: no bold, no cursor."""
    codes = [c for found in COLOR.findall(written) for c in found[2:-1].split(b";")]
    return {c for c in codes if c and (30 <= int(c) <= 49 or 90 <= int(c) <= 107)}


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "toy", "--help"],
        ["train", "toy", "--steps", "few"],
        ["train", "toy", "--steps", "3", "--batch", "4", "--width", "8", "--out", "@/run"],
        ["sample", "cifar10", "-n", "1", "--sampler", "heun", "--steps", "2", "-o", "@/x.png"],
        ["doctor"],
        ["optima"],
    ],
    ids=" ".join,
)
def test_no_color_is_honoured(tmp_path, monkeypatch, words):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    words = [word.replace("@", str(tmp_path)) for word in words]
    written = on_a_terminal(words, NO_COLOR="1")
    assert written and not colors(written), written[:2000]


# --- threads ---

STUDY = """
import sys, torch
from dataclasses import replace
from fokker import fit
from studies.denoising import Cell
part = Cell(sys.argv[2], "fokker", "dcd-limit", steps=3, batch=8, quick=True)
weights = []
for name in ("a", "b"):
    data = replace(part.config.data, size=8)
    run = fit(replace(part.config, data=data, compile=False), f"{sys.argv[1]}-{name}")
    weights.append(torch.cat([p.flatten() for p in run.energy.parameters()]))
torch.save(weights, sys.argv[1] + ".pt")
print(torch.get_num_threads())
"""


@pytest.mark.slow
def test_weights_of_the_denoising_study_depend_on_the_number_of_threads_alone(tmp_path):
    r"""What docs/denoising.md says: with the same number of threads the weights are the same bit
    for bit. With another they are nearly so."""
    page = (ROOT / "docs/denoising.md").read_text().replace("\n", " ")
    assert "bit for bit only with the same number of threads (`OMP_NUM_THREADS`)" in page
    found = []
    for threads in ("1", "2"):
        words = [sys.executable, "-c", STUDY, str(tmp_path / threads), MINI]
        place = {
            "OMP_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "passive",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        env = os.environ | place
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
        assert done.stdout.split() == [threads]
        first, again = torch.load(tmp_path / f"{threads}.pt", weights_only=True)
        assert torch.equal(first, again)
        found.append(first)
    assert torch.allclose(*found, atol=1e-2)
