r"""The studies of real tables, on a small one."""

import numpy as np
import pytest
import torch

from fokker.app.cli import main
from pathlib import Path
from studies import anomalies, likelihoods, merge, results, table_fits, table_sizes
from studies.ranking import critical_difference, draw, mean_ranks
from studies.tables.tabular import (
    anomaly_table,
    best_or_within,
    correction_table,
    fit_table,
    likelihood_rows,
    likelihood_table,
    paired,
    size_table,
    trial_table,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("4_a", "6_cardio"):
        x = np.concatenate([rng.normal(size=(150, 3)), rng.normal(3.0, 1.0, size=(30, 3))])
        np.savez(folder / f"{name}.npz", X=x, y=np.repeat([0, 1], [150, 30]))
    return folder


def test_settings_split_rows(folder):
    path = folder / "4_a.npz"
    normal, mixed = (anomalies.load(path, s, 0, 10_000) for s in anomalies.SETTINGS)
    assert normal.train.shape == (75, 3) and normal.odd.sum() == 30 and len(normal.test) == 105
    assert mixed.train.shape == (90, 3) and mixed.odd.sum() == 15
    few = anomalies.load(path, "normal", 0, 60)
    assert len(few.train) == 20 and few.odd.sum() == anomalies.ANOMALIES


def test_choices_were_made_on_every_second_set():
    assert len(anomalies.CHOSEN) == 15 and list(anomalies.CHOSEN) == sorted(anomalies.CHOSEN)


def test_methods_run_and_tables_render(folder, tmp_path):
    out, methods = tmp_path / "t.json", {"energy", "energy, told", "kNN", "MCD"}
    chosen = {name: m for name, m in anomalies.METHODS.items() if name in methods}
    names = [path.stem for path in anomalies.sets(folder)]
    said = []
    for _ in range(2):  # the second time, nothing is left
        anomalies.run(out, folder, chosen, names, seeds=(0,), progress=said.append)
    assert len(said) == 4
    rows = results.load(out)["rows"]
    assert len(rows) == 2 * 2 * len(methods) and not any(row["failed"] for row in rows)
    assert min(row["auroc"] for row in rows if row["method"] == "energy") > 90
    assert {row["part"] for row in rows} == {"chosen on", "reported"}


def test_a_share_of_the_study_is_named(folder, tmp_path, capsys):
    out = tmp_path / "share.json"
    share = ["reproduce", "tables", "--data", str(folder), "--out", str(out)]
    line = [*share, "--tables", "4_a", "--methods", "kNN", "--seeds", "3", "--rows", "100"]
    main(line)
    (normal, mixed) = results.load(out)["rows"]
    for row in (normal, mixed):
        assert (row["data"], row["method"], row["seed"], row["rows"]) == ("4_a", "kNN", 3, 100)
        assert row["commit"] and row["hardware"] and row["time"]
    with pytest.raises(SystemExit):
        main([*share, "--tables", "5_a"])
    assert (
        "expected a table at --tables, one of 4_a, 6_cardio, got '5_a'" in capsys.readouterr().err
    )


def test_a_failure_is_a_result(folder):
    def broken(train, test, seed):
        raise ValueError("no")

    split = anomalies.load(folder / "4_a.npz", "normal", 0, 100)
    row = anomalies.measure("kNN", broken, split, 0)
    assert row["failed"] and row["auroc"] is None and row["error"] == "no"


def test_likelihoods_run(folder, tmp_path):
    out = tmp_path / "l.json"
    chosen = {m: likelihoods.METHODS[m] for m in ("energy", "GMM by BIC", "KDE by CV")}
    likelihoods.run(out, folder, chosen, seeds=(0,))
    found = likelihood_rows(out)
    assert set(found) == {"4_a", "6_cardio"}
    for values in found.values():  # of a Gaussian, which ours must not miss by much
        assert values["energy"][0] > values["GMM by BIC"][0] - 0.3
    assert 0 <= best_or_within(found, "energy") <= 2 and "best, or within" in likelihood_table(out)


def test_a_spline_flow_learns(folder, monkeypatch):
    monkeypatch.setattr(likelihoods, "EPOCHS", 15)
    parts = likelihoods.prepare(folder / "4_a.npz", 0, 150)
    flow, broad = (likelihoods.METHODS[m](*parts, 0) for m in ("neural spline flow", "GMM by BIC"))
    assert flow.mean() > broad.mean() - 2.0


def test_tables_are_trained_on_as_a_user_would(folder, tmp_path):
    broken = tmp_path / "some"
    broken.mkdir()
    (broken / "4_a.npz").symlink_to(folder / "4_a.npz")
    np.savez(broken / "5_same.npz", X=np.ones((40, 2)), y=np.zeros(40))
    out = tmp_path / "fits.json"
    line = ["reproduce", "tables", "--data", str(broken), "--what", "fits", "--out", str(out)]
    main([*line, "--rows", "60"])
    whole, failed = rows = results.load(out)["rows"]
    assert (whole["data"], whole["rows"], whole["columns"], whole["most"]) == ("4_a", 60, 3, 60)
    assert whole["exit_code"] == 0 and not whole["failed"] and whole["megabytes"] > 0.01
    assert whole["seconds"] > 0 and whole["commit"] and whole["hardware"] and whole["time"]
    assert failed["failed"] and failed["exit_code"] == 2
    assert "5_same.csv: expected a column that varies" in failed["error"]
    assert "/" not in failed["error"]  # no path of this machine
    main([*line, "--rows", "60"])  # nothing is left
    assert results.load(out)["rows"] == rows
    main([*line, "--all-rows", "--tables", "4_a"])
    rows = results.load(out)["rows"]
    assert (rows[2]["rows"], rows[2]["most"]) == (180, None)
    assert len({merge.key_of(row, "tables_fits") for row in rows}) == 3
    seconds = [f"{row['seconds']:.1f}" for row in rows]
    shown = fit_table(out).splitlines()
    assert shown[2].startswith(f"| 60 | 1 of 2 | {seconds[0]} | {seconds[0]} (a, 60 x 3) |")
    assert shown[3].startswith(f"| all | 1 of 1 | {seconds[2]} |")


def test_all_rows_are_for_fits_alone(folder, capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "tables", "--data", str(folder), "--all-rows"])
    assert "expected --what fits with --all-rows, got --what anomalies" in capsys.readouterr().err


def test_a_fit_without_an_end_is_a_failure(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(table_fits, "LIMIT", 0.05)
    table_fits.write_csv(folder / "4_a.npz", tmp_path / "4_a.csv", None)
    found = table_fits.train(tmp_path / "4_a.csv", tmp_path / "run")
    assert found["failed"] and found["exit_code"] is None
    assert found["error"].strip("'\"").startswith("expected an end within")


def test_seconds_by_size_and_the_bound_of_the_products(tmp_path):
    out = tmp_path / "sizes.json"
    table_sizes.run(out, sizes=((30, 4), (60, 40)))
    content = results.load(out)
    assert content["config"]["gigaflops"] > 0
    for row in content["rows"]:
        for kind in ("outlier", "density"):
            million = row[f"{kind}_million_seconds"]
            assert 0 < row[f"{kind}_products_seconds"] < million  # a bound
    assert size_table(out).count("\n") == 3 and "products alone" in size_table(out)


def test_operations_of_a_score_are_counted():
    class Product:
        def score_samples(self, rows):
            torch.ones(len(rows), 7) @ torch.ones(7, 5)

    assert table_sizes.products(Product(), np.ones((3, 7))) == 2 * 7 * 5


def test_ranks_and_their_critical_difference():
    scores = {"a": {"x": 3.0, "y": 2.0}, "b": {"x": 1.0, "y": 2.0}, "c": {"x": 2.0, "y": 1.0}}
    ranks, n = mean_ranks(scores)
    assert n == 2 and ranks == {"a": 1.25, "b": 2.25, "c": 2.5}
    # Demsar (2006), table 5: q = 2.343 of three methods, at 5 %
    assert critical_difference(3, 30) == pytest.approx(2.343 * (12 / 180) ** 0.5, rel=1e-3)


def test_paired_differences():
    gap, error = paired({"x": 3.0, "y": 1.0, "z": 9.0}, {"x": 1.0, "y": 1.0})
    assert (gap, error) == (1.0, 1.0)


def test_tables_of_the_results(tmp_path):
    found = ROOT / "results"
    assert "EnergyOutlier" in anomaly_table(found / "tables.json")
    assert "rows, ranks, clusters" in trial_table(found / "tables_trials.json")
    assert correction_table(found / "tables_trials.json").count("\n") == 5
    draw(found / "tables.json", tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 10_000
