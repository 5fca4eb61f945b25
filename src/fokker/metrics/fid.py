r"""The Fréchet and the kernel inception distance between two sets of images.

Images are judged by their Inception features :math:`f \in \mathbb{R}^D` (see `inception`). The
**Fréchet distance** takes the features of a set for Gaussian,

.. math:: \mathrm{FID} = \|\mu_1 - \mu_2\|^2
    + \operatorname{tr} \big( C_1 + C_2 - 2 (C_1^{1/2} C_2 C_1^{1/2})^{1/2} \big),

with :math:`\mu` the mean and :math:`C` the covariance over :math:`n - 1`. The trace of the root is
the sum of the singular values of :math:`C_1^{1/2} C_2^{1/2}`, roots taken by eigenvalues. Nothing
is inverted and the product is never squared, so that of singular covariances (fewer images than
features) eight digits are right. In exact arithmetic neither the eigenvalues nor the distance are
negative. Eigenvalues between zero and :math:`-10^{-10}` of the largest are round-off and count as
zero, any lower one is an error; a distance below zero is round-off and counts as zero.

The mean and the scatter :math:`S = \sum_i (f_i - \mu)(f_i - \mu)^\top` are kept in float64 and
merged batch by batch, and shard by shard, without ever summing raw squares:

.. math:: \delta = \mu_2 - \mu_1, \quad \mu = \mu_1 + \tfrac{n_2}{n_1 + n_2} \delta, \quad
    S = S_1 + S_2 + \tfrac{n_1 n_2}{n_1 + n_2} \delta \delta^\top .

The FID of finite samples is biased upwards by an amount that depends on the model: compare at
equal counts only, 50,000 by custom. The **kernel distance** has no such bias: it is the unbiased
estimate of the squared maximum mean discrepancy under :math:`k(f, g) = (f^\top g / D + 1)^3`,

.. math:: \mathrm{KID} = \tfrac{1}{m (m - 1)} \sum_{i \neq j} \big( k(f_i, f_j) + k(g_i, g_j) \big)
    - \tfrac{2}{m^2} \sum_{i, j} k(f_i, g_j),

its mean and its std (over the number of subsets) on random subsets of :math:`m`.

Why not torchmetrics: its distances want torch-fidelity for the network, resize by one convention
which the result does not name, and keep sums of raw products. A test compares the two on the same
features.
"""

__all__ = [
    "FID",
    "KID",
    "Statistics",
    "fid_between",
    "frechet",
    "kernel_distance",
    "kid_between",
    "statistics",
]

import torch

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from typing import NamedTuple

from .inception import PUBLISHED, Extractor, load_inception
from .. import checks
from ..files import open_regular, write_bytes

LONGEST = 2**32  # bytes of a file
NEGLIGIBLE = 1e-10  # of the largest eigenvalue
TEXTS = ("convention", "weights", "data", "split")


@dataclass(frozen=True, eq=False)
class Statistics:
    r"""Creates the moments of the features of a set of images, and where they come from.

    Arguments:
        count: The number :math:`n` of images.
        mean: The mean :math:`\mu` of the features, with shape :math:`(D)` in float64.
        scatter: The sum :math:`S` of centered products, with shape :math:`(D, D)` in float64.
        convention: How the images were resized, `tf` or `torch`.
        weights: The checksum of the weights of the network.
        data: The name of the data set.
        split: The part of it.

    Example:
        >>> x = torch.randn(100, 3)
        >>> shards = [Statistics.of(part, "tf", "0123abcd") for part in x.split(40)]
        >>> whole = shards[0].merge(shards[1]).merge(shards[2])
        >>> torch.allclose(whole.covariance(), torch.cov(x.double().T))
        True
        >>> print(whole)
        100 images, convention tf, weights 0123abcd
    """

    count: int
    mean: Tensor
    scatter: Tensor
    convention: str
    weights: str
    data: str = ""
    split: str = ""

    @classmethod
    def of(
        cls, features: Tensor, convention: str, weights: str, data: str = "", split: str = ""
    ) -> "Statistics":
        r"""Returns the statistics of features, with shape :math:`(N, D)`."""
        x = vectors(features).detach().double()
        mean = x.mean(0)
        return cls(len(x), mean, (x - mean).T @ (x - mean), convention, weights, data, split)

    def __str__(self) -> str:
        name = " ".join(filter(None, (self.data, self.split)))
        return (
            f"{name + ': ' if name else ''}{self.count:,} images, convention {self.convention},"
            f" weights {self.weights[:8]}"
        )

    def covariance(self) -> Tensor:
        r"""Returns the covariance :math:`S / (n - 1)`."""
        if self.count < 2:
            raise ValueError(f"expected 2 images or more for a covariance, got {self.count}")
        return self.scatter / (self.count - 1)

    def merge(self, other: "Statistics") -> "Statistics":
        r"""Returns the statistics of two shards of a set together, exact up to rounding."""
        alike(self, other, TEXTS)
        n = self.count + other.count
        shift = other.mean - self.mean
        return replace(
            self,
            count=n,
            mean=self.mean + other.count / n * shift,
            scatter=self.scatter
            + other.scatter
            + torch.outer(shift, shift) * (self.count / n * other.count),
        )

    def save(self, path: Path) -> None:
        r"""Writes a safetensors file, whole or not at all."""
        texts = {name: getattr(self, name) for name in TEXTS} | {"count": str(self.count)}
        write_bytes(path, save({"mean": self.mean, "scatter": self.scatter}, texts))

    @classmethod
    def load(cls, path: Path) -> "Statistics":
        r"""Reads a file that `save` wrote."""
        try:
            open_regular(path, LONGEST).close()  # no pipe, no device
            with safe_open(path, "pt") as file:
                texts, keys = file.metadata() or {}, set(file.keys())
                if keys != {"mean", "scatter"} or texts.keys() != {*TEXTS, "count"}:
                    got = ", ".join(sorted(keys | texts.keys())) or "nothing"
                    raise ValueError(f"{path}: expected statistics of features, got {got}")
                mean, scatter = file.get_tensor("mean"), file.get_tensor("scatter")
        except SafetensorError as error:
            raise ValueError(f"{path}: expected a whole safetensors file: {error}") from None
        count = int(texts.pop("count"))
        return cls(count, mean, scatter, **texts)


def vectors(x: Tensor) -> Tensor:
    r"""Returns `x` if it is a finite batch of features :math:`(N, D)`."""
    if checks.points(x, "features").ndim != 2:
        raise ValueError(
            "expected features of shape (N, D), or images of torch.uint8,"
            f" got {x.dtype} of shape {tuple(x.shape)}"
        )
    return x


def is_features(x: object) -> bool:
    r"""Returns whether `x` is meant as features, and not as images."""
    return isinstance(x, Tensor) and x.is_floating_point()


def alike(a: Statistics, b: Statistics, texts: tuple[str, ...]) -> None:
    r"""Raises unless two statistics can be told together."""
    for name in texts:
        first, second = getattr(a, name), getattr(b, name)
        if first != second:
            raise ValueError(f"expected statistics of equal {name}, got {first!r} and {second!r}")
    if a.mean.shape != b.mean.shape:
        raise ValueError(
            f"expected features of one dimension, got {len(a.mean)} and {len(b.mean)} coordinates"
        )


def statistics(
    extractor: Extractor, images: Tensor, data: str = "", split: str = "", batch: int = 64
) -> Statistics:
    r"""Returns the statistics of images, on the CPU, without ever holding all features.

    Arguments:
        extractor: The network.
        images: The images, bytes of shape :math:`(N, 3, H, W)` or, grey, :math:`(N, 1, H, W)`.
        data: The name of the data set.
        split: The part of it.
        batch: The number of images at once.
    """
    total = reduce(
        Statistics.merge,
        (
            Statistics.of(part, extractor.convention, extractor.weights, data, split)
            for part in extractor.stream(images, batch)
        ),
    )
    return replace(total, mean=total.mean.cpu(), scatter=total.scatter.cpu())


def root(c: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns the roots of the eigenvalues of a covariance, and its eigenvectors in columns."""
    values, q = torch.linalg.eigh(c)
    low, high = float(values[0]), float(values[-1])
    if low < -NEGLIGIBLE * abs(high):
        raise ValueError(
            f"expected a covariance, with eigenvalues >= 0, got one of {low:.3g} (largest"
            f" {high:.3g})"
        )
    return values.clamp(min=0).sqrt(), q


def frechet(mean1: Tensor, c1: Tensor, mean2: Tensor, c2: Tensor) -> float:
    r"""Returns the squared Fréchet distance of two Gaussians, in float64.

    Arguments:
        mean1: The mean of the first, with shape :math:`(D)`.
        c1: The covariance of the first, with shape :math:`(D, D)`, singular or not.
        mean2: The mean of the second.
        c2: The covariance of the second.

    Example:
        >>> frechet(torch.zeros(2), torch.eye(2), torch.ones(2), 4 * torch.eye(2))
        4.0000
    """
    mean1, c1, mean2, c2 = (t.double() for t in (mean1, c1, mean2, c2))
    (r1, q1), (r2, q2) = root(c1), root(c2)
    shared = torch.linalg.svdvals(r1[:, None] * (q1.T @ q2) * r2).sum()
    distance = (mean1 - mean2).square().sum() + c1.trace() + c2.trace() - 2 * shared
    return max(float(distance), 0.0)


def kernel_distance(
    x: Tensor,
    y: Tensor,
    subset: int = 1000,
    subsets: int = 100,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    r"""Returns the mean and the std, over random subsets, of the kernel distance of features.

    Arguments:
        x: Features, with shape :math:`(N, D)`.
        y: Features, with shape :math:`(M, D)`.
        subset: The number of features of each set in a subset, drawn without replacement.
        subsets: The number of subsets.
        generator: The source of randomness, on the CPU.
    """
    checks.positive_integer(subset=subset, subsets=subsets)
    if not 2 <= subset <= min(len(vectors(x)), len(vectors(y))):
        raise ValueError(
            f"expected subset from 2 to the fewer of {len(x)} and {len(y)} features, got {subset}"
        )
    kernel = lambda a, b: (a @ b.T / a.shape[1] + 1) ** 3
    draw = lambda z: z[torch.randperm(len(z), generator=generator)[:subset].to(z.device)].double()
    apart = lambda k: (k.sum() - k.trace()) / (subset * (subset - 1))
    values = []
    for _ in range(subsets):
        a, b = draw(x), draw(y)
        values.append(apart(kernel(a, a)) + apart(kernel(b, b)) - 2 * kernel(a, b).mean())
    estimate = torch.stack(values)
    return float(estimate.mean()), float(estimate.std(correction=0))


class FID(NamedTuple):
    r"""A Fréchet inception distance, and what it depends on."""

    value: float
    counts: tuple[int, int]  # of images
    convention: str
    weights: str  # checksum

    def __str__(self) -> str:
        return f"FID {self.value:.4g} ({told(*self[1:])})"


class KID(NamedTuple):
    r"""A kernel inception distance, and what it depends on."""

    mean: float  # over the subsets
    std: float
    counts: tuple[int, int]  # of images
    convention: str
    weights: str  # checksum
    subset: int
    subsets: int

    def __str__(self) -> str:
        return (
            f"KID {self.mean:.3g} ± {self.std:.2g} ({self.subsets} subsets of {self.subset:,},"
            f" {told(*self[2:5])})"
        )


def told(counts: tuple[int, int], convention: str, weights: str) -> str:
    first, second = counts
    other = "" if weights == PUBLISHED else ", not those of 2015-12-05"
    return (
        f"{first:,} and {second:,} images, convention {convention}, weights {weights[:8]}{other}"
    )


def fid_between(
    x: Tensor | Statistics,
    y: Tensor | Statistics,
    extractor: Extractor | None = None,
    batch: int = 64,
) -> FID:
    r"""Returns the Fréchet inception distance of two sets.

    Arguments:
        x: Images, bytes of shape :math:`(N, 3, H, W)` or :math:`(N, 1, H, W)`; or the features of
            the extractor, :math:`(N, D)` and floating; or statistics.
        y: As `x`.
        extractor: The network. If `None`, that of `load_inception`, convention `tf`, on the CPU.
        batch: The number of images at once.
    """

    def moments(z: Tensor | Statistics) -> Statistics:
        nonlocal extractor
        if isinstance(z, Statistics):
            return z
        extractor = load_inception() if extractor is None else extractor
        if is_features(z):
            return Statistics.of(z.cpu(), extractor.convention, extractor.weights)
        return statistics(extractor, z, batch=batch)

    a, b = moments(x), moments(y)
    alike(a, b, ("convention", "weights"))
    value = frechet(a.mean, a.covariance(), b.mean, b.covariance())
    return FID(value, (a.count, b.count), a.convention, a.weights)


def kid_between(
    x: Tensor,
    y: Tensor,
    extractor: Extractor | None = None,
    subset: int = 1000,
    subsets: int = 100,
    seed: int = 0,
    batch: int = 64,
) -> KID:
    r"""Returns the kernel inception distance of two sets.

    Arguments:
        x: Images, bytes of shape :math:`(N, 3, H, W)` or :math:`(N, 1, H, W)`; or the features of
            the extractor, :math:`(N, D)` and floating.
        y: As `x`.
        extractor: The network. If `None`, that of `load_inception`, convention `tf`, on the CPU.
        subset: The number of images of each set in a subset.
        subsets: The number of subsets.
        seed: The seed of the subsets.
        batch: The number of images at once.
    """
    extractor = load_inception() if extractor is None else extractor
    a, b = (z if is_features(z) else extractor.features(z, batch) for z in (x, y))
    generator = torch.Generator().manual_seed(seed)
    mean, std = kernel_distance(a, b, subset, subsets, generator)
    counts = len(a), len(b)
    return KID(mean, std, counts, extractor.convention, extractor.weights, subset, subsets)
