r"""The theorems of the paper, corrected, each against a closed form or a grid."""

import math
import numpy as np
import pytest
import torch

from conftest import standard_error
from fokker.analytic import Gaussian, GaussianMixture
from fokker.derivatives import Exact
from fokker.diffusions import EDM, VE, VP, Custom, Langevin, Linear
from fokker.energies import Energy
from fokker.evolution import MonteCarlo, Stationary, Taylor, bracket, transition
from fokker.grid import Grid
from fokker.objectives import (
    CD,
    DCD,
    EnergyDiscrepancy,
    RecoveryLikelihood,
    ScoreMatching,
)
from itertools import pairwise
from torch import tensor

# a diffusion with a nonlinear drift and a coefficient that moves: no closed form
BISTABLE = Custom(F=lambda x, t: torch.sin(x) - x / 2, G=lambda t: 1 + t / 2)
LINEAR = [VE(), VE(g=lambda t: 1 + t), EDM(), VP(beta_min=0.5, beta_max=3.0)]
ids = lambda d: type(d).__name__


def integrate(f, low, high, n=64):
    r"""Gauss–Legendre quadrature of a function of the time."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    half, middle = (high - low) / 2, (high + low) / 2
    return half * sum(w * f(middle + half * u) for u, w in zip(nodes, weights, strict=False))


def mixtures():
    p = GaussianMixture(tensor([[-1.5], [1.0]]), tensor([[[0.3]], [[0.2]]]), tensor([0.4, 0.6]))
    q = GaussianMixture(tensor([[-1.0], [1.3]]), tensor([[[0.5]], [[0.4]]]), tensor([0.7, 0.3]))
    return p, q


class Normal(Energy):
    r"""The energy of N(0, v) in one dimension, up to its constant, with v to be learned."""

    def __init__(self, v):
        super().__init__()
        self.v = torch.nn.Parameter(torch.tensor(float(v)))

    def forward(self, x):
        return x.square().sum(1) / (2 * self.v)


def gradient_in_v(objective, v, x, repeats, generator):
    r"""The gradient of an objective in v, with its standard error over independent calls."""
    energy = Normal(v)
    grads = []
    for chunk in x.chunk(repeats):
        loss = objective(energy, chunk, None, generator).loss
        grads.append(torch.autograd.grad(loss, energy.v)[0])
    grads = torch.stack(grads)
    return grads.mean(), standard_error(grads)


@pytest.mark.parametrize("diffusion", LINEAR, ids=ids)
@pytest.mark.parametrize("T", [0.1, 1.0])
def test_theorem_1_on_gaussians(diffusion, T):
    # both sides closed form: KL differences, and Fisher divergences integrated over time
    cov = tensor([[1.0, 0.4], [0.4, 0.5]])
    p, q = Gaussian(tensor([0.5, -1.0]), cov), Gaussian(tensor([-0.2, 0.3]), 1.7)
    left = p.kl(q) - p.diffuse(diffusion, T).kl(q.diffuse(diffusion, T))

    def rate(t):
        g = float(diffusion.coefficient(tensor(t)))
        return g**2 / 2 * float(p.diffuse(diffusion, t).fisher(q.diffuse(diffusion, t)))

    assert left > 0
    assert float(left) == pytest.approx(integrate(rate, 0, T), rel=1e-9)


def test_loss_is_integral_of_score_matching_losses():
    # L_DCD = E E(x_0) - E E^(T)(x_T) = int g^2 J(p_t, q_t) dt for VE, J the score matching loss
    p, q = mixtures()
    grid, diffusion, T = Grid(-16, 16, 2000, dim=1), VE(g=lambda t: 1 + t), 0.8
    x = grid.points()
    expect = lambda law, f: grid.integrate(torch.exp(-law(x)) * f)
    left = expect(p, q(x)) - expect(p.diffuse(diffusion, T), q.diffuse(diffusion, T)(x))

    def rate(t):
        jet = q.diffuse(diffusion, t).jet(x)
        sm = jet.gradient.square().sum(1) / 2 - jet.laplacian
        return (1 + t) ** 2 * float(expect(p.diffuse(diffusion, t), sm))

    assert float(left) == pytest.approx(integrate(rate, 0, T), rel=1e-8)


@pytest.mark.parametrize("diffusion", [VE(), VP(0.5, 3.0), BISTABLE], ids=ids)
def test_theorem_1_on_a_grid(diffusion):
    # the same beyond Gaussians and linear drifts, with the KL and the densities of the grid
    p, q = mixtures()
    grid, T = Grid(-8, 8, 160, dim=1), 0.6
    k = 2j * math.pi * torch.fft.fftfreq(grid.size, grid.spacing)

    def score(e):
        density = torch.exp(-e)
        return torch.fft.ifft(k * torch.fft.fft(density)).real / density

    def rate(t):
        pt, qt = (grid.evolve(e, diffusion, 0, t) for e in (p, q))
        likely = pt < 20  # the rest holds 1e-8 of the mass, and rounding
        fisher = grid.integrate((torch.exp(-pt) * (score(pt) - score(qt)) ** 2)[likely])
        return float(diffusion.coefficient(tensor(t)) ** 2 * fisher) / 2

    drop = grid.kl(grid.evaluate(p), grid.evaluate(q)) - grid.kl(
        grid.evolve(p, diffusion, 0, T), grid.evolve(q, diffusion, 0, T)
    )
    assert float(drop) == pytest.approx(integrate(rate, 0, T, n=6), rel=1e-5)


@pytest.mark.parametrize("diffusion", [VE(), VP(0.5, 3.0), BISTABLE], ids=ids)
def test_evolution_has_mean_zero_under_the_model(diffusion):
    # E_q O(E) = 0 is why the normalizing constant is kept
    _, q = mixtures()
    grid, s, t = Grid(-9, 9, 1200, dim=1), tensor(0.1), tensor(0.1 + 1e-3)
    x = grid.points()
    change = bracket(q.jet(x), diffusion.increment(x, s, t))
    mean = grid.integrate(torch.exp(-q(x)) * change)
    size = grid.integrate(torch.exp(-q(x)) * change.abs())
    assert abs(float(mean)) < 1e-10
    assert float(size) > 1e-5


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("diffusion", [VE(), EDM(), VP(0.5, 3.0), BISTABLE], ids=ids)
def test_taylor_step_is_of_second_order(diffusion, dim):
    # the one-step error against the grid falls fourfold as the step is halved
    means = torch.stack([torch.linspace(-1.2, 0.4, dim), torch.linspace(1.0, -0.6, dim)])
    q = GaussianMixture(means, 0.5)
    grid = Grid(-7, 7, 280 if dim == 1 else 96, dim=dim)
    x, s = grid.points(), 0.2
    likely = torch.exp(-q(x)) > 1e-3
    error = []
    for h in (0.02, 0.01, 0.005):
        exact = grid.evolve(q, diffusion, s, s + h)
        step = q(x) + bracket(q.jet(x), diffusion.increment(x, tensor(s), tensor(s + h)))
        error.append(float((step - exact)[likely].abs().max()))
    ratios = [a / b for a, b in pairwise(error)]
    assert error[-1] > 1e-7  # far above rounding: the ratios mean something
    assert all(3.5 < r < 4.5 for r in ratios), ratios


def test_first_step_of_edm_uses_the_increment_of_the_variance():
    # from t = 0, where G = 0: the error is of order sigma^4 = h^4; with G(0)^2 h it would stay
    q = GaussianMixture(tensor([[-1.2], [0.4]]), 0.5)
    grid = Grid(-7, 7, 280, dim=1)
    x, zero = grid.points(), tensor(0.0)
    likely = torch.exp(-q(x)) > 1e-3
    error = []
    for h in (0.2, 0.1, 0.05):
        exact = grid.evolve(q, EDM(), 0.0, h)
        step = q(x) + bracket(q.jet(x), EDM().increment(x, zero, tensor(h)))
        error.append(float((step - exact)[likely].abs().max()))
    assert all(14 < a / b < 18 for a, b in pairwise(error)), error


@pytest.mark.parametrize("diffusion", LINEAR, ids=ids)
def test_grid_evolution_equals_closed_form(diffusion):
    p, _ = mixtures()
    grid = Grid(-10, 10, 500, dim=1)
    x = grid.points()
    exact = p.diffuse(diffusion, 0.7)(x)
    likely = exact < 15
    assert (grid.evolve(p, diffusion, 0, 0.7) - exact)[likely].abs().max() < 1e-8


def test_fokker_planck_solver_equals_closed_form():
    # an Ornstein–Uhlenbeck process handed in as a general diffusion
    p, _ = mixtures()
    vp = VP(1.0, 2.0)
    general = Custom(F=vp.drift, G=vp.coefficient)
    grid = Grid(-8, 8, 256, dim=1)
    exact, solved = grid.evolve(p, vp, 0.1, 0.6), grid.evolve(p, general, 0.1, 0.6)
    likely = exact < 12
    assert (exact - solved)[likely].abs().max() < 1e-7


@pytest.mark.parametrize(("at", "bias"), [("end", 0.5), ("start", 0.0)])
def test_minimizer_of_one_step(at, bias, generator):
    # data N(0, s^2): the minimizer is s^2 + t with the bracket at x_t, and s^2 at x_0
    s2, t = 1.0, 0.5
    objective = DCD(VE(), Taylor(at), step=t, antithetic=True)
    x = math.sqrt(s2) * torch.randn(400_000, 1, generator=generator)
    mean, se = gradient_in_v(objective, s2 + bias, x, 100, generator)
    assert abs(mean) < 5 * se
    for wrong in (s2 + 0.25, s2 + (0.5 - bias)):
        mean, se = gradient_in_v(objective, wrong, x, 100, generator)
        assert abs(mean) > 8 * se


def cd_gradients(v, s2, T):
    r"""The true and the stop-gradient derivative of D_CD in v, on Gaussians."""
    v = torch.tensor(v, requires_grad=True)
    kl = lambda a, b: (a / b - 1 - torch.log(a / b)) / 2
    VT = v + (s2 - v) * torch.exp(-T / v)  # the Langevin process of N(0, v) from N(0, s2)
    (true,) = torch.autograd.grad(kl(torch.tensor(s2), v) - kl(VT, v), v, retain_graph=True)
    (kept,) = torch.autograd.grad(s2 / (2 * v) - VT.detach() / (2 * v), v)
    return float(true), float(kept)


def test_stop_gradient_keeps_half_the_gradient(generator):
    # as T = steps h goes to zero: 0.52 of the true one at T = 0.1
    v, s2, steps, h = 1.5, 1.0, 20, 5e-3
    x = math.sqrt(s2) * torch.randn(400_000, 1, generator=generator)
    mean, se = gradient_in_v(CD(steps, h), v, x, 50, generator)
    true, _ = cd_gradients(v, s2, steps * h)
    assert abs(mean - 0.52 * true) < 5 * se + 2 * h * true  # and the O(h) bias of the chain
    assert mean > 8 * se and true - mean > 8 * se


def test_cd_has_the_stop_gradient(generator):
    # at a time where more than half is left
    v, s2, steps, h = 1.5, 1.0, 50, 2e-2
    x = math.sqrt(s2) * torch.randn(80_000, 1, generator=generator)
    mean, se = gradient_in_v(CD(steps, h), v, x, 50, generator)
    true, kept = cd_gradients(v, s2, steps * h)
    assert abs(mean - kept) < 5 * se + 2 * h * kept
    assert mean - true / 2 > 8 * se and true - mean > 8 * se


def test_cd_is_dcd_with_the_langevin_diffusion():
    q, x = mixtures()[1], torch.randn(64, 1)
    h = 0.01
    cd = CD(steps=1, step_size=h)(q, x, None, torch.Generator().manual_seed(1))
    objective = DCD(Langevin(q), Stationary(), step=h, rate=False)
    dcd = objective(q, x, None, torch.Generator().manual_seed(1))
    assert float(cd.loss) == pytest.approx(float(dcd.loss), rel=1e-12)


def test_langevin_keeps_its_own_density():
    # the change of the energy under its own diffusion is zero, point by point
    q, x = mixtures()[1], torch.linspace(-3, 3, 50)[:, None]
    inc = Langevin(q).increment(x, tensor(0.0), tensor(0.1))
    assert bracket(q.jet(x), inc).abs().max() < 1e-12


@pytest.mark.parametrize("at", ["start", "end"])
def test_short_time_limit_is_score_matching(at, generator):
    _, q = mixtures()
    p, _ = mixtures()
    x = p.sample(200_000, generator)
    exact = ScoreMatching()(q, x).loss
    loss = DCD(VE(), Taylor(at), step=1e-8, antithetic=True)(q, x, None, generator).loss
    # per point the paired contrast differs from half the Laplacian by (eps^2 - 1) H / 2
    spread = Exact()(q, x).laplacian.square().mean().sqrt() / math.sqrt(2 * len(x))
    assert abs(loss - exact) < 5 * spread
    far = DCD(VE(), Taylor(at), step=1e-1, antithetic=True)(q, x, None, generator).loss
    assert abs(far - exact) > 5 * spread


def test_long_time_limit_is_maximum_likelihood():
    # E^(T)(x_T) stops seeing theta but through log Z, so differences of L are those of the NLL
    p, _ = mixtures()
    grid = Grid(-9, 9, 900, dim=1)
    x, expect = grid.points(), lambda law, f: grid.integrate(torch.exp(-law(x)) * f)
    wide = Grid(-60, 60, 4000, dim=1)
    y = wide.points()

    def loss(q, T):
        late, law = q.diffuse(VE(), T)(y), p.diffuse(VE(), T)(y)
        return expect(p, q(x)) - wide.integrate(torch.exp(-law) * late)

    a, b = mixtures()[1], Gaussian(tensor([0.3]), 1.5)
    nll = float(expect(p, a(x)) - expect(p, b(x)))
    gap = [abs(float(loss(a, T) - loss(b, T)) - nll) for T in (1.0, 10.0, 60.0)]
    assert gap[0] > gap[1] > gap[2]
    assert gap[2] < 2e-3 * abs(nll)


def gaussian_dcd(v, s2, t):
    r"""L_DCD on Gaussians for VE, exact: data N(0, s2), energy x^2 / 2v."""
    late = v + t
    return s2 / (2 * v) - (s2 + t) / (2 * late) - (torch.log(late) - torch.log(v)) / 2


def test_recovery_likelihood_has_the_gradient_of_dcd(generator):
    v, s2, sigma = 1.4, 0.8, 0.5
    parameter = torch.tensor(v, requires_grad=True)
    (exact,) = torch.autograd.grad(gaussian_dcd(parameter, s2, sigma**2), parameter)
    x = math.sqrt(s2) * torch.randn(100_000, 1, generator=generator)
    objective = RecoveryLikelihood(sigma, steps=200, stride=0.3)
    mean, se = gradient_in_v(objective, v, x, 20, generator)
    # the chain settles at variance post / (1 - h / 4 post), which enters E x^2 / 2 v^2
    post, h = v * sigma**2 / (v + sigma**2), (0.3 * sigma) ** 2
    bias = post * (1 / (1 - h / (4 * post)) - 1) / (2 * v**2)
    assert abs(mean - bias - exact) < 5 * se
    assert abs(mean) > 8 * se


def test_energy_discrepancy_converges_at_rate_one_over_m(generator):
    v, s2, sigma = torch.tensor(0.6), 0.8, 0.7
    exact = float(gaussian_dcd(v, s2, sigma**2))
    x = math.sqrt(s2) * torch.randn(400_000, 1, generator=generator)
    bias, errors = [], []
    for M in (8, 32, 128):
        objective = EnergyDiscrepancy(sigma, samples=M, stabilizer=0.0)
        with torch.no_grad():
            losses = [objective(Normal(v), c, None, generator).loss for c in x.chunk(100)]
        losses = torch.stack(losses)
        bias.append(float(losses.mean()) - exact)
        errors.append(float(standard_error(losses)))
    # the same data throughout: what is left of its own sampling error is in the last bias
    assert abs(bias[2]) < 5 * errors[2] + abs(bias[1])
    ratio = (bias[0] - bias[2]) / (bias[1] - bias[2])
    expected = (1 / 8 - 1 / 128) / (1 / 32 - 1 / 128)
    slack = 5 * math.hypot(errors[0], errors[1]) / abs(bias[1] - bias[2])
    assert abs(ratio - expected) < max(slack, 0.25 * expected)
    assert abs(bias[0]) > 8 * errors[0]


@pytest.mark.parametrize("diffusion", [VE(), VP(0.5, 3.0)], ids=ids)
def test_monte_carlo_evolution_is_exact_for_many_samples(diffusion, generator):
    _, q = mixtures()
    assert isinstance(diffusion, Linear)
    x, t = torch.linspace(-2, 2, 9)[:, None], tensor(0.4)
    step = transition(diffusion, x, torch.zeros_like(t), t, False, generator)
    M = 200_000
    out = MonteCarlo(M, 0.0)(q, step, Exact(), generator)
    exact = q.diffuse(diffusion, t)(step.y[0])
    # delta method: the error of -log mean w is the coefficient of variation of w over sqrt(M)
    alpha, sigma = diffusion.transition(torch.zeros_like(t), t)
    z = torch.randn(20_000, 9, 1, generator=generator)
    w = torch.exp(-q(((step.y[0] - sigma * z) / alpha).reshape(-1, 1)).reshape(-1, 9))
    se = w.std(0) / w.mean(0) / math.sqrt(M)
    assert ((out.end - exact).abs() < 5 * se).all()
    assert torch.equal(out.start, q(x))


def test_dcd_is_not_negative_and_tends_to_the_fisher_divergence():
    p, q = Gaussian(tensor([0.5]), 0.7), Gaussian(tensor([-0.1]), 1.2)
    fisher = float(p.fisher(q))
    values = []
    for t in (1e-1, 1e-2, 1e-3):
        dcd = float(p.kl(q) - p.diffuse(VE(), t).kl(q.diffuse(VE(), t)))
        assert dcd > 0
        values.append(abs(dcd / (t / 2) - fisher))
    assert values[0] > values[1] > values[2]
    assert values[2] < 5e-3 * fisher
