r"""The limit by a central difference, with one derivative.

The parameter gradient of the limit is :math:`\partial \nabla E(y) \cdot m` with the miss
:math:`m = \nabla E(y) - \varepsilon / \sigma`. That is a derivative of the energy along m, and a
derivative along a direction is a difference of two energies. With m held fixed,

.. math::
    L = \frac{E(y + h m) - E(y - h m)}{2 h}, \qquad
    \partial_\theta L = m \cdot \partial_\theta \nabla E(y) + \tfrac{h^2}{6} \, m \otimes m \otimes
    m \cdot \nabla^3 \partial_\theta E + O(h^4) .

The value of the loss says nothing; its gradient is that of the limit. m is taken without a graph,
and then E is differentiated once, so the network may have layers with one derivative, such as
fused attention. The shift :math:`h = \lambda \sigma^2` moves a pixel by :math:`\lambda` times the
error of the denoiser, since :math:`\sigma^2 m` is that error: small against what a network
resolves, and large against the rounding of bfloat16, whose noise falls as :math:`1 / h^2`
(`studies.variance`). The expected gradient at the truth is of order :math:`h^2` and involves third
moments only.
"""

__all__ = ["Central"]

import torch

from dataclasses import dataclass

from .form import Ask, Form, Pair, Terms
from ... import checks
from ...derivatives import gradient, value
from ...shapes import align


@dataclass(frozen=True)
class Central(Form):
    r"""Creates the limit without a second derivative.

    Arguments:
        shift: The shift :math:`\lambda > 0` of a point, as a share of the denoiser's error.
    """

    shift: float = 0.25

    def __post_init__(self) -> None:
        checks.positive(shift=self.shift)

    @property
    def passes(self) -> float:
        return 8.0

    def terms(self, energy: Ask, pair: Pair, generator: torch.Generator | None) -> Terms:
        y, eps = pair.noisy(generator)
        at_level = lambda p: energy(p, pair.level)
        with torch.no_grad():
            e, g = gradient(at_level, y)
            h = self.shift * pair.sigma**2
            move = align(h, y) * (g - eps / align(pair.sigma, y))
        return Terms((value(at_level, y + move) - value(at_level, y - move)) / (2 * h), e, y)
