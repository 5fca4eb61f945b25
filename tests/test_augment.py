r"""Augmentation: known maps, images left alone, and a network that is told what was done."""

import math
import pytest
import torch

from fokker import fit
from fokker.data.augment import PARAMETERS, augment, transform
from fokker.networks import UNetEnergy
from fokker.objectives import LevelDCD, Limit, LogUniform
from fokker.runs.config import Config, ImageData, Optimization, UNet
from pathlib import Path

MINI = str(Path(__file__).parent / "data" / "mnist-mini")


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)[None]


def test_known_maps_move_pixels():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    none = torch.zeros(1, 2)
    torch.testing.assert_close(transform(x, matrix([1, 0], [0, 1]), none), x)
    torch.testing.assert_close(transform(x, matrix([-1, 0], [0, 1]), none), x.flip(3))
    torch.testing.assert_close(transform(x, matrix([1, 0], [0, -1]), none), x.flip(2))
    # a quarter turn that takes right to down: clockwise on the screen
    turned = transform(x, matrix([0, -1], [1, 0]), none)
    torch.testing.assert_close(turned, torch.rot90(x, -1, (2, 3)))
    right = transform(x, matrix([1, 0], [0, 1]), torch.tensor([[0.25, 0.0]]))  # by one pixel
    torch.testing.assert_close(right[..., 1:], x[..., :-1])
    torch.testing.assert_close(right[..., 0], x[..., 0])  # mirrored at the edge
    down = transform(x, matrix([1, 0], [0, 1]), torch.tensor([[0.0, 0.25]]))
    torch.testing.assert_close(down[:, :, 1:], x[:, :, :-1])
    wide = torch.arange(32.0).reshape(1, 1, 4, 8)  # a turn about the center, in pixels
    half = transform(wide, matrix([-1, 0], [0, -1]), none)
    torch.testing.assert_close(half, wide.flip(2, 3))


def test_scaling_keeps_a_linear_image_linear():
    line = torch.linspace(-1, 1, 9)
    x = line.expand(1, 1, 9, 9).clone()
    double = transform(x, matrix([2, 0], [0, 2]), torch.zeros(1, 2))
    torch.testing.assert_close(double[0, 0, 4], line / 2)


def test_parts_are_used_as_often_as_asked_and_told(generator):
    x = torch.rand(4000, 1, 6, 6)
    same, told = augment(x, 0.0, generator)
    assert torch.equal(same, x) and told.shape == (4000, PARAMETERS) and not told.any()
    p = 0.3
    moved, told = augment(x, p, generator)
    parts = torch.stack([told[:, cut].abs().sum(1) > 0 for cut in
                         (slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 6), slice(6, 8))], 1)  # fmt: skip
    error = math.sqrt(p * (1 - p) / 4000)
    assert ((parts.double().mean(0) - p).abs() < 5 * error).all()
    left = ~parts.any(1)
    assert (
        torch.equal(moved[left], x[left])
        and not torch.isclose(moved, x).flatten(1).all(1)[~left].all()
    )
    mirrored = parts[:, 0] & (parts.sum(1) == 1)
    torch.testing.assert_close(moved[mirrored], x[mirrored].flip(2))
    assert told[parts[:, 1], 1].std() == pytest.approx(1, abs=0.1)
    angle = torch.atan2(told[:, 3], told[:, 2] + 1)[parts[:, 2]]
    assert angle.std() == pytest.approx(2 * math.pi / math.sqrt(12), abs=0.1)
    again, _ = augment(x, p, torch.Generator().manual_seed(5))
    assert torch.equal(again, augment(x, p, torch.Generator().manual_seed(5))[0])


def test_a_network_is_told(tmp_path, monkeypatch):
    torch.manual_seed(0)
    energy = UNetEnergy(1, 8, (1,), 1, attention=(), head=8, classes=3, moves=PARAMETERS).double()
    with torch.no_grad():
        for p in energy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    x, sigma = torch.randn(4, 1, 4, 4), torch.tensor(0.5)
    told = torch.zeros(4, 4 + PARAMETERS)
    told[:, 1] = 1
    torch.testing.assert_close(energy(x, sigma, told), energy(x, sigma, 1))
    told[:, 5] = 1
    assert (energy(x, sigma, told) - energy(x, sigma, 1)).abs().min() > 1e-6
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    config = Config(
        ImageData(MINI, size=8, augment=0.5),
        LevelDCD(LogUniform(0.05, 2.0), Limit(), conditional=True),
        UNet(8, 1, multipliers=(1,), attention=(), augmented=True),
        Optimization(steps=2, batch=4),
        evaluate=2,
    )
    run = fit(config, tmp_path / "run")
    assert run.energy.embedding.table.shape == (PARAMETERS, 32)
    with pytest.raises(ValueError, match="expected a U-Net with augmented = true"):
        Config(ImageData(MINI, augment=0.5), config.objective, UNet(8, 1))
