r"""Likelihoods in one pass, with the constant of the top level, against exact densities."""

import json
import math
import pytest
import torch

from conftest import Diffused, three_modes
from dataclasses import replace
from fokker.analytic import Gaussian
from fokker.app.cli import main
from fokker.data.picture import to_float
from fokker.energies import Energy
from fokker.images.likelihood import agreement, bits_by_image, constant_of
from fokker.metrics import TiedEnergy, top_constant
from fokker.networks import UNetDenoiser
from fokker.objectives import Classification, LevelDCD, LogNormal, LogUniform, Wide
from fokker.runs.checkpoints import Checkpoint
from fokker.runs.checkpoints import write as write_checkpoint
from fokker.runs.toml import dumps
from fokker.tasks.likelihoods import beyond
from fokker.tasks.trained import is_tied
from test_generation import Bell, config
from test_ties import Round
from types import SimpleNamespace
from typing import Any

OFFSET = 7.3


@pytest.mark.parametrize("D", [2, 64, 1024])
def test_one_pass_is_the_density_of_a_mixture(D):
    exact, generator = Round(D), torch.Generator().manual_seed(0)
    x = exact.sample(2000, generator)
    energy = lambda p, s: exact(p, s) + OFFSET
    found = top_constant(energy, x, 80.0, x.mean(0), x.var(0), generator)
    kl = 0.25 * float((torch.cov(x.T) - torch.diag(x.var(0))).square().sum()) / 80**4
    allowed = kl + 5 * found.error + 1e-3
    assert abs(found.value - OFFSET) < allowed < 1e-5 * D + 0.002
    assert found.spread < 1e-3 * D**0.5 + 1e-2  # the energy is right at the top
    tied, test = TiedEnergy(energy, found, 0.05), exact.sample(20, generator)
    at = lambda s: -exact(test, torch.tensor(s))
    assert (tied.log_prob(test) - at(0.05)).abs().max() < allowed
    assert (tied.log_prob(test, 1.5) - at(1.5)).abs().max() < allowed


def test_the_error_of_the_assumption_is_the_divergence_from_a_gaussian():
    r"""Correlated data at a low top: every log-likelihood is too low by KL(p_top ‖ π)."""
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    p, generator = Gaussian(torch.zeros(2), covariance), torch.Generator().manual_seed(0)
    x = p.sample(200_000, generator)
    found = top_constant(Diffused(p), x, 1.0, 0.0, torch.ones(2), generator)
    top = Gaussian(torch.zeros(2), covariance + torch.eye(2))
    kl = float(top.kl(Gaussian(torch.zeros(2), 2 * torch.eye(2))))
    assert kl > 0.05
    assert abs(found.value + kl) < 5 * found.error


def test_levels_that_are_not_tied_are_off_by_their_constants():
    mixture, generator = three_modes(), torch.Generator().manual_seed(0)
    exact, x = Diffused(mixture), mixture.sample(2000, torch.Generator().manual_seed(1))
    loose = lambda p, s: exact(p, s) + 3 * torch.log(s)
    found = top_constant(loose, x, 80.0, x.mean(0), x.var(0), generator)
    gap = TiedEnergy(loose, found, 0.1).log_prob(x) + exact(x, torch.tensor(0.1))
    assert torch.allclose(gap, torch.tensor(3 * math.log(80 / 0.1)), atol=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: top_constant(Bell(), x[:1]), "two points or more"),
        (lambda x: top_constant(Bell(), x, -1.0), "sigma_max .* > 0"),
        (lambda x: TiedEnergy(Bell(), math.nan), "constant to be a finite number"),
        (lambda x: TiedEnergy(Bell(), 0.0, 0.0), "sigma_min .* > 0"),
        (lambda x: TiedEnergy(Bell(), 0.0).log_prob(x, -1.0), "sigma .* > 0"),
        (lambda x: constant_of(UNetDenoiser(1, 8, head=8), (x > 0).byte()), "got a denoiser"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make(torch.randn(4, 1, 2, 2))


def test_an_energy_that_is_not_finite_has_no_constant():
    with pytest.raises(FloatingPointError, match="finite energies at sigma 80"):
        top_constant(lambda x, s: x.sum(1) / 0, torch.ones(3, 2))


def bell_pixels(n: int, seed: int = 0, side: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = (0.3 * torch.randn(n, 1, side, side, generator=generator)).clamp(-1, 1)
    return ((x + 1) * 127.5).round().to(torch.uint8)


class Moved(Energy):
    r"""The energy of Gaussian images with a constant, the same at all levels or not."""

    def __init__(self, tied: bool = True, s: float = 0.3) -> None:
        super().__init__()
        self.bell, self.tied = Bell(s), tied

    def forward(self, x, sigma):
        return self.bell(x, sigma) + OFFSET + (0.0 if self.tied else 1.0) * torch.log(sigma)


def test_both_ways_agree_image_by_image():
    train, test = bell_pixels(2000), bell_pixels(8, 1)
    for tied in (True, False):
        energy = Moved(tied)
        constant = constant_of(energy, train)
        bits = bits_by_image(energy, test, train, batch=8, constant=constant)
        assert bits.one_pass is not None
        both = agreement(bits.flow, bits.one_pass)
        assert both.residual < 2e-3 and both.correlation > 0.9999
        lost = 0.0 if tied else math.log(80 / 0.002) / (16 * math.log(2))
        assert both.difference == pytest.approx(-lost, abs=2e-3 + 5 * constant.error / 16)
    nats = -torch.distributions.Normal(0.0, 0.3).log_prob(to_float(test).double()).flatten(1)
    exact = nats.mean(1) / math.log(2) + math.log2(127.5)
    assert (bits.flow - exact).abs().max() < 0.1  # of the middle of each level


def test_more_probes_are_nearer_to_the_trace():
    class Joint(Energy):
        r"""Gaussian images whose neighbors are correlated: probes have noise."""

        def forward(self, x, sigma):
            flat = x.flatten(1)
            c = 0.09 * (0.8 * torch.ones(16, 16) + 0.2 * torch.eye(16)).to(flat) + sigma**2 * (
                torch.eye(16).to(flat)
            )
            half = torch.linalg.cholesky(c)
            white = torch.linalg.solve_triangular(half, flat.T, upper=False)
            return white.square().sum(0) / 2 + torch.log(half.diagonal()).sum()

    train, test = bell_pixels(500), bell_pixels(12, 1)
    constant = top_constant(Joint(), torch.zeros(4, 1, 4, 4))
    constant = constant._replace(value=-8 * math.log(2 * math.pi))
    errors = []
    for probes in (1, 16):
        bits = bits_by_image(Joint(), test, train, batch=12, constant=constant, probes=probes)
        assert bits.one_pass is not None
        errors.append(agreement(bits.flow, bits.one_pass).residual)
    assert errors[1] < errors[0] / 2


def made_run(folder):
    r"""Writes a run with weights that are not those at the start."""
    torch.set_default_dtype(torch.float32)
    made = config()
    weights = {k: v + 0.01 for k, v in made.build((1, 12, 12)).state_dict().items()}
    folder.mkdir()
    (folder / "config.toml").write_text(dumps(made))
    write_checkpoint(folder, Checkpoint(1, (1, 12, 12), weights, weights, {}))
    return folder


@pytest.fixture
def trained(tmp_path):
    return made_run(tmp_path / "run")


def test_the_evaluate_command(trained, capsys, monkeypatch):
    r"""What is printed of an energy that is exact: both ways the same; and nothing in one pass of
    an energy whose levels are not tied."""
    monkeypatch.setattr("fokker.tasks.base.Run.energy_on", lambda run, *_, **__: Moved())
    pixels = {"train": bell_pixels(2000, 0, 12), "test": bell_pixels(6, 1, 12)}
    monkeypatch.setattr("fokker.tasks.ImageTask.pixels", lambda task, split: pixels[split])
    args = ["evaluate", str(trained), "--bpd", "6", "--batch", "6"]
    main(args)
    said = capsys.readouterr().out
    assert "in one pass: none. The levels of this energy are not tied" in said
    assert "6 test images with uniform noise as wide as one of 256 levels" in said
    assert "Fokker-Planck residual" in said and "levels of training are few at the ends" in said
    monkeypatch.setattr("fokker.tasks.figures.is_tied", lambda run: True)
    main([*args, "--json"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    nats = -torch.distributions.Normal(0.0, 0.3).log_prob(to_float(pixels["test"])).mean()
    exact = float(nats) / math.log(2) + math.log2(127.5)
    assert line["one_pass"] == pytest.approx(line["bpd"], abs=2e-3)
    assert line["bpd"] == pytest.approx(exact, abs=0.02)
    assert line["constant"] == pytest.approx(OFFSET, abs=0.1)
    assert line["correlation"] > 0.9999 and line["residual_std"] < 2e-3
    assert line["one_pass_seconds"] < line["seconds"]
    assert abs(line["residual_0.3"]) < 1e-3
    main([*args, "--residual", "4", "--probes", "2"])
    said = capsys.readouterr().out
    assert "bits per dimension in one pass, with the constant of the top level (7." in said
    assert "4 noisy test images" in said and "correlation 1.0000" in said
    with pytest.raises(SystemExit):
        main(["evaluate", str(trained), "--probes", "2"])
    assert "expected --bpd with --probes" in capsys.readouterr().err


def test_what_is_tied():
    objective = LevelDCD(0.3, conditional=True, ties=(Classification(),))
    run: Any = lambda o: SimpleNamespace(config=replace(config(), objective=o))
    assert is_tied(run(objective)) and not is_tied(run(replace(objective, ties=())))


def test_what_is_beyond_training_is_said():
    own = lambda law: LevelDCD(law, conditional=True)
    assert beyond(own(Wide()), 0.002, 80.0) == []
    (said,) = beyond(own(LogNormal()), 0.002, 80.0)
    assert "near 0.002 and" in said and "near 80" in said
    (said,) = beyond(own(LogUniform(0.01, 80.0)), 0.002, 80.0)
    assert "0 % of them near 0.002 (--levels wide)" in said
    assert beyond(own(LogUniform(0.01, 80.0)), 0.01, 80.0) == []


def test_dequantized_training_images_have_noise_of_a_level():
    from fokker.tasks import task_of

    torch.set_default_dtype(torch.float32)
    own, parts = config(), []
    data: Any = own.data
    for flag in (False, True):
        task = task_of(replace(own, data=replace(data, dequantize=flag))).load()
        parts.append(127.5 * (task.batch(64, torch.Generator().manual_seed(0)) + 1))
    plain, noised = parts
    assert torch.equal(plain.round(), plain.round(decimals=3))
    gap = noised - plain
    assert gap.abs().max() <= 0.5 + 1e-3 and abs(gap.std() - 12**-0.5) < 0.01
