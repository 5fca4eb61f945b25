r"""Denoising by an energy, against Gaussians, where everything is known."""

import math
import pytest
import torch

from fokker.energies import Quadratic
from fokker.images.color import SCALES, from_parts, to_parts
from fokker.images.denoise import denoise, denoise_picture, errors, estimate_sigma, ssim
from torch.utils._python_dispatch import TorchDispatchMode

S2 = 0.5**2  # the variance of the clean pixels


class EveryLevel:
    r"""The exact denoiser of N(0, S2) pixels."""

    def denoise(self, x, sigma):
        sigma = torch.as_tensor(sigma).reshape(-1, 1, 1, 1)
        return x * S2 / (S2 + sigma**2)


def at_level(level: float) -> Quadratic:
    return Quadratic(math.sqrt(S2 + level**2))


def images(n=4, sigma=0.3, size=16, channels=1):
    generator = torch.Generator().manual_seed(0)
    clean = math.sqrt(S2) * torch.randn(n, channels, size, size, generator=generator)
    return clean, clean + sigma * torch.randn(clean.shape, generator=generator)


class GreyInColour:
    r"""Data whose three channels are one standard normal: the best guess from noise of level σ."""

    def denoise(self, x, sigma):
        guess = x.mean(1, keepdim=True) / (1 + sigma**2 / 3)
        return guess.expand_as(x)


def test_a_grey_picture_in_a_colour_model():
    y = 0.3 * torch.randn(1, 20, 24)
    out, sigma = denoise_picture(GreyInColour(), y, (3, 8, 8), 0.6)
    assert sigma == pytest.approx(0.6)
    assert torch.allclose(out, (y / (1 + 0.6**2)).clamp(-1, 1))  # nothing of y is lost


def test_rules_at_the_level_of_training_are_tweedie():
    _, x = images(sigma=0.3)
    expected = x * S2 / (S2 + 0.09)
    for rule in ("one-step", "given", "posterior"):
        out = denoise(at_level(0.3), x, 0.3, level=0.3, rule=rule)
        assert torch.allclose(out, expected, atol=1e-5), rule
    assert torch.allclose(denoise(EveryLevel(), x, 0.3), expected, atol=1e-6)


def test_the_posterior_rule_is_exact_at_higher_noise():
    _, x = images(2, 0.6, 24)
    expected = x * S2 / (S2 + 0.36)
    generator = torch.Generator().manual_seed(1)
    out = denoise(at_level(0.3), x, 0.6, 0.3, "posterior", generator=generator)
    slope = (out * x).sum() / (x * x).sum()
    assert abs(float(slope) - S2 / (S2 + 0.36)) < 0.02  # the gain, over 1,152 pixels
    one = denoise(at_level(0.3), x, 0.6, 0.3, "one-step")
    assert errors(out, expected).rmse_of_mean < errors(one, expected).rmse_of_mean


def test_descent_goes_further_than_one_step():
    _, x = images(2, 0.9)
    near = denoise(at_level(0.3), x, 0.9, 0.3, "one-step").square().mean()
    assert denoise(at_level(0.3), x, 0.9, 0.3, "descent").square().mean() < near


def test_clip():
    _, x = images(2, 0.9)
    out = denoise(EveryLevel(), 5 * x, 0.1, clip=True)
    assert out.abs().max() == 1


def test_errors_in_closed_form():
    clean = torch.zeros(2, 1, 16, 16)
    out = torch.stack([torch.full((1, 16, 16), 0.3), torch.full((1, 16, 16), 0.4)])
    e = errors(out, clean)
    assert e.rmse_mean == pytest.approx(0.35)
    assert e.rmse_of_mean == pytest.approx(math.sqrt((0.09 + 0.16) / 2))
    assert e.psnr == pytest.approx((10 * math.log10(4 / 0.09) + 10 * math.log10(4 / 0.16)) / 2)
    with pytest.raises(ValueError, match="one shape"):
        errors(out, clean[:1])


def test_ssim():
    a, b = images(3, 0.5)
    assert torch.allclose(ssim(a.double(), a.double()), torch.ones(3, dtype=torch.float64))
    assert (ssim(a.double(), b.double()) < 0.9).all()
    # flat images: only the first factor is left
    flat = lambda v: torch.full((1, 1, 16, 16), v, dtype=torch.float64)
    one = 0.02**2
    expected = (2 * 0.2 * 0.5 + one) / (0.2**2 + 0.5**2 + one)
    assert ssim(flat(0.2), flat(0.5)).item() == pytest.approx(expected)


def test_images_smaller_than_the_window_have_no_ssim():
    for h, w in ((8, 8), (10, 16), (16, 10)):
        clean = torch.zeros(2, 1, h, w)
        e = errors(clean + 0.3, clean)
        assert e.ssim is None
        assert e.rmse_mean == pytest.approx(0.3) and e.psnr == pytest.approx(16.478, abs=1e-3)
        with pytest.raises(ValueError, match=f"of 11 pixels a side or more for SSIM, got {h}x{w}"):
            ssim(clean, clean)
    clean = torch.zeros(2, 1, 11, 11)
    assert errors(clean, clean).ssim == 1


def test_sigma_is_estimated():
    generator = torch.Generator().manual_seed(0)
    ramp = torch.linspace(-1, 1, 64).expand(2, 3, 64, 64)
    for sigma in (0.05, 0.3, 0.9):
        x = ramp + sigma * torch.randn(ramp.shape, generator=generator)
        assert estimate_sigma(x).tolist() == pytest.approx([sigma] * 2, rel=0.06)
    dark = -1 + 0.3 * torch.randn(ramp.shape, generator=generator)
    assert (estimate_sigma(dark.clamp(-1, 1)) < 0.7 * 0.3).all()  # as the docstring says
    with pytest.raises(ValueError, match="images"):
        estimate_sigma(ramp[0])


@pytest.mark.parametrize("size", [(16, 16), (37, 50), (9, 70), (5, 5)])
@pytest.mark.parametrize(("own", "trained"), [(1, 1), (3, 3), (1, 3), (3, 1)])
def test_a_picture_of_any_size(size, own, trained):
    generator = torch.Generator().manual_seed(0)
    picture = 0.3 * torch.randn(own, *size, generator=generator)
    out, sigma = denoise_picture(EveryLevel(), picture, (trained, 16, 16), 0.3)
    # pixel by pixel, so tiles and their weights must leave no trace; of three independent channels
    # the mean has a third of the variance, and of colours in a grey model each part has its own
    if (own, trained) == (3, 1):
        noise = 0.09 * torch.tensor(SCALES).square()[:, None, None]
        expected = from_parts(to_parts(picture) * S2 / (S2 + noise)).clamp(-1, 1)
        return torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    noise = 0.09 * (3 if (own, trained) == (1, 3) else 1)
    assert torch.allclose(out, (picture * S2 / (S2 + noise)).clamp(-1, 1), atol=1e-5)
    assert sigma == pytest.approx(0.3)


@pytest.mark.parametrize("trained", [(9, 9), (15, 7), (3, 8), (1, 1), (2, 2)])
def test_tiles_of_odd_sides_leave_no_trace(trained):
    picture = 0.3 * torch.randn(1, 20, 33, generator=torch.Generator().manual_seed(0))
    out, _ = denoise_picture(EveryLevel(), picture, (1, *trained), 0.3)
    assert torch.allclose(out, (picture * S2 / (S2 + 0.09)).clamp(-1, 1))


class Largest(TorchDispatchMode):
    r"""Remembers the number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out._is_view():
            self.elements = max(self.elements, out.numel())
        return out


def test_a_large_picture_is_not_held_in_tiles_at_once():
    picture = torch.zeros(1, 400, 40)  # tiles that overlap by half are four pictures
    with Largest() as seen:
        denoise_picture(EveryLevel(), picture, (1, 8, 8), 0.3)
    assert seen.elements < 2 * picture.numel()


@pytest.mark.parametrize("rule", ["one-step", "given", "descent", "posterior"])
def test_a_picture_by_every_rule(rule):
    picture = 0.3 * torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    own = {"level": 0.3, "rule": rule}
    first, _ = denoise_picture(at_level(0.3), picture, (1, 8, 8), 0.6, **own)
    again, _ = denoise_picture(at_level(0.3), picture, (1, 8, 8), 0.6, **own)
    assert torch.equal(first, again)  # chains have their own seed
    if rule != "posterior":  # which is random, another in each tile
        expected = denoise(at_level(0.3), picture[None], 0.6, **own)[0]
        assert torch.allclose(first, expected.clamp(-1, 1))


@pytest.mark.parametrize("sigma", [0.0, -0.3, math.nan, math.inf])
@pytest.mark.parametrize("energy", [EveryLevel(), at_level(0.3)])
def test_refused_noise(energy, sigma):
    x = torch.zeros(2, 1, 8, 8)
    for given in (sigma, torch.tensor([0.3, sigma])):
        with pytest.raises(ValueError, match="expected sigma to be a finite number > 0, got"):
            denoise(energy, x, given, level=0.3)


def test_refused_images():
    with pytest.raises(ValueError, match=r"expected sigma of shape \(\) or \(2,\), got \(3,\)"):
        denoise(EveryLevel(), torch.zeros(2, 1, 8, 8), torch.full((3,), 0.3))
    with pytest.raises(ValueError, match="expected level to be a finite number > 0, got 0"):
        denoise(at_level(0.3), torch.zeros(2, 1, 8, 8), 0.3, level=0.0)
    bad = torch.full((1, 8, 8), math.nan)
    for what in (
        lambda: denoise(EveryLevel(), bad[None], 0.3),
        lambda: denoise_picture(EveryLevel(), bad, (1, 8, 8), 0.3),
        lambda: estimate_sigma(bad[None]),
    ):
        with pytest.raises(ValueError, match="to be finite, got 1 of 1"):
            what()
    with pytest.raises(ValueError, match="the picture to have shape"):
        denoise_picture(EveryLevel(), torch.zeros(1, 0, 8), (1, 8, 8), 0.3)


@pytest.mark.parametrize("size", [(1, 9), (9, 1), (1, 1)])
def test_a_line_of_pixels(size):
    picture = torch.full((1, *size), 0.2)
    with pytest.raises(ValueError, match=f"2 pixels a side .* got {size[0]}x{size[1]}; give its"):
        denoise_picture(EveryLevel(), picture, (1, 8, 8))
    out, _ = denoise_picture(EveryLevel(), picture, (1, 8, 8), 0.3)
    assert torch.allclose(out, picture * S2 / (S2 + 0.09))


def test_a_picture_says_what_is_wrong():
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        denoise_picture(EveryLevel(), torch.zeros(2, 8, 8), (3, 8, 8), 0.3)
    with pytest.raises(ValueError, match="without noise"):
        denoise_picture(EveryLevel(), torch.zeros(1, 8, 8), (1, 8, 8))
    with pytest.raises(ValueError, match="level"):
        denoise(at_level(0.3), torch.zeros(1, 1, 8, 8), 0.3)
    with pytest.raises(ValueError, match="rule"):
        denoise(EveryLevel(), torch.zeros(1, 1, 8, 8), 0.3, rule="guess")
