r"""Energies of classes: against a labelled mixture of Gaussians, and a run on labelled images."""

import json
import pytest
import torch

from conftest import Diffused, three_modes
from fokker import fit, load
from fokker.analytic import GaussianMixture
from fokker.app.cli import main
from fokker.compute.step import Step
from fokker.data.images import read_labels
from fokker.networks import UNetEnergy
from fokker.objectives import LevelDCD, Limit, LogUniform
from fokker.runs.config import Config, ImageData, Optimization, UNet
from fokker.samplers import (
    Heun,
    OfClasses,
    calibrate,
    class_energies,
    karras,
    log_probs,
)
from pathlib import Path

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
MIXTURE = three_modes()


class Labelled(torch.nn.Module):
    r"""The exact energy E(x, sigma, c) of the components of a mixture, and of all of them, each
    with a constant of its own as training leaves it."""

    def __init__(self, constants=(0.0, 0.0, 0.0)):
        super().__init__()
        parts = zip(MIXTURE.means, MIXTURE.covariances, strict=True)
        one = torch.ones(1, dtype=torch.float64)
        self.parts = [Diffused(GaussianMixture(m[None], c[None], one)) for m, c in parts]
        self.constants = torch.tensor(constants, dtype=torch.float64)
        self.all = Diffused(MIXTURE)

    def forward(self, x, sigma, label=None):
        if label is None:
            return self.all(x, sigma)
        rows = torch.stack([part(x, sigma) for part in self.parts], 1) + self.constants
        return rows.gather(1, torch.as_tensor(label).reshape(-1, 1).expand(len(x), 1))[:, 0]


def drawn(n, seed=0):
    r"""Points of the mixture with their classes, with equal numbers of each."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 3
    root = torch.linalg.cholesky(MIXTURE.covariances)
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return MIXTURE.means[label] + (root[label] @ z[..., None])[..., 0], label


def test_the_classifier_is_that_of_bayes():
    x, label = drawn(3000)
    sigma, generator = 0.5, torch.Generator().manual_seed(1)
    x = x + sigma * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    logs = torch.stack([-part(x, torch.tensor(sigma)) for part in Labelled().parts], 1)
    exact = torch.log_softmax(logs, 1)
    energies = class_energies(Labelled(), x, sigma, 3, batch=700)
    torch.testing.assert_close(log_probs(energies), exact)
    # constants that training leaves are found again on labelled data
    off = class_energies(Labelled((3.0, -1.0, -2.0)), x, sigma, 3)
    bias = calibrate(off, label)
    expected = torch.tensor([3.0, -1.0, -2.0])
    assert (log_probs(off, bias).exp() - exact.exp()).abs().mean() < 0.01
    assert (bias - expected).abs().max() < 0.25  # of 3,000 points
    # the cross-entropy is least there
    gradient = log_probs(off, bias).exp().mean(0) - 1 / 3
    assert gradient.abs().max() < 1e-8
    right = lambda e, b=None: float((log_probs(e, b).argmax(1) == label).double().mean())
    assert right(off, bias) == pytest.approx(right(energies), abs=0.005)
    assert right(off) < right(energies) - 0.01
    with pytest.raises(ValueError, match="points of all 3 classes"):
        calibrate(off[:1], label[:1])


def test_composition_and_guidance_are_products():
    energy, x = Labelled(), torch.randn(50, 2)
    sigma = torch.tensor(0.3)
    e = lambda *c: energy(x, sigma, *c)
    both = OfClasses(energy, [0, 2], weight=1.7)(x, sigma)
    torch.testing.assert_close(both, e() + 1.7 * (e(0) - e() + e(2) - e()))
    torch.testing.assert_close(OfClasses(energy, [1])(x, sigma), e(1))
    own = torch.arange(50) % 3
    torch.testing.assert_close(OfClasses(energy, [own])(x, sigma), e(own))
    torch.testing.assert_close(OfClasses(energy, [own])(x[:20], sigma), e(own)[:20])
    # its denoised points are those of the gradient
    guided = OfClasses(energy, [0, 2], weight=1.7)
    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(guided(y, sigma).sum(), y)
    torch.testing.assert_close(guided.denoise(x, sigma), x - sigma**2 * slope)
    with pytest.raises(ValueError, match="one class or more"):
        OfClasses(energy, [])


def test_a_flow_of_one_class_ends_in_it():
    n, label = 3000, 1
    flow = Heun(karras(60, 0.01, 60.0))
    seed = torch.Generator().manual_seed(0)
    x = flow.run(OfClasses(Labelled(), [label]), n, (2,), seed, dtype=torch.float64).samples
    mean, covariance = MIXTURE.means[label], MIXTURE.covariances[label]
    error = covariance.diagonal().sqrt() / n**0.5
    assert ((x.mean(0) - mean).abs() < 5 * error).all()
    spread = torch.sqrt((torch.outer(d := covariance.diagonal(), d) + covariance**2) / n)
    assert ((torch.cov(x.T) - covariance).abs() < 5 * spread + 0.01).all()


def tiny(**options):
    torch.manual_seed(0)
    energy = UNetEnergy(1, 8, (1,), 1, attention=(), head=8, classes=3, **options)
    with torch.no_grad():
        for p in energy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return energy.double()


def test_the_network_is_told_the_class_of_each_row():
    energy, x, sigma = tiny(), torch.randn(4, 1, 4, 4), torch.tensor(0.5)
    label = torch.tensor([0, 2, 3, 1])
    rows = energy(x, sigma, label)
    for k, c in enumerate(label):
        torch.testing.assert_close(rows[k : k + 1], energy(x[k : k + 1], sigma, c))
    torch.testing.assert_close(energy(x, sigma), energy(x, sigma, 3))  # no class
    assert (energy(x, sigma, 0) - energy(x, sigma, 1)).abs().min() > 1e-6
    fresh = UNetEnergy(1, 8, (1,), 1, attention=(), head=8, classes=3)
    torch.testing.assert_close(fresh(x, sigma, 0), fresh(x, sigma))  # all alike at the start
    assert not any(p is fresh.embedding.table for p in fresh.hidden)
    with pytest.raises(ValueError, match="knows none"):
        UNetEnergy(1, 8, (1,), 1, attention=(), head=8)(x, sigma, 1)
    with pytest.raises(ValueError, match=r"expected classes of shape \(\) or \(4,\), got \(2,\)"):
        energy(x, sigma, torch.tensor([0, 1]))


def test_the_step_hands_each_row_its_class():
    energy, x = tiny(), torch.randn(6, 1, 4, 4)
    label = torch.tensor([0, 1, 2, 3, 0, 1])
    objective = LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True)
    seeded = lambda: torch.Generator().manual_seed(0)
    whole = Step(energy, objective)(x, None, seeded(), label)
    told = lambda p, level: energy(p, level, label)
    loss = objective(told, x, None, seeded()).loss
    torch.testing.assert_close(whole.loss, loss.detach())
    loss.backward()
    sliced = Step(energy, objective, slices=3)(x, None, seeded(), label)
    for name, p in energy.named_parameters():
        torch.testing.assert_close(whole.gradients[name], p.grad, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(sliced.gradients[name], p.grad, rtol=1e-3, atol=1e-5)
    assert whole.gradients["embedding.table"].abs().sum(1).gt(0).all()


@pytest.mark.slow
def test_a_run_of_classes(tmp_path, monkeypatch, capsys):
    r"""Trained for a moment on digits it knows some of them, draws them and is judged."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    assert read_labels(MINI).unique().tolist() == list(range(10))
    config = Config(
        ImageData(MINI, size=8),
        LevelDCD(LogUniform(0.05, 2.0), Limit(), conditional=True, weight="edm"),
        UNet(16, 1, multipliers=(1, 2), attention=(), classes=10),
        Optimization(steps=150, batch=64, rate=3e-3, muon=0.02, ema=0.95),
        evaluate=150,
    )
    run = fit(config, tmp_path / "run")
    task = run.loaded()
    x, label = task.labelled(4000, torch.Generator().manual_seed(0))
    assert len(x) == len(label) == 4000
    assert float((label == 10).float().mean()) == pytest.approx(0.1, abs=0.03)  # dropped
    main(["evaluate", str(run.path), "--accuracy", "200", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert max(found[f"accuracy_{s}"] for s in (0.1, 0.2, 0.4)) > 0.3  # 0.1 by chance
    out = str(tmp_path / "x.png")
    args = ["sample", str(run.path), "-n", "4", "--steps", "12", "-o", out, "--class", "3"]
    main([*args, "--class-weight", "1.1"])
    assert "4 images" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sample", str(run.path), "-n", "4", "-o", out, "--class", "10"])
    assert "expected class between 0 and 9, got 10" in capsys.readouterr().err
    plain = load(tmp_path / "run")
    assert plain.config.network.classes == 10
