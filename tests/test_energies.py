r"""The algebra of densities, the adapters and the analytic energies."""

import math
import pytest
import torch

from conftest import standard_error
from fokker.analytic import Gaussian, GaussianMixture, ring_of_gaussians
from fokker.derivatives import Exact, Loop
from fokker.diffusions import VE, VP, Custom, Langevin
from fokker.energies import (
    Energy,
    Function,
    LogDensity,
    Mixture,
    Quadratic,
    Restricted,
    Scaled,
    Slice,
    Sum,
)
from fokker.grid import Grid
from fokker.networks import MLP
from functools import partial
from torch import tensor

COV = tensor([[1.0, 0.4], [0.4, 0.5]], dtype=torch.float64)


def energies():
    a, b = Gaussian(tensor([0.5, -1.0]), COV), Quadratic(0.8, tensor([0.1, 0.2]))
    net = MLP(2, 9, 3)
    return {
        "gaussian": a,
        "mixture of gaussians": GaussianMixture(torch.randn(3, 2), torch.stack([COV] * 3)),
        "quadratic": b,
        "sum": a + b + net,
        "tempered": (a + net) / 2.5,
        "inverse temperature": 3 * a,
        "mixture": a | b | net,
        "weighted mixture": Mixture([a, b, net], [0.2, 0.5, 0.3]),
        "function": a + (lambda x: x.square().sum(1)),
        "log-density": LogDensity(lambda x: -(x**4).sum(1)),
    }


@pytest.mark.parametrize("name", energies())
def test_jets_are_exact(name):
    energy, x = energies()[name], torch.randn(7, 2)
    jet, loop = Exact()(energy, x), Loop()(energy, x)
    assert torch.allclose(jet.energy, loop.energy)
    assert torch.allclose(jet.gradient, loop.gradient)
    assert torch.allclose(jet.laplacian, loop.laplacian)


def test_operators_are_what_they_say():
    a, b, x = Gaussian(tensor([0.5, -1.0]), COV), Quadratic(0.8), torch.randn(5, 2)
    assert torch.allclose((a + b)(x), a(x) + b(x))
    assert torch.allclose((a / 2)(x), a(x) / 2)
    assert torch.allclose((a * 2)(x), 2 * a(x))
    assert torch.allclose(torch.exp(-(a | b)(x)), torch.exp(-a(x)) + torch.exp(-b(x)))
    assert torch.allclose(((a | b) | a)(x), (a | (b | a))(x))  # associative
    assert torch.allclose(sum([a, b, a])(x), 2 * a(x) + b(x))
    assert sum([a]) is a
    assert isinstance(a + b, Sum) and isinstance(a / 2, Scaled) and isinstance(a | b, Mixture)


def test_composed_parameters_are_trained():
    net = MLP(2, 9, 3)
    energy = (net + Quadratic(1.0)) / 2 | Quadratic(2.0)
    assert sum(p.numel() for p in energy.parameters()) == sum(p.numel() for p in net.parameters())


def test_log_density_adapter():
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), COV)
    x = torch.randn(6, 2)
    assert torch.allclose(LogDensity(normal.log_prob)(x), Gaussian(torch.zeros(2), COV)(x))


def test_torchebm_energies_pass_through_the_adapter():
    from torchebm.core import DoubleWellModel, GaussianModel, HarmonicModel

    mean, cov, x = torch.zeros(2), COV, torch.randn(6, 2)
    ours, theirs = Gaussian(mean, cov), Function(GaussianModel(mean, cov))
    shift = ours(x) - theirs(x)  # theirs is not normalized
    assert torch.allclose(shift, shift[:1].expand(6))
    assert torch.allclose(Exact()(theirs, x).laplacian, ours.jet(x).laplacian)
    for model in (DoubleWellModel(), HarmonicModel()):
        energy = Function(model) + Quadratic(3.0)
        assert energy(x).shape == (6,)
        assert torch.isfinite(Exact()(energy, x).laplacian).all()


class Timed(Energy):
    r"""A Gaussian that widens with time."""

    def forward(self, x, t):
        return x.square().sum(1) / (2 * (1 + t))


def test_time_slices():
    x = torch.randn(4, 3)
    assert isinstance(Timed().at(1.0), Slice)
    assert torch.allclose(Timed().at(1.0)(x), x.square().sum(1) / 4)
    t = torch.arange(4.0)
    assert torch.allclose(Exact()(Timed().at(t), x).laplacian, 3 / (1 + t))
    # composed, and in batches that objectives enlarge block by block
    energy = Timed().at(t) + Quadratic(1.0)
    twice = energy(torch.cat([x, 2 * x]))
    assert torch.allclose(twice[4:], energy(2 * x))


LEVELED = [
    (lambda e, q: e + q, lambda e, q: e + q),
    (lambda e, q: q + e, lambda e, q: e + q),
    (lambda e, q: sum([q, e]), lambda e, q: e + q),
    (lambda e, q: e - q / 3, lambda e, q: e - q / 3),
    (lambda e, q: e / 2, lambda e, q: e / 2),
    (lambda e, q: 2 * e + e, lambda e, q: 3 * e),
    (lambda e, q: e | q, lambda e, q: -torch.log(torch.exp(-e) + torch.exp(-q))),
    (
        lambda e, q: Mixture([q, e], [1.0, 3.0]),
        lambda e, q: -torch.log(3 * torch.exp(-e) + torch.exp(-q)),
    ),
]


@pytest.mark.parametrize(("compose", "expected"), LEVELED)
@pytest.mark.parametrize("energy", [Timed(), Function(Timed())])
def test_energies_of_every_level_compose(compose, expected, energy):
    x, q = torch.randn(5, 3), Quadratic(2.0)
    found = compose(energy, q)
    for t in (torch.tensor(0.4), torch.rand(5)):
        e = expected(energy(x, t), q(x))
        assert torch.allclose(found(x, t), e)
        assert torch.allclose(found.at(t)(x), e)
    jet, loop = Exact()(found.at(0.4), x), Loop()(found.at(0.4), x)
    assert torch.allclose(jet.laplacian, loop.laplacian)
    assert torch.allclose(jet.gradient, loop.gradient)
    with pytest.raises(ValueError, match=r"expected a level for .* energy\.at\(sigma\)"):
        found(x)
    with pytest.raises(ValueError, match="of x alone"):
        Restricted(found, -1.0, 1.0)


def test_what_does_not_compose():
    with pytest.raises(ValueError, match=r"got Function of \(x, s, t\)"):
        Quadratic() + (lambda x, s, t: x.sum(1) * s * t)
    with pytest.raises(ValueError, match=r"of x alone.*takes a level"):
        Restricted(Timed(), -1.0, 1.0)


def test_optional_arguments_and_builtins_compose():
    x = torch.randn(4, 3)
    tempered = Function(lambda x, scale=2.0: x.square().sum(1) / scale)
    assert torch.allclose((tempered + Quadratic())(x), x.square().sum(1))
    assert torch.allclose((Quadratic() + partial(torch.sum, dim=1))(x), Quadratic()(x) + x.sum(1))


def test_a_jet_is_that_of_its_own_forward():
    class Tilted(MLP):  # overrides forward, not jet
        def forward(self, x):
            return super().forward(x) + 5 * x.square().sum(1)

    net, x = Tilted(2, 9, 3), torch.randn(5, 2)
    for energy in (net, net + Quadratic(1.0), net / 2, net | Quadratic(1.0)):
        assert torch.allclose(Exact()(energy, x).laplacian, Loop()(energy, x).laplacian)


def test_laplacians_of_mixtures_keep_their_digits():
    # float32, far out in a narrow component: the exact value is 2 / variance
    narrow = Gaussian(torch.zeros(2, dtype=torch.float32), 1e-4)
    x = torch.full((1, 2), 20.0, dtype=torch.float32)
    assert float(narrow.jet(x).laplacian) == pytest.approx(2e4, rel=1e-5)
    assert float((narrow | narrow).jet(x).laplacian) == pytest.approx(2e4, rel=1e-5)


def test_functions_compose_from_both_sides():
    a, b, x = Quadratic(0.8), (lambda x: x.square().sum(1)), torch.randn(5, 2)
    assert torch.allclose((a | b)(x), (b | a)(x))
    assert torch.allclose((a + b)(x), (b + a)(x))


@pytest.mark.parametrize("K", [1, 4])
def test_mixture_is_normalized_at_every_time(K):
    covs = torch.stack([COV * (0.2 + 0.2 * k) for k in range(K)])
    p = GaussianMixture(torch.randn(K, 2), covs, torch.rand(K) + 0.5)
    grid = Grid(-10, 10, 300)
    for law in (p, p.diffuse(VE(), 0.5), p.diffuse(VP(), 0.3)):
        assert float(grid.log_normalizer(grid.evaluate(law))) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("diffusion", [Custom(lambda x, t: -x, 1.0), Langevin(Quadratic()), VE])
def test_mixtures_diffuse_linearly_or_not_at_all(diffusion):
    message = "expected a linear diffusion .VE, EDM, VP., .* got .*(Custom|Langevin|VE)"
    with pytest.raises(TypeError, match=message):
        Gaussian(torch.zeros(2), 1.0).diffuse(diffusion, 0.5)


def test_mixture_samples_have_its_moments(generator):
    means, covs = torch.randn(3, 2), torch.stack([COV, 0.5 * COV, torch.eye(2)])
    weights = tensor([0.2, 0.5, 0.3])
    p = GaussianMixture(means, covs, weights)
    x = p.sample(100_000, generator)
    mean = weights @ means
    second = (weights[:, None, None] * (covs + means[:, :, None] * means[:, None, :])).sum(0)
    assert ((x.mean(0) - mean).abs() < 5 * standard_error(x)).all()
    outer = x[:, :, None] * x[:, None, :]
    assert ((outer.mean(0) - second).abs() < 5 * standard_error(outer)).all()
    # Stein's identity ties the score to the samples: E[score] = 0, E[x score^T] = -I
    s = p.score(x)
    assert (s.mean(0).abs() < 5 * standard_error(s)).all()
    cross = x[:, :, None] * s[:, None, :]
    assert ((cross.mean(0) + torch.eye(2)).abs() < 5 * standard_error(cross)).all()


def test_gaussian_divergences_against_samples(generator):
    p, q = Gaussian(tensor([0.5, -1.0]), COV), Gaussian(tensor([0.0, 0.2]), 0.9)
    x = p.sample(200_000, generator)
    log_ratio = q(x) - p(x)
    assert abs(log_ratio.mean() - p.kl(q)) < 5 * standard_error(log_ratio)
    gap = (p.score(x) - q.score(x)).square().sum(1)
    assert abs(gap.mean() - p.fisher(q)) < 5 * standard_error(gap)
    assert float(p.kl(p)) == pytest.approx(0, abs=1e-12)


def test_ring_of_gaussians():
    p = ring_of_gaussians(16, K=5, radius=3.0, std=0.5)
    assert p.means.shape == (5, 16)
    assert torch.allclose(p.means.norm(dim=1), torch.full((5,), 3.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quadratic(0.0), "std to be a finite number > 0, got 0.0"),
        (lambda: Quadratic(1.0) / 0, "temperature to be a finite number > 0, got 0"),
        (lambda: Quadratic(1.0) * -2, "factor to be a finite number > 0, got -2"),
        (lambda: Quadratic(1.0) / math.nan, "temperature to be a finite number > 0, got nan"),
        (lambda: 3 + Quadratic(), "expected a callable energy, got 3"),
        (lambda: Function(3), "expected a callable energy, got 3"),
        (lambda: Mixture([Quadratic()], [1, 2]), "one weight an energy, got 2 for 1"),
        (lambda: Mixture([Quadratic()], [-1.0]), r"weights\[0\] to be a finite number > 0"),
        (lambda: GaussianMixture(torch.zeros(2), 1.0), r"means to have shape .* got shape \(2,\)"),
        (lambda: GaussianMixture([[0.0]], 1.0), "means to be a tensor"),
        (lambda: GaussianMixture(tensor([[math.nan]]), 1.0), "means to be finite"),
        (
            lambda: GaussianMixture(torch.zeros(1, 2), tensor([[1.0, 0.9], [0.0, 1.0]])),
            "expected symmetric, positive definite covariances",
        ),
        (
            lambda: Gaussian(torch.zeros(2), 1.0)(torch.zeros(4, 2, dtype=torch.float32)),
            "points of dtype torch.float64, got torch.float32",
        ),
        (
            lambda: MLP(2)(torch.zeros(4, 2, dtype=torch.float32)),
            "points of dtype torch.float64, that of the network, got torch.float32",
        ),
        (
            lambda: Timed().at(torch.ones(4))(torch.zeros(6, 3)),
            "expected a multiple of 4 points, one a time, got 6",
        ),
        (lambda: MLP(2, layers=2.5), "layers to be an integer >= 1, got 2.5"),
        (lambda: GaussianMixture(torch.zeros(1, 2), -1.0), "covariances to be a finite number"),
        (
            lambda: GaussianMixture(torch.zeros(1, 2), -torch.eye(2)),
            "symmetric, positive definite",
        ),
        (lambda: GaussianMixture(torch.zeros(1, 2), torch.eye(3)), r"shape \(1, 2, 2\)"),
        (lambda: GaussianMixture(torch.zeros(2, 2), 1.0, tensor([1.0, 0.0])), "2 weights > 0"),
        (lambda: Gaussian(torch.zeros(1, 2), 1.0), r"mean of shape \(D,\), got \(1, 2\)"),
        (lambda: Gaussian(torch.zeros(2), 1.0)(torch.zeros(4, 3)), r"\(B, 2\), got \(4, 3\)"),
        (lambda: Gaussian(torch.zeros(2), 1.0).sample(0), "n to be an integer >= 1, got 0"),
        (lambda: MLP(2)(torch.zeros(4, 3)), r"points of shape \(B, 2\), got \(4, 3\)"),
        (lambda: MLP(2, activation="relu"), "activation to be one of gelu, silu, tanh"),
        (lambda: MLP(2, layers=1), "layers >= 2, got 1"),
        (lambda: MLP(0), "dim to be an integer >= 1, got 0"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
