r"""Grids: noise from values alone, and Langevin dynamics that leave their own density as it is."""

import itertools
import math
import pytest
import torch

from fokker.analytic import Gaussian
from fokker.diffusions import VE
from fokker.grid import Grid

GRID = Grid(-4, 4, 80)


def gaussian(mean, variance, grid=GRID):
    x = grid.points()
    return ((x - torch.tensor(mean)) ** 2).sum(1) / (2 * variance) + math.log(
        2 * math.pi * variance
    )


def test_blur_is_the_evolution_without_drift():
    law = Gaussian(torch.tensor([0.5, -0.3]), 0.4)
    grid = Grid(-8, 8, 160)
    evolved = grid.evolve(law, VE(), 0.0, 0.3)
    torch.testing.assert_close(grid.blur(grid.evaluate(law), math.sqrt(0.3)), evolved)
    exact = gaussian([0.5, -0.3], 0.4 + 0.3, grid)
    on = exact < exact.min() + 15
    torch.testing.assert_close(evolved[on], exact[on], atol=1e-6, rtol=0)


def test_relax_keeps_the_density_of_the_energy():
    x = GRID.points()
    e = (x[:, 0] ** 2 - 1) ** 2 + x[:, 1] ** 2 + torch.sin(3 * x[:, 0])
    q = torch.exp(-e - GRID.log_normalizer(e))
    (after,) = GRID.relax(q, e, [0.5])
    torch.testing.assert_close(after, q, atol=1e-13, rtol=1e-9)


def test_relax_is_ornstein_uhlenbeck_on_a_gaussian():
    r"""On N(0, 1), dx = -x/2 dt + dw: mean m e^{-t/2}, variance 1 + (v - 1) e^{-t}; of second
    order in the spacing."""
    errors = []
    for size in (40, 80):
        grid = Grid(-4, 4, size)
        x = grid.points()
        p = torch.exp(-((x - 1.0) ** 2).sum(1) / (2 * 0.3)) / (2 * math.pi * 0.3)
        start, late = grid.relax(p, x.square().sum(1) / 2, [0.0, 0.7])
        torch.testing.assert_close(start, p)
        mass = grid.integrate(late)
        mean = float(grid.integrate(late * x[:, 0]))
        spread = float(grid.integrate(late * (x[:, 0] - mean) ** 2))
        assert float(mass) == pytest.approx(float(grid.integrate(p)), abs=1e-12)
        errors.append(abs(spread - (1 - 0.7 * math.exp(-0.7))))
        assert mean == pytest.approx(math.exp(-0.35), abs=0.2 * grid.spacing)
    assert errors[1] < 0.35 * errors[0] < 0.35 * 0.02


def test_relax_lowers_the_divergence_at_every_time():
    p, q = gaussian([1.0, 0.0], 0.3), gaussian([-1.0, 0.5], 0.5)
    laws = GRID.relax(torch.exp(-p), q, [0.01 * k for k in range(12)])
    kl = [float(GRID.kl(-torch.log(law), q)) for law in laws]
    assert all(b < a for a, b in itertools.pairwise(kl))
    assert kl[0] == pytest.approx(float(GRID.kl(p, q)))


@pytest.mark.parametrize(
    "times, energy, words",
    [
        ([0.2, 0.1], 0.0, "times from 0 upwards"),
        ([], 0.0, "times from 0 upwards"),
        ([-1.0], 0.0, "times from 0 upwards"),
        ([0.1], math.inf, "a finite energy"),
    ],
)
def test_relax_refuses(times, energy, words):
    e = torch.full((GRID.size**2,), energy)
    with pytest.raises(ValueError, match=words):
        GRID.relax(torch.ones_like(e), e, times)
    with pytest.raises(ValueError, match="two dimensions"):
        Grid(-1, 1, 10, dim=1).relax(torch.ones(10), torch.zeros(10), [0.1])
