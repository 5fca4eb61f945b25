r"""Every way to the Laplacian against autograd's Hessian, over generated nets and shapes."""

import math
import pytest
import torch

from conftest import standard_error
from fokker.derivatives import (
    LAPLACIANS,
    Auto,
    Exact,
    FiniteDifference,
    Hutchinson,
    Laplacian,
    Loop,
    Noise,
    Stein,
    gradient,
    score,
    value,
)
from fokker.networks import ACTIVATIONS, MLP
from fokker.shapes import dimension
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


class Conv(nn.Module):
    r"""A small convolutional energy."""

    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3), nn.Tanh()
        )

    def forward(self, x):
        return self.net(x).square().flatten(1).sum(1)


def hessian(energy, x):
    r"""The Hessian at one point, (D, D)."""
    flat = lambda v: energy(v.reshape(1, *x.shape)).squeeze(0)
    return torch.func.jacrev(torch.func.grad(flat))(x.flatten()).detach()


nets = st.builds(
    MLP,
    dim=st.integers(1, 5),
    width=st.integers(1, 12),
    layers=st.integers(2, 4),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    features=st.sampled_from([0, 3]),
    bandwidth=st.floats(0.5, 3.0),
)
images = st.tuples(st.integers(1, 3), st.integers(3, 5), st.integers(3, 5))


@settings(max_examples=25, deadline=None)
@given(net=nets, batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_forward_laplacian_is_exact(net, batch, seed):
    net = net.double()
    x = torch.randn(batch, net.dim, generator=torch.Generator().manual_seed(seed))
    jet = Exact()(net, x)
    for i in range(batch):
        H = hessian(net, x[i])
        assert torch.allclose(jet.laplacian[i], H.trace(), rtol=1e-9, atol=1e-9)
    assert torch.allclose(jet.energy, net(x))
    assert torch.allclose(jet.gradient, gradient(net, x)[1])


@settings(max_examples=15, deadline=None)
@given(shape=images, batch=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_loop_is_exact_on_images(shape, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    net = Conv(shape[0])
    x = torch.randn((batch, *shape), generator=generator)
    jet = Exact()(net, x)  # a module without a jet goes through the loop
    assert jet.gradient.shape == x.shape
    for i in range(batch):
        assert torch.allclose(jet.laplacian[i], hessian(net, x[i]).trace(), rtol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    net=nets,
    law=st.sampled_from(["rademacher", "gaussian"]),
    probes=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_hutchinson_is_unbiased_with_the_stated_variance(net, law, probes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, net.double().dim, generator=generator)
    H = hessian(net, x[0])
    variance = 2 * H.square().sum() / probes
    if law == "rademacher":
        variance = variance - 2 * H.diagonal().square().sum() / probes
    n = 2000
    estimates = Hutchinson(probes, law)(net, x.expand(n, -1), generator).laplacian
    bound = 5 * torch.sqrt(variance / n) + 1e-9
    assert (estimates.mean() - H.trace()).abs() < bound
    # the spread is the stated one: within a factor that heavy tails of quadratic forms allow
    assert estimates.var() <= 1.6 * variance + 1e-9
    assert estimates.var() >= 0.5 * variance - 1e-9


@settings(max_examples=10, deadline=None)
@given(shape=images, seed=st.integers(0, 2**16))
def test_hutchinson_on_images(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    net, x = Conv(shape[0]), torch.randn((1, *shape), generator=generator)
    H, n = hessian(net, x[0]), 500
    many = x.expand(n, *shape)
    estimates = Hutchinson()(net, many, generator).laplacian
    se = torch.sqrt(2 * (H.square().sum() - H.diagonal().square().sum()) / n)
    assert (estimates.mean() - H.trace()).abs() < 5 * se + 1e-9


@settings(max_examples=15, deadline=None)
@given(net=nets, seed=st.integers(0, 2**16))
def test_finite_difference(net, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, net.double().dim, generator=generator)
    H, n = hessian(net, x[0]), 2000
    h = 1e-3
    estimates = FiniteDifference(h)(net, x.expand(n, -1), generator).laplacian
    se = torch.sqrt(2 * (H.square().sum() - H.diagonal().square().sum()) / n)
    # the bias is h^2 times a fourth derivative, at most of the order of frequency^4
    scale = 1 + net(x).abs().item() + H.abs().sum().item()
    assert (estimates.mean() - H.trace()).abs() < 5 * se + 100 * h**2 * scale


@settings(max_examples=10, deadline=None)
@given(net=nets, sigma=st.floats(0.05, 0.5), seed=st.integers(0, 2**16))
def test_stein_is_unbiased_over_the_noise(net, sigma, seed):
    generator = torch.Generator().manual_seed(seed)
    m = torch.randn(1, net.double().dim, generator=generator)
    n = 20_000
    eps = torch.randn(n, net.dim, generator=generator)
    x = m + sigma * eps
    stein = Stein()(net, x, noise=Noise(eps, torch.tensor(sigma))).laplacian
    exact = Exact()(net, x).laplacian
    difference = (stein - exact).detach()
    assert difference.mean().abs() < 5 * standard_error(difference) + 1e-12


def test_stein_variance_and_its_pairs():
    # on a quadratic energy: |grad E(m)|^2 / sigma^2 + 2 |H|_F^2, and 2 |H|_F^2 in pairs
    H = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    energy = lambda x: ((x @ H) * x).sum(1) / 2
    m, sigma, n = torch.tensor([1.0, -2.0]), torch.tensor(0.3), 200_000
    eps = torch.randn(n, 2)
    one = Stein()(energy, m + sigma * eps, noise=Noise(eps, sigma)).laplacian
    two = Stein()(energy, m - sigma * eps, noise=Noise(-eps, sigma)).laplacian
    single = (H @ m).square().sum() / sigma**2 + 2 * H.square().sum()
    assert float(one.var()) == pytest.approx(float(single), rel=0.03)
    assert float(((one + two) / 2).var()) == pytest.approx(float(2 * H.square().sum()), rel=0.03)


def reduce(net, way, x, eps, sigma):
    r"""A loss that uses all of a jet."""
    jet = way(net, x, torch.Generator().manual_seed(3), Noise(eps, sigma))
    return (jet.energy + jet.gradient.flatten(1).square().sum(1) + jet.laplacian).sum()


@pytest.mark.parametrize("name", LAPLACIANS)
@pytest.mark.parametrize("shape", [(3,), (2, 4, 4)])
def test_parameter_gradients_eager_and_functional(name, shape):
    # the gradient by backward(), by torch.func over parameters, and by finite differences agree
    way, sigma = LAPLACIANS[name](), torch.tensor(0.2)
    net = MLP(3, 7, 3, "tanh") if len(shape) == 1 else Conv(2)
    eps = torch.randn(5, *shape)
    x = 0.3 + sigma * eps
    reduce(net, way, x, eps, sigma).backward()
    eager = {k: p.grad.clone() for k, p in net.named_parameters() if p.grad is not None}
    params = {k: p.detach() for k, p in net.named_parameters()}
    call = lambda params: lambda x: torch.func.functional_call(net, params, (x,))
    if len(shape) > 1 or name != "exact":
        loss = lambda params: reduce(call(params), way, x, eps, sigma)
    else:

        class Bound(nn.Module):  # keeps the jet of the net under substituted parameters
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x, eps, sigma):
                return reduce(self.net, way, x, eps, sigma)

        bound = Bound()
        loss = lambda params: torch.func.functional_call(
            bound, {f"net.{k}": p for k, p in params.items()}, (x, eps, sigma)
        )
    functional = torch.func.grad(loss)(params)
    assert max(float(g.abs().max()) for g in functional.values()) > 1e-3
    for k, g in functional.items():
        assert torch.allclose(eager.get(k, torch.zeros_like(g)), g, rtol=1e-9, atol=1e-11)
    direction = {k: torch.randn_like(p) for k, p in params.items()}
    h = 1e-6
    moved = [{k: params[k] + s * h * direction[k] for k in params} for s in (1, -1)]
    slope = (loss(moved[0]) - loss(moved[1])) / (2 * h)
    expected = sum(float((functional[k] * direction[k]).sum()) for k in params)
    assert float(slope) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_ways_agree_on_a_diagonal_hessian():
    # Rademacher probes are exact there
    energy = lambda x: (x**4).sum(1)
    x = torch.randn(6, 3)
    exact = 12 * x.square().sum(1)
    for way in (Loop(), Exact(), Hutchinson(1)):
        assert torch.allclose(way(energy, x).laplacian, exact)
    assert torch.allclose(FiniteDifference(1e-3)(energy, x).laplacian, exact, atol=1e-4)


def test_vmap_over_networks():
    # stacked nets: the jet of each, in one computation
    nets_ = [MLP(2, 8, 3) for _ in range(3)]
    params, _ = torch.func.stack_module_state(nets_)
    x = torch.randn(3, 10, 2)

    def laplacian(params, x):
        return Loop()(lambda x: torch.func.functional_call(nets_[0], params, (x,)), x).laplacian

    together = torch.vmap(laplacian)(params, x)
    for i, net in enumerate(nets_):
        assert torch.allclose(together[i], Exact()(net, x[i]).laplacian)


def test_score_is_minus_the_gradient():
    x = torch.randn(4, 3)
    assert torch.allclose(score(lambda x: x.square().sum(1) / 2, x), -x)
    jet = Exact()(lambda x: x.square().sum(1) / 2, x)
    assert torch.allclose(jet.score, -x)


def test_works_without_a_graph():
    net, x = MLP(2, 8, 3), torch.randn(4, 2)
    with torch.no_grad():
        jet = Loop()(net, x)
    assert not jet.laplacian.requires_grad
    assert torch.allclose(jet.laplacian, Exact()(net, x).laplacian)


def test_float32_is_kept():
    net, x = MLP(2, 8, 3).float(), torch.randn(4, 2, dtype=torch.float32)
    for way in (Exact(), Loop(), Hutchinson(), FiniteDifference()):
        assert all(part.dtype == torch.float32 for part in way(net, x))


@pytest.mark.parametrize("bad", [lambda x: x, lambda x: x.sum(), lambda x: x.sum(1)[:, None]])
def test_wrong_energy_shape_is_named(bad):
    with pytest.raises(ValueError, match=r"expected the energy to map points \(4, 2\) to values"):
        value(bad, torch.randn(4, 2))


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="probes to be an integer >= 1, got 0"):
        Hutchinson(0)
    with pytest.raises(ValueError, match="law to be one of rademacher, gaussian, got 'cauchy'"):
        Hutchinson(1, "cauchy")
    with pytest.raises(ValueError, match="h to be a finite number > 0, got -1"):
        FiniteDifference(-1)
    with pytest.raises(ValueError, match="expected the noise that made the points"):
        Stein()(lambda x: x.sum(1), torch.randn(4, 2))


def test_every_laplacian_is_registered():
    assert set(LAPLACIANS.values()) == set(Laplacian.__subclasses__())


def test_dimension():
    assert dimension(torch.zeros(7, 3, 4, 5)) == 60 == math.prod((3, 4, 5))


def test_auto_is_exact_in_few_dimensions_and_random_in_many():
    energy = lambda x: (x.square().sum(1)) ** 2
    generator = lambda: torch.Generator().manual_seed(0)
    for d, way in ((2, Exact()), (3, Hutchinson())):
        x = torch.randn(4, d)
        found, expected = Auto()(energy, x, generator()), way(energy, x, generator())
        assert torch.equal(found.laplacian, expected.laplacian)
    assert torch.equal(Auto(3)(energy, x).laplacian, Exact()(energy, x).laplacian)
    with pytest.raises(ValueError, match="limit"):
        Auto(0)
