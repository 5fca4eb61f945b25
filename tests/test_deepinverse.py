r"""Energies in deepinv: units against closed forms, and real runs of its solvers at small size."""

import math
import pytest
import torch

from fokker.images.deepinverse import as_denoiser, as_prior

pytestmark = pytest.mark.filterwarnings("ignore")
S2 = 0.5**2


class Pixels:
    r"""The exact energy of independent pixels N(0, S2), a sum of local ones."""

    local, reach, multiple = True, 0, 1

    def density(self, x, sigma):
        v = S2 + sigma**2
        return (x.square() / (2 * v) + torch.log(2 * math.pi * v) / 2).sum(1)


def test_without_the_package(monkeypatch):
    import sys

    for name in ("deepinv", "deepinv.optim", "deepinv.models"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (as_prior, as_denoiser):
        with pytest.raises(ImportError, match=r"pip install 'fokker\[deepinv\]'"):
            make(Pixels(), (1, 8, 8))


def test_units(generator):
    pytest.importorskip("deepinv")
    prior, denoiser = (make(Pixels(), (1, 8, 8)) for make in (as_prior, as_denoiser))
    v, sigma = torch.rand(3, 1, 8, 8, generator=generator), 0.15
    y = v.clone().requires_grad_()
    x, level = 2 * y - 1, torch.tensor(2 * sigma)
    whole = Pixels().density(x, level).sum((1, 2))
    (expected,) = torch.autograd.grad(whole.sum(), y)
    assert torch.allclose(prior.fn(v, sigma), whole)
    assert torch.allclose(prior.grad(v, sigma), expected)
    # the mean of the clean pixels, N(1/2, S2/4), given noise sigma
    exact = 0.5 + (v - 0.5) * (S2 / 4) / (S2 / 4 + sigma**2)
    assert torch.allclose(denoiser(v, sigma), exact)
    assert torch.allclose(denoiser(v, torch.full((3,), sigma)), exact)
    with pytest.raises(ValueError, match="one noise level"):
        prior.fn(v, torch.tensor([0.1, 0.2, 0.3]))


def test_solvers_of_deepinv(generator):
    r"""Gradient descent ends at the ridge estimate, and ULA has its moments."""
    dinv = pytest.importorskip("deepinv")
    from deepinv.optim import L2
    from deepinv.sampling import ULA

    s, sigma = 0.1, 0.05
    prior, fit = as_prior(Pixels(), (1, 8, 8)), L2(sigma=s)
    physics = dinv.physics.Denoising(dinv.physics.GaussianNoise(s))
    y = torch.rand(1, 1, 8, 8, generator=generator)
    v = S2 / 4 + sigma**2
    exact = 0.5 + (y - 0.5) * v / (v + s**2)
    x = y.clone()
    for _ in range(200):
        x = x - 2e-3 * (fit.grad(x, y, physics) + prior.grad(x, sigma))
    assert torch.allclose(x, exact, atol=1e-6)
    torch.manual_seed(0)
    h = 1e-3
    chain = ULA(prior, fit, step_size=h, sigma=sigma, alpha=1.0, max_iter=6000,
                burnin_ratio=0.2, thinning=1, clip=None, verbose=False)  # fmt: skip
    mean, variance = chain(y, physics)
    width = 1 / (1 / s**2 + 1 / v)
    # h of deepinv is half of ours: an autoregression with the variance of ULA, bias included
    biased = width / (1 - h / (2 * width))
    assert abs(float(variance.mean()) / biased - 1) < 0.1
    assert float((mean - exact).abs().mean()) < 0.2 * width**0.5
    plain = dinv.models.Denoiser
    assert isinstance(as_denoiser(Pixels(), (1, 8, 8)), plain)
