r"""What `fokker train table` trains: a mixture under a correction, judged against the truth.

The table has two columns that follow each other, a constant, two categories, gaps and names."""

import csv
import json
import math
import numpy as np
import pytest
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app.cli import main
from fokker.app.report import write_report
from fokker.data.table import read_table
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.config import Optimization
from fokker.runs.presets import mixture_config
from fokker.tables.correction import Corrected, Net, draw, tilt
from fokker.tables.mixture import Rows
from fokker.tables.model import TableModel
from fokker.tasks import MixtureEnergy, MixtureTask
from fokker.tasks.mixture import table_card, table_of
from scipy.stats import kstest

pytestmark = pytest.mark.filterwarnings("ignore:.*left out, as their texts")
HEAD = ("name", "color", "a", "b", "seven", "gap")
ODD = 700  # the number of the odd row in the table, from 1


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def rows_of(n, seed):
    r"""Rows of a law that is known: red where a coin says so, b = a + noise, gaps in a tenth."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    b = 1e6 + 1e3 * (a + 0.1 * rng.normal(size=n))
    color = np.where(rng.random(n) < 0.3, "red", "blue")
    gap = np.where(rng.random(n) < 0.1, "", np.char.mod("%.6f", rng.normal(size=n)))
    return [[f"row {k}", color[k], f"{a[k]:.9g}", f"{b[k]:.12g}", "7", gap[k]] for k in range(n)]


def write(path, rows, head=HEAD):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def short(path, steps=20):
    config = mixture_config(str(path))
    optimization = Optimization(steps=steps, batch=64, rate=2e-3, ema=0.9)
    return replace(config, optimization=optimization, evaluate=10)


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    rows = rows_of(1000, 0)
    rows[ODD - 1][2:4] = ["1.5", f"{1e6 - 1500}"]  # a and b disagree
    return write(tmp_path_factory.mktemp("data") / "points.csv", rows)


@pytest.fixture(scope="module")
def run(points, tmp_path_factory):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with pytest.warns(UserWarning, match="left out, as their texts tell .*: 'name'; turn dates"):
        trained = fit(short(points), tmp_path_factory.mktemp("runs") / "mixture")
    torch.set_default_dtype(before)
    return trained


def scores(run, path, out, *options):
    main(["score", str(run.path), str(path), "-o", str(out), *options])
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_p_values_of_new_rows_are_uniform_and_alarms_have_their_rate(run, tmp_path, capsys):
    path = write(tmp_path / "new.csv", rows_of(2000, 1))
    lines = scores(run, path, tmp_path / "o.csv", "--alarm-rate", "0.05")
    m = len(run.energy.reference)
    p = np.array([float(line["p_value"]) for line in lines])
    assert kstest(p, "uniform").statistic < 5 * math.sqrt(1 / 2000 + 1 / m) / 2
    alarms = np.mean([line["alarm"] == "1" for line in lines])
    assert abs(alarms - 0.05) <= 5 * math.sqrt(0.05 * 0.95 * (1 / 2000 + 1 / m))
    said = capsys.readouterr().out
    assert f"from {m} held-out rows" in said and "ignored columns: 'name'" in said
    outlier = np.array([float(line["outlier"]) for line in lines])
    assert np.allclose((1 + m - m * outlier) / (1 + m), p, atol=1e-5)


def test_reasons_name_the_columns_that_make_a_row_odd(run, tmp_path):
    odd = rows_of(40, 2)
    for k, row in enumerate(odd):
        if k % 4 == 0:  # a and b disagree: one of them is odd
            row[2:4] = ["1.2", f"{1e6 - 1200}"]
        elif k % 4 == 1:
            row[5] = "6.5"
        elif k % 4 == 2:
            row[4] = "8"
        else:
            row[1] = "green"
    lines = scores(run, write(tmp_path / "odd.csv", odd), tmp_path / "o.csv", "--explain")
    first = [line["reasons"].split()[0] for line in lines]
    assert set(first[0::4]) <= {"a", "b"} and set(first[1::4]) == {"gap"}
    assert set(first[2::4]) == {"seven"} and set(first[3::4]) == {"color"}
    assert all(line["nearest_likely"].split(";")[0] == "seven 7" for line in lines[2::4])
    likely = {line["nearest_likely"].split(";")[0] for line in lines[3::4]}
    assert likely <= {"color red", "color blue"}
    assert all(float(line["p_value"]) < 0.05 for line in lines if "seven" in line["reasons"])


def test_columns_come_in_any_order(run, points, tmp_path, capsys):
    rows = rows_of(20, 3)
    order = [3, 1, 5, 4, 2]
    turned = [[row[j] for j in order] for row in rows]
    other = write(tmp_path / "b.csv", turned, [HEAD[j] for j in order])
    here, there = (
        scores(run, path, tmp_path / "o.csv") for path in (write(tmp_path / "a.csv", rows), other)
    )
    assert here == there
    bad = write(tmp_path / "c.csv", [[*row[:2], "much", *row[3:]] for row in rows])
    with pytest.raises(SystemExit):
        main(["score", str(run.path), str(bad)])
    assert "expected numbers in column 'a' of" in capsys.readouterr().err


def test_samples_are_of_the_law(run, tmp_path):
    out, n = tmp_path / "s.csv", 4000
    main(["sample", str(run.path), "-n", str(n), "-o", str(out)])
    table = read_table(out, mixed=True)
    assert table.columns == HEAD[1:] and table.texts(0) == ("blue", "red")
    color, a, b, seven, gap = table.values.T.double()
    share = lambda p, k: 5 * math.sqrt(p * (1 - p) * (1 / k + 1 / 800))  # k drawn, 800 to train on
    assert (seven == 7).all()
    assert abs(color.mean() - 0.3) < share(0.3, n) and abs(gap.isnan().double().mean() - 0.1) < (
        share(0.1, n) + 0.01
    )
    # the broad Gaussian of the base has 1 / 801 of the mass or more
    near = a.abs() < 5
    assert near.double().mean() > 0.99
    noise = (b[near] - 1e6) / 1e3 - a[near]
    assert abs(a.mean()) < 5 * math.sqrt(1 / n + 1 / 800) and 0.08 < noise.quantile(0.84) < 0.14
    main(["score", str(run.path), str(out), "-o", str(tmp_path / "o.csv")])  # it can be read again


def test_the_report_shows_the_scores_and_the_odd_row(run):
    page = write_report(run).read_text()
    assert page.count("data:image/png;base64,") == 4 and (run.path / "scores.png").exists()
    assert f"{len(run.energy.reference)} held-out rows" in page
    table = page[page.index("nearest likely row</th>") :]
    first = next(row for row in table.split("<tr>")[1:] if f"<td>{ODD}<" in row)
    assert "a +" in first or "b +" in first
    assert "Each category, and each mark of a missing value" in page


def test_a_run_is_read_as_it_was(run, points, tmp_path):
    again = load(run.path)
    assert isinstance(again.energy, MixtureEnergy)
    x = run.loaded().values[:50]
    assert torch.equal(again.energy(x), run.energy(x))
    assert torch.equal(again.energy.surprise(x), run.energy.surprise(x))
    texts = json.dumps(run.energy.card)  # in the types of JSON
    columns, steady = table_of(json.loads(texts)["table"])
    assert columns.names == HEAD[1:] and table_card(columns, steady) == run.energy.card["table"]
    best = read_checkpoint(run.path).best
    assert best is not None
    weights = dict(best.weights)
    for name in ("reference", "surprise.view.knots", "density.base.weights"):
        with pytest.raises(ValueError, match="expected the tensors of"):
            TableModel.of({k: v for k, v in weights.items() if k != name}, 10.0)
        with pytest.raises(ValueError, match="expected the tensors of"):
            TableModel.of(weights | {name: weights[name].float()}, 10.0)


def test_a_run_goes_on_where_it_was(points, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, line):
        if done == 10 and line:
            raise Stop

    small = write(tmp_path / "small.csv", [row[2:4] for row in rows_of(80, 4)], HEAD[2:4])
    whole = fit(short(small), tmp_path / "whole")
    with pytest.raises(Stop):
        fit(short(small), tmp_path / "parts", progress=stop)
    parts = fit(short(small), tmp_path / "parts", resume=True)
    same = lambda run: [{k: v for k, v in m.items() if k != "seconds"} for m in run.metrics]
    assert same(parts) == same(whole) and parts.judged["nll"] == whole.judged["nll"]


# --- likelihoods against the truth ---


def gaussian(d, n, seed):
    r"""Rows of a Gaussian with five directions of large variance, in odd units, and its NLL."""
    rng = np.random.default_rng(seed)
    loads = rng.normal(size=(d, min(d, 5)))
    units = 10.0 ** rng.integers(-6, 7, size=d)
    rows = (rng.normal(size=(n, loads.shape[1])) @ loads.T + rng.normal(size=(n, d))) * units
    precision = torch.from_numpy(np.linalg.inv(loads @ loads.T + np.eye(d)))
    _, log_det = np.linalg.slogdet(loads @ loads.T + np.eye(d))

    def nll(x):
        z = x / torch.from_numpy(units)
        log_volume = float(np.log(units).sum() + log_det / 2 + d * math.log(2 * math.pi) / 2)
        return ((z @ precision) * z).sum(1) / 2 + log_volume

    return rows, nll


@pytest.mark.parametrize(
    ("d", "room"), [(1, 0.05), (10, 0.3), pytest.param(300, 20.0, marks=pytest.mark.slow)]
)
def test_the_likelihood_that_is_printed_is_true(tmp_path, capsys, d, room):
    rows, nll = gaussian(d, 2000, d)
    np.save(path := tmp_path / "x.npy", rows)
    small = ("--steps", "2", "--batch", "16", "--evaluate", "2")
    main(["train", "table", "--data", str(path), *small, "--out", str(tmp_path / "r")])
    printed = float(capsys.readouterr().out.split("test ")[1].split(" ")[0])
    task = MixtureTask(mixture_config(str(path))).load()
    test = task.values[task.rows["test"]]
    run = load(tmp_path / "r")
    gap = run.energy(test) - nll(test)
    assert printed == pytest.approx(float(run.energy(test).mean()), abs=2e-3)
    # a normalized density is not more likely than the truth, and this one is not much less: a
    # Gaussian fitted to n rows is, by d (d + 3) / 4 n nats, 14 here in 300 columns
    assert -5 * float(gap.std()) / len(gap) ** 0.5 < float(gap.mean()) < room


# --- a correction that is kept ---


@pytest.fixture
def tilted():
    generator = torch.Generator().manual_seed(0)
    base = Rows(torch.tensor([[-1.0], [2.0]], dtype=torch.float64), 0.7)
    energy = Corrected(base, Net(1, 8, generator), 10.0)
    with torch.no_grad():
        last = energy.net.layers[-1]
        last.weight.copy_(6 * torch.randn(last.weight.shape, generator=generator))
        last.bias.fill_(1.5)
    return energy


def test_the_constant_and_the_samples_of_a_tilted_base(tilted):
    grid = torch.linspace(-8, 9, 20_001, dtype=torch.float64)
    with torch.no_grad():
        weights = torch.exp(-tilted.tilted(grid[:, None], 0.1))
    z = torch.trapezoid(weights, grid)
    assert abs(math.log(float(z))) > 0.5  # the correction does something
    found = tilt(tilted, 0.1, torch.Generator().manual_seed(1))
    assert abs(found.log_z - math.log(float(z))) <= 5 * found.error
    x = draw(tilted, 0.1, 4000, torch.Generator().manual_seed(2))[:, 0]
    mean = torch.trapezoid(grid * weights, grid) / z
    plain = torch.exp(-tilted.base(grid[:, None]))
    before = torch.trapezoid(grid * plain, grid)
    error = float(x.std()) / 4000**0.5
    assert abs(float(x.mean() - mean)) <= 5 * error < abs(float(before - mean))


def test_a_run_with_a_correction_is_normalized(run, tilted):
    model = TableModel.of(dict(run.energy.model.state_dict()), 10.0)
    with torch.no_grad():
        model.density.net.layers[-1].weight.normal_(0, 1)
    found = tilt(model.density, 0.1, torch.Generator().manual_seed(0))
    card = run.energy.card | {"corrected": 1, "log_z": found.log_z, "log_z_error": found.error}
    energy = MixtureEnergy(model, card, 0.1)
    base = MixtureEnergy(model, run.energy.card | {"corrected": 0, "log_z": 0.0}, 0.1)
    points = base.sample(20_000, torch.Generator().manual_seed(3)).points
    with torch.no_grad():
        ratio = torch.exp(base(points) - energy(points))  # its mean under the base is the integral
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert abs(float(ratio.mean()) - 1) <= 5 * math.hypot(error, found.error)
    assert float(ratio.std()) > 0.05
    assert "accepted by the correction" in energy.sample(10, torch.Generator()).verdict.sentence
