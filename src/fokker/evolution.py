r"""Evolution of the energy.

If :math:`e^{-E}` is carried by the diffusion :math:`dx = F \, dt + G \, dw`, the Fokker–Planck
equation of the density becomes an equation of the energy,

.. math::
    \partial_t E^{(t)} = \nabla \cdot F - F \cdot \nabla E^{(t)}
    + \tfrac{1}{2} G^2 \big( \Delta E^{(t)} - \|\nabla E^{(t)}\|^2 \big),

which keeps the normalizing constant: :math:`\int e^{-E^{(t)}} = Z` at every t. (The appendix of
the paper has :math:`G^2 \|\nabla f\|^2 - \langle F, \nabla F \rangle`; it should read
:math:`\tfrac{1}{2} G^2 \|\nabla f\|^2 - \langle F, \nabla f \rangle`.) **How** :math:`E^{(T)}`
**is estimated is what tells the methods apart**:

================  ==========================================================================
`Taylor`          one step of the equation: the paper's DCD-VE and DCD-VP
`MonteCarlo`      :math:`-\log \mathbb{E} \, e^{-E}` over the noise: energy discrepancy
`Stationary`      :math:`E^{(T)} = E`: contrastive divergence, with the Langevin diffusion
`fokker.grid`     exact on a grid in one or two dimensions: the oracle
================  ==========================================================================

An evolution is handed a `Transition`, the points :math:`x_s` and :math:`x_t` with the noise
between them, and returns the energies at both ends.
"""

__all__ = [
    "EVOLUTIONS",
    "Evolution",
    "Evolved",
    "MonteCarlo",
    "Stationary",
    "Taylor",
    "Transition",
    "bracket",
    "transition",
]

import abc
import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Literal, NamedTuple

from . import checks
from .derivatives import EnergyLike, Jet, Laplacian, Noise, Stein, value
from .diffusions import Diffusion, Increment, Langevin, Linear
from .shapes import align, dimension, dot


class Transition(NamedTuple):
    r"""A step of a diffusion: where the points start, where they end, and the noise between.

    There are A ends to each start, :math:`y = m(x) + \sigma \varepsilon`: one, or an antithetic
    pair with noise :math:`\pm \varepsilon`.
    """

    diffusion: Diffusion
    s: Tensor  # () or (B)
    t: Tensor  # () or (B)
    x: Tensor  # (B, *)
    y: Tensor  # (A, B, *)
    eps: Tensor  # (A, B, *)
    sigma: Tensor  # () or (B)


class Evolved(NamedTuple):
    r"""The energies at the two ends of a transition."""

    start: Tensor  # (B), E(x_s)
    end: Tensor  # (B), the evolved energy at x_t, averaged over the ends of each start


def transition(
    diffusion: Diffusion,
    x: Tensor,
    s: Tensor,
    t: Tensor,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> Transition:
    r"""Draws the ends of a transition from the Gaussian kernel of a diffusion.

    Arguments:
        diffusion: The diffusion.
        x: The points at time `s`, with shape :math:`(B, *)`.
        s: The start time, :math:`()` or :math:`(B)`.
        t: The end time, :math:`()` or :math:`(B)`.
        antithetic: Whether to return both :math:`m(x) \pm \sigma \varepsilon`. Odd powers of the
            noise then cancel: :math:`(E(x+h) + E(x-h) - 2 E(x)) / 2` has none of the variance of
            :math:`\nabla E \cdot h`, which otherwise forces a large step.
        generator: The source of randomness.
    """
    mean, sigma = diffusion.kernel(x, s, t)
    eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    both = torch.stack([eps, -eps]) if antithetic else eps[None]
    return Transition(diffusion, s, t, x, mean + align(sigma, x) * both, both, sigma)


class Evolution(abc.ABC):
    r"""Abstract estimator of the evolved energy. Subclasses are frozen values."""

    @abc.abstractmethod
    def __call__(
        self,
        energy: EnergyLike,
        step: Transition,
        laplacian: Laplacian,
        generator: torch.Generator | None = None,
    ) -> Evolved:
        r"""Returns :math:`E(x_s)` and an estimate of :math:`E^{(t)}(x_t)`.

        Arguments:
            energy: The energy at time s.
            step: The transition from s to t.
            laplacian: The way to the Laplacian; only `Taylor` takes one.
            generator: The source of randomness.
        """


def bracket(jet: Jet, inc: Increment) -> Tensor:
    r"""Returns the first-order change of the energy over a step, with shape :math:`(B)`.

    .. math::
        \int \nabla \cdot F - \nabla E \cdot \int F
        + \tfrac{1}{2} \int G^2 \, (\Delta E - \|\nabla E\|^2)
    """
    g = jet.gradient
    return inc.divergence - dot(inc.drift, g) + inc.variance / 2 * (jet.laplacian - dot(g, g))


@dataclass(frozen=True)
class Taylor(Evolution):
    r"""Creates one Taylor step of the energy equation, :math:`E^{(t)} \approx E + \int O(E)`.

    Arguments:
        at: Where the bracket :math:`O(E)` is evaluated. At the `"end"` :math:`x_t`, as in the
            paper, the divergence learns the *diffused* data at finite t: on
            :math:`\mathcal{N}(0, s^2)` its minimizer is :math:`\mathcal{N}(0, s^2 + \sigma^2)`. At
            the `"start"` :math:`x_s` the form is of first order just as well, costs no more, and
            is exact on Gaussians under VE; what remains is of order :math:`\sigma^2 \Delta^2 E`.
    """

    at: Literal["start", "end"] = "end"

    def __post_init__(self) -> None:
        checks.one_of(("start", "end"), at=self.at)

    def __call__(
        self,
        energy: EnergyLike,
        step: Transition,
        laplacian: Laplacian,
        generator: torch.Generator | None = None,
    ) -> Evolved:
        A, B = step.y.shape[:2]
        ends = step.y.flatten(0, 1)
        if self.at == "start":
            if isinstance(laplacian, Stein):
                raise ValueError(
                    "expected a Laplacian that needs no noise with Taylor(at='start'), got"
                    " Stein(): the clean points carry none"
                )
            jet = laplacian(energy, step.x, generator)
            change = bracket(jet, step.diffusion.increment(step.x, step.s, step.t))
            return Evolved(jet.energy, value(energy, ends).reshape(A, B).mean(0) + change)

        sigma = step.sigma.expand(A, B).reshape(-1) if step.sigma.ndim else step.sigma
        s, t = (c.expand(A, B).reshape(-1) if c.ndim else c for c in (step.s, step.t))
        jet = laplacian(energy, ends, generator, Noise(step.eps.flatten(0, 1), sigma))
        change = bracket(jet, step.diffusion.increment(ends, s, t))
        return Evolved(value(energy, step.x), (jet.energy + change).reshape(A, B).mean(0))


@dataclass(frozen=True)
class MonteCarlo(Evolution):
    r"""Creates the Monte-Carlo estimate of the evolved energy of a linear diffusion, at any t.

    .. math::
        E^{(t)}(y) = -\log \mathbb{E}_z \, e^{-E((y - \sigma z) / \alpha)} + D \log \alpha
        \approx -\log \frac{1}{M} \Big( w \, e^{-E(x_s)} + \sum_{i=1}^M e^{-E((y - \sigma z_i) /
        \alpha)} \Big) + D \log \alpha

    No derivative in x. The logarithm of a mean is biased by :math:`O(1/M)`, upwards in the energy;
    the stabilizer w bounds the estimate from above by :math:`E(x_s) + \log(M/w)` at the price of
    another :math:`O(w/M)`. In high dimension the weights degenerate, and short steps or other
    evolutions serve better.

    References:
        | Energy Discrepancies: A Score-Independent Loss for Energy-Based Models
          (Schröder et al., 2023)
        | https://arxiv.org/abs/2307.06431

    Arguments:
        samples: The number :math:`M` of noise draws an end.
        stabilizer: The weight :math:`w \geq 0` of the start among the draws.
    """

    samples: int = 16
    stabilizer: float = 1.0

    def __post_init__(self) -> None:
        checks.positive_integer(samples=self.samples)
        checks.between(0, math.inf, stabilizer=self.stabilizer)

    def __call__(
        self,
        energy: EnergyLike,
        step: Transition,
        laplacian: Laplacian,
        generator: torch.Generator | None = None,
    ) -> Evolved:
        if not isinstance(step.diffusion, Linear):
            raise ValueError(
                f"expected a linear diffusion (VE, EDM, VP) with MonteCarlo, got {step.diffusion}"
            )
        alpha, sigma = step.diffusion.transition(step.s, step.t)
        A, B, M = *step.y.shape[:2], self.samples
        x, y = step.x, step.y
        z = torch.randn((M, *y.shape), generator=generator, dtype=y.dtype, device=y.device)
        back = (y - align(sigma, x) * z) / align(alpha, x)
        e = value(energy, torch.cat([x, back.flatten(0, 2)]))
        start, logs = e[:B], -e[B:].reshape(M, A, B)
        if self.stabilizer > 0:
            stabilized = (math.log(self.stabilizer) - start).expand(1, A, B)
            logs = torch.cat([logs, stabilized])
        evolved = math.log(M) - torch.logsumexp(logs, dim=0)
        return Evolved(start, evolved.mean(0) + dimension(x) * torch.log(alpha))


@dataclass(frozen=True)
class Stationary(Evolution):
    r"""Creates the evolution of an energy under its own Langevin diffusion, :math:`E^{(t)} = E`.

    Gradients do not flow through the ends: this is the stop-gradient of contrastive divergence.
    """

    def __call__(
        self,
        energy: EnergyLike,
        step: Transition,
        laplacian: Laplacian,
        generator: torch.Generator | None = None,
    ) -> Evolved:
        if not isinstance(step.diffusion, Langevin):
            raise ValueError(
                f"expected a Langevin diffusion with Stationary, got {step.diffusion}: no other"
                " leaves the energy as it is"
            )
        A, B = step.y.shape[:2]
        e = value(energy, torch.cat([step.x, step.y.flatten(0, 1).detach()]))
        return Evolved(e[:B], e[B:].reshape(A, B).mean(0))


EVOLUTIONS: dict[str, type[Evolution]] = {
    "taylor": Taylor,
    "monte-carlo": MonteCarlo,
    "stationary": Stationary,
}
