r"""Posteriors: descent and samples against closed forms, of Gaussians and of mixtures."""

import math
import pytest
import torch

from dataclasses import replace
from fokker.analytic import Gaussian, GaussianMixture
from fokker.app.cli import main
from fokker.images.operators import Blur, Downscale, Identity, Mask, gaussian_kernel
from fokker.images.posterior import Annealing, Posterior, descend, ladder
from fokker.samplers import Field
from studies import posterior as study
from studies import results

SIDE = 4
OPERATORS = {
    "identity": Identity(),
    "mask": Mask(torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]])),
    "downscale": Downscale(2),
    "blur": Blur(gaussian_kernel(0.3)),
}


def gaussian() -> Gaussian:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(16, 16, generator=generator) / 4
    return Gaussian(torch.randn(16, generator=generator), root @ root.T + 0.2 * torch.eye(16))


class Blurred:
    r"""The exact energy of a Gaussian with noise."""

    def __init__(self, p: Gaussian) -> None:
        self.p = p

    def __call__(self, x, sigma):
        c = self.p.covariance + sigma**2 * torch.eye(16)
        shift = x.flatten(1) - self.p.mean
        return (shift @ torch.linalg.inv(c) * shift).sum(1) / 2 + torch.logdet(c) / 2


def given(name: str, s: float = 0.3, lowest: float = 0.0) -> tuple[Posterior, study.Truth]:
    p, a = gaussian(), OPERATORS[name]
    generator = torch.Generator().manual_seed(2)
    y = a(p.sample(1, generator).reshape(1, 1, SIDE, SIDE))
    y = y + s * torch.randn(y.shape, generator=generator)
    y = a(y) if name == "mask" else y
    exact = study.truth(study.Problem(p, a, y, s, SIDE))
    return Posterior(Field(Blurred(p)), a, y, s, lowest), exact


def test_values_and_gradients_of_levels(generator):
    posterior, _ = given("blur", lowest=0.1)
    x = torch.randn(3, 1, SIDE, SIDE, generator=generator, requires_grad=True)
    for sigma in (0.1, 0.7):
        e, g = posterior.jet(x.detach(), sigma)
        assert torch.allclose(e, posterior.value(x, sigma))
        v = 0.3**2 + posterior.operator.norm**2 * (sigma**2 - 0.1**2)
        miss = (posterior.operator(x) - posterior.y).square().flatten(1).sum(1)
        whole = posterior.field.energy(x, torch.tensor(sigma)) + miss / (2 * v)
        (expected,) = torch.autograd.grad(whole.sum(), x, retain_graph=True)
        assert torch.allclose(e, whole) and torch.allclose(g, expected)
    with pytest.raises(ValueError, match=r"a level of 0\.1 or more, got 0\.05"):
        posterior.jet(x, 0.05)


@pytest.mark.parametrize("name", OPERATORS)
def test_descent_finds_the_mode(name):
    posterior, exact = given(name)
    x = posterior.start(1, 0.0)
    found = descend(posterior, x, (1.0, 0.3, 0.0), 300, scale=0.5, tolerance=1e-6)
    assert torch.allclose(found.x.flatten(), exact.mean, atol=1e-4)
    assert all(b < a for a, b in zip(found.values, found.values[1:], strict=False))
    assert float(found.gradient) < 1e-4 and found.evaluations > 3


@pytest.mark.parametrize("name", OPERATORS)
def test_corrected_chains_have_the_moments_of_a_gaussian(name, generator):
    posterior, exact = given(name)
    annealing = Annealing((1.0, 0.5, 0.0), 4, 60, thin=6, scale=0.5)
    n = 1000
    found = annealing.run(posterior, posterior.start(n, 1.0, generator), generator)
    x = found.kept.flatten(2)  # (10, n, 16)
    sd = exact.covariance.diagonal().sqrt()
    # chains are independent, the points of one are not: its mean is one draw of variance <= C
    error = (x.mean(0) - exact.mean) / sd
    assert float((error.mean(0) / (error.std(0) / math.sqrt(n))).abs().max()) < 5
    second = ((x - exact.mean).square() / sd**2).mean(0)
    z = (second.mean(0) - 1) / (second.std(0) / math.sqrt(n))
    assert float(z.abs().max()) < 5
    loose = replace(annealing, corrected=False, step_size=found.step_size)
    x = loose.run(posterior, posterior.start(n, 1.0, generator), generator).kept.flatten(2)
    second = ((x - exact.mean).square() / sd**2).mean(0)
    z = (second.mean(0) - 1) / (second.std(0) / math.sqrt(n))
    assert float(z.max()) > 10  # without acceptance the variance is too large


def test_particles_have_the_weights_of_the_modes(generator):
    known = study.problem("mask", 16)
    exact = study.truth(known)
    posterior = known.posterior()
    torch.set_default_dtype(torch.float32)
    base = Annealing((3.0, 0.0), 1, 12, thin=4, first=20, scale=0.5, islands=4)
    start = lambda n: posterior.start(n, 3.0, generator)
    levels = ladder(posterior, base, start(256), generator, 0.9)
    assert len(levels) > 5 and (levels[0], levels[-1]) == (3, 0)
    found = replace(base, levels=levels, weighted=True).run(posterior, start(4096), generator)
    islands = found.kept[-1].reshape(4, 1024, 16).double()
    shares = torch.stack([
        torch.softmax(exact.mixture.parts(x)[0], 0).mean(1) for x in islands
    ])  # (G, K)
    error = shares.std(0) / 2
    off = (shares.mean(0) - exact.mixture.weights).abs()
    assert float((off / error.clamp_min(5e-3)).max()) < 5, (off, error)
    assert 0 < found.share <= 1 and len(found.acceptance) == len(levels)


def test_the_truth_is_that_of_importance_sampling(generator):
    r"""The closed form of the study against weighted draws from the prior."""
    known = study.problem("downscale", 16)
    known = known._replace(noise=2.0)
    exact = study.truth(known)
    x = known.mixture.sample(200_000, generator)
    miss = known.operator(x.reshape(-1, 1, 4, 4)) - known.y
    w = torch.softmax(-miss.flatten(1).square().sum(1) / (2 * known.noise**2), 0)
    mean = w @ x
    error = ((w[:, None] * (x - mean)).square().sum(0)).sqrt()
    assert float(((mean - exact.mean) / error).abs().max()) < 5
    variance = w @ (x - exact.mean).square()
    spread = (w[:, None] * ((x - exact.mean).square() - variance)).square().sum(0).sqrt()
    assert float(((variance - exact.covariance.diagonal()) / spread).abs().max()) < 5


def test_errors_of_the_study(generator):
    p = GaussianMixture(torch.tensor([[0.0, 0.0]]), 1.0)
    exact = study.Truth(p, torch.zeros(2), torch.eye(2))
    x = torch.randn(8, 4000, 2, generator=generator)
    right = study.judge(x, exact)
    assert right["mean_error"] < 0.01 and right["covariance_error"] < 0.02
    wrong = study.judge(1.1 * x + 0.2, exact)
    assert wrong["mean_error"] == pytest.approx(0.2, rel=0.05)
    c = torch.eye(2) * 0.21 + 0.04  # of the second moment about the true mean
    assert wrong["covariance_error"] == pytest.approx(float(c.norm()) / math.sqrt(2), rel=0.1)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "posterior.json"
    args = ["--dimensions", "16", "--particles", "64", "--results", str(out)]
    torch.set_default_dtype(torch.float32)
    main(["reproduce", "posterior", "--operators", "identity", *args])
    assert "identity, 16 pixels, not corrected: mean" in capsys.readouterr().out
    assert [row["corrected"] for row in results.load(out)["rows"]] == [True, False, True]
    main(["reproduce", "posterior", "--operators", "identity", *args])
    assert len(results.load(out)["rows"]) == 3  # in place of the same from before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"levels": ()}, "levels that fall"),
        ({"levels": (0.1, 0.3)}, "levels that fall"),
        ({"levels": (1.0,), "last": 2, "thin": 3}, "thin <= last"),
        ({"levels": (1.0, -0.5)}, r"levels\[1\] to be a finite number >= 0"),
    ],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Annealing(**arguments)


def test_a_ladder_that_does_not_fit_is_refused():
    posterior, _ = given("identity", lowest=0.1)
    with pytest.raises(ValueError, match=r"the last of the ladder, 0, got 0\.1"):
        Annealing((1.0, 0.0)).run(posterior, posterior.start(8, 1.0))
