r"""Energies of every level, composed: the law of the last level against its closed form."""

import math
import pytest
import torch

from conftest import standard_error
from fokker.analytic import Diffused, Gaussian, GaussianMixture
from fokker.derivatives import value
from fokker.energies import Energy, Function, Mixture, Quadratic
from fokker.grid import Grid
from fokker.samplers import MALA, Corrector, Heun, LevelParticles, Unreliable, as_mixture, karras
from fokker.samplers.levels import exponent
from itertools import pairwise
from torch import Tensor

LAST = 0.05
PARTICLES = LevelParticles(20.0, LAST, moves=4)


def first() -> GaussianMixture:
    means = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.5]])
    return GaussianMixture(means, 0.2, torch.tensor([0.5, 0.3, 0.2]))


def second() -> GaussianMixture:
    means = torch.tensor([[2.2, 0.3], [-1.8, 0.2]])
    return GaussianMixture(means, 0.4, torch.tensor([0.2, 0.8]))


def compositions() -> dict[str, Energy]:
    a, b = Diffused(first()), Diffused(second())
    return {
        "product": a + b,
        "temperature": a / 2,
        "negation": a - 0.3 * b,
        "mixture": Mixture([a, b], [0.7, 0.3]),
        "quadratic": a + Quadratic(2.0),
    }


@pytest.mark.parametrize("name", list(compositions()))
def test_samples_and_log_z_are_those_of_the_last_level(name):
    r"""Against a grid: log Z, and the means of functions that tell modes and widths."""
    energy = compositions()[name]
    found = PARTICLES.run(energy, 4000, (2,), torch.Generator().manual_seed(0))
    grid = Grid(-8, 8, 400)
    e = grid.evaluate(energy.at(LAST))
    log_z = float(grid.log_normalizer(e))
    assert abs(found.log_z - log_z) < 5 * found.error and found.error < 0.1
    p, x = torch.exp(-e - log_z).flatten() * grid.cell, grid.points().reshape(-1, 2)
    for f in (
        lambda x: (x[:, 0] > 0).double(),
        lambda x: (x[:, 1] > 1.2).double(),
        lambda x: x[:, 1],
        lambda x: x.square().sum(1),
    ):
        # resampled particles count for fewer than they are: each island is one draw
        exact, drawn = float((p * f(x)).sum()), f(found.samples)
        assert abs(float(drawn.mean()) - exact) < 5 * 2 * float(standard_error(drawn)) + 1e-3
    assert found.share > 0.3 and found.acceptance > 0.3


def modes(x: Tensor, means: Tensor) -> Tensor:
    r"""The share of points nearest to each mean."""
    return torch.bincount(torch.cdist(x, means).argmin(1), minlength=len(means)) / len(x)


def test_the_naive_sum_fails_and_particles_do_not():
    r"""The product of two mixtures in 16 dimensions: weights of modes, and the width of one."""
    D, generator = 16, torch.Generator().manual_seed(0)
    means = torch.randn(3, D, generator=generator)
    means = 5 * means / means.norm(dim=1, keepdim=True)
    a = GaussianMixture(means, 0.49, torch.tensor([0.6, 0.3, 0.1]))
    b = GaussianMixture(means, 0.49, torch.tensor([0.1, 0.4, 0.5]))
    energy = Diffused(a) + Diffused(b)
    exact = as_mixture(energy.at(LAST), torch.zeros(1, D))
    assert exact is not None
    weights = modes(exact.mixture.sample(200_000, generator), means)
    far = lambda x: float((modes(x, means) - weights).abs().sum() / 2)
    width = lambda x: float((x - means[torch.cdist(x, means).argmin(1)]).var())
    right = width(exact.mixture.sample(20_000, generator))
    particles = LevelParticles(40.0, LAST, moves=3)
    found = particles.run(energy, 1600, (D,), generator)
    assert far(found.samples) < 0.08  # of 1,600: see the study for more
    assert width(found.samples) == pytest.approx(right, rel=0.1)
    assert abs(found.log_z - exact.log_z) < 5 * found.error + 0.02
    levels = karras(30, LAST, 40.0)
    naive = Heun(levels).run(energy, 800, (D,), generator, dtype=torch.float64).samples
    assert width(naive) < right / 4  # far too narrow
    by_energy = Corrector(MALA(0.3, warmup=20), 5)
    flow = Heun(levels, corrector=by_energy).tune(energy, (D,), generator, dtype=torch.float64)
    corrected = flow.run(energy, 800, (D,), generator, dtype=torch.float64).samples
    assert abs(width(corrected) / right - 1) < abs(width(naive) / right - 1) / 2
    assert far(naive) > 0.1 or far(corrected) > 0.1  # weights that no score sets right


def test_the_exponent_of_a_composition():
    a = Diffused(first())
    assert exponent((a + a) / 2 + 3 * a - a / 2, 80.0) == pytest.approx(3.5)
    assert exponent(Mixture([a, a]) | a, 80.0) == pytest.approx(1.0)
    assert exponent(a + Quadratic(8.0), 80.0) == pytest.approx(101.0)
    assert exponent(a + Function(lambda x: 0 * x.sum(1)), 80.0) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="equally wide at high levels, got exponents 1, 2"):
        exponent(a | 2 * a, 80.0)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda a: LevelParticles(1.0, 2.0), ValueError, "sigma_min < sigma_max"),
        (lambda a: LevelParticles(islands=1), ValueError, "islands to be an integer >= 2"),
        (lambda a: PARTICLES.run(a, 100, (2,)), ValueError, "a multiple of 8 particles"),
        (lambda a: PARTICLES.run(a - a, 80, (2,)), ValueError, "exponents that add up to 0"),
        (
            lambda a: PARTICLES.run(Diffused(Gaussian(torch.full((2,), 300.0), 1.0)), 800, (2,)),
            Unreliable,
            "a Gaussian of variance 400",
        ),
        (
            lambda a: PARTICLES.run(Function(lambda x, s: a(x, s) * math.nan), 80, (2,)),
            FloatingPointError,
            "64 of 64 particles",
        ),
        (
            lambda a: LevelParticles(20.0, 0.1, levels=3).run(a, 80, (2,)),
            Unreliable,
            "levels 3 steps go down",
        ),
    ],
)
def test_what_is_wrong_is_said(make, kind, message):
    with pytest.raises(kind, match=message):
        make(Diffused(first()))


def test_a_seed_and_a_ladder_repeat():
    energy = Diffused(first()) + Diffused(second())
    like = torch.empty(0, 2)
    ladder = PARTICLES.ladder(energy, 200, like, torch.Generator().manual_seed(1))
    assert (ladder[0].sigma, ladder[-1].sigma) == (20.0, LAST)
    assert all(a.sigma > b.sigma for a, b in pairwise(ladder))
    runs = [
        PARTICLES.run(energy, 160, (2,), torch.Generator().manual_seed(2), ladder=ladder)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].samples, runs[1].samples)
    assert runs[0].evaluations == (len(ladder) + 1) * 7 and runs[0].levels == len(ladder)


def test_a_plain_callable_descends():
    energy = lambda x, sigma: x.square().sum(1) / (2 * (1 + sigma**2))
    found = PARTICLES.run(energy, 800, (3,), torch.Generator().manual_seed(0))
    assert abs(found.log_z - 1.5 * math.log(2 * math.pi * (1 + LAST**2))) < 5 * found.error
    assert value(lambda x: energy(x, LAST), found.samples).shape == (800,)
