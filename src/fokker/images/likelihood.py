r"""Likelihoods of images under an energy of every level: by the flow, and in one pass.

Images of 256 levels get uniform noise as wide as a level (`dequantize`), so that their density
bounds the likelihood of the pixels (`fokker.metrics.likelihood`). By the flow a likelihood takes
hundreds of evaluations of the energy and of its curvature, and needs its scores alone. In one pass
(`fokker.metrics.constant`) it takes one evaluation, and needs levels that are tied and a known
constant. On an energy that is right they agree image by image.

A likelihood by the flow is shared out over ranks by batches, as the steps of its solver suit a
batch: its figures are those of one rank.
"""

__all__ = [
    "Agreement",
    "Bits",
    "agreement",
    "bits_by_image",
    "bits_of",
    "constant_of",
    "residuals_of",
]

import math
import time
import torch

from torch import Tensor
from typing import NamedTuple

from .denoise import LEVELS, noisy
from .generate import Sampling
from .. import checks
from ..compute.ranks import ALONE, Ranks
from ..data.picture import to_float
from ..derivatives import Hutchinson, probe
from ..energies import Denoiser, Energy
from ..metrics import (
    Constant,
    TiedEnergy,
    bits_per_dimension,
    dequantize,
    fokker_planck_residual,
    log_likelihood,
    top_constant,
)

MOMENTS = 10_000  # training images whose mean and variance the top level has
POINTS = 512  # training images with noise, from which the constant comes


class Bits(NamedTuple):
    r"""Bits per dimension of images, of the same noise by both ways."""

    flow: Tensor  # (N), float64
    one_pass: Tensor | None  # (N); None without a constant
    flow_seconds: float  # an image
    one_pass_seconds: float


class Agreement(NamedTuple):
    r"""How far likelihoods by two ways agree, image by image, in bits per dimension."""

    difference: float  # mean of the second minus the first
    error: float  # its standard error
    residual: float  # standard deviation of the difference
    correlation: float  # of the two


def agreement(first: Tensor, second: Tensor) -> Agreement:
    r"""Returns how far the bits of images by two ways agree.

    Example:
        >>> found = agreement(torch.tensor([3.0, 4.0, 5.0]), torch.tensor([3.1, 4.1, 5.1]))
        >>> found.difference, found.residual, found.correlation
        (0.1000, 0.0000, 1.0000)
    """
    first, second = first.double(), second.double()
    checks.at_least(2, images=len(first))
    gap = second - first
    correlation = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
    spread = float(gap.std())
    return Agreement(float(gap.mean()), spread / math.sqrt(len(gap)), spread, correlation)


def moments(train: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    r"""Returns the mean and the variance of each pixel of training images, with the variance of
    the noise of `dequantize`."""
    clean = to_float(train[:MOMENTS])
    return clean.mean(0).to(device), (clean.var(0) + 1 / (12 * 127.5**2)).to(device)


def constant_of(
    energy: Energy | Denoiser,
    train: Tensor,
    sampling: Sampling = Sampling(),
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Constant:
    r"""Returns the constant of an energy of images, from its top level.

    Arguments:
        energy: The energy of every level, tied.
        train: The training images, bytes (N, C, H, W).
        sampling: The top level.
        batch: The number of images at once.
        seed: The seed of the images that are taken and of their noise.
        device: The device of the energy.
    """
    if isinstance(energy, Denoiser):
        raise ValueError("expected an energy, to have a constant, got a denoiser")
    mean, variance = moments(train, device)
    source = torch.Generator().manual_seed(checks.seed(seed))
    rows = torch.randint(len(train), (POINTS,), generator=source)
    x = dequantize(to_float(train[rows.to(train.device)]).to("cpu"), source).to(device)
    noise = torch.Generator(device).manual_seed(seed)
    return top_constant(energy, x, sampling.sigma_max, mean, variance, noise, batch)


def bits_by_image(
    energy: Energy | Denoiser,
    pixels: Tensor,
    train: Tensor,
    sampling: Sampling = Sampling(),
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tolerance: float = 1e-4,
    ranks: Ranks = ALONE,
    constant: Constant | None = None,
    probes: int = 1,
) -> Bits:
    r"""Returns the bits per dimension of each image, on every rank.

    Arguments:
        energy: The energy of every level.
        pixels: Two images or more, bytes (N, C, H, W).
        train: The training images, bytes, whose mean and variance the noisiest level has.
        sampling: The first and the last level.
        batch: The number of images at once.
        seed: The seed of the dequantization and the probes.
        device: The device of the energy.
        tolerance: The error of a step of the solver.
        ranks: The ranks that share out the batches.
        constant: The constant of the energy, for likelihoods in one pass; none if not given.
        probes: The number of probes of the Laplacian, an image.
    """
    if isinstance(energy, Denoiser):
        raise ValueError("expected an energy, to have a likelihood, got a denoiser")
    if len(pixels) < 2:
        raise ValueError(f"expected two images or more, to have an error, got {len(pixels)}")
    checks.positive_integer(probes=probes)
    mean, variance = moments(train, device)
    generator = torch.Generator(device).manual_seed(seed)
    low, high = sampling.sigma_min, sampling.sigma_max
    tied = None if constant is None else TiedEnergy(energy, constant, low)
    parts, d = pixels.split(batch), math.prod(pixels.shape[1:])
    mine = ranks.among(len(parts))

    def share() -> Tensor:
        found = [torch.zeros(0, 4, dtype=torch.float64)]
        for k, part in enumerate(parts):
            x = dequantize(to_float(part.to(device)), generator)
            if k not in mine:
                for _ in range(probes):
                    probe(x, "rademacher", generator)  # what another rank draws
                continue
            clock = time.perf_counter()
            out = log_likelihood(
                energy, x, low, high, mean, variance, probes, generator, tolerance
            )
            flow = bits_per_dimension(out.log_prob, d).double().cpu()
            between, one = time.perf_counter(), torch.zeros_like(flow)
            if tied is not None:
                one = bits_per_dimension(tied.log_prob(x).double(), d).cpu()
            after = time.perf_counter()
            spent = [torch.full_like(flow, t / len(x)) for t in (between - clock, after - between)]
            found.append(torch.stack([flow, one, *spent], 1))
        return torch.cat(found)

    flow, one, *spent = ranks.collect(ranks.each(share)).unbind(1)
    slow, fast = (float(t.median()) for t in spent)
    return Bits(flow, None if tied is None else one, slow, fast)


def bits_of(
    energy: Energy | Denoiser,
    pixels: Tensor,
    train: Tensor,
    sampling: Sampling = Sampling(),
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tolerance: float = 1e-4,
    ranks: Ranks = ALONE,
) -> tuple[float, float]:
    r"""Returns the mean bits per dimension of images by the flow, and its standard error.

    The arguments are those of `bits_by_image`.
    """
    options = (sampling, batch, seed, device, tolerance, ranks)
    bits = bits_by_image(energy, pixels, train, *options).flow
    return float(bits.mean()), float(bits.std() / math.sqrt(len(bits)))


def residuals_of(
    energy: Energy | Denoiser,
    pixels: Tensor,
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[float, float]:
    r"""Returns the variance of :math:`\sigma^2 R` over noisy images, in nats squared, by the
    level.

    R is the Fokker–Planck residual (`fokker.metrics.residual`), the same at all images if the
    energies of neighboring levels fit together. Its Laplacian is estimated twice with one probe
    each: the covariance of both estimates is free of the noise of the probes, and may come out
    below zero.

    Arguments:
        energy: The energy of every level.
        pixels: Two images or more, bytes (N, C, H, W).
        batch: The number of images at once, three or more.
        seed: The seed of the noise and the probes.
        device: The device of the energy.
    """
    if isinstance(energy, Denoiser):
        raise ValueError("expected an energy, to have a residual, got a denoiser")
    checks.at_least(2, images=len(pixels))
    checks.at_least(3, batch=batch)
    generator = torch.Generator(device).manual_seed(checks.seed(seed))
    found = {}
    for sigma in LEVELS:
        x = noisy(to_float(pixels.to(device)), sigma, seed)
        pairs = []
        for part in x.tensor_split(math.ceil(len(x) / batch)):
            asked = (energy, part, sigma, Hutchinson(1), generator)
            both = [fokker_planck_residual(*asked).values.double() for _ in range(2)]
            pairs.append(sigma**2 * torch.stack(both))
        found[sigma] = float(torch.cov(torch.cat(pairs, 1))[0, 1])
    return found
