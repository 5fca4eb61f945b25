r"""A user's own table: trained, judged against a known density, scored."""

import json
import math
import numpy as np
import pytest
import re
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.analytic import GaussianMixture
from fokker.cli import main
from fokker.config import Optimization, TableData
from fokker.presets import table_config
from fokker.tasks import TableEnergy, TableTask

MEANS = torch.tensor([[0.0, 50.0, -3.0], [4.0, 90.0, 3.0]])
SCALES = torch.tensor([0.5, 8.0, 1.0])


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def truth():
    return GaussianMixture(MEANS.float(), torch.diag(SCALES.float() ** 2))


@pytest.fixture(scope="module")
def points(truth, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "points.csv"
    x = truth.sample(2000, torch.Generator().manual_seed(0)).numpy()
    np.savetxt(path, x, delimiter=",", header="a,b,c", comments="")
    return path


@pytest.fixture(scope="module")
def run(points, tmp_path_factory):
    base = table_config(str(points))
    config = replace(
        base,
        network=replace(base.network, width=64),
        optimization=Optimization(steps=200, batch=200, rate=5e-3),
        evaluate=100,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    trained = fit(config, tmp_path_factory.mktemp("runs") / "table")
    torch.set_default_dtype(before)
    return trained


def test_it_learns_the_density(run, truth):
    line = run.metrics[-1]
    entropy = float(truth(truth.sample(50_000, torch.Generator().manual_seed(1))).mean())
    assert line["nll"] < line["nll_gaussian"] - 0.5  # two modes, which one Gaussian cannot have
    assert abs(line["nll"] - entropy) < 0.25 + 5 * line["nll_error"]
    assert line["ess"] > 0.05


def test_the_energy_is_in_the_units_of_the_file(run, truth):
    assert isinstance(run.energy, TableEnergy) and run.energy.columns == ("a", "b", "c")
    x = truth.sample(2000, torch.Generator().manual_seed(2))
    gap = (run.energy(x) - truth(x)).abs()
    assert float(gap.median()) < 0.4  # nats, constant included: it is normalized
    again = load(run.path)
    assert torch.equal(again.energy(x), run.energy(x))


def test_outliers_have_high_scores(run, truth):
    x = truth.sample(1000, torch.Generator().manual_seed(3))
    inside = run.energy.outlier_score(x)
    # uniform for points of the same law
    assert abs(float(inside.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 200)
    far = torch.tensor([[2.0, 70.0, 0.0], [20.0, 0.0, 9.0]])
    assert (run.energy.outlier_score(far) > 0.98).all()


def test_split_is_the_same_on_resume(points):
    a, b = (TableTask(TableData(str(points)), 3) for _ in "ab")
    assert torch.equal(a.train, b.train) and torch.equal(a.held, b.held)
    assert len(a.held) == 200 and len(a.train) == 1800
    assert a.train.mean(0).abs().max() < 1e-4  # standardized by the training rows alone


def test_commands(run, points, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["score", str(run.path), str(points), "-o", "s.csv"])
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0] == "log_density,outlier" and len(lines) == 2001
    main(["evaluate", str(run.path), "--json"])
    out = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(out)["nll"] == pytest.approx(run.metrics[-1]["nll"], abs=1e-4)
    main(["sample", str(run.path), "-n", "40", "-o", "x.csv"])
    header, *rows = (tmp_path / "x.csv").read_text().splitlines()
    assert header == "a,b,c" and len(rows) == 40
    b = np.array([float(row.split(",")[1]) for row in rows])
    assert 20 < b.mean() < 120  # in the units of the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"line 3, column 2 'b': expected a finite number, got the text 'x'"),
        ("a,b\n1,2\n3,\n", r"line 3, column 2 'b': .* missing value"),
        ("a,b\n1,2\n1,3\n1,4\n1,9\n", r"'a'"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        main(["train", "table", "--data", str(path), "--out", str(tmp_path / "r")])
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and len(error.splitlines()) == 1
    assert re.search(message, error)
    assert not (tmp_path / "r").exists()


def test_other_columns_are_refused(run, tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("a,b,d\n1,2,3\n4,5,6\n")
    with pytest.raises(SystemExit):
        main(["score", str(run.path), str(path)])
    assert "expected the columns a, b, c in" in capsys.readouterr().err
