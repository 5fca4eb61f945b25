r"""Draw from an energy: exactly where that is possible, by particles elsewhere.

`draw` takes the first of these that applies, and says which:

1. a composition of Gaussians is drawn as the mixture that it is (`fokker.samplers.exact`);
2. an energy in the plane by inversion on a grid (`fokker.samplers.inversion`);
3. any other by particles from a base that is normalized (`fokker.samplers.particles`).

The samples come with a verdict (`fokker.samplers.verdict`). An energy that cannot be drawn from at
all, such as one that does not confine its density, raises `Unreliable`.
"""

__all__ = ["draw", "draw_particles"]

import math
import torch

from torch import nn

from .bases import confining, widened
from .exact import as_mixture
from .inversion import invert, invert_anywhere
from .particles import Particles
from .verdict import Sampled, Verdict, judge_particles
from .. import checks
from ..analytic import GaussianMixture
from ..derivatives import EnergyLike
from ..grid import Grid

LEAST = 2048  # particles; the samples that are asked for are drawn among them


def dtype_of(energy: EnergyLike) -> torch.dtype:
    r"""Returns the dtype of the weights of an energy; the default one if it has none."""
    if not isinstance(energy, nn.Module):
        return torch.get_default_dtype()
    return next((p.dtype for p in energy.parameters()), torch.get_default_dtype())


def draw(
    energy: EnergyLike,
    n: int,
    base: GaussianMixture | None = None,
    dim: int | None = None,
    generator: torch.Generator | None = None,
    grid: Grid | None = None,
) -> Sampled:
    r"""Returns n samples of an energy and the verdict on them.

    Arguments:
        energy: The energy, :math:`(B, D) \to (B)`, on the CPU.
        n: The number of samples.
        base: A mixture with mass wherever the energy has, such as one fitted to data
            (`fokker.analytic.fit_mixture`). The confining quadratic of the energy if not given.
        dim: The dimension D; that of the base if not given.
        generator: The source of randomness; the global one if not given.
        grid: In the plane, the square to which the energy is restricted; searched if not given.

    Example:
        >>> from fokker.energies import Quadratic
        >>> drawn = draw(Quadratic(2.0), 1000, dim=5)
        >>> drawn.points.shape, drawn.verdict.faults
        (torch.Size([1000, 5]), ())
    """
    checks.positive_integer(n=n)
    dim = base.means.shape[1] if dim is None and base is not None else dim
    if dim is None:
        raise ValueError("expected a base or a dimension to draw in, got neither")
    dtype = dtype_of(energy) if base is None else base.means.dtype
    if (found := as_mixture(energy, torch.zeros(1, dim, dtype=dtype))) is not None:
        said = f"exact samples of a mixture with {len(found.mixture.weights)} components"
        verdict = Verdict(said, (), {"log_z": found.log_z, "ess": float(n)})
        return Sampled(found.mixture.sample(n, generator), verdict)
    if dim == 2:
        drawn = (
            invert_anywhere(energy, n, generator, dtype)
            if grid is None
            else invert(energy, grid, n, generator, dtype)
        )
        said = f"exact samples by inversion on {drawn.grid.size}² cells"
        figures = {"ess": float(n), "border": drawn.border, "acceptance": drawn.acceptance}
        return Sampled(drawn.samples, Verdict(said, (), figures))
    base = confining(energy, dim) if base is None else base
    if base is None:
        raise ValueError(
            "expected a base, a mixture of Gaussians with mass wherever the energy has, got none"
            " for an energy without a confining quadratic; fit_mixture fits one to data"
        )
    return draw_particles(energy, n, base, generator)


def draw_particles(
    energy: EnergyLike,
    n: int,
    base: GaussianMixture,
    generator: torch.Generator | None = None,
    particles: Particles | None = None,
) -> Sampled:
    r"""Returns n samples by particles from a base, widened, and the verdict on them.

    A minimum of the energy that no particle meets on the way is not seen.
    """
    checks.positive_integer(n=n)
    sampler = Particles(widened(base)) if particles is None else particles
    count = sampler.islands * math.ceil(max(n, LEAST) / sampler.islands)
    found = sampler.run(energy, count, generator)
    which = torch.randperm(count, generator=generator)[:n].to(found.samples.device)
    return Sampled(found.samples[which], judge_particles(found))
