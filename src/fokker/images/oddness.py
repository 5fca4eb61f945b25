r"""How odd images are to an energy of every level: out-of-distribution scores.

An image x, without noise, is shown to the energy at a few levels. Its **features** are the energy
:math:`E_k = E(x, \sigma_k)` and the norm of the score :math:`s_k = \|\nabla E(x, \sigma_k)\|`.
Higher scores are odder:

==============  ==================================================================  ============
rule            score                                                               level
==============  ==================================================================  ============
`energy`        :math:`E_k`: an unlikely image                                      each
`typicality`    :math:`|E_k - \mathrm{median} \, E_k|` over training images         each
`score`         :math:`s_k`: an image from which the density rises steeply          each
`combined`      the squared Mahalanobis distance of all :math:`(E_k, \log s_k)`     all
                from training images
==============  ==================================================================  ============

**The energy alone is a bad detector.** A density is highest at smooth images, which hold few bits,
so an energy of one set calls smooth images of another *more* likely than its own: its AUROC is
below one half there. Likelihoods of every kind fail so (Nalisnick et al., 2019). A typical image
has neither a low energy nor a high one, which the other rules use.

What a rule compares with comes from training images alone (`Usual`): never from test images, nor
from images of another set. One half of these images fits the rules; the other, kept aside, gives
the **p-value** of an image by the rule `combined`, the share of kept images that are as odd.

References:
    | Do Deep Generative Models Know What They Don't Know? (Nalisnick et al., 2019)
    | https://arxiv.org/abs/1810.09136
    | Detecting Out-of-Distribution Inputs to Deep Generative Models Using Typicality
    | (Nalisnick et al., 2019), https://arxiv.org/abs/1906.02994
    | Multiscale Score Matching for Out-of-Distribution Detection (Mahmood et al., 2021)
    | https://arxiv.org/abs/2010.13132
"""

__all__ = ["CHOSEN", "LEVELS", "RULES", "Features", "Usual", "features_of", "scores"]

import torch

from collections.abc import Sequence
from dataclasses import dataclass
from torch import Tensor
from typing import Any, NamedTuple

from .. import checks
from ..data.picture import to_float
from ..derivatives import gradient
from ..energies import Denoiser
from ..shapes import constant, dot

LEVELS = (0.03, 0.1, 0.3, 1.0)
RULES = ("energy", "typicality", "score", "combined")
CHOSEN = "combined"  # fixed before any figure was known
RIDGE = 1e-3  # added to the variances of standardized features, of one each


class Features(NamedTuple):
    r"""What an energy says of images, float64."""

    energy: Tensor  # (N, L), nats
    norm: Tensor  # (N, L), of the score

    @property
    def all(self) -> Tensor:
        r"""The energies and the logarithms of the norms, :math:`(N, 2 L)`."""
        return torch.cat([self.energy, self.norm.log()], 1)


@torch.no_grad()
def features_of(
    energy: Any,
    pixels: Tensor,
    levels: Sequence[float] = LEVELS,
    batch: int = 64,
    device: torch.device | str = "cpu",
) -> Features:
    r"""Returns the energies of images and the norms of their scores.

    Arguments:
        energy: The energy of every level.
        pixels: The images, bytes (N, C, H, W).
        levels: The levels.
        batch: The number of images at once.
        device: The device of the energy.
    """
    if isinstance(energy, Denoiser):
        raise ValueError("expected an energy, to score images, got a denoiser")
    checks.positive(**{f"levels[{k}]": s for k, s in enumerate(levels)})
    checks.positive_integer(batch=batch)
    columns = []
    for sigma in levels:
        found = []
        for part in pixels.split(batch):
            x = to_float(part.to(device))
            e, g = gradient(lambda p: energy(p, constant(sigma, p)), x)  # noqa: B023
            found.append(torch.stack([e.double(), dot(g, g).double().sqrt()], 1).cpu())
        columns.append(torch.cat(found))
    both = torch.stack(columns, 1)
    if not torch.isfinite(both).all():
        raise FloatingPointError(
            f"expected finite energies and scores, got NaN or infinity at"
            f" {int((~torch.isfinite(both)).flatten(1).any(1).sum())} of {len(both)} images"
        )
    return Features(both[..., 0], both[..., 1])


@dataclass(frozen=True, eq=False)
class Usual:
    r"""What is usual: how an energy finds images like those that it was trained on."""

    levels: tuple[float, ...]
    median: Tensor  # (L), of the energies
    mean: Tensor  # (2 L), of the features
    whiten: Tensor  # (2 L, 2 L), W with W Wᵀ the inverse covariance
    kept: Tensor  # sorted scores by the rule `combined` of images kept aside

    @classmethod
    def fit(cls, found: Features, levels: Sequence[float] = LEVELS) -> "Usual":
        r"""Returns what is usual of the features of training images.

        Arguments:
            found: Their features; the first half fits the rules, the second is kept aside.
            levels: Their levels.
        """
        count, width = len(found.energy), 2 * len(levels)
        if count < 4 * width:
            raise ValueError(
                f"expected {4 * width} images or more to know what is usual at {len(levels)}"
                f" levels, got {count}"
            )
        half = count // 2
        x = found.all[:half]
        mean, spread = x.mean(0), x.std(0).clamp_min(1e-12)
        z = (x - mean) / spread
        covariance = torch.cov(z.T) + RIDGE * torch.eye(width, dtype=z.dtype)
        factor = torch.linalg.cholesky(torch.linalg.inv(covariance))
        usual = cls(
            tuple(levels),
            found.energy[:half].median(0).values,
            mean,
            factor / spread[:, None],
            torch.zeros(0, dtype=x.dtype),
        )
        rest = Features(found.energy[half:], found.norm[half:])
        kept = usual.distance(rest).sort().values
        return cls(usual.levels, usual.median, usual.mean, usual.whiten, kept)

    def distance(self, found: Features) -> Tensor:
        r"""Returns the squared Mahalanobis distance of images from the usual, :math:`(N)`."""
        return ((found.all - self.mean) @ self.whiten).square().sum(1)

    def p_values(self, found: Features) -> Tensor:
        r"""Returns the share of images kept aside that are as odd, by the rule `combined`; of n
        such images and one more, so never below 1 / (n + 1)."""
        above = len(self.kept) - torch.searchsorted(self.kept, self.distance(found))
        return (above + 1).double() / (len(self.kept) + 1)


def scores(usual: Usual, found: Features) -> dict[tuple[str, float | None], Tensor]:
    r"""Returns the scores of images, :math:`(N)`, by the rule and the level."""
    out: dict[tuple[str, float | None], Tensor] = {}
    for k, sigma in enumerate(usual.levels):
        out["energy", sigma] = found.energy[:, k]
        out["typicality", sigma] = (found.energy[:, k] - usual.median[k]).abs()
        out["score", sigma] = found.norm[:, k]
    return {**out, ("combined", None): usual.distance(found)}
