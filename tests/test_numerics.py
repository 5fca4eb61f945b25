r"""Derivatives of every layer and objective against finite differences; shapes and dtypes of
all."""

import copy
import importlib
import inspect
import pkgutil
import pytest
import torch

from fokker import networks
from fokker.analytic import Gaussian
from fokker.compute.step import Step
from fokker.derivatives import LAPLACIANS, gradient
from fokker.diffusions import EDM, VP, Langevin
from fokker.energies import Energy, Quadratic
from fokker.evolution import MonteCarlo, Stationary, Taylor
from fokker.networks import (
    ACTIVATIONS,
    MLP,
    Conv2d,
    Fourier,
    Linear,
    UNetDenoiser,
    UNetEnergy,
    WideResNet,
)
from fokker.networks import unet as unets
from fokker.networks import wideresnet as resnets
from fokker.networks.convolution import Precise
from fokker.networks.normalization import normalize
from fokker.objectives import (
    CD,
    DCD,
    OBJECTIVES,
    PCD,
    Classification,
    Denoising,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    Grid,
    LevelDCD,
    LogNormal,
    LogUniform,
    MultiTimeDCD,
    Noisy,
    Particles,
    Preserving,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
    TimeScore,
    Uniform,
)
from fokker.objectives.levels import FORMS, Bridge
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import silu

TINY = {"width": 4, "multipliers": (1, 2), "blocks": 1, "attention": (1,), "head": 4}


def awake(module: nn.Module) -> nn.Module:
    r"""The module with no weight at zero, where a gradient may vanish for the wrong reason."""
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    return module


# --- layers ---

IMAGE, FEATURES, SIGMA = (2, 4, 2, 4), (2, 5), (2,)
LAYERS = {
    "linear": (lambda: Linear(3, 2), [(2, 3)]),
    "convolution": (lambda: Conv2d(4, 3, 3, stride=2), [IMAGE]),
    "fourier": (lambda: Fourier(3, 4, 2.0), [(2, 3)]),
    "mlp": (lambda: MLP(3, 5, 3, features=2), [(2, 3)]),
    "embedding": (lambda: unets.Embedding(3, 5), [SIGMA]),
    "block": (lambda: unets.Block(4, 3, 5), [IMAGE, FEATURES]),
    "attention": (lambda: unets.Attention(4, 2, fused=False), [IMAGE]),
    "stage": (
        lambda: unets.Stage(unets.Block(4, 4, 5), unets.Attention(4, 2, fused=False)),
        [IMAGE, FEATURES],
    ),
    "halve": (lambda: unets.Resample(4, unets.halve), [IMAGE, FEATURES]),
    "double": (lambda: unets.Resample(4, unets.double), [IMAGE, FEATURES]),
    "unet": (lambda: UNetEnergy(1, form="square", dtype="float64", **TINY), [(2, 1, 2, 4), SIGMA]),
    "inner": (lambda: UNetEnergy(1, dtype="float64", **TINY), [(2, 1, 2, 4), SIGMA]),
    "pool": (lambda: UNetEnergy(1, form="pool", dtype="float64", **TINY), [(2, 1, 2, 4), SIGMA]),
    "sum": (lambda: UNetEnergy(1, form="sum", dtype="float64", **TINY), [(2, 1, 2, 4), SIGMA]),
    "residual": (lambda: resnets.Block(4, 3, 2, silu, 0.5), [IMAGE]),
    "wide-resnet": (lambda: WideResNet(1, 10, 1, form="sum", dtype="float64"), [(2, 1, 4, 4)]),
}
LAYERS |= {f"mlp {name}": (lambda name=name: MLP(3, 5, 3, name), [(2, 3)]) for name in ACTIVATIONS}


@pytest.mark.parametrize("name", LAYERS)
def test_first_and_second_derivatives_of_layers(name):
    r"""In the inputs and all parameters at once, along random directions."""
    make, shapes = LAYERS[name]
    layer = awake(make())
    x = [torch.rand(shape) + 0.5 if shape == SIGMA else torch.randn(shape) for shape in shapes]
    own = dict(layer.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in own.values()] or [torch.ones(1)])
    used = [name not in {"halve", "double"} or t.ndim == 4 for t in x]  # no noise level
    leaves = [t.requires_grad_(use) for t, use in zip(x, used, strict=True)]
    leaves.append(flat.requires_grad_(bool(own)))

    def call(*leaves):
        *x, flat = leaves
        parts = flat.split([p.numel() for p in own.values()]) if own else ()
        theta = {k: t.view_as(own[k]) for k, t in zip(own, parts, strict=True)}
        return torch.func.functional_call(layer, theta, tuple(x))

    assert gradcheck(call, leaves, fast_mode=True)
    assert gradgradcheck(call, leaves, fast_mode=True, atol=1e-4)


def test_every_layer_is_checked():
    checked = {type(m) for make, _ in LAYERS.values() for m in make().modules()}
    for part in pkgutil.iter_modules(networks.__path__):
        module = importlib.import_module(f"fokker.networks.{part.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, nn.Module) and kind.__module__ == module.__name__:
                assert kind in checked or kind in {UNetDenoiser, Precise}, kind  # no forward


def test_derivatives_of_the_denoiser():
    net = awake(UNetDenoiser(1, dtype="float64", **TINY))
    x, sigma = torch.randn(2, 1, 2, 4, requires_grad=True), torch.tensor([0.5, 1.5])
    sigma.requires_grad_()
    assert gradcheck(net.denoise, (x, sigma), fast_mode=True)
    assert gradgradcheck(net.denoise, (x, sigma), fast_mode=True, atol=1e-4)


def test_first_derivative_of_fused_attention():
    layer = awake(unets.Attention(4, 2, fused=True))
    assert gradcheck(layer, torch.randn(IMAGE, requires_grad=True), fast_mode=True)


# --- objectives ---


class Levels(Energy):
    r"""A small energy of every level, which denoises too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(3, 8, 3)

    def forward(self, x, sigma):
        level = torch.log(sigma).expand(len(x))[:, None]
        return self.net(torch.cat([x, level], 1)) + (x * x).sum(1) / (2 * sigma**2 + 1)

    def denoise(self, x, sigma):
        return x - sigma[:, None] ** 2 * gradient(lambda p: self(p, sigma), x)[1]


class Held:
    r"""An energy that is held still in its first calls, those of points that gradients stop at."""

    def __init__(self, energy, held, calls):
        self.energy, self.held, self.calls = energy, held, calls

    def __call__(self, *args):
        self.calls -= 1
        return (self.held if self.calls >= 0 else self.energy)(*args)

    def denoise(self, *args):
        return self.energy.denoise(*args)


HELD = {"central", "bridge"}  # forms whose points are made by the energy
# an objective, and how many of its calls of the energy make points that gradients stop at
POINTS = {
    "dcd": (DCD(), 0),
    "multi-time": (MultiTimeDCD(points=3), 0),
    "cd": (CD(3, 0.01), 3),
    "pcd": (PCD(3, 0.01, buffer=12), 3),
    "noisy": (Noisy(CD(2, 0.01)), 2),
    "sm": (ScoreMatching(), 0),
    "ssm": (SlicedScoreMatching(), 0),
    "dsm": (DenoisingScoreMatching(0.3), 0),
    "ed": (EnergyDiscrepancy(0.3, 4), 0),
    "recovery": (RecoveryLikelihood(0.3, 3), 3),
}
POINTS |= {
    f"level-dcd {form}": (LevelDCD(0.4, FORMS[form]()), int(form in HELD)) for form in FORMS
}
# the choices within an objective
VARIANTS = {
    f"dcd {name}": (DCD(laplacian=way(), step=0.01), 0)
    for name, way in LAPLACIANS.items()
    if name not in {"auto", "exact"}  # on the plane, the default
}
VARIANTS |= {
    "dcd start": (DCD(evolution=Taylor("start"), antithetic=True), 0),
    "dcd monte-carlo": (DCD(evolution=MonteCarlo(4), step=0.1, rate=False), 0),
    "dcd vp": (DCD(VP(), step=LogUniform(0.01, 0.1)), 0),
    "dcd edm": (DCD(EDM(), step=0.1), 0),
    "dcd langevin": (DCD(Langevin(Quadratic(1.0)), Stationary(), step=0.1), 0),
    "pcd data": (PCD(3, 0.01, buffer=12, restart=0.5, source="data"), 3),
    "noisy pcd": (Noisy(PCD(2, 0.01, buffer=12), LogUniform(0.1, 0.5)), 2),
    "sm hutchinson": (ScoreMatching(LAPLACIANS["hutchinson"]()), 0),
    "ssm plain": (SlicedScoreMatching(3, variance_reduced=False), 0),
    "ed unstable": (EnergyDiscrepancy(0.3, 4, 0.0), 0),
    "recovery law": (RecoveryLikelihood(LogUniform(0.1, 0.5), 3), 3),
    "level-dcd one": (LevelDCD(0.4, weight="one"), 1),
    "level-dcd four draws": (LevelDCD(0.4, Bridge(0.2, draws=4)), 1),
    "level-dcd not apart": (LevelDCD(0.4, Bridge(0.2, shift=0.0)), 1),
}
POINTED = POINTS | VARIANTS
LEVELS = {"denoising": (Denoising(LogNormal(), weight="edm"), 0)}
LEVELS |= {
    f"level-dcd {type(law).__name__}": (LevelDCD(law, conditional=True), 1)
    for law in (LogUniform(0.1, 2.0), Uniform(0.1, 2.0), Preserving())
}
for name, form in FORMS.items():
    own = LevelDCD(LogNormal(), form(), conditional=True, weight="edm")
    LEVELS[f"level-dcd {name}"] = (own, int(name in HELD))
    if form().tied:
        own = LevelDCD(Grid(5, 0.1, 2.0), form(), conditional=True, ties=(TimeScore(0.7),))
        LEVELS[f"level-dcd {name} time"] = (own, int(name in HELD))
    own = LevelDCD(Grid(5, 0.1, 2.0), form(), conditional=True, ties=(Classification(0.7, 3),))
    LEVELS[f"level-dcd {name} classification"] = (own, int(name in HELD))


def directional(energy, objective, calls, x, state, seed):
    r"""The derivative of the loss along random directions: of a step, and by finite
    differences."""
    out = Step(energy, objective)(x, state, torch.Generator().manual_seed(seed))
    pairs = []
    for _ in range(3):
        v = {k: torch.randn_like(p) for k, p in energy.named_parameters()}
        losses = []
        for h in (1e-5, -1e-5):
            moved = copy.deepcopy(energy)
            with torch.no_grad():
                for k, p in moved.named_parameters():
                    p += h * v[k]
            held, generator = Held(moved, energy, calls), torch.Generator().manual_seed(seed)
            losses.append(objective(held, x, state, generator).loss.detach())
        slope = sum((v[k] * g).sum() for k, g in out.gradients.items())
        pairs.append(torch.stack([slope, (losses[0] - losses[1]) / 2e-5]))
    return torch.stack(pairs), out.state


@pytest.mark.parametrize(
    ("energy", "name"),
    [*((MLP, name) for name in POINTED), *((Levels, name) for name in LEVELS)],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_a_step_is_the_derivative_of_the_loss(energy, name):
    objective, calls = (POINTED if energy is MLP else LEVELS)[name]
    own, x, state = (MLP(2, 8, 3) if energy is MLP else Levels()), torch.randn(6, 2), None
    rounds = 2 if objective.carries is Particles else 1  # first without particles, then with
    for seed in range(rounds):
        found, state = directional(own, objective, calls, x, state, seed)
        slope, expected = found.T
        assert torch.allclose(slope, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
        assert expected.abs().min() > 0


def test_every_objective_is_checked():
    kinds = {type(objective) for objective, _ in (*POINTS.values(), *LEVELS.values())}
    assert kinds == set(OBJECTIVES.values())


def test_a_chain_that_is_not_held_would_be_seen():
    r"""The derivative through the chain is another one: the test above can fail."""
    found, _ = directional(MLP(2, 8, 3), CD(3, 0.5), 0, torch.randn(6, 2), None, 0)
    slope, expected = found.T
    assert not torch.allclose(slope, expected, rtol=1e-3)


# --- shapes and dtypes ---

DTYPES = {torch.float32: 1e-4, torch.float64: 1e-11}


def energies(d: int) -> dict[str, Energy]:
    r"""Energies of points of d coordinates, in float64."""
    net = MLP(d, 6, 3, features=2)
    return {
        "mlp": net,
        "sum": net + Quadratic(0.7),
        "scaled": net * 0.3,
        "mixture": net | Quadratic(1.5),
        "gaussian": Gaussian(torch.randn(d), 0.5),
    }


@given(
    b=st.integers(1, 5),
    d=st.integers(1, 6),
    name=st.sampled_from([*energies(1)]),
    dtype=st.sampled_from([*DTYPES]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_energies_over_shapes_and_dtypes(b, d, name, dtype, seed):
    torch.manual_seed(seed)
    energy, x = energies(d)[name].double(), torch.randn(b, d, dtype=torch.float64)
    energy.requires_grad_(False)
    expected, slope = gradient(energy, x)
    jet = energy.jet(x)
    assert torch.allclose(jet.energy, expected) and torch.allclose(jet.gradient, slope)
    e, g = gradient(energy.to(dtype), x.to(dtype))
    assert (e.shape, e.dtype, g.shape, g.dtype) == ((b,), dtype, (b, d), dtype)
    rtol = DTYPES[dtype]
    assert torch.allclose(e.double(), expected, rtol=rtol, atol=rtol)
    assert torch.allclose(g.double(), slope, rtol=rtol, atol=rtol * (1 + float(slope.abs().max())))
    alone = torch.cat([
        energy(row[None].to(dtype)) for row in x
    ])  # points know nothing of each other
    assert torch.allclose(alone, e, rtol=rtol, atol=rtol)


IMAGE_LAYERS = {
    "convolution": lambda c: Conv2d(c, 3, 3),
    "attention": lambda c: unets.Attention(c, 1, fused=False),
    "halve": lambda c: unets.halve,
    "double": lambda c: unets.double,
    "normalize": lambda c: normalize,
}


@given(
    b=st.integers(1, 3),
    c=st.integers(1, 4),
    h=st.sampled_from([2, 4, 6]),
    w=st.sampled_from([2, 4]),
    name=st.sampled_from([*IMAGE_LAYERS]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_layers_over_shapes_and_dtypes(b, c, h, w, name, dtype, seed):
    torch.manual_seed(seed)
    layer = IMAGE_LAYERS[name](c)
    x = torch.randn(b, c, h, w).to(dtype)
    expected = layer(x.double())
    out = layer(x)
    assert out.dtype == (torch.float32 if name == "normalize" else dtype)
    assert out.shape == expected.shape
    near = 0.05 if dtype == torch.bfloat16 else 1e-4
    assert (out.double() - expected).norm() <= near * (1 + expected.norm())


@given(
    b=st.integers(1, 3),
    c=st.sampled_from([1, 3]),
    h=st.sampled_from([2, 4]),
    w=st.sampled_from([2, 6]),
    net=st.sampled_from(["inner", "square", "pool", "sum", "wide-resnet"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_networks_of_images_over_shapes_and_dtypes(b, c, h, w, net, dtype, seed):
    torch.manual_seed(seed)
    if net == "wide-resnet":
        low, high = (WideResNet(c, 10, 1, form="sum", dtype=kind) for kind in (dtype, "float64"))
    else:
        low, high = (UNetEnergy(c, form=net, dtype=k, **TINY) for k in (dtype, "float64"))
    high.load_state_dict(low.state_dict())
    x, level = torch.randn(b, c, h, w), () if net == "wide-resnet" else (torch.tensor(0.7),)
    expected = high(x, *level)
    e, g = gradient(lambda p: low(p, *(t.float() for t in level)), x.float())
    assert (e.shape, e.dtype, g.shape) == ((b,), torch.float32, x.shape)
    near = 0.05 if dtype == "bfloat16" else 1e-4
    assert (e.double() - expected).abs().max() <= near * (1 + expected.abs().max())
    assert torch.isfinite(g).all()


@given(
    b=st.integers(1, 7),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    name=st.sampled_from([name for name in POINTS if name not in {"sm", "dcd", "multi-time"}]),
    dtype=st.sampled_from([*DTYPES]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_objectives_over_shapes_and_dtypes(b, shape, name, dtype, seed):
    torch.manual_seed(seed)
    generator, objective = torch.Generator().manual_seed(seed), POINTS[name][0]
    a = torch.tensor(1.3, dtype=dtype, requires_grad=True)
    energy = lambda x: a * torch.log1p(x.square()).flatten(1).sum(1)
    x = torch.randn(b, *shape, dtype=dtype)
    before = x.clone()
    out = objective(energy, x, None, generator)
    (slope,) = torch.autograd.grad(out.loss, a)
    assert out.loss.shape == () and out.loss.dtype == dtype and slope.dtype == dtype
    assert torch.isfinite(out.loss) and torch.isfinite(slope)
    assert torch.equal(x, before)
    assert all(not t.requires_grad and t.shape == () for t in out.info.values())
