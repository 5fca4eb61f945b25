r"""A kind of data that the package does not know, added in one file, goes through every
command."""

import importlib.util
import json
import numpy as np
import pytest
import torch

from fokker import fit, load
from fokker.app.cli import main
from fokker.objectives import DenoisingScoreMatching
from fokker.runs.config import DATA, Config, Network, Optimization, ToyData
from fokker.runs.toml import dumps, loads
from fokker.tasks import TASKS, register
from pathlib import Path

PATH = Path(__file__).parents[1] / "examples/windows.py"


@pytest.fixture
def windows():
    r"""The module of the example; what it registers is taken back."""
    torch.set_default_dtype(torch.float32)
    spec = importlib.util.spec_from_file_location("windows", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del DATA["windows"], TASKS[module.WindowData]


def test_a_new_kind_of_data(windows, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("wave.npy", np.sin(np.arange(400) / 5))
    network, optimization = Network(width=8, confine=3.0), Optimization(steps=4, batch=16)
    config = Config(
        windows.WindowData("wave.npy", 4),
        DenoisingScoreMatching(0.2),
        network,
        optimization,
        evaluate=2,
    )
    assert loads(dumps(config)) == config
    run = fit(config, "run")
    assert run.step == 4 and run.shape == (4,) and run.weights == "the weights of step 4, the last"
    main(["evaluate", "run", "--json"])
    line = json.loads(capsys.readouterr().out)
    assert line["sm_loss"] == pytest.approx(run.judged["sm_loss"], rel=1e-5)
    main(["sample", "run", "-n", "7", "-o", "x.csv"])
    rows = Path("x.csv").read_text().splitlines()
    assert rows[0] == "x0,x1,x2,x3" and len(rows) == 8
    main(["report", "run"])
    assert "wave" in Path("run/report.html").read_text()
    assert fit(config, "run", resume=True).step == 4
    # jobs that the kind does not have are refused in one line
    for words in (
        ["score", "run", "wave.npy"],
        ["denoise", "x.png", "--energy", "run"],
        ["evaluate", "run", "--fid", "4"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        said = capsys.readouterr().err
        assert stop.value.code == 2 and "a run on windows of a time series" in said, words


def test_an_unknown_kind_is_named(windows, tmp_path):
    text = dumps(Config(windows.WindowData("wave.npy"))).replace('"windows"', '"window"')
    with pytest.raises(ValueError, match="did you mean 'windows'"):
        loads(text)


def test_a_name_is_registered_once(windows):
    with pytest.raises(ValueError, match="a name that is free, got 'toy'"):
        register("toy", windows.WindowData, windows.WindowTask)
    register("windows", windows.WindowData, windows.WindowTask)  # the same again is no fault
    assert DATA["toy"] is ToyData and load is not None
