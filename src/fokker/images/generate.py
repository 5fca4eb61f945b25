r"""Images from an energy of every level.

Samples come down the probability-flow ODE (`fokker.samplers.flow`) from noise of level
:math:`\sigma_{max}`; they are clipped to [−1, 1] and rounded to bytes, as the data were. The
paper's settings are 18 Heun steps from 80 to 0.01, EDM's from 80 to 0.002. The corrector's step is
:math:`3 D^{-1/3}` of the variance of the level at first, and tuned on 64 samples at each level.

**Image i of a seed is one image**, whatever the batch, the number of images, and the call that
makes it: it has random numbers of its own. Batches of another size may round differently in the
last bit of a float, and so, rarely, in a byte. So ranks share images out (`fokker.compute.ranks`):
each draws some, and has them all. The corrector is tuned on rank 0.

An energy that diverged, whose score is not finite or whose samples are far from any image, is
refused.
"""

__all__ = [
    "FAR",
    "DivergedEnergy",
    "Generated",
    "Sampling",
    "generate",
    "tuned",
]

import math
import time
import torch

from dataclasses import dataclass, fields, replace
from functools import partial
from torch import Tensor
from typing import Any, Literal, NamedTuple

from .. import checks
from ..compute.field import field_of
from ..compute.ranks import ALONE, Ranks
from ..data.picture import to_uint8
from ..samplers import FLOWS, MALA, Churn, Corrector, Field, Flow, karras

FAR = 3.0  # the mean size of a pixel, in [−1, 1] by right, from which samples are no images
WARMUP = 20  # transitions at each level that tune the corrector


@dataclass(frozen=True)
class Sampling:
    r"""How images are drawn."""

    sampler: Literal["heun", "euler", "multistep", "multistep3"] = "heun"
    """The method: heun (two evaluations a step, error of second order), euler (one, of first
    order), multistep (one, of second order) or multistep3 (one, of third order)."""
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
        checks.not_negative(churn=self.churn)
        checks.at_least(0, corrector=self.corrector)
        if self.sampler.startswith("multistep") and (self.churn or self.corrector):
            what = "churn" if self.churn else "corrector"
            raise ValueError(
                f"expected {what} 0 with {self.sampler}, which goes by the step before, got"
                f" {getattr(self, what)}; heun has both"
            )
        self.flow(1)

    @property
    def changed(self) -> tuple[str, ...]:
        r"""The options that are not as they are by default, as they are given."""
        names = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        return tuple(f"--{name.replace('_', '-')}" for name in names)

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
    ranks: Ranks = ALONE,
) -> Generated:
    r"""Returns n images of an energy of every level, on every rank.

    Arguments:
        energy: The energy, or its `Field`, which is traced once for all calls. On a GPU the
            evaluation of an energy is captured (`fokker.compute.field`); hand in a plain `Field`
            of one that cannot be traced.
        n: The number of images.
        shape: The shape (C, H, W) of an image.
        sampling: How they are drawn.
        seed: The seed of the images.
        batch: The number of images at once.
        first: The index of the first image.
        device: The device of the energy.
        flow: The flow of the sampling, where it was tuned before.
        ranks: The ranks that share out the images.
    """
    checks.positive_integer(n=n, batch=batch)
    checks.seed(seed)
    field = field_of(energy, device)
    options = {"device": device, "dtype": torch.float32}
    mine, source = ranks.among(n), torch.Generator().manual_seed(seed)

    def share(flow: Flow) -> tuple[Tensor, Tensor]:
        r"""This rank's images; and of each, the mean size of a pixel and the acceptance."""
        if not mine:
            return torch.zeros(0, *shape, dtype=torch.uint8), torch.zeros(0, 2)
        drawn = flow.run(field, len(mine), shape, source, batch, first + mine.start, **options)
        sizes = drawn.samples.abs().flatten(1).mean(1)
        rates = torch.zeros_like(sizes) if drawn.acceptance is None else drawn.acceptance.mean(0)
        return to_uint8(drawn.samples).cpu(), torch.stack([sizes, rates], 1).cpu()

    try:
        if flow is None:
            flow = tuned(field, shape, sampling, seed, device, ranks)
        clock = time.perf_counter()
        images, found = ranks.each(partial(share, flow))
    except FloatingPointError as error:
        raise DivergedEnergy(
            f"expected an energy that did not diverge, got one that did: {error}"
        ) from None
    images = ranks.collect(images)
    seconds = time.perf_counter() - clock
    size, rate = ranks.collect(found).mean(0).tolist()
    if not size < FAR:
        raise DivergedEnergy(
            "expected an energy that did not diverge, and steps enough, got samples whose"
            " mean pixel"
            f" has size {size:.3g}, at most 1 by right"
        )
    return Generated(images, flow.evaluations, rate if flow.corrector else None, seconds)


def tuned(
    field: Field,
    shape: tuple[int, ...],
    sampling: Sampling,
    seed: int = 0,
    device: torch.device | str = "cpu",
    ranks: Ranks = ALONE,
) -> Flow:
    r"""Returns the flow of a sampling, with the step sizes at which its corrector meets its
    target, found by rank 0."""
    flow = sampling.flow(math.prod(shape))
    if flow.corrector is None:
        return flow
    # samples of their own: image i does not depend on what was tuned with it
    generator = torch.Generator().manual_seed((seed + 2**31) % 2**63)
    eager = Field(field.energy)  # of another batch than the samples

    def sizes() -> list[float]:
        found = flow.tune(eager, shape, generator, device=device, dtype=torch.float32).corrector
        return [] if found is None else list(found.step_sizes)

    return replace(flow, corrector=replace(flow.corrector, step_sizes=ranks.once(sizes)))
