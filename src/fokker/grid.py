r"""Grids: exact normalization and evolution in one and two dimensions.

The oracle for everything that has no closed form. Densities live at the centers of the cells of a
square, and integrals are midpoint sums, which converge faster than any power of the spacing for
smooth densities that vanish at the border.

The evolution of :math:`e^{-E}` is exact up to that spacing: for a linear diffusion one product with
the Gaussian kernel in Fourier space,

.. math:: p_t(y) = \alpha^{-D} \, (p_0(\cdot / \alpha) * \mathcal{N}(0, \sigma^2 I))(y),

and for any other the Fokker–Planck equation itself, with spectral derivatives and Runge–Kutta steps
of order four.
"""

__all__ = ["Grid"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor

from . import checks
from .derivatives import EnergyLike, value
from .diffusions import Diffusion, Linear


@dataclass(frozen=True)
class Grid:
    r"""Creates a grid over the square (or interval) from `low` to `high` in each coordinate.

    Arguments:
        low: The lower border.
        high: The upper border.
        size: The number N of cells a coordinate.
        dim: The dimension D, 1 or 2.

    Example:
        >>> from fokker.diffusions import VE
        >>> from fokker.energies import Quadratic
        >>> grid = Grid(-9, 9, 120)
        >>> float(grid.log_normalizer(grid.evaluate(Quadratic())))  # log 2 pi
        1.8379
        >>> late = grid.evolve(Quadratic(), VE(), 0.0, 3.0)  # of variance 1 + 3
        >>> float(grid.kl(late, grid.evaluate(Quadratic(2.0))))
        0.0000
    """

    low: float = -3.0
    high: float = 3.0
    size: int = 600
    dim: int = 2

    def __post_init__(self) -> None:
        checks.positive_integer(size=self.size)
        if not (checks.number(self.low) and checks.number(self.high) and self.low < self.high):
            raise ValueError(f"expected finite numbers low < high, got {self}")
        if self.dim not in {1, 2}:
            raise ValueError(f"expected dim 1 or 2, got {self.dim}")

    @property
    def spacing(self) -> float:
        return (self.high - self.low) / self.size

    @property
    def cell(self) -> float:
        r"""The volume of a cell."""
        return self.spacing**self.dim

    def axis(
        self, dtype: torch.dtype = torch.float64, device: torch.device | None = None
    ) -> Tensor:
        r"""Returns the centers of the cells along a coordinate, with shape :math:`(N)`."""
        steps = torch.arange(self.size, dtype=dtype, device=device)
        return self.low + (steps + 0.5) * self.spacing

    def points(
        self, dtype: torch.dtype = torch.float64, device: torch.device | None = None
    ) -> Tensor:
        r"""Returns the centers of all cells, with shape :math:`(N^D, D)`."""
        axes = torch.meshgrid(*[self.axis(dtype, device)] * self.dim, indexing="ij")
        return torch.stack(axes, dim=-1).reshape(-1, self.dim)

    def evaluate(
        self,
        energy: EnergyLike,
        dtype: torch.dtype = torch.float64,
        device: torch.device | None = None,
        chunk: int = 65_536,
    ) -> Tensor:
        r"""Returns the energy at all centers, with shape :math:`(N^D)`, in chunks of points."""
        checks.positive_integer(chunk=chunk)
        with torch.no_grad():
            points = self.points(dtype, device).split(chunk)
            return torch.cat([value(energy, x) for x in points])

    def integrate(self, f: Tensor) -> Tensor:
        r"""Returns the integral of a function given at all centers."""
        return self.cell * f.sum()

    def log_normalizer(self, e: Tensor) -> Tensor:
        r"""Returns :math:`\log \int e^{-E}` over the square, from the energy at all centers."""
        return torch.logsumexp(-e.to(torch.float64), dim=0) + math.log(self.cell)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        r"""Returns :math:`\mathrm{KL}(p \| q)` of the densities of two energies at all centers,
        each normalized over the square.

        Cells with less than :math:`10^{-12}` of the largest p are left out: they hold nothing, and
        an evolved density is rounding there. The result is infinite if q has no mass where p has.
        """
        p, q = p.to(torch.float64), q.to(torch.float64)
        log_p, log_q = -p - self.log_normalizer(p), -q - self.log_normalizer(q)
        on = log_p > log_p.max() + math.log(1e-12)
        return self.integrate(torch.exp(log_p[on]) * (log_p[on] - log_q[on]))

    def evolve(self, energy: EnergyLike, diffusion: Diffusion, s: float, t: float) -> Tensor:
        r"""Returns the evolved energy at all centers, with shape :math:`(N^D)`, in float64.

        Rounding limits it to where the density is above about :math:`10^{-12}` of its maximum.
        """
        if not 0 <= s < t:
            raise ValueError(f"expected times 0 <= s < t, got s={s}, t={t}")
        start, end = (torch.tensor(u, dtype=torch.float64) for u in (s, t))
        if isinstance(diffusion, Linear):
            alpha, sigma = (float(c) for c in diffusion.transition(start, end))
            shrunk = lambda x: value(energy, x / alpha) + self.dim * math.log(alpha)
            e = self.evaluate(shrunk)
            density = self._smooth(self._square(torch.exp(e.min() - e)), sigma)
        else:
            e = self.evaluate(energy)
            density = self._fokker_planck(self._square(torch.exp(e.min() - e)), diffusion, s, t)
        return e.min() - torch.log(density.clamp_min(0).flatten())

    def _square(self, f: Tensor) -> Tensor:
        return f.reshape((self.size,) * self.dim)

    def _frequencies(self) -> list[Tensor]:
        k = 2 * math.pi * torch.fft.fftfreq(self.size, self.spacing, dtype=torch.float64)
        return list(torch.meshgrid(*[k] * self.dim, indexing="ij"))

    def _smooth(self, f: Tensor, sigma: float) -> Tensor:
        square = torch.stack(self._frequencies()).square().sum(0)
        return torch.fft.ifftn(torch.fft.fftn(f) * torch.exp(-(sigma**2) / 2 * square)).real

    def _fokker_planck(self, p: Tensor, diffusion: Diffusion, s: float, t: float) -> Tensor:
        r"""Solves :math:`\partial_t p = -\nabla \cdot (F p) + \tfrac{1}{2} G^2 \Delta p`."""
        points, freqs = self.points(), self._frequencies()
        square = torch.stack(freqs).square().sum(0)

        def slope(p: Tensor, u: float) -> Tensor:
            time = torch.tensor(u, dtype=torch.float64)
            drift = diffusion.drift(points, time).detach()
            g = float(diffusion.coefficient(time))
            out = -(g**2) / 2 * square * torch.fft.fftn(p)
            for k, F in zip(freqs, drift.unbind(1), strict=True):
                out = out - 1j * k * torch.fft.fftn(self._square(F) * p)
            return torch.fft.ifftn(out).real

        # stability of the scheme: the fastest mode decays at g^2 k^2 / 2 and turns at |F| k
        times = torch.linspace(s, t, 9, dtype=torch.float64)
        g2 = max(float(diffusion.coefficient(u)) ** 2 for u in times)
        speed = max(float(diffusion.drift(points, u).abs().max()) for u in times)
        k = math.pi / self.spacing
        fastest = self.dim * (g2 / 2 * k**2 + speed * k)
        steps = max(8, math.ceil((t - s) * fastest / 2))
        h = (t - s) / steps
        for i in range(steps):
            u = s + i * h
            k1 = slope(p, u)
            k2 = slope(p + h / 2 * k1, u + h / 2)
            k3 = slope(p + h / 2 * k2, u + h / 2)
            k4 = slope(p + h * k3, u + h)
            p = p + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return p
