r"""Exact samples of composed Gaussians.

Products, mixtures, powers and quadratics of Gaussian mixtures are often mixtures again, whose
samples and whose :math:`\log Z` are exact. With :math:`e^{-E_a} = Z_a p_a` and so for b:

- a product :math:`e^{-E_a - E_b}` has a component for each pair, with
  :math:`\Sigma = (\Sigma_i^{-1} + \Sigma_j^{-1})^{-1}`,
  :math:`\mu = \Sigma (\Sigma_i^{-1} \mu_i + \Sigma_j^{-1} \mu_j)` and the weight
  :math:`w_i w_j \, \mathcal{N}(\mu_i; \mu_j, \Sigma_i + \Sigma_j)`;
- a mixture :math:`\sum_k w_k e^{-E_k}` has the components of all, weighted by
  :math:`w_k Z_k`;
- a power :math:`e^{-c E}` of one Gaussian is the Gaussian of covariance :math:`\Sigma / c`. A
  power of a mixture is none.
"""

__all__ = ["Normalized", "as_mixture"]

import math
import torch

from torch import Tensor
from typing import NamedTuple

from ..analytic import GaussianMixture
from ..derivatives import EnergyLike
from ..energies import Difference, Energy, Mixture, Quadratic, Scaled, Sum

COMPONENTS = 4096  # at most, of a product


class Normalized(NamedTuple):
    r"""A mixture p and the constant of an energy, :math:`e^{-E} = Z p`."""

    mixture: GaussianMixture
    log_z: float


def as_mixture(energy: EnergyLike, like: Tensor) -> Normalized | None:
    r"""Returns the mixture that an energy is, and its :math:`\log Z`; none if it is no mixture.

    Arguments:
        energy: The energy.
        like: Points, with shape :math:`(B, D)`, for the dimension and the dtype.

    Example:
        >>> from fokker.analytic import Gaussian
        >>> a = Gaussian(torch.zeros(1), torch.eye(1))
        >>> found = as_mixture(a + Quadratic(1.0), torch.zeros(1, 1))
        >>> found.mixture.covariances.flatten(), found.log_z  # of variance 1/2; -log(2) / 2
        (tensor([0.5000]), -0.35)
    """
    if isinstance(energy, GaussianMixture):
        return Normalized(energy, 0.0)
    if isinstance(energy, Quadratic):
        return quadratic(energy, like)
    if isinstance(energy, Scaled):
        return power(as_mixture(energy.energy, like), energy.factor)
    if isinstance(energy, Sum) and not isinstance(energy, Difference):
        return product(as_mixture(energy.a, like), as_mixture(energy.b, like))
    if isinstance(energy, Mixture):
        parts = [as_mixture(part, like) for part in energy.energies if isinstance(part, Energy)]
        return union([part for part in parts if part is not None], energy.log_weights)
    return None


def quadratic(energy: Quadratic, like: Tensor) -> Normalized | None:
    r"""Returns the Gaussian of a quadratic energy."""
    dim = like.shape[1]
    if energy.center.ndim > 1 or energy.center.numel() not in {1, dim}:
        return None
    mean = energy.center.to(like).expand(dim)
    log_z = dim / 2 * math.log(2 * math.pi * energy.std**2)
    return Normalized(GaussianMixture(mean[None], energy.std**2), log_z)


def power(part: Normalized | None, c: float) -> Normalized | None:
    r"""Returns the power c of a density, if it has one component."""
    if part is None or len(part.mixture.weights) > 1:
        return None
    covariance, dim = part.mixture.covariances[0], part.mixture.means.shape[1]
    log_det = float(torch.logdet(covariance.double()))
    constant = (1 - c) / 2 * (dim * math.log(2 * math.pi) + log_det) - dim / 2 * math.log(c)
    mixture = GaussianMixture(part.mixture.means, covariance / c)
    return Normalized(mixture, c * part.log_z + constant)


def product(a: Normalized | None, b: Normalized | None) -> Normalized | None:
    r"""Returns the product of two densities."""
    if a is None or b is None or a.mixture.means.shape[1:] != b.mixture.means.shape[1:]:
        return None
    first, second = a.mixture, b.mixture
    count = len(first.weights) * len(second.weights)
    if count > COMPONENTS:
        return None
    pa, pb = first.precisions[:, None], second.precisions
    ma, mb = first.means[:, None], second.means
    sa, sb = first.covariances[:, None], second.covariances
    covariance = torch.linalg.inv(pa + pb)
    covariance = (covariance + covariance.mT) / 2
    mean = covariance @ (pa @ ma[..., None] + pb @ mb[..., None])
    shift, factor = (ma - mb).double()[..., None], torch.linalg.cholesky((sa + sb).double())
    whitened = torch.linalg.solve_triangular(factor, shift, upper=False).square().sum((-1, -2))
    log_det = 2 * torch.log(factor.diagonal(dim1=-2, dim2=-1)).sum(-1)
    dim = first.means.shape[1]
    logs = -(whitened + log_det + dim * math.log(2 * math.pi)) / 2
    logs += first.weights.double().log()[:, None] + second.weights.double().log()
    return gathered(
        mean.reshape(count, dim), covariance.reshape(count, dim, dim), logs.flatten(),
        a.log_z + b.log_z,
    )  # fmt: skip


def union(parts: list[Normalized], log_weights: list[float]) -> Normalized | None:
    r"""Returns the mixture of densities, each with its own constant."""
    if len(parts) != len(log_weights):
        return None
    logs = [
        part.mixture.weights.double().log() + w + part.log_z
        for part, w in zip(parts, log_weights, strict=True)
    ]
    means = torch.cat([part.mixture.means for part in parts])
    covariances = torch.cat([part.mixture.covariances for part in parts])
    return gathered(means, covariances, torch.cat(logs), 0.0)


def gathered(means: Tensor, covariances: Tensor, logs: Tensor, log_z: float) -> Normalized:
    r"""Returns components of logarithmic weights as a mixture; those of no weight are left
    out."""
    total = torch.logsumexp(logs, 0)
    weights = torch.exp(logs - total).to(means)
    held = weights > 0
    mixture = GaussianMixture(means[held], covariances[held], weights[held])
    return Normalized(mixture, float(total) + log_z)
