r"""An energy of one's own on points in memory, and what is refused or warned of before it."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import math
import pytest
import torch
import torch.nn.functional as F
import warnings

from fokker import fit, fit_energy
from fokker.compute.fitting import check_scale
from fokker.compute.step import Step
from fokker.derivatives import Exact, Hutchinson, score
from fokker.energies import Energy
from fokker.images.forecast import forecast
from fokker.objectives import OBJECTIVES, PCD, DenoisingScoreMatching, ScoreMatching
from fokker.pace import words
from fokker.runs.config import Config, Optimization, ToyData
from fokker.tasks import task_of
from torch import nn


class Normal(Energy):
    r"""A normal law with weights for its mean and the logarithm of its precision."""

    def __init__(self):
        super().__init__()
        self.mean, self.log = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return ((x - self.mean).square() * self.log.exp()).sum(1) / 2


def network(*middle):
    net = nn.Sequential(nn.Linear(2, 8), *middle, nn.Linear(8, 1), nn.Flatten(0))
    return net.double()


def data(n=4000):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.tensor([1.0, -2.0]).double() + torch.tensor([0.5, 2.0]).double() * x


def test_the_moments_of_a_normal_law_are_found():
    x, losses = data(), []
    settings = Optimization(steps=600, batch=500, rate=0.05, ema=0.98)
    energy = fit_energy(
        Normal().double(), ScoreMatching(), x, settings, progress=lambda *a: losses.append(a)
    )
    # the optimum is the moments of the data; a batch's own are off by its error
    error = x.std(0) / math.sqrt(500)
    assert ((energy.mean - x.mean(0)).abs() < 5 * error).all()
    assert torch.allclose(energy.log.exp() * x.var(0), torch.ones(2).double(), rtol=0.15)
    assert [step for step, _ in losses] == list(range(10, 601, 10)) and losses[-1][1] < losses[0][
        1
    ]


@pytest.mark.parametrize("objective", [PCD(), DenoisingScoreMatching(0.1)])
def test_fitting_depends_on_its_seed_alone(objective):
    short = Optimization(steps=3, batch=16)
    a, b, c = (
        fit_energy(Normal().double(), objective, data(64), short, seed) for seed in (1, 1, 2)
    )
    assert torch.equal(a.mean, b.mean) and not torch.equal(a.mean, c.mean)


def test_what_cannot_be_fitted_is_named():
    x, short = data(64), Optimization(steps=20, batch=16)
    with pytest.raises(
        ValueError, match=r"got tensor\(.*fokker.fit_energy\(energy, objective, data"
    ):
        fit(x, "out")
    with pytest.raises(ValueError, match="expected a Config"):
        fit(Normal(), ScoreMatching(), x)
    with pytest.raises(ValueError, match="expected objective to be a Objective"):
        fit_energy(Normal(), "sm", x)
    with pytest.raises(ValueError, match="expected x to be finite"):
        fit_energy(Normal(), ScoreMatching(), x / 0)
    with pytest.raises(ValueError, match="with weights to train"):
        fit_energy(Normal().requires_grad_(False), ScoreMatching(), x, short)
    with pytest.raises(FloatingPointError, match="the loss is not finite"):
        fit_energy(
            Normal().double(), ScoreMatching(), x, Optimization(steps=20, batch=16, rate=1e6)
        )


@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if o != "denoising"])
def test_batch_normalization_is_refused_in_words(objective):
    energy = network(nn.BatchNorm1d(8), nn.SiLU())
    for call in (
        lambda: OBJECTIVES[objective]()(energy, data(64)),
        lambda: Step(energy, OBJECTIVES[objective]()),
    ):
        with pytest.raises(
            ValueError, match=r"each point alone, got BatchNorm1d at 1, .*LayerNorm"
        ):
            call()
    ScoreMatching()(energy.eval(), data(64))  # each point alone, again


def test_a_laplacian_of_relu_warns_and_a_score_does_not():
    x = data(16)
    for laplacian in (Exact(), Hutchinson()):
        energy = network(nn.ReLU())
        with pytest.warns(UserWarning, match=r"got one with ReLU: .* so the Laplacian is wrong"):
            jet = laplacian(energy, x)
        assert (jet.laplacian == 0).all()  # what the warning is about
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplacian(energy, x)  # said once
        score(network(nn.ReLU()), x)
        Exact()(network(nn.SiLU()), x)


class Of(Energy):
    r"""A wide network with an activation that is a function, and a quadratic."""

    def __init__(self, activation, width=64, scale=1.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.inner = nn.Linear(2, width), nn.Linear(width, width)
            self.last = nn.Linear(width, 1)
        self.activation, self.scale = activation, scale

    def forward(self, x):
        h = self.activation(self.inner(self.activation(self.scale * self.first(x))))
        return self.last(h).squeeze(1) + x.square().sum(1) / 2


KINKED = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "clamp": lambda h: h.clamp(min=0),
    "abs": torch.abs,
    "maximum": lambda h: torch.maximum(h, 0.1 * h),
    "where": lambda h: torch.where(h > 0, h, 0.2 * h),
}
SMOOTH = {
    "silu": F.silu,
    "steep softplus": lambda h: F.softplus(h, beta=100),
    "square of relu": lambda h: F.relu(h).square(),
    "cube of abs": lambda h: h.abs() ** 3,
    "elu": F.elu,
    "hardswish, clamped far away": lambda h: F.gelu(h.clamp(-1e6, 1e6)),
    "where of halves": lambda h: torch.where(h > 0, h.square(), 2 * h.square()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KINKED)
def test_a_function_with_kinks_warns_under_a_laplacian(name, dtype):
    x = data(32).to(dtype)
    for laplacian in (Exact(), Hutchinson()):
        for width in (8, 64, 1024):
            with pytest.warns(UserWarning, match=f"got one with {name}: its gradient jumps"):
                laplacian(Of(KINKED[name], width).to(dtype), x)
    energy = Of(KINKED[name]).to(dtype)
    with pytest.warns(UserWarning, match="its gradient jumps") as told:
        fit_energy(energy, ScoreMatching(), x, Optimization(steps=2, batch=16))
    assert len(told) == 1 and "\n" not in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Exact()(energy, x)  # said once
        other = Of(KINKED[name]).to(dtype)
        fit_energy(other, DenoisingScoreMatching(0.1), x, Optimization(steps=2, batch=16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_energy_does_not_warn(name, dtype):
    x = data(32).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (0.1, 1.0, 10.0):
            energy = Of(SMOOTH[name], scale=scale).to(dtype)
            fit_energy(energy, ScoreMatching(), x, Optimization(steps=2, batch=16))
            Exact()(energy, x)
            Exact()(lambda p: energy(p), x)  # noqa: B023, PLW0108
            Hutchinson()(Of(SMOOTH[name], scale=scale).to(dtype), x)


@pytest.mark.parametrize("scale", [1e-4, 1000.0])
def test_data_of_a_far_scale_warns(scale):
    with pytest.warns(UserWarning, match="a standard deviation near 1, got .*: standardize it"):
        check_scale(scale * data(64))
    with pytest.warns(UserWarning, match="standardize it"):
        task_of(Config(ToyData("moons", scale=scale))).load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_scale(data(64))
        task_of(Config(ToyData("moons"))).load()


def test_a_job_that_is_long_is_foretold():
    calls, lines = [], []

    def energy(x, sigma):
        calls.append(len(x))
        return x.square().flatten(1).sum(1)

    shape, cpu = (1, 2, 2), torch.device("cpu")
    seconds = forecast("--bpd 8", energy, shape, 8, 4, 10**9, cpu, lines.append)
    assert set(calls) == {4} and lines == [f"--bpd 8: about {words(seconds)}"]
    assert forecast("--bpd 8", energy, shape, 8, 4, 1, cpu, lines.append) < 10 and len(lines) == 1
