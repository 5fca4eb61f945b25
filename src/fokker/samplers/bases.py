r"""Bases of particles: mixtures of Gaussians, normalized, with mass wherever an energy has.

A mixture fitted to data is one (`fokker.analytic.fit_mixture`), the quadratic that confines an
energy another.
"""

__all__ = ["confining", "widened"]

import torch

from .exact import as_mixture
from .. import checks
from ..analytic import GaussianMixture
from ..derivatives import EnergyLike
from ..energies import Quadratic, Sum


def confining(energy: EnergyLike, dim: int) -> GaussianMixture | None:
    r"""Returns the Gaussian of the quadratic that confines an energy, `net + Quadratic(s)`; none
    if it has none."""
    if not (isinstance(energy, Sum) and isinstance(energy.b, Quadratic)):
        return None
    found = as_mixture(energy.b, energy.b.center.new_zeros(1, dim))
    return None if found is None else found.mixture


def widened(base: GaussianMixture, factor: float = 3.0, weight: float = 0.1) -> GaussianMixture:
    r"""Returns a base with one wide component more, so that particles start far from its mass
    too and a minimum of the energy out there is met.

    Arguments:
        base: The base.
        factor: The standard deviations of the wide component, relative to those of the base.
        weight: The weight of the wide component.
    """
    checks.positive(factor=factor)
    checks.share(weight=weight)
    w = base.weights
    mean = (w[:, None] * base.means).sum(0)
    shift = base.means - mean
    spread = (w[:, None] * shift).T @ shift
    covariance = (w[:, None, None] * base.covariances).sum(0) + spread
    return GaussianMixture(
        torch.cat((base.means, mean[None])),
        torch.cat((base.covariances, factor**2 * (covariance + covariance.T)[None] / 2)),
        torch.cat(((1 - weight) * w, w.new_tensor([weight]))),
    )
