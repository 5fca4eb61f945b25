r"""Planar sets: the 2-D densities that energy-based models are tried on.

Every set is a law of blurred curves (`fokker.data.curves`), sampled and evaluated exactly: the
density and the score are known, and with them the optimum of score matching,
:math:`-\frac{1}{2} \mathbb{E} \|\nabla \log p\|^2`, and the true Fisher and KL divergences of
a model.

================  ================  ==============================================  ===========
name              class             curves, before the scale                        noise
================  ================  ==============================================  ===========
``swissroll``     `SwissRoll`       a spiral of 1.5 turns                           0.2
``circles``       `Circles`         circles of radii 3 and 1.5                      0.24
``rings``         `Rings`           circles of radii 3, 2.25, 1.5 and 0.75          0.08
``moons``         `Moons`           two half circles of radius 2                    0.2
``8gaussians``    `EightGaussians`  eight points at radius 4 / 1.414                0.5 / 1.414
``2spirals``      `TwoSpirals`      two spirals of 1.5 turns, a box of width 1/6    0.1
``checkerboard``  `Checkerboard`    eight squares of side 2                         0
``pinwheel``      `Pinwheel`        five arms                                       0.2
================  ================  ==============================================  ===========

Points are independent: their branch is random, where the original code splits a batch in equal
parts and spaces the points of a circle evenly. The default scale is 1/4, at which the optima agree
with the paper's table wherever training is easy; the paper states none.

References:
    | FFJORD: Free-form Continuous Dynamics for Scalable Reversible Generative Models (Grathwohl
    | et al., 2019), https://arxiv.org/abs/1810.01367, whose sets and constants these are
"""

__all__ = [
    "PLANAR",
    "Checkerboard",
    "Circles",
    "EightGaussians",
    "Moons",
    "Pinwheel",
    "Planar",
    "Rings",
    "SwissRoll",
    "TwoSpirals",
    "toy",
]

import difflib
import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, ClassVar

from .curves import Planar


def polar(radius: Tensor | float, angle: Tensor) -> Tensor:
    r"""Returns the points of given radius and angle, with shape :math:`(B, 2)`."""
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)


@dataclass(frozen=True)
class SwissRoll(Planar):
    r"""Creates the swiss roll, :math:`c(t) = (t \cos t, t \sin t) / 5`."""

    noise: float = 0.2

    span: ClassVar = (1.5 * math.pi, 4.5 * math.pi)

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return polar(t, t) / 5


@dataclass(frozen=True)
class Circles(Planar):
    r"""Creates two circles, of radii 3 and 1.5."""

    noise: float = 0.24

    branches: ClassVar = 2

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return polar(3 - 1.5 * k, t)


@dataclass(frozen=True)
class Rings(Planar):
    r"""Creates four circles, of radii 3, 2.25, 1.5 and 0.75."""

    noise: float = 0.08

    branches: ClassVar = 4

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return polar(3 - 0.75 * k, t)


@dataclass(frozen=True)
class Moons(Planar):
    r"""Creates two half moons, :math:`2 (\cos t, \sin t)` and
    :math:`2 (1 - \cos t, 1/2 - \sin t)`, both shifted by :math:`(-1, -0.2)`."""

    noise: float = 0.2

    branches: ClassVar = 2
    span: ClassVar = (0.0, math.pi)

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        x, y = polar(2 * (1 - 2 * k), t).unbind(-1)
        return torch.stack((x + 2 * k - 1, y + k - 0.2), dim=-1)


@dataclass(frozen=True)
class EightGaussians(Planar):
    r"""Creates a ring of eight Gaussians, of radius 4 / 1.414 and std 0.5 / 1.414."""

    noise: float = 0.5 / 1.414

    branches: ClassVar = 8
    span: ClassVar = (0.0, 0.0)

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return polar(4 / 1.414, math.pi / 4 * k)


@dataclass(frozen=True)
class TwoSpirals(Planar):
    r"""Creates two spirals, :math:`c(t) = \pm (1/4 - t \cos t, 1/4 + t \sin t) / 3`, with
    :math:`t = 3 \pi \sqrt{u}` and u uniform.

    The original adds :math:`\mathcal{U}(0, 1/2)` to the coordinates before the sign and the
    division: here its mean is part of the curve and the rest is the box, of width 1/6.
    """

    noise: float = 0.1

    branches: ClassVar = 2
    span: ClassVar = (0.0, 3 * math.pi)
    width: ClassVar = 1 / 6

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return (1 - 2 * k)[..., None] * (polar(t, math.pi - t) + 0.25) / 3

    def law(self, t: Tensor) -> Tensor:
        return t

    def draw(self, n: int, **options: Any) -> Tensor:
        return 3 * math.pi * torch.sqrt(torch.rand(n, **options))


@dataclass(frozen=True)
class Checkerboard(Planar):
    r"""Creates a checkerboard, uniform on eight squares of side 2 in :math:`[-4, 4]^2`.

    Arguments:
        scale: The factor :math:`a > 0` of every point.
        noise: The std :math:`s \geq 0` of the Gaussian noise before the scale. At 0, the original,
            the density jumps and has no score at the edges.
    """

    noise: float = 0.0

    branches: ClassVar = 8
    span: ClassVar = (0.0, 0.0)
    width: ClassVar = 2.0

    def check_noise(self) -> None:
        number = isinstance(self.noise, (int, float)) and math.isfinite(self.noise)
        if not (number and self.noise >= 0):
            raise ValueError(f"expected noise to be a finite number >= 0, got {self.noise!r}")

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        column = torch.floor(k / 2)
        return torch.stack((2 * column - 3, 1 + 2 * (column % 2) - 4 * (k % 2)), dim=-1)


@dataclass(frozen=True)
class Pinwheel(Planar):
    r"""Creates a pinwheel of five arms,
    :math:`c_k(t) = 2 t \, (\cos \theta, -\sin \theta)` with
    :math:`\theta = 2 \pi k / 5 + e^t / 4` and :math:`t \sim \mathcal{N}(1, 0.3^2)`.

    **An assumption.** The original adds its noise across the arm, of std 0.2, before the rotation
    by :math:`\theta`, which folds the plane: along the folds its density is infinite, so that it
    has no finite Fisher information, hence no optimum of score matching. Here the noise is
    isotropic, of the same std, and comes after the rotation. The nodes stop at 7 stds of t, which
    leaves out a mass of 3e-12.
    """

    noise: float = 0.2

    branches: ClassVar = 5
    span: ClassVar = (1 - 7 * 0.3, 1 + 7 * 0.3)

    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        return polar(2 * t, -2 * math.pi / 5 * k - torch.exp(t) / 4)

    def law(self, t: Tensor) -> Tensor:
        return torch.exp(-(((t - 1) / 0.3) ** 2) / 2)

    def draw(self, n: int, **options: Any) -> Tensor:
        return 1 + 0.3 * torch.randn(n, **options)


PLANAR: dict[str, type[Planar]] = {
    "swissroll": SwissRoll,
    "circles": Circles,
    "rings": Rings,
    "moons": Moons,
    "8gaussians": EightGaussians,
    "2spirals": TwoSpirals,
    "checkerboard": Checkerboard,
    "pinwheel": Pinwheel,
}


def toy(name: str, **settings: float) -> Planar:
    r"""Returns a planar set by its name.

    Arguments:
        name: One of the names of `PLANAR`.
        settings: The `scale` and `noise` of the set, each its own by default.

    Example:
        >>> moons = toy("moons")
        >>> x = moons.sample(1000, torch.Generator().manual_seed(0))
        >>> moons.log_density(x).shape, moons.score(x).shape
        (torch.Size([1000]), torch.Size([1000, 2]))
        >>> round(moons.optimum(), 1)
        -207.5
    """
    if name not in PLANAR:
        near = difflib.get_close_matches(str(name), PLANAR, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"expected a planar set, one of {', '.join(PLANAR)}, got {name!r};"
            f" did you mean {near!r}?"
        )
    return PLANAR[name](**settings)
