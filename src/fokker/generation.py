r"""Images from an energy of every level, and their likelihood.

Samples come down the probability-flow ODE (`fokker.samplers.flow`) from noise of level
:math:`\sigma_{max}`; they are clipped to [−1, 1] and rounded to bytes, as the data were. The paper's
settings are 18 Heun steps from 80 to 0.01, EDM's from 80 to 0.002. The corrector's step is
:math:`3 D^{-1/3}` of the variance of the level at first, and tuned on 64 samples at each level.

**Image i of a seed is one image**, whatever the batch, the number of images, and the call that makes
it: it has random numbers of its own. Batches of another size may round differently in the last bit
of a float, and so, rarely, in a byte.

**What cannot be sampled** is refused: an energy of one level; weights that no step has changed; and
an energy that diverged, whose score is not finite or whose samples are far from any image.
"""

__all__ = [
    "FAR",
    "DivergedEnergy",
    "Generated",
    "Sampling",
    "bits_of",
    "check_trained",
    "generate",
    "suited",
    "tuned",
]

import math
import time
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal, NamedTuple

from . import checks
from .data.picture import to_float, to_uint8
from .energies import Energy
from .metrics import bits_per_dimension, dequantize, log_likelihood
from .networks import UNetDenoiser, UNetEnergy
from .runs import Run, build
from .samplers import FLOWS, MALA, Churn, Corrector, Field, Flow, karras

FAR = 3.0  # the mean size of a pixel, in [−1, 1] by right, from which samples are no images
WARMUP = 20  # transitions at each level that tune the corrector


@dataclass(frozen=True)
class Sampling:
    r"""How images are drawn."""

    sampler: Literal["heun", "euler"] = "heun"
    """The method: heun (two evaluations a step) or euler (one)."""
    steps: int = 18
    """The number of steps."""
    sigma_min: float = 0.002
    """The last noise level."""
    sigma_max: float = 80.0
    """The first noise level."""
    rho: float = 7.0
    """The exponent of EDM's ladder: the larger, the more levels are low."""
    churn: float = 0.0
    """The total of fresh noise, EDM's S_churn; none if zero."""
    corrector: int = 0
    """The number of MALA transitions at each level, accepted by the energy; none if zero."""

    def __post_init__(self) -> None:
        if not isinstance(self.corrector, int) or self.corrector < 0:
            raise ValueError(f"expected corrector to be an integer >= 0, got {self.corrector!r}")
        self.flow(1)

    def flow(self, dimension: int) -> Flow:
        r"""Returns the sampler of images of a dimension, its corrector not tuned yet."""
        checks.one_of(tuple(FLOWS), sampler=self.sampler)
        levels = karras(self.steps, self.sigma_min, self.sigma_max, self.rho)
        churn = None if self.churn == 0 else Churn(self.churn)
        corrector = None
        if self.corrector:
            size = 3 * dimension ** (-1 / 3)
            corrector = Corrector(MALA(size, warmup=WARMUP), self.corrector)
        return FLOWS[self.sampler](levels, churn, corrector)


class DivergedEnergy(ValueError):
    r"""The samples of an energy are no images."""


class Generated(NamedTuple):
    r"""Images that were drawn."""

    images: Tensor  # (n, C, H, W), bytes, on the CPU
    evaluations: int  # of the network, an image
    acceptance: float | None  # of the corrector
    seconds: float  # without tuning and, but for the first batch, compilation


def suited(run: Run, device: torch.device | str) -> Energy:
    r"""Returns the energy of a run on a device; its layers run in float32 on a CPU, which is slow at
    less."""
    if torch.device(device).type == "cpu":
        for module in run.energy.modules():
            if isinstance(module, UNetEnergy):
                module.dtype = torch.float32
    return run.energy.to(device)


def check_trained(run: Run) -> None:
    r"""Raises unless a run is an energy of images at every level that some step has changed."""
    inner = run.energy
    if not isinstance(inner, UNetEnergy | UNetDenoiser):
        raise ValueError(
            f"expected an energy of images at every noise level to draw from, got {run.path},"
            f" a {type(inner).__name__}"
        )
    start = build(run.config, run.shape).state_dict()
    if all(torch.equal(v.cpu().to(start[k]), start[k]) for k, v in inner.state_dict().items()):
        raise ValueError(f"expected a trained energy, got {run.path}, which is as it was started")


@torch.no_grad()
def generate(
    energy: Any,
    n: int,
    shape: tuple[int, ...],
    sampling: Sampling = Sampling(),
    seed: int = 0,
    batch: int = 256,
    first: int = 0,
    device: torch.device | str = "cpu",
    flow: Flow | None = None,
) -> Generated:
    r"""Returns n images of an energy of every level.

    Arguments:
        energy: The energy, or its `Field`, which compiles once for all calls.
        n: The number of images.
        shape: The shape (C, H, W) of an image.
        sampling: How they are drawn.
        seed: The seed of the images.
        batch: The number of images at once.
        first: The index of the first image.
        device: The device of the energy.
        flow: The flow of the sampling, where it was tuned before.
    """
    checks.positive_integer(n=n, batch=batch)
    field = energy if isinstance(energy, Field) else Field(energy)
    own = {"device": device, "dtype": torch.float32}
    source = lambda: torch.Generator().manual_seed(seed)
    try:
        flow = tuned(field, shape, sampling, seed, device) if flow is None else flow
        clock = time.perf_counter()
        drawn = flow.run(field, n, shape, source(), batch, first, **own)
        images = to_uint8(drawn.samples).cpu()
    except FloatingPointError as error:
        raise DivergedEnergy(
            f"expected an energy that did not diverge, got one that did: {error}"
        ) from None
    seconds = time.perf_counter() - clock
    size = float(drawn.samples.abs().mean())
    if not size < FAR:
        raise DivergedEnergy(
            "expected an energy that did not diverge, and steps enough, got samples whose mean pixel"
            f" has size {size:.3g}, at most 1 by right"
        )
    rate = None if drawn.acceptance is None else float(drawn.acceptance.mean())
    return Generated(images, drawn.evaluations, rate, seconds)


def tuned(
    field: Field,
    shape: tuple[int, ...],
    sampling: Sampling,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Flow:
    r"""Returns the flow of a sampling, with the step sizes at which its corrector meets its target."""
    flow = sampling.flow(math.prod(shape))
    if flow.corrector is None:
        return flow
    # samples of their own: image i does not depend on what was tuned with it
    generator = torch.Generator().manual_seed(seed + 2**31)
    eager = Field(field.energy)  # of another batch than the samples
    return flow.tune(eager, shape, generator, device=device, dtype=torch.float32)


def bits_of(
    energy: Energy,
    pixels: Tensor,
    train: Tensor,
    sampling: Sampling = Sampling(),
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tolerance: float = 1e-4,
) -> tuple[float, float]:
    r"""Returns the mean bits a dimension of images, by the flow, and its standard error.

    The Laplacian is estimated with one probe an image (`fokker.metrics.likelihood`).

    Arguments:
        energy: The energy of every level.
        pixels: Two images or more, bytes (N, C, H, W).
        train: The training images, bytes, whose mean and variance the noisiest level has.
        sampling: The first and the last level.
        batch: The number of images at once.
        seed: The seed of the dequantization and the probes.
        device: The device of the energy.
        tolerance: The error of a step of the solver.
    """
    if isinstance(energy, UNetDenoiser):
        raise ValueError("expected an energy, to have a likelihood, got a denoiser")
    if len(pixels) < 2:
        raise ValueError(f"expected two images or more, to have an error, got {len(pixels)}")
    clean = to_float(train[:10_000])
    mean, variance = (v.to(device) for v in (clean.mean(0), clean.var(0)))
    generator = torch.Generator(device).manual_seed(seed)
    found = []
    for part in pixels.split(batch):
        x = dequantize(to_float(part.to(device)), generator)
        low, high = sampling.sigma_min, sampling.sigma_max
        log_prob, _ = log_likelihood(energy, x, low, high, mean, variance, 1, generator, tolerance)
        found.append(bits_per_dimension(log_prob, math.prod(x.shape[1:])).cpu())
    bits = torch.cat(found).double()
    return float(bits.mean()), float(bits.std() / math.sqrt(len(bits)))
