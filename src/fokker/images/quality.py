r"""How near generated images are to a set: FID and KID against statistics that are kept.

The moments of the features of a whole set, in float64, and the features of :math:`10^4` of its
images for the kernel distance are kept in the cache (`fokker.data.cache`) under the hash of the
pixels, the weights of the network and the convention: they are computed once a set.

Features of generated images are shared out over ranks (`fokker.compute.ranks`): each computes
those of its images, and their moments are merged.
"""

__all__ = ["Quality", "Reference", "described", "judge_images", "merge", "reference_of"]

import hashlib
import numpy as np
import torch

from dataclasses import dataclass, replace
from torch import Tensor
from typing import NamedTuple

from ..compute.ranks import ALONE, Ranks
from ..data import cache
from ..data.images import Images
from ..metrics.fid import FID, KID, Statistics, fid_between, kid_between, statistics
from ..metrics.inception import Extractor

VERSION = 1  # of what is kept
KERNEL = 10_000  # images whose features are kept, for the kernel distance


@dataclass(frozen=True, eq=False)
class Reference:
    r"""What is kept of a set of images."""

    statistics: Statistics  # of all images
    features: Tensor  # (M, D), of some or all


class Quality(NamedTuple):
    r"""How near images are to a set."""

    fid: FID
    kid: KID | None  # None of fewer than two images


def reference_of(images: Images, extractor: Extractor, batch: int = 64) -> Reference:
    r"""Returns what generated images are compared to, from the cache if it is there.

    Arguments:
        images: The set.
        extractor: The network.
        batch: The number of images at once.
    """
    pixels = images.pixels.cpu()
    key = hashlib.sha256(repr((VERSION, extractor.weights, extractor.convention)).encode())
    key.update(repr(tuple(pixels.shape)).encode() + pixels.numpy().tobytes())
    name = f"fid-{images.name}-{images.split}-{extractor.convention}"

    def moments() -> np.ndarray:
        found = statistics(extractor, pixels, images.name, images.split, batch)
        return torch.cat([found.mean[None], found.scatter]).numpy()

    def some() -> np.ndarray:
        rows = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[:KERNEL]
        return extractor.features(pixels[rows], batch).numpy()

    both = torch.from_numpy(cache.cached(name, key.hexdigest(), moments))
    key.update(b"features")
    features = torch.from_numpy(cache.cached(f"{name}-features", key.hexdigest(), some))
    found = Statistics(
        len(pixels),
        both[0],
        both[1:],
        extractor.convention,
        extractor.weights,
        images.name,
        images.split,
    )
    return Reference(found, features)


def described(
    pixels: Tensor, extractor: Extractor, batch: int = 64, ranks: Ranks = ALONE
) -> Reference:
    r"""Returns the moments and the features of images, on every rank.

    Arguments:
        pixels: The images, bytes (N, C, H, W), the same on every rank.
        extractor: The network.
        batch: The number of images at once.
        ranks: The ranks that share out the images.
    """
    if len(pixels) < ranks.size:
        raise ValueError(
            f"expected one image a rank or more to share out, {ranks.size}, got {len(pixels)}"
        )
    mine = ranks.among(len(pixels))
    features = ranks.each(lambda: extractor.features(pixels[mine.start : mine.stop], batch))
    statistics = ranks.each(
        lambda: Statistics.of(features, extractor.convention, extractor.weights)
    )
    return Reference(merge(statistics, ranks), ranks.collect(features))


def merge(local: Statistics, ranks: Ranks) -> Statistics:
    r"""Returns the statistics of the features of all ranks' images together, on every rank.

    Exact up to rounding: :math:`S = \sum_r S_r + n_r (\mu_r - \mu)(\mu_r - \mu)^\top`.

    Arguments:
        local: The statistics of this rank's images, one or more.
        ranks: The ranks.
    """
    if ranks.size == 1:
        return local
    sums = ranks.sum(torch.cat([local.mean.new_tensor([local.count]), local.count * local.mean]))
    center = sums[1:] / sums[0]
    shift = local.mean - center
    scatter = ranks.sum(local.scatter + local.count * torch.outer(shift, shift))
    return replace(local, count=int(sums[0]), mean=center, scatter=scatter)


def judge_images(
    images: Tensor | Reference, reference: Reference, extractor: Extractor, batch: int = 64
) -> Quality:
    r"""Returns FID and KID of images.

    Arguments:
        images: The images, bytes (N, C, H, W), or what `described` returned of them.
        reference: What they are compared to.
        extractor: The network that the reference was made with.
        batch: The number of images at once.
    """
    drawn = images if isinstance(images, Reference) else described(images, extractor, batch)
    fid = fid_between(drawn.statistics, reference.statistics)
    subset = min(1000, len(drawn.features), len(reference.features))
    kid = (
        None if subset < 2 else kid_between(drawn.features, reference.features, extractor, subset)
    )
    return Quality(fid, kid)
