r"""Diagnostics against closed forms, and against plain loops over their definitions."""

import math
import numpy as np
import pytest
import scipy.stats
import torch

from fokker.samplers import MALA, Acceptance, ess, rhat, standard_error
from fokker.samplers.diagnostics import acceptance


def normal(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def autoregression(rho, samples, chains, *shape, seed=0):
    r"""The stationary AR(1) process of unit variance; its tau is (1 + rho) / (1 - rho)."""
    x = normal(samples, chains, *shape, seed=seed)
    x[1:] *= math.sqrt(1 - rho**2)
    for k in range(1, samples):
        x[k] += rho * x[k - 1]
    return x


def split(x):
    n = len(x) // 2
    return np.concatenate([x[:n], x[len(x) - n :]], axis=1)


def rhat_by_hand(x):
    r"""R-hat of samples (S, B) by the formulas of the paper."""

    def ratio(y):
        n, m = y.shape
        z = scipy.stats.norm.ppf((scipy.stats.rankdata(y) - 3 / 8) / (y.size + 1 / 4))
        z = z.reshape(n, m)
        between = n * z.mean(0).var(ddof=1)
        within = z.var(0, ddof=1).mean()
        return math.sqrt(((n - 1) / n * within + between / n) / within)

    y = split(x)
    median = np.sort(y, axis=None)[(y.size - 1) // 2]  # the lower one, as torch
    return max(ratio(y), ratio(np.abs(y - median)))


def ess_by_hand(x):
    r"""The effective sample size of samples (S, B) by Geyer's rule, one lag at a time."""
    y = split(x)
    n, m = y.shape
    d = y - y.mean(0)
    within = y.var(0, ddof=1).mean()
    pooled = (n - 1) / n * within + y.mean(0).var(ddof=1)
    rho = [1 - (within - (d[: n - t] * d[t:]).sum(0).mean() / n) / pooled for t in range(n)]
    rho[0] = 1.0
    tau, last = -1.0, math.inf
    for k in range(0, n - 1, 2):
        last = min(last, rho[k] + rho[k + 1])
        if last <= 0:
            break
        tau += 2 * last
    return n * m / max(tau, 1 / math.log10(n * m))


@pytest.mark.parametrize("size", [(101, 3), (40, 1), (4, 2)])
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_definitions(size, rho):
    x = autoregression(rho, *size, 2, seed=1)
    x[1::3] = x[::3][: len(x[1::3])]  # ties, as rejections make them
    for k in range(2):
        assert float(rhat(x)[k]) == pytest.approx(rhat_by_hand(x[..., k].numpy()), rel=1e-10)
        assert float(ess(x)[k]) == pytest.approx(ess_by_hand(x[..., k].numpy()), rel=1e-10)


def test_rhat_is_near_one_when_chains_agree():
    assert (rhat(normal(1000, 8, 5)) < 1.01).all()
    cauchy = normal(1000, 8) / normal(1000, 8, seed=1)  # no mean, no variance: ranks do not mind
    assert rhat(cauchy) < 1.01


def test_rhat_sees_chains_apart_in_place_scale_or_time():
    x = normal(1000, 8)
    side = torch.arange(8) % 2
    assert rhat(x + 5 * side) > 1.5
    assert rhat(x * (1 + 4 * side)) > 1.1  # by folding: the means agree
    assert rhat(x[:, :1] + torch.linspace(0, 5, 1000)[:, None]) > 1.2  # one chain, by its halves


@pytest.mark.parametrize("rho", [0.9, 0.5, -0.3])
def test_ess_of_an_autoregression(rho):
    x = autoregression(rho, 4000, 20)
    truth = x.numel() * (1 - rho) / (1 + rho)
    assert float(ess(x)) == pytest.approx(truth, rel=0.1)
    assert float(standard_error(x)) == pytest.approx(1 / math.sqrt(truth), rel=0.1)


def test_ess_of_independent_samples_is_their_number():
    x = normal(2000, 10, 4)
    torch.testing.assert_close(ess(x), torch.full((4,), 2e4, dtype=x.dtype), rtol=0.1, atol=0)


def test_ess_counts_modes_when_chains_do_not_mix():
    x = 0.01 * normal(1000, 8) + normal(8, seed=1)
    assert ess(x) < 2 * 8


def test_shapes():
    x = normal(50, 4, 3, 2, 2)
    for f in (rhat, ess, standard_error):
        assert f(x).shape == (3, 2, 2)
        assert f(x[..., 0, 0, 0]).shape == ()  # a trace, such as that of the energy
        torch.testing.assert_close(f(x)[1, 0, 1], f(x[:, :, 1, 0, 1]))
        torch.testing.assert_close(f(x), f(x.float()).double(), rtol=1e-4, atol=1e-4)


def test_a_coordinate_that_never_moves_is_not_a_number():
    x = normal(50, 4, 2)
    x[..., 1] = 3.0
    assert rhat(x).isnan().tolist() == ess(x).isnan().tolist() == [False, True]


def test_acceptance_finds_the_stuck_chain():
    rates = torch.full((10, 4), 0.6, dtype=torch.float64)
    rates[::2, 2] = 0.0
    rates[1::2, 2] = 0.2
    rates[::2, 3] = 0.8
    assert acceptance(rates) == pytest.approx(Acceptance(0.5, 0.1, 0.7))


def test_run_reports():
    run = MALA(0.5).run(lambda x: x.flatten(1).square().sum(1) / 2, normal(6, 2, 3), 40)
    assert torch.equal(run.rhat(), rhat(run.samples)) and run.rhat().shape == (2, 3)
    assert torch.equal(run.ess(), ess(run.samples))
    assert run.acceptance == acceptance(run.info.acceptance)


@pytest.mark.parametrize("f", [rhat, ess, standard_error])
def test_bad_samples(f):
    with pytest.raises(ValueError, match="S >= 4 samples a chain, two a half, got S = 3"):
        f(normal(3, 8))
    with pytest.raises(ValueError, match=r"shape \(S, B, \*\), got shape \(9,\)"):
        f(normal(9))
    with pytest.raises(ValueError, match="finite samples, got 1 of 72 values"):
        f(torch.where(torch.arange(72).reshape(9, 8) == 5, math.nan, normal(9, 8)))
