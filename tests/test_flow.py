r"""Flows against the exact energy of a Gaussian mixture at every noise level.

On :math:`\mathcal{N}(0, s^2)` the slope is :math:`a(\sigma) x` with :math:`a = \sigma / (s^2 +
\sigma^2)`: every method multiplies the points by a number that is known, and the flow itself by
:math:`\sqrt{(s^2 + \sigma'^2) / (s^2 + \sigma^2)}`.
"""

import dataclasses
import inspect
import itertools
import math
import pytest
import torch

from conftest import Diffused, three_modes
from fokker.analytic import Gaussian
from fokker.app.cli import main
from fokker.compute import field as field_module
from fokker.compute.field import CompiledField, TracedField, field_of
from fokker.images.generate import Sampling, generate
from fokker.networks import UNetEnergy
from fokker.samplers import (
    FLOWS,
    MALA,
    ULA,
    Churn,
    Corrector,
    Euler,
    Field,
    Flow,
    Guided,
    Heun,
    Multistep,
    Multistep3,
    karras,
)
from fokker.samplers.streams import Stream, Streams
from studies import flows, results, tables
from torch import nn

SHORT = karras(6, 0.05, 20.0)
EXAMPLES = {
    "euler": Euler(SHORT),
    "heun": Heun(SHORT),
    "multistep": Multistep(SHORT),
    "multistep3": Multistep3(SHORT),
    "churn": Heun(SHORT, Churn(4.0, low=0.5, high=10.0)),
    "ula": Euler(SHORT, corrector=Corrector(ULA(0.2), 2)),
    "mala": Heun(
        SHORT,
        Churn(4.0, low=0.5, high=10.0),
        Corrector(MALA(0.1, warmup=9), 2, step_sizes=(0.8, 0.7, 0.6, 0.5, 0.4)),
    ),
}
everyone = pytest.mark.parametrize("flow", EXAMPLES.values(), ids=EXAMPLES.keys())
MIXTURE = three_modes()
ENERGY = Diffused(MIXTURE)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(s=1.5):
    return lambda x, sigma: x.flatten(1).square().sum(1) / (2 * (s**2 + sigma**2))


def draw(flow, n, seed=0, energy=ENERGY, shape=(2,), **rest):
    return flow.run(energy, n, shape, seeded(seed), **rest).samples


def energy_distance(x, y):
    r"""Twice the mean distance across less those within, without the pairs of a point with
    itself."""
    within = [torch.cdist(z, z).sum() / (len(z) * (len(z) - 1)) for z in (x, y)]
    return float(2 * torch.cdist(x, y).mean() - sum(within))


def test_registry():
    kinds = {*Flow.__subclasses__(), *Multistep.__subclasses__()}
    assert {k for k in kinds if not inspect.isabstract(k)} == set(FLOWS.values())


def test_the_exact_energy_is_that_of_the_diffused_mixture():
    x = 2 * torch.randn(50, 2)
    for sigma in (0.1, 1.0, 10.0):
        torch.testing.assert_close(ENERGY(x, torch.tensor(sigma)), ENERGY.at(sigma)(x))


# Levels


def test_levels_of_edm():
    levels = karras()
    assert (levels[0], levels[-1], len(levels)) == (80.0, 0.002, 18)
    middle = (80 ** (1 / 7) + 5 / 17 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    assert levels[5] == pytest.approx(middle, rel=1e-12)
    roots = [s ** (1 / 7) for s in levels]
    gaps = [a - b for a, b in itertools.pairwise(roots)]
    assert gaps == pytest.approx([gaps[0]] * 17)


# The steps, in closed form


def test_euler_steps():
    s, factor = 1.5, 1.0
    for sigma, after in itertools.pairwise((*SHORT, 0.0)):
        factor *= 1 + (after - sigma) * sigma / (s**2 + sigma**2)
    x = draw(Euler(SHORT), 50, energy=gaussian(s))
    seed = int(torch.randint(2**32, (), generator=seeded()))
    z = Streams(seed, range(50)).normal(x)
    torch.testing.assert_close(x, SHORT[0] * factor * z, rtol=1e-12, atol=0)


def test_heun_steps():
    s, factor = 1.5, 1.0
    for sigma, after in itertools.pairwise((*SHORT, 0.0)):
        a, b, eta = sigma / (s**2 + sigma**2), after / (s**2 + after**2), after - sigma
        factor *= 1 + (eta * (a + b * (1 + eta * a)) / 2 if after else eta * a)
    seed = int(torch.randint(2**32, (), generator=seeded()))
    x = draw(Heun(SHORT), 50, energy=gaussian(s))
    z = Streams(seed, range(50)).normal(x)
    torch.testing.assert_close(x, SHORT[0] * factor * z, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", [Multistep, Multistep3])
def test_multisteps(method):
    r"""On a Gaussian the denoised points are c(sigma) x with c = s^2 / (s^2 + sigma^2)."""
    s, factor, last, before = 1.5, 1.0, None, None
    for sigma, after in itertools.pairwise((*SHORT, 0.0)):
        clean = factor * s**2 / (s**2 + sigma**2)
        factor = after / sigma * factor + (1 - after / sigma) * clean
        if last is not None and after:
            slope = (clean - last[0]) / math.log(last[1] / sigma)  # by -log sigma
            # the integral of exp(-t) (h - t) over a step h of -log sigma, from its end
            t = torch.linspace(0, math.log(sigma / after), 100_001)
            factor += slope * float(torch.trapezoid(torch.exp(-t) * (t[-1] - t), t))
            if before is not None and method is Multistep3:
                near, far = math.log(last[1] / sigma), math.log(before[1] / last[1])
                bend = (slope - (last[0] - before[0]) / far) / (near + far)
                parabola = (t[-1] - t) * (t[-1] - t + near)
                factor += bend * float(torch.trapezoid(torch.exp(-t) * parabola, t))
        last, before = (clean, sigma), last
    seed = int(torch.randint(2**32, (), generator=seeded()))
    x = draw(method(SHORT), 50, energy=gaussian(s))
    z = Streams(seed, range(50)).normal(x)
    torch.testing.assert_close(x, SHORT[0] * factor * z, rtol=1e-8, atol=0)


def test_noise_and_corrections_break_the_line_of_multisteps():
    always = {"churn": Churn(4.0)}, {"corrector": Corrector(ULA(0.2))}
    for own in always:
        assert torch.equal(draw(Multistep(SHORT, **own), 20), draw(Euler(SHORT, **own), 20))
    assert not torch.equal(draw(Multistep(SHORT), 20), draw(Euler(SHORT), 20))
    # noise at one level only: the line begins anew from the level it starts at
    once = Multistep((4.0, 2.0, 1.0, 0.5), Churn(1.2, low=1.5, high=3.0))
    s, x = 1.5, draw(once, 20, energy=gaussian())
    streams = Streams(int(torch.randint(2**32, (), generator=seeded())), range(20))
    clean = lambda y, sigma: y * s**2 / (s**2 + sigma**2)
    euler = lambda y, sigma, after: y + (after - sigma) * (y - clean(y, sigma)) / sigma
    y = euler(4.0 * streams.normal(x), 4.0, 2.0)
    high = 2 * 1.3
    y = y + math.sqrt(high**2 - 4) * streams.normal(x)
    past, y = y, euler(y, high, 1.0)
    bend = (math.log(2) - 1 + 0.5) / math.log(high)
    y = euler(y, 1.0, 0.5) + bend * (clean(y, 1.0) - clean(past, high))
    torch.testing.assert_close(x, clean(y, 0.5), rtol=1e-9, atol=1e-12)


def test_the_flow_of_a_gaussian():
    s, high, low = 1.5, 20.0, 0.05
    x = draw(Heun(karras(500, low, high)), 50, energy=gaussian(s))
    start = draw(Euler((high,)), 50, energy=gaussian(s)) * (s**2 + high**2) / s**2
    exact = start * math.sqrt((s**2 + low**2) / (s**2 + high**2)) * s**2 / (s**2 + low**2)
    torch.testing.assert_close(x, exact, rtol=1e-4, atol=0)


@pytest.fixture(scope="module")
def fine():
    return draw(Heun(karras(2**11 + 1, 0.05, 20.0)), 50, dtype=torch.float64)


@pytest.mark.parametrize(
    ("method", "order"), [(Euler, 1), (Heun, 2), (Multistep, 2), (Multistep3, 3)]
)
def test_order_of_convergence(method, order, fine):
    # the last is so exact that finer ladders come near to the error of the fine one
    ladders = [karras(2**k + 1, 0.05, 20.0) for k in ((5, 6) if order == 3 else (7, 8))]
    errors = [(draw(method(v), 50) - fine).square().mean().sqrt() for v in ladders]
    rate = math.log2(errors[0] / errors[1])
    assert rate == pytest.approx(order, abs=0.2 if order == 3 else 0.1)
    assert method.order == order


def test_churn_adds_noise_and_starts_higher():
    s, sigma = 1.5, 2.0
    high = sigma * (1 + 0.3)
    x = draw(Euler((sigma,), Churn(0.3, noise=1.1)), 50, energy=gaussian(s))
    streams = Streams(int(torch.randint(2**32, (), generator=seeded())), range(50))
    start = sigma * streams.normal(x) + 1.1 * math.sqrt(high**2 - sigma**2) * streams.normal(x)
    torch.testing.assert_close(x, start * s**2 / (s**2 + high**2), rtol=1e-12, atol=0)


def test_churn_keeps_to_its_levels():
    churn = Churn(3.0, low=0.5, high=10.0)
    assert [churn.level(s, 10) for s in (0.4, 0.5, 10.0, 11.0)] == pytest.approx([
        0.4,
        0.65,
        13.0,
        11.0,
    ])
    assert churn.level(1.0, 2) == pytest.approx(math.sqrt(2))  # no more than doubles the variance
    outside = Churn(3.0, low=30.0)
    assert torch.equal(draw(Heun(SHORT, outside), 20), draw(Heun(SHORT), 20))


def test_a_correction_is_a_transition_at_the_level():
    r"""One transition of ULA with r = 0.2: x - 0.1 sigma^2 grad E + sqrt(0.2) sigma z."""
    s, (high, low) = 1.5, (4.0, 0.8)
    x = draw(Euler((high, low), corrector=Corrector(ULA(0.2))), 50, energy=gaussian(s))
    streams = Streams(int(torch.randint(2**32, (), generator=seeded())), range(50))
    y = high * streams.normal(x) * (1 + (low - high) * high / (s**2 + high**2))
    y = y * (1 - 0.1 * low**2 / (s**2 + low**2)) + math.sqrt(0.2) * low * streams.normal(x)
    torch.testing.assert_close(x, y * s**2 / (s**2 + low**2), rtol=1e-12, atol=0)


# The law of the samples


@pytest.mark.parametrize(
    "flow",
    [
        Heun(),
        Euler(karras(200)),
        Multistep(karras(30)),
        Heun(karras(60), Churn(30.0)),
        Heun(corrector=Corrector(MALA(1.0), 2)),
        Heun(karras(30), Churn(15.0), Corrector(MALA(1.0))),
    ],
    ids=["heun", "euler", "multistep", "churn", "corrected", "all"],
)
def test_samples_have_the_law_of_the_data(flow):
    n = 4000
    x = draw(flow, n, seed=1)
    w, means = MIXTURE.weights, MIXTURE.means
    mean = w @ means
    second = MIXTURE.covariances + means[:, :, None] * means[:, None]
    covariance = (w[:, None, None] * second).sum(0) - torch.outer(mean, mean)
    products = (x - mean)[:, :, None] * (x - mean)[:, None]
    error = lambda v: 5 * v.std(0) / math.sqrt(n)
    assert ((x.mean(0) - mean).abs() < error(x)).all()
    assert ((products.mean(0) - covariance).abs() < error(products)).all()
    modes = nn.functional.one_hot(MIXTURE.parts(x)[0].argmax(0), 3).double()
    truth = MIXTURE.sample(200_000, seeded(2))
    shares = nn.functional.one_hot(MIXTURE.parts(truth)[0].argmax(0), 3).double().mean(0)
    assert ((modes.mean(0) - shares).abs() < error(modes)).all()
    exact = [MIXTURE.sample(1000, seeded(seed)) for seed in range(3, 8)]
    floor = [energy_distance(a, b) for a, b in itertools.combinations(exact, 2)]
    assert abs(energy_distance(x[:1000], exact[0])) < 5 * torch.tensor(floor).std()


@pytest.mark.parametrize("flow", [Heun(karras(5, 0.05, 20.0)), Euler(karras(8, 0.05, 20.0))])
def test_the_corrector_repairs_coarse_steps(flow):
    truth = MIXTURE.sample(4000, seeded(3))
    corrected = dataclasses.replace(flow, corrector=Corrector(MALA(2.0), 5))
    coarse = energy_distance(draw(flow, 4000, seed=1), truth)
    better = energy_distance(draw(corrected, 4000, seed=1), truth)
    assert better < coarse / 4


def test_churn_with_too_much_noise_is_seen():
    r"""The law of the samples depends on the noise being the right one."""
    truth = MIXTURE.sample(4000, seeded(3))
    right, wrong = (
        energy_distance(draw(Heun(karras(60), Churn(30.0, noise=s)), 4000, seed=1), truth)
        for s in (1.0, 1.2)
    )
    assert wrong > 5 * abs(right)


def test_tuning_finds_the_target():
    energy = Diffused(Gaussian(torch.zeros(20), 0.25))
    corrector = Corrector(MALA(1e-2, target=0.6, warmup=60), 5)
    flow = Heun(karras(12, 0.05, 20.0), corrector=corrector).tune(energy, (20,), seeded())
    assert len(flow.corrector.step_sizes) == 11
    rates = flow.run(energy, 200, (20,), seeded(1)).acceptance
    assert rates.shape == (11, 200)
    assert ((rates.mean(1) - 0.6).abs() < 0.05).all()
    again = flow.tune(energy, (20,), seeded())  # from the sampler's own step size once more
    assert again == flow


# The contract


@everyone
def test_flows_are_values(flow):
    assert flow == dataclasses.replace(flow) and hash(flow) == hash(dataclasses.replace(flow))
    assert dataclasses.replace(flow, levels=list(flow.levels)) == flow
    with pytest.raises(dataclasses.FrozenInstanceError):
        flow.levels = (1.0,)


@everyone
def test_a_sample_is_the_same_for_any_number_and_batch(flow):
    whole = flow.run(ENERGY, 13, (2,), seeded(4))
    split = flow.run(ENERGY, 13, (2,), seeded(4), batch=5)
    torch.testing.assert_close(split.samples, whole.samples, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(split.acceptance, whole.acceptance, rtol=1e-9, atol=1e-9)
    few = draw(flow, 3, seed=4)
    torch.testing.assert_close(few, whole.samples[:3], rtol=1e-9, atol=1e-9)
    late = draw(flow, 4, seed=4, first=9)
    torch.testing.assert_close(late, whole.samples[9:], rtol=1e-9, atol=1e-9)


@everyone
def test_randomness_is_an_argument(flow):
    runs = [draw(flow, 5, seed) for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(flow.run(ENERGY, 5, (2,)).samples, runs[0])


@everyone
def test_evaluations_are_counted(flow):
    calls = []

    def energy(x, sigma):
        calls.append(len(x))
        return ENERGY(x, sigma)

    assert flow.run(energy, 7, (2,), seeded()).evaluations == len(calls)


@everyone
def test_shapes(flow):
    samples, _, acceptance = flow.run(gaussian(), 4, (3, 2, 2), seeded(), dtype=torch.float32)
    assert samples.shape == (4, 3, 2, 2) and samples.dtype == torch.float32
    if flow.corrector is None:
        assert acceptance is None
    else:
        assert acceptance.shape == (len(flow.levels) - 1, 4)
        assert (acceptance > 0).all() and (acceptance <= 1).all()


def test_streams_are_independent():
    x = torch.empty(20_000, 2)
    streams = Streams(2**32 - 7, range(20_000))  # seeds go round
    draws = [streams.normal(x), streams.normal(x), Streams(0, range(3, 20_003)).normal(x)]
    pairs = [z[1:] * z[:-1] for z in draws] + [draws[0] * draws[1], draws[0] * draws[0].flip(1)]
    values = [*draws, *((z.square() - 1) / math.sqrt(2) for z in draws), *pairs]
    for v in values:
        assert (v.mean(0).abs() < 5 / math.sqrt(len(v))).all()
    u = streams.uniform(x)
    assert (u >= 0).all() and (u < 1).all() and (u.mean() - 0.5).abs() < 5 / math.sqrt(12 * len(u))
    torch.testing.assert_close(draws[2][:5], Streams(0, range(3, 8)).normal(x[:5]))


def test_one_stream_is_the_generator():
    x = torch.empty(4, 3)
    assert torch.equal(Stream(seeded()).normal(x), torch.randn(4, 3, generator=seeded()))
    assert torch.equal(Stream(seeded()).uniform(x), torch.rand(4, generator=seeded()))


# Energies of many kinds


class Denoising:
    r"""An energy with a denoiser, and no gradient: it must not be asked for one."""

    def __call__(self, x, sigma):
        raise AssertionError

    def denoise(self, x, sigma):
        return x - sigma**2 * ENERGY.at(sigma).jet(x).gradient


def test_a_denoiser_is_used():
    torch.testing.assert_close(
        draw(Heun(SHORT), 20, energy=Denoising()), draw(Heun(SHORT), 20), rtol=1e-9, atol=1e-9
    )


def test_images_of_a_network():
    torch.manual_seed(0)
    energy = UNetEnergy(1, width=8, multipliers=(1, 2), blocks=1, head=8)
    with torch.no_grad():
        for p in energy.parameters():
            p.add_(0.05 * torch.randn_like(p))
    flow = Heun(karras(4), corrector=Corrector(MALA(0.1)))
    x, y = (
        flow.run(e, 3, (1, 8, 8), seeded(), batch=2, dtype=torch.float32).samples
        for e in (energy, energy.forward)  # a function has no denoiser
    )
    assert x.shape == (3, 1, 8, 8) and not x.requires_grad
    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)
    assert all(p.grad is None for p in energy.parameters())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, sigma):
        v = 1 + sigma**2
        level = torch.log(sigma).expand(len(x), 1)
        g = self.layers(torch.cat([x / v.sqrt(), level], dim=1)).squeeze(1)
        return x.square().sum(1) / (2 * v) + g


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the compiler's own
def test_compiled_is_eager():
    torch.manual_seed(0)
    energy, flow = Net(), EXAMPLES["mala"]
    field = CompiledField(energy)
    for _ in range(2):
        eager, fast = (flow.run(e, 7, (2,), seeded(), batch=4) for e in (energy, field))
        torch.testing.assert_close(fast.samples, eager.samples, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(fast.acceptance, eager.acceptance, rtol=1e-7, atol=1e-9)
        assert len(field.traces) == 2  # slope and jet, of whole batches
        with torch.no_grad():  # the parameters are read anew
            for p in energy.parameters():
                p.mul_(1.5)


# What is not finite, and bad input


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("flow", [Euler(SHORT), Heun(SHORT)], ids=["euler", "heun"])
def test_a_score_that_is_not_finite_names_its_level(flow, bad):
    energy = lambda x, sigma: ENERGY(x, sigma) * (1.0 if sigma > 1.5 else bad)
    with pytest.raises(
        FloatingPointError, match=r"at sigma 1\.034, got .* 5 of 5 points.* index 0"
    ):
        draw(flow, 5, energy=energy)


def test_a_correction_that_is_not_finite_names_its_level():
    def energy(x, sigma):  # NaN only at the proposals: two calls of a step, one at the start
        calls.append(1)
        return ENERGY(x, sigma) * (math.nan if len(calls) == 4 else 1.0)

    calls = []
    flow = Heun(SHORT, corrector=Corrector(MALA(0.5)))
    with pytest.raises(FloatingPointError, match=r"at sigma 8\.503: expected an energy"):
        draw(flow, 5, energy=energy)


def test_a_diverging_corrector_names_its_level():
    quartic = lambda x, sigma: (x / sigma).pow(4).sum(1)
    with pytest.raises(FloatingPointError, match=r"finite score at sigma \d"):
        draw(Euler(SHORT, corrector=Corrector(ULA(2.0), 20)), 5, energy=quartic)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: karras(1), "two steps or more .* got steps=1"),
        (
            lambda: karras(5, 2.0, 1.0),
            "sigma_min < sigma_max, got .* sigma_min=2.0, sigma_max=1.0",
        ),
        (lambda: karras(rho=0.0), "rho to be a finite number > 0, got 0.0"),
        (lambda: Heun(()), "one level or more, got none"),
        (lambda: Heun((1.0, 2.0)), r"falling levels, got \(1.0, 2.0\)"),
        (lambda: Heun((1.0, 0.0)), r"levels\[1\] to be a finite number > 0, got 0.0"),
        (lambda: Churn(0.0), "amount to be a finite number > 0, got 0.0"),
        (lambda: Churn(1.0, 2.0, 1.0), "0 <= low <= high, got low=2.0, high=1.0"),
        (lambda: Churn(1.0, math.nan), "0 <= low <= high, got low=nan"),
        (lambda: Churn(1.0, noise=-1.0), "noise to be a finite number > 0, got -1.0"),
        (lambda: Corrector("mala"), r"sampler to be a Langevin \(ULA, MALA\), got 'mala'"),
        (lambda: Corrector(transitions=0), "transitions to be an integer >= 1, got 0"),
        (lambda: Corrector(step_sizes=(0.1, -1.0)), r"step_sizes\[1\] .* > 0, got -1.0"),
        (lambda: Heun((1.0,), corrector=Corrector()), "two levels or more .* got one"),
        (
            lambda: Heun((2.0, 1.0), corrector=Corrector(step_sizes=(0.1, 0.1))),
            "one step size a level but the first, 1, got 2",
        ),
        (lambda: Field(3), r"callable energy of \(x, sigma\), got 3"),
    ],
)
def test_bad_flows(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Shrinking:
    def denoise(self, x, sigma):
        return x[:1]

    def __call__(self, x, sigma):
        return x.sum(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n to be an integer >= 1, got 0"),
        ({"batch": 0}, "batch to be an integer >= 1, got 0"),
        ({"first": -1}, "first to be an integer >= 0, got -1"),
        ({"shape": ()}, r"shape of one axis or more, got \(\)"),
        ({"shape": (2, 0)}, r"shape\[1\] to be an integer >= 1, got 0"),
        ({"energy": lambda x, sigma: x}, r"map points \(3, 2\) to values \(3,\), got shape"),
        ({"energy": Shrinking()}, r"keep the shape \(3, 2\) of its points, got \(1, 2\)"),
    ],
)
def test_bad_runs(arguments, message):
    with pytest.raises(ValueError, match=message):
        Heun(SHORT).run(**({"energy": gaussian(), "n": 3, "shape": (2,)} | arguments))


def test_a_warmup_asks_for_tuning():
    flow = Heun(SHORT, corrector=Corrector(MALA(0.1, warmup=5)))
    with pytest.raises(
        ValueError, match=r"without a warmup, or with the step sizes of Flow\.tune"
    ):
        draw(flow, 3)
    for other in (Heun(SHORT), Heun(SHORT, corrector=Corrector(MALA(0.1)))):
        with pytest.raises(ValueError, match="a corrector of MALA with a warmup to tune, got"):
            other.tune(ENERGY, (2,))


# Guidance


def test_the_guided_flow_of_a_gaussian():
    r"""d log x / dσ = w σ/(s² + σ²) − (w − 1) σ/(r² + σ²), an integral in closed form."""
    s, r, w, high, low = 0.7, 1.1, 1.6, 20.0, 0.05
    energy = Guided(gaussian(s), gaussian(r), w)
    x = draw(Heun(karras(200, low, high)), 50, energy=energy)
    plain = draw(Heun(karras(200, low, high)), 50, energy=gaussian(s))
    power = lambda v, a: ((v**2 + low**2) / (v**2 + high**2)) ** (a / 2)
    # both end with a step of Euler's to zero
    last = lambda a: 1 - a * low**2
    share = w / (s**2 + low**2) - (w - 1) / (r**2 + low**2)
    factor = power(s, w - 1) / power(r, w - 1) * last(share) / last(1 / (s**2 + low**2))
    torch.testing.assert_close(x, factor * plain, rtol=1e-3, atol=0)


def test_guidance_is_a_sum_of_energies_and_of_denoisers():
    class Denoiser(nn.Module):
        def denoise(self, x, sigma):
            return x / (1 + sigma**2)  # of N(0, 1)

    x, sigma = torch.randn(7, 2), torch.tensor(0.8)
    energy = Guided(gaussian(1.0), gaussian(2.0), 3.0)
    torch.testing.assert_close(
        energy(x, sigma), 3 * gaussian(1.0)(x, sigma) - 2 * gaussian(2.0)(x, sigma)
    )
    by_energies = Field(energy).slope(x, 0.8)
    torch.testing.assert_close(by_energies, 0.8 * Field(energy).jet(x, 0.8)[1])
    by_denoiser = Field(Guided(Denoiser(), gaussian(2.0), 3.0)).slope(x, 0.8)
    torch.testing.assert_close(by_denoiser, by_energies)
    torch.testing.assert_close(
        Field(Guided(gaussian(1.0), gaussian(2.0), 1.0)).slope(x, 0.8),
        Field(gaussian(1.0)).slope(x, 0.8),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the compiler's own
def test_what_is_compiled_serves_all_weights_of_guidance():
    energy = Guided(gaussian(1.0), gaussian(2.0), 1.5)
    field, x = CompiledField(energy), torch.randn(4, 2)
    for w in (1.5, 3.0):
        energy.weight.fill_(w)
        torch.testing.assert_close(field.slope(x, 0.8), Field(energy).slope(x, 0.8))
    assert len(field.traces) == 1


def test_a_corrector_accepts_by_the_guided_energy():
    s, r, w, sigma = 0.7, 1.1, 2.0, 0.5
    energy = Guided(gaussian(s), gaussian(r), w)
    corrector = Corrector(MALA(1.5), 40)
    x = draw(Heun((2.0, sigma), corrector=corrector), 2000, energy=energy)
    share = w / (s**2 + sigma**2) - (w - 1) / (r**2 + sigma**2)
    last = 1 - share * sigma**2  # of Euler's step to zero
    assert float(x.std()) == pytest.approx(abs(last) / math.sqrt(share), rel=0.05)


@pytest.mark.parametrize("weight", [0.5, math.nan, math.inf, 1e39, "2"])
def test_a_weight_of_guidance_that_is_none(weight):
    with pytest.raises(ValueError, match="expected a weight of guidance from 1 to 1000, got"):
        Guided(gaussian(1.0), gaussian(2.0), weight)


@everyone
def test_a_watched_field_counts_the_evaluations(flow):
    seen = []
    field = Field(ENERGY, watch=lambda: seen.append(1))
    flow.run(field, 5, (2,), seeded(), batch=3)
    assert len(seen) == 2 * flow.evaluations


def test_the_study_of_flows(monkeypatch, tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    out = tmp_path / "results" / "flows.json"
    monkeypatch.setattr(UNetEnergy, "denoise", lambda self, x, sigma: x / (1 + sigma**2))
    args = ["reproduce", "flows", "--runs", "cifar10", "--images", "1", "--fine", "5"]
    args += ["--evaluations", "8", "--rhos", "7", "5", "--lowest", "0.002", "--out", str(out)]
    main(args)
    assert "cifar10, 8 evaluations: --sampler " in capsys.readouterr().out
    main(args)
    rows = results.load(out)["rows"]
    assert len(rows) == len(flows.TRIALS) + 6  # each once
    found = {(r["sampler"], r["steps"], r["rho"]): r for r in rows}
    assert found["heun", 18, 7]["evaluations"] == 35
    assert found["multistep3", 24, 7]["evaluations"] == 24
    text = tables.render("<!-- results:flows -->\n<!-- /results -->", tmp_path)
    assert f"| heun | 18 | 35 | {found['heun', 18, 7]['error']:.4f} |" in text
    text = tables.render("<!-- results:schedules -->\n<!-- /results -->", tmp_path)
    assert "| cifar10 | 8 | " in text and text.count("\n") == 4
    out.unlink()
    text = tables.render("<!-- results:flows -->\n<!-- /results -->", tmp_path)
    assert "Not measured yet: `fokker reproduce flows" in text


def test_schedules_are_compared_by_their_distance_from_the_flow():
    trials = flows.schedules((9,), rhos=(1.0, 7.0), lowest=(0.01,))
    assert {(t.sampler, t.steps) for t in trials} == {
        ("heun", 5),
        ("multistep", 9),
        ("multistep3", 9),
    }
    assert all(t.evaluations == 9 for t in trials)
    rows = flows.measure(Field(ENERGY), trials, 20, (2,), 400, limit=lambda x: x)
    exact = draw(Heun(karras(400)), 20)
    for trial, row in zip(trials, rows, strict=True):
        x = draw(FLOWS[trial.sampler](trial.levels), 20)
        assert row["error"] == pytest.approx(float((x - exact).square().mean().sqrt()), rel=1e-9)
    best = flows.choose(rows, (9,))[9]
    assert best["rho"] == 7 and best["error"] == min(row["error"] for row in rows)
    assert flows.choose(rows, (8,)) == {}


def test_a_traced_field_is_the_plain_one():
    flow = Multistep3(SHORT)
    plain, traced = Field(ENERGY), TracedField(ENERGY)
    a, b = (flow.run(f, 7, (2,), seeded(), batch=4) for f in (plain, traced))
    torch.testing.assert_close(a.samples, b.samples, rtol=1e-12, atol=1e-14)
    assert field_of(ENERGY, "cpu").__class__ is Field and field_of(traced, "cpu") is traced
    assert type(field_of(ENERGY, "cuda")) is TracedField
    assert type(field_of(ENERGY, "cuda", compile=True)) is CompiledField


def test_what_a_capture_returns_is_copied(monkeypatch):
    r"""A replay fills the same memory again: here a function that does stands in for it."""

    class Replayed:
        def __init__(self, function, inputs):
            self.function, self.outputs = (
                function,
                [torch.empty_like(t) for t in function(*inputs)],
            )

        def __call__(self, *inputs):
            for place, value in zip(self.outputs, self.function(*inputs), strict=True):
                place.copy_(value)
            return self.outputs

    monkeypatch.setattr("fokker.compute.tracing.Captured", Replayed)
    original = field_module.trace
    monkeypatch.setattr(
        field_module, "trace", lambda *a, capture, **o: original(*a, capture=True, **o)
    )
    field, flow = TracedField(ENERGY), Multistep3(SHORT)
    a = flow.run(Field(ENERGY), 7, (2,), seeded(), batch=4)
    b = flow.run(field, 7, (2,), seeded(), batch=4)
    assert isinstance(next(iter(field.traces.values())).call, Replayed)
    torch.testing.assert_close(a.samples, b.samples, rtol=1e-12, atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_images_are_the_plain_ones(dtype):
    torch.set_default_dtype(torch.float32)
    energy = UNetEnergy(3, 32, (1, 2), 1, attention=(1,), head=32, fold=2, dtype=dtype)
    for p in energy.parameters():
        torch.nn.init.normal_(p, std=0.02)
    energy = energy.cuda().requires_grad_(False)
    sampling = Sampling("multistep3", 8)
    options = {"batch": 16, "device": "cuda"}
    captured = generate(energy, 40, (3, 16, 16), sampling, **options)  # the last batch is cut
    plain = generate(Field(energy), 40, (3, 16, 16), sampling, **options)
    off = (captured.images.int() - plain.images.int()).abs()
    assert off.max() <= (1 if dtype == "float32" else 4) and (off > 0).float().mean() < 0.05
