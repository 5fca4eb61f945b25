r"""The doctor: what it finds, what it misses, and that it only looks."""

import json
import pytest
import socket
import tomllib

from fokker import __version__, load
from fokker.app import doctor
from fokker.app.cli import main
from fokker.data.sources import SETS
from fokker.runs import shipped
from pathlib import Path

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOKKER_DATA", raising=False)

    def refuse(*_):
        raise AssertionError("expected no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_json(capsys, tmp_path):
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["fokker"] == __version__
    assert found["devices"][0]["name"] == "cpu" and found["threads"] >= 1
    assert found["data"] == {"FOKKER_DATA": None, "sets": dict.fromkeys(SETS)}
    assert found["cache"] == {"folder": str(tmp_path / "cache"), "files": 0, "MB": 0.0}
    assert not (tmp_path / "cache").exists()


def test_sets_are_found_where_they_would_be_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "data/mnist").mkdir(parents=True)
    hub = tmp_path / "cache/hub/cifar10"
    hub.mkdir(parents=True)
    (hub / "train-00000-of-00001.parquet").write_bytes(b"12345")
    monkeypatch.setenv("FOKKER_DATA", str(tmp_path / "data"))
    found = doctor.examine()
    sets = found["data"]["sets"]
    assert sets["mnist"] == str(tmp_path / "data/mnist") and sets["cifar10"] == str(hub)
    assert sets["svhn"] is None and found["cache"]["files"] == 1
    main(["doctor"])
    out = capsys.readouterr().out
    assert str(hub) in out and "svhn          not found" in out


def test_what_is_missing_is_said_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "found", lambda module: module != "datasets")
    monkeypatch.setattr(doctor, "packaged", lambda: tmp_path / "no such file")
    monkeypatch.setenv("FOKKER_DATA", str(tmp_path / "gone"))
    found = doctor.examine()
    assert found["extras"]["hub"]["missing"] == ["datasets"]
    assert found["extras"]["fid"]["missing"] == [] and found["inception"] is None
    text = "\n".join(doctor.lines(found))
    assert "not installed (datasets): pip install 'fokker[hub]'" in text
    assert "pip install 'fokker[dev]'" not in text
    assert f"{tmp_path / 'gone'}, which is not a folder" in text


def test_every_extra_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"])


def test_the_licences_of_the_energies(capsys, tmp_path):
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any("celeba32" in line and "non-commercial" in line for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = {path.stem: path.read_text() for path in (ROOT / "LICENSES").glob("*.txt")}
    assert set(project["license"].split(" AND ")) == {"Apache-2.0", *texts}
    for name, notice in shipped.licences().items():
        if "non-commercial" in notice:
            assert sum(f"weights/{name} " in text for text in texts.values()) == 1
    for name in shipped.names():
        assert (
            shipped.NOTICES[name].split(";")[0][:40]
            in (shipped.ROOT / name / "card.md").read_text()
        )
        assert name in (ROOT / "NOTICE").read_text()
    size = sum(path.stat().st_size for path in shipped.ROOT.rglob("*") if path.is_file())
    assert size < 14 * 2**20


def test_the_licence_of_an_energy_is_said_once(capsys, tmp_path):
    for said in (1, 0):
        load("celeba32")
        err = capsys.readouterr().err
        assert err.count("\n") == said and ("non-commercial" in err) == bool(said)
    assert (tmp_path / "cache/licences/celeba32").exists()
