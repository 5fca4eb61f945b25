r"""The studies of forms, of CD with its term, and of the parts of the multi-time divergence."""

import math
import pytest
import torch

from fokker.objectives import Bridge, Central, Limit, LogNormal, MultiTimeDCD, levels
from pathlib import Path
from studies import ablation, cd, results, tables, variance
from studies.tables.cost import form_label
from studies.tables.planar import ablation_matrix, cd_matrix

ROOT = Path(__file__).parents[1]


def test_a_ratio_and_its_error():
    ratio, error = variance.jackknife([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (ratio, error) == (2.0, 0.0)
    generator = torch.Generator().manual_seed(0)
    below = 1 + torch.rand(400, generator=generator)
    above = 3 * below + torch.randn(400, generator=generator)
    ratio, error = variance.jackknife(above.tolist(), below.tolist())
    assert abs(ratio - 3) < 5 * error
    assert error == pytest.approx(1 / 400**0.5 / float(below.mean()), rel=0.15)


def test_moments_of_a_gradient():
    r"""Variance by pairs, and a bias without that of the noise, on known numbers."""
    generator, n, d = torch.Generator().manual_seed(0), 4000, 3
    own = variance.Moments()
    for _ in range(n):
        limit = torch.randn(d, generator=generator)
        own.add(limit + 0.3 + 0.5 * torch.randn(d, generator=generator), limit)
    spread = sum(own.spreads) / len(own.spreads)
    assert spread == pytest.approx(d * 1.25, rel=0.1)
    square, noise = own.bias(n)
    assert square == pytest.approx(d * 0.09, rel=0.15)
    assert noise == pytest.approx(d * 0.25 / n, rel=0.1)


def test_every_form_learns_the_same_levels():
    for form in variance.FORMS:
        moved = variance.objective_of(form, LogNormal(-1.0, 1e-9))
        level = moved.pair(torch.zeros(4, 2), None).level
        assert torch.allclose(level, torch.full((4,), -1.0).exp())
    assert {type(form) for form in variance.FORMS} == set(levels.FORMS.values())


def test_what_is_said_of_the_variance():
    rows = results.load(ROOT / "results/variance.json")["rows"]
    for row in rows:
        assert {"net", "dimension", "form", "step", "precision", "variance", "bias"} <= set(row)
    net = {(form_label(row), row["precision"]): row for row in rows if row["net"] != "two modes"}
    for precision in ("float32", "bfloat16"):
        for label in ("central", "bridge, r = 0.02"):
            assert net[label, precision]["variance"] <= 1.2
    assert net["bridge, r = 0.02, not moved apart", "bfloat16"]["variance"] > 2
    modes = {(form_label(row), row["dimension"]): row for row in rows if row["net"] == "two modes"}
    assert modes["bridge, r = 0.02", 3072]["bias"] < 0.01  # of the Fisher information


def test_the_study_on_two_modes():
    torch.set_default_dtype(torch.float64)
    rows = variance.two_modes((256,), 4, lambda line: None)
    assert [row["form"] for row in rows[:2]] == ["limit", "central"]
    assert rows[0]["variance"] == 1 and rows[0]["precision"] == "float64"
    assert tables.render("<!-- results:variance -->\n<!-- /results -->", ROOT).count("bridge") == 4


def test_the_sum_of_two_objectives():
    torch.manual_seed(0)
    x, whole = torch.randn(32, 2), MultiTimeDCD(points=8)
    both = ablation.Both(whole.short, whole.long, whole.weight, 8)
    energy = lambda p: p.square().sum(1) + torch.cos(p).sum(1)
    a, b = (o(energy, x, None, torch.Generator().manual_seed(1)).loss for o in (whole, both))
    assert torch.allclose(a, b)


@pytest.mark.slow
def test_the_studies_in_small(tmp_path):
    torch.set_default_dtype(torch.float32)
    own = {"steps": 2, "batch": 64, "width": 8, "sets": ("moons",), "seeds": (0, 1)}
    rows = ablation.run(tmp_path / "a.json", **own)
    assert len(rows) == 2 * len(ablation.ARMS)
    assert ablation.run(tmp_path / "a.json", **own) == rows  # nothing is trained again
    assert "short only" in ablation_matrix(rows)
    rows = cd.run(tmp_path / "c.json", **own)
    trials = sum(len(values) for values in cd.METHODS.values())
    assert len([r for r in rows if r["trial"] == "tuning"]) == trials
    assert len([r for r in rows if r["trial"] == "chosen"]) == len(cd.METHODS)
    assert cd_matrix(rows).count("\n") == len(cd.METHODS) + 1


def test_the_choice_is_by_divergence_and_then_by_kl():
    (first, second, third, *_) = cd.METHODS["CD"]
    row = lambda value, kl, fell: {
        "method": "CD", "trial": "tuning", "value": value, "kl": kl, "diverged": fell
    }  # fmt: skip
    rows = [row(first, 0.1, False), row(first, None, True), row(second, 0.5, False)]
    rows += [row(second, 0.7, False), row(third, 0.4, False), row(third, 0.4, False)]
    rest = [row(v, None, True) for v in list(cd.METHODS["CD"])[3:]]
    assert cd.chosen([*rows, *rest, *rest], "CD") == third


def test_forms_are_named_in_rows():
    objective = variance.objective_of(Bridge())
    assert results.form_of(objective) == "Bridge(step=0.02, draws=1, shift=0.25)"
    assert results.form_of(MultiTimeDCD()) is None
    assert {type(f) for f in (Limit(), Central(), Bridge())} < set(levels.FORMS.values())


def test_what_is_said_of_the_term_of_cd():
    rows = results.load(ROOT / "results/cd.json")["rows"]
    own = {m: [r for r in rows if r["method"] == m] for m in cd.METHODS}
    fell = [(sum(r["diverged"] for r in group), len(group)) for group in own.values()]
    assert fell == [(5, 18), (5, 18), (5, 18), (0, 18)]
    kl = lambda m, data: [
        math.inf if r["diverged"] else r["kl"]
        for r in own[m]
        if (r["trial"], r["data"]) == ("chosen", data)
    ]
    plain, whole, other, _ = cd.METHODS
    for data in cd.SETS:
        assert sum(kl(whole, data)) < min(sum(kl(plain, data)), sum(kl(other, data)))
