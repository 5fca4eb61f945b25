r"""Divergences between noise levels, for images and for energies of every level.

The data is given Gaussian noise first, :math:`y = x + \sigma \varepsilon`, and a short VE step of
variance :math:`\delta = r \sigma^2` carries it on, :math:`z = y + \sqrt{\delta} \, \eta`. One
Taylor step of the energy, as in the paper's Algorithm 1 with its errata, gives

.. math::
    L = \mathbb{E} \, \tfrac{1}{2} \big[ \|\nabla E(z)\|^2 - \Delta E(z) \big]
    + \tfrac{1}{\delta} \, \mathbb{E} \big[ E(y) - E(z) \big] ,

with the same energy at both points. It learns the density of z, whose level is
:math:`\sigma_z^2 = \sigma^2 + \delta`; an energy of every level, E(x, σ), is therefore asked at
:math:`\sigma_z`, the later one. On a `Grid` :math:`\sigma = t_{i-1}` and :math:`\sigma_z = t_i`,
so :math:`\delta = t_i^2 - t_{i-1}^2`. (With E at its own level at each point, an energy
:math:`K \sigma` that does not depend on the point would send the loss to minus infinity.) The
whole noise of z is known, :math:`z = x + \sigma_z \bar\varepsilon`, and that is what makes this
cheap. With cost counted in forward passes (a plain step, value and parameter gradient, is 3):

==================  ====================================================================  ======
form                estimate                                                              passes
==================  ====================================================================  ======
`stein`             :math:`\Delta E(z) \to \bar\varepsilon \cdot \nabla E(z) / \sigma_z`  9
`hutchinson`        :math:`\Delta E(z) \to v^\top \nabla^2 E(z) \, v`                     15
`surrogate`         :math:`[E(y) - E(z + \delta w)] / \delta`, w held fixed               8
`path`              the bracket between y and z, by Stein; the contrast on half the rows  9
`limit`             :math:`\delta \to 0`, denoising score matching                        6
`hutchinson-limit`  :math:`\delta \to 0`, the Laplacian as in `hutchinson`                12
==================  ====================================================================  ======

**The contrast without its noise.** To first order :math:`[E(y) - E(z)] / \delta` is :math:`-\eta
\cdot \nabla E(z) / \sqrt{\delta}`, whose variance grows as :math:`1 / \delta` although its mean,
:math:`-\Delta E`, does not. But both noises of z are known, and each gives the Laplacian by
Stein's identity: :math:`\mathbb{E} \, \eta \cdot \nabla E(z) / \sqrt{\delta} = \mathbb{E} \,
\Delta E(z) = \mathbb{E} \, \bar\varepsilon \cdot \nabla E(z) / \sigma_z`. So `stein` takes

.. math::
    \tfrac{1}{\delta} \big[ E(y) - E(z) + \sqrt{\delta} \, \eta \cdot \nabla E(z) \big]
    - \tfrac{1}{\sigma_z} \bar\varepsilon \cdot \nabla E(z)

for the contrast: the same mean at the same cost, and what is left in the bracket is of second
order, :math:`\tfrac{1}{2} \eta^\top \nabla^2 E \, \eta`. With :math:`\delta = 0.05 \, \sigma^2`
the variance of the term linear in the score falls tenfold, to twice that of the limit.

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
and it takes :math:`r = 0.1 / \sqrt{D}` to come within 3 %. Yet a short step is no way out in
bfloat16, where rounding at y and z is divided by :math:`\delta`.

A sampler that goes down through the levels does not forget such an error. With
:math:`f(\rho, \sigma)` the slope over the true one, the probability flow of noise alone is
:math:`d \log \rho = f \, d \log \sigma`: where f falls with :math:`\rho`, too much noise makes for
more. In 3,072 dimensions, 32×32 color, r = 0.2 has f = 0.60 at the median norm and less above it:
from level 80 to 0.01, half of all samples keep more than thirty times the noise of their level,
whatever the network.

**The bracket along the path.** The contrast is exact for any step: by the heat equation,

.. math::
    \tfrac{1}{\delta} \, \mathbb{E} \big[ E(y) - E(z) \big]
    = -\tfrac{1}{\delta} \int_0^\delta \mathbb{E} \, \tfrac{1}{2} \Delta E(z_s) \, ds, \qquad
    z_s = y + \sqrt{s} \, \eta .

So if the bracket is taken at :math:`z_s` too, s uniform in :math:`[0, \delta]`, the sum is the
mean over s of :math:`\mathbb{E} [\tfrac{1}{2} \|\nabla E(z_s)\|^2 - \Delta E(z_s)]`: the theorem's
integral of Fisher divergences with the energy held still. It is minimized by the score of the
mixture of all levels on the way, and since the norm of the noise tells where on the way a point
is, that is its own score. To a sampler, which asks by σ and not by the norm, it is the nearest of
these levels: from 80 to 0.01 the noise of 3,072 dimensions comes to between 0.4 and 2.1 times its
level with r = 0.2, and to within 3 % with r = 0.02. This is `path`, whose step may be long; it
learns the levels around :math:`\sigma_m^2 = \sigma^2 + \delta / 2`, and :math:`\sigma_m` is what
an energy of every level is asked at. Noise is taken out of its contrast as above, with
:math:`\eta \cdot \nabla E(z_s) / \sqrt{\delta}` and the Laplacian at :math:`z_s` times
:math:`\sqrt{s / \delta}`. What is left is quiet, so the first half of the batch is enough for it.

*Where on the way.* With :math:`u = s / \delta`, a row of that half has the noisy Laplacian of
Stein's identity :math:`\tfrac{1}{2} + 2 \sqrt{u}` times in its loss, another row
:math:`\tfrac{1}{2}` times, and what is left of the contrast is
:math:`2 (\sqrt{u} - \tfrac{1}{2}) \, \eta^\top \nabla^2 E \, \eta`. So rows with the contrast take
s from the first half of the way and the others from the second, which together is uniform: the
mean squares of these factors are 1.22 and 0.06, where s from all of the way would have 1.92 and
0.17. The limit has 1 and 0.

**The limit is denoising score matching.** As :math:`\delta \to 0` the contrast becomes
:math:`-\tfrac{1}{2} \Delta E`, and with Stein's Laplacian :math:`L \to \mathbb{E} \, \tfrac{1}{2}
\|\nabla E(y)\|^2 - \varepsilon \cdot \nabla E(y) / \sigma`, which is :math:`\tfrac{1}{2} \|\nabla
E - \varepsilon / \sigma\|^2` up to a constant. With Hutchinson's estimator it is the score
matching of noisy data.

**The surrogate** takes no second derivative, so it costs the memory of a plain step and runs on
layers that can be differentiated only once. With :math:`w = -\nabla E(z) + c \, \bar\varepsilon /
\sigma_z` held fixed,

.. math::
    \partial_\theta \tfrac{-1}{\delta} E(z + \delta w) = \partial_\theta \Big[ -\tfrac{1}{\delta}
    E(z)
    - w \cdot \nabla E(z) - \tfrac{\delta}{2} w^\top \nabla^2 E(z) \, w + \dots \Big] ,

whose second term is the bracket's gradient if :math:`c = \tfrac{1}{2}`. The part of the third that
does not shrink with the gradient is :math:`-\tfrac{\delta c^2}{2 \sigma_z^2} \Delta E` in
expectation. So c solves :math:`c + \tfrac{1}{2} \rho c^2 = \tfrac{1}{2}`, with
:math:`\rho = \delta / \sigma_z^2`:

.. math:: c = \frac{\sqrt{1 + \rho} - 1}{\rho} .

For Gaussian data its fixed point then solves :math:`S a - 1 = O(\delta^2)`, with S the variance of
z and a the curvature of the energy, whereas :math:`c = \tfrac{1}{2}` leaves an error of
:math:`\delta / 8 \sigma_z^2`.

**The time score** ties the levels together. All of the above leaves each level its own constant:
it is blind to a term :math:`c(\sigma)` in the energy. With :math:`\tau = \sigma_z^2` and
:math:`q(z | x)` the density of z given the clean point, in D dimensions,

.. math::
    -\partial_\tau \log q(z | x)
    = \partial_\tau \Big[ \tfrac{D}{2} \log(2 \pi \tau) + \frac{\|z - x\|^2}{2 \tau} \Big]
    = \frac{D - \|\bar\varepsilon\|^2}{2 \tau} ,

and as :math:`p_\tau(z) = \mathbb{E}_x \, q(z | x)`, the mean of this given z is
:math:`-\partial_\tau \log p_\tau(z)`. So the regression

.. math:: L_\tau = \frac{\lambda}{2 D} \, \mathbb{E} \, \big( \tau \, \partial_\tau E(z, \sigma_z)
    - \tfrac{1}{2} (D - \|\bar\varepsilon\|^2) \big)^2, \qquad \tau \, \partial_\tau = \tfrac{1}{2}
    \sigma_z \partial_{\sigma_z} ,

is least where :math:`\partial_\tau E = -\partial_\tau \log p_\tau`: with the scores right, the
energy is :math:`-\log p_\tau` up to *one* constant for all levels. It needs a second derivative,
which the surrogate goes without.

References:
    | Learning Normalized Image Densities via Dual Score Matching (Guth et al., 2025)
    | https://arxiv.org/abs/2506.05310
"""

__all__ = ["Denoising", "LevelDCD", "Noisy"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor
from typing import Any, Literal

from .base import WHOLE, Objective, Output, Share
from .cd import CD
from .laws import Grid, Law, draw
from .. import checks
from ..derivatives import EnergyLike, Hutchinson, gradient, value
from ..shapes import align, dimension, dot

WEIGHTS = ("one", "variance", "edm")
LIMITS = ("limit", "hutchinson-limit")  # forms without a step
FORMS = ("stein", "hutchinson", "surrogate", "path", *LIMITS)
# how far along the step the level lies that is learned
REACH = {
    "stein": 1.0,
    "hutchinson": 1.0,
    "surrogate": 1.0,
    "path": 0.5,
    **dict.fromkeys(LIMITS, 0.0),
}


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

    The defaults are those of the paper's denoising study: noise 0.3 and a step of variance 0.018.

    Arguments:
        level: The standard deviation :math:`\sigma` of the noise given to the data, or its law.
        step: The share :math:`r = \delta / \sigma^2` of the step; limits and a `Grid` have none.
        form: The estimator, a row of the table above.
        conditional: Whether the energy takes the level as well, E(x, σ).
        weight: The weight of a point: `one`; `variance`, :math:`\sigma_z^2`, with which the limit
            is the error of the noise, :math:`\tfrac{1}{2} \|\sigma \nabla E - \varepsilon\|^2`; or
            `edm`, :math:`\sigma_z^2 (1 + \sigma_z^2 / \sigma_d^2)`, which keeps the error of a
            preconditioned network of order one at high levels too.
        sigma_data: The standard deviation :math:`\sigma_d` of the data, for the weight `edm`.
        time: The weight :math:`\lambda` of the time score; none if zero.
    """

    level: Law = 0.3
    step: float = 0.2
    form: Literal["stein", "hutchinson", "surrogate", "path", "limit", "hutchinson-limit"] = (
        "stein"
    )
    conditional: bool = False
    weight: Literal["one", "variance", "edm"] = "variance"
    sigma_data: float = 0.5
    time: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.level, float | int):
            checks.positive(level=self.level)
        checks.positive(step=self.step)
        checks.one_of(FORMS, form=self.form)
        checks.one_of(WEIGHTS, weight=self.weight)
        checks.positive(sigma_data=self.sigma_data)
        if not (checks.number(self.time) and self.time >= 0):
            raise ValueError(f"expected time to be a finite number >= 0, got {self.time!r}")
        if self.time and (not self.conditional or self.form in {"surrogate", "path"}):
            raise ValueError(
                "expected a time score only of a conditional energy, with a second"
                " derivative and at"
                f" points of its level, got conditional={self.conditional}, form={self.form!r}"
            )

    @property
    def learned(self) -> float | None:
        r"""The level whose density is learned; `None` if the level has a law."""
        if not isinstance(self.level, float | int):
            return None
        return self.level * math.sqrt(1 + self.step * REACH[self.form])

    def part(
        self,
        energy: Any,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
        share: Share = WHOLE,
    ) -> Output:
        if self.form == "path" and share.ranks > 1 and len(x) % (2 * share.ranks):
            raise ValueError(
                f"expected batch to be a multiple of {2 * share.ranks}, twice the number of ranks"
                f" times slices, for the path has its contrast on half of it, got {len(x)}"
            )
        return super().part(energy, x, state, generator, share)

    def compute(
        self,
        energy: Any,
        x: Tensor,
        state: None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        def noise() -> Tensor:
            return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

        limit = self.form in LIMITS
        if isinstance(self.level, Grid):
            sigma, end = self.level.pair(x, generator)
            sigma = end if limit else sigma
            delta = end**2 - sigma**2
        else:
            sigma = draw(self.level, x, generator).expand(len(x))
            delta = self.step * sigma**2
        known = torch.sqrt(sigma**2 + REACH[self.form] * delta)
        weight = weigh(self.weight, known, self.sigma_data)
        own: EnergyLike = (lambda p: energy(p, known)) if self.conditional else energy
        y = x + align(sigma, x) * noise()
        eta = None if limit else noise()

        if eta is not None and self.form == "path":
            half = slice((len(x) + 1) // 2)
            share = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
            part = half.stop / len(x)
            share = torch.cat([part * share[half], part + (1 - part) * share[half.stop :]])
            z = y + align(torch.sqrt(share * delta), x) * eta
            e, g = gradient(own, z)
            laplacian = dot(z - x, g) / (sigma**2 + share * delta)
            bracket = weight * (dot(g, g) - laplacian) / 2
            quiet = dot(eta, g) / torch.sqrt(delta) - torch.sqrt(share) * laplacian
            ends = torch.cat([y[half], (y + align(torch.sqrt(delta), x) * eta)[half]])
            if self.conditional:
                own = lambda p: energy(p, known[half].repeat(2))
            first, last = value(own, ends).chunk(2)
            contrast = (weight * quiet)[half] + (weight / delta)[half] * (first - last)
            return Output(bracket.mean() + contrast.mean(), None, {"energy": e.detach().mean()})

        z = y if eta is None else y + align(torch.sqrt(delta), x) * eta
        total = (z - x) / align(known, x)  # the whole noise of z
        if self.form in {"hutchinson", "hutchinson-limit"}:
            e, g, laplacian = Hutchinson()(own, z, generator)
            contrast = -laplacian / 2 if eta is None else (value(own, y) - e) / delta
            loss = (dot(g, g) - laplacian) / 2 + contrast
        elif eta is None:
            e, g = gradient(own, z)
            miss = g - total / align(known, x)
            loss = dot(miss, miss) / 2
        elif self.form == "surrogate":
            e, g = gradient(own, z)
            c = 1 / (1 + torch.sqrt(1 + delta / known**2))  # the same, without cancellation
            w = align(c / known, x) * total - g.detach()
            after = (z + align(delta, x) * w).detach()
            loss = (value(own, y) - value(own, after)) / delta
        else:
            e, g = gradient(own, z)
            laplacian = dot(total, g) / known
            remainder = value(own, y) - e + torch.sqrt(delta) * dot(eta, g)
            loss = dot(g, g) / 2 - 1.5 * laplacian + remainder / delta
        loss, info = weight * loss, {"energy": e.detach().mean()}
        if self.time:
            # points are independent: the gradient of the sum is that of each
            slope = torch.func.grad(lambda s: energy(z, s).sum())(known)
            d = dimension(x)
            error = (known * slope - (d - dot(total, total))).square() / (8 * d)
            loss = loss + self.time * error
            info["time"] = error.detach().mean()
        return Output(loss.mean(), None, info)


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
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return self.objective.part(energy, x + align(sigma, x) * noise, state, generator, share)


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
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        miss = energy.denoise(x + align(sigma, x) * noise, sigma) - x
        error = dot(miss, miss)
        loss = weigh(self.weight, sigma, self.sigma_data) / (2 * sigma**4) * error
        return Output(loss.mean(), None, {"error": error.detach().mean()})
