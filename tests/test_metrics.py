r"""Metrics against densities whose distance is known."""

import math
import pytest
import torch

from conftest import standard_error
from fokker.analytic import Gaussian, GaussianMixture, ring_of_gaussians
from fokker.data.planar import PLANAR
from fokker.derivatives import Hutchinson
from fokker.energies import Energy, Quadratic
from fokker.grid import Grid
from fokker.metrics import (
    density,
    evaluate_mixture,
    evaluate_planar,
    fisher_gap,
    log_normalizer,
    score_matching_loss,
    wasserstein,
)
from torch import tensor

NORMAL = Gaussian(torch.zeros(2, dtype=torch.float64), 1.0)


class Shifted(Energy):
    r"""An energy plus a constant: the same density."""

    def __init__(self, energy, c):
        super().__init__()
        self.energy, self.c = energy, c

    def forward(self, x):
        return self.energy(x) + self.c


@pytest.mark.parametrize(
    "name", ["moons", "rings", "8gaussians", pytest.param("2spirals", marks=pytest.mark.slow)]
)
def test_the_truth_is_perfect(name):
    data = PLANAR[name]()
    grid = Grid(-1.3, 1.3, 260)
    report = evaluate_planar(Shifted(data.energy(), 3.0), data, points=4000, grid=grid)
    assert report.fisher_gap == pytest.approx(0, abs=1e-8)
    assert report.kl == pytest.approx(0, abs=1e-6)
    assert report.off_mass == pytest.approx(1e-4, rel=0.2)
    x = data.sample(4000, torch.Generator().manual_seed(0), dtype=torch.float32)
    local = data.score(x).double().square().sum(1) / -2
    # by Stein's identity the loss at the truth is the optimum, up to the sample
    assert abs(report.sm_loss - report.optimum) < 10 * float(standard_error(local))


def test_checkerboard_without_noise():
    data = PLANAR["checkerboard"]()
    report = evaluate_planar(lambda x: (x / 2).square().sum(1), data, points=500)
    assert report.optimum == -math.inf and math.isnan(report.fisher_gap)
    assert math.isfinite(report.kl) and report.kl > 0.5
    assert 0.3 < report.off_mass < 1


def test_blind_spots_of_the_fisher_gap():
    # separated modes with wrong weights: a gap of nothing, a KL of log-ratios
    means = tensor([[-3.0], [3.0]])
    truth = GaussianMixture(means, 0.01)
    wrong = GaussianMixture(means, 0.01, tensor([0.97, 0.03]))
    x = truth.sample(2000, torch.Generator().manual_seed(0))
    assert fisher_gap(wrong, truth.score, x) < 1e-12
    grid = Grid(-4, 4, 2000, dim=1)
    kl = float(grid.kl(grid.evaluate(truth), grid.evaluate(wrong)))
    assert kl == pytest.approx(0.5 * math.log(0.5 / 0.97) + 0.5 * math.log(0.5 / 0.03), rel=1e-6)


def test_grid_kl_and_nll_of_gaussians():
    p, q = Gaussian(tensor([0.2, -0.1]), 0.4), Gaussian(tensor([0.0, 0.3]), 0.9)
    grid = Grid(-8, 8, 200)
    e = grid.evaluate(Shifted(q, -2.0))
    assert float(grid.log_normalizer(e)) == pytest.approx(2.0, abs=1e-9)
    assert float(grid.kl(grid.evaluate(p), e)) == pytest.approx(float(p.kl(q)), abs=1e-9)


def test_grid_chunks_do_not_matter():
    p, grid = Gaussian(tensor([0.2, -0.1]), 0.4), Grid(-3, 3, 30)
    assert torch.equal(grid.evaluate(p), grid.evaluate(p, chunk=7))
    assert float(grid.integrate(torch.ones(900))) == pytest.approx(36)


def test_fisher_gap_of_gaussians(generator):
    # for N(0, a) against N(0, b): |1/b - 1/a|^2 a / (1/a)
    p, q = Gaussian(torch.zeros(3), 0.5), Gaussian(torch.zeros(3), 0.7)
    x = p.sample(1000, generator)
    assert fisher_gap(q, p.score, x) == pytest.approx((1 - 0.5 / 0.7) ** 2, rel=1e-9)
    flat = lambda x: 0 * x.sum(1)
    assert fisher_gap(flat, p.score, x) == pytest.approx(1.0)


def test_score_matching_loss(generator):
    p = Gaussian(torch.zeros(2), 0.5)
    x = p.sample(20_000, generator)
    exact = (x / 0.5).square().sum(1) / 2 - 4.0
    assert score_matching_loss(p, x, chunk=999) == pytest.approx(float(exact.mean()), rel=1e-9)
    # the Hessian is diagonal: Rademacher probes are exact
    sliced = score_matching_loss(p, x, Hutchinson(), generator)
    assert sliced == pytest.approx(float(exact.mean()), rel=1e-9)


@pytest.mark.parametrize("D", [8, 64])
def test_mixture_report(D):
    truth = ring_of_gaussians(D, K=4, radius=3.0, std=0.5)
    truth = GaussianMixture(truth.means.double(), 0.25)
    same = evaluate_mixture(Shifted(truth, 5.0), truth, n=20_000)
    assert same.fisher_gap < 1e-20
    assert abs(same.kl) < 5 * same.kl_error + 1e-12
    tilted = GaussianMixture(truth.means, 0.25, tensor([0.4, 0.3, 0.2, 0.1]))
    report = evaluate_mixture(Shifted(tilted, 5.0), truth, n=20_000)
    exact = -sum(0.25 * math.log(w / 0.25) for w in (0.4, 0.3, 0.2, 0.1))
    assert abs(report.kl - exact) < 5 * report.kl_error
    assert report.kl > 10 * report.kl_error
    assert 0 < report.ess <= 1


def test_log_normalizer_sees_mass_just_off_the_data(generator):
    # a model twice as wide: importance sampling from the truth alone would be far off
    truth = GaussianMixture(torch.zeros(1, 8), 0.25)
    wide = Shifted(GaussianMixture(torch.zeros(1, 8), 1.0), 1.5)
    log_z, error, _ = log_normalizer(wide, truth, 50_000, generator)
    assert abs(float(log_z) + 1.5) < 5 * float(error)
    assert float(error) < 0.05


def test_log_normalizer_draws_in_the_shares_of_its_proposal(generator):
    # half, a quarter and a quarter, without which the weights are wrong: of 7 points, 2 + 1 + 1
    seen = []
    log_normalizer(lambda x: (seen.append(len(x)), NORMAL(x))[1], NORMAL, 7, generator)
    assert seen == [4]


def test_a_mixture_is_evaluated_in_pieces(monkeypatch):
    truth = GaussianMixture(torch.randn(5, 3), torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    find = lambda: log_normalizer(Quadratic(1.0), truth, 64, torch.Generator().manual_seed(1))
    whole, sizes, parts = find(), [], GaussianMixture.parts

    def seen(self, x):
        sizes.append(len(x))
        return parts(self, x)

    monkeypatch.setattr(GaussianMixture, "parts", seen)
    monkeypatch.setattr(density, "NUMBERS", 5 * 3 * 10)
    torch.testing.assert_close(find(), whole)
    assert max(sizes) == 10 and sum(sizes) == 3 * 64


def test_wasserstein(generator):
    x = torch.randn(60, 3, generator=generator)
    shift = tensor([0.3, -0.4, 1.2])
    assert wasserstein(x, x) == pytest.approx(0, abs=1e-6)
    assert wasserstein(x, x + shift) == pytest.approx(1.3)  # a translation costs its length
    assert wasserstein(x, x[torch.randperm(60)] + shift, p=1) == pytest.approx(1.3)
    line, other = torch.randn(50, 1, generator=generator), torch.randn(50, 1, generator=generator)
    sorted_cost = (line.sort(0).values - other.sort(0).values).square().mean().sqrt()
    assert wasserstein(line, other) == pytest.approx(float(sorted_cost))
    assert wasserstein(x[:20], x[:7] + shift) > 0  # sizes may differ


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wasserstein(torch.zeros(3, 2), torch.zeros(3, 1)), "got 2 and 1 coordinates"),
        (lambda: wasserstein(torch.zeros(3, 2), torch.zeros(3, 2), p=0.5), "p between 1 and inf"),
        (
            lambda: wasserstein(torch.zeros(3, 2), torch.ones(3, 2), math.inf),
            "p between 1 and inf",
        ),
        (lambda: Grid(-math.inf, math.inf), "finite numbers low < high"),
        (
            lambda: evaluate_planar(lambda x: x.sum(1), PLANAR["rings"](), 100, Grid(-3, 3, 60)),
            "expected a grid that resolves Rings",
        ),
        (lambda: wasserstein(torch.full((3, 2), math.nan), torch.zeros(3, 2)), "x to be finite"),
        (lambda: log_normalizer(NORMAL, NORMAL, 0), "n to be an integer >= 1, got 0"),
        (lambda: log_normalizer(NORMAL, NORMAL, 4.0), "n to be an integer >= 1, got 4.0"),
        (lambda: log_normalizer(NORMAL, NORMAL, 3), "n >= 4, .* got 3"),
        (lambda: evaluate_mixture(NORMAL, NORMAL, 3), "n >= 4, .* got 3"),
        (
            lambda: score_matching_loss(NORMAL, torch.ones(4, 2), chunk=0),
            "chunk to be an integer >= 1, got 0",
        ),
        (
            lambda: fisher_gap(NORMAL, NORMAL.score, torch.ones(4, 2), chunk=-1),
            "chunk to be an integer >= 1, got -1",
        ),
        (lambda: Grid().evaluate(NORMAL, chunk=0), "chunk to be an integer >= 1, got 0"),
        (lambda: Grid(1.0, 0.0), "expected finite numbers low < high"),
        (lambda: Grid(size=0), "size to be an integer >= 1, got 0"),
        (lambda: Grid(dim=3), "dim 1 or 2, got 3"),
        (lambda: Grid(dim=1).evolve(Gaussian(torch.zeros(1), 1.0), None, 1.0, 0.5), "0 <= s < t"),
        (
            lambda: fisher_gap(Gaussian(torch.zeros(2), 1.0), torch.zeros_like, torch.zeros(4, 2)),
            "score is not zero",
        ),
        (
            lambda: score_matching_loss(lambda x: x.sum(1), torch.tensor([[math.inf, 0.0]])),
            "x to be finite, got 1 of 1",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
