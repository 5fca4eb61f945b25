r"""The study of posteriors: samples against the closed form.

The prior is a mixture of K Gaussians of small pictures, with energies :math:`E(x, \sigma) = -\log
\sum_k w_k \mathcal{N}(x; \mu_k, \Sigma_k + \sigma^2 I)` at every level, zero included. With
:math:`y = A x + s \, n` the posterior is a mixture again,

.. math::
    C_k = (\Sigma_k^{-1} + A^\top A / s^2)^{-1}, \quad
    m_k = C_k (\Sigma_k^{-1} \mu_k + A^\top y / s^2), \quad
    w'_k \propto w_k \, \mathcal{N}(y; A \mu_k, A \Sigma_k A^\top + s^2 I) .

y is the observation of the mean of the component means and of a random deviation, plus noise: the
first such draw for which each component keeps 5 % of the weight. **Errors** of samples
:math:`x_i`, with m, C the moments of the posterior:

============  =====================================================================================
`mean`        :math:`\|\hat m - m\| \, / \sqrt{\mathrm{tr} \, C}`
`covariance`  :math:`\|\hat C - C\|_F / \|C\|_F`
`weight`      :math:`\max_k |\hat w_k - w'_k|`, with :math:`\hat w_k` the mean of the posterior's
              responsibilities at the samples
============  =====================================================================================

The moments of D² entries have errors of their own from a finite number of samples, in which a bias
of a percent would be lost. So the first two are *cross-validated* over the islands of particles,
which are independent: :math:`\|\hat m - m\|^2` is taken to be the mean over pairs of islands of
:math:`\langle \hat m_g - m, \hat m_h - m \rangle`, whose expectation is the squared bias alone,
and its root is the error (zero if the mean is below zero).
"""

__all__ = [
    "OPERATORS",
    "MixtureLevels",
    "Problem",
    "Truth",
    "cell",
    "judge",
    "problem",
    "run",
    "truth",
]

import math
import time
import torch

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker.analytic import GaussianMixture
from fokker.energies import Energy
from fokker.images.operators import Blur, Downscale, Identity, Mask, Operator, gaussian_kernel
from fokker.images.posterior import Annealing, Posterior, ladder
from fokker.pace import Pace
from fokker.samplers import Field
from torch import Tensor
from typing import Any, NamedTuple

from . import results

OPERATORS: tuple[str, ...] = ("identity", "blur", "mask", "downscale")
DIMENSIONS = (64, 256)
NOISE = 0.4
APART = 3.0  # of the means from their center, in deviations of the first component
LEAST = 0.05  # weight of each component in the posterior
HIGHEST, SHARE, ISLANDS = 3.0, 0.95, 4  # the first level; of the ladder; of the particles
SCALE = 0.5  # of the preconditioner
CONFIG = {"noise": NOISE, "apart": APART, "share": SHARE, "islands": ISLANDS, "scale": SCALE}


class MixtureLevels(Energy):
    r"""Creates the energy of a mixture with noise, E(x, σ), of pictures :math:`(B, 1, H, W)`.

    Its covariances have common axes, which are turned to once.

    Arguments:
        mixture: The mixture of points of H W coordinates.
    """

    def __init__(self, mixture: GaussianMixture) -> None:
        super().__init__()
        _, self.axes = torch.linalg.eigh(mixture.covariances[0])
        turned = self.axes.T @ mixture.covariances @ self.axes
        self.variances = turned.diagonal(dim1=1, dim2=2)
        if not torch.allclose(turned, torch.diag_embed(self.variances), atol=1e-6):
            raise ValueError("expected covariances with common axes, got others")
        self.centers = mixture.means @ self.axes
        self.log_weights = mixture.weights.log()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        axes, variances, centers = (v.to(x) for v in (self.axes, self.variances, self.centers))
        v = variances + sigma.square()  # (K, D)
        shift = x.flatten(1) @ axes - centers[:, None]
        logs = -(shift.square() / v[:, None]).sum(2) / 2
        scale = self.log_weights.to(x) - torch.log(2 * math.pi * v).sum(1) / 2
        return -torch.logsumexp(logs + scale[:, None], 0)


class Problem(NamedTuple):
    r"""A mixture, an operator and an observation."""

    mixture: GaussianMixture  # float64
    operator: Operator
    y: Tensor  # (1, 1, h, w)
    noise: float
    side: int

    def posterior(self) -> Posterior:
        r"""Returns the posterior down to level zero, in float32."""
        field = Field(MixtureLevels(self.mixture))
        return Posterior(field, self.operator, self.y.float(), self.noise)


class Truth(NamedTuple):
    r"""The posterior in closed form."""

    mixture: GaussianMixture
    mean: Tensor  # (D)
    covariance: Tensor  # (D, D)


def operator_of(name: str, side: int, generator: torch.Generator) -> Operator:
    r"""Returns an operator by its name in `OPERATORS`."""
    match name:
        case "identity":
            return Identity()
        case "blur":
            return Blur(gaussian_kernel(0.6))
        case "mask":
            seen = torch.rand(side, side, generator=generator, dtype=torch.float64)
            return Mask((seen < 0.5).double())
    return Downscale(2)


def problem(name: str, dimension: int, seed: int = 0, components: int = 3) -> Problem:
    r"""Returns a problem: smooth means, smooth covariances of different sizes and an observation
    between the means.

    Arguments:
        name: The operator, a name in `OPERATORS`.
        dimension: The number of pixels, a square.
        seed: The seed.
        components: The number of components.
    """
    generator = torch.Generator().manual_seed(seed)
    side = math.isqrt(dimension)
    places = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 2)
    apart = torch.cdist(places, places)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    spectrum, axes = torch.linalg.eigh(
        0.3 * torch.exp(-apart) + 0.05 * torch.eye(dimension, dtype=torch.float64)
    )
    # of different shapes and one volume, so that no component has all of the weight
    powers = 1 + 0.15 * torch.arange(components, dtype=torch.float64)[:, None]
    logs = powers * spectrum.log()
    logs = logs - (logs - logs[:1]).mean(1, keepdim=True)
    covariances = (axes * logs.exp()[:, None]) @ axes.T
    factor = torch.linalg.cholesky(
        torch.exp(-((apart / 3) ** 2)) + 1e-6 * torch.eye(dimension, dtype=torch.float64)
    )
    means = normal(components, dimension) @ factor.T
    # as far apart, in deviations of the first component, in any dimension
    means -= means.mean(0)
    scaled = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariances[0]), means.T, upper=False
    )
    means *= APART / scaled.norm(dim=0)[:, None]
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)[:components]
    mixture = GaussianMixture(means, covariances, weights)
    a = operator_of(name, side, generator)
    clean = (mixture.weights @ means).reshape(1, 1, side, side)
    factor = torch.linalg.cholesky(covariances.mean(0))
    for _ in range(10_000):
        seen = a(clean + (factor @ normal(dimension, 1)).reshape(clean.shape))
        y = seen + NOISE * normal(*seen.shape)
        y = a(torch.ones_like(clean)) * y if name == "mask" else y
        found = Problem(mixture, a, y, NOISE, side)
        if float(weights_of(found).min()) >= LEAST:
            return found
    raise ValueError(f"expected an observation that leaves {LEAST:g} to each component, got none")


def rows_of(given: Problem) -> tuple[Tensor, Tensor]:
    r"""Returns the matrix of the operator and the observation, without what is hidden."""
    d = given.mixture.means.shape[1]
    eye = torch.eye(d, dtype=torch.float64)
    a = given.operator(eye.reshape(d, 1, given.side, given.side)).flatten(1).T
    rows = a.abs().sum(1) > 0
    return a[rows], given.y.flatten()[rows]


def weights_of(given: Problem) -> Tensor:
    r"""Returns the weights of the components in the posterior."""
    p, (a, y) = given.mixture, rows_of(given)
    noise = given.noise**2 * torch.eye(len(y), dtype=a.dtype)
    seen = GaussianMixture(p.means @ a.T, a @ p.covariances @ a.T + noise, p.weights)
    return torch.softmax(seen.parts(y[None])[0][:, 0], 0)


def truth(given: Problem) -> Truth:
    r"""Returns the posterior of a problem in closed form."""
    p, s = given.mixture, given.noise
    a, y = rows_of(given)
    c = torch.linalg.inv(p.precisions + a.T @ a / s**2)
    c = (c + c.mT) / 2
    pull = torch.einsum("kde,ke->kd", p.precisions, p.means) + a.T @ y / s**2
    m = torch.einsum("kde,ke->kd", c, pull)
    w = weights_of(given)
    mixture = GaussianMixture(m, c, w)
    mean = w @ m
    shift = m - mean
    covariance = torch.einsum("k,kde->de", w, c) + torch.einsum("k,kd,ke->de", w, shift, shift)
    return Truth(mixture, mean, covariance)


def crossed(parts: Tensor, target: Tensor) -> float:
    r"""Returns the error of the mean of independent estimates without their own noise: the root of
    the mean of :math:`\langle e_g, e_h \rangle` over pairs :math:`g \neq h`.

    Arguments:
        parts: The estimates, with shape :math:`(G, \ldots)`.
        target: What they estimate.
    """
    e = (parts - target).flatten(1)
    n = len(e)
    total = e.sum(0).square().sum() - e.square().sum()
    return math.sqrt(max(0.0, float(total) / (n * (n - 1))))


def judge(x: Tensor, exact: Truth) -> dict[str, float]:
    r"""Returns the errors of samples.

    Arguments:
        x: The samples, with shape :math:`(G, n, D)`, in G independent islands.
        exact: The posterior.
    """
    x = x.double()
    means, mean, c = x.mean(1), exact.mean, exact.covariance
    shift = x - mean
    moments = torch.einsum("gnd,gne->gde", shift, shift) / x.shape[1]
    logs = exact.mixture.parts(x.flatten(0, 1))[0]
    found = torch.softmax(logs, 0).mean(1)
    raw = (x.flatten(0, 1) - mean).T.cov()
    return {
        "mean_error": crossed(means, mean) / float(c.trace().sqrt()),
        "covariance_error": crossed(moments, c) / float(c.norm()),
        "weight_error": float((found - exact.mixture.weights).abs().max()),
        "covariance_error_raw": float((raw - c).norm() / c.norm()),
        "variance_ratio": float(raw.trace() / c.trace()),
    }


def cell(
    name: str,
    dimension: int,
    particles: int = 4096,
    moves: int = 1,
    last: int = 120,
    seed: int = 0,
    say: Callable[[results.Row], None] = lambda row: None,
    units: Pace | None = None,
) -> list[results.Row]:
    r"""Returns the rows of an operator in a dimension: corrected particles, particles whose
    transitions are all taken, and corrected chains without weights.

    Arguments:
        name: The operator, a name in `OPERATORS`.
        dimension: The number of pixels, a square.
        particles: The number of particles.
        moves: The number of transitions a level.
        last: The number of transitions at the last level.
        seed: The seed.
        say: Called with each row.
        units: The pace of the study, a part a row.
    """
    given = problem(name, dimension)
    posterior, exact = given.posterior(), truth(given)
    generator = torch.Generator().manual_seed(seed)
    start = lambda n: posterior.start(n, HIGHEST, generator)
    base = Annealing((HIGHEST, 0.0), moves, last, thin=4, first=40, scale=SCALE, islands=ISLANDS)
    levels = ladder(posterior, base, start(particles // 4), generator, SHARE)
    rows, size = [], base.step_size
    for corrected, weighted in ((True, True), (False, True), (True, False)):
        began = time.perf_counter()
        options: dict[str, Any] = {"corrected": corrected, "weighted": weighted}
        if not corrected:  # they have the step size that the corrected ones found
            options["step_size"] = size
        method = replace(base, levels=levels, **options)
        found = method.run(posterior, start(particles), generator)
        size = found.step_size
        kept = found.kept.flatten(2)  # (S, N, D), islands one after another
        islands = kept.reshape(len(kept), ISLANDS, -1, dimension).transpose(0, 1)
        row = {
            "dimension": dimension,
            "operator": name,
            "corrected": corrected,
            "weighted": weighted,
            **judge(islands.flatten(1, 2), exact),
            "weights": exact.mixture.weights.tolist(),
            "levels": len(levels),
            "particles": particles,
            "samples": kept.shape[0] * kept.shape[1],
            "acceptance": min(found.acceptance),
            "step_size": found.step_size,
            "share": found.share,
            "seconds": time.perf_counter() - began,
            "seed": seed,
        }
        rows.append(row)
        if units is not None:
            units.done()
        say(row)
    return rows


def run(
    dimensions: Sequence[int] = DIMENSIONS,
    operators: Sequence[str] = OPERATORS,
    particles: int = 4096,
    say: Callable[[results.Row], None] = lambda row: None,
) -> list[results.Row]:
    r"""Returns the rows of the study. See `cell`."""
    return [
        row
        for dimension in dimensions
        for name in operators
        for row in cell(name, dimension, particles, say=say)
    ]
