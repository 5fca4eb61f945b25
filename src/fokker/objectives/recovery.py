r"""Recovery likelihood.

With :math:`\tilde x = x + \sigma \varepsilon`, the likelihood of recovering x from
:math:`\tilde x`,

.. math::
    p_\theta(x \mid \tilde x) \propto \exp\big( -E_\theta(x) - \|\tilde x - x\|^2 / 2 \sigma^2
    \big),

is the likelihood of an energy-based model that is easy to sample, nearly a Gaussian for small
:math:`\sigma`. Maximizing it is minimizing DCD with VE noise of variance :math:`\sigma^2`:

.. math::
    -\mathbb{E} \log p_\theta(x \mid \tilde x) = \mathrm{KL}(p_d \| p_\theta)
    - \mathrm{KL}(p_d^{(\sigma)} \| p_\theta^{(\sigma)}) + \mathrm{const} .

(:math:`x` and :math:`\tilde x` are drawn jointly, and :math:`\sigma^2 = \int g^2`; the paper has
:math:`\int g`.) Here the evolved energy is not estimated: its gradient is, by Langevin steps on
:math:`p_\theta(x \mid \tilde x)`.
"""

__all__ = ["RecoveryLikelihood"]

import torch

from dataclasses import dataclass
from torch import Tensor

from .base import Objective, Output
from .cd import contrast, langevin
from .laws import LogUniform, draw
from .. import checks
from ..derivatives import EnergyLike
from ..shapes import align, dot


@dataclass(frozen=True)
class RecoveryLikelihood(Objective):
    r"""Creates the recovery likelihood, maximized with short Langevin chains from
    :math:`\tilde x`.

    Bias: that of chains of k steps of size :math:`h = b^2 \sigma^2` that start at :math:`\tilde x`
    instead of in :math:`p_\theta(x \mid \tilde x)`; it goes to zero with b small and k b² large.
    The chains are stable only if :math:`h \, (1 / \sigma^2 + \lambda) < 4`, with :math:`\lambda`
    the largest curvature of E: :math:`\sigma` must not be far above the finest scale of the data.

    References:
        | Learning Energy-Based Models by Diffusion Recovery Likelihood (Gao et al., 2021)
        | https://arxiv.org/abs/2012.08125

    Arguments:
        sigma: The standard deviation of the noise, or its law (one a point): the *diffusion*
            recovery likelihood of an energy that does not depend on the time.
        steps: The number k of Langevin steps.
        stride: The std b of the noise of a step in units of :math:`\sigma`, at most 1: the step
            size is :math:`h = b^2 \sigma^2`.
    """

    sigma: float | LogUniform = 0.05
    steps: int = 30
    stride: float = 0.3

    def __post_init__(self) -> None:
        if not isinstance(self.sigma, LogUniform):
            checks.positive(sigma=self.sigma)
        checks.positive_integer(steps=self.steps)
        checks.positive(stride=self.stride)
        checks.between(0, 1, stride=self.stride)

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        sigma = draw(self.sigma, x, generator)
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        noisy = x + align(sigma, x) * eps

        def conditional(y: Tensor) -> Tensor:
            shift = (y - noisy) / align(sigma, x)
            return energy(y) + dot(shift, shift) / 2

        model = langevin(conditional, noisy, self.steps, self.stride**2 * sigma**2, generator)
        loss, info = contrast(energy, x, model)
        return Output(loss, None, info)
