r"""Divergences between noise levels, against closed forms on Gaussians."""

import math
import pytest
import torch

from fokker.energies import Energy
from fokker.networks import MLP, UNetEnergy
from fokker.objectives import (
    PCD,
    Denoising,
    DenoisingScoreMatching,
    LevelDCD,
    LogNormal,
    LogUniform,
    Noisy,
    ScoreMatching,
)
from fokker.objectives.levels import FORMS, REACH
from torch import Tensor

S2, SIGMA, SHARE = 0.5, 0.4, 0.2  # the variance of the data, the level, the step


class Bowl(Energy):
    r"""a ‖x‖² / 2, with the curvature a to be learned."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x.square().sum(1) / 2


def slope(objective: LevelDCD, a: float, n: int = 400_000) -> tuple[float, float]:
    r"""The expected derivative in a, a coordinate, and its standard error."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(20):
        energy = Bowl(a)
        x = math.sqrt(S2) * torch.randn(n // 20, 2, generator=generator, dtype=torch.float64)
        objective(energy, x, None, generator).loss.backward()
        assert energy.a.grad is not None
        parts.append(energy.a.grad / 2)
    parts = torch.stack(parts)
    return float(parts.mean()), float(parts.std() / math.sqrt(20))


def closed(form: str, a: float) -> float:
    r"""The same in closed form: data N(0, S2), z of variance S, w held fixed."""
    delta = SHARE * SIGMA**2 * REACH[form]
    S = S2 + SIGMA**2 + delta
    if form != "surrogate":
        return a * S - 1
    rho = delta / (SIGMA**2 + delta)
    c = (math.sqrt(1 + rho) - 1) / rho
    keep = 1 - delta * a
    shifted = keep**2 * S + 2 * keep * delta * c + delta * rho * c**2
    return (S - delta - shifted) / (2 * delta)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("a", [0.7, 1.6])
def test_the_expected_gradient_on_a_gaussian(form: str, a: float) -> None:
    mean, error = slope(LevelDCD(SIGMA, SHARE, form, weight="one"), a)
    assert abs(mean - closed(form, a)) < 4 * error
    assert error < 0.02


def test_the_contrast_of_stein_has_little_noise() -> None:
    r"""At E = a ‖x‖²/2 the linear part of the gradient has twice the variance of the limit's."""
    spreads = {}
    for form in ("stein", "hutchinson", "path", "limit"):
        objective = LevelDCD(SIGMA, 0.05, form, weight="one")
        spreads[form] = slope(objective, 1 / (S2 + SIGMA**2), 200_000)[1]
    assert max(spreads["stein"], spreads["path"]) < 2 * spreads["limit"]
    assert spreads["hutchinson"] > 2.5 * spreads["stein"]


def radial_slope(rho: Tensor, d: int, r: float, sigma: float = 1.0) -> Tensor:
    r"""The slope of the minimizer for noise alone, by the closed form of the module."""
    after = sigma**2 * (1 + r)
    share = lambda s2: torch.special.gammainc(torch.tensor(d / 2).double(), rho**2 / (2 * s2))
    constant = (d / 2 - 1) * math.log(2) + math.lgamma(d / 2) + d / 2 * math.log(after)
    density = torch.exp((d - 1) * torch.log(rho) - rho**2 / (2 * after) - constant)
    return rho / (2 * after) + (share(sigma**2) - share(after)) / (r * sigma**2 * density)


def test_a_long_step_in_many_dimensions() -> None:
    def off(d: int, r: float) -> Tensor:
        r"""The slope over the true one, at the median norm and at one deviation on either side."""
        median = math.sqrt((1 + r) * (d - 2 / 3))
        rho = median * (1 + torch.tensor([-1.0, 0, 1]).double() / math.sqrt(2 * d))
        return radial_slope(rho, d, r) / (rho / (1 + r))

    assert torch.allclose(off(784, 0.2)[1:], torch.tensor([0.69, 0.60]).double(), atol=0.01)
    assert float((off(784, 0.05) - 1).abs().max()) == pytest.approx(0.22, abs=0.01)
    for d in (2, 784, 3072):
        assert (off(d, 0.1 / math.sqrt(d)) - 1).abs().max() < 0.035
    assert (off(784, 0.1 / math.sqrt(784)) - 1).abs().max() < 0.025


def mixture_slope(rho: Tensor, d: int, r: float) -> Tensor:
    r"""Minus the radial slope of the log-density of noise of variance 1 to 1 + r, uniform."""
    s2 = torch.linspace(1, 1 + r, 2001).double()[:, None]
    weight = torch.softmax(-d / 2 * torch.log(s2) - rho**2 / (2 * s2), dim=0)
    return (weight * rho / s2).sum(0)


def test_noise_along_a_sampler() -> None:
    r"""Noise alone in 3,072 dimensions, by the probability flow of a minimizer from level 80 to
    0.01."""
    d, ratio = 3072, math.log(80 / 0.01)
    start = 1 + torch.tensor([-1.0, 0, 1]).double() / math.sqrt(2 * d)

    def flow(r: float) -> Tensor:
        u, n = torch.sqrt(torch.tensor(d - 2 / 3).double()) * start, 400  # ρ / σ
        root = math.sqrt(1 + r / 2)
        for _ in range(n):
            share = mixture_slope(u * root, d, r) * root / u
            u = u * torch.exp((1 - share) * ratio / n)
        return u / math.sqrt(d)

    assert torch.allclose(flow(0.2)[[0, 2]], torch.tensor([0.42, 2.06]).double(), atol=0.01)
    assert (flow(0.02) - 1).abs().max() < 0.035
    deviations = torch.tensor([0, 0.5, 1, 2, 3]).double()
    rho = math.sqrt(1.2 * (d - 2 / 3)) * (1 + deviations / math.sqrt(2 * d))
    share = radial_slope(rho, d, 0.2) / (rho / 1.2)  # the paper's, at the median norm and above
    assert float(share[0]) == pytest.approx(0.60, abs=0.01) and (share.diff() < 0).all()
    assert math.exp((1 - float(share[0])) * ratio) > 30


@pytest.mark.parametrize("form", ["stein", "path"])
def test_the_minimizer_for_noise_alone(form: str) -> None:
    class Radial(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5).double())

        def forward(self, x: Tensor) -> Tensor:
            u = x.square().sum(1) / (1.5 * d) - 1
            return sum((w * u ** (k + 1) for k, w in enumerate(self.w)), torch.zeros(()))

    d, r = 12, 0.5
    energy, x = Radial(), torch.zeros(100_000, d).double()

    def slope(w: Tensor) -> Tensor:
        r"""The gradient, which is linear in w, always with the same noise."""
        energy.w = torch.nn.Parameter(w)
        noise = torch.Generator().manual_seed(0)
        LevelDCD(1.0, r, form, weight="one")(energy, x, None, noise).loss.backward()
        assert energy.w.grad is not None
        return energy.w.grad

    start = slope(torch.zeros(5).double())
    matrix = torch.stack([slope(w) - start for w in torch.eye(5).double()])
    energy.w = torch.nn.Parameter(torch.linalg.solve(matrix, -start))
    rho = torch.linspace(3.2, 5.2, 5).double()
    points = torch.cat([rho[:, None], torch.zeros(5, d - 1).double()], 1).requires_grad_()
    found = torch.autograd.grad(energy(points).sum(), points)[0][:, 0]
    if form == "path":
        assert torch.allclose(found, mixture_slope(rho, d, r), rtol=0.02)
    else:
        assert torch.allclose(found, radial_slope(rho, d, r), rtol=0.02)
        assert not torch.allclose(found, rho / (1 + r), rtol=0.2)


def test_the_surrogate_finds_the_gaussian_to_second_order() -> None:
    S = S2 + SIGMA**2 * (1 + SHARE)
    delta = SHARE * SIGMA**2
    rho = delta / (SIGMA**2 + delta)
    assert abs(closed("surrogate", 1 / S)) < delta * rho / (8 * S) * 1.01
    assert abs(closed("surrogate", 1 / S)) < rho / 8 / 5  # the plain c = 1/2 is off by rho / 8


def test_the_limit_is_denoising_score_matching() -> None:
    torch.manual_seed(0)
    energy, x = MLP(width=8), torch.randn(16, 2)
    g = lambda: torch.Generator().manual_seed(1)
    a = LevelDCD(0.3, form="limit", weight="one")(energy, x, None, g()).loss
    b = DenoisingScoreMatching(0.3)(energy, x, None, g()).loss
    assert torch.allclose(a, b, rtol=1e-5)


def test_a_short_step_tends_to_the_limit() -> None:
    short, _ = slope(LevelDCD(SIGMA, 1e-3, "surrogate", weight="one"), 1.0)
    limit, error = slope(LevelDCD(SIGMA, form="limit", weight="one"), 1.0)
    assert abs(short - limit) < 0.2  # its contrast has the variance of an unpaired difference
    assert error < 0.01


@pytest.mark.parametrize("form", FORMS)
def test_levels_reach_a_conditional_energy(form: str) -> None:
    seen = []

    class Conditional(Bowl):
        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            seen.append(sigma)
            return self.a * x.square().sum(1) / sigma**2

    x = torch.randn(9, 2, dtype=torch.float64)
    objective = LevelDCD(LogNormal(), SHARE, form, conditional=True)
    objective(Conditional(1.0), x).loss.backward()
    share = SHARE * REACH[form]
    if form == "path":  # at both ends, half of the rows
        assert torch.equal(seen.pop(), seen[0][:5].repeat(2))
    assert all(s.shape == (9,) and (s > 0).all() for s in seen)
    assert all(torch.equal(s, seen[0]) for s in seen)  # the same energy at both points
    fixed = LevelDCD(0.3, SHARE, form, conditional=True)
    fixed(Conditional(1.0), x)
    expected = torch.full_like(seen[-1], 0.3 * math.sqrt(1 + share))
    assert torch.allclose(seen[-1], expected)


@pytest.mark.parametrize("weight", ["one", "variance", "edm"])
def test_the_regression_of_a_denoiser_is_the_limit(weight: str) -> None:
    energy = UNetEnergy(1, 8, (1,), 1, (), 8, dtype="float64").double()
    torch.manual_seed(0)
    for p in energy.parameters():
        torch.nn.init.normal_(p, std=0.1)
    x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    law = LogUniform(0.1, 2.0)
    own = {"weight": weight, "sigma_data": 0.7}
    g = lambda: torch.Generator().manual_seed(1)
    a = Denoising(law, **own)(energy, x, None, g()).loss
    b = LevelDCD(law, form="limit", conditional=True, **own)(energy, x, None, g()).loss
    assert torch.allclose(a, b, rtol=1e-8)


def test_weights_of_the_levels() -> None:
    # a zero score misses by the noise: ‖ε/σ‖²/2 at weight one
    class Flat(Bowl):
        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            return 0 * self.a * x.sum(1)

    x = torch.randn(4000, 2, dtype=torch.float64)
    for weight, expected in (("one", 1 / 0.09), ("variance", 1.0), ("edm", 1 + 0.36)):
        objective = LevelDCD(0.3, form="limit", conditional=True, weight=weight)
        loss = objective(Flat(1.0), x, None, torch.Generator().manual_seed(0)).loss
        assert float(loss.detach()) == pytest.approx(expected, rel=0.05)


def test_noise_before_an_objective() -> None:
    class Probe(ScoreMatching):
        def compute(self, energy, x, state=None, generator=None):
            seen.append(x)
            return super().compute(energy, x, state, generator)

    seen: list[Tensor] = []
    x = torch.randn(5000, 2, dtype=torch.float64)
    Noisy(Probe(), 0.3)(Bowl(1.0), x, None, torch.Generator().manual_seed(0))
    assert float((seen[0] - x).std()) == pytest.approx(0.3, rel=0.05)
    objective, state = Noisy(PCD(2, buffer=50), 0.3), None
    for _ in range(2):
        state = objective(Bowl(1.0), x[:20], state).state
    assert objective.restore(list(state)).x.shape == (50, 2)


def test_the_level_that_is_learned() -> None:
    assert LevelDCD(0.3, 0.21).learned == pytest.approx(0.33)
    assert LevelDCD(0.3, form="limit").learned == pytest.approx(0.3)
    assert LevelDCD(LogNormal()).learned is None


def test_bad_settings_are_named() -> None:
    for bad in ({"level": -1.0}, {"step": 0.0}, {"form": "steain"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            LevelDCD(**bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="std"):
        LogNormal(0.0, -1.0)
    with pytest.raises(ValueError, match="low"):
        LevelDCD(LogUniform(-1.0, 2.0))


def test_the_noise_of_the_path_is_as_stated():
    u = (torch.arange(10**6) + 0.5) / 10**6  # of the rows with the contrast, by halves of the way
    stein = lambda u: ((0.5 + 2 * u.sqrt()).square().mean() + 0.25) / 2
    left = lambda u: (2 * (u.sqrt() - 0.5)).square().mean() / 2
    assert [float(f(v)) for v in (u / 2, u) for f in (stein, left)] == pytest.approx(
        [1.22, 0.06, 1.92, 0.17], abs=0.006
    )
