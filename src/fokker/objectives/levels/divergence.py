r"""The divergence between noise levels: a law of levels, a weight, a form and ties.

Every form leaves each level its own constant; ties (`fokker.objectives.levels.ties`) join them.
"""

__all__ = ["WEIGHTS", "LevelDCD", "weigh"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal

from .bridge import Bridge
from .form import Form, Pair
from .ties import Tie
from ..base import Objective, Output
from ..laws import Grid, Law, draw
from ... import checks

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
        ties: The terms that give all levels one constant, `TimeScore` or `Classification`.
    """

    level: Law = 0.3
    form: Form = Bridge()
    conditional: bool = False
    weight: Literal["one", "variance", "edm"] = "variance"
    sigma_data: float = 0.5
    ties: tuple[Tie, ...] = ()

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
        if not isinstance(self.ties, tuple):
            raise ValueError(f"expected ties to be a tuple, got {self.ties!r}")
        for tie in self.ties:
            checks.instance(Tie, ("TimeScore", "Classification"), tie=tie)
            if not self.conditional or (tie.on_point and not self.form.tied):
                raise ValueError(
                    f"expected {tie} only of a conditional energy, by a form with points of its"
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
        for tie in self.ties:
            error = tie.terms(ask, pair, point, generator)
            loss = loss + tie.weight * error
            info[tie.name] = error.detach().mean()
        return Output(loss.mean(), None, info)
