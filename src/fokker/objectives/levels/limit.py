r"""The limit of no step: denoising score matching.

As :math:`\delta \to 0` the contrast :math:`[E(y) - E(z)] / \delta` becomes :math:`-\tfrac{1}{2}
\Delta E(y)`. With Stein's identity, :math:`\mathbb{E} \, \Delta E(y) = \mathbb{E} \, \varepsilon
\cdot \nabla E(y) / \sigma`, the divergence becomes :math:`\mathbb{E} \, \tfrac{1}{2} \|\nabla
E(y)\|^2 - \varepsilon \cdot \nabla E(y) / \sigma`, which is, up to a constant,

.. math:: L = \tfrac{1}{2} \, \mathbb{E} \, \|\nabla E(y) - \varepsilon / \sigma\|^2 .

It has no bias, and the least variance of all forms with second derivatives: the noise of the step
is averaged out (`fokker.objectives.levels`). Its parameter gradient differentiates
:math:`\nabla E` again, so the network must allow a double backward, which takes two to three times
the memory of a plain step.
"""

__all__ = ["Limit"]

import torch

from dataclasses import dataclass

from .form import Ask, Form, Pair, Terms
from ...derivatives import gradient
from ...shapes import align, dot


@dataclass(frozen=True)
class Limit(Form):
    r"""Creates the limit :math:`\delta \to 0`, denoising score matching."""

    @property
    def passes(self) -> float:
        return 6.0

    def terms(self, energy: Ask, pair: Pair, generator: torch.Generator | None) -> Terms:
        y, eps = pair.noisy(generator)
        e, g = gradient(lambda p: energy(p, pair.level), y)
        miss = g - eps / align(pair.sigma, y)
        return Terms(dot(miss, miss) / 2, e.detach(), y)
