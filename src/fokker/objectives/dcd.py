r"""Diffusion contrastive divergence.

Data and model are carried by one diffusion, which brings them closer; the divergence is how much:

.. math::
    D_{DCD}(p_d, p_\theta) = \mathrm{KL}(p_d \| p_\theta) - \mathrm{KL}(p_d^{(T)} \|
    p_\theta^{(T)}) = \tfrac{1}{2} \int_0^T G^2 \, \mathbb{E}_{p_d^{(t)}}
    \|\nabla \log p_d^{(t)} - \nabla \log p_\theta^{(t)}\|^2 \, dt \geq 0 .

The evolution of the energy keeps the normalizing constant, so it cancels and, up to a constant,

.. math:: L_{DCD}(\theta) = \mathbb{E} \, E_\theta(x_0) - \mathbb{E} \, E_\theta^{(T)}(x_T) .

With one Taylor step of a VE diffusion this is the paper's DCD-VE (its equation 12, with
:math:`f = -E`, divided by :math:`\sigma^2`):

.. math::
    L = \mathbb{E} \, \tfrac{1}{2} \big[ \|\nabla E(x_t)\|^2 - \Delta E(x_t) \big]
    + \tfrac{1}{\sigma^2} \big[ \mathbb{E} \, E(x_0) - \mathbb{E} \, E(x_t) \big] .

**Which limit is which.** As :math:`t \to 0`, :math:`L / \sigma^2` is Hyvärinen's score matching
loss, :math:`\mathbb{E} \, \tfrac{1}{2} \|\nabla E\|^2 - \Delta E`; as :math:`T \to \infty`, L is
the negative log-likelihood. Short times see the shape of the density where data is; only long
times see the weights of separated modes and mass where there is no data. `MultiTimeDCD` uses both.
"""

__all__ = ["DCD", "EnergyDiscrepancy", "MultiTimeDCD"]

import torch

from dataclasses import dataclass
from torch import Tensor

from .base import WHOLE, Objective, Output, Share
from .laws import LogUniform, draw
from .. import checks
from ..derivatives import LAPLACIANS, EnergyLike, Exact, Laplacian
from ..diffusions import DIFFUSIONS, VE, Diffusion
from ..evolution import EVOLUTIONS, Evolution, MonteCarlo, Taylor, transition


@dataclass(frozen=True)
class DCD(Objective):
    r"""Creates the diffusion contrastive divergence.

    The defaults are the paper's in 2-D. Bias at a finite step: that of the evolution; the expected
    gradient at the truth is :math:`O(\sigma^2)` for `Taylor` (under VE and `Taylor("start")` it
    vanishes for quadratic energies) and :math:`O((1 + w) / M)` for `MonteCarlo`.

    References:
        | Training Energy-Based Models with Diffusion Contrastive Divergences (Luo et al., 2023)
        | https://arxiv.org/abs/2307.01668

    Arguments:
        diffusion: The diffusion that carries data and model.
        evolution: The estimator of the evolved energy.
        laplacian: The way to the Laplacian, for the Taylor step.
        step: The time T of the step, or its law (one time a point). The noise it brings is that of
            the diffusion: :math:`\sigma^2 = T` for `VE()`, but :math:`T^2` for `EDM()` and about
            :math:`\beta_0 T` for `VP()`, which want longer steps.
        antithetic: Whether each point is diffused along :math:`\pm \varepsilon`; at short times
            this removes nearly all of the variance.
        rate: Whether each term is divided by the variance :math:`\int_0^T G^2` of its step, as in
            the paper, for a loss comparable with score matching; without, the loss is in nats.

    Example:
        >>> from fokker.energies import Quadratic
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(100_000, 2, generator=generator)
        >>> out = DCD(VE(), Taylor("start"), antithetic=True)(Quadratic(), x, None, generator)
        >>> float(out.loss)  # the optimum of score matching is -D / 2
        -1.00
    """

    diffusion: Diffusion = VE()
    evolution: Evolution = Taylor("end")
    laplacian: Laplacian = Exact()
    step: float | LogUniform = 5e-4
    antithetic: bool = False
    rate: bool = True

    def __post_init__(self) -> None:
        checks.instance(Diffusion, DIFFUSIONS, diffusion=self.diffusion)
        checks.instance(Evolution, EVOLUTIONS, evolution=self.evolution)
        checks.instance(Laplacian, LAPLACIANS, laplacian=self.laplacian)
        if not isinstance(self.step, LogUniform):
            checks.positive(step=self.step)
        first = self.step.low if isinstance(self.step, LogUniform) else self.step
        t = torch.tensor(first, dtype=torch.float64)
        noise = float(self.diffusion.variance(torch.zeros_like(t), t))
        if not noise > 0:
            raise ValueError(
                f"expected a diffusion with noise up to the time {first}, got a variance of"
                f" {noise} from {self.diffusion}"
            )

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        t = draw(self.step, x, generator)
        s = torch.zeros_like(t)
        step = transition(self.diffusion, x, s, t, self.antithetic, generator)
        start, end = self.evolution(energy, step, self.laplacian, generator)
        # the difference before the mean: at short times the two agree in most of their digits
        contrast = start - end
        if self.rate:
            contrast = contrast / self.diffusion.variance(s, t)
        return Output(contrast.mean(), None, {"energy": start.detach().mean()})


@dataclass(frozen=True)
class EnergyDiscrepancy(Objective):
    r"""Creates the energy discrepancy: DCD with VE noise and a Monte-Carlo evolved energy.

    .. math::
        L = \mathbb{E} \log \Big( \frac{w}{M} + \frac{1}{M} \sum_{i=1}^M
        e^{E(x) - E(x + \sigma \varepsilon + \sigma \varepsilon_i)} \Big)

    Bias: :math:`O((1 + w) / M)`. In the limit of many samples it is `DCD` with the exact
        evolution.

    References:
        | Energy Discrepancies: A Score-Independent Loss for Energy-Based Models
          (Schröder et al., 2023)
        | https://arxiv.org/abs/2307.06431

    Arguments:
        sigma: The standard deviation :math:`\sigma` of the noise.
        samples: The number M of noise draws a point.
        stabilizer: The weight :math:`w \geq 0`.
    """

    sigma: float = 0.1
    samples: int = 16
    stabilizer: float = 1.0

    def __post_init__(self) -> None:
        checks.positive(sigma=self.sigma)
        MonteCarlo(self.samples, self.stabilizer)

    def compute(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        evolution = MonteCarlo(self.samples, self.stabilizer)
        dcd = DCD(evolution=evolution, step=self.sigma**2, rate=False)
        return dcd.compute(energy, x, state, generator)


@dataclass(frozen=True)
class MultiTimeDCD(Objective):
    r"""Creates the sum of a short-time and a weighted long-time divergence.

    .. math:: L = L_{short} / \sigma^2 + \lambda \, \mathbb{E}_T L_{long}^{(T)}

    The short term makes the score sharp; the long term, whose evolved energy is exact up to
    :math:`O((1 + w) / M)` in the number of samples, fixes the weights of separated modes and the
    mass off the data, to which any score-based loss is blind. This is the objective of the preset
    `fokker`. Its short contrasts need full float32: TF32 matrix products destroy them, so keep
    `torch.set_float32_matmul_precision("highest")`, the default of torch.

    Arguments:
        short: The divergence at short times, with the bracket at the clean points and antithetic
            pairs.
        long: The divergence at long times; its step is a law over :math:`\sigma^2`.
        weight: The weight :math:`\lambda > 0` of the long term.
        points: The number of points of the batch, the first ones, on which the long term is
            evaluated; the batch must be shuffled.
    """

    short: DCD = DCD(evolution=Taylor("start"), step=2e-5, antithetic=True)
    long: DCD = DCD(evolution=MonteCarlo(16), step=LogUniform(0.05**2, 0.8**2), rate=False)
    weight: float = 300.0
    points: int = 256

    def __post_init__(self) -> None:
        checks.instance(DCD, ("DCD(...)",), short=self.short, long=self.long)
        checks.positive(weight=self.weight)
        checks.positive_integer(points=self.points)

    def part(
        self,
        energy: EnergyLike,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
        share: Share = WHOLE,
    ) -> Output:
        first = x[: self.points]
        share.even(points=len(first))
        short = self.short.part(energy, x, None, generator, share)
        long = self.long.part(energy, first, None, generator, share)
        info = {"short": short.loss.detach(), "long": long.loss.detach(), **short.info}
        return Output(short.loss + self.weight * long.loss, None, info)
