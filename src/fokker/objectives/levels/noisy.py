r"""Objectives on data that is given noise first, and the regression of a plain denoiser."""

__all__ = ["Denoising", "Noisy"]

import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal

from .divergence import LevelDCD, weigh
from .form import normal
from ..base import WHOLE, Objective, Output, Share
from ..cd import CD
from ..laws import Law, draw
from ... import checks
from ...derivatives import EnergyLike
from ...shapes import align, dot


@dataclass(frozen=True)
class Noisy(Objective):
    r"""Creates an objective on data that is given noise first, as in the paper's denoising study.

    Arguments:
        objective: The objective.
        level: The standard deviation of the noise, or its law.
    """

    objective: Objective = CD(1, 0.018)
    level: Law = 0.3

    def __post_init__(self) -> None:
        checks.instance(Objective, ("CD(...)", "PCD(...)"), objective=self.objective)
        if isinstance(self.level, float | int):
            checks.positive(level=self.level)

    @property
    def carries(self) -> type:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""The class of the state, that of the objective."""
        return self.objective.carries

    def part(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: Any = None,
        generator: torch.Generator | None = None,
        share: Share = WHOLE,
    ) -> Output:
        sigma = draw(self.level, x, generator)
        y = x + align(sigma, x) * normal(x, generator)
        return self.objective.part(energy, y, state, generator, share)


@dataclass(frozen=True)
class Denoising(Objective):
    r"""Creates the regression of a denoiser, which need not be a gradient: no EBM, but their
    bound.

    .. math::
        L = \mathbb{E} \, \frac{w(\sigma)}{2 \sigma^4} \|D(x + \sigma \varepsilon, \sigma) -
        x\|^2 ,

    with the weight w of `LevelDCD`: for :math:`D = x - \sigma^2 \nabla E` it is its limit.

    Arguments:
        level: The standard deviation of the noise, or its law.
        weight: The weight w, see `LevelDCD`.
        sigma_data: The standard deviation of the data, for the weight `edm`.
    """

    level: Law = 0.3
    weight: Literal["one", "variance", "edm"] = "variance"
    sigma_data: float = 0.5

    def __post_init__(self) -> None:
        LevelDCD(self.level, weight=self.weight, sigma_data=self.sigma_data)

    def compute(
        self,
        energy: Any,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        sigma = draw(self.level, x, generator).expand(len(x))
        miss = energy.denoise(x + align(sigma, x) * normal(x, generator), sigma) - x
        error = dot(miss, miss)
        loss = weigh(self.weight, sigma, self.sigma_data) / (2 * sigma**4) * error
        return Output(loss.mean(), None, {"error": error.detach().mean()})
