r"""Likelihoods by the flow, and Fokker–Planck residuals, against exact energies of every level."""

import math
import pytest
import torch

from conftest import Diffused, standard_error, three_modes
from fokker.analytic import GaussianMixture, ring_of_gaussians
from fokker.derivatives import Hutchinson
from fokker.diffusions import EDM
from fokker.energies import Function
from fokker.metrics import (
    bits_per_dimension,
    dequantize,
    fokker_planck_residual,
    log_likelihood,
)

PLANE = three_modes()
RING = GaussianMixture(ring_of_gaussians(8, K=5, radius=3.0).means.double(), 0.49)
mixtures = pytest.mark.parametrize("mixture", [PLANE, RING], ids=["2", "8"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def moments(mixture):
    r"""The mean and the variance of each coordinate."""
    w, spread = mixture.weights, torch.diagonal(mixture.covariances, dim1=1, dim2=2)
    mean = w @ mixture.means
    return mean, w @ (spread + mixture.means**2) - mean**2


def gaussian(x, sigma):
    r"""The energy of N(0, 2.25) with noise, by autograd, up to a constant of each level."""
    return x.flatten(1).square().sum(1) / (2 * (2.25 + sigma**2))


# Likelihood


@mixtures
@pytest.mark.parametrize("sigma", [0.002, 0.3])
def test_log_likelihood_of_a_mixture(mixture, sigma):
    x = mixture.diffuse(EDM(), sigma).sample(100, seeded())
    got = log_likelihood(Diffused(mixture), x, sigma, 200.0, *moments(mixture), tolerance=1e-6)
    exact = -mixture.diffuse(EDM(), sigma)(x)
    assert float((got.log_prob - exact).abs().max()) < 1e-3
    assert got.evaluations < 400


def test_the_prior_errs_by_the_square_of_the_last_level():
    x = PLANE.diffuse(EDM(), 0.3).sample(50, seeded())
    mean, variance = moments(PLANE)

    def miss(high):
        got = log_likelihood(
            Diffused(PLANE), x, 0.3, high, mean, float(variance.mean()), tolerance=1e-8
        )
        return float((got.log_prob + PLANE.diffuse(EDM(), 0.3)(x)).square().mean().sqrt())

    assert miss(20.0) / miss(40.0) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("shape", [(5, 1), (4, 3), (3, 1, 2, 2)])
def test_log_likelihood_of_a_gaussian(shape):
    x, sigma = torch.randn(*shape, generator=seeded()), 0.5
    law = torch.distributions.Normal(0.0, math.sqrt(2.25 + sigma**2))
    exact = law.log_prob(x).flatten(1).sum(1)
    for probes in (None, 1):  # a probe is exact where the Hessian is diagonal
        got = log_likelihood(gaussian, x, sigma, variance=2.25, probes=probes, tolerance=1e-8)
        torch.testing.assert_close(got.log_prob, exact, rtol=0, atol=1e-5)


def test_the_gap_to_the_energy_is_its_normalizer():
    r"""With a constant c(sigma) added, E has log Z = -c, and the flow does not see it."""
    exact = Diffused(PLANE)
    shifted = Function(lambda x, s: exact(x, s) + torch.cos(5 * s) + 3)
    x = PLANE.diffuse(EDM(), 0.3).sample(50, seeded())
    arguments = (x, 0.3, 200.0, *moments(PLANE), None, None, 1e-6)
    log_z = -shifted(x, torch.tensor(0.3)) - log_likelihood(shifted, *arguments).log_prob
    torch.testing.assert_close(log_z, torch.full((50,), -math.cos(1.5) - 3), rtol=0, atol=1e-3)
    # levels that disagree: tempered at the bottom, exact at the top
    warm = Function(lambda x, s: exact(x, s) * (1 - 0.2 / (1 + s)))
    gap = -warm(x, torch.tensor(0.3)) - log_likelihood(warm, *arguments).log_prob
    assert gap.std() > 0.05


def test_probes_are_unbiased_and_fixed_along_the_path():
    n = 400
    x = PLANE.diffuse(EDM(), 0.3).sample(n, seeded())
    arguments = (x, 0.3, 200.0, *moments(PLANE))
    exact = -PLANE.diffuse(EDM(), 0.3)(x)
    got = log_likelihood(Diffused(PLANE), *arguments, probes=1, generator=seeded())
    miss = got.log_prob - exact
    assert miss.mean().abs() < 5 * standard_error(miss) and miss.std() > 0.1
    assert got.evaluations < 300  # fresh probes would make the solver crawl
    again = log_likelihood(Diffused(PLANE), *arguments, probes=1, generator=seeded())
    assert torch.equal(got.log_prob, again.log_prob)
    many = log_likelihood(Diffused(PLANE), *arguments, probes=16, generator=seeded())
    assert (many.log_prob - exact).std() < miss.std() / 3


def test_single_precision_is_kept():
    x = torch.randn(4, 3, generator=seeded(), dtype=torch.float32)
    got = log_likelihood(gaussian, x, variance=2.25).log_prob
    exact = torch.distributions.Normal(0.0, 1.5).log_prob(x).sum(1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-3)


def test_bits_bound_those_of_the_pixels():
    r"""A pixel of one level: the mean log-density over its width is below the log of its mass."""
    law, k = torch.distributions.Normal(0.2, 0.05), torch.arange(256.0)
    x = (k / 127.5 - 1)[150:157]
    mass = law.cdf(x + 1 / 255) - law.cdf(x - 1 / 255)
    noisy = dequantize(x.expand(20_000, 7), seeded())
    assert ((noisy - x).abs() <= 1 / 255).all() and (noisy - x).std() > 0.99 / 255 / math.sqrt(3)
    bits = bits_per_dimension(law.log_prob(noisy), 1).mean(0)
    exact = -mass.log2()
    assert (bits > exact - 1e-3).all() and (bits < exact + 0.01).all()


def test_a_score_that_is_not_finite_names_its_level():
    levels = []

    def bad(x, sigma):
        levels.append(float(sigma))
        return gaussian(x, sigma) * (1.0 if sigma < 3 else math.nan)

    with pytest.raises(FloatingPointError, match=r"got NaN .* 4 of 4 points") as caught:
        log_likelihood(bad, torch.ones(4, 2))
    assert f"at sigma {levels[-1]:.4g}" in str(caught.value) and 3 <= levels[-1] < 10


def test_no_level_beyond_the_last_is_asked_for():
    levels = []
    energy = lambda x, sigma: (levels.append(float(sigma)), gaussian(x, sigma))[1]
    log_likelihood(energy, torch.ones(4, 2), 0.002, 7.0)
    assert min(levels) == pytest.approx(0.002) and max(levels) == pytest.approx(7.0)


# Residual


@mixtures
@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0])
def test_an_exact_energy_has_no_residual(mixture, sigma):
    x = mixture.diffuse(EDM(), sigma).sample(200, seeded())
    r = fokker_planck_residual(Diffused(mixture), x, sigma)
    assert r.values.abs().max() < 1e-9 and abs(r.mean) < 1e-9 and r.variance < 1e-18


def test_a_constant_of_each_level_is_the_rate_of_the_normalizer():
    exact = Diffused(PLANE)
    x = PLANE.diffuse(EDM(), 0.7).sample(200, seeded())
    r = fokker_planck_residual(lambda x, s: exact(x, s) + 0.3 * s**2, x, 0.7)  # log Z = -0.3 tau
    assert r.mean == pytest.approx(-0.3) and r.variance < 1e-18


@pytest.mark.parametrize("shape", [(1000, 3), (1000, 1, 2, 2)])
def test_residual_of_a_gaussian_with_a_wrong_clock(shape):
    r"""E = x^2 / 2 v with v = s^2 + a tau has R = (a - 1) x^2 / 2 v^2 + D / 2 v."""
    a, s, sigma = 0.4, 1.5, 0.8
    energy = lambda x, t: x.flatten(1).square().sum(1) / (2 * (s**2 + a * t**2))
    x = torch.randn(*shape, generator=seeded())
    v, D = s**2 + a * sigma**2, math.prod(shape[1:])
    exact = (a - 1) * x.flatten(1).square().sum(1) / (2 * v**2) + D / (2 * v)
    r = fokker_planck_residual(energy, x, sigma)
    torch.testing.assert_close(r.values, exact)
    assert r.mean == pytest.approx(float(exact.mean()))
    assert r.variance == pytest.approx(float(exact.var())) and r.variance > 0.01
    probed = fokker_planck_residual(energy, x, sigma, Hutchinson(), seeded())
    torch.testing.assert_close(probed.values, exact)  # the Hessian is diagonal


def test_a_perturbed_mixture_has_a_residual():
    exact = Diffused(PLANE)
    x = PLANE.diffuse(EDM(), 0.7).sample(200, seeded())

    def variance(c):
        bent = lambda x, sigma: exact(x, sigma) + c * torch.sin(x[:, 0])
        return fokker_planck_residual(bent, x, 0.7).variance

    small, large = variance(0.01), variance(0.1)
    assert small > 1e-6 and large / small == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda x: log_likelihood(gaussian, x[0]), r"x to have shape \(B, \*\)"),
        (ValueError, lambda x: log_likelihood(gaussian, x * math.nan), "x to be finite"),
        (ValueError, lambda x: log_likelihood(gaussian, x, 0.0), "sigma_min .* > 0, got 0.0"),
        (
            ValueError,
            lambda x: log_likelihood(gaussian, x, 2.0, 1.0),
            "sigma_min < sigma_max, got sigma_min=2.0, sigma_max=1.0",
        ),
        (ValueError, lambda x: log_likelihood(gaussian, x, variance=-1.0), ">= 0, got -1"),
        (ValueError, lambda x: log_likelihood(gaussian, x, probes=0), "probes .* >= 1, got 0"),
        (ValueError, lambda x: log_likelihood(gaussian, x, tolerance=0.0), "tolerance .* got 0.0"),
        (ValueError, lambda x: bits_per_dimension(x, 0), "dimension to be an integer >= 1, got 0"),
        (ValueError, lambda x: fokker_planck_residual(gaussian, x, 0.0), "sigma .* > 0, got 0.0"),
        (
            ValueError,
            lambda x: fokker_planck_residual(gaussian, x[:1], 1.0),
            "two points .* got 1",
        ),
        (
            FloatingPointError,
            lambda x: fokker_planck_residual(lambda x, s: gaussian(x, s) / 0, x, 2.0),
            "finite residual at sigma 2, got NaN or infinity at 3 of 3 points",
        ),
    ],
)
def test_bad_input_is_named(error, call, message):
    with pytest.raises(error, match=message):
        call(torch.ones(3, 2))
