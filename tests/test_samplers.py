r"""Samplers against laws known in closed form or by quadrature.

Points are float64 and seeds fixed. A mean over independent chains, one value each, has standard
error `std / sqrt(B)`; one along chains has that of `standard_error`. Tolerances are five of them.
"""

import dataclasses
import inspect
import itertools
import math
import pytest
import torch

from fokker.objectives.cd import langevin
from fokker.samplers import (
    HMC,
    MALA,
    SAMPLERS,
    ULA,
    Annealed,
    Sampler,
    Tempered,
    geometric,
    standard_error,
)
from torch import nn

EXAMPLES = {
    "ula": ULA(0.1),
    "mala": MALA(0.5, warmup=7),
    "hmc": HMC(0.3, leaps=4, warmup=8),
    "tempered": Tempered(MALA(0.5), (1.0, 2.0)),
    "annealed": Annealed(MALA(0.5, warmup=2), geometric(4.0, 3), steps=4),
}
everyone = pytest.mark.parametrize("sampler", EXAMPLES.values(), ids=EXAMPLES.keys())


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def quadratic(x):
    return x.flatten(1).square().sum(1) / 2


def gumbel(x):
    return (x + torch.exp(-x)).sum(1)


def gumbel_draws(n, seed=0):
    u = torch.rand(n, 1, generator=seeded(seed), dtype=torch.float64)
    return -torch.log(-torch.log(u))


def two_modes(weight, at=6.0):
    r"""Unit Gaussians at `-at` and `at` on the first axis, the second of the given weight."""
    center = torch.tensor([at, 0.0], dtype=torch.float64)
    w = torch.tensor([1 - weight, weight], dtype=torch.float64).log()

    def energy(x):
        parts = [w[k] - (x - c).square().sum(1) / 2 for k, c in enumerate((-center, center))]
        return -torch.logsumexp(torch.stack(parts), dim=0)

    return energy


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(u, v) for u, v in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def cloned(state):
    if isinstance(state, tuple):
        parts = [cloned(v) for v in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state.clone() if isinstance(state, torch.Tensor) else state


def significance(values, truth=0.0):
    r"""The distance of the mean of independent values to the truth, in standard errors."""
    return (values.mean(0) - truth).abs() / (values.std(0) / math.sqrt(len(values)))


# The loop and its contract


def test_registry():
    concrete, seen = set(), [Sampler]
    while seen:
        cls = seen.pop()
        seen += cls.__subclasses__()
        concrete |= set() if inspect.isabstract(cls) else {cls}
    assert concrete == set(SAMPLERS.values())
    assert {type(s) for s in EXAMPLES.values()} == concrete


@everyone
def test_samplers_are_values(sampler):
    assert sampler == dataclasses.replace(sampler)
    assert hash(sampler) == hash(dataclasses.replace(sampler))
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampler.step_size = 1.0


@everyone
@pytest.mark.parametrize("shape", [(5, 1), (3, 2), (2, 3, 4, 4)])
def test_shapes(sampler, shape):
    state, samples, info = sampler.run(quadratic, normal(*shape), 6, seeded(), thin=2)
    assert samples.shape == (3, *shape) and samples.dtype == torch.float64
    assert state.x.shape == state.gradient.shape == shape
    assert info.acceptance.shape == info.energy.shape == (6, shape[0])
    assert info.step_size.shape == (6,)
    assert torch.equal(samples[-1], state.x)
    torch.testing.assert_close(state.energy, quadratic(state.x))  # at T = 1 after the default burn
    torch.testing.assert_close(state.gradient, state.x)


@everyone
def test_resuming_is_going_on(sampler):
    x = normal(4, 2)
    whole = sampler.run(quadratic, x, 20, seeded(3), burn=0)
    g = seeded(3)
    first = sampler.run(quadratic, x, 9, g, burn=0)
    second = sampler.run(quadratic, first.state, 11, g, burn=0)
    assert torch.equal(whole.samples, torch.cat([first.samples, second.samples]))
    assert same(whole.state, second.state)


@everyone
def test_randomness_is_an_argument(sampler):
    x = normal(4, 2)
    runs = [sampler.run(quadratic, x, 5, seeded(seed)).samples for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(sampler.run(quadratic, x, 5).samples, runs[0])


@everyone
def test_burn_and_thin_keep_a_part_of_the_chain(sampler):
    x = normal(4, 2)
    whole = sampler.run(quadratic, x, 13, seeded(), burn=0)
    part = sampler.run(quadratic, x, 10, seeded(), burn=3, thin=4)
    assert torch.equal(part.samples, whole.samples[[6, 10]])
    assert torch.equal(part.info.energy, whole.info.energy[3:])
    rest = sampler.run(quadratic, x, 3, seeded())
    assert rest.state.count == sampler.transient + 3
    assert sampler.run(quadratic, rest.state, 3, seeded()).state.count == rest.state.count + 3


@everyone
def test_step_is_pure_and_builds_no_graph(sampler):
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = normal(4, 2).requires_grad_()
    before = x.detach().clone()
    state = sampler.init(lambda x: net(x).squeeze(1) + quadratic(x), x)
    copy = cloned(state)
    after, info = sampler.step(lambda x: net(x).squeeze(1) + quadratic(x), state, seeded())
    assert torch.equal(x, before) and same(state, copy)
    tensors = [v for v in (*state, *after, *info) if isinstance(v, torch.Tensor)]
    assert not any(v.requires_grad for v in tensors)
    assert all(p.grad is None for p in net.parameters())


@everyone
def test_init_of_a_state_takes_up_a_changed_energy(sampler):
    state = sampler.run(quadratic, normal(4, 2), 5, seeded()).state
    other = sampler.init(lambda x: 3 * quadratic(x), state)
    torch.testing.assert_close(other.energy, 3 * quadratic(state.x))
    torch.testing.assert_close(other.gradient, 3 * state.x)
    assert other.step_size == state.step_size and other.count == state.count


# Unadjusted Langevin


@pytest.mark.parametrize("h", [0.2, 1.0, 3.0])
def test_ula_settles_at_its_biased_variance(h):
    s = 1.3
    energy = lambda x: quadratic(x) / s**2
    # what is left of the start after k transitions is (1 - h / 2 s^2)^2k: below 1e-5 here
    steps = math.ceil(math.log(1e-5) / (2 * math.log(abs(1 - h / (2 * s**2)))))
    x = ULA(h).run(energy, s * normal(50_000, 2), steps, seeded(1), thin=steps).samples
    variance = x.square().mean()
    error = math.sqrt(2 / x.numel())  # of the variance of Gaussians, relative
    biased = s**2 / (1 - h / (4 * s**2))
    assert (variance / biased - 1).abs() < 5 * error
    assert (variance / s**2 - 1).abs() > 5 * error  # so that the bias is seen


def test_ula_step_is_the_euler_step():
    x, z = normal(6, 3), normal(6, 3, seed=5)
    state, info = ULA(0.3).step(quadratic, ULA(0.3).init(quadratic, x), seeded(5))
    torch.testing.assert_close(state.x, x - 0.15 * x + math.sqrt(0.3) * z)
    assert state.count == 1 and (info.acceptance == 1).all()


def test_a_step_size_means_the_same_to_samplers_and_objectives():
    x, h = normal(6, 3), 0.3
    chain = ULA(h).run(gumbel, x, 4, seeded(5)).state.x
    step_size = torch.tensor(h, dtype=x.dtype)
    torch.testing.assert_close(langevin(gumbel, x, 4, step_size, seeded(5)), chain)


def test_ula_that_diverges_raises():
    with pytest.raises(FloatingPointError, match=r"step size 1\b.*smaller.*MALA"):
        ULA(1.0).run(lambda x: x.pow(4).sum(1), 3 * normal(10, 1), 50, seeded())


# Metropolis-adjusted Langevin


def test_mala_accepts_with_the_metropolis_probability():
    h, x = 1.5, gumbel_draws(500)
    state, info = MALA(h).step(gumbel, MALA(h).init(gumbel, x), seeded(1))
    moved = (state.x != x).squeeze(1)
    assert 100 < moved.sum() < 450
    x, y, a = x[moved], state.x[moved], info.acceptance[moved]
    drift = lambda x: x - h / 2 * (1 - torch.exp(-x))
    q = lambda y, x: torch.distributions.Normal(drift(x), math.sqrt(h)).log_prob(y).squeeze(1)
    r = -gumbel(y) + q(x, y) + gumbel(x) - q(y, x)
    torch.testing.assert_close(a, r.clamp(max=0).exp(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(state.energy, gumbel(state.x))
    torch.testing.assert_close(state.gradient, 1 - torch.exp(-state.x))


def test_mala_is_reversible():
    r"""Two states in a row are exchangeable at stationarity; those of ULA are not."""
    x = gumbel_draws(400_000)

    def asymmetry(sampler):
        y = sampler.step(gumbel, sampler.init(gumbel, x), seeded(1))[0].x
        s, t = torch.exp(-x), torch.exp(-y.clamp(min=-5))  # s is exponential, of finite moments
        return significance(torch.cat([s * t**2 - s**2 * t, x.tanh() * t - s * y.tanh()], dim=1))

    assert (asymmetry(MALA(1.0)) < 5).all()
    assert (asymmetry(ULA(1.0)) > 5).all()


@pytest.mark.parametrize("h", [0.5, 4.0])
def test_mala_leaves_its_law_unchanged(h):
    r"""Exact draws stay exact for any h: Kolmogorov-Smirnov distance, level 5.7e-7 (5 sigma)."""
    x = gumbel_draws(200_000)
    bound = math.sqrt(-math.log(5.7e-7 / 2) / 2 / len(x))

    def distance(sampler):
        y = sampler.run(gumbel, x, 5, seeded(1), thin=5).samples[0, :, 0].sort().values
        cdf = torch.exp(-torch.exp(-y))
        grid = torch.arange(len(y) + 1, dtype=y.dtype) / len(y)
        return torch.maximum((cdf - grid[:-1]).max(), (grid[1:] - cdf).max())

    assert distance(MALA(h)) < bound
    if h < 1:  # a large step makes ULA diverge here
        assert distance(ULA(h)) > 3 * bound


def test_mala_on_a_correlated_gaussian():
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    root = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [-0.5, 0.3, 1.2]], dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(mean, scale_tril=root)
    run = MALA(0.1, target=0.8, warmup=200).run(
        lambda x: -law.log_prob(x), mean + normal(200, 3), 1000, seeded(1), burn=400
    )
    assert (run.rhat() < 1.05).all()  # 1 + tau / S when mixed, with tau near 30
    assert ((run.samples.mean((0, 1)) - mean).abs() < 5 * standard_error(run.samples)).all()
    products = (run.samples - mean).unsqueeze(-1) * (run.samples - mean).unsqueeze(-2)
    error = standard_error(products)
    assert ((products.mean((0, 1)) - root @ root.T).abs() < 5 * error).all()
    assert (error < 0.05).all()  # or the test would see little


def test_mala_on_a_double_well():
    energy = lambda x: (2 * (x.square() - 1).square() + 0.3 * x).sum(1)
    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    p = torch.exp(-energy(grid[:, None]))
    start = normal(500, 1).clamp(-1.5, 1.5)  # from the quartic tails MALA hardly comes back
    run = MALA(0.3, warmup=200).run(energy, start, 1000, seeded(1), burn=500)
    assert (run.rhat() < 1.05).all()
    for f in (lambda x: x, torch.square):
        truth = (p * f(grid)).sum() / p.sum()
        values = f(run.samples)
        error = standard_error(values)
        assert (values.mean() - truth).abs() < 5 * error and error < 0.02


@pytest.mark.parametrize("h", [1e-3, 1e2])
@pytest.mark.parametrize("target", [0.574, 0.8])
def test_warmup_finds_the_target(h, target):
    run = MALA(h, target=target, warmup=500).run(quadratic, normal(50, 20), 200, seeded(1))
    # the last gain is 2 * 500^(-2/3) = 0.03, times a mean over 50 chains
    assert abs(run.acceptance.mean - target) < 0.03
    assert (run.info.step_size == run.state.step_size).all()  # frozen since
    assert run.state.step_size != h


def test_without_warmup_the_step_size_stays():
    run = MALA(0.7).run(quadratic, normal(5, 2), 10, seeded(1))
    assert (run.info.step_size == run.state.step_size).all()
    assert float(run.state.step_size) == pytest.approx(0.7)


def test_mala_rejects_where_the_density_is_zero():
    r"""The gamma law of shape 2 and mean 2; below zero E is infinite and its gradient NaN."""
    gamma = lambda x: (x - torch.log((x + x.abs()) / 2)).sum(1)
    start = gumbel_draws(1000, seed=0).exp() ** -1 + gumbel_draws(1000, seed=1).exp() ** -1
    run = MALA(2.0).run(gamma, start, 200, seeded(1))
    assert (run.samples > 0).all() and torch.isfinite(run.info.energy).all()
    assert (run.info.acceptance == 0).any()
    error = standard_error(run.samples)
    assert (run.samples.mean() - 2).abs() < 5 * error and error < 0.05


def test_mala_rejects_where_the_gradient_is_infinite():
    r"""From there the way back has density zero, although the energy is finite."""

    class Wall(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return torch.where(x < 0, math.inf, x) * grad

    run = MALA(1.0).run(
        lambda x: Wall.apply(x).square().sum(1) / 2, normal(50, 1).abs(), 20, seeded(1)
    )
    assert (run.samples >= 0).all()


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_mala_raises_at_nan(bad):
    energy = lambda x: torch.where(x < 3, x.square() / 2, bad).sum(1)
    x = torch.full((100, 1), 2.5, dtype=torch.float64)
    message = r"of 100 proposals .* transition 0, step size 1,.* energy (nan|-inf)"
    with pytest.raises(FloatingPointError, match=message):
        MALA(1.0).run(energy, x, 1, seeded(1))
    with pytest.raises(
        FloatingPointError, match=r"at temperature 9: .* transition 0, step size 9"
    ):
        Annealed(MALA(1.0), (9.0, 1.0)).run(energy, x, 1, seeded(1))


@everyone
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_starting_energies_must_be_finite(sampler, bad):
    energy = lambda x: torch.where(x < 3, x.square() / 2, bad).sum(1)
    x = torch.zeros(4, 1, dtype=torch.float64)
    x[2] = 5
    with pytest.raises(FloatingPointError, match="1 of 4 points, the first at index 2"):
        sampler.init(energy, x)


# Annealing


def test_annealing_finds_the_weights_of_separated_modes():
    r"""Two equal modes twelve standard deviations apart, and a wide start, off to one side."""
    energy, chains = two_modes(0.5), 4000
    start = 6 * normal(chains, 2) + torch.tensor([5.0, 0.0], dtype=torch.float64)
    right = lambda x: (x[..., 0] > 0).double()
    ladder = geometric(40.0, 12)
    annealed = Annealed(MALA(1.0, warmup=20), ladder, steps=30)
    run = annealed.run(energy, start, 10, seeded(1), thin=10)
    assert run.state.count == 30 * 11 + 20 + 10
    assert significance(right(run.samples[-1]), 0.5) < 5
    near = run.samples[-1, :, 0].abs()
    assert significance(near, 6.0) < 5 and (near.std() - 1).abs() < 5 / math.sqrt(2 * chains)
    # as many transitions at T = 1 leave each chain in the mode where it fell
    plain = MALA(1.0, warmup=20).run(energy, start, 340, seeded(1), thin=340)
    assert significance(right(plain.samples[-1]), 0.5) > 5
    one = start - start.mean(0) + torch.tensor([6.0, 0.0], dtype=torch.float64)
    one = one.clamp(min=4.0, max=8.0)
    stuck = MALA(1.0, warmup=20).run(energy, one, 340, seeded(1), thin=10)
    assert right(stuck.samples).all()


def test_annealing_freezes_unequal_weights_too_even():
    r"""The limit that the module states: the weights are those of a hotter density."""
    start = 6 * normal(4000, 2)
    annealed = Annealed(MALA(1.0, warmup=20), geometric(40.0, 12), steps=30)
    x = annealed.run(two_modes(0.9), start, 10, seeded(1), thin=10).samples[-1]
    right = (x[:, 0] > 0).double()
    assert 0.5 < right.mean() < 0.9
    assert significance(right, 0.5) > 5 and significance(right, 0.9) > 5


def test_annealing_follows_the_ladder():
    sampler = Annealed(ULA(0.2), (8.0, 2.0, 1.0), steps=3)
    assert sampler.transient == 6
    state, g = sampler.init(quadratic, normal(4, 2)), seeded()
    for count in range(10):
        state, info = sampler.step(quadratic, state, g)
        temperature = (8.0, 2.0, 1.0)[min(count // 3, 2)]
        torch.testing.assert_close(state.energy, quadratic(state.x) / temperature)
        torch.testing.assert_close(state.gradient, state.x / temperature)
        assert float(info.step_size) == pytest.approx(0.2 * temperature)
        assert state.count == count + 1


def test_annealing_warms_up_at_each_temperature():
    sampler = Annealed(MALA(0.5, warmup=2), (8.0, 2.0), steps=4)
    h = sampler.run(quadratic, normal(4, 2), 12, seeded(), burn=0).info.step_size
    assert (h[1:] != h[:-1]).nonzero().squeeze(1).tolist() == [0, 1, 3, 4, 5]


def test_annealing_at_one_temperature_is_the_sampler_at_it():
    x = normal(4, 2)
    annealed = Annealed(MALA(0.5, warmup=3), (2.0,)).run(quadratic, x, 10, seeded())
    plain = MALA(1.0, warmup=3).run(lambda x: quadratic(x) / 2, x, 10, seeded())
    assert torch.equal(annealed.samples, plain.samples)


def test_geometric_ladder():
    ladder = geometric(10.0, 5, coldest=0.1)
    assert (ladder[0], ladder[-1], len(ladder)) == (10.0, 0.1, 5)
    ratios = [b / a for a, b in itertools.pairwise(ladder)]
    assert ratios == pytest.approx([0.1**0.5] * 4)
    assert geometric(2.0, 2) == (2.0, 1.0)


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ULA(0.0), "step_size to be a finite number > 0, got 0.0"),
        (lambda: ULA(math.nan), "step_size to be a finite number > 0, got nan"),
        (lambda: MALA(-1.0), "step_size to be a finite number > 0, got -1.0"),
        (lambda: MALA(1.0, target=1.0), "target strictly between 0 and 1, got 1.0"),
        (lambda: MALA(1.0, warmup=-1), "warmup to be an integer >= 0, got -1"),
        (lambda: Annealed(ULA(1.0), ()), "one temperature or more"),
        (lambda: Annealed(ULA(1.0), (2.0, 0.0)), r"temperatures\[1\] .* > 0, got 0.0"),
        (lambda: Annealed(ULA(1.0), (1.0, 2.0)), r"falling temperatures, got \(1.0, 2.0\)"),
        (lambda: Annealed(ULA(1.0), (1.0,), steps=0), "steps to be an integer >= 1, got 0"),
        (lambda: geometric(1.0, 4), "hottest > coldest, got .* hottest=1.0"),
        (lambda: geometric(2.0, 1), "two rungs or more"),
        (lambda: geometric(-2.0, 4), "hottest to be a finite number > 0, got -2.0"),
    ],
)
def test_bad_samplers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@everyone
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps to be an integer >= 1, got 0"),
        ({"thin": 0}, "thin to be an integer >= 1, got 0"),
        ({"thin": 6}, "thin <= steps, .* got 6 > 5"),
        ({"burn": -1}, "burn to be an integer >= 0, got -1"),
        ({"burn": 1.5}, "burn to be an integer >= 0, got 1.5"),
        ({"x": torch.full((3, 2), math.nan)}, "x to be finite, got 3 of 3"),
        ({"x": torch.zeros(3)}, r"x to have shape \(B, \*\)"),
        ({"x": torch.zeros(3, 2, dtype=torch.long)}, "x to have a floating dtype"),
        ({"energy": lambda x: x}, r"energy to map points \(3, 2\) to values \(3,\), got shape"),
        ({"energy": lambda x: x.sum()}, r"to values \(3,\), got shape \(\)"),
    ],
)
def test_bad_runs(sampler, arguments, message):
    arguments = {"energy": quadratic, "x": torch.zeros(3, 2), "steps": 5} | arguments
    with pytest.raises(ValueError, match=message):
        sampler.run(**arguments)


# --- Hamiltonian moves and parallel tempering ---


def correlated(d):
    r"""A Gaussian whose widths differ by a factor of ten, in turned axes; its covariance."""
    q, _ = torch.linalg.qr(normal(d, d, seed=3))
    covariance = q @ torch.diag(torch.logspace(-1, 1, d, dtype=torch.float64)) @ q.T
    precision = torch.linalg.inv(covariance)
    return (lambda x: ((x @ precision) * x).sum(1) / 2), covariance


@pytest.mark.parametrize("mass", ["unit", "diagonal", "dense"])
def test_hmc_has_the_moments_of_a_correlated_gaussian(mass):
    energy, covariance = correlated(6)
    run = HMC(0.1, leaps=8, warmup=200, mass=mass).run(energy, normal(64, 6), 400, seeded(1))
    products = torch.einsum("sbi,sbj->sbij", run.samples, run.samples)
    assert (run.samples.mean((0, 1)).abs() < 5 * standard_error(run.samples)).all()
    off = (products.mean((0, 1)) - covariance).abs()
    assert (off < 5 * standard_error(products)).all()
    assert abs(run.acceptance.mean - 0.8) < 0.1  # the target of the dual averaging
    if mass == "dense":
        factor = run.state.memory.factor
        assert ((factor @ factor.T - covariance).abs() < 0.15 * covariance.diagonal().max()).all()


def test_a_fitted_mass_is_worth_its_warmup():
    energy, _ = correlated(6)
    least = {}
    for mass in ("unit", "dense"):
        run = HMC(0.1, leaps=4, warmup=200, mass=mass).run(energy, normal(32, 6), 300, seeded(2))
        least[mass] = float(run.ess().min())
    assert least["dense"] > 3 * least["unit"]


def test_hmc_rejects_a_path_that_its_step_drives_out_of_the_numbers():
    r"""x^4 - 6 x^2 is NaN in float32 from 1e10 on, where a long step leads within some leaps."""
    energy = lambda x: (x**4 - 6 * x.square()).sum(1)
    x = normal(256, 2).float()
    assert energy(torch.full((1, 2), 1e20, dtype=torch.float32)).isnan()
    run = HMC(0.5, leaps=12).run(energy, x, 20, seeded(1))
    assert torch.isfinite(run.samples).all() and run.acceptance.mean < 0.9
    wall = lambda x: torch.where(x[:, 0] > 1, math.nan, x.square().sum(1) / 2)
    with pytest.raises(FloatingPointError, match="an energy that is not NaN"):
        HMC(0.5, leaps=12).run(wall, -normal(256, 2).abs(), 20, seeded(1))


@pytest.mark.parametrize("sampler", [MALA(0.5), HMC(0.5, leaps=4)], ids=["mala", "hmc"])
def test_tempering_finds_the_weights_of_far_modes(sampler):
    r"""From a start in the wrong mode; the sampler alone never leaves it."""
    energy, x = two_modes(0.8), torch.tensor([[-6.0, 0.0]], dtype=torch.float64).repeat(400, 1)
    alone = sampler.run(energy, x, 50, seeded())
    assert (alone.samples[..., 0] < 0).all()
    power = 1.0 if isinstance(sampler, MALA) else 0.5
    tempered = Tempered(sampler, (1.0, 2.5, 6.0, 15.0, 40.0), power)
    run = tempered.run(energy, x, 300, seeded(), burn=500)
    chains = (run.samples[..., 0] > 0).double().mean(0)  # one value a chain, which is independent
    assert significance(chains, 0.8) < 5
    second = run.samples[..., 1].square().mean(0)
    assert significance(second, 1.0) < 5


def test_a_trade_keeps_energies_and_gradients_true():
    energy = two_modes(0.8)
    tempered = Tempered(MALA(0.5), (1.0, 3.0, 9.0))
    state = tempered.init(energy, normal(50, 2))
    for _ in range(5):
        state, _ = tempered.step(energy, state, seeded())
    for k, inner in enumerate(state.memory):
        fresh = MALA(0.5).init(tempered.tempered(energy, k), inner.x)
        torch.testing.assert_close(inner.energy, fresh.energy)
        torch.testing.assert_close(inner.gradient, fresh.gradient)
    assert torch.equal(state.x, state.memory[0].x)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HMC(0.0), "step_size"),
        (lambda: HMC(1.0, leaps=0), "leaps"),
        (lambda: HMC(1.0, target=1.0), "target strictly between 0 and 1"),
        (lambda: HMC(1.0, mass="full"), "mass to be one of unit, diagonal, dense"),  # pyright: ignore
        (lambda: Tempered(MALA(1.0), (1.0,)), "two temperatures or more"),
        (lambda: Tempered(MALA(1.0), (2.0, 3.0)), "rise from 1"),
        (lambda: Tempered(MALA(1.0), (1.0, 3.0), power=0.0), "power"),
    ],
)
def test_moves_refuse_bad_settings(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_run_is_exported_as_a_tree():
    r"""The groups and dimensions by which ArviZ knows a sample, and the same numbers."""
    pytest.importorskip("xarray")
    run = MALA(0.5).run(quadratic, normal(4, 2), 6, seeded())
    tree = run.tree()
    x, statistics = tree["posterior"]["x"], tree["sample_stats"]
    assert x.dims == ("chain", "draw", "x_dim_0") and x.shape == (4, 6, 2)
    assert torch.equal(torch.from_numpy(x.values), run.samples.transpose(0, 1))
    assert torch.equal(torch.from_numpy(statistics["lp"].values.copy()), -run.info.energy.T)
    assert statistics["acceptance_rate"].shape == (4, 6)
