r"""Blurred curves: laws in the plane with an exact density and score.

A branch :math:`k` is drawn uniformly, a parameter :math:`t` from its law :math:`\pi` on a span,
and the point is

.. math:: x = a \, (c_k(t) + w \, u + s \, z), \quad
    u \sim \mathcal{U}(-\tfrac{1}{2}, \tfrac{1}{2})^2, \quad z \sim \mathcal{N}(0, I),

a curve blurred by a box of width w and by a Gaussian of std s, times a scale a. A quadrature in t
turns the curves into nodes :math:`c_j` of weights :math:`w_j`, and the density and its score into

.. math:: p(x) = \sum_j w_j K(x - c_j), \quad
    \nabla \log p(x) = \sum_j r_j(x) \, \nabla \log K(x - c_j), \quad
    r_j(x) = \frac{w_j K(x - c_j)}{p(x)},

with one kernel :math:`K(z) = \kappa(z_1) \, \kappa(z_2)` for all nodes. The two blurs make

.. math:: \kappa(z) = \frac{1}{a w} \left[ \Phi \! \left( \frac{z + a w / 2}{a s} \right)
    - \Phi \! \left( \frac{z - a w / 2}{a s} \right) \right],

with :math:`\Phi` the normal distribution function; :math:`w = 0` leaves the Gaussian alone and
:math:`s = 0` the box. As K is a product, p and its gradient on a grid are products of matrices,
so that the optimum of score matching, :math:`-\frac{1}{2} \mathbb{E} \|\nabla \log p\|^2`, takes
less than a second.

Shapes: points are :math:`(B, 2)`, log-densities :math:`(B)`, scores :math:`(B, 2)`; the M nodes
are :math:`(M, 2)`, their weights :math:`(M)`.
"""

__all__ = ["Planar", "information", "kernel"]

import abc
import math
import numpy as np
import torch

from dataclasses import dataclass
from functools import cached_property, lru_cache
from torch import Tensor
from typing import Any, ClassVar

from .. import checks
from ..energies import Energy, LogDensity

ORDER = 32  # Gauss-Legendre nodes a panel
PANEL = 13.0  # the longest panel in stds: the density is then good to 1e-10 where it has mass
PAIRS = 2**18  # pairs of a point and a node held at once


def kernel(z: Tensor, width: float, std: float) -> tuple[Tensor, Tensor]:
    r"""Returns :math:`\log \kappa(z)` and its derivative, elementwise.

    With :math:`h, l = (|z| \mp w / 2) / \sqrt{2} s`, :math:`X(y) = e^{y^2} \mathrm{erfc}(y)` and
    :math:`R = e^{h^2 - l^2}`,

    .. math:: \kappa(z) = \frac{e^{-h^2}}{2 w} [X(h) - R X(l)], \quad
        \frac{\kappa'(z)}{\kappa(z)} = \sqrt{\frac{2}{\pi}} \frac{R - 1}{s \, [X(h) - R X(l)]}
        \, \mathrm{sign}(z),

    in which nothing underflows, however far the tail.
    """
    if std == 0:
        inside = (z >= -width / 2) & (z < width / 2)
        flat = 0 * z  # and not a constant, so that autograd finds a gradient
        return torch.where(inside, flat - math.log(width), -math.inf), flat
    if width == 0:
        return z.square() * (-0.5 / std**2) - math.log(std * math.sqrt(2 * math.pi)), -z / std**2
    unit = math.sqrt(2) * std
    y = torch.where(z < 0, -z, z) / unit  # not |z|, whose second derivative is wrong at 0
    low = y + width / (2 * unit)
    high = torch.clamp(y - width / (2 * unit), min=-6.0)  # erfc = 2 beyond, and X overflows
    # terms below e^-80 change nothing, and underflow is slow on a CPU
    log_r = torch.clamp((high - low) * (high + low), min=-80.0)
    mass = torch.special.erfcx(high) - torch.exp(log_r) * torch.special.erfcx(low)
    slope = torch.expm1(log_r) / mass * (math.sqrt(2 / math.pi) / std)
    log_k = torch.log(mass) - high.square() - math.log(2 * width)
    return log_k, torch.where(z < 0, -slope, slope)


def log_sum_exp(y: Tensor) -> Tensor:
    r"""Returns the logarithm of the sum of exponentials of each row, :math:`(B, M) \to (B)`."""
    floor = y.detach().amax(dim=1, keepdim=True) - 80  # see `kernel`
    return torch.logsumexp(torch.maximum(y, floor), dim=1)


@dataclass(frozen=True)
class Planar(abc.ABC):
    r"""Abstract blurred curves in the plane. Subclasses are frozen values that write `curve`.

    Arguments:
        scale: The factor :math:`a > 0` of every point.
        noise: The std :math:`s > 0` of the Gaussian blur, before the scale.
    """

    scale: float = 0.25
    noise: float = 0.1

    branches: ClassVar[int] = 1  # the number of curves
    span: ClassVar[tuple[float, float]] = (0.0, 2 * math.pi)  # of t; equal ends make a point
    width: ClassVar[float] = 0.0  # of the box, before the scale

    def __post_init__(self) -> None:
        checks.positive(scale=self.scale)
        self.check_noise()
        _ = self.nodes  # now, and not inside a `torch.func` transform, which would own the tensors

    def check_noise(self) -> None:
        r"""Raises unless the noise is one the set can have."""
        checks.positive(noise=self.noise)

    @abc.abstractmethod
    def curve(self, k: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`c_k(t)`, with shape :math:`(B, 2)`, for k and t of shape :math:`(B)`."""

    def law(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\pi(t)` up to a constant factor; uniform unless overridden."""
        return torch.ones_like(t)

    def draw(self, n: int, **options: Any) -> Tensor:
        r"""Returns n independent parameters :math:`t \sim \pi`, with shape :math:`(n)`."""
        low, high = self.span
        return low + (high - low) * torch.rand(n, **options)

    @cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        r"""The nodes :math:`c_j`, with the scale, and the weights :math:`w_j`, in float64."""
        centers, weights = [], []
        for k in range(self.branches):
            t, mass = self.rule(k)
            mass = mass * self.law(t)
            centers.append(self.scale * self.curve(torch.full_like(t, k), t))
            weights.append(mass / (mass.sum() * self.branches))
        return torch.cat(centers), torch.cat(weights)

    def rule(self, k: int) -> tuple[Tensor, Tensor]:
        r"""Returns the points and weights of a composite Gauss–Legendre rule in t, on panels of
        equal length along the curve k that shrink with the noise."""
        t = torch.linspace(*self.span, 4097, dtype=torch.float64, device="cpu")
        steps = torch.diff(self.curve(torch.full_like(t, k), t), dim=0).norm(dim=1)
        arc = torch.cat((torch.zeros_like(t[:1]), torch.cumsum(steps, dim=0)))
        if arc[-1] == 0:
            return t[:1], torch.ones_like(t[:1])
        panels = max(4, math.ceil(float(arc[-1]) / (PANEL * self.noise)))
        marks = arc[-1] * torch.linspace(0, 1, panels + 1, dtype=t.dtype, device=t.device)
        i = torch.clamp(torch.searchsorted(arc, marks) - 1, 0, len(steps) - 1)
        edges = torch.lerp(t[i], t[i + 1], (marks - arc[i]) / steps[i])
        u, w = map(torch.from_numpy, np.polynomial.legendre.leggauss(ORDER))
        half = torch.diff(edges)[:, None] / 2
        return (edges[:-1, None] + half * (1 + u)).flatten(), (half * w).flatten()

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        r"""Returns n independent points, with shape :math:`(n, 2)`.

        Arguments:
            n: The number of points.
            generator: The source of randomness.
            device: The device of the points, by default that of the generator.
            dtype: The dtype of the points, by default torch's.
        """
        checks.positive_integer(n=n)
        if device is None and generator is not None:
            device = generator.device
        options: dict[str, Any] = {"generator": generator, "device": device}
        k = torch.randint(self.branches, (n,), **options)
        options["dtype"] = torch.get_default_dtype() if dtype is None else dtype
        t = self.draw(n, **options)
        x = self.curve(k.to(t.dtype), t) + self.noise * torch.randn(n, 2, **options)
        if self.width > 0:
            x = x + self.width * (torch.rand(n, 2, **options) - 0.5)
        return self.scale * x

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`\log w_j K(x - c_j)`, with shape :math:`(B, M)`, and
        :math:`\nabla \log K(x - c_j)`, with shape :math:`(2, B, M)`."""
        centers, weights = self.nodes
        width, std = self.scale * self.width, self.scale * self.noise
        c = centers.T.to(x.dtype).to(x.device).contiguous()
        z = x.T.contiguous()[:, :, None] - c[:, None, :]
        log_w = torch.log(weights).to(x.dtype).to(x.device)
        log_k, slope = kernel(z, width, std)
        return log_w + log_k[0] + log_k[1], slope

    def chunks(self, x: Tensor) -> tuple[Tensor, ...]:
        r"""Returns the points in chunks that bound the memory of their pairs with the nodes."""
        if x.ndim != 2 or x.shape[1] != 2 or not x.is_floating_point():
            raise ValueError(
                f"expected floating points of shape (B, 2), got shape {tuple(x.shape)}, {x.dtype}"
            )
        return x.split(max(1, PAIRS // len(self.nodes[1])))

    def log_density(self, x: Tensor) -> Tensor:
        r"""Returns :math:`\log p(x)`, with shape :math:`(B)`, differentiable in x.

        It is good to 1e-10 where the set has mass. Dozens of stds away from it, where the nodes
        show, it is good to 1e-4 of its size and the score to 1e-2, and both stay finite. On a
        checkerboard without noise it is :math:`-\infty` off the squares.
        """
        return torch.cat([log_sum_exp(self.joint(y)[0]) for y in self.chunks(x)])

    def score(self, x: Tensor) -> Tensor:
        r"""Returns :math:`\nabla \log p(x)`, with shape :math:`(B, 2)`, in closed form.

        On a checkerboard without noise it is zero on the squares and nowhere else defined: a point
        off the squares raises a `ValueError`.
        """
        scores = []
        for y in self.chunks(x):
            joint, slope = self.joint(y)
            off = torch.isneginf(joint).all(1) if self.noise == 0 else None
            if off is not None and off.any():
                raise ValueError(
                    f"expected points where the density is positive, got {int(off.sum())} with"
                    f" density 0, such as {y[off][0].tolist()}; with noise > 0 there are none"
                )
            scores.append((torch.softmax(joint, dim=1) * slope).sum(2).T)
        return torch.cat(scores)

    def energy(self) -> Energy:
        r"""Returns the energy :math:`E = -\log p`, normalized."""
        return LogDensity(self.log_density)

    def factor(self, points: Tensor, i: int) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`\kappa` and :math:`\kappa'` of coordinates :math:`(N)` along axis i at
        every node, each with shape :math:`(N, M)`."""
        z = points[:, None] - self.nodes[0][:, i]
        log_k, slope = kernel(z, self.scale * self.width, self.scale * self.noise)
        k = torch.exp(torch.clamp(log_k, min=-300.0))  # products of subnormal numbers are slow
        return k, k * slope

    def density(self, axis: Tensor) -> Tensor:
        r"""Returns p on the grid of all pairs of N coordinates, with shape :math:`(N, N)`, in
        float64: one product of matrices, as the kernel is a product."""
        kx, ky = (self.factor(axis.double().cpu(), i)[0] for i in (0, 1))
        return (self.nodes[1] * kx) @ ky.T

    def box(self, margin: float = 6.0) -> float:
        r"""Returns the half-width of a centered square that holds all but a negligible mass.

        Arguments:
            margin: The room beyond the outermost node, in stds of the noise. At 6 the mass outside
                is below 1e-8.
        """
        reach = float(self.nodes[0].abs().max())
        return reach + self.scale * (self.width / 2 + margin * self.noise)

    def optimum(self) -> float:
        r"""Returns the minimum of the score matching loss,
        :math:`-\frac{1}{2} \mathbb{E} \|\nabla \log p\|^2`.

        By the trapezoidal rule, which converges exponentially, on a grid that is refined until two
        resolutions agree to 1e-6; the finer is then good to 1e-9 on the default sets. The optimum
        is :math:`-\infty` for the checkerboard without noise, whose density jumps.
        """
        return -information(self) / 2


@lru_cache(maxsize=256)
def information(law: Planar) -> float:
    r"""Returns the Fisher information :math:`\mathbb{E} \|\nabla \log p\|^2` of a planar set."""
    if law.noise == 0:
        return math.inf
    coarse = math.nan
    for density in (4, 6, 9, 13):  # grid points a std
        fine = trapezoid(law, law.scale * law.noise / density)
        if abs(fine - coarse) <= 1e-6 * fine:
            return fine
        coarse = fine
    raise ArithmeticError(f"expected two grids to agree to 1e-6 on {law}, the last gave {coarse}")


@torch.no_grad()
def trapezoid(law: Planar, step: float) -> float:
    r"""Returns :math:`\int \|\nabla p\|^2 / p` by the trapezoidal rule, in blocks of rows."""
    weights, half = law.nodes[1], law.box(9.0)
    size = math.ceil(2 * half / step)
    grid = torch.linspace(-half, half, size, dtype=torch.float64, device="cpu")

    ky, dky = law.factor(grid, 1)
    total = 0.0
    for rows in grid.split(max(1, PAIRS // size)):
        kx, dkx = law.factor(rows, 0)
        p, px, py = (weights * kx) @ ky.T, (weights * dkx) @ ky.T, (weights * kx) @ dky.T
        total += float(((px**2 + py**2) / p).sum())
    return total * float(grid[1] - grid[0]) ** 2
