r"""Denoising by an energy, against Gaussians, where everything is known."""

import math
import pytest
import torch

from fokker.denoising import denoise, denoise_picture, errors, estimate_sigma, ssim
from fokker.energies import Quadratic

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
    with pytest.raises(ValueError, match="images"):
        estimate_sigma(ramp[0])


@pytest.mark.parametrize("size", [(16, 16), (37, 50), (9, 70), (5, 5)])
@pytest.mark.parametrize(("own", "trained"), [(1, 1), (3, 3), (1, 3), (3, 1)])
def test_a_picture_of_any_size(size, own, trained):
    generator = torch.Generator().manual_seed(0)
    picture = 0.3 * torch.randn(own, *size, generator=generator)
    out, sigma = denoise_picture(EveryLevel(), picture, (trained, 16, 16), 0.3)
    # pixel by pixel, so tiles and their weights must leave no trace; of three independent channels
    # the mean has a third of the variance
    noise = 0.09 * (3 if (own, trained) == (1, 3) else 1)
    assert torch.allclose(out, (picture * S2 / (S2 + noise)).clamp(-1, 1), atol=1e-5)
    assert sigma == pytest.approx(0.3)


def test_a_picture_says_what_is_wrong():
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        denoise_picture(EveryLevel(), torch.zeros(2, 8, 8), (3, 8, 8), 0.3)
    with pytest.raises(ValueError, match="without noise"):
        denoise_picture(EveryLevel(), torch.zeros(1, 8, 8), (1, 8, 8))
    with pytest.raises(ValueError, match="level"):
        denoise(at_level(0.3), torch.zeros(1, 1, 8, 8), 0.3)
    with pytest.raises(ValueError, match="rule"):
        denoise(EveryLevel(), torch.zeros(1, 1, 8, 8), 0.3, rule="guess")
