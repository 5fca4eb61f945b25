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
    delta = 0.0 if form == "limit" else SHARE * SIGMA**2
    S = S2 + SIGMA**2 + delta
    if form != "surrogate":
        return a * S - 1
    rho = delta / (SIGMA**2 + delta)
    c = (math.sqrt(1 + rho) - 1) / rho
    keep = 1 - delta * a
    shifted = keep**2 * S + 2 * keep * delta * c + delta * rho * c**2
    return (S - delta - shifted) / (2 * delta)


@pytest.mark.parametrize("form", ["stein", "hutchinson", "surrogate", "limit"])
@pytest.mark.parametrize("a", [0.7, 1.6])
def test_the_expected_gradient_on_a_gaussian(form: str, a: float) -> None:
    mean, error = slope(LevelDCD(SIGMA, SHARE, form, weight="one"), a)
    assert abs(mean - closed(form, a)) < 4 * error
    assert error < 0.02


def test_the_contrast_of_stein_has_little_noise() -> None:
    r"""At E = a ‖x‖²/2 the linear part of the gradient has twice the variance of the limit's."""
    spreads = {}
    for form in ("stein", "hutchinson", "limit"):
        objective = LevelDCD(SIGMA, 0.05, form, weight="one")
        spreads[form] = slope(objective, 1 / (S2 + SIGMA**2), 200_000)[1]
    assert spreads["stein"] < 2 * spreads["limit"]
    assert spreads["hutchinson"] > 2.5 * spreads["stein"]


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


@pytest.mark.parametrize("form", ["stein", "hutchinson", "surrogate", "limit"])
def test_levels_reach_a_conditional_energy(form: str) -> None:
    seen = []

    class Conditional(Bowl):
        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            seen.append(sigma)
            return self.a * x.square().sum(1) / sigma**2

    x = torch.randn(9, 2, dtype=torch.float64)
    objective = LevelDCD(LogNormal(), SHARE, form, conditional=True)
    objective(Conditional(1.0), x).loss.backward()
    share = 0.0 if form == "limit" else SHARE
    assert all(s.shape == (9,) and (s > 0).all() for s in seen)
    assert all(torch.equal(s, seen[0]) for s in seen)  # the same energy at both points
    fixed = LevelDCD(0.3, SHARE, form, conditional=True)
    fixed(Conditional(1.0), x)
    assert torch.allclose(seen[-1], torch.full((9,), 0.3 * math.sqrt(1 + share)).double())


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
