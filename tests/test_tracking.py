r"""The curves of a run, read back from its event files."""

import builtins
import pytest
import torch

from fokker import fit
from fokker.app.cli import main
from fokker.objectives import ScoreMatching
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.tracking import tensorboard

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def curves(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {n: {e.step: e.value for e in events.Scalars(n)} for n in events.Tags()["scalars"]}


def expected(lines):
    names = {name for line in lines for name, v in line.items() if v is not None} - {"step"}
    return {n: {m["step"]: m[n] for m in lines if m.get(n) is not None} for n in names}


def test_curves_are_those_of_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    network, optimization = Network(8, 3, confine=0.7), Optimization(4, 16)
    config = Config(ToyData("moons"), ScoreMatching(), network, optimization, evaluate=2)
    with tensorboard(tmp_path) as progress:
        run = fit(config, tmp_path, progress=progress)
    found = curves(tmp_path)
    assert found.keys() == expected(run.metrics).keys() >= {"loss", "rate", "kl", "seconds"}
    for name, points in expected(run.metrics).items():
        assert found[name] == pytest.approx(points, rel=1e-6), name


def test_option_of_the_command(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("fokker.app.train.write_report", lambda run: run.path)  # takes seconds
    few = ["--steps", "2", "--batch", "16", "--width", "8"]
    main(["train", "toy", *few, "--out", str(tmp_path), "--tensorboard"])
    assert curves(tmp_path)["loss"].keys() == {2}


def test_without_the_package(tmp_path, monkeypatch, capsys):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("torch.utils.tensorboard"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SystemExit) as stop:
        main(["train", "toy", "--out", str(tmp_path / "run"), "--tensorboard"])
    assert stop.value.code == 2 and not (tmp_path / "run").exists()
    error = capsys.readouterr().err
    assert error == (
        "fokker: expected the package tensorboard for --tensorboard, got none;"
        " pip install 'fokker[tensorboard]'\n"
    )
