r"""The divergence between noise levels: a law of levels, a weight and a form.

**The time score** ties the levels together. Every form leaves each level its own constant:
it is blind to a term :math:`c(\sigma)` in the energy. With z the point of the learned level
:math:`\sigma_z`, :math:`\tau = \sigma_z^2` and :math:`q(z | x)` the density of z given the clean
point, in D dimensions,

.. math::
    -\partial_\tau \log q(z | x)
    = \partial_\tau \Big[ \tfrac{D}{2} \log(2 \pi \tau) + \frac{\|z - x\|^2}{2 \tau} \Big]
    = \frac{D - \|\bar\varepsilon\|^2}{2 \tau} ,

and as :math:`p_\tau(z) = \mathbb{E}_x \, q(z | x)`, the mean of this given z is
:math:`-\partial_\tau \log p_\tau(z)`. So the regression

.. math:: L_\tau = \frac{\lambda}{2 D} \, \mathbb{E} \, \big( \tau \, \partial_\tau E(z, \sigma_z)
    - \tfrac{1}{2} (D - \|\bar\varepsilon\|^2) \big)^2, \qquad \tau \, \partial_\tau = \tfrac{1}{2}
    \sigma_z \partial_{\sigma_z} ,

is least where :math:`\partial_\tau E = -\partial_\tau \log p_\tau`: with the scores right, the
energy is :math:`-\log p_\tau` up to *one* constant for all levels. It differentiates the energy
twice, whatever the form.

References:
    | Learning Normalized Image Densities via Dual Score Matching (Guth et al., 2025)
    | https://arxiv.org/abs/2506.05310
"""

__all__ = ["WEIGHTS", "LevelDCD", "weigh"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal

from .bridge import Bridge
from .form import Form, Pair
from ..base import Objective, Output
from ..laws import Grid, Law, draw
from ... import checks
from ...shapes import align, dimension, dot

WEIGHTS = ("one", "variance", "edm")
NAMES = ("Limit", "Central", "Bridge", "Path", "Hutchinson")


def weigh(weight: str, sigma: Tensor, sigma_data: float) -> Tensor:
    r"""Returns the weight of each level."""
    match weight:
        case "one":
            return torch.ones_like(sigma)
        case "variance":
            return sigma**2
    return sigma**2 * (1 + (sigma / sigma_data) ** 2)


@dataclass(frozen=True)
class LevelDCD(Objective):
    r"""Creates the diffusion contrastive divergence from a noise level on.

    Arguments:
        level: The standard deviation :math:`\sigma` of the noise given to the data, or its law.
            A form without a step takes the later level of each pair of a `Grid`.
        form: The estimator, with its step (`fokker.objectives.levels`).
        conditional: Whether the energy takes the level as well, E(x, σ).
        weight: The weight of a point: `one`; `variance`, the square of the learned level, with
            which the limit is the error of the noise, :math:`\tfrac{1}{2} \|\sigma \nabla E -
            \varepsilon\|^2`; or `edm`, :math:`\sigma^2 (1 + \sigma^2 / \sigma_d^2)`, which keeps
            the error of a preconditioned network of order one at high levels too.
        sigma_data: The standard deviation :math:`\sigma_d` of the data, for the weight `edm`.
        time: The weight :math:`\lambda` of the time score; none if zero.
    """

    level: Law = 0.3
    form: Form = Bridge()
    conditional: bool = False
    weight: Literal["one", "variance", "edm"] = "variance"
    sigma_data: float = 0.5
    time: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.level, float | int):
            checks.positive(level=self.level)
        checks.instance(Form, NAMES, form=self.form)
        checks.one_of(WEIGHTS, weight=self.weight)
        checks.positive(sigma_data=self.sigma_data)
        steps = self.form.step > 0 and self.form.reach == 0  # from a level that is learned
        if steps and isinstance(self.level, Grid) and self.level.low == 0:
            raise ValueError(
                f"expected a grid from a level above zero for weighted draws, got {self.level}"
            )
        checks.not_negative(time=self.time)
        if self.time and not (self.conditional and self.form.tied):
            raise ValueError(
                "expected a time score only of a conditional energy, by a form with points of its"
                f" level, got conditional={self.conditional}, form={self.form!r}"
            )

    @property
    def learned(self) -> float | None:
        r"""The level whose density is learned; `None` if the level has a law."""
        if not isinstance(self.level, float | int):
            return None
        return self.level * math.sqrt(1 + self.form.step * self.form.reach)

    def pair(self, x: Tensor, generator: torch.Generator | None) -> Pair:
        r"""Returns the data with the two levels of each row."""
        form, limit = self.form, self.form.step == 0
        if isinstance(self.level, Grid):
            sigma, end = self.level.pair(x, generator)
            sigma = end if limit else sigma
            delta = end**2 - sigma**2
        else:
            sigma = draw(self.level, x, generator).expand(len(x))
            delta = form.step * sigma**2
        return Pair(x, sigma, delta, torch.sqrt(sigma**2 + form.reach * delta))

    def compute(
        self,
        energy: Any,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        pair = self.pair(x, generator)
        ask = energy if self.conditional else lambda p, level: energy(p)
        loss, e, point = self.form.terms(ask, pair, generator)
        loss, info = weigh(self.weight, pair.level, self.sigma_data) * loss, {"energy": e.mean()}
        if self.time:
            assert point is not None  # as the form is tied
            # points are independent: the gradient of the sum is that of each
            slope = torch.func.grad(lambda s: energy(point, s).sum())(pair.level)
            noise = (point - x) / align(pair.level, x)
            d = dimension(x)
            error = (pair.level * slope - (d - dot(noise, noise))).square() / (8 * d)
            loss = loss + self.time * error
            info["time"] = error.detach().mean()
        return Output(loss.mean(), None, info)
