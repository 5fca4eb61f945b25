r"""Laws of noise levels, VP through VE, and the score in time, against closed forms."""

import math
import pytest
import torch

from conftest import Diffused, standard_error, three_modes
from fokker.derivatives import Exact
from fokker.diffusions import VP
from fokker.energies import Energy
from fokker.evolution import Taylor, transition
from fokker.objectives import (
    Classification,
    Grid,
    LevelDCD,
    LogNormal,
    Preserving,
    TimeScore,
    Uniform,
    Wide,
    lens,
)
from fokker.objectives.levels import FORMS, Bridge, Central, Hutchinson, Limit, Path
from fokker.runs.config import Config
from fokker.runs.toml import dumps, loads
from fokker.shapes import align
from torch import Tensor

S2, D = 0.5, 3  # the variance of the data, its dimension
LAWS = [
    Uniform(0.1, 2.0),
    Grid(20, 0.1, 2.0),
    Grid(8, 0.0, 2.0, 1.0),
    LogNormal(),
    Preserving(),
    Wide(),
]


class Gaussian(Energy):
    r"""a ‖x‖² / 2 (s² + σ²) + k (D / 2) log(s² + σ²): of N(0, s²) with noise, if a and k are 1."""

    def __init__(self, a: float = 1.0, k: float = 1.0) -> None:
        super().__init__()
        self.a, self.k = (torch.nn.Parameter(torch.tensor(v)) for v in (a, k))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        v = S2 + sigma**2
        return self.a * x.square().sum(1) / (2 * v) + self.k * D / 2 * torch.log(v)


def slopes(objective: LevelDCD, a: float = 1.0, k: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""The expected derivatives in a and k, and their standard errors."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(40):
        energy = Gaussian(a, k)
        x = math.sqrt(S2) * torch.randn(2000, D, generator=generator)
        objective(energy, x, None, generator).loss.backward()
        parts.append(
            torch.stack([
                p.grad if p.grad is not None else torch.zeros(()) for p in (energy.a, energy.k)
            ])
        )
    parts = torch.stack(parts)
    return parts.mean(0), standard_error(parts)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize(
    "form", [Limit(), Central(), Path(0.2), Hutchinson(0.2), Hutchinson(0.0)], ids=str
)
def test_the_truth_is_stationary_at_every_law(law, form):
    objective = LevelDCD(law, form, conditional=True)
    mean, error = slopes(objective)
    assert abs(mean[0]) < 5 * error[0]
    for a in (0.8, 1.25):  # and nothing else is
        mean, error = slopes(objective, a)
        assert mean[0] * (a - 1) > 0 and abs(mean[0]) > 10 * error[0]
    assert abs(mean[1]) < 1e-10  # blind to constants, up to rounding


def test_a_grid_steps_between_neighbors():
    grid = Grid(5, 0.1, 3.0)
    levels = torch.tensor(grid.levels())
    before, after = grid.pair(torch.empty(4000, 1))
    i = torch.searchsorted(levels, after - 1e-9)
    assert torch.allclose(levels[i], after) and torch.allclose(levels[i - 1], before)
    assert set(i.tolist()) == {1, 2, 3, 4, 5}
    assert torch.allclose(Grid(4, 0.0, 1.0, 1.0).pair(torch.empty(9, 1))[1] % 0.25, torch.zeros(9))
    seen = []

    class Spy(Gaussian):
        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            seen.append(sigma)
            return super().forward(x, sigma)

    LevelDCD(grid, Bridge(), conditional=True)(Spy(), torch.randn(50, D))
    assert len(seen) == 3 and torch.equal(seen[1], seen[0])  # the same energy at both points
    assert torch.equal(seen[2], seen[0])
    assert torch.isin(seen[0].round(decimals=9), levels[1:].round(decimals=9)).all()  # the later


def test_bounds_of_the_uniform_laws():
    t = Uniform(0.5, 2.0).sample(torch.empty(10_000, 1))
    assert 0.5 <= t.min() and t.max() <= 2.0
    assert abs(t.mean() - 1.25) < 5 * standard_error(t)
    vp = VP()
    law = Preserving(vp, 0.25, 0.25)
    zero, quarter = torch.zeros(()), torch.tensor(0.25)
    alpha, sigma = vp.transition(zero, quarter)
    assert torch.allclose(law.sample(torch.empty(2, 1)), (sigma / alpha).expand(2))


@pytest.mark.parametrize("law", [*LAWS, Preserving(VP(0.2, 3.0), 0.1)], ids=str)
def test_laws_are_saved(law):
    config = Config(
        objective=LevelDCD(law, conditional=True, ties=(TimeScore(0.5), Classification(2.0, 3)))
    )
    assert loads(dumps(config)) == config


@pytest.mark.parametrize("form", [*FORMS, "draws"])
def test_forms_are_saved(form):
    value = Bridge(0.1, draws=4) if form == "draws" else FORMS[form]()
    config = Config(objective=LevelDCD(0.3, value))
    assert loads(dumps(config)) == config


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("limit", Limit()),
        ("path", Path(0.05)),
        ("hutchinson", Hutchinson(0.05)),
        ("hutchinson-limit", Hutchinson(0.0)),
        ("stein", None),
        ("surrogate", None),
        ("setin", None),
    ],
)
def test_forms_saved_as_names(name, form):
    head, tail = '[objective]\nkind = "level-dcd"\nstep = 0.05\nlevel = 0.4\n', 'weight = "one"\n'
    text = f'{head}form = "{name}"\n{tail}'
    if form is not None:
        assert loads(text).objective == LevelDCD(0.4, form, weight="one")
        return
    message = "a form" if name == "setin" else f"got '{name}', which it no longer has: bridge"
    with pytest.raises(ValueError, match=message):
        loads(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(2.0, 1.0), "expected low <= high"),
        (lambda: Grid(10, 1.0, 1.0), "expected 0 <= low < high"),
        (lambda: Grid(0), "intervals"),
        (lambda: Preserving(3), "expected diffusion"),
        (lambda: LevelDCD(0.3, ties=(TimeScore(),)), "conditional=False"),
        (lambda: LevelDCD(0.3, Path(), conditional=True, ties=(TimeScore(),)), "form=Path"),
        (lambda: TimeScore(-1.0), "weight to be a finite number > 0"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_vp_is_ve_through_a_lens():
    mixture, vp, t = three_modes(), VP(), torch.tensor(0.3)
    x = torch.randn(50, 2)
    mine = lens(Diffused(mixture), vp)(x, t)
    assert torch.allclose(mine, mixture.diffuse(vp, t)(x))  # normalized both


@pytest.mark.parametrize("h", [0.1, 0.01])
def test_a_taylor_step_of_vp_is_consistent_on_gaussians(h):
    r"""The gradient of VP's own one-step divergence, from s to t, in the curvature of the energy:
    zero where the energy is that of the truth through the lens, up to O(h)."""
    vp, s = VP(1.0, 1.0), torch.tensor(0.4)  # B(t) = t, so that h is the step
    t = s + h
    at = lambda u: S2 * math.exp(-u) + 1 - math.exp(-u)  # the variance of x_u
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(40):
        a = torch.tensor(1.0, requires_grad=True)
        own = lambda x, a=a: lens(Gaussian(1.0), vp)(torch.sqrt(a) * x, t)
        x = math.sqrt(at(float(s))) * torch.randn(5000, D, generator=generator)
        step = transition(vp, x, s, t, True, generator)
        start, end = Taylor("end")(own, step, Exact())
        (slope,) = torch.autograd.grad(((start - end) / h).mean(), a)
        parts.append(slope)
    parts = torch.stack(parts) / (D / 2)
    y, z = at(float(s)), at(float(t))
    exact = (y - z) / (z * h) - 1 - 1 / z + 2 / z  # of a / z, in closed form
    assert abs(parts.mean() - exact) < 5 * standard_error(parts)
    assert abs(exact) < h  # consistent
    assert abs(exact) > 1e-3 * h  # but not exact, as the step of VE is


def test_the_time_score_finds_the_constants():
    for form in (Limit(), Central(), Hutchinson(0.1)):
        objective = LevelDCD(Uniform(0.2, 2.0), form, conditional=True, ties=(TimeScore(),))
        mean, error = slopes(objective)
        assert (mean.abs() < 5 * error).all()
    for k in (0.9, 1.1):
        mean, error = slopes(objective, k=k)
        assert mean[1] * (k - 1) > 0 and abs(mean[1]) > 5 * error[1]


def test_the_minimizer_of_the_time_score_has_one_constant():
    r"""With E = −log p + w · φ(log σ) the time score is quadratic in w; its minimizer is w = 0."""
    mixture = three_modes()
    truth = Diffused(mixture)

    class Shifted(Energy):
        def __init__(self, w: Tensor) -> None:
            super().__init__()
            self.w = w

        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            u = torch.log(sigma)
            features = torch.stack([u, u**2, torch.sin(2 * u)], -1)
            return truth(x, sigma) + features @ self.w

    objective = LevelDCD(LogNormal(-0.5, 0.7), Limit(), conditional=True, ties=(TimeScore(),))

    def gradient(w: Tensor, seed: int) -> Tensor:
        w = w.clone().requires_grad_()
        own = torch.Generator().manual_seed(seed)
        x = mixture.sample(4000, own)
        return torch.autograd.grad(objective(Shifted(w), x, None, own).loss, w)[0]

    seeds = range(20)
    zero = torch.stack([gradient(torch.zeros(3), s) for s in seeds])
    hessian = torch.stack([gradient(e, 0) - gradient(torch.zeros(3), 0) for e in torch.eye(3)])
    assert torch.linalg.eigvalsh((hessian + hessian.T) / 2).min() > 1e-2  # one minimizer
    steps = torch.linalg.solve(hessian, zero.T).T
    assert (steps.mean(0).abs() < 5 * standard_error(steps)).all()
    assert standard_error(steps).max() < 0.02


def test_the_target_of_the_time_score_is_the_slope_of_the_mixture():
    r"""E[(D − ‖ε‖²) / 2 | z] = −τ ∂ log p / ∂τ: the residual is uncorrelated with functions of
    z."""
    mixture, sigma = three_modes(), torch.full((200_000,), 0.6)
    generator = torch.Generator().manual_seed(1)
    x = mixture.sample(200_000, generator)
    eps = torch.randn(x.shape, generator=generator)
    z = x + align(sigma, x) * eps
    slope = torch.func.grad(lambda s: Diffused(mixture)(z, s).sum())(sigma)
    miss = 0.6 * slope / 2 - (2 - eps.square().sum(1)) / 2
    for f in (torch.ones(len(z)), z[:, 0], z[:, 1] ** 2, torch.sin(z[:, 0] * z[:, 1])):
        assert abs((miss * f).mean()) < 5 * standard_error(miss * f)
