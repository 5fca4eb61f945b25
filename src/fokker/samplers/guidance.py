r"""Guidance by a worse energy of the same data.

A good energy E and a worse one :math:`E_g`, smaller or trained for less long, err alike, the worse
one more. So what leads from the worse to the good one leads on, towards the data:

.. math:: E_w = E_g + w \, (E - E_g) = w E - (w - 1) E_g, \qquad
    p_w \propto p \left( \frac{p}{p_g} \right)^{w - 1}, \qquad w \geq 1 .

At w = 1 it is E itself; beyond, points lose that the worse energy finds likelier than the good
one. Gradients add up in the same way, and so do denoisers.

Two things to know. :math:`E_w` at two levels is not one law with two amounts of noise, so what a
flow of it draws is near :math:`p_w` but not of it; a `Corrector` accepts by :math:`E_w` itself,
for which there must be energies, not only scores. And where the guide is the wider of both,
:math:`p_w` is narrower than p: samples gain in likeness and lose in variety, until more is lost
than gained. Where it is narrower, :math:`p_w` is wider, and with a large w no density at all. How
far to go is found by trial.

References:
    | Guiding a Diffusion Model with a Bad Version of Itself (Karras et al., 2024)
    | https://arxiv.org/abs/2406.02507
"""

__all__ = ["Guided", "check_weight"]

import torch

from torch import Tensor

from .field import Conditional, slope
from .. import checks
from ..energies import Energy


def check_weight(weight: float) -> float:
    r"""Returns a weight of guidance if it is one."""
    if not (checks.number(weight) and 1 <= weight <= 1000):
        raise ValueError(f"expected a weight of guidance from 1 to 1000, got {weight!r}")
    return float(weight)


class Guided(Energy):
    r"""Creates the energy :math:`E_w(x, \sigma)`, guided away from a worse one.

    Arguments:
        energy: The good energy :math:`E(x, \sigma)`, or a denoiser.
        guide: The worse one, of the same data.
        weight: The weight w, from 1 to 1000.

    Example:
        >>> import torch
        >>> gaussian = lambda variance: lambda x, s: x.square().sum(1) / (2 * (variance + s**2))
        >>> energy = Guided(gaussian(1.0), gaussian(2.0), weight=1.5)
        >>> energy(torch.ones(1, 1), torch.tensor(0.0))  # 1.5 / 2 - 0.5 / 4
        tensor([0.6250])
    """

    weight: Tensor  # not a number: what is compiled serves all weights

    def __init__(self, energy: Conditional, guide: Conditional, weight: float) -> None:
        super().__init__()
        self.energy, self.guide = energy, guide
        self.register_buffer("weight", torch.tensor(check_weight(weight)))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        w = self.weight
        return w * self.energy(x, sigma) - (w - 1) * self.guide(x, sigma)

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`D_w = w D - (w - 1) D_g`, each by its own way."""
        w = self.weight
        towards = w * slope(self.energy, x, sigma) - (w - 1) * slope(self.guide, x, sigma)
        return x - sigma * towards

    def extra_repr(self) -> str:
        return f"weight={float(self.weight):g}"
