r"""The measure of a newcomer's first picture, on a repository whose demo is done in advance."""

import importlib.util
import pytest
import subprocess
import torch

from fokker import fit
from fokker.objectives import ScoreMatching
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.toml import encode
from pathlib import Path
from studies import results, tables

SCRIPT = Path(__file__).parents[1] / "studies/first_picture.py"
MAKEFILE = """
.venv/.installed:
\tmkdir .venv && touch .venv/.installed
demo: .venv/.installed
\tmkdir runs && cp -r saved runs/demo
"""
TEXT = "<!-- results:demo -->\n<!-- /results -->"


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("first_picture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    network, optimization = Network(8, 3, confine=0.7), Optimization(2, 16)
    run = fit(Config(ToyData("moons"), ScoreMatching(), network, optimization), folder / "saved")
    (folder / "saved/report.html").write_text("a picture")
    (folder / "Makefile").write_text(MAKEFILE)
    return folder, run


def commit(folder):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=folder, check=True)


def test_what_is_written(script, repository, tmp_path, monkeypatch):
    folder, run = repository
    commit(folder)
    monkeypatch.setattr(script, "ROOT", folder)
    monkeypatch.setenv("FOKKER_COMMIT", "abc")
    script.main(["--out", str(tmp_path / "results/demo.json")])
    content = results.load(tmp_path / "results/demo.json")
    (row,) = content["rows"]
    assert content["config"] == encode(run.config) and content["commit"] == "abc"
    assert "cores" in content["hardware"]
    last = run.metrics[-1]
    assert {name: row[name] for name in ("fisher_gap", "kl", "off_mass")} == {
        name: last[name] for name in ("fisher_gap", "kl", "off_mass")
    }
    assert row["seed"] == 0 and row["training_seconds"] == last["seconds"]
    parts = [row[f"{part}_seconds"] for part in ("clone", "install", "demo")]
    assert row["total_seconds"] == pytest.approx(sum(parts), abs=0.21)
    # and its table
    shown = tables.render(TEXT, tmp_path).splitlines()
    assert len(shown) == 5 and shown[3].startswith(f"| {content['hardware']} | {parts[0]:.0f} s |")
    assert f"| {last['kl']:.2g} |" in shown[3]


def test_seconds_are_those_of_the_command(script):
    assert script.timed("sleep", "0.2") >= 0.2
    with pytest.raises(subprocess.CalledProcessError):
        script.timed("false")


def test_not_measured_is_said(tmp_path):
    assert "Not measured yet: `python studies/first_picture.py" in tables.render(TEXT, tmp_path)


def test_no_picture_no_figures(script, repository, tmp_path):
    folder, _ = repository
    (folder / "saved/report.html").unlink()
    commit(folder)
    with pytest.raises(ValueError, match=r"expected make demo to write .*report.html, got none"):
        script.measure(folder, tmp_path / "clone")


def test_changes_that_no_clone_has_are_refused(script, monkeypatch):
    monkeypatch.setenv("FOKKER_COMMIT", "abc+")
    with pytest.raises(ValueError, match=r"expected no changes in .*: commit them first"):
        script.main([])
