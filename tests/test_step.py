r"""The traced step: one graph, the same numbers."""

import linecache
import pytest
import torch

from fokker.compute import graphs
from fokker.compute import step as module
from fokker.compute.graphs import Captured
from fokker.compute.step import Step
from fokker.compute.tracing import trace
from fokker.networks import MLP, WideResNet
from fokker.objectives import (
    CD,
    DCD,
    PCD,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    MultiTimeDCD,
    Objective,
    Output,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
)
from torch import nn
from torch.fx.graph_module import _loader
from types import SimpleNamespace

OBJECTIVES = [
    DCD(),
    MultiTimeDCD(points=8),
    EnergyDiscrepancy(),
    CD(),
    PCD(),
    ScoreMatching(),
    SlicedScoreMatching(),
    DenoisingScoreMatching(),
    RecoveryLikelihood(),
]


def eager(energy, objective, x, state, generator):
    energy.zero_grad()
    out = objective(energy, x, state, generator)
    out.loss.backward()
    grads = {k: p.grad for k, p in energy.named_parameters()}  # none: not in the loss
    return {k: g.clone() for k, g in grads.items() if g is not None}, out


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_a_traced_step_is_the_eager_one(objective: Objective) -> None:
    torch.manual_seed(0)
    energy, x = MLP(width=16).double(), torch.randn(32, 2, dtype=torch.float64)
    step, state = Step(energy, objective), None
    other = None
    for seed in range(2):  # the second with the state of the first
        expected, out = eager(energy, objective, x, other, torch.Generator().manual_seed(seed))
        got = step(x, state, torch.Generator().manual_seed(seed))
        assert torch.allclose(got.loss, out.loss.detach(), rtol=1e-12)
        for name, g in expected.items():
            assert torch.allclose(got.gradients[name], g, rtol=1e-9, atol=1e-12), name
        assert got.info.keys() == out.info.keys()
        state, other = got.state, out.state


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the compiler's own
def test_a_compiled_step_is_the_eager_one() -> None:
    torch.manual_seed(0)
    energy, x = MLP(width=16).double(), torch.randn(32, 2, dtype=torch.float64)
    objective = MultiTimeDCD(points=8)
    expected, out = eager(energy, objective, x, None, torch.Generator().manual_seed(3))
    got = Step(energy, objective, compile=True)(x, None, torch.Generator().manual_seed(3))
    assert torch.allclose(got.loss, out.loss.detach(), rtol=1e-9)
    for name, g in expected.items():
        assert torch.allclose(got.gradients[name], g, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("objective", [PCD(), DCD()], ids=["PCD", "DCD"])
def test_a_captured_step_reads_all_anew_and_leaves_what_it_said(
    monkeypatch, objective, slices
) -> None:
    r"""With a stand-in for the GPU: a graph that fills the same memory at each replay."""

    def capture(run, device):
        assert device == x.device
        out = [t.clone() for t in run()]
        fill = lambda: [place.copy_(fresh) for place, fresh in zip(out, run(), strict=True)]
        return SimpleNamespace(replay=fill), out

    own = module.trace
    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(module, "trace", lambda *args, compile, capture: own(*args, capture=True))
    energy = MLP(width=16).double()
    step = Step(energy, objective, slices=slices)
    state, other, losses, gradients = None, None, [], []
    for seed in range(3):
        x = torch.randn(32, 2, dtype=torch.float64)
        kept = x.clone()
        out = step(x, state, torch.Generator().manual_seed(seed))
        expected, eagerly = eager(energy, objective, x, other, torch.Generator().manual_seed(seed))
        for name, g in expected.items():
            torch.testing.assert_close(out.gradients[name], g)
        torch.testing.assert_close(out.loss, eagerly.loss)
        state, other = out.state, eagerly.state
        losses.append((out.loss, eagerly.loss.detach()))
        gradients.append(out.gradients)
        with torch.no_grad():
            for p in energy.parameters():
                p.add_(0.01 * torch.randn_like(p))
        assert torch.equal(x, kept)
    assert isinstance(next(iter(step.traces.values())).call, Captured)
    for loss, expected in losses:
        torch.testing.assert_close(loss, expected)
    name = next(iter(gradients[1]))
    same = gradients[1][name] is gradients[2][name]
    assert same == (slices == 1)  # there until the next step; the sum of slices lasts


class Branches(nn.Module):
    r"""Two branches that are added: one gradient for both biases."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 16), nn.Linear(2, 16)

    def forward(self, x):
        return (self.first(x) + self.second(x)).sin().sum(1)


class Own(Objective):
    r"""A loss with the parameters as its gradient."""

    def compute(self, energy, x, state=None, generator=None):
        return Output(sum(p.square().sum() / 2 for p in energy.parameters()), None, {})


def test_every_gradient_has_memory_of_its_own() -> None:
    energy, x = Branches(), torch.randn(8, 2)
    step = Step(energy, DenoisingScoreMatching())
    out = step(x, None, torch.Generator().manual_seed(0))
    expected, _ = eager(
        energy, DenoisingScoreMatching(), x, None, torch.Generator().manual_seed(0)
    )
    out.assign(energy)
    norm = torch.nn.utils.clip_grad_norm_(energy.parameters(), 1e-3)
    for name, p in energy.named_parameters():
        torch.testing.assert_close(p.grad, expected[name] * 1e-3 / (norm + 1e-6))
    weights = [p.detach().clone() for p in energy.parameters()]
    out = Step(energy, Own())(x)
    for g in out.gradients.values():
        g.zero_()
    for p, w in zip(energy.parameters(), weights, strict=True):
        assert torch.equal(p, w)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_step_is_captured_on_its_device() -> None:
    torch.set_default_dtype(torch.float32)
    for device in ("cuda:0", "cuda:1"):
        energy = MLP(width=16).to(device)
        step, plain = Step(energy, DCD(), compile=True), Step(energy, DCD())
        for seed in range(3):
            x = torch.randn(32, 2, device=device)
            a, b = (s(x, None, torch.Generator(device).manual_seed(seed)) for s in (step, plain))
            torch.testing.assert_close(a.loss, b.loss, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slices", [1, 2])
def test_a_step_on_a_gpu_is_captured(slices) -> None:
    torch.set_default_dtype(torch.float32)
    energy = MLP(width=16).cuda()
    step, plain = Step(energy, DCD(), compile=True, slices=slices), Step(energy, DCD())
    for seed in range(3):
        x = torch.randn(32, 2, device="cuda")
        a, b = (s(x, None, torch.Generator("cuda").manual_seed(seed)) for s in (step, plain))
        for name, g in b.gradients.items():
            torch.testing.assert_close(a.gradients[name], g, rtol=1e-3, atol=1e-4)
    assert isinstance(next(iter(step.traces.values())).call, Captured)


def test_a_step_trains_and_reads_the_parameters_anew() -> None:
    torch.manual_seed(0)
    energy = MLP(width=32)
    adam = torch.optim.Adam(energy.parameters(), 1e-2)
    step, generator = Step(energy, ScoreMatching()), torch.Generator().manual_seed(0)
    losses = []
    for _ in range(60):
        out = step(torch.randn(256, 2, generator=generator), None, generator)
        out.assign(energy)
        adam.step()
        losses.append(float(out.loss))
    assert losses[-1] < -0.8  # the optimum is -1
    assert len(step.traces) == 1


def test_noise_is_an_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(3) + torch.rand(3) + torch.randint(5, 9, (3,)) + torch.randperm(3)

    traced = trace(f, torch.zeros(3))
    assert [d.law for d in traced.draws] == ["normal", "uniform", "integer", "permutation"]
    noise = [torch.full((3,), float(k)) for k in range(4)]
    assert traced(torch.ones(3), noise=noise).tolist() == [7.0] * 3
    torch.manual_seed(5)
    expected = f(torch.zeros(3))
    got = traced(torch.zeros(3), noise=traced.draw(torch.Generator().manual_seed(5)))
    assert torch.equal(got, expected)


def test_what_is_asked_for_twice_is_done_once() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(3)
        z.add_(x)  # made functional by the trace, or left alone: either way right
        return torch.sin(x) * y + torch.sin(x) + torch.sin(y) + x.sum() + x.sum(0) + z

    traced = trace(f, torch.zeros(3), torch.zeros(3))
    counts = [n.target for n in traced.graph.graph.nodes].count
    assert counts(torch.ops.aten.sin.default) == 2
    x, y = torch.randn(3), torch.randn(3)
    assert torch.allclose(traced(x, y, noise=[]), f(x, y))
    # a number and a truth value are equal as keys, but not the same operand
    g = lambda x: torch.add(x, 1) + torch.add(x, 1.0) + torch.mul(x, True)
    assert torch.equal(trace(g, torch.arange(3))(torch.arange(3), noise=[]), g(torch.arange(3)))


def test_an_unknown_draw_is_named() -> None:
    with pytest.raises(ValueError, match="bernoulli"):
        trace(torch.bernoulli, torch.full((3,), 0.5))


def test_images_take_no_convolution_with_a_kernel_beyond_three() -> None:
    energy = WideResNet(1, depth=10, widen=1)
    step = Step(energy, DenoisingScoreMatching(0.3))
    x = torch.randn(2, 1, 8, 8)
    expected, _out = eager(
        energy, DenoisingScoreMatching(0.3), x, None, torch.Generator().manual_seed(3)
    )
    got = step(x, None, torch.Generator().manual_seed(3))
    for name, g in expected.items():
        assert torch.allclose(got.gradients[name], g, rtol=1e-3, atol=1e-5), name
    (traced,) = step.traces.values()
    kernels = [
        node.args[1].meta["val"].shape[-1]
        for node in traced.graph.graph.nodes
        if node.target is torch.ops.aten.convolution.default
    ]
    assert kernels and max(kernels) <= 3


def test_tracing_again_and_again_keeps_nothing():
    energy, objective = MLP(2, 8, 2), DCD(step=0.1)

    def held():
        Step(energy, objective)(torch.randn(4, 2))
        return len(_loader.eval_cache), sum(
            key.startswith("<eval_with_key>") for key in linecache.cache
        )

    assert held() == held()


class Written(nn.Module):
    r"""Sums collected in places that start alike, by operations in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        a, b = x.new_zeros(len(x)), x.new_zeros(len(x))
        a += self.first(x).sin()[:, 0]
        b.unflatten(0, (-1, 2)).add_(self.second(x).cos().reshape(-1, 2))
        c, d = b * 2, (b.unflatten(0, (-1, 2)) * 2).flatten()
        b += self.first(x).cos()[:, 0]
        return a + a * b + c * d + b * 2


def test_what_is_written_in_place_is_not_shared() -> None:
    energy, x = Written(), torch.randn(8, 2)
    expected, out = eager(energy, ScoreMatching(), x, None, None)
    got = Step(energy, ScoreMatching())(x)
    torch.testing.assert_close(got.loss, out.loss.detach())
    for name, g in expected.items():
        torch.testing.assert_close(got.gradients[name], g)


@pytest.mark.parametrize("slices", [1, 2])
def test_the_gradient_of_a_sum_can_be_written_to(slices) -> None:
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.Parameter(torch.rand(3))

        def forward(self, x):
            return x.square().sum(1) * self.scales.sum()

    energy, x = Scaled(), torch.randn(8, 2)
    Step(energy, ScoreMatching(), slices=slices)(x).assign(energy)
    torch.nn.utils.clip_grad_norm_(energy.parameters(), 1e-3)
    torch.testing.assert_close(energy.scales.grad.norm(), torch.tensor(1e-3))


def same_as_eager(step: Step, x) -> None:
    expected, out = eager(step.energy, step.objective, x, None, torch.Generator().manual_seed(0))
    got = step(x, None, torch.Generator().manual_seed(0))
    torch.testing.assert_close(got.loss, out.loss.detach())
    assert got.gradients.keys() == expected.keys()
    for name, g in expected.items():
        torch.testing.assert_close(got.gradients[name], g)


def test_parameters_that_are_frozen_are_left_alone_and_read_anew() -> None:
    energy, x = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3))), torch.randn(8, 2)
    energy.append(Squares())
    step = Step(energy, DenoisingScoreMatching())
    for frozen in (0, 1):  # of one shape: only the name tells them apart
        energy.requires_grad_(True)
        energy[frozen].requires_grad_(False)
        same_as_eager(step, x)
    energy.zero_grad()
    step(x).assign(energy)
    assert energy[1].weight.grad is None and energy[0].weight.grad is not None
    energy[1].weight.data = torch.randn(2, 2)
    same_as_eager(step, x)
    with pytest.raises(ValueError, match="a parameter to train, got none"):
        Step(energy.requires_grad_(False), ScoreMatching())(x)


class Squares(nn.Module):
    def forward(self, x):
        return x.sin().square().sum(1)


class Modal(nn.Module):
    r"""An energy that is another one in training."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(2))

    def forward(self, x):
        return ((x.cos() if self.training else x) * self.scale).square().sum(1)


def test_a_step_follows_the_mode_of_the_energy() -> None:
    step, x = Step(Modal(), ScoreMatching()), torch.randn(8, 2)
    for mode in (True, False, True):
        step.energy.train(mode)
        same_as_eager(step, x)
    assert len(step.traces) == 2


def test_a_step_follows_autocast() -> None:
    energy, x = MLP(width=16).float(), torch.randn(8, 2, dtype=torch.float32)
    step = Step(energy, DenoisingScoreMatching())
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            expected, _ = eager(energy, step.objective, x, None, torch.Generator().manual_seed(0))
            got = step(x, None, torch.Generator().manual_seed(0)).gradients
        for name, g in expected.items():
            torch.testing.assert_close(got[name], g, rtol=1e-2 if enabled else 1e-5, atol=1e-5)
    assert len(step.traces) == 2


def test_a_step_takes_every_layout() -> None:
    class Picture(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3 * 4 * 4, 1)

        def forward(self, x):
            return self.layer(x.sin().reshape(len(x), -1))[:, 0].square()

    step, x = Step(Picture(), DenoisingScoreMatching()), torch.randn(8, 3, 4, 4)
    same_as_eager(step, x)
    same_as_eager(step, x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.randn(0, 2), None, r"B >= 1 points .* got shape \(0, 2\)"),
        (torch.ones(3, 2, dtype=torch.long), None, "a floating dtype, got torch.int64"),
        (torch.full((3, 2), torch.nan), None, "to be finite, got 3 of 3 points"),
        (torch.randn(3, 2), torch.Generator(), "state to be None, got Generator"),
    ],
    ids=["empty", "integers", "nan", "generator"],
)
def test_a_step_names_what_it_cannot_take(x, state, message) -> None:
    with pytest.raises(ValueError, match=message):
        Step(Modal(), ScoreMatching())(x, state)


def test_a_step_asks_for_a_module() -> None:
    with pytest.raises(ValueError, match=r"an energy that is an nn.Module, got <function"):
        Step(lambda x: x.square().sum(1), ScoreMatching())
