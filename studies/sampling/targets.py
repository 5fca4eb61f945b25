r"""Targets whose samples and :math:`\log Z` are exact.

- **mixtures** of eight Gaussians of standard deviation 0.7 with means in random directions:
  `equal` weights at radius 4; `unequal` weights, from 1 to 1/100, at radius 4; `far`, equal
  weights at radius 10, fourteen standard deviations;
- the **funnel**, :math:`x_1 \sim \mathcal{N}(0, 9)`,
  :math:`x_i \mid x_1 \sim \mathcal{N}(0, e^{x_1})`, in ten dimensions;
- **gmm-40**, forty equal Gaussians of variance :math:`\log(1 + e)` with means uniform on
  :math:`[-40, 40]^2`;
- **many-well-32**, sixteen copies of :math:`x_1^4 - 6 x_1^2 - x_1 / 2 + x_2^2 / 2`, with
  :math:`2^{16}` modes.

References:
    | Slice sampling (Neal, 2003), the funnel
    | Flow annealed importance sampling bootstrap (Midgley et al., 2023), the last two
    | https://arxiv.org/abs/2208.01893
"""

__all__ = ["DIMENSIONS", "Target", "target", "targets"]

import math
import torch

from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor

DIMENSIONS = (2, 10, 30, 60, 100, 300)
STD = 0.7
WELL = torch.linspace(-4.0, 4.0, 20_001, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Target:
    r"""An energy with what is known of it."""

    name: str
    dimension: int
    energy: Callable[[Tensor], Tensor]
    log_z: float
    sample: Callable[[int, torch.Generator], Tensor]  # exact


def mixture(name: str, means: Tensor, weights: Tensor, std: float) -> Target:
    r"""Returns a mixture of round Gaussians, its energy without its constant."""
    dim, weights = means.shape[1], weights / weights.sum()
    log_weights = weights.log().float()[:, None]

    def energy(x: Tensor) -> Tensor:
        # |x - m|^2 by the difference: expanded, it would cancel
        squares = torch.stack([(x - m).square().sum(1) for m in means])
        return -torch.logsumexp(log_weights.to(x) - squares / (2 * std**2), 0)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        which = torch.multinomial(weights, n, replacement=True, generator=generator)
        return means[which] + std * torch.randn(n, dim, generator=generator)

    return Target(name, dim, energy, dim / 2 * math.log(2 * math.pi * std**2), sample)


def directions(kind: str, dim: int) -> Target:
    r"""Returns a mixture with means in random directions."""
    generator = torch.Generator().manual_seed(dim)
    means = torch.randn(8, dim, generator=generator)
    means = (10.0 if kind == "far" else 4.0) * means / means.norm(dim=1, keepdim=True)
    weights = torch.logspace(0, -2, 8) if kind == "unequal" else torch.ones(8)
    return mixture(f"mixture-{kind}", means, weights.double(), STD)


def funnel(dim: int = 10) -> Target:
    def energy(x: Tensor) -> Tensor:
        first, rest = x[:, 0], x[:, 1:]
        inner = rest.square().sum(1) * torch.exp(-first) / 2 + (dim - 1) / 2 * first
        return first.square() / 18 + inner

    def sample(n: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, dim, generator=generator)
        first = 3 * z[:, :1]
        return torch.cat((first, torch.exp(first / 2) * z[:, 1:]), 1)

    return Target("funnel", dim, energy, dim / 2 * math.log(2 * math.pi) + math.log(3), sample)


def many_modes() -> Target:
    generator = torch.Generator().manual_seed(0)
    means = 80 * torch.rand(40, 2, generator=generator) - 40
    return mixture("gmm-40", means, torch.ones(40).double(), math.sqrt(math.log(1 + math.e)))


def many_wells(copies: int = 16) -> Target:
    def energy(x: Tensor) -> Tensor:
        first, second = x[:, 0::2], x[:, 1::2]
        well = first**4 - 6 * first.square() - first / 2
        return (well + second.square() / 2).sum(1)

    density = torch.exp(-(WELL**4 - 6 * WELL.square() - WELL / 2))
    cumulative = density.cumsum(0)
    one = float(torch.trapezoid(density, WELL))
    log_z = copies * (math.log(one) + math.log(2 * math.pi) / 2)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(n, copies, generator=generator, dtype=torch.float64) * cumulative[-1]
        cell = torch.searchsorted(cumulative, u)
        within = torch.rand(n, copies, generator=generator, dtype=torch.float64) - 0.5
        first = WELL[cell] + within * (WELL[1] - WELL[0])
        second = torch.randn(n, copies, generator=generator)
        return torch.stack((first.float(), second), 2).flatten(1)

    return Target(f"many-well-{2 * copies}", 2 * copies, energy, log_z, sample)


OTHERS = {"funnel": funnel, "gmm-40": many_modes, "many-well-32": many_wells}


def target(name: str, dim: int) -> Target:
    r"""Returns a target by its name and dimension."""
    if name.startswith("mixture-"):
        return directions(name.removeprefix("mixture-"), dim)
    return OTHERS[name]()


def targets(dimensions: tuple[int, ...] = DIMENSIONS) -> list[tuple[str, int]]:
    r"""Returns the names and dimensions of all targets, by dimension."""
    mixtures = [(f"mixture-{kind}", d) for d in dimensions for kind in ("equal", "unequal", "far")]
    others = [("funnel", 10), ("gmm-40", 2), ("many-well-32", 32)]
    return sorted(mixtures + others, key=lambda pair: pair[1])
