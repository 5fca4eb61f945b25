r"""Tables: mixtures at every level, columns, estimators, explanations."""

import copy
import math
import numpy as np
import pandas as pd
import pickle
import pytest
import torch

from conftest import standard_error, three_modes
from fokker.analytic import GaussianMixture
from fokker.diffusions import EDM
from fokker.metrics.attribution import contributions, p_values, threshold
from fokker.tables import EnergyDensity, EnergyOutlier, mixture, scaling, surprise
from fokker.tables.columns import Columns, Names
from fokker.tables.correction import Corrected, Learning, learn
from fokker.tables.mixture import (
    Clusters,
    Rows,
    Stack,
    leading,
    log_sum_exp,
    most_rows,
    spacing,
)
from fokker.tables.scaling import NormalScores, count
from fokker.tables.stacking import mixing, stack
from fokker.tables.surprise import Expert, Surprise
from scipy.stats import kstest, norm, rankdata
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks


@parametrize_with_checks([EnergyOutlier(), EnergyDensity()])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


# --- mixtures ---


def clusters_of(mixture):
    return Clusters(mixture, torch.zeros(2))


def rows_of(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("level", [0.0, 0.3, 2.0])
def test_clusters_are_the_mixture_with_noise(level):
    mixture, x = three_modes(), rows_of(50, 2)
    exact = mixture.diffuse(EDM(), level)(x) if level else mixture(x)
    assert torch.allclose(clusters_of(mixture)(x, level), exact)


@pytest.mark.parametrize("level", [0.0, 0.3])
def test_rows_are_a_mixture_with_a_gaussian_at_each(level):
    rows, x = rows_of(9, 3), rows_of(5, 3, 1)
    exact = GaussianMixture(rows, 0.2**2 + level**2)(x)
    assert torch.allclose(Rows(rows, 0.2)(x, level), exact)
    shaped = Rows.shaped(rows, 1.0, 0.01)
    variances = shaped.width.square() + level**2
    covariance = (shaped.directions * variances) @ shaped.directions.T
    assert torch.allclose(shaped(x, level), GaussianMixture(rows, covariance)(x))


def energies():
    generator = torch.Generator().manual_seed(0)
    wide = rows_of(100, 80)
    rows = rows_of(40, 2)
    parts = [clusters_of(three_modes()), Rows(rows, 0.3), Rows.shaped(rows, 0.5, 0.01)]
    return [*parts, Stack(parts, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)),
            Clusters.fit(wide, 2, 0.1, 5, generator)]  # fmt: skip


@pytest.mark.parametrize("energy", energies(), ids=lambda e: type(e).__name__)
def test_scores_are_gradients(energy):
    dim = (
        80
        if getattr(energy, "directions", None) is not None and energy.directions.shape[0] > 2
        else 2
    )
    x = rows_of(6, dim, 3).requires_grad_()
    for level in (torch.tensor(0.0), torch.tensor(0.4), torch.rand(6) + 0.1):
        (gradient,) = torch.autograd.grad(energy(x, level).sum(), x)
        assert torch.allclose(energy.score(x.detach(), level), -gradient, atol=1e-10)


def test_clusters_of_many_columns_integrate_to_one():
    energy = energies()[-1]
    generator = torch.Generator().manual_seed(1)
    x = energy.sample(4000, generator)
    other = Rows(torch.zeros(1, 80), 1.3)
    ratio = torch.exp(energy(x) - other(x))  # its mean is the integral of the other
    assert abs(ratio.mean() - 1) <= 5 * standard_error(ratio) + 1e-12 or ratio.max() < 1
    # the moments of the samples are those of the rows
    rows = rows_of(100, 80)
    assert (x.mean(0) - rows.mean(0)).abs().max() <= 6 * x.std(0).max() / 4000**0.5


def test_stack_samples_its_parts_by_their_weights():
    low, high = Rows(torch.full((1, 1), -5.0), 0.1), Rows(torch.full((1, 1), 5.0), 0.1)
    stack = Stack([low, high], torch.tensor([3.0, 1.0]))
    x = stack.sample(4000, torch.Generator().manual_seed(0))
    share = (x < 0).double().mean()
    assert abs(share - 0.75) <= 5 * math.sqrt(0.75 * 0.25 / 4000)


def test_a_row_is_judged_without_itself():
    rows = rows_of(30, 4)
    energy = Rows(rows, 0.3)
    alone = torch.stack([
        Rows(torch.cat([rows[:i], rows[i + 1 :]]), 0.3)(rows[i : i + 1])[0] for i in range(30)
    ])
    assert torch.allclose(energy(rows, apart=True) - math.log(30), alone - math.log(29))


@pytest.mark.parametrize("kind", ["rows", "clusters"])
def test_wide_rows_are_scored_in_float32_where_that_is_enough(kind):
    r"""Rows near and far, offset by 30 standard deviations in one column."""
    rows = rows_of(300, 40)
    rows[::7, 0] += 30.0
    energy = Rows(rows, 0.8) if kind == "rows" else Clusters.fit(rows, 3, 0.2, 3, None)
    expert = Expert(kind, energy)
    x = torch.cat([rows[:50], rows_of(50, 40, 1), 1e4 * rows_of(3, 40, 2), 1e9 * rows[:2]])
    for apart in (False, True):
        exact, found = expert.exact(x, apart), expert.energies(x, apart)
        assert found.dtype == torch.float64 and not torch.equal(found, exact)
        assert torch.allclose(found, exact, rtol=1e-5, atol=0.02)


def test_terms_that_are_nothing_do_not_count():
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[0.0, 1.0, -50.0], [3.0, -2000.0, 3.0], [-math.inf, 5.0, -100.0]])
        x = torch.cat([x, x.new_full((1, 3), -math.inf)]).to(dtype).requires_grad_()
        found = log_sum_exp(x)
        assert torch.equal(found, torch.logsumexp(x, 1))
        assert torch.isinf(found[3])
        (slope,) = torch.autograd.grad(found[:3].sum(), x)
        assert torch.allclose(slope[:3], torch.softmax(x[:3], 1))


@pytest.mark.parametrize("numbers", [2**18, 1])
def test_energies_of_one_level_are_those_of_a_level_for_each_point(monkeypatch, numbers):
    r"""The former are whitened once; in blocks of one point, too."""
    monkeypatch.setattr(mixture, "NUMBERS", numbers)
    x = rows_of(200, 70)
    each = torch.full((len(x),), 0.3, dtype=torch.float64)
    for energy in (Clusters.fit(x, 4, 0.05, 5, None), Rows(x, 0.5)):
        assert torch.allclose(energy(x, 0.3), energy(x, each), rtol=1e-12)


def test_blocks_do_not_change_the_surprise(monkeypatch):
    x = np.concatenate(
        [np.random.default_rng(0).normal(size=(300, 40)), np.full((300, 2), 7.0)], 1
    )
    detector = EnergyOutlier().fit(x)
    new = np.random.default_rng(1).normal(size=(150, 42)) * np.linspace(0.1, 60, 150)[:, None]
    whole = detector.score_samples(new)
    sizes = {
        mixture: {"NUMBERS": 999},
        surprise: {"BLOCK": 777},
        scaling: {"CELLS": 50, "MANY": 7},
    }
    for module, constants in sizes.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    np.testing.assert_allclose(detector.score_samples(new), whole, rtol=1e-5)


@pytest.mark.parametrize("knots", [1, 2, 3, 7, 8, 9, 100, 1000])
def test_knots_are_counted_as_by_searchsorted(knots):
    r"""Repeated ones, and values at them, beyond them and infinite ones."""
    generator = torch.Generator().manual_seed(knots)
    levels = torch.randint(-20, 20, (5, knots), generator=generator).double().sort(1).values
    y = torch.randint(-25, 25, (5, 60), generator=generator).double()
    y[:, ::2] += 0.5
    y[:, :2] = torch.tensor([math.inf, -math.inf], dtype=torch.float64)
    assert torch.equal(count(levels, y), torch.searchsorted(levels, y, right=True))


def test_leading_directions_are_those_of_the_singular_vectors():
    for n in (60, 300):  # fewer rows than columns, and more
        x = rows_of(n, 90) * torch.linspace(3, 0.1, 90)
        center, directions, variance = leading(x)
        _, singular, basis = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        assert directions is not None
        r = directions.shape[1]
        assert r == min(n - 1, 64) and torch.allclose(center, x.mean(0))
        projector = basis[:r].T @ basis[:r]
        assert torch.allclose(directions @ directions.T, projector, atol=1e-8)
        rest = float(singular[r:].square().sum()) / (n * (90 - r))
        assert variance == pytest.approx(rest, abs=1e-9)


def test_few_rows_of_many_columns_are_kept():
    assert [most_rows(d) for d in (10, 75, 150, 3000)] == [2000, 2000, 1000, 500]
    assert most_rows(3000, 20) == 20
    detector = EnergyOutlier().fit(np.random.default_rng(0).normal(size=(900, 700)))
    expert = detector.surprise_.experts["rows"]
    assert isinstance(expert, Expert) and isinstance(expert.energy, Rows)
    assert len(expert.energy.rows) == 500


def test_a_row_far_from_all_others_is_not_impossible():
    rows = rows_of(400, 3)
    density = stack(rows, torch.Generator().manual_seed(0))
    assert (
        float(density(torch.tensor([[12.0, 0.0, 0.0]]))) < 25
    )  # of the mixture alone 70 and more
    assert float(density.weights[0]) >= 1 / 402
    test = rows_of(2000, 3, 1)
    truth = test.square().sum(1) / 2 + 1.5 * math.log(2 * math.pi)
    assert abs(float((density(test) - truth).mean())) < 0.1


def test_spacing_of_a_grid():
    assert spacing(torch.arange(20.0)[:, None], neighbor=2) == pytest.approx(1.0)


def test_normal_scores_are_those_of_the_ranks():
    x = torch.exp(rows_of(999, 1))
    scores = NormalScores(x)(x)[:, 0].numpy()
    ranks = norm.ppf(((rankdata(x[:, 0]) - 1) / 998).clip(norm.cdf(-4), norm.cdf(4)))
    assert np.allclose(scores, (ranks - ranks.mean()) / ranks.std(), atol=1e-8)
    steps = torch.tensor([[0.0]] * 6 + [[1.0]] * 4)  # repeated values take the middle
    low, high = NormalScores(steps)(torch.tensor([[0.0], [1.0]]))[:, 0].tolist()
    assert low < 0 < high


def test_weights_of_a_stack_maximize_the_likelihood():
    x = three_modes().sample(2000, torch.Generator().manual_seed(0))
    parts = [three_modes(), GaussianMixture(torch.zeros(1, 2), 25.0)]
    weights = mixing(torch.stack([-p(x) for p in parts], 1))
    assert weights[0] > 0.97


# --- the correction ---


def test_a_correction_is_kept_where_it_is_a_gain():
    generator = torch.Generator().manual_seed(0)
    x = three_modes().sample(1200, generator)
    base = Clusters.fit(x, 1, 0.1, 5, generator)
    settings = Learning(steps=200, rate=5e-3)
    found = learn(base, x[:1000], x[1000:], 0.2, 0, settings)
    assert found.used and found.gain > 5 * found.error and isinstance(found.energy, Corrected)
    truth = three_modes().diffuse(EDM(), 0.3)
    y = truth.sample(1000, generator)
    miss = lambda e: (e.score(y, 0.3) - truth.score(y)).square().sum(1).mean()
    z = y.clone().requires_grad_()
    (g,) = torch.autograd.grad(found.energy(z, 0.3).sum(), z)
    assert (-g - truth.score(y)).square().sum(1).mean() < miss(base) / 2


def test_the_base_is_kept_where_it_is_the_truth():
    x = three_modes().sample(700, torch.Generator().manual_seed(0))
    base = clusters_of(three_modes())
    found = learn(base, x[:500], x[500:], 0.1, 0, Learning(steps=100))
    assert not found.used and found.energy is base


# --- columns ---


def frame(n=60, seed=0):
    rng = np.random.default_rng(seed)
    color = np.where(rng.random(n) < 0.5, "red", "blue")
    return pd.DataFrame(
        {"size": rng.normal(size=n), "color": color, "weight": rng.normal(1e9, 1e-3, size=n)},
        index=[f"id{k}" for k in range(n)],
    )


def test_columns_of_a_frame():
    table = frame()
    table.loc["id3", "size"] = np.nan
    columns = Columns.fit(table)
    z = columns.encode(table)
    assert z.shape == (60, 5) and columns.owners == (0, 0, 1, 1, 2)
    assert z[3, 1] == 1 and abs(z[:, 4].std() - 1) < 1e-3
    back = columns.decode(z)
    assert back[3]["size"] is None and back[5]["color"] == table["color"].iloc[5]
    assert back[5]["weight"] == pytest.approx(table["weight"].iloc[5], rel=1e-12)
    # two categories are as far apart as two average numbers: a squared distance of 2
    red, blue = (z[(table["color"] == c).to_numpy()][0, 2:4] for c in ("red", "blue"))
    assert ((red - blue) ** 2).sum() == 2


def test_a_column_of_identifiers_is_left_out():
    table = frame()
    named = table.assign(owner=[f"owner {k}" for k in range(60)])
    with pytest.warns(Names, match="left out, as their texts tell single rows apart: 'owner'"):
        detector = EnergyOutlier().fit(named)
    expected = EnergyOutlier().fit(table).score_samples(table)
    assert np.array_equal(detector.score_samples(named), expected)  # and without a warning
    with pytest.raises(ValueError, match="got only 'owner', of texts that tell rows apart"):
        EnergyOutlier().fit(named[["owner"]])


def test_columns_that_are_constant_keep_their_value():
    table = frame()[["size"]].assign(none=np.nan, kind="one")
    density = EnergyDensity().fit(table)
    alone = EnergyDensity().fit(table[["size"]])
    # a column that says nothing changes no likelihood, and is drawn as it was
    assert np.allclose(density.score_samples(table), alone.score_samples(table[["size"]]))
    drawn = density.sample(3)
    assert [list(row[1:]) for row in drawn] == [[None, "one"]] * 3


def test_an_array_has_the_coordinates_of_its_frame():
    table = frame()
    table.loc["id3", "size"] = np.nan
    codes = (table["color"] == "red").astype(float)
    array = np.c_[table["size"], codes, table["weight"]]
    columns = Columns.fit(array, list(table.columns), ((), ("blue", "red"), ()))
    assert np.array_equal(columns.encode(array), Columns.fit(table).encode(table))
    assert np.allclose(columns.numbers(columns.encode(array)), array, rtol=1e-12, equal_nan=True)


def test_columns_are_matched_by_name():
    table = frame()
    detector = EnergyOutlier().fit(table)
    scores = detector.score_samples(table)
    other = table[["weight", "color", "size"]].assign(more=1.0)
    with pytest.warns(Names, match="ignored columns: 'more'"):
        assert np.allclose(detector.score_samples(other), scores)
    with pytest.raises(ValueError, match="got no 'color'"):
        detector.score_samples(table.drop(columns="color"))


def test_ids_of_a_frame_are_kept():
    table = frame()
    scores = EnergyOutlier().fit(table).scores(table)
    assert list(scores.index) == list(table.index)
    assert list(scores.columns) == ["score", "p_value", "outlier"]


def test_an_infinite_number_is_named():
    table = frame()
    table.loc["id3", "size"] = np.inf
    with pytest.raises(ValueError, match="finite numbers in column 'size'"):
        EnergyOutlier().fit(table)


# --- tables that other methods fail on ---


def hard_tables():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(60, 3))
    return {
        "constant": np.c_[normal, np.full(60, 7.0)],
        "near-constant": np.c_[normal, np.r_[np.zeros(59), 1e-9]],
        "duplicates": np.repeat(normal[:5], 12, axis=0),
        "integers": rng.integers(0, 3, size=(60, 4)).astype(float),
        "heavy tails": rng.standard_cauchy(size=(60, 3)) ** 3,
        "offsets": np.c_[1e9 + 1e-3 * normal[:, 0], 1e-9 * normal[:, 1], 1e300 * normal[:, 2]],
        "two rows": normal[:2],
        "one row twice": np.ones((2, 3)),
        "wide": rng.normal(size=(20, 300)),
        "missing": np.where(rng.random((60, 3)) < 0.2, np.nan, normal),
        "one column": normal[:, :1],
    }


@pytest.mark.parametrize("name", list(hard_tables()))
def test_any_table_fits(name):
    x = hard_tables()[name]
    for contamination in ("auto", 0.0, 0.1):
        detector = EnergyOutlier(contamination).fit(x)
        assert np.isfinite(detector.score_samples(x)).all()
        assert np.isfinite(detector.score_samples(x + 1.0)).all()
    density = EnergyDensity().fit(x)
    assert np.isfinite(density.score_samples(x)).all()
    assert density.sample(3).shape == (3, x.shape[1])


def test_a_row_that_differs_in_a_constant_column_is_odd():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(200, 2)), np.full(200, 5.0)]
    odd = np.array([[0.0, 0.0, 6.0]])
    assert EnergyOutlier().fit(x).predict(odd) == -1
    density = EnergyDensity().fit(x)
    assert density.score_samples(odd) < density.score_samples(x).min()


# --- signs ---


def two_groups(seed=0):
    rng = np.random.default_rng(seed)
    train, normal = rng.normal(size=(300, 4)), rng.normal(size=(200, 4))
    odd = rng.normal(3.0, 1.0, size=(20, 4))
    return train, np.concatenate([normal, odd]), np.r_[np.zeros(200), np.ones(20)]


def test_scores_are_low_for_outliers_here_and_high_in_pyod():
    from fokker.tables.pyod import EnergyDetector

    train, x, odd = two_groups()
    detector = EnergyOutlier().fit(train)
    for low in (detector.score_samples(x), detector.decision_function(x), detector.p_values(x)):
        assert roc_auc_score(odd, -low) > 0.95
    assert roc_auc_score(odd, -EnergyDensity().fit(train).score_samples(x)) > 0.95
    assert set(detector.predict(x[odd == 1])) == {-1}
    other = EnergyDetector().fit(train)
    assert roc_auc_score(odd, other.decision_function(x)) > 0.95
    assert other.predict(x[odd == 1]).mean() > 0.9


def test_the_stated_share_of_rows_is_predicted():
    train, _, _ = two_groups()
    detector = EnergyOutlier(0.1).fit(train)
    assert (detector.labels_ == -1).sum() == (detector.predict(train) == -1).sum() == 30


@pytest.mark.parametrize("value", [-0.1, 0.6, "many", float("nan")])
def test_a_share_that_is_none(value):
    with pytest.raises(ValueError, match="expected contamination"):
        EnergyOutlier(value).fit(np.zeros((9, 2)))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_alarm_rate_that_is_none(value):
    with pytest.raises(ValueError, match="expected alarm_rate"):
        EnergyOutlier(alarm_rate=value).fit(np.zeros((9, 2)))


# --- answers ---


def test_p_values_and_thresholds():
    reference = torch.arange(1.0, 100.0)  # 99 held-out rows
    values = torch.tensor([0.0, 50.0, 1e9])
    assert torch.allclose(p_values(reference, values), torch.tensor([1.0, 0.51, 0.01]))
    limit, error = threshold(reference, 0.05)
    assert limit == 95 and error == pytest.approx(math.sqrt(0.05 * 0.95 / 99))


def test_p_values_of_normal_rows_are_uniform():
    rng = np.random.default_rng(0)
    detector = EnergyOutlier(0.0).fit(rng.normal(size=(800, 3)))
    p = detector.p_values(rng.normal(size=(1000, 3)))
    assert kstest(p, "uniform").statistic < 5 * math.sqrt(1 / 1000 + 1 / 800) / 2
    alarms = (detector.predict(rng.normal(size=(1000, 3))) == -1).mean()
    error = math.hypot(detector.alarm_rate_error_, math.sqrt(0.05 * 0.95 / 1000))
    assert abs(alarms - 0.05) <= 5 * error


def test_contributions_add_up_and_are_exact_of_a_quadratic():
    scale = torch.tensor([1.0, 4.0, 0.5])
    x, start = rows_of(7, 3), rows_of(7, 3, 1)
    surprise = lambda y: (scale * y.square()).sum(1)
    parts = contributions(surprise, x, start)
    exact = scale * (x.square() - start.square())
    assert torch.allclose(parts, exact, atol=1e-3, rtol=1e-3)


def test_the_odd_column_is_found():
    rng = np.random.default_rng(0)
    a = rng.normal(size=500)
    train = np.c_[a, a + 0.1 * rng.normal(size=500), rng.normal(size=(500, 3))]
    detector = EnergyOutlier(0.0).fit(train)
    odd = train[:50].copy()
    which = np.arange(50) % 5
    odd[np.arange(50), which] += 6.0
    found = detector.explain(odd)
    first = np.array([{f"x{j}": j for j in range(5)}[r[0][0]] for r in found.reasons()])
    independent = which >= 2
    assert (first[independent] == which[independent]).all()
    assert (first[~independent] < 2).all()  # of two columns that agree, one is odd
    assert found.p_value.max() <= 0.02
    z = torch.from_numpy(detector.columns_.encode(train[found.index]))
    with torch.no_grad():
        rise = found.surprise - detector.surprise_(z).numpy()
    total = found.contributions.sum(1)
    assert np.allclose(total, rise)
    back = np.array([list(row.values()) for row in found.nearest])
    assert np.allclose(back, train[found.index])


# --- the ecosystem ---


def test_pipelines_searches_clones_and_pickles():
    train, x, _ = two_groups()
    line = make_pipeline(StandardScaler(), EnergyDensity()).fit(train)
    search = GridSearchCV(line, {"energydensity__correction": [False]}, cv=3).fit(train)
    assert np.isfinite(search.best_score_)
    detector = EnergyOutlier().fit(train)
    for other in (pickle.loads(pickle.dumps(detector)), copy.deepcopy(detector)):
        assert (other.score_samples(x) == detector.score_samples(x)).all()
    assert (clone(detector).fit(train).score_samples(x) == detector.score_samples(x)).all()


def test_densities_are_normalized_and_near_the_truth():
    truth = three_modes()
    generator = torch.Generator().manual_seed(0)
    train, test = truth.sample(2000, generator), truth.sample(2000, generator)
    units = torch.tensor([10.0, 0.1])
    density = EnergyDensity().fit((units * train).numpy())
    logs = density.score_samples((units * test).numpy()) + math.log(10 * 0.1)
    gap = -truth(test).numpy() - logs
    assert gap.mean() < 0.05 and gap.mean() > -5 * gap.std() / 2000**0.5
    assert density.log_z_ == 0
    drawn = density.sample(4000)
    error = 5 * (units * train).std(0).numpy() * math.sqrt(1 / 4000 + 1 / 2000)
    assert (np.abs(drawn.mean(0) - (units * train).mean(0).numpy()) < error).all()


def test_the_core_does_not_know_a_group_of_odd_rows():
    rng = np.random.default_rng(0)
    group = rng.normal(6.0, 0.05, size=(15, 3))
    train = torch.from_numpy(np.concatenate([rng.normal(size=(285, 3)), group]))
    odd, normal = torch.from_numpy(group), train[:285]
    blind = Surprise.fit(train, 0.0, correct=False)
    aware = Surprise.fit(train, 0.1, correct=False)
    gap = lambda s: float(s(odd, apart=True).mean() - s(normal, apart=True).mean())
    assert gap(aware) > 2 and gap(aware) > gap(blind) + 1
