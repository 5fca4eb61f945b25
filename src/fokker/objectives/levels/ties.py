r"""Ties: terms that give the energies of all levels one constant.

A form leaves each level its own constant: it is blind to a term :math:`c(\sigma)` in the energy.
With z the point of the learned level, :math:`\tau = \sigma^2` and :math:`q(z | x, \sigma) =
\mathcal{N}(z; x, \sigma^2)` its density given the clean point, a tie has its minimum where the
energy is :math:`-\log p_\sigma` up to a function of z alone or of its slope in σ. With the scores
right, what is left is *one* constant for all levels. Ties add up:
`LevelDCD(..., ties=(TimeScore(), Classification()))`.

**The time score** regresses the slope of the energy in the level. In D dimensions

.. math::
    -\partial_\tau \log q(z | x, \sigma)
    = \partial_\tau \Big[ \tfrac{D}{2} \log(2 \pi \tau) + \frac{\|z - x\|^2}{2 \tau} \Big]
    = \frac{D - \|\bar\varepsilon\|^2}{2 \tau} ,

and as :math:`p_\sigma(z) = \mathbb{E}_x \, q(z | x, \sigma)`, the mean of this given z is
:math:`-\partial_\tau \log p_\sigma(z)`. So

.. math:: L_\tau = \frac{\lambda}{2 D} \, \mathbb{E} \, \big( \tau \, \partial_\tau E(z, \sigma)
    - \tfrac{1}{2} (D - \|\bar\varepsilon\|^2) \big)^2, \qquad \tau \, \partial_\tau = \tfrac{1}{2}
    \sigma \, \partial_\sigma ,

is least where :math:`\partial_\tau E = -\partial_\tau \log p_\sigma`. It differentiates the energy
twice, whatever the form.

**Classification of levels** asks which of K levels a point came from. The levels are drawn alike
around that of the pair, :math:`\log \sigma_k = \log \sigma + h \, \xi_k` with standard normal
:math:`\xi_k`, and z comes from one of them. As they are drawn alike, each is as likely to be that
one before z is seen, whatever the law of levels, and

.. math:: P(k | z) = \frac{p_{\sigma_k}(z)}{\sum_j p_{\sigma_j}(z)} :

the energies are the logits, :math:`-E(z, \sigma_k)`. All levels are densities of the same z, so no
determinant comes in; points of VP, which are shrunk, have :math:`D \log \alpha`
(`fokker.objectives.lens`). Given the clean point the answer is known,

.. math:: t_k = P(k | z, x) \propto \sigma_k^{-D} e^{-\|z - x\|^2 / 2 \sigma_k^2} , \qquad
    \mathbb{E} [t_k | z] = P(k | z) ,

so t takes the place of the label, with the same mean and less noise, and

.. math:: L = \lambda \, \mathbb{E} \sum_k t_k \big( \log t_k - \log
    \mathrm{softmax}_k(-E(z, \sigma_\cdot)) \big)

is least where :math:`E(z, \sigma) = -\log p_\sigma(z) + c(z)`. Noise of one level tells another
from it where :math:`|\Delta \log \sigma| \gg 1 / \sqrt{2 D}`, and then the answer is certain and
teaches nothing about constants: so :math:`h = s / \sqrt{2 D}`. It differentiates the energy once
and costs 3 K forward passes. As :math:`h \to 0` it tends to :math:`h^2` times the square of which
the time score is the mean.

**Rounding.** Both compare energies of one point at close levels, to fractions of a nat. Layers in
bfloat16 err by more than that at low levels: train with `--precision float32`.

References:
    | Learning Normalized Image Densities via Dual Score Matching (Guth et al., 2025)
    | https://arxiv.org/abs/2506.05310
    | Classification Diffusion Models (Yadin et al., 2024), which classifies among all levels at
      once, by one network with an output for each
    | https://arxiv.org/abs/2402.10095
"""

__all__ = ["TIES", "Classification", "Tie", "TimeScore"]

import abc
import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import ClassVar

from .form import Ask, Pair, normal
from ... import checks
from ...derivatives import value
from ...shapes import align, dimension, dot


@dataclass(frozen=True)
class Tie(abc.ABC):
    r"""Abstract tie. A subclass has a weight and writes `terms`."""

    name: ClassVar[str]  # of its diagnostic
    on_point: ClassVar[bool] = False  # whether it needs the form's own point of the learned level

    weight: float = 1.0

    def __post_init__(self) -> None:
        checks.positive(weight=self.weight)

    @abc.abstractmethod
    def terms(
        self, energy: Ask, pair: Pair, point: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        r"""Returns the loss of each row, without its weight.

        Arguments:
            energy: The energy of points at levels, :math:`(B, *), (B) \to (B)`.
            pair: The clean points and the levels.
            point: The form's points of the learned level, if it has some.
            generator: The source of randomness.
        """


@dataclass(frozen=True)
class TimeScore(Tie):
    r"""Creates the regression of the slope of the energy in the level.

    Arguments:
        weight: The weight :math:`\lambda`.
    """

    name: ClassVar[str] = "time"
    on_point: ClassVar[bool] = True

    def terms(
        self, energy: Ask, pair: Pair, point: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        assert point is not None  # as the form is tied
        # points are independent: the gradient of the sum is that of each
        slope = torch.func.grad(lambda s: energy(point, s).sum())(pair.level)
        noise = (point - pair.x) / align(pair.level, point)
        d = dimension(point)
        return (pair.level * slope - (d - dot(noise, noise))).square() / (8 * d)


@dataclass(frozen=True)
class Classification(Tie):
    r"""Creates the classification of noise levels.

    Arguments:
        weight: The weight :math:`\lambda`.
        levels: The number K of levels among which a point is classified.
        spread: Their spread s, in units of what a point can tell apart, :math:`1 / \sqrt{2 D}`.
    """

    name: ClassVar[str] = "classification"

    levels: int = 4
    spread: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(2, levels=self.levels)
        checks.positive(spread=self.spread)

    def terms(
        self, energy: Ask, pair: Pair, point: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        x, K, d = pair.x, self.levels, dimension(pair.x)
        xi = torch.randn(K, len(x), generator=generator, dtype=x.dtype, device=x.device)
        levels = pair.level * torch.exp(self.spread / math.sqrt(2 * d) * xi)  # (K, B)
        eps = normal(x, generator)
        z = x + align(levels[0], x) * eps
        # of the density given x, relative to the level that made z: no difference of large numbers
        ratio = levels[0] / levels
        known = d * torch.log(ratio) - dot(eps, eps) * (ratio.square() - 1) / 2
        rows = z.repeat(K, *(1,) * (z.ndim - 1))
        e = value(lambda p: energy(p, levels.flatten()), rows).unflatten(0, (K, -1))
        target, found = torch.log_softmax(known, 0), torch.log_softmax(-e, 0)
        return (target.exp() * (target - found)).sum(0)


# by the names under which they are saved
TIES: dict[str, type[Tie]] = {"time-score": TimeScore, "classification": Classification}
