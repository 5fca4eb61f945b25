r"""Mixtures of Gaussians at every noise level, for many components and many columns.

A mixture with noise of standard deviation :math:`\sigma` is one again,

.. math:: E(x, \sigma) = -\log \sum_k w_k \, \mathcal{N}(x; \mu_k, \Sigma_k + \sigma^2 I) ,

normalized at every level. Two kinds are fast enough for tables:

- `Rows`: one Gaussian at each training row, :math:`\Sigma = h^2 I`. At a level near the spacing of
  the rows its energy is a soft distance to the nearest ones.
- `Clusters`: fewer Gaussians with covariances of their own, in the plane of the r leading
  directions V of the data, and one variance :math:`s^2` in the D - r others:

  .. math:: \log p(x) = \log p_r(V^\top x) + \log \mathcal{N}(x - V V^\top x; 0, s^2 I_{D - r}) .

`Stack` is a mixture of these. Shapes: points :math:`(B, D)`, a level :math:`()` or :math:`(B)`,
energies :math:`(B)`. Buffers are float64; energies are computed in the dtype of the points. All
that such an energy depends on is in its buffers, from which `assemble` makes it again.
"""

__all__ = [
    "Clusters",
    "LevelEnergy",
    "Rows",
    "Stack",
    "assemble",
    "leading",
    "most_rows",
    "spacing",
]

import abc
import math
import torch

from collections.abc import Iterator, Mapping, Sequence
from torch import Tensor
from typing import NamedTuple

from ..analytic import GaussianMixture, maximize
from ..checks import brief
from ..energies import Energy

PROTOTYPES, CELLS, FEWEST = 2000, 150_000, 500  # rows that are kept, at most: see `most_rows`
LEADING = 64  # directions in which components have covariances of their own, at most
NUMBERS = 2**18  # held at a time, which a cache holds
NEAR = 1e-3  # the share of the squared length of a row below which a distance may be rounding
SAME = 1e-20  # the squared distance, a coordinate, at which a row is a training row
LEAST = -80.0  # of the logarithm of a term beside the largest one
LOG_2PI = math.log(2 * math.pi)


class LevelEnergy(Energy, abc.ABC):
    r"""Abstract normalized energy of every noise level that can be sampled."""

    @abc.abstractmethod
    def forward(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        r"""Returns the energies at a level, :math:`(B)`."""

    @abc.abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns n independent points of level 0, :math:`(n, D)`."""

    @abc.abstractmethod
    def score(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        r"""Returns the score :math:`-\nabla E`, :math:`(B, D)`."""

    @property
    @abc.abstractmethod
    def centers(self) -> Tensor:
        r"""The centers of the Gaussians, :math:`(K, D)`."""


def variance_of(sigma: Tensor | float, x: Tensor) -> Tensor:
    r"""Returns the variance of a level, :math:`(1, 1)` or :math:`(B, 1)`."""
    return torch.as_tensor(sigma, dtype=x.dtype, device=x.device).square().reshape(-1, 1)


def log_sum_exp(logits: Tensor) -> Tensor:
    r"""Returns `torch.logsumexp` over the second axis. Terms that are nothing beside the largest
    are kept above :math:`e^{-80}` of it: numbers below the normal ones of float32 take up to ten
    times as long."""
    top = logits.detach().amax(1)
    shift = logits - top.clamp_min(torch.finfo(top.dtype).min)[:, None]
    return shift.clamp_min(LEAST).exp().sum(1).log() + top


class Rows(LevelEnergy):
    r"""Creates the energy of one Gaussian at each row.

    Arguments:
        rows: The rows, :math:`(N, D)`.
        width: The standard deviation h > 0 of the Gaussians, or one for each of the directions,
            :math:`(D)`.
        directions: Orthonormal directions, the columns of :math:`(D, D)`; those of the
            coordinates if not given.
    """

    rows: Tensor
    width: Tensor
    directions: Tensor | None

    def __init__(
        self, rows: Tensor, width: float | Tensor, directions: Tensor | None = None
    ) -> None:
        super().__init__()
        width = torch.as_tensor(width, dtype=rows.dtype).reshape(-1)
        self.register_buffer("rows", rows if directions is None else rows @ directions)
        self.register_buffer("width", width)
        self.register_buffer("directions", directions)

    @classmethod
    def shaped(cls, rows: Tensor, width: float, floor: float) -> "Rows":
        r"""Returns Gaussians in the shape of the covariance of the rows, :math:`h^2 \Sigma`,
        with h in units of the spacing of the whitened rows."""
        n, d = rows.shape
        shift = rows - rows.mean(0)
        covariance = shift.T @ shift / n
        mean = covariance.diagonal().mean() * torch.eye(d, dtype=rows.dtype)
        variances, directions = torch.linalg.eigh((n * covariance + d * mean) / (n + d))
        scales = variances.clamp_min(floor**2).sqrt()
        h = width * spacing(shift @ directions / scales)
        return cls(rows, (h * scales).clamp_min(floor), directions)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Rows":
        r"""Returns the energy with these buffers."""
        rows, width, directions = (tensors.get(k) for k in ("rows", "width", "directions"))
        extra = len(tensors) - 2 - (directions is not None)
        if rows is None or width is None or extra or rows.ndim != 2 or not rows.numel():
            raise other(tensors, "Gaussians at rows")
        d = rows.shape[1]
        turned = directions is None or directions.shape == (d, d)
        if width.shape not in {(1,), (d,)} or not turned:
            raise other(tensors, "Gaussians at rows")
        made = cls(rows, width)
        made.directions = directions
        return made

    @property
    def centers(self) -> Tensor:
        return self.rows if self.directions is None else self.rows @ self.directions.T

    def turn(self, x: Tensor) -> Tensor:
        return x if self.directions is None else x @ self.directions.to(x)

    @staticmethod
    def pulls(rows: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`v^{-1} r` of turned rows, (N, D), and :math:`r \cdot v^{-1} r / 2`, (N),
        with variances v that are the same for every point, (1, 1 or D)."""
        pulls = rows / v
        return pulls, (pulls * rows).sum(1) / 2

    @staticmethod
    def logits(x: Tensor, rows: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`x \cdot v^{-1} r - r \cdot v^{-1} r / 2` of turned points and rows,
        :math:`(B, N)`, and :math:`x \cdot v^{-1} x / 2`, :math:`(B)`, by which half the squared
        distance exceeds minus the former; variances v are (1 or B, 1 or D)."""
        if len(v) == 1:
            return Rows.compare(x, *Rows.pulls(rows, v), v)
        pull = x / v
        half = (x * pull).sum(1) / 2
        if v.shape[1] == 1:
            squares = rows.square().sum(1) / (2 * v)
        else:
            squares = (0.5 / v) @ rows.square().T
        return torch.addmm(squares, pull, rows.T, beta=-1), half

    @staticmethod
    def compare(x: Tensor, pulls: Tensor, halves: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns `logits` from what `pulls` returned of the rows."""
        squares = x.square()
        half = squares.sum(1) / (2 * v[0]) if v.shape[1] == 1 else squares @ (0.5 / v[0])
        return torch.addmm(halves, x, pulls.T, beta=-1), half

    def forward(self, x: Tensor, sigma: Tensor | float = 0.0, apart: bool = False) -> Tensor:
        r"""Returns the energies.

        Arguments:
            x: The points, :math:`(B, D)`.
            sigma: The level.
            apart: Whether a point that is one of the rows is judged without that row.
        """
        n, d = self.rows.shape
        v = self.width.to(x).square() + variance_of(sigma, x)
        x, rows = self.turn(x), self.rows.to(x)
        known = self.pulls(rows, v) if len(v) == 1 else None
        step = max(1, NUMBERS // n)
        parts = [x[:0, 0]]
        for k in range(0, len(x), step):
            part = x[k : k + step]
            if known is None:
                logits, half = self.logits(part, rows, v[k : k + step])
            else:
                logits, half = self.compare(part, *known, v)
            if apart and n > 1:
                self.leave_out(part, rows, logits, half)
            parts.append(half - log_sum_exp(logits))
        log_det = d * torch.log(v).mean(1)
        return torch.cat(parts) + math.log(n) + (d * LOG_2PI + log_det) / 2

    @staticmethod
    def leave_out(x: Tensor, rows: Tensor, logits: Tensor, half: Tensor) -> None:
        r"""Sets to :math:`-\infty` the logit of the row that a point is."""
        top, which = logits.max(1)
        # products of large numbers cancel: they say which points are near a row, and the distance
        # itself decides
        near = (half - top <= NEAR * half).nonzero()[:, 0]
        distance = (x[near] - rows[which[near]]).square().sum(1)
        near = near[distance <= SAME * x.shape[1]]
        logits[near, which[near]] = -math.inf

    def score(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        v = self.width.square() + variance_of(sigma, x)
        x = self.turn(x)
        pull = (torch.softmax(self.logits(x, self.rows, v)[0], 1) @ self.rows - x) / v
        return pull if self.directions is None else pull @ self.directions.T

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        which = torch.randint(len(self.rows), (n,), generator=generator)
        z = torch.randn(n, self.rows.shape[1], generator=generator, dtype=self.rows.dtype)
        x = self.rows[which] + self.width * z
        return x if self.directions is None else x @ self.directions.T


class Clusters(LevelEnergy):
    r"""Creates the energy of a mixture in the leading directions of the data.

    Arguments:
        mixture: The mixture of :math:`V^\top (x - c)`.
        center: The point c, :math:`(D)`.
        directions: V, :math:`(D, r)`, orthonormal; `None` if r = D.
        rest: The standard deviation s > 0 in the other directions.
    """

    center: Tensor
    directions: Tensor | None
    variances: Tensor
    axes: Tensor
    shifts: Tensor
    log_weights: Tensor
    rest: Tensor

    def __init__(
        self,
        mixture: GaussianMixture,
        center: Tensor,
        directions: Tensor | None = None,
        rest: float = 1.0,
    ) -> None:
        super().__init__()
        variances, axes = torch.linalg.eigh(mixture.covariances)  # (K, r), (K, r, r)
        shifts = (mixture.means[:, None] @ axes)[:, 0]
        self.register_buffer("rest", torch.tensor(rest, dtype=center.dtype))
        self.register_buffer("center", center)
        self.register_buffer("directions", directions)
        self.register_buffer("variances", variances)
        self.register_buffer("axes", axes)
        self.register_buffer("shifts", shifts)
        self.register_buffer("log_weights", torch.log(mixture.weights))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Clusters":
        r"""Returns the energy with these buffers."""
        names = {"rest", "center", "variances", "axes", "shifts", "log_weights"}
        center, shifts = tensors.get("center"), tensors.get("shifts")
        if set(tensors) - {"directions"} != names or center is None or shifts is None:
            raise other(tensors, "clusters")
        if center.ndim != 1 or shifts.ndim != 2 or not (len(center) and shifts.numel()):
            raise other(tensors, "clusters")
        (k, r), d = shifts.shape, len(center)
        shapes = {
            "rest": (), "variances": (k, r), "axes": (k, r, r), "log_weights": (k,),
            "directions": (d, r),
        }  # fmt: skip
        fits = all(tensors[n].shape == shape for n, shape in shapes.items() if n in tensors)
        if not fits or ("directions" not in tensors and r != d):
            raise other(tensors, "clusters")
        with torch.device("cpu"):
            made = cls(GaussianMixture(torch.zeros(1, 1), 1.0), torch.zeros(1))
        for name in (*names, "directions"):
            made.register_buffer(name, tensors.get(name))
        return made

    @property
    def centers(self) -> Tensor:
        u = (self.axes @ self.shifts[:, :, None])[:, :, 0]
        return self.center + (u if self.directions is None else u @ self.directions.T)

    @classmethod
    def fit(
        cls,
        x: Tensor,
        components: int,
        floor: float,
        iterations: int,
        generator: torch.Generator | None,
        shrink: float = 1.0,
        plane: "Plane | None" = None,
    ) -> "Clusters":
        r"""Returns the mixture that expectation maximization finds, in the leading directions.
        Covariances are shrunk to the mean diagonal of all components, as `fokker.analytic` has
        it. `plane` is that of the same points, if it is known already."""
        center, directions, variance = leading(x) if plane is None else plane
        u = x - center if directions is None else (x - center) @ directions
        mixture = maximize(u, components, floor, generator, iterations, True, shrink)
        return cls(mixture, center, directions, math.sqrt(variance + floor**2))

    def forward(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        K, r = self.shifts.shape
        v, shifts = variance_of(sigma, x), self.shifts.to(x)
        turn = self.axes.to(x).permute(1, 0, 2).reshape(r, K * r)
        if white := len(v) == 1:  # once for all points
            scales = (self.variances.to(x) + v).rsqrt()
            turn, shifts = turn * scales.reshape(-1), shifts * scales
        parts = [x[:0, 0]]
        step = max(1, NUMBERS // max(K * r, x.shape[1]))
        for k in range(0, len(x), step):
            part = v if white else v[k : k + step]
            parts.append(self.energies(x[k : k + step], turn, shifts, part, white))
        return torch.cat(parts)

    def energies(self, x: Tensor, turn: Tensor, shifts: Tensor, v: Tensor, white: bool) -> Tensor:
        r"""Returns the energies of points by the axes of all components side by side,
        :math:`(r, K r)`, and their centers along these, :math:`(K, r)`; both are divided by the
        standard deviations if `white`."""
        shift = x - self.center.to(x)
        u = shift if self.directions is None else shift @ self.directions.to(x)
        r = shifts.shape[1]
        y = torch.addmm(shifts.reshape(-1), u, turn, beta=-1).reshape(-1, *shifts.shape).square()
        variances = self.variances.to(x) + v[:, :, None]  # (1 or B, K, r)
        squares = (y if white else y / variances).sum(2)
        logs = self.log_weights.to(x) - (torch.log(variances).sum(2) + squares) / 2
        e = -log_sum_exp(logs) + r * LOG_2PI / 2
        if self.directions is not None:
            rest = self.rest.to(x) ** 2 + v[:, 0]
            square = (shift.square().sum(1) - u.square().sum(1)).clamp_min(0)
            e = e + square / (2 * rest) + (x.shape[1] - r) * (LOG_2PI + torch.log(rest)) / 2
        return e

    def score(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        v, shift = variance_of(sigma, x), x - self.center
        u = shift if self.directions is None else shift @ self.directions
        K, r = self.shifts.shape
        y = (u @ self.axes.permute(1, 0, 2).reshape(r, K * r)).reshape(-1, K, r) - self.shifts
        variances = self.variances + v[:, :, None]
        pull = y / variances
        logs = -(y * pull).sum(2) / 2 - torch.log(variances).sum(2) / 2
        share = torch.softmax(self.log_weights + logs, 1)
        g = (share[:, :, None] * pull).reshape(-1, K * r)
        g = g @ self.axes.permute(0, 2, 1).reshape(K * r, r)
        if self.directions is None:
            return -g
        rest = (shift - u @ self.directions.T) / (self.rest**2 + v)
        return -(g @ self.directions.T) - rest

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        k = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        z = torch.randn(n, self.shifts.shape[1], generator=generator, dtype=self.shifts.dtype)
        y = self.shifts[k] + z * self.variances[k].sqrt()
        u = torch.empty_like(y)
        for j in k.unique().tolist():
            u[k == j] = y[k == j] @ self.axes[j].T
        if self.directions is None:
            return self.center + u
        rest = torch.randn(n, len(self.directions), generator=generator, dtype=u.dtype) * self.rest
        rest = rest - (rest @ self.directions) @ self.directions.T
        return self.center + u @ self.directions.T + rest


class Plane(NamedTuple):
    r"""The leading directions of points."""

    center: Tensor  # (D)
    directions: Tensor | None  # (D, r), orthonormal; none if r = D
    variance: float  # in each of the other directions, the mean


def leading(x: Tensor) -> Plane:
    r"""Returns the directions of largest variance of points, at most `LEADING`."""
    n, d = x.shape
    shift = x - (center := x.mean(0))
    if d <= LEADING:
        return Plane(center, None, 0.0)
    if n <= d:  # by the products of the rows, which are fewer
        values, vectors = torch.linalg.eigh(shift @ shift.T)
        kept = values[-LEADING:] > 1e-12 * values[-1]
        basis = shift.T @ (vectors[:, -LEADING:][:, kept] / values[-LEADING:][kept].sqrt())
        directions = torch.linalg.qr(basis).Q
    else:
        values, vectors = torch.linalg.eigh(shift.T @ shift)
        directions = vectors[:, -LEADING:]
    r = directions.shape[1]
    left = float(shift.square().sum() - (shift @ directions).square().sum())
    return Plane(center, directions.contiguous(), max(left, 0.0) / (n * (d - r)))


class Stack(LevelEnergy):
    r"""Creates the mixture of normalized energies, with weights that sum to one."""

    weights: Tensor

    def __init__(self, parts: Sequence[LevelEnergy], weights: Tensor) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.register_buffer("weights", weights / weights.sum())

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Stack":
        r"""Returns the energy with these buffers."""
        groups: dict[str, dict[str, Tensor]] = {}
        for name, t in tensors.items():
            if name != "weights":
                head, number, rest = [*name.split(".", 2), "", ""][:3]
                if head != "parts":
                    raise other(tensors, "a stack")
                groups.setdefault(number, {})[rest] = t
        wanted = [str(j) for j in range(len(groups))]
        weights = tensors.get("weights")
        stacked = any("weights" in group for group in groups.values())
        if sorted(groups) != sorted(wanted) or weights is None or not groups or stacked:
            raise other(tensors, "a stack")
        parts = [assemble(groups[j]) for j in wanted]
        dims = {part.centers.shape[1] for part in parts}
        if weights.shape != (len(parts),) or len(dims) > 1:
            raise other(tensors, "a stack")
        return cls(parts, weights)

    @property
    def centers(self) -> Tensor:
        return torch.cat([part.centers for part in self])

    def __iter__(self) -> Iterator[LevelEnergy]:
        return (part for part in self.parts if isinstance(part, LevelEnergy))

    def forward(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        logs = torch.stack([-part(x, sigma) for part in self], 1)
        return -torch.logsumexp(torch.log(self.weights) + logs, 1)

    def score(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        logs = torch.stack([-part(x, sigma) for part in self], 1)
        share = torch.softmax(torch.log(self.weights) + logs, 1)
        scores = torch.stack([part.score(x, sigma) for part in self], 1)
        return (share[:, :, None] * scores).sum(1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        counts = torch.bincount(which, minlength=len(self.weights)).tolist()
        parts = [
            part.sample(count, generator)
            for part, count in zip(self, counts, strict=True)
            if count
        ]
        x = torch.cat(parts)
        return x[torch.randperm(n, generator=generator)]


def most_rows(d: int, most: int = PROTOTYPES) -> int:
    r"""Returns how many rows of d columns are kept to compare with: `most`, but of many columns
    only `CELLS` numbers, and `FEWEST` rows at least."""
    return min(most, max(FEWEST, CELLS // d))


def assemble(tensors: Mapping[str, Tensor]) -> LevelEnergy:
    r"""Returns the energy with these buffers, by name; raises if they are none of one."""
    if any(t.dtype != torch.float64 for t in tensors.values()):
        raise other(tensors, "a mixture in float64")
    for name, kind in {"weights": Stack, "rows": Rows, "shifts": Clusters}.items():
        if name in tensors:
            return kind.of(tensors)
    raise other(tensors, "a mixture")


def other(tensors: Mapping[str, Tensor], what: str) -> ValueError:
    r"""Returns the error of tensors that are not those of an energy."""
    got = ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors.items())
    return ValueError(f"expected the tensors of {what}, got {brief(got) if got else 'none'}")


def spacing(rows: Tensor, neighbor: int = 3, most: int = 2000) -> float:
    r"""Returns the spacing of rows: the median distance to the third nearest other row, divided
    by :math:`\sqrt{D}`."""
    n, d = rows.shape
    if n < 2:
        return 1.0
    some = rows[: min(n, most)]
    found = torch.cat([
        torch.topk(torch.cdist(part, rows), min(neighbor + 1, n), largest=False).values[:, -1]
        for part in some.split(max(1, NUMBERS // n))
    ])
    return float(found.median()) / math.sqrt(d)
