r"""Grids: exact normalization and evolution in one and two dimensions.

The oracle for everything that has no closed form. Densities live at the centers of the cells of a
square, and integrals are midpoint sums, which converge faster than any power of the spacing for
smooth densities that vanish at the border.

The evolution of :math:`e^{-E}` is exact up to that spacing: for a linear diffusion one product
with the Gaussian kernel in Fourier space,

.. math:: p_t(y) = \alpha^{-D} \, (p_0(\cdot / \alpha) * \mathcal{N}(0, \sigma^2 I))(y),

and for any other the Fokker–Planck equation itself, with spectral derivatives and Runge–Kutta
steps of order four. A density is carried by the Langevin diffusion of an energy (`Grid.relax`) as
a jump process between cells, which leaves that energy's own density exactly as it is.
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
            return self.blur(self.evaluate(shrunk), sigma)
        e = self.evaluate(energy)
        density = self._fokker_planck(self._square(torch.exp(e.min() - e)), diffusion, s, t)
        return e.min() - torch.log(density.clamp_min(0).flatten())

    def blur(self, e: Tensor, sigma: float) -> Tensor:
        r"""Returns the energy at all centers after noise of standard deviation `sigma`, from the
        energy at all centers: its evolution under a diffusion without drift."""
        e = e.to(torch.float64)
        density = self._smooth(self._square(torch.exp(e.min() - e)), sigma)
        return e.min() - torch.log(density.clamp_min(0).flatten())

    def relax(self, p: Tensor, e: Tensor, times: list[float]) -> list[Tensor]:
        r"""Returns the density p carried to several times by the Langevin diffusion of an energy,
        both given at all centers in two dimensions.

        Mass jumps between neighboring cells i and j at the rates
        :math:`k_{ij} = B(E_j - E_i) / 2 h^2` with :math:`B(u) = u / (e^u - 1)` (Scharfetter and
        Gummel), of second order in the spacing h. They balance in detail, so that
        :math:`e^{-E}` stands still to rounding and :math:`\mathrm{KL}(p_t \| e^{-E} / Z)` falls at
        every step; the border reflects. Steps are explicit, as long as they keep p positive.

        Arguments:
            p: The density at all centers, with shape :math:`(N^2)`.
            e: The energy at all centers, with shape :math:`(N^2)`, finite.
            times: The times, from 0 upwards.
        """
        if self.dim != 2:
            raise ValueError(f"expected a grid of two dimensions, got {self.dim}")
        if not times or sorted(times) != list(times) or times[0] < 0:
            raise ValueError(f"expected times from 0 upwards, got {times}")
        p, e = (self._square(f.to(torch.float64)) for f in (p, e))
        if not torch.isfinite(e).all():
            raise ValueError("expected a finite energy at all centers, got one that is not")
        bernoulli = lambda u: torch.where(u.abs() < 1e-6, 1 - u / 2, u / torch.expm1(u))
        rates = []  # along each axis: to the next cell, and back
        for axis in (0, 1):
            u = torch.diff(e, dim=axis)
            rates.append((bernoulli(u) / (2 * self.cell), bernoulli(-u) / (2 * self.cell)))
        outflow = torch.zeros_like(p)
        for axis, (there, back) in enumerate(rates):
            outflow.narrow(axis, 0, self.size - 1).add_(there)
            outflow.narrow(axis, 1, self.size - 1).add_(back)
        longest, now, out = 0.9 / float(outflow.max()), 0.0, []
        for t in times:
            steps = math.ceil((t - now) / longest)
            for _ in range(steps):
                q = p.clone()
                for axis, (there, back) in enumerate(rates):
                    low, high = p.narrow(axis, 0, self.size - 1), p.narrow(axis, 1, self.size - 1)
                    flow = (t - now) / steps * (there * low - back * high)
                    q.narrow(axis, 0, self.size - 1).sub_(flow)
                    q.narrow(axis, 1, self.size - 1).add_(flow)
                p = q
            now = t
            out.append(p.flatten())
        return out

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
