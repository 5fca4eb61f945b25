r"""How close a learned density is to the truth.

A score-based loss sees only :math:`\nabla \log p` where data is. It is blind to the weights of
separated modes and to mass where there is no data, so three numbers are reported together:

- the **relative Fisher gap**, :math:`\tfrac{1}{2} \mathbb{E}_p \|\nabla E + \nabla \log p\|^2 /
  \tfrac{1}{2} \mathbb{E}_p \|\nabla \log p\|^2`, a fraction: 0 is perfect and 1 is a flat energy;
- the **KL divergence** from the true to the learned density, in nats, with Z by summation over a
  grid (2-D) or by importance sampling from the known density (any dimension);
- the **mass off the data**, the learned probability of the region that holds only the last
  :math:`10^{-4}` of the true one.

The score matching loss of the paper's Table 2 is here too; its least value is the optimum
:math:`-\tfrac{1}{2} \mathbb{E} \|\nabla \log p\|^2`.
"""

__all__ = [
    "MixtureReport",
    "PlanarReport",
    "evaluate_mixture",
    "evaluate_planar",
    "fisher_gap",
    "log_normalizer",
    "score_matching_loss",
    "square",
]

import math
import torch

from collections.abc import Callable
from functools import lru_cache
from torch import Tensor
from typing import NamedTuple

from .. import checks
from ..analytic import GaussianMixture
from ..data.planar import Planar
from ..derivatives import EnergyLike, Exact, Laplacian, score, value
from ..diffusions import VE
from ..grid import Grid
from ..shapes import dot

NUMBERS = 2**22  # held at a time where a mixture has many components or dimensions


def score_matching_loss(
    energy: EnergyLike,
    x: Tensor,
    laplacian: Laplacian = Exact(),
    generator: torch.Generator | None = None,
    chunk: int = 8192,
) -> float:
    r"""Returns :math:`\mathbb{E} [\tfrac{1}{2} \|\nabla E\|^2 - \Delta E]` over points."""
    checks.positive_integer(chunk=chunk)
    total = 0.0
    with torch.no_grad():
        for part in checks.points(x).split(chunk):
            jet = laplacian(energy, part, generator)
            local = dot(jet.gradient, jet.gradient) / 2 - jet.laplacian
            total += float(local.double().sum())
    return total / len(x)


def fisher_gap(
    energy: EnergyLike, truth: Callable[[Tensor], Tensor], x: Tensor, chunk: int = 8192
) -> float:
    r"""Returns the relative Fisher gap over points drawn from the truth, a fraction.

    Arguments:
        energy: The learned energy.
        truth: The true score :math:`\nabla \log p`, :math:`(B, *) \to (B, *)`.
        x: Points from the true density, with shape :math:`(N, *)`.
        chunk: The number of points evaluated at once.

    Example:
        >>> from fokker.analytic import Gaussian
        >>> p, q = Gaussian(torch.zeros(3), 1.0), Gaussian(torch.zeros(3), 2.0)
        >>> fisher_gap(q, p.score, p.sample(100))  # the score of q is half that of p
        0.2500
    """
    checks.positive_integer(chunk=chunk)
    miss = norm = 0.0
    with torch.no_grad():
        for part in checks.points(x).split(chunk):
            right = truth(part)
            wrong = (score(energy, part) - right).double()
            miss += float(dot(wrong, wrong).sum())
            norm += float(dot(right.double(), right.double()).sum())
    if norm == 0:
        raise ValueError("expected a truth whose score is not zero at all points, got a flat one")
    return miss / norm


class PlanarReport(NamedTuple):
    r"""The quality of an energy on a 2-D set."""

    sm_loss: float  # score matching loss on fresh points
    optimum: float  # its least possible value
    fisher_gap: float  # a fraction; NaN where the truth has no score (checkerboard without noise)
    kl: float  # nats
    nll: float  # nats
    off_mass: float  # a fraction


@lru_cache(maxsize=32)
def _truth(data: Planar, grid: Grid) -> tuple[Tensor, Tensor]:
    r"""Returns the true energy at the centers of a grid, and where the last 1e-4 of mass lies."""
    e = -torch.log(data.density(grid.axis()).flatten())
    mass = float(torch.exp(grid.log_normalizer(e)))
    if abs(mass - 1) > 1e-3:
        raise ValueError(
            f"expected a grid that resolves {data}, got {grid}, on which its mass is {mass:.4f}:"
            " take more cells or a wider square"
        )
    p = torch.exp(-e) / mass * grid.cell
    order = torch.argsort(p, descending=True)
    off = torch.ones_like(p, dtype=torch.bool)
    off[order[torch.cumsum(p[order], 0) <= 1 - 1e-4]] = False
    return e, off


def square(data: Planar) -> Grid:
    r"""Returns the grid on which an energy of a 2-D set is normalized: a square of twelve times
    the scale of the set to each side (±3 at the default scale), with 600 cells a side."""
    return Grid(-12 * data.scale, 12 * data.scale, 600)


def evaluate_planar(
    energy: EnergyLike,
    data: Planar,
    points: int = 20_000,
    grid: Grid | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> PlanarReport:
    r"""Returns how well an energy describes a 2-D set.

    The learned density is that of the energy restricted to the grid, by default the `square` of
    the set.

    Arguments:
        energy: The energy, :math:`(B, 2) \to (B)`.
        data: The set.
        points: The number of fresh points for the score matching loss and the Fisher gap.
        grid: The grid for KL and mass off the data.
        seed: The seed of the fresh points.
        device: The device of the energy.
        dtype: The dtype of the energy.
    """
    grid = square(data) if grid is None else grid
    generator = torch.Generator(device=device or "cpu").manual_seed(seed)
    x = data.sample(points, generator, device=device, dtype=dtype)
    optimum = data.optimum()
    gap = fisher_gap(energy, data.score, x) if math.isfinite(optimum) else math.nan
    truth, off = _truth(data, grid)
    e = grid.evaluate(energy, dtype, device).cpu()
    log_z = grid.log_normalizer(e)
    q = torch.exp(-e.double() - log_z) * grid.cell
    with torch.no_grad():
        mean = torch.cat([value(energy, part) for part in x.split(65_536)]).double().mean()
    return PlanarReport(
        sm_loss=score_matching_loss(energy, x),
        optimum=optimum,
        fisher_gap=gap,
        kl=float(grid.kl(truth, e)),
        nll=float(mean.cpu() + log_z),
        off_mass=float(q[off].sum()),
    )


class MixtureReport(NamedTuple):
    r"""The quality of an energy on a Gaussian mixture."""

    fisher_gap: float  # a fraction
    kl: float  # nats
    kl_error: float  # the standard error of it
    ess: float  # effective share of the importance sample, between 0 and 1


def log_normalizer(
    energy: EnergyLike,
    truth: GaussianMixture,
    n: int = 65_536,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`\log Z` of an energy near a known mixture, its standard error, and the
    effective share of the sample.

    Importance sampling, :math:`Z = \mathbb{E}_r \, e^{-E} / r`, from a defensive proposal r: half
    the mixture itself, the rest the mixture diffused to noise of half and of twice its smallest
    component's standard deviation, so that mass just off the data is found too. Mass of the
    learned density far from all of these is missed.

    Arguments:
        energy: The energy, :math:`(B, D) \to (B)`.
        truth: The mixture.
        n: The number of points, four or more; what is over a multiple of four is not drawn.
        generator: The source of randomness.
    """
    checks.positive_integer(n=n)
    if n < 4:
        raise ValueError(f"expected n >= 4, so as to draw from each part of r, got {n}")
    std = float(torch.linalg.eigvalsh(truth.covariances).min().sqrt())
    parts = [truth, truth.diffuse(VE(), (0.5 * std) ** 2), truth.diffuse(VE(), (2 * std) ** 2)]
    shares, counts = [0.5, 0.25, 0.25], [n // 4 * 2, n // 4, n // 4]
    x = torch.cat([p.sample(m, generator) for p, m in zip(parts, counts, strict=True)])
    with torch.no_grad():
        rows = x.split(
            max(1, NUMBERS // truth.means.numel())
        )  # a mixture takes K D numbers a point
        each = [torch.cat([p(part) for part in rows]) for p in parts]
        logs = torch.stack([math.log(w) - e for e, w in zip(each, shares, strict=True)])
        e = torch.cat([value(energy, part) for part in x.split(8192)])
        log_w = (-e - torch.logsumexp(logs, dim=0)).double()
    log_z = torch.logsumexp(log_w, dim=0) - math.log(len(x))
    w = torch.exp(log_w - log_z)
    return log_z, w.std() / math.sqrt(len(x)), 1 / w.square().mean()


def evaluate_mixture(
    energy: EnergyLike, truth: GaussianMixture, n: int = 65_536, seed: int = 0
) -> MixtureReport:
    r"""Returns how well an energy describes a Gaussian mixture in any dimension.

    Arguments:
        energy: The energy, :math:`(B, D) \to (B)`.
        truth: The mixture.
        n: The number of points, four or more, for the Fisher gap and for :math:`\log Z`.
        seed: The seed of the points.
    """
    generator = torch.Generator(device=truth.means.device).manual_seed(seed)
    x = truth.sample(n, generator)
    log_z, error, ess = log_normalizer(energy, truth, n, generator)
    with torch.no_grad():
        local = torch.cat([value(energy, p) - value(truth, p) for p in x.split(8192)]).double()
    kl = local.mean() + log_z
    spread = math.hypot(float(local.std()) / math.sqrt(n), float(error))
    return MixtureReport(fisher_gap(energy, truth.score, x), float(kl), spread, float(ess))
