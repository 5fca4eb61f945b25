r"""Every objective: one call, no hidden state, and a gradient that vanishes at the truth."""

import math
import pytest
import torch

from conftest import standard_error
from fokker.analytic import Gaussian, GaussianMixture
from fokker.derivatives import Exact, FiniteDifference, Hutchinson, Stein
from fokker.diffusions import EDM, VE, VP, Custom
from fokker.energies import Energy
from fokker.evolution import EVOLUTIONS, Evolution, MonteCarlo, Stationary, Taylor
from fokker.networks import MLP
from fokker.objectives import (
    CD,
    DCD,
    OBJECTIVES,
    PCD,
    Bridge,
    Central,
    Denoising,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    LevelDCD,
    Limit,
    LogUniform,
    MultiTimeDCD,
    Noisy,
    Objective,
    Particles,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
    levels,
)
from torch import tensor

# all but the regression of a denoiser
ENERGY_OBJECTIVES = [name for name, kind in OBJECTIVES.items() if kind is not Denoising]
MEANS = tensor([[-0.8, 0.0], [0.7, 0.5]], dtype=torch.float64)


class Perturbed(Energy):
    r"""The true energy plus a combination of smooth features, zero at the truth."""

    def __init__(self, truth, theta=0.0):
        super().__init__()
        self.truth = truth
        self.theta = torch.nn.Parameter(torch.full((4,), float(theta)))

    def forward(self, x):
        a, b = x.unbind(1)
        features = torch.stack([a, torch.cos(2 * b), a * b, a.square() + b.square()], dim=1)
        return self.truth(x) + features @ self.theta


def learned(objective):
    r"""The variance of the noise whose density an objective learns."""
    match objective:
        case LevelDCD():
            return objective.learned**2
        case DenoisingScoreMatching():
            return objective.sigma**2
        case Noisy():
            return objective.level**2
        case DCD(evolution=Taylor("end"), antithetic=False):
            return objective.step
    return 0.0


def gradient_at(objective, data, theta, generator, n=1000, repeats=50):
    r"""The expected parameter gradient of an objective near what it learns, with its standard
    error."""
    noise = learned(objective)
    energy = Perturbed(data.diffuse(VE(), noise) if noise else data, theta)
    grads, state = [], None
    for _ in range(repeats):
        out = objective(energy, data.sample(n, generator), state, generator)
        state = out.state
        grads.append(torch.autograd.grad(out.loss, energy.theta)[0])
    grads = torch.stack(grads)
    return grads.mean(0), standard_error(grads)


# the bias at the truth that each docstring states, as an absolute bound on the gradient
CONSISTENT = {
    "dcd": (DCD(step=1e-4, antithetic=True), 1e-3),
    "dcd, one end": (DCD(step=1e-2), 0.0),
    "dcd at the start": (DCD(VE(), Taylor("start"), step=1e-3, antithetic=True), 5e-3),
    "dcd-vp": (DCD(VP(1.0, 1.0), Taylor("start"), step=1e-3, antithetic=True), 5e-3),
    "dcd-edm": (DCD(EDM(), Taylor("start"), step=3e-2, antithetic=True), 5e-3),
    "dcd hutchinson": (DCD(VE(), Taylor("start"), Hutchinson(2), 1e-3, True), 5e-3),
    "dcd finite difference": (DCD(VE(), Taylor("start"), FiniteDifference(), 1e-3, True), 5e-3),
    "dcd stein": (DCD(VE(), Taylor("end"), Stein(), 1e-3, True), 5e-3),
    "dcd custom": (
        DCD(Custom(lambda x, t: torch.sin(x) - x, torch.ones_like), Taylor("start"),
            step=1e-3, antithetic=True),
        1e-2,
    ),
    "monte-carlo": (DCD(VE(), MonteCarlo(64), step=0.05, rate=False), 0.2 / 64),
    "multi-time": (
        MultiTimeDCD(
            DCD(VE(), Taylor("start"), step=1e-4, antithetic=True),
            DCD(VE(), MonteCarlo(64), step=LogUniform(0.01, 0.3), rate=False),
            weight=2.0,
        ),
        1.0 / 64,
    ),
    "level limit": (LevelDCD(0.08, Limit(), weight="one"), 0.0),
    "level central": (LevelDCD(0.08, Central(), weight="one"), 0.0),
    "level bridge": (LevelDCD(0.08, Bridge(0.1), weight="one"), 0.0),
    "level bridge, draws": (LevelDCD(0.08, Bridge(0.1, 8), weight="one"), 0.0),
    "level path": (LevelDCD(0.08, levels.Path(0.1), weight="one"), 0.0),
    "level hutchinson": (LevelDCD(0.3, levels.Hutchinson(0.1), weight="one"), 0.0),
    "noisy cd": (Noisy(CD(8, 5e-3), 0.1), 2e-3),
    "cd": (CD(8, 5e-3), 2e-3),
    "pcd": (PCD(10, 4e-2, buffer=4000, restart=0.0, source="data"), 2e-2),
    "sm": (ScoreMatching(), 0.0),
    "sm hutchinson": (ScoreMatching(Hutchinson(1)), 0.0),
    "ssm": (SlicedScoreMatching(1), 0.0),
    "ssm, not reduced": (SlicedScoreMatching(2, variance_reduced=False), 0.0),
    "dsm": (DenoisingScoreMatching(0.08), 0.0),
    "ed": (EnergyDiscrepancy(0.2, 64), 0.2 / 64),
    "recovery": (RecoveryLikelihood(0.3, steps=40, stride=0.4), 1e-2),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSISTENT)
def test_gradient_vanishes_at_the_truth_and_only_there(name, generator):
    objective, bias = CONSISTENT[name]
    truth = GaussianMixture(MEANS, 0.2)
    mean, se = gradient_at(objective, truth, 0.0, generator)
    assert (mean.abs() < 5 * se + bias).all(), (mean / se, mean)
    # away from it some component points back clearly, beyond noise and beyond the stated bias
    mean, se = gradient_at(objective, truth, 0.3, generator)
    assert ((mean.abs() - bias) > 5 * se).any(), (mean / se, mean)


def test_every_objective_is_tested_at_the_truth():
    assert {type(o) for o, _ in CONSISTENT.values()} == {OBJECTIVES[n] for n in ENERGY_OBJECTIVES}


@pytest.mark.parametrize("at", ["start", "end"])
def test_bias_of_one_step_on_gaussians(at, generator):
    # the start is exact on Gaussians at any step, the end learns the diffused data
    truth = Gaussian(torch.zeros(2), 0.3)
    objective = DCD(VE(), Taylor(at), step=0.1, antithetic=True)
    mean, se = gradient_at(objective, truth, 0.0, generator)
    quadratic = tensor([0, 2, 3])  # the cosine has a fourth derivative, hence a bias
    clean = bool((mean.abs() < 5 * se)[quadratic].all())
    assert clean == (at == "start")


def test_denoising_score_matching_learns_the_smoothed_data(generator):
    data = GaussianMixture(MEANS, 0.2)
    smooth, sigma = data.diffuse(VE(), 0.3**2), 0.3
    energy, grads = Perturbed(smooth), []
    for _ in range(60):
        out = DenoisingScoreMatching(sigma)(energy, data.sample(2000, generator), None, generator)
        grads.append(torch.autograd.grad(out.loss, energy.theta)[0])
    grads = torch.stack(grads)
    assert (grads.mean(0).abs() < 5 * standard_error(grads)).all()


@pytest.mark.parametrize("name", ENERGY_OBJECTIVES)
def test_defaults_train_in_a_plain_loop(name, generator):
    # out.loss.backward() in a user's own loop: the loss of a fixed batch falls
    energy = MLP(2, 32, 3) + (lambda x: x.square().sum(1))
    quick = {"pcd": {"buffer": 512, "step_size": 2e-2, "restart": 0.0, "source": "data"}}
    objective = OBJECTIVES[name](**quick.get(name, {}))
    truth = GaussianMixture(MEANS, 0.2)
    optimizer = torch.optim.Adam(energy.parameters(), 3e-3)
    held = truth.sample(2000, generator)
    before = ScoreMatching()(energy, held).loss
    state = None
    for _ in range(60):
        out = objective(energy, truth.sample(256, generator), state, generator)
        state = out.state
        optimizer.zero_grad()
        out.loss.backward()
        grads = [p.grad for p in energy.parameters() if p.grad is not None]
        assert grads and all(torch.isfinite(g).all() for g in grads)
        optimizer.step()
    assert ScoreMatching()(energy, held).loss < before
    assert all(v.ndim == 0 and not v.requires_grad for v in out.info.values())


@pytest.mark.parametrize("name", ENERGY_OBJECTIVES)
def test_same_generator_same_loss(name):
    energy, x = MLP(2, 16, 3), torch.randn(64, 2)
    a, b = (OBJECTIVES[name]()(energy, x, None, torch.Generator().manual_seed(5)) for _ in "ab")
    assert torch.equal(a.loss, b.loss)
    c = OBJECTIVES[name]()(energy, x, None, torch.Generator().manual_seed(6))
    assert name == "sm" or not torch.equal(a.loss, c.loss)


@pytest.mark.parametrize("name", ENERGY_OBJECTIVES)
def test_images_and_functional_gradients(name):
    # image shapes, and torch.func.grad over parameters instead of backward()
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.SiLU(), torch.nn.Flatten(), torch.nn.Linear(27, 1)
    )
    settings = {"pcd": {"buffer": 8}}.get(name, {})
    objective, x = OBJECTIVES[name](**settings), 0.5 * torch.randn(6, 1, 5, 5)
    params = dict(net.named_parameters())
    call = lambda p: lambda x: torch.func.functional_call(net, p, (x,)).squeeze(1)
    loss = lambda p: objective.part(call(p), x, None, torch.Generator().manual_seed(1)).loss
    loss(params).backward()
    grads = torch.func.grad(loss)({k: p.detach() for k, p in params.items()})
    # a constant cancels, except where a way to the Laplacian squares the loss's rounding
    for k, g in grads.items():
        eager = params[k].grad if params[k].grad is not None else torch.zeros_like(g)
        assert torch.allclose(eager, g, rtol=1e-7, atol=1e-8 * float(1 + eager.abs().max()))
    assert any(float(g.abs().max()) > 1e-6 for g in grads.values())


def test_antithetic_pairs_remove_the_variance():
    energy, x = Gaussian(tensor([0.0, 0.0]), 0.1), 0.3 * torch.randn(400, 2)
    spread = {}
    for paired in (False, True):
        objective = DCD(VE(), Taylor("start"), step=1e-5, antithetic=paired)
        losses = [float(objective(energy, x).loss) for _ in range(40)]
        spread[paired] = torch.tensor(losses).std()
    assert spread[True] < spread[False] / 30


def test_times_are_drawn_for_each_point(generator):
    law = LogUniform(0.01, 1.0)
    t = law.sample(torch.zeros(50_000, 2), generator)
    assert t.shape == (50_000,) and t.min() >= 0.01 and t.max() <= 1.0
    u = torch.log(t / 0.01) / math.log(100)
    assert abs(u.mean() - 0.5) < 5 * standard_error(u)


def test_energy_discrepancy_is_the_published_formula():
    energy, x, M, w, sigma = Gaussian(torch.zeros(2), 1.0), torch.randn(16, 2), 5, 2.0, 0.4
    g = torch.Generator().manual_seed(3)
    loss = EnergyDiscrepancy(sigma, M, w)(energy, x, None, g).loss
    g = torch.Generator().manual_seed(3)
    y = x + sigma * torch.randn(16, 2, generator=g)
    z = torch.randn(M, 1, 16, 2, generator=g)[:, 0]
    around = torch.stack([energy(y - sigma * z[i]) for i in range(M)])
    expected = torch.log(w / M + torch.exp(energy(x) - around).mean(0)).mean()
    assert torch.allclose(loss, expected)


def test_multi_time_is_the_weighted_sum():
    energy, x = MLP(2, 16, 3), torch.randn(64, 2)
    objective = MultiTimeDCD(weight=7.0, points=32)
    out = objective(energy, x, None, torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(1)
    short = objective.short(energy, x, None, g).loss
    long = objective.long(energy, x[:32], None, g).loss
    assert torch.allclose(out.loss, short + 7 * long)
    assert torch.equal(out.info["long"], long.detach())


def test_particles_persist_and_restart():
    energy, x = Gaussian(torch.zeros(2), 1.0), torch.randn(50, 2)
    objective = PCD(steps=1, step_size=1e-12, buffer=200, restart=0.0)
    first = objective(energy, x, None, torch.Generator().manual_seed(1))
    assert isinstance(first.state, Particles) and first.state.x.shape == (200, 2)
    second = objective(energy, x, first.state, torch.Generator().manual_seed(2))
    moved = (second.state.x - first.state.x).norm(dim=1)
    assert (moved < 1e-4).all()  # no restart: every particle is where it was, but for a tiny step
    assert int((moved > 0).sum()) == 50  # one a data point was moved
    again = PCD(steps=1, step_size=1e-12, buffer=200, restart=1.0)
    third = again(energy, x, first.state, torch.Generator().manual_seed(2))
    moved = (third.state.x - first.state.x).norm(dim=1)
    assert int((moved > 1e-2).sum()) >= 48  # all of the fifty drawn anew


def test_restart_rate_and_source():
    energy, x = Gaussian(torch.zeros(2), 1.0), 10 + torch.randn(1000, 2)
    state = Particles(torch.zeros(1000, 2))
    objective = PCD(steps=1, step_size=1e-12, buffer=1000, restart=0.05)
    out = objective(energy, x, state, torch.Generator().manual_seed(1))
    restarted = out.state.x.norm(dim=1) > 1
    expected, spread = 50, math.sqrt(1000 * 0.05 * 0.95)
    assert abs(int(restarted.sum()) - expected) < 5 * spread
    data = PCD(steps=1, step_size=1e-12, buffer=1000, restart=1.0, source="data")
    out = data(energy, x, state, torch.Generator().manual_seed(1))
    nearest = torch.cdist(out.state.x, x).min(1).values
    assert nearest.max() < 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, x: DCD(step=0.0), "step to be a finite number > 0, got 0.0"),
        (lambda e, x: DCD(step=-1e-3), "step to be a finite number > 0, got -0.001"),
        (lambda e, x: DCD(step=math.nan), "step to be a finite number > 0, got nan"),
        (lambda e, x: Taylor("middle"), "at to be one of start, end, got 'middle'"),
        (lambda e, x: MonteCarlo(0), "samples to be an integer >= 1, got 0"),
        (lambda e, x: MonteCarlo(4, -1.0), "stabilizer between 0 and inf, got -1.0"),
        (lambda e, x: CD(steps=0), "steps to be an integer >= 1, got 0"),
        (lambda e, x: CD(step_size=0), "step_size to be a finite number > 0, got 0"),
        (lambda e, x: PCD(restart=1.5), "restart between 0 and 1, got 1.5"),
        (lambda e, x: PCD(buffer=-1), "buffer to be an integer >= 1, got -1"),
        (lambda e, x: PCD(source="prior"), "source to be one of noise, data, got 'prior'"),
        (lambda e, x: DenoisingScoreMatching(0.0), "sigma to be a finite number > 0, got 0.0"),
        (lambda e, x: EnergyDiscrepancy(-1.0), "sigma to be a finite number > 0, got -1.0"),
        (lambda e, x: EnergyDiscrepancy(1.0, 0), "samples to be an integer >= 1, got 0"),
        (lambda e, x: RecoveryLikelihood(0.0), "sigma to be a finite number > 0, got 0.0"),
        (lambda e, x: RecoveryLikelihood(stride=1.5), "stride between 0 and 1, got 1.5"),
        (lambda e, x: DCD(step=True), "step to be a finite number > 0, got True"),
        (lambda e, x: DCD(Taylor("start")), "diffusion to be a Diffusion .ve, edm, vp"),
        (lambda e, x: DCD(evolution="taylor"), "evolution to be a Evolution .* got 'taylor'"),
        (lambda e, x: DCD(laplacian=Exact), "laplacian to be a Laplacian .* got <class"),
        (lambda e, x: MultiTimeDCD(short=3), "short to be a DCD .* got 3"),
        (lambda e, x: DCD(Custom(lambda x, t: -x, 0.0)), "with noise .* got a variance of 0.0"),
        (DCD(VE(), Stationary()), "a Langevin diffusion with Stationary"),
        (
            lambda e, x: DCD()(e, x, torch.Generator()),
            "state to be None, got Generator; the generator comes after it",
        ),
        (lambda e, x: PCD()(e, x, x), "state to be Particles or None, got Tensor"),
        (
            lambda e, x: EnergyDiscrepancy(0.1, 4, math.inf),
            "stabilizer between 0 and inf, got inf",
        ),
        (lambda e, x: SlicedScoreMatching(0), "probes to be an integer >= 1, got 0"),
        (lambda e, x: MultiTimeDCD(weight=0.0), "weight to be a finite number > 0, got 0.0"),
        (lambda e, x: MultiTimeDCD(points=0), "points to be an integer >= 1, got 0"),
        (lambda e, x: LogUniform(2.0, 1.0), "expected low <= high, got LogUniform"),
        (lambda e, x: LogUniform(0.0, 1.0), "low to be a finite number > 0, got 0.0"),
        (lambda e, x: DCD()(e, x[0]), r"shape \(B, \*\) .* got shape \(2,\)"),
        (lambda e, x: DCD()(e, x[:0]), r"B >= 1 points .* got shape \(0, 2\)"),
        (lambda e, x: DCD()(e, x.long()), "x to have a floating dtype, got torch.int64"),
        (lambda e, x: DCD()(e, x.tolist()), r"a tensor of shape \(B, \*\), got list"),
        (
            lambda e, x: DCD()(e, torch.where(x == x[3], math.nan, x)),
            "1 of 8 points with NaN or infinity, the first at index 3",
        ),
        (lambda e, x: DCD()(lambda x: x, x), r"points \(8, 2\) to values \(8,\), got shape \(8"),
        (lambda e, x: DCD()(lambda x: 3.0, x), r"to values \(8,\), got float"),
        (
            DCD(evolution=Taylor("start"), laplacian=Stein()),
            r"needs no noise with Taylor\(at='start'\), got Stein",
        ),
        (
            DCD(Custom(lambda x, t: -x, torch.ones_like), MonteCarlo()),
            "expected a linear diffusion .* with MonteCarlo, got Custom",
        ),
        (
            PCD(buffer=4),
            r"at least 8 particles of shape \(2,\), one per data point, got .* \(4, 2\)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(Gaussian(torch.zeros(2), 1.0), torch.randn(8, 2))


@pytest.mark.parametrize("name", ENERGY_OBJECTIVES)
def test_non_finite_energies_are_not_replaced(name):
    # weights gone bad give a loss that says so
    net = MLP(2, 8, 3)
    with torch.no_grad():
        net.layers[0].weight[0, 0] = math.nan
    assert torch.isnan(OBJECTIVES[name]()(net, torch.randn(8, 2)).loss)


def test_everything_is_registered():
    own = lambda kind: {c for c in kind.__subclasses__() if c.__module__.startswith("fokker.")}
    assert set(OBJECTIVES.values()) == own(Objective)
    assert set(EVOLUTIONS.values()) == own(Evolution)
    assert Stationary() == Stationary() and Exact() == Exact()
