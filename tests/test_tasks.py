r"""A user's own table: trained, judged against a known density, scored."""

import csv
import json
import math
import numpy as np
import pytest
import re
import signal
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.analytic import GaussianMixture
from fokker.app.cli import main
from fokker.app.report import write_report
from fokker.data.table import read_table
from fokker.energies import Quadratic
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.config import Config, Network, Optimization, TableData
from fokker.runs.presets import table_config
from fokker.runs.training import Diverged, Interrupted
from fokker.tasks import TableEnergy, TableTask
from pathlib import Path

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


CPU = torch.device("cpu")


def test_it_learns_the_density(run, truth):
    line = run.judged
    entropy = float(truth(truth.sample(50_000, torch.Generator().manual_seed(1))).mean())
    assert line["nll"] < line["nll_gaussian"] - 0.5  # two modes, which one Gaussian cannot have
    assert abs(line["nll"] - entropy) < 0.25 + 5 * line["nll_error"]
    assert line["ess"] > 0.2 and line["log_z_error"] < 0.05 and line["unknown"] == ""


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
    a, b = (TableTask(Config(TableData(str(points)), seed=3)).load() for _ in "ab")
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(a, part), getattr(b, part))
    assert (len(a.train), len(a.validation), len(a.test)) == (1600, 200, 200)
    assert a.train.mean(0).abs().max() < 1e-4  # standardized by the training rows alone
    assert torch.equal(a.test, a.standardize(a.values[a.rows["test"]]))


def test_the_judgement_is_of_the_test_rows(run):
    task, e = run.loaded(), run.energy
    mean = lambda part: float(e(task.values[task.rows[part]]).double().mean())
    assert run.judged["nll"] == pytest.approx(mean("test"), abs=1e-4)
    assert run.judged["nll_validation"] == pytest.approx(mean("validation"), abs=1e-4)
    assert abs(mean("test") - mean("validation")) > 1e-3  # they do differ
    best = read_checkpoint(run.path).best
    assert best is not None and best.value == run.judged["divergence"]
    assert best.value == min(line["divergence"] for line in run.metrics)


def test_a_gaussian_is_fitted_to_the_training_rows(points):
    task = TableTask(Config(TableData(str(points)), seed=0)).load()
    x = task.values.double()
    train, test = (x[task.rows[part]] for part in ("training", "test"))
    normal = torch.distributions.MultivariateNormal(train.mean(0), torch.cov(train.T))
    assert task.gaussian(task.test) == pytest.approx(
        -float(normal.log_prob(test).mean()), abs=1e-4
    )


def test_a_column_that_follows_from_others_has_no_gaussian(tmp_path):
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).numpy()
    np.save(tmp_path / "x.npy", np.hstack((x, 3 * x[:, :1] - x[:, 1:])))
    task = TableTask(Config(TableData(str(tmp_path / "x.npy")), seed=0)).load()
    assert math.isnan(task.gaussian(task.test))
    _, line = task.complete(Quadratic(1.0), CPU)
    assert line["nll_gaussian"] is None and "no Gaussian" in task.describe({"step": 1, **line})


def test_a_table_of_too_many_columns_is_refused_before_it_is_judged(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(20, 1025)))
    with pytest.raises(ValueError, match=r"x.npy: expected at most 1024 columns, got 1025"):
        TableTask(Config(TableData(str(path)), seed=0)).load()


def test_a_column_that_is_constant_among_the_training_rows_is_named_with_its_file(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 2))
    values[:, 1] = 0.0
    for row in torch.randperm(20, generator=torch.Generator().manual_seed(0))[:2]:
        values[row, 1] = 1.0  # among those held out
    np.save(path := tmp_path / "x.npy", values)
    said = r"x.npy, rows to train on: expected column 'x1' to vary, got 0.0 in all 16 rows$"
    with pytest.raises(ValueError, match=said):
        TableTask(Config(TableData(str(path)), seed=0)).load()


@pytest.mark.slow
def test_samples_can_be_read_again_whatever_the_columns_are_called(tmp_path, capsys):
    names, path = ("温度, °C", 'say "hi"'), tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = np.random.default_rng(0).normal(size=(40, 2)).tolist()
        csv.writer(file).writerows([names, *rows])
    base = table_config(str(path))
    optimization = Optimization(steps=1, batch=8)
    config = replace(base, network=replace(base.network, width=8), optimization=optimization)
    folder = fit(config, tmp_path / "run").path
    main(["sample", str(folder), "-n", "5", "-o", str(tmp_path / "s.csv")])
    drawn = read_table(tmp_path / "s.csv")
    assert drawn.columns == names and torch.equal(drawn.values, load(folder).sample(5))
    main(["score", str(folder), str(tmp_path / "s.csv"), "-o", str(tmp_path / "o.csv")])
    assert "5 points" in capsys.readouterr().out


def test_mass_far_from_all_rows_is_found(points):
    # an untrained energy is as wide as what confines it
    task = TableTask(Config(TableData(str(points)), seed=0)).load()
    for std in (1.0, 3.0):
        wide = lambda x, std=std: x.square().sum(1) / (2 * std**2)  # not known to be a Gaussian
        found = task.normalizer(wide, CPU)
        assert abs(found.log_z - 3 * math.log(std * math.sqrt(2 * math.pi))) < 5 * found.error
        assert found.known and found.error < 0.05 and found.share > 0.2


def test_commands(run, points, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["score", str(run.path), str(points), "-o", "s.csv"])
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0] == "log_density,outlier,surprise,p_value" and len(lines) == 2001
    first = points.read_text().splitlines()[:2]
    (tmp_path / "one.csv").write_text("\n".join(first))  # one point has a score too
    main(["score", str(run.path), "one.csv", "-o", "o.csv"])
    alone = (tmp_path / "o.csv").read_text().splitlines()
    assert alone[0] == lines[0]
    found, wanted = ([float(v) for v in line.split(",")] for line in (alone[1], lines[1]))
    assert found == pytest.approx(wanted, rel=1e-6)  # rounding of float32
    said = "the best on the validation rows"
    assert f"weights of step {run.chosen} of 200, {said}" in capsys.readouterr().out
    main(["evaluate", str(run.path), "--json"])
    line = json.loads(capsys.readouterr().out)
    assert line["nll"] == pytest.approx(run.judged["nll"], abs=1e-4)
    assert line["step"] == run.chosen
    main(["evaluate", str(run.path)])
    assert said in capsys.readouterr().out
    main(["sample", str(run.path), "-n", "40", "-o", "x.csv"])
    assert said in capsys.readouterr().out
    header, *rows = (tmp_path / "x.csv").read_text().splitlines()
    assert header == "a,b,c" and len(rows) == 40
    b = np.array([float(row.split(",")[1]) for row in rows])
    assert 20 < b.mean() < 120  # in the units of the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"line 3, column 'b': expected a number, as '2' in line 2, got the"),
        ("a,b\n1,2\n3,inf\n", r"line 3, column 2 'b': expected a finite number, got 'inf'"),
        ("a,a\n1,2\n3,4\n", r"line 1, column 2: expected a name of its own, got 'a'"),
        (
            "id\nu\nv\nw\n",
            r"expected columns of numbers or of a few categories, got only 'id', of",
        ),
        ("a,b\n1,2\n1,2\n1,2\n1,2\n", r"expected a column that varies, got 2 equal rows"),
        ("a,b\n1,2\n3,4\n", r"expected 3 rows or more to train, validate and test on, got 2"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        main(["train", "table", "--data", str(path), "--out", str(tmp_path / "r")])
    said = capsys.readouterr()
    error = said.err.strip()
    assert stop.value.code == 2 and len(error.splitlines()) == 1 and not said.out.strip()
    assert re.search(message, error)
    assert not (tmp_path / "r").exists()


def test_other_columns_are_refused(run, tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("a,b,d\n1,2,3\n4,5,6\n")
    with pytest.raises(SystemExit):
        main(["score", str(run.path), str(path)])
    assert "expected the columns a, b, c in" in capsys.readouterr().err


def test_columns_are_matched_by_name(run, points, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = read_table(points)
    order = [2, 0, 1]
    lines = [",".join([*(table.columns[j] for j in order), "more"])]
    lines += [",".join([*(f"{row[j]:.9g}" for j in order), "1"]) for row in table.values[:20]]
    Path("other.csv").write_text("\n".join(lines))
    main(["score", str(run.path), "other.csv", "-o", "a.csv"])
    assert "ignored columns: 'more'" in capsys.readouterr().out
    main(["score", str(run.path), str(points), "-o", "b.csv"])
    ours, other = (read_table(Path(f"{k}.csv")).values for k in "ab")
    assert torch.allclose(ours, other[:20], atol=1e-3)


def test_alarms_and_reasons(run, points, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = read_table(points).values[:50].clone()
    rows[:10, 1] += 20 * rows[:, 1].std()
    text = "\n".join(",".join(f"{v:.9g}" for v in row) for row in rows)
    Path("s.csv").write_text("a,b,c\n" + text)
    main(["score", str(run.path), "s.csv", "-o", "o.csv", "--explain", "--alarm-rate", "0.05"])
    assert re.search(
        r"alarms; false-alarm rate 0.05 ± 0.0\d+, from \d+ test", capsys.readouterr().out
    )
    with open("o.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [line["alarm"] for line in found[:10]] == ["1"] * 10
    assert sum(line["alarm"] == "1" for line in found[10:]) <= 10
    assert all(line["reasons"].startswith("b +") for line in found[:10])


@pytest.mark.parametrize("rate", ["0", "1", "nan"])
def test_an_alarm_rate_that_is_none(run, points, tmp_path, capsys, rate):
    out = str(tmp_path / "o.csv")
    with pytest.raises(SystemExit):
        main(["score", str(run.path), str(points), "-o", out, "--alarm-rate", rate])
    assert "expected --alarm-rate strictly between 0 and 1" in capsys.readouterr().err


# --- the best weights ---


def test_scores_are_written_beside_the_points(run, points, tmp_path, capsys):
    before, folder = points.read_bytes(), str(run.path)
    for args, message in (
        ([folder, points, "-o", points], "to write to another file than that of the points, got"),
        ([folder, points, "-o", tmp_path / "s.npy"], "expected --out to end in .csv, got"),
        ([folder, points, "-o", tmp_path / "none/s.csv"], "in a folder that exists, got"),
        (["celeba32", points, "-o", tmp_path / "s.csv"], "expected a PNG, JPEG, WEBP, BMP image"),
    ):
        with pytest.raises(SystemExit):
            main(["score", *map(str, args)])
        assert message in capsys.readouterr().err
    assert points.read_bytes() == before and not list(tmp_path.iterdir())


def test_options_of_images_are_refused_for_points(run, tmp_path, capsys):
    folder, out = str(run.path), str(tmp_path / "s.csv")
    for args, message in (
        (["sample", folder, "-n", "2", "-o", out, "--steps", "2", "--sigma-min", "1"], "--steps, --sigma-min only for a run on images"),
        (["evaluate", folder, "--churn", "2"], "expected --fid with --churn, got no samples"),
        (["evaluate", folder, "--bpd", "2", "--rho", "3", "--sigma-min", "1"], "--fid with --rho, got"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            main(args)
        assert message in " ".join(capsys.readouterr().err.split())


def test_few_rows_are_said_to_be_few(tmp_path):
    np.savetxt(tmp_path / "few.csv", [[0.0], [1.0], [2.5], [4.0], [3.0], [7.0]], header="a")
    with pytest.warns(UserWarning, match="expected 3 or more rows to judge by, got 1, and 1 to"):
        task = TableTask(Config(TableData(str(tmp_path / "few.csv")), seed=0)).load()
    _, line = task.complete(Quadratic(1.0), torch.device("cpu"))
    assert line["nll"] is not None and line["nll_error"] is None  # and torch warns of nothing
    said = task.describe({"step": 1, **line, "nll_gaussian": None})
    assert "± none nats (no Gaussian: rows are few, or a column follows from others)," in said


def test_patience_that_is_over_is_not_taken_up(small, tmp_path):
    config, said = replace(small, patience=1), []
    run = fit(config, tmp_path / "run")
    ended = config.optimization.steps
    assert run.step < ended
    fit(config, tmp_path / "run", resume=True, say=said.append)
    (text,) = said
    assert text.endswith("which had ended: 1 evaluations brought no better one")
    text = (tmp_path / "run/config.toml").read_text()
    longer = replace(config.optimization, steps=ended + 8, restarts=(ended,))
    with pytest.raises(ValueError, match=r"a run that can go on, got .* had ended: 1 evaluations"):
        fit(replace(config, optimization=longer), tmp_path / "run", resume=True)
    assert (tmp_path / "run/config.toml").read_text() == text
    more = replace(config.optimization, steps=ended + 8)
    with pytest.raises(ValueError, match=r"new folder$"):  # with no word of restarts
        fit(replace(config, optimization=more), tmp_path / "run", resume=True)


def test_a_longer_run_of_other_rows_is_refused_and_leaves_the_configuration(small, tmp_path):
    fit(small, tmp_path / "run")
    text = (tmp_path / "run/config.toml").read_text()
    path, ended = tmp_path / "small.csv", small.optimization.steps
    path.write_text(path.read_text().replace("e+00", "e-01", 5))
    longer = replace(small.optimization, steps=ended + 8, restarts=(ended,))
    with pytest.raises(
        ValueError, match=r"expected the data that the run in .* began with, got other data"
    ):
        fit(replace(small, optimization=longer), tmp_path / "run", resume=True)
    assert (tmp_path / "run/config.toml").read_text() == text


@pytest.fixture
def small(tmp_path):
    r"""A table so small, and a rate so high, that its rows are soon known by heart."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).numpy()
    np.savetxt(tmp_path / "small.csv", x, delimiter=",")
    base = table_config(str(tmp_path / "small.csv"))
    return replace(
        base,
        network=Network(width=16, layers=3, confine=3.0),
        optimization=Optimization(32, 24, 0.03, schedule="constant", ema=0.5),
        evaluate=4,
    )


JUDGE = TableTask.judge


def scripted(monkeypatch, values):
    r"""Makes the held-out divergences of the next evaluations the given ones."""
    left = iter(values)
    fake = lambda *args: {**JUDGE(*args), "divergence": next(left)}
    monkeypatch.setattr(TableTask, "judge", fake)


def same(lines):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_the_best_is_read_and_the_last_is_resumed(small, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, line):
        if done == 24 and line:
            raise Stop

    whole = fit(small, tmp_path / "whole")
    assert whole.chosen < 24, "expected a run that gets worse before it is stopped"
    with pytest.raises(Stop):
        fit(small, tmp_path / "parts", progress=stop)
    parts = fit(small, tmp_path / "parts", resume=True)
    assert (parts.step, parts.chosen) == (32, whole.chosen)
    assert same(parts.metrics) == same(whole.metrics)
    a, b = (read_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert a.best is not None and b.best is not None and a.best.card == b.best.card
    for x, y in ((a.model, b.model), (a.average, b.average), (a.best.weights, b.best.weights)):
        assert all(torch.equal(x[k], y[k]) for k in x)
    # what is read is the best, not the last
    read = whole.energy.energy.state_dict()
    assert all(torch.equal(read[k], a.best.weights[k]) for k in read)
    assert not all(torch.equal(read[k], a.average[k]) for k in read)


def test_patience(small, tmp_path, monkeypatch):
    scripted(monkeypatch, [3.0, 1.0, 2.0, 1.0, 1.5])
    run = fit(replace(small, patience=2), tmp_path / "run")
    assert (run.step, run.chosen) == (16, 8)  # as good is not better
    again = fit(replace(small, patience=2), tmp_path / "run", resume=True)
    assert (again.step, again.chosen) == (16, 8) and again.metrics == run.metrics
    scripted(monkeypatch, [3.0, 4.0, 2.0, 4.0, 1.0, 4.0, 0.5, 4.0])
    run = fit(replace(small, patience=2), tmp_path / "late")
    assert (run.step, run.chosen) == (32, 28)


def test_stopped_at_an_evaluation_it_is_judged_all_the_same(small, tmp_path):
    def interrupt(at):
        def progress(done, line):
            if done == at and not line:
                signal.raise_signal(signal.SIGINT)

        return progress

    whole = fit(small, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(small, tmp_path / "run", progress=interrupt(3))
    with pytest.raises(ValueError, match=r"chosen by validation rows, got none: .*; resume it"):
        load(tmp_path / "run")
    with pytest.raises(Interrupted):
        fit(small, tmp_path / "run", resume=True, progress=interrupt(8))
    assert load(tmp_path / "run").metrics[-1]["step"] == 8
    run = fit(small, tmp_path / "run", resume=True)
    assert same(run.metrics) == same(whole.metrics) and run.chosen == whole.chosen


def test_a_divergence_that_is_not_finite_is_no_best(small, tmp_path, monkeypatch):
    scripted(monkeypatch, [3.0, None])
    with pytest.raises(Diverged, match=r"divergence is not finite after step 8; .* kept"):
        fit(small, tmp_path / "run")
    assert load(tmp_path / "run").chosen == 4


def test_a_changed_file_is_named(small, tmp_path, capsys):
    run = fit(small, tmp_path / "run")
    path = tmp_path / "small.csv"
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(ValueError, match=r"expected the rows that were trained on, got others"):
        run.loaded()
    with pytest.raises(ValueError, match=r"expected the data that the run in .* began with"):
        fit(small, tmp_path / "run", resume=True)


def test_a_command_says_that_it_stopped_early(small, tmp_path, capsys, monkeypatch):
    scripted(monkeypatch, [3.0, 1.0, 2.0, 2.5, 4.0])
    sizes = ("--steps", "5", "--batch", "16", "--width", "8", "--evaluate", "1", "--patience", "2")
    main(["train", "table", "--data", small.data.path, *sizes, "--out", str(tmp_path / "r")])
    said = capsys.readouterr().out
    assert "stopped after step 4: 2 evaluations brought no better one" in said
    assert "by the weights of step 2 of 4, the best on the validation rows" in said


# --- the report ---


def test_report(run):
    page = write_report(run).read_text()
    assert page.count("data:image/png;base64,") == 4 and "://" not in page
    assert "prefers-color-scheme: dark" in page and "points.csv" in page
    assert f"weights of step {run.chosen} of 200, the best on the validation rows" in page
    assert "1600 / 200 / 200" in page and f"{run.judged['nll']:.3f} ±" in page
    assert f"<td>{run.judged['nll_gaussian']:.3f}</td>" in page
    assert "log Z is known to half a nat or better" in page and "R-hat" in page
    for picture in ("pairs.png", "log_density.png", "curves.png", "scores.png"):
        assert (run.path / picture).stat().st_size > 5000
    # the row that is least likely of all is the first of the unusual
    values = run.loaded().values
    least = int(run.energy(values).argmax())
    first = page[page.index("outlier score</th>") :].split("<td>")[1]
    assert first.startswith(f"{least + 1}<")


def test_report_of_odd_tables(tmp_path, capsys):
    # one column, whose name is HTML and half a formula
    x = torch.randn(40, generator=torch.Generator().manual_seed(0))
    x[6] = 30.0
    path = tmp_path / "odd.csv"
    path.write_text("\n".join(["<b>$x_$", *(f"{v:.6f}" for v in x)]))
    small = ("--steps", "2", "--batch", "16", "--width", "8", "--evaluate", "1")
    out = tmp_path / "r"
    main(["train", "table", "--data", str(path), *small, "--out", str(out)])
    assert f"report: {out}/report.html" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "<b>" not in page and "<td>7</td>" in page  # the outlier, by its number in the file
    (out / "report.html").unlink()
    main(["report", str(out)])
    assert (out / "report.html").read_text() == page
