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
from fokker.derivatives import EnergyLike
from fokker.energies import Energy
from torch import Tensor

DIMENSIONS = (2, 10, 30, 60, 100, 300)
STD = 0.7
WELL = torch.linspace(-4.0, 4.0, 20_001, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Target:
    r"""An energy with what is known of it."""

    name: str
    dimension: int
    energy: EnergyLike
    log_z: float
    sample: Callable[[int, torch.Generator], Tensor]  # exact, on the device of the generator


class Rounds(Energy):
    r"""Creates a mixture of round Gaussians of one width, without its constant,

    .. math:: E(x) = -\log \sum_k w_k \, e^{-\|x - m_k\|^2 / 2 s^2}, \quad
        \nabla E(x) = \big( x - \sum_k r_k m_k \big) / s^2

    with :math:`r_k` the share of part k in the sum.

    Arguments:
        means: The means :math:`m_k`, with shape :math:`(K, D)`.
        weights: The weights :math:`w_k`, which sum to one.
        std: The standard deviation s.
    """

    means: Tensor
    log_weights: Tensor

    def __init__(self, means: Tensor, weights: Tensor, std: float) -> None:
        super().__init__()
        self.std = std
        self.register_buffer("means", means)
        self.register_buffer("log_weights", weights.log().to(means))

    def logs(self, x: Tensor) -> Tensor:
        # |x - m|^2 by the difference: expanded, it would cancel
        away = torch.cdist(x, self.means.to(x), compute_mode="donot_use_mm_for_euclid_dist")
        return self.log_weights.to(x) - away.square() / (2 * self.std**2)

    def forward(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self.logs(x), 1)

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the energy and its gradient, :math:`(B)` and :math:`(B, D)`."""
        logs = self.logs(x)
        g = (x - torch.softmax(logs, 1) @ self.means.to(x)) / self.std**2
        return -torch.logsumexp(logs, 1), g


def mixture(name: str, means: Tensor, weights: Tensor, std: float) -> Target:
    r"""Returns a mixture of round Gaussians, its energy without its constant."""
    dim, weights = means.shape[1], weights / weights.sum()

    def sample(n: int, generator: torch.Generator) -> Tensor:
        w = weights.to(means.device)
        which = torch.multinomial(w, n, replacement=True, generator=generator)
        return means[which] + std * normal((n, dim), generator, means.dtype)

    log_z = dim / 2 * math.log(2 * math.pi * std**2)
    return Target(name, dim, Rounds(means, weights, std), log_z, sample)


def normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    r"""Returns normal numbers on the device of their generator."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)


def directions(kind: str, dim: int, like: Tensor) -> Target:
    r"""Returns a mixture with means in random directions."""
    generator = torch.Generator().manual_seed(dim)
    means = torch.randn(8, dim, generator=generator, dtype=torch.float32)
    means = (10.0 if kind == "far" else 4.0) * means / means.norm(dim=1, keepdim=True)
    weights = torch.logspace(0, -2, 8) if kind == "unequal" else torch.ones(8)
    return mixture(f"mixture-{kind}", means.to(like), weights.double(), STD)


def funnel(like: Tensor, dim: int = 10) -> Target:
    def energy(x: Tensor) -> Tensor:
        first, rest = x[:, 0], x[:, 1:]
        inner = rest.square().sum(1) * torch.exp(-first) / 2 + (dim - 1) / 2 * first
        return first.square() / 18 + inner

    def sample(n: int, generator: torch.Generator) -> Tensor:
        z = normal((n, dim), generator, like.dtype)
        first = 3 * z[:, :1]
        return torch.cat((first, torch.exp(first / 2) * z[:, 1:]), 1)

    return Target("funnel", dim, energy, dim / 2 * math.log(2 * math.pi) + math.log(3), sample)


def many_modes(like: Tensor) -> Target:
    generator = torch.Generator().manual_seed(0)
    means = 80 * torch.rand(40, 2, generator=generator, dtype=torch.float32) - 40
    std = math.sqrt(math.log(1 + math.e))
    return mixture("gmm-40", means.to(like), torch.ones(40).double(), std)


def many_wells(like: Tensor, copies: int = 16) -> Target:
    def energy(x: Tensor) -> Tensor:
        first, second = x[:, 0::2], x[:, 1::2]
        well = first**4 - 6 * first.square() - first / 2
        return (well + second.square() / 2).sum(1)

    wells = WELL.to(like.device)
    density = torch.exp(-(wells**4 - 6 * wells.square() - wells / 2))
    cumulative = density.cumsum(0)
    one = float(torch.trapezoid(density, wells))
    log_z = copies * (math.log(one) + math.log(2 * math.pi) / 2)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        shape = (2, n, copies)
        u, within = torch.rand(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        )
        cell = torch.searchsorted(cumulative, u * cumulative[-1])
        first = wells[cell] + (within - 0.5) * (wells[1] - wells[0])
        second = normal((n, copies), generator, like.dtype)
        return torch.stack((first.to(like), second), 2).flatten(1)

    return Target(f"many-well-{2 * copies}", 2 * copies, energy, log_z, sample)


OTHERS = {"funnel": funnel, "gmm-40": many_modes, "many-well-32": many_wells}


def target(name: str, dim: int, like: Tensor | None = None) -> Target:
    r"""Returns a target by its name and dimension, in the dtype and on the device of a tensor; in
    float32 on the CPU if not given."""
    like = torch.zeros((), dtype=torch.float32) if like is None else like
    if name.startswith("mixture-"):
        return directions(name.removeprefix("mixture-"), dim, like)
    return OTHERS[name](like)


def targets(dimensions: tuple[int, ...] = DIMENSIONS) -> list[tuple[str, int]]:
    r"""Returns the names and dimensions of all targets, by dimension."""
    mixtures = [(f"mixture-{kind}", d) for d in dimensions for kind in ("equal", "unequal", "far")]
    others = [("funnel", 10), ("gmm-40", 2), ("many-well-32", 32)]
    return sorted(mixtures + others, key=lambda pair: pair[1])
