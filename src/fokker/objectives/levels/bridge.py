r"""The finite step by a bridge: its contrast without its noise.

**The step averaged over its noise.** Given x and z, the point between them is a Gaussian bridge,

.. math::
    y = z - \delta u - \sqrt{\beta} \, \zeta, \qquad \beta = \delta \sigma^2 / \sigma_z^2 ,

with :math:`\zeta` standard normal and *independent of (x, z)*. The evolved energy has the gradient
:math:`\partial E^{(\delta)}(z) = \mathbb{E}_{q(x' | z)} \, \partial E(x')` with :math:`q(x' | z)
\propto e^{-E(x') - \|z - x'\|^2 / 2 \delta}`, so that of the exact divergence is

.. math:: \mathbb{E} \, \big[ \partial E(y) - \mathbb{E}_{q(x' | z)} \, \partial E(x') \big] .

**One draw, and its mirror image.** By Tweedie's formula the mean of y given z is :math:`z - \delta
\nabla E(z)`, where E is the energy of z. With

.. math::
    a = z - \delta \nabla E(z) - \sqrt{\beta} \, \zeta, \qquad m = u - \nabla E(z), \qquad
    y = a - \delta m,

driven by the same :math:`\zeta`, a is a draw with this mean. It lacks a part of the covariance of
y, :math:`\delta^2 \, \mathrm{Cov}(u | z)`, and against it the expected gradient at the truth would
be :math:`\tfrac{\delta}{2} \, \mathbb{E} \, \mathrm{tr}(\partial \nabla^2 E \, \mathrm{Cov}(u |
z))`. The mirror image of y in the mean of the model has, at the truth, mean and covariance of y,
whatever the data. It is :math:`y' = a + \delta m` with :math:`-\zeta` for :math:`\zeta`, which has
the same law. It is twice as far from the data as the model is, so

.. math:: L = \frac{E(y) - E(y')}{2 \delta}, \qquad \mathbb{E} \, \partial L = - \frac{\delta^2}{6}
    \, \mathbb{E} \, \big[ m \otimes m \otimes m \cdot \partial \nabla^3 E(a) \big] + O(\delta^4)

at the truth, with y, y' held fixed, and E asked at :math:`\sigma_z`. The two points differ by the
miss m alone, so the noise of the contrast, of order :math:`D / \delta`, is not there. On Gaussian
data of any covariance the stationary point is exact, for any step.

**Rounding.** The two energies differ by :math:`2 \delta \, m \cdot \nabla E`, which is divided by
:math:`2 \delta`. For a short step in bfloat16 their rounding is then most of the noise of the
gradient. So the two points are moved apart, to :math:`a \mp h m` with :math:`h = \max(\delta,
\lambda \sigma_z^2)`:

.. math:: L = \frac{E(a - h m) - E(a + h m)}{2 h} .

The expected gradient is the same up to third moments of m, with :math:`h^2` in the place of
:math:`\delta^2`. :math:`\lambda = 0` leaves the points where they are. As :math:`\delta \to 0` the
point a becomes z, and this is `Central`.

**Weighted draws.** M draws of a Gaussian proposal, weighted to q, estimate the evolved energy
itself, and with it the exact divergence as M grows. E is then the energy of *y*. Its Laplace
approximation with the curvature :math:`1 / \sigma^2` of the noise has the variance
:math:`\beta` of the bridge, so the two can share their noise:

.. math::
    \tilde x_k = z - \beta \nabla E(z) - \sqrt{\beta} \, \zeta_k, \qquad
    L = \frac{1}{\delta} \Big[ \frac{1}{M} \sum_k E(y_k) + \log \frac{1}{M} \sum_k
    e^{-E(\tilde x_k) - \|z - \tilde x_k\|^2 / 2 \delta + \|\zeta_k\|^2 / 2} \Big] ,

which is least where E is the energy of y as :math:`M \to \infty`, for any step. The points are not
moved apart here.
"""

__all__ = ["Bridge"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor

from .form import Ask, Form, Pair, Terms, normal
from ... import checks
from ...derivatives import gradient, value
from ...shapes import align


@dataclass(frozen=True)
class Bridge(Form):
    r"""Creates the finite step by a bridge, with one derivative.

    Keep :math:`r \leq 0.1` with one draw: at 0.2 its expected Jacobian at the truth can be
    indefinite in thousands of dimensions.

    Arguments:
        step: The share :math:`r = \delta / \sigma^2` of the step; a `Grid` has its own.
        draws: The number M of weighted draws.
        shift: The least distance :math:`\lambda = h / \sigma_z^2` of a point from a, with one
            draw, against rounding; zero for none.
    """

    step: float = 0.02  # pyright: ignore[reportIncompatibleVariableOverride]
    draws: int = 1
    shift: float = 0.25

    def __post_init__(self) -> None:
        checks.positive(step=self.step)
        checks.positive_integer(draws=self.draws)
        checks.not_negative(shift=self.shift)

    @property
    def reach(self) -> float:
        return 1.0 if self.draws == 1 else 0.0

    @property
    def tied(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""Whether z has the learned level, as it has with one draw."""
        return self.draws == 1

    @property
    def passes(self) -> float:
        return 2.0 + 6.0 * self.draws

    def terms(self, energy: Ask, pair: Pair, generator: torch.Generator | None) -> Terms:
        at_level = lambda p: energy(p, pair.level)
        with torch.no_grad():
            z, u = pair.bridge(generator)
            e, g = gradient(at_level, z)
        if self.draws > 1:
            return Terms(self.weighted(energy, pair, z, u, g, generator), e)
        delta, beta = pair.delta, pair.delta * (pair.sigma / pair.end) ** 2
        h = torch.maximum(delta, self.shift * pair.end**2)
        a = z - align(delta, z) * g - align(torch.sqrt(beta), z) * normal(z, generator)
        move = align(h, z) * (u - g)
        return Terms((value(at_level, a - move) - value(at_level, a + move)) / (2 * h), e, z)

    def weighted(
        self,
        energy: Ask,
        pair: Pair,
        z: Tensor,
        u: Tensor,
        g: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        r"""Returns the loss of each row by M weighted draws, from z, u and the gradient at z."""
        M, delta = self.draws, pair.delta
        beta = align(delta * (pair.sigma / pair.end) ** 2, z)
        shape = (M, *z.shape)
        zeta = torch.randn(shape, generator=generator, dtype=z.dtype, device=z.device)
        noise = torch.sqrt(beta) * zeta
        ends = torch.cat([z - align(delta, z) * u - noise, z - beta * g - noise]).flatten(0, 1)
        e = value(lambda p: energy(p, pair.level.repeat(2 * M)), ends).unflatten(0, (2, M, -1))
        squares = lambda points: points.square().flatten(2).sum(2)
        proposed = squares(zeta) / 2 - squares(beta * g + noise) / (2 * delta)
        evolved = -torch.logsumexp(proposed - e[1], 0) + math.log(M)
        return (e[0].mean(0) - evolved) / delta
