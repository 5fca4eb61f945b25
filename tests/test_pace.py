r"""How long a command takes is said when it begins, wherever its output goes."""

import pytest
import sys
import torch

from fokker import fit, pace
from fokker.app.cli import main
from fokker.objectives import LevelDCD, Limit, LogUniform
from fokker.pace import Pace, words
from fokker.runs.config import Config, ImageData, Optimization, UNet
from pathlib import Path
from studies import ablation, units
from studies.commands import COMMANDS

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
CONFIG = Config(
    ImageData(MINI, size=8),
    LevelDCD(LogUniform(0.1, 10.0), Limit(), conditional=True),
    UNet(8, 1, multipliers=(1,), attention=()),
    Optimization(steps=2, batch=4),
    evaluate=2,
)


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def long(monkeypatch):
    r"""Every job counts as a long one."""
    for module in (pace, sys.modules["fokker.images.forecast"]):
        monkeypatch.setattr(module, "SHORT", 0.0)
    monkeypatch.setattr(pace, "LOOK", 0.0)


def test_the_rest_is_judged_by_what_is_done(monkeypatch):
    clock, lines = [0.0], []
    monkeypatch.setattr(pace, "perf_counter", lambda: clock[0])
    job = Pace("a job", 10, lines.append)
    clock[0] = 1.0
    job.done()
    assert not lines  # too early to tell
    clock[0] = 30.0
    job.within(4)(2)  # 1.5 of 10 parts
    assert lines == [f"a job: about {words(200.0)}"]
    job.done()
    assert len(lines) == 1
    short = Pace("short", 2, lines.append)
    clock[0] += 3.0
    short.done()
    assert len(lines) == 1
    resumed = Pace("resumed", 1, lines.append)
    clock[0] += 60.0
    resumed.within(100, 80)(90)  # half of what is left
    assert lines[1:] == ["resumed: about 2 minutes"]
    uneven = Pace("uneven", 2, lines.append)  # the first part is short, the second is not
    clock[0] += 3.0
    uneven.done()
    assert len(lines) == 2
    clock[0] += 57.0
    uneven.within(10)(2)
    assert lines.pop() == "uneven: about 2 minutes"
    skipped = Pace("skipped", 3, lines.append)
    skipped.skip()
    clock[0] += 60.0
    skipped.done()
    assert lines[2:] == ["skipped: about 2 minutes"]


def test_commands_on_images_say_about_how_long(tmp_path, capsys, long):
    fit(CONFIG, tmp_path / "run")
    picture, run = tmp_path / "x.png", str(tmp_path / "run")
    for words_ in (
        ["sample", run, "-n", "2", "--steps", "3", "-o", str(picture)],
        ["evaluate", run],
        ["evaluate", run, "--memory", "2"],
        ["evaluate", run, "--residual", "2"],
        ["score", run, str(picture), "--usual", "64", "-o", str(tmp_path / "s.csv")],
        ["restore", str(picture), "--energy", run, "--scale", "2", "--levels", "2"],
        ["train", "toy", "--steps", "4", "--batch", "4", "--width", "8", "--out", "toy"],
    ):
        main(words_)
        lines = capsys.readouterr().err.splitlines()
        assert sum(": about " in line for line in lines) == 1, (words_, lines)
        assert all(line.startswith("fokker: ") for line in lines), lines


def test_a_study_says_how_many_parts_and_about_how_long(tmp_path, capsys, long):
    few = {"steps": 2, "batch": 4, "width": 4, "sets": ("moons",), "seeds": (0,)}
    ablation.run(tmp_path / "a.json", **few)
    lines = capsys.readouterr().err.splitlines()
    assert f"reproduce ablation: {len(ablation.ARMS)} parts; the time follows" in lines[0]
    assert "reproduce ablation: about" in lines[1] and len(lines) == 2
    ablation.run(tmp_path / "a.json", **few)
    assert capsys.readouterr().err == ""  # all is there


def test_every_study_says_how_long():
    r"""By `units.begin` or a forecast, in its own module or that of its command."""
    root = Path(units.__file__).parent
    texts = {str(p.relative_to(root).with_suffix("")): p.read_text() for p in root.rglob("*.py")}
    modules = {"tables": "anomalies", "posterior": "picture_commands"}
    modules |= dict.fromkeys(("toy", "denoising", "networks", "flows"), "commands")
    modules |= {"photographs": "picture_commands", "generation": "generation/command"}
    modules |= {name: f"sampling/{name}" for name in ("normalizer", "samples")}
    modules |= {name: f"densities/{name}" for name in ("composition", "likelihood", "ood")}
    for name in COMMANDS["reproduce"]:
        text = texts[modules.get(name, name)]
        said = (
            f'begin("reproduce {name}',
            f'told(f"reproduce {name}',
            f'forecast("reproduce {name}',
        )
        assert any(words in text for words in said), name
