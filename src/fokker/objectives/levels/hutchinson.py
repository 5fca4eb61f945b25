r"""The paper's finite step: bracket at the end, Laplacian by Hutchinson's estimator.

One Taylor step of the energy, as in the paper's Algorithm 1 with its errata, gives

.. math::
    L = \mathbb{E} \, \tfrac{1}{2} \big[ \|\nabla E(z)\|^2 - v^\top \nabla^2 E(z) \, v \big]
    + \tfrac{1}{\delta} \, \mathbb{E} \big[ E(y) - E(z) \big]

with a random sign in each coordinate of v. It learns the density of z. The contrast has its full
noise, of variance :math:`\|\nabla E\|^2 / \delta`.

**How long a step may be.** The divergence itself is right for any step, but the Taylor step is
not, and in many dimensions it fails long before :math:`\delta` is comparable to :math:`\sigma^2`.
Noise of level σ has a norm of :math:`\sigma \sqrt{D} \, (1 \pm 1 / \sqrt{2 D})`, so once
:math:`r \gg 1 / \sqrt{D}` the points y and z lie on different shells: the contrast asks for the
energy where the bracket, which is taken at z, no longer sees its slope. For noise alone (the data
a point) the minimizer is radial; with F the distribution function of the norm and f its density,

.. math::
    E'(\rho) = \frac{\rho}{2 \sigma_z^2} + \frac{F_y(\rho) - F_z(\rho)}{\delta \, f_z(\rho)} ,

where the truth is :math:`\rho / \sigma_z^2`. On 28×28 grey images the paper's r = 0.2 gives 0.69
of it at the median norm and 0.60 at one deviation above; r = 0.05 is off by 22 % at one deviation,
and it takes :math:`r = 0.1 / \sqrt{D}` to come within 3 %.

A sampler that goes down through the levels does not forget such an error. With
:math:`f(\rho, \sigma)` the slope over the true one, the probability flow of noise alone is
:math:`d \log \rho = f \, d \log \sigma`: where f falls with :math:`\rho`, too much noise makes for
more. In 3,072 dimensions, 32×32 color, r = 0.2 has f = 0.60 at the median norm and less above it:
from level 80 to 0.01, half of all samples keep more than thirty times the noise of their level,
whatever the network.

**Its limit**, a step of zero, is the score matching of noisy data, :math:`\mathbb{E} \,
\tfrac{1}{2} \|\nabla E(y)\|^2 - v^\top \nabla^2 E(y) \, v`.
"""

__all__ = ["Hutchinson"]

import torch

from dataclasses import dataclass

from .form import Ask, Form, Pair, Terms, normal
from ... import checks, derivatives
from ...derivatives import value
from ...shapes import align, dot


@dataclass(frozen=True)
class Hutchinson(Form):
    r"""Creates the paper's form, one Taylor step with Hutchinson's Laplacian at its end.

    Arguments:
        step: The share :math:`r = \delta / \sigma^2` of the step; a `Grid` has its own. Zero for
            the limit, on a `Grid` too.
    """

    step: float = 0.2  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        checks.not_negative(step=self.step)

    @property
    def reach(self) -> float:
        return 1.0 if self.step else 0.0

    @property
    def passes(self) -> float:
        return 15.0 if self.step else 12.0

    def terms(self, energy: Ask, pair: Pair, generator: torch.Generator | None) -> Terms:
        y, _ = pair.noisy(generator)
        z = y + align(torch.sqrt(pair.delta), y) * normal(y, generator) if self.step else y
        at_level = lambda p: energy(p, pair.level)
        e, g, laplacian = derivatives.Hutchinson()(at_level, z, generator)
        contrast = (value(at_level, y) - e) / pair.delta if self.step else -laplacian / 2
        return Terms((dot(g, g) - laplacian) / 2 + contrast, e.detach(), z)
