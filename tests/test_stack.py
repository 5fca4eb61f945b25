r"""Stacked training: each network as if it were alone."""

import math
import pytest
import torch

from dataclasses import replace
from fokker.compute.stack import decay_at, rate_at, train_stack
from fokker.objectives import CD, DCD, OBJECTIVES, PCD, MultiTimeDCD, ScoreMatching
from fokker.runs.config import Network, Optimization
from studies.toy import Float32

NETWORK = Network(width=12, layers=3, features=4, confine=0.7)
QUICK = Optimization(steps=6, batch=32)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)  # the networks of a stack are float32


def weights(energy):
    return torch.cat([p.flatten() for p in energy.parameters()])


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_stack_is_its_members(clip):
    # score matching has no noise of its own: a member alone must be the same to rounding
    optimization = replace(QUICK, clip=clip)
    sources, seeds = [Float32("moons", "cpu"), Float32("rings", "cpu")], [0, 5]
    both = train_stack(sources, ScoreMatching(), NETWORK, optimization, seeds)
    for i in range(2):
        alone = train_stack(sources[i : i + 1], ScoreMatching(), NETWORK, optimization, [seeds[i]])
        torch.testing.assert_close(
            weights(both.energies[i]), weights(alone.energies[0]), rtol=1e-4, atol=1e-6
        )
    assert not torch.allclose(weights(both.energies[0]), weights(both.energies[1]))


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n != "denoising"])
def test_every_objective_stacks(name):
    settings = {"pcd": {"buffer": 64}}.get(name, {})
    sources = [Float32("moons", "cpu"), Float32("circles", "cpu")]
    out = train_stack(sources, OBJECTIVES[name](**settings), NETWORK, QUICK, [0, 1])
    assert out.finite == [True, True]
    assert out.losses.shape == (1, 2) and torch.isfinite(out.losses).all()


def test_one_that_diverges_takes_no_other_with_it():
    class Broken:
        def sample(self, n, generator=None):
            return torch.full((n, 2), math.nan)

    sources = [Float32("moons", "cpu"), Broken()]
    out = train_stack(sources, MultiTimeDCD(points=16), NETWORK, QUICK, [0, 0])
    assert out.finite == [True, False]
    assert torch.isfinite(weights(out.energies[0])).all()


def test_particles_are_carried():
    # with a step size of nothing the particles stay: had they been drawn anew, losses would vary
    source, quick = [Float32("moons", "cpu")], replace(QUICK, steps=3, rate=1e-12)
    out = train_stack(source, PCD(1, 1e-12, 32, 0.0), NETWORK, quick, [0])
    assert torch.isfinite(out.losses).all()


def test_training_learns():
    source = [Float32("moons", "cpu")]
    optimization = Optimization(steps=150, batch=128, rate=1e-2)
    out = train_stack(source, DCD(step=5e-5, antithetic=True), Network(32, 3), optimization, [0])
    x = source[0].sample(2000, torch.Generator().manual_seed(9))
    assert float(ScoreMatching()(out.energies[0], x).loss) < -20
    short = train_stack(source, CD(), Network(32, 3), replace(optimization, steps=1), [0])
    assert float(ScoreMatching()(short.energies[0], x).loss) > -5


def test_schedules():
    cosine = Optimization(steps=100, rate=0.5)
    assert rate_at(0, cosine) == pytest.approx(0.5)
    assert rate_at(50, cosine) == pytest.approx(0.25)
    assert rate_at(99, cosine) < 0.001
    assert rate_at(70, Optimization(schedule="constant", rate=0.5)) == pytest.approx(0.5)
    again = replace(cosine, steps=300, restarts=(100,), warmup=3)
    assert rate_at(100, again) == pytest.approx(0.125)
    assert rate_at(200, again) == pytest.approx(0.25)
    assert rate_at(299, again) < 0.001
    for k in range(100):  # up to its end it is the shorter one
        assert rate_at(k, again) == rate_at(k, replace(cosine, warmup=3))
    with pytest.raises(ValueError, match="number of restarts between 0 and 100, got 101"):
        Optimization(restarts=tuple(range(1, 102)))
    for steps, restarts in ((100, (100,)), (100, (0,)), (100, (50, 20)), (100, (50, 50))):
        with pytest.raises(ValueError, match=f"ascending order between 0 and the {steps} steps"):
            Optimization(steps=steps, restarts=restarts)
    for restarts in ([50], 50, ("50",), (50.0,), (True,)):
        with pytest.raises(ValueError, match="restarts to be a tuple of integers, got"):
            Optimization(steps=100, restarts=restarts)
    assert decay_at(0, cosine) == pytest.approx(0.1)
    assert decay_at(10**6, cosine) == pytest.approx(0.999)
    assert decay_at(50, Optimization(ema=0.0)) == pytest.approx(0.0)
