r"""Analytic energies: Gaussians and their mixtures, exact at every diffusion time.

The oracles against which the rest is tested. A mixture of K Gaussians

.. math:: p(x) = \sum_k w_k \, \mathcal{N}(x; \mu_k, \Sigma_k), \quad E(x) = -\log p(x),

is normalized (:math:`Z = 1`), has its jet in closed form, can be sampled, and stays a mixture
under a linear diffusion: :math:`\mu_k \to \alpha \mu_k`,
:math:`\Sigma_k \to \alpha^2 \Sigma_k + \sigma^2 I`. With one component, divergences between two of
them are closed form too:

.. math::
    \mathrm{KL}(p \| q) = \tfrac{1}{2} \big[ \mathrm{tr}(Q \Sigma) - D + m^\top Q m
    - \log\det(Q \Sigma) \big], \qquad
    \mathbb{E}_p \|\nabla\log p - \nabla\log q\|^2 = \mathrm{tr}\big[(P - Q) \Sigma (P - Q)\big]
    + \|Q m\|^2

with :math:`P, Q` the precisions and :math:`m` the difference of the means.

`fit_mixture` fits one to points by expectation maximization,

.. math:: r_{nk} \propto w_k \, \mathcal{N}(x_n; \mu_k, \Sigma_k), \quad
    w_k = \tfrac{1}{N} \sum_n r_{nk}, \quad \mu_k, \Sigma_k = \text{the moments of the } x_n
    \text{ weighted by } r_{nk} ,

and chooses the number of components by Schwarz's criterion (BIC).
"""

__all__ = ["Diffused", "Gaussian", "GaussianMixture", "fit_mixture", "ring_of_gaussians"]

import math
import torch

from torch import Tensor

from . import checks
from .derivatives import Jet
from .diffusions import EDM, Linear
from .energies import Energy

STARTS, ITERATIONS = 2, 40  # of expectation maximization
SETTLED = 1e-3  # nats a point, below which it stops
ROWS = 4000  # points that a mixture is fitted to, at most


class GaussianMixture(Energy):
    r"""Creates the energy :math:`-\log \sum_k w_k \mathcal{N}(x; \mu_k, \Sigma_k)`.

    Arguments:
        means: The means, with shape :math:`(K, D)`.
        covariances: The covariances, with shape :math:`(K, D, D)`, or one variance for all,
            :math:`\Sigma_k = s^2 I`.
        weights: The weights, with shape :math:`(K)`; equal by default, normalized to sum to one.

    Example:
        >>> from fokker.diffusions import VE
        >>> p = GaussianMixture(torch.tensor([[-2.0], [2.0]]), 0.25)
        >>> p.diffuse(VE(), 0.75).covariances.flatten()  # again a mixture, with more noise
        tensor([1., 1.])
    """

    means: Tensor
    covariances: Tensor
    weights: Tensor
    precisions: Tensor
    log_scale: Tensor

    def __init__(
        self, means: Tensor, covariances: Tensor | float, weights: Tensor | None = None
    ) -> None:
        super().__init__()
        checks.points(means, "means")
        if means.ndim != 2:
            raise ValueError(f"expected means of shape (K, D), got {tuple(means.shape)}")
        K, D = means.shape
        if not isinstance(covariances, Tensor):
            checks.positive(covariances=covariances)
            covariances = covariances * torch.eye(D, dtype=means.dtype, device=means.device)
        if covariances.shape not in {(D, D), (K, D, D)}:
            raise ValueError(
                f"expected covariances of shape ({K}, {D}, {D}), got {tuple(covariances.shape)}"
            )
        weights = means.new_ones(K) if weights is None else weights.to(means)
        if weights.shape != (K,) or not ((weights > 0) & torch.isfinite(weights)).all():
            raise ValueError(f"expected {K} weights > 0, got {weights.tolist()}")
        covariances = covariances.expand(K, D, D).contiguous()
        factor, failed = torch.linalg.cholesky_ex(covariances)
        if failed.any() or not torch.allclose(covariances, covariances.mT):
            raise ValueError(
                "expected symmetric, positive definite covariances, got"
                f" {covariances[:4].tolist()}"
            )
        log_det = 2 * torch.log(torch.diagonal(factor, dim1=1, dim2=2)).sum(1)
        self.register_buffer("means", means)
        self.register_buffer("covariances", covariances)
        self.register_buffer("weights", weights / weights.sum())
        self.register_buffer("precisions", torch.cholesky_inverse(factor))
        self.register_buffer(
            "log_scale", torch.log(self.weights) - (log_det + D * math.log(2 * math.pi)) / 2
        )

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`\log w_k p_k(x)` and :math:`P_k (x - \mu_k)`, :math:`(K, B)` and
        :math:`(K, B, D)`."""
        if x.ndim != 2 or x.shape[1] != self.means.shape[1]:
            raise ValueError(
                f"expected points of shape (B, {self.means.shape[1]}), got {tuple(x.shape)}"
            )
        if x.dtype != self.means.dtype:
            raise ValueError(f"expected points of dtype {self.means.dtype}, got {x.dtype}")
        shift = x - self.means[:, None]
        pull = shift @ self.precisions
        return self.log_scale[:, None] - (shift * pull).sum(-1) / 2, pull

    def forward(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self.parts(x)[0], dim=0)

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the energy and its gradient, :math:`(B)` and :math:`(B, D)`."""
        logs, pull = self.parts(x)
        return -torch.logsumexp(logs, dim=0), weighted(torch.softmax(logs, dim=0), pull)

    def jet(self, x: Tensor) -> Jet:
        logs, pull = self.parts(x)
        r = torch.softmax(logs, dim=0)
        g = weighted(r, pull)
        trace = torch.diagonal(self.precisions, dim1=1, dim2=2).sum(1)
        spread = (pull - g).square().sum(-1)  # not a difference of squares, which cancels
        return Jet(-torch.logsumexp(logs, dim=0), g, (r * (trace[:, None] - spread)).sum(0))

    def score(self, x: Tensor) -> Tensor:
        r"""Returns the exact score, with shape :math:`(B, D)`."""
        return -self.slope(x)[1]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns `n` independent points, with shape :math:`(n, D)`."""
        checks.positive_integer(n=n)
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        z = torch.randn(
            n, self.means.shape[1], generator=generator, dtype=self.means.dtype,
            device=self.means.device,
        )  # fmt: skip
        factor = torch.linalg.cholesky(self.covariances)
        x = self.means[k]
        which, counts = k.unique(return_counts=True)
        rows = torch.argsort(k, stable=True).split(counts.tolist())
        for j, held in zip(which.tolist(), rows, strict=True):  # one product a component
            x[held] += z[held] @ factor[j].T
        return x

    def diffuse(self, diffusion: Linear, t: Tensor | float) -> "GaussianMixture":
        r"""Returns the law at time t of a linear diffusion started from this one at time 0."""
        if not isinstance(diffusion, Linear):
            raise TypeError(
                f"expected a linear diffusion (VE, EDM, VP), under which a mixture stays one, got"
                f" {diffusion!r}; Grid.evolve takes any"
            )
        t = torch.as_tensor(t, dtype=self.means.dtype, device=self.means.device)
        alpha, sigma = diffusion.transition(torch.zeros_like(t), t)
        eye = torch.eye(self.means.shape[1], dtype=self.means.dtype, device=self.means.device)
        covariances = alpha**2 * self.covariances + sigma**2 * eye
        return type(self)._rebuild(alpha * self.means, covariances, self.weights)

    @classmethod
    def _rebuild(cls, means: Tensor, covariances: Tensor, weights: Tensor) -> "GaussianMixture":
        return cls(means, covariances, weights)


class Gaussian(GaussianMixture):
    r"""Creates the energy of :math:`\mathcal{N}(\mu, \Sigma)`, normalized.

    Arguments:
        mean: The mean, with shape :math:`(D)`.
        covariance: The covariance, with shape :math:`(D, D)`, or a variance.
    """

    def __init__(self, mean: Tensor, covariance: Tensor | float) -> None:
        if mean.ndim != 1:
            raise ValueError(f"expected a mean of shape (D,), got {tuple(mean.shape)}")
        super().__init__(mean[None], covariance)

    @classmethod
    def _rebuild(cls, means: Tensor, covariances: Tensor, weights: Tensor) -> "Gaussian":
        return cls(means[0], covariances[0])

    @property
    def mean(self) -> Tensor:
        return self.means[0]

    @property
    def covariance(self) -> Tensor:
        return self.covariances[0]

    @property
    def precision(self) -> Tensor:
        return self.precisions[0]

    def kl(self, other: "Gaussian") -> Tensor:
        r"""Returns :math:`\mathrm{KL}(p \| q)` to another Gaussian q."""
        m = self.mean - other.mean
        ratio = other.precision @ self.covariance
        return (torch.trace(ratio) - len(m) + m @ other.precision @ m - torch.logdet(ratio)) / 2

    def fisher(self, other: "Gaussian") -> Tensor:
        r"""Returns :math:`\mathbb{E}_p \|\nabla\log p - \nabla\log q\|^2` to another Gaussian."""
        m = other.precision @ (self.mean - other.mean)
        gap = self.precision - other.precision
        return torch.trace(gap @ self.covariance @ gap) + m @ m


class Diffused(Energy):
    r"""Creates the exact energy :math:`E(x, \sigma)` of a mixture with noise: :math:`-\log
    p_\sigma`, normalized at every level.

    Arguments:
        mixture: The mixture, the law at :math:`\sigma = 0`.

    Example:
        >>> energy = Diffused(GaussianMixture(torch.tensor([[-2.0], [2.0]]), 0.25))
        >>> energy(torch.zeros(2, 1), torch.tensor([0.0, 2.0]))
        tensor([8.2258, 2.1130])
    """

    variances: Tensor
    axes: Tensor

    def __init__(self, mixture: GaussianMixture) -> None:
        super().__init__()
        self.mixture = mixture
        variances, axes = torch.linalg.eigh(mixture.covariances)
        self.register_buffer("variances", variances)
        self.register_buffer("axes", axes)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        v = self.variances[:, None] + sigma.square().reshape(-1, 1)  # (K, B or 1, D)
        shift = (x - self.mixture.means[:, None]) @ self.axes
        logs = -(shift.square() / v + torch.log(2 * math.pi * v)).sum(-1) / 2
        return -torch.logsumexp(self.mixture.weights.log()[:, None] + logs, dim=0)

    def at(self, t: Tensor | float) -> GaussianMixture:  # pyright: ignore
        r"""Returns the law at one level, a mixture again."""
        return self.mixture.diffuse(EDM(), t)


def weighted(r: Tensor, parts: Tensor) -> Tensor:
    r"""Returns :math:`\sum_k r_k v_k` of shares :math:`(K, B)` and vectors :math:`(K, B, D)`."""
    return torch.einsum("kb,kbd->bd", r, parts)


def ring_of_gaussians(
    D: int, K: int = 8, radius: float = 5.0, std: float = 0.7, seed: int = 0
) -> GaussianMixture:
    r"""Returns K equal Gaussians with means in random directions at one radius, in any dimension.

    The medium-dimensional test bed (d = 8 to 64), float32.
    """
    checks.positive_integer(D=D, K=K)
    checks.positive(radius=radius, std=std)
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(K, D, generator=generator)
    return GaussianMixture(radius * means / means.norm(dim=1, keepdim=True), std**2)


def fit_mixture(
    x: Tensor,
    most: int = 4,
    floor: float = 0.05,
    generator: torch.Generator | None = None,
) -> GaussianMixture:
    r"""Returns a mixture fitted to points, with one to `most` components, in the dtype of x.

    The covariance of a component with few points is shrunk to its diagonal, as if D more points
    with that diagonal had been seen, and has `floor**2` added to its diagonal. Of more than 4,000
    points, so many drawn at random are fitted to.

    Arguments:
        x: The points, with shape :math:`(N, D)`.
        most: The largest number of components.
        floor: The least standard deviation of a component in any direction.
        generator: The source of randomness.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> truth = GaussianMixture(torch.tensor([[-2.0], [2.0]]), 0.25)
        >>> fit_mixture(truth.sample(2000, generator), generator=generator).means.flatten().abs()
        tensor([2.0, 2.0])
    """
    checks.points(x)
    checks.positive_integer(most=most)
    checks.positive(floor=floor)
    points = x.detach().double()
    if len(points) > ROWS:
        points = points[torch.randperm(len(points), generator=generator, device=x.device)[:ROWS]]
    n, d = points.shape
    best, least = None, math.inf
    for k in range(1, most + 1):
        if k > 1 and n < 4 * k:
            break
        before = least
        for _ in range(STARTS if k > 1 else 1):
            found = maximize(points, k, floor, generator)
            size = k * (1 + d + d * (d + 1) / 2)
            bic = 2 * float(found(points).sum()) + size * math.log(n)
            if bic < least:
                best, least = found, bic
        if least == before:  # one more component was no gain
            break
    if best is None:
        raise FloatingPointError(f"expected finite points to fit a mixture to, got {n} points")
    return GaussianMixture(best.means.to(x), best.covariances.to(x), best.weights.to(x))


def maximize(
    x: Tensor,
    components: int,
    floor: float,
    generator: torch.Generator | None,
    iterations: int = ITERATIONS,
    pooled: bool = False,
    shrink: float = 1.0,
) -> GaussianMixture:
    r"""Returns the mixture at which expectation maximization arrives from means at points far
    apart.

    Arguments:
        x: The points, with shape :math:`(N, D)`.
        components: The number of components.
        floor: The least standard deviation of a component in any direction.
        generator: The source of randomness.
        iterations: The largest number of iterations.
        pooled: Whether a covariance is shrunk to the mean diagonal of all components, not to its
            own, which says little where components have few points.
        shrink: How many points with that diagonal a component is given, as a multiple of D.
    """
    n, d = x.shape
    center = x.mean(0)  # moments about it do not cancel
    x = x - center
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    spread = x.square().mean(0).clamp_min(floor**2)
    means = spread_out(x, components, generator)
    covariances = torch.diag(spread).expand(components, d, d)
    weights = x.new_full((components,), 1 / components)
    before = math.inf
    for _ in range(iterations):
        logs = log_parts(x, means, covariances, weights)
        now = -float(torch.logsumexp(logs, 1).mean())
        if abs(before - now) < SETTLED:
            break
        before, r = now, torch.softmax(logs, 1).clamp_min(1e-12 / n)
        count = r.sum(0)
        weights, means = count / count.sum(), (r.T @ x) / count[:, None]
        moments = torch.stack([
            ((x - means[k]).T * r[:, k]) @ (x - means[k]) for k in range(components)
        ])
        diagonals = moments.diagonal(dim1=1, dim2=2) / count[:, None]
        if pooled:
            diagonals = (weights @ diagonals).expand(components, d)
        size, more = count[:, None, None], shrink * d
        shrunk = (moments + more * torch.diag_embed(diagonals)) / (size + more)
        covariances = shrunk + floor**2 * eye
    return GaussianMixture(means + center, covariances.contiguous(), weights)


def log_parts(x: Tensor, means: Tensor, covariances: Tensor, weights: Tensor) -> Tensor:
    r"""Returns :math:`\log w_k p_k(x)`, with shape :math:`(N, K)`, by one product of matrices."""
    K, d = means.shape
    factor = torch.linalg.cholesky(covariances)
    eye = torch.eye(d, dtype=x.dtype, device=x.device).expand(K, d, d)
    whiten = torch.linalg.solve_triangular(factor, eye, upper=False).mT  # (K, D, D), x @ whiten
    shift = (means[:, None] @ whiten).reshape(1, K * d)
    y = x @ whiten.permute(1, 0, 2).reshape(d, K * d) - shift
    log_scale = torch.log(weights) - torch.log(factor.diagonal(dim1=1, dim2=2)).sum(1)
    square = y.square().reshape(len(x), K, d).sum(2)
    return log_scale - d * math.log(2 * math.pi) / 2 - square / 2


def spread_out(x: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    r"""Returns k of the points, each drawn in proportion to its squared distance to those before
    (k-means++)."""
    weight, chosen = x.new_ones(len(x)), []
    for _ in range(k):
        level = torch.rand((), generator=generator, dtype=x.dtype, device=x.device)
        cumulative = weight.cumsum(0)
        which = torch.searchsorted(cumulative, level * cumulative[-1]).clamp_max(len(x) - 1)
        chosen.append(x[which])
        distance = (x - chosen[-1]).square().sum(1)
        weight = torch.minimum(weight, distance) if len(chosen) > 1 else distance
        if not weight.any():  # fewer different points than components
            weight = x.new_ones(len(x))
    return torch.stack(chosen)
