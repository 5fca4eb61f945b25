r"""Ties: with the scores right, the true −log p is stationary up to one constant for all levels."""

import math
import pytest
import torch

from conftest import Diffused, standard_error, three_modes
from fokker.compute.step import bind
from fokker.energies import Energy
from fokker.objectives import (
    Bridge,
    Central,
    Classification,
    LevelDCD,
    Limit,
    LogUniform,
    Tie,
    TimeScore,
    Wide,
)
from fokker.objectives.levels import Path, ties
from fokker.objectives.levels.form import Pair
from fokker.runs.config import Config, ImageData
from fokker.runs.presets import generation_config
from fokker.runs.toml import dumps, loads
from fokker.shapes import align
from torch import Tensor
from typing import Any

DIMENSIONS = (2, 64, 1024)
TERMS = [TimeScore(), Classification(), Classification(levels=2, spread=0.5)]
LOW, HIGH = 0.2, 5.0


class Round(Energy):
    r"""−log of ⅔ N(m, 0.09) + ⅓ N(−m, 0.36) with noise, normalized; and m = (0.2, …)."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.D, self.m = D, 0.2 * torch.ones(D)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        parts = []
        for share, center, variance in ((2 / 3, self.m, 0.09), (1 / 3, -self.m, 0.36)):
            v = variance + sigma**2
            square = (x - center).square().sum(1)
            parts.append(math.log(share) - square / (2 * v) - self.D / 2 * (2 * math.pi * v).log())
        return -torch.logsumexp(torch.stack(parts), 0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        first = torch.rand(n, 1, generator=generator) < 2 / 3
        z = torch.randn(n, self.D, generator=generator)
        return torch.where(first, self.m + 0.3 * z, -self.m + 0.6 * z)


class Shifted(Energy):
    r"""(1 + w₀) E + w₁ log σ + w₂ sin(2 log σ): the last two are the same at all points."""

    def __init__(self, truth: Energy, w: Tensor) -> None:
        super().__init__()
        self.truth, self.w = truth, w

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        u, w = torch.log(sigma), self.w
        return (1 + w[0]) * self.truth(x, sigma) + w[1] * u + w[2] * torch.sin(2 * u)


def slopes(tie: Tie, D: int, w: tuple[float, ...], rounds: int = 15) -> tuple[Tensor, Tensor]:
    r"""The expected derivatives of a tie in w, and their standard errors."""
    truth, generator = Round(D), torch.Generator().manual_seed(0)
    objective = LevelDCD(LogUniform(LOW, HIGH), Limit(), conditional=True, ties=(tie,))
    found = []
    for _ in range(rounds):
        own = torch.tensor(w, requires_grad=True)
        x = truth.sample(2000 if D < 100 else 100, generator)
        pair = objective.pair(x, generator)
        _, _, point = objective.form.terms(truth, pair, generator)
        loss = tie.terms(Shifted(truth, own), pair, point, generator).mean()
        found.append(torch.autograd.grad(loss, own)[0])
    found = torch.stack(found)
    return found.mean(0), standard_error(found)


@pytest.mark.parametrize("D", DIMENSIONS)
@pytest.mark.parametrize("tie", TERMS, ids=str)
def test_the_truth_is_stationary(tie, D):
    mean, error = slopes(tie, D, (0.0, 0.0, 0.0))
    assert (mean.abs() < 5 * error).all()
    assert (error > 0).all()


@pytest.mark.parametrize(("D", "sign"), [(2, 1), (64, 1), (64, -1), (1024, -1)])
@pytest.mark.parametrize("tie", TERMS, ids=str)
def test_an_offset_of_a_level_is_seen(tie, D, sign):
    r"""w₁ log σ has to fall back to zero; by as many nats in ln σ as noise has in D dimensions."""
    mean, error = slopes(tie, D, (0.0, sign * 0.5 * math.sqrt(2 * D), 0.0))
    assert sign * mean[1] > 5 * error[1]


class Offset(Energy):
    r"""The exact energy and a free constant at each of nine levels, a line between them."""

    def __init__(self, truth: Energy, nodes: int = 9) -> None:
        super().__init__()
        self.truth, self.nodes = truth, nodes
        self.c = torch.nn.Parameter(5 * torch.randn(nodes))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        place = torch.log(sigma / LOW) / math.log(HIGH / LOW) * (self.nodes - 1)
        hats = (1 - (place[:, None] - torch.arange(self.nodes)).abs()).clamp_min(0)
        return self.truth(x, sigma) + hats @ self.c


# nats of any level from the mean of all; the error of path sampling over these levels with as many
# points is sqrt(2 D) log(HIGH / LOW) / sqrt(points): 0.02, 0.15 and 1.3
@pytest.mark.parametrize(
    ("D", "batch", "tolerance"), [(2, 400, 0.08), (64, 300, 0.25), (1024, 60, 2.0)]
)
@pytest.mark.parametrize("tie", TERMS[:2], ids=str)
def test_a_learned_offset_is_recovered(tie, D, batch, tolerance):
    truth, generator = Round(D), torch.Generator().manual_seed(0)
    energy = Offset(truth)
    assert energy.c.std() > 2
    objective = LevelDCD(LogUniform(LOW, HIGH), Limit(), conditional=True, ties=(tie,))
    steps = 200
    optimizer = torch.optim.Adam(energy.parameters(), 1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(energy, truth.sample(batch, generator), None, generator).loss.backward()
        optimizer.step()
        schedule.step()
    c = energy.c.detach()
    assert (c - c.mean()).abs().max() < tolerance


def test_without_a_tie_constants_are_free():
    truth, generator = Round(2), torch.Generator().manual_seed(0)
    energy = Offset(truth)
    objective = LevelDCD(LogUniform(LOW, HIGH), Central(), conditional=True)
    objective(energy, truth.sample(500, generator), None, generator).loss.backward()
    assert energy.c.grad is not None and energy.c.grad.abs().max() < 1e-10


def test_the_loss_is_a_divergence():
    r"""From what is known of a clean point to what the energies say: zero where the data is one
    point, so that they are the same."""
    mixture = three_modes()
    x = mixture.sample(1000, torch.Generator().manual_seed(1))
    pair = Pair(x, *(torch.full((1000,), v) for v in (0.7, 0.0, 0.7)))
    loss = Classification().terms(Diffused(mixture), pair, None, torch.Generator().manual_seed(2))
    assert (loss >= -1e-12).all() and loss.mean() > 0
    point = Pair(torch.zeros(50, 3), *(torch.full((50,), v) for v in (0.7, 0.0, 0.7)))
    noise = lambda x, s: x.square().sum(1) / (2 * s**2) + 3 * torch.log(s)
    assert Classification().terms(noise, point, None, None).abs().max() < 1e-12


def test_the_classification_of_close_levels_is_a_time_score():
    r"""h → 0: half the variance of the K draws, (K − 1) / K h², times the square of the error of
    the slope in log σ."""
    truth, K, h = Round(2), 3, 1e-3
    x = truth.sample(40_000, torch.Generator().manual_seed(1))
    level = torch.full((len(x),), 0.8)
    tie = Classification(levels=K, spread=2 * h)  # h = spread / sqrt(2 D), D = 2
    shifted = Shifted(truth, torch.tensor([0.3, 2.0, 0.0]))
    found = tie.terms(shifted, Pair(x, level, 0 * level, level), None, None)
    eps = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    slope = torch.func.grad(lambda s: shifted(x + align(level, x) * eps, s).sum())(level)
    error = (0.8 * slope - (2 - eps.square().sum(1))).square()
    ratio = found / (h**2 * (K - 1) / (2 * K))
    gap = ratio.mean() - error.mean()
    assert abs(gap) < 5 * (standard_error(ratio) ** 2 + standard_error(error) ** 2) ** 0.5


def test_ties_add_up():
    truth, x = Round(3), torch.randn(20, 3)
    both = (TimeScore(0.5), Classification(2.0))
    total = []
    for kept in ((), both[:1], both):
        objective = LevelDCD(Wide(), Limit(), True, ties=kept)
        out = objective(truth, x, None, torch.Generator().manual_seed(0))
        total.append(out)
    bare, time, full = total
    assert set(full.info) == {"energy", "time", "classification"}
    assert torch.allclose(time.loss, bare.loss + 0.5 * time.info["time"])
    assert torch.allclose(full.loss, time.loss + 2.0 * full.info["classification"])


def test_a_share_of_a_wide_law_is_that_of_another():
    levels = Wide(0.5).sample(torch.empty(40_000, 1), torch.Generator().manual_seed(0))
    assert float(levels.min()) < 0.003 and float(levels.max()) > 60
    low = (
        levels < 0.01
    ).double()  # ln 5 / ln 40,000 of the log-uniform half, and 0.23 % of the other
    expected = (math.log(5) / math.log(40_000) + 0.00227) / 2
    assert abs(low.mean() - expected) < 5 * standard_error(low)


def test_an_old_time_score_is_read():
    head = '[objective]\nkind = "level-dcd"\nconditional = true\n'
    old = loads(f"{head}time = 0.5\n[objective.form]\nkind = 'limit'\n").objective
    assert isinstance(old, LevelDCD) and old.ties == (TimeScore(0.5),)
    none = loads(f"{head}time = 0.0\n").objective
    assert isinstance(none, LevelDCD) and none.ties == ()
    with pytest.raises(ValueError, match=r"expected float at config\.objective\.time"):
        loads(f'{head}time = "much"\n')
    config = Config(objective=LevelDCD(0.3, Bridge(), True, ties=(Classification(0.1, 3, 1.0),)))
    assert loads(dumps(config)) == config


def test_the_preset_ties():
    data = ImageData("celeba32")
    config = generation_config("fokker", "dcd-limit", data, time=0.5, classify=2.0, levels="wide")
    assert isinstance(config.objective, LevelDCD) and config.objective.level == Wide()
    assert config.objective.ties == (TimeScore(0.5), Classification(2.0))
    with pytest.raises(ValueError, match="a classification only of an energy"):
        generation_config("fokker", "reference", data, classify=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification(levels=1), "levels to be an integer >= 2"),
        (lambda: Classification(spread=0.0), "spread to be a finite number > 0"),
        (lambda: Classification(0.0), "weight to be a finite number > 0"),
        (lambda: LevelDCD(0.3, ties=(Classification(),)), "conditional=False"),
        (lambda: LevelDCD(0.3, conditional=True, ties=3), "ties to be a tuple"),  # pyright: ignore
        (lambda: LevelDCD(0.3, conditional=True, ties=(3,)), "expected tie"),  # pyright: ignore
        (lambda: Wide(low=3.0, high=1.0), "expected low <= high"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_form_without_a_point_can_be_classified():
    objective = LevelDCD(0.3, Path(), conditional=True, ties=(Classification(),))
    assert torch.isfinite(objective(Round(2), torch.randn(8, 2)).loss)


def test_every_tie_has_a_name():
    assert set(ties.TIES.values()) == set(Tie.__subclasses__())


class Labelled(Energy):
    r"""An energy that is told a class: a width for each."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        v = self.w[label] + sigma**2
        return x.square().sum(1) / (2 * v) + x.shape[1] / 2 * torch.log(v)


@pytest.mark.parametrize("form", [Limit(), Path(0.1), Bridge(0.1, draws=3)], ids=str)
def test_rows_of_several_points_keep_their_class(form):
    energy, x, label = Labelled(), torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    objective = LevelDCD(0.4, form, True, ties=(Classification(),))
    step = bind(energy, objective)
    params = {k: p.detach() for k, p in energy.named_parameters()}
    torch.manual_seed(0)
    gradients, loss, *_ = step(params, {}, x, (), None, label)
    torch.manual_seed(0)
    told: Any = lambda p, s: energy(p, s, label.repeat(len(p) // 6))
    expected = objective.part(told, x, None, None).loss
    assert torch.allclose(loss, expected.detach())
    (slope,) = torch.autograd.grad(expected, energy.w)
    assert torch.allclose(gradients["w"], slope)
