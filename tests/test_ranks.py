r"""Many ranks: the gradients of one, and a run that outlives the death of a rank."""

import importlib.util
import json
import numpy as np
import os
import pytest
import subprocess
import sys
import torch

from dataclasses import dataclass, replace
from fokker import fit, metrics
from fokker.app import cli
from fokker.compute.ranks import ALONE, Ranks, join, mark_of
from fokker.compute.step import Step
from fokker.data.picture import read_png
from fokker.images.generate import Sampling, generate
from fokker.images.likelihood import bits_of
from fokker.networks import MLP
from fokker.objectives import (
    OBJECTIVES,
    PCD,
    Denoising,
    LogNormal,
    MultiTimeDCD,
    Objective,
    Output,
    ScoreMatching,
    Share,
)
from fokker.runs.checkpoints import named, newest, read
from fokker.runs.config import Config, ImageData, Network, Optimization, ToyData, UNet
from fokker.runs.state import State, step_generator
from fokker.runs.toml import dumps
from fokker.tasks import task_of
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "studies/trust/rank_equality.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("rank_equality", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torchrun(*args, ranks, **more):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | more
    return subprocess.run(
        [*command, *map(str, args)], capture_output=True, text=True, check=False, env=env
    )


def on_two_ranks(work, *args, folder):
    r"""Calls a function of this module with paths, on each of two ranks."""
    (folder / "driver.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from pathlib import Path; from test_ranks import {work.__name__}\n"
        f"{work.__name__}(*map(Path, sys.argv[1:]))\n"
    )
    done = torchrun(folder / "driver.py", *args, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_every_objective_is_shared(script):
    assert {type(o) for o in script.CASES.values()} == set(OBJECTIVES.values())
    assert {type(script.CASES[name]) for name in script.QUICK} == set(OBJECTIVES.values())


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_have_the_gradients_of_one(ranks):
    done = torchrun(SCRIPT, "--quick", ranks=ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()  # four ranks are taken in pairs too
    for line, count in zip(lines, range(ranks, 0, -2), strict=True):
        assert f"{count} ranks against 1, 12 cases" in line and float(line.split()[0]) <= 1e-10


def shares(objective, ranks, x):
    r"""The mean over ranks of the parts of a step, without any process."""
    torch.manual_seed(0)
    energy = MLP(width=8)
    generator = lambda: torch.Generator().manual_seed(5)
    outs = [
        Step(energy, objective, share=Share(r, ranks))(x, None, generator()) for r in range(ranks)
    ]
    mean = {k: sum(o.gradients[k] for o in outs) / ranks for k in outs[0].gradients}
    return mean, outs


@pytest.mark.parametrize(
    "objective", [MultiTimeDCD(points=6), PCD(1, buffer=24)], ids=lambda o: type(o).__name__
)
def test_shares_are_a_partition(objective):
    x = torch.randn(12, 2)
    whole, (one,) = shares(objective, 1, x)
    for ranks in (2, 3):
        mean, outs = shares(objective, ranks, x)
        assert all(torch.allclose(mean[k], whole[k], rtol=1e-10, atol=1e-10) for k in whole)
        for name, value in one.info.items():
            assert torch.allclose(sum(o.info[name] for o in outs) / ranks, value)
        if one.state is not None:
            together = torch.stack([o.state.x for o in outs], 1).flatten(0, 1)
            assert torch.allclose(together, one.state.x)


@dataclass(frozen=True)
class Shuffled(Objective):
    r"""An objective whose draws no rank can have a share of."""

    def compute(self, energy, x, state=None, generator=None):
        return Output(energy(x[torch.randperm(len(x), generator=generator)]).mean(), None, {})


@dataclass(frozen=True)
class Picked(Objective):
    r"""An objective that draws rows of its batch: of the whole one, or of the share's."""

    def compute(self, energy, x, state=None, generator=None):
        rows = torch.randint(len(x), (len(x),), generator=generator)
        return Output(energy(x[rows]).mean(), None, {})


@pytest.mark.parametrize(
    ("objective", "rows", "message"),
    [
        (
            ScoreMatching(),
            10,
            "batch to be a multiple of 4, the number of ranks times slices, got 10",
        ),
        (
            MultiTimeDCD(points=6),
            12,
            "points to be a multiple of 4, the number of ranks times slices, got 6",
        ),
        (
            PCD(buffer=30),
            12,
            "buffer to be a multiple of 4, the number of ranks times slices, got 30",
        ),
        (
            Shuffled(),
            12,
            "draws that ranks or slices can share, .*'permutation'.* the `part` of Shuffled",
        ),
        (Picked(), 12, "draws that ranks or slices can share, .* the `part` of Picked"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Objective) else None,
)
def test_what_cannot_be_shared_is_named(objective, rows, message):
    step = Step(MLP(width=4), objective, share=Share(1, 4))
    with pytest.raises(ValueError, match=message):
        step(torch.randn(rows, 2), None, torch.Generator())


def test_alone_there_is_nothing_to_wait_for():
    x = torch.randn(3, 2)
    assert ALONE.gather(x) is x and ALONE.tell({"a": 1}) == {"a": 1} and ALONE.first
    assert ALONE.once(lambda: 3) == 3 and ALONE.each(lambda: x) is x and ALONE.collect(x) is x
    ALONE.agree([x])


def test_a_mark_changes_with_any_bit_and_with_the_order():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.randn(100).to(dtype)
        swapped, nudged = x.clone(), x.clone()
        swapped[[3, 4]] = x[[4, 3]]
        nudged[50] = torch.nextafter(x[50], x[50] + 1)
        assert mark_of(x) == mark_of(x.clone()) and mark_of(x) != mark_of(swapped)
        assert mark_of(x) != mark_of(nudged)


@pytest.mark.parametrize("n", [1, 7, 8, 1000])
def test_samples_are_shared_out(n):
    found = [i for r in range(4) for i in Ranks(r, 4).among(n)]
    assert found == list(range(n))


IMAGES = Config(
    ImageData(str(Path(__file__).parent / "data/mnist-mini"), size=4),
    Denoising(LogNormal()),
    UNet(8, 1, "denoiser"),  # no gradient, to be quick
    Optimization(steps=2, batch=4, warmup=1),
    evaluate=2,
    preview=3,
)
FAST = "--steps 3 --sigma-min 0.5 --sigma-max 2"
COMMANDS = (
    f"sample {{run}} -n 5 --batch 2 {FAST} -o {{out}}/five.npy",
    f"sample {{run}} -n 1 {FAST} -o {{out}}/one.npy",
    f"evaluate {{run}} --fid 7 --batch 2 --json {FAST}",
)


def judge_and_draw(run, out, ranks=ALONE):
    r"""Trains on images, draws and judges images of a run; on one rank or on each of many."""
    torch.set_default_dtype(torch.float32)
    fit(IMAGES, out / "run")

    # commands
    pool = torch.nn.functional.adaptive_avg_pool2d
    stand_in = lambda x: pool(x.mean(1, keepdim=True), (2, 4)).flatten(1)  # for Inception
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "LINGER", 0.0)
        patch.setattr(metrics, "load_inception", lambda *_: metrics.Extractor(stand_in, "0123"))
        for command in COMMANDS:
            cli.main(command.format(run=run, out=out).split())
        with pytest.raises(SystemExit) as stop:
            cli.main(["evaluate", str(run), "--fid", "1", *FAST.split()])
    assert stop.value.code == 2

    # a corrector, and a likelihood
    energy = lambda x, sigma: x.flatten(1).square().sum(1) / (2 * (0.25 + sigma**2))
    pixels = torch.randint(256, (5, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte()
    drawn = generate(energy, 5, (1, 4, 4), Sampling(steps=4, corrector=1), 3, batch=2, ranks=ranks)
    narrow = Sampling(sigma_min=0.5, sigma_max=2.0)
    bits = bits_of(energy, pixels, pixels, narrow, batch=2, ranks=ranks)
    if ranks.first:
        np.save(out / "corrected.npy", drawn.images)
        print(json.dumps([drawn.acceptance, *bits]))


def fail(kind):
    raise kind("no luck")


def share(run, out):
    r"""The work of one of two ranks."""
    with join("cpu") as ranks:
        judge_and_draw(run, out, ranks)
        rows = torch.arange(10).view(5, 2)
        for cut in (0, 3, 5):
            own = rows[:cut] if ranks.first else rows[cut:]
            assert torch.equal(ranks.collect(own), rows)
        for culprit, kind in ((0, OSError), (1, FloatingPointError), (1, ZeroDivisionError)):
            with pytest.raises(Exception, match="no luck") as found:
                ranks.each(lambda c=culprit, k=kind: fail(k) if ranks.rank == c else None)
            told = RuntimeError if kind is ZeroDivisionError else kind
            assert found.type is (kind if ranks.rank == culprit else told)


@pytest.mark.slow
def test_two_ranks_judge_and_draw_as_one(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    one, two = tmp_path / "1", tmp_path / "2"
    judge_and_draw(one / "run", one)
    alone = capfd.readouterr()
    assert "expected fid to be an integer >= 2, got 1" in alone.err
    done = on_two_ranks(share, one / "run", two, folder=tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("fokker: ")]
    assert said == ["fokker: expected fid to be an integer >= 2, got 1"]  # once, not by each rank

    # while training
    read = lambda folder: (folder / "run/metrics.jsonl").read_text().splitlines()
    for a, b in zip(*(map(json.loads, read(folder)) for folder in (one, two)), strict=True):
        for level in (0.3, 0.6, 0.9):
            assert a[f"rmse_{level}"] == pytest.approx(b[f"rmse_{level}"], rel=1e-5)
    name = "run/previews/step-00000002.png"
    assert (read_png(one / name) - read_png(two / name)).abs().max() < 2.1 / 255

    # images, and what is said of them
    for name, count in (("five", 5), ("one", 1), ("corrected", 5)):
        x, y = (np.load(folder / f"{name}.npy").astype(int) for folder in (one, two))
        assert x.shape == (count, 1, 4, 4) and np.abs(x - y).max() <= 1 and x.std() > 1
    first, second = (text.splitlines() for text in (alone.out, done.stdout))
    assert len(first) == len(second) == 4  # rank 0 alone speaks
    a, b = json.loads(first[2]), json.loads(second[2])
    assert a.keys() == b.keys() and a["fid_n"] == b["fid_n"] == 7
    for key in ("fid", "kid", "rmse_0.3"):
        assert a[key] == pytest.approx(b[key], rel=1e-4)
    (rate, *bits), (other, *others) = json.loads(first[3]), json.loads(second[3])
    assert 0 < rate < 1 and rate == pytest.approx(other, rel=1e-5)
    assert bits == others  # the same batches, with the same noise


MUON = replace(
    IMAGES,
    data=replace(IMAGES.data, size=8),
    optimization=Optimization(steps=4, batch=4, muon=0.02),
    preview=0,
)


def learn(run):
    r"""Trains by Muon on one of two ranks."""
    fit(MUON, run)


def test_two_ranks_train_by_muon_as_one(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as on the ranks
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    on_two_ranks(learn, tmp_path / "run", folder=tmp_path)
    two = dict(named(newest(tmp_path / "run")))
    assert any(name.endswith("/momentum") for name in two)
    halfway = read(tmp_path / "run/checkpoint/step-00000002")
    one = State(MUON, tmp_path, task_of(MUON).load(), ALONE)
    for begin in (0, 2):  # from scratch, and from what two have saved
        if begin:
            one.restore(halfway)
        for k in range(begin, 4):
            generator = step_generator(MUON, k)
            one.advance(one.task.batch(4, generator), generator, flag=False)
        found = dict(named(one.checkpoint()))
        assert found.keys() == two.keys()
        near = lambda a, b: torch.allclose(a, b, rtol=0, atol=0.01 * float(a.abs().max()))
        assert not [name for name, own in found.items() if not near(own, two[name])]


CONFIG = Config(
    ToyData("moons"),
    PCD(1, buffer=32),
    Network(width=8, layers=3, confine=0.7),
    Optimization(steps=6, batch=16),
    evaluate=2,
)
DRIVER = """
import os, signal, sys, torch
from fokker.runs import training
from fokker.images.quality import merge
from fokker.metrics.fid import Statistics
from fokker.compute.ranks import join
from fokker.runs.toml import loads
from pathlib import Path

torch.set_num_threads(1)
root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
config = loads((root / "run.toml").read_text())
with join("cpu") as ranks:
    training.fit(config, root / "whole", resume="if-any")
    # features of images, shared out
    x = torch.randn(11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mine = ranks.among(11)
    merged = merge(Statistics.of(x[mine.start : mine.stop], "tf", "w"), ranks)
    whole = Statistics.of(x, "tf", "w")
    assert merged.count == 11 and torch.allclose(merged.covariance(), whole.covariance())
    assert torch.allclose(merged.mean, whole.mean)
    try:
        ranks.agree([x + rank])
        raise SystemExit("expected ranks that differ to be found")
    except RuntimeError as error:
        assert "the same weights on all 2 ranks" in str(error)
    try:
        ranks.once(lambda: 1 / 0)
        raise SystemExit("expected the failure of rank 0 on every rank")
    except (ZeroDivisionError, RuntimeError) as error:
        assert "division" in str(error)
    generator = training.step_generator

    def deadly(config, k, *more):
        if k == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return generator(config, k, *more)

    training.step_generator = deadly
    said = []
    training.fit(config, root / "killed", resume="if-any", say=said.append)
    if rank == 0:
        print("said:", *said)
"""


@pytest.mark.slow
def test_a_killed_rank_is_restarted_from_the_last_checkpoint(tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "run.toml").write_text(dumps(CONFIG))
    done = torchrun("--max-restarts", 1, tmp_path / "driver.py", tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "said: resumed from step-00000004 in" in done.stdout
    a, b = (newest(tmp_path / name) for name in ("whole", "killed"))
    assert a.step == b.step == 6
    first, second = dict(named(a)), dict(named(b))
    assert all(torch.equal(first[k], second[k]) for k in first)
    # and it is the run of one rank, up to the rounding of a sum
    alone = tmp_path / "alone.py"
    alone.write_text(
        DRIVER.split("with join", maxsplit=1)[0] + "training.fit(config, root / 'alone')\n"
    )
    done = torchrun(alone, tmp_path, ranks=1)
    assert done.returncode == 0, done.stderr[-3000:]
    one = dict(named(newest(tmp_path / "alone")))
    assert one["state/0"].shape == (32, 2)
    assert all(torch.allclose(one[k], first[k], rtol=1e-3, atol=1e-5) for k in one)


@pytest.mark.slow
def test_the_command_runs_under_torchrun(tmp_path):
    small = ("--steps", 2, "--batch", 16, "--width", 8, "--evaluate", 2, "--objective", "cd")
    args = ("-m", "fokker", "train", "toy", *small, "--out", tmp_path / "r", "--restartable")
    done = torchrun(*args, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("run: ") == 1 and (tmp_path / "r/report.html").exists()
    done = torchrun("-m", "fokker", "evaluate", tmp_path / "r", "--json", ranks=2)
    (line,) = done.stdout.splitlines()  # rank 0 judges a 2-D set, and speaks
    assert done.returncode == 0 and "kl" in json.loads(line)
    done = torchrun("-m", "fokker", "sample", tmp_path / "none", ranks=2)
    said = [line for line in done.stderr.splitlines() if line.startswith("fokker: ")]
    assert len(said) == 1 and "does not exist" in said[0]
    assert "exitcode  : 2" in done.stderr and "Traceback" not in done.stderr.split(said[0])[0]
