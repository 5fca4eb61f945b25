r"""`EnergyDensity`: the density of a table, normalized and exact at every noise level.

The base is a mixture of mixtures,

.. math:: p_0(z) = \sum_j w_j \, p_j(z), \quad
    w = \arg\max_w \sum_n \log \sum_j w_j \, p_j^{(-n)}(z_n) ,

of mixtures of 1 to 32 Gaussians and of kernel densities at three widths, round and in the shape of
the covariance. The weights maximize the likelihood of held-out rows (stacking), where
:math:`p_j^{(-n)}` was fitted without row n; so the base is about as good as the best of them. All
of it is one mixture of Gaussians: :math:`Z = 1`, samples are exact.

With `correction`, a correction is learned on top (`fokker.tables.energy`). It is kept only if the
likelihood of held-out rows is better by more than two standard errors, with :math:`\log Z` by
particles (`fokker.samplers.normalizer`) and its error.

In the units of the table, :math:`\log p_x(x) = \log p(z) - \sum_d \log s_d` over the columns that
vary. A column that is constant in the training rows has no density: a row with another value there
is less likely by a factor :math:`e^{-1000}`. No Gaussian is narrower than 0.01 standard
deviations of the data: the density of a column with few different values depends on that floor.

References:
    | Linearly Combining Density Estimators via Stacking (Smyth and Wolpert, 1999)
"""

__all__ = ["EnergyDensity"]

import numpy as np
import torch

from collections.abc import Callable
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing import Any, Self

from .energy import Corrected, learn
from .estimator import TableEstimator
from .mixture import LEADING, Clusters, LevelEnergy, Rows, Stack, spacing
from ..analytic import fit_mixture
from ..samplers.normalizer import normalize

COMPONENTS = (1, 2, 4, 8, 16, 32)
PER_COMPONENT = 10  # rows
ITERATIONS = 30
SHRINKS = (1.0, 0.02)  # of the covariances: where columns nearly follow from others, the least
WIDTHS = (0.35, 0.7, 1.4)  # of the kernels, in units of the spacing
FLOOR = 0.01
ROWS = 4000  # that mixtures are fitted to, at most
PROTOTYPES = 2000  # rows of a kernel density, at most
FOLDS, WHOLE = 5, 1500  # of the cross-validation; above so many rows only one fold is held out
LEAST = 1e-3  # weight
ERRORS = 2.0
OFF = 1000.0  # nats by which a row is less likely for each constant that it does not have

Candidate = Callable[[Tensor, torch.Generator], LevelEnergy]


def candidates(n: int, d: int) -> list[Candidate]:
    r"""Returns what the base is made of, for n training rows of d columns."""

    def clusters(k: int, shrink: float) -> Candidate:
        return lambda z, g: Clusters.fit(z[:ROWS], k, FLOOR, ITERATIONS, g, shrink)

    def kernel(width: float, round_: bool) -> Candidate:
        def fit(z: Tensor, g: torch.Generator) -> LevelEnergy:
            rows = z[:PROTOTYPES]
            if round_:
                return Rows(rows, max(width * spacing(rows), FLOOR))
            return Rows.shaped(rows, width, FLOOR)

        return fit

    few = [
        clusters(k, shrink)
        for shrink in SHRINKS
        for k in COMPONENTS
        if k == 1 or k * PER_COMPONENT <= n
    ]
    if n < 10:
        return few
    shapes = (True, False) if d <= LEADING else (True,)  # the covariance of many costs too much
    return few + [kernel(width, round_) for round_ in shapes for width in WIDTHS]


def stack(z: Tensor, generator: torch.Generator) -> Stack:
    r"""Returns the mixture of candidates with the weights of the cross-validation."""
    found = candidates(len(z) * (FOLDS - 1) // FOLDS, z.shape[1])
    if len(found) == 1:
        return Stack([found[0](z, generator)], z.new_ones(1))
    logs = []
    for fold in torch.arange(len(z)).chunk(FOLDS)[: FOLDS if len(z) <= WHOLE else 1]:
        others = torch.ones(len(z), dtype=torch.bool)
        others[fold] = False
        held = z[fold[:PROTOTYPES]]
        logs.append(torch.stack([-fit(z[others], generator)(held) for fit in found], 1))
    weights = mixing(torch.cat(logs))
    kept = [j for j in range(len(found)) if weights[j] >= LEAST]
    return Stack([found[j](z, generator) for j in kept], weights[kept])


def mixing(logs: Tensor, iterations: int = 200) -> Tensor:
    r"""Returns the weights of J densities that maximize the likelihood of rows.

    Arguments:
        logs: The log-densities of rows under each, :math:`(N, J)`.
        iterations: The iterations of expectation maximization.
    """
    log_w = torch.zeros_like(logs[0]) - np.log(logs.shape[1])
    for _ in range(iterations):
        share = torch.softmax(log_w + logs, 1)
        log_w = torch.log(share.mean(0).clamp_min(1e-300))
    return torch.exp(log_w)


class EnergyDensity(DensityMixin, TableEstimator):
    r"""Creates an estimator of the density of a table.

    Arguments:
        correction: Whether a correction is learned on top of the base, and kept if held-out rows
            become more likely.
        random_state: The seed, or a `RandomState`.

    Attributes:
        energy_: The energy of standardized columns that vary, :math:`E(z, \sigma)`.
        log_z_, log_z_error_: Its :math:`\log Z` and the standard error: both 0 without a
            correction.
        constant_: The names of the columns that are constant.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(500, 1))
        >>> density = EnergyDensity().fit(rows)
        >>> density.score_samples([[0.0]])  # -log(2 pi) / 2 = -0.9
        array([-0.9])
    """

    def __init__(self, *, correction: bool = False, random_state: Any = 0) -> None:
        self.correction = correction
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        r"""Fits the density to rows; `y` is ignored."""
        z = self._start(X)
        self.constant_ = self.columns_.constant
        self.varies_ = z.amin(0) < z.amax(0)
        generator = torch.Generator().manual_seed(seed := self._seed())
        z = z[:, self.varies_][torch.randperm(len(z), generator=generator)]
        self.energy_, self.log_z_, self.log_z_error_ = None, 0.0, 0.0
        if not z.shape[1]:
            return self
        self.energy_ = stack(z, generator)
        if self.correction and len(z) >= 100:
            self._correct(z, seed, generator)
        return self

    def _correct(self, z: Tensor, seed: int, generator: torch.Generator) -> None:
        r"""Learns a correction and keeps it if it makes held-out rows more likely."""
        held = len(z) // 5
        train, validation = z[2 * held :], z[:held]
        judge = z[held : 2 * held]
        base = stack(train, generator)
        level = max(spacing(train) / 2, FLOOR)
        outcome = learn(base, train, validation, level, seed)
        if not isinstance(outcome.energy, Corrected):
            return
        # both at the lowest level that was learned
        found = self._normalize(energy := outcome.energy, level, train, generator)
        if found is None:
            return
        log_z, error = found
        with torch.no_grad():
            gain = base(judge, level) - energy(judge, level) - log_z
            loss = base(judge, level) - base(judge)  # what the level costs
        gain = gain - loss.clamp_min(0)
        spread = float(gain.std() / len(gain) ** 0.5)
        if float(gain.mean()) > ERRORS * (spread**2 + error**2) ** 0.5:
            assert isinstance(self.energy_, Stack)
            energy.base = self.energy_
            again = self._normalize(energy, level, z, generator)
            if again is not None:
                self.energy_, self.level_ = energy, level
                self.log_z_, self.log_z_error_ = again

    def _normalize(
        self, energy: Corrected, level: float, z: Tensor, generator: torch.Generator
    ) -> tuple[float, float] | None:
        r"""Returns :math:`\log Z` of an energy at a level and its error; `None` if it is not
        known."""
        found = normalize(lambda x: energy(x, level), fit_mixture(z, generator=generator))
        return (found.log_z, found.error) if found.known else None

    def score_samples(self, X: Any) -> np.ndarray:
        r"""Returns the log-density of rows in the units of the table, high for likely rows."""
        check_is_fitted(self)
        z = self._rows(X)
        logs = -OFF * (z[:, ~self.varies_] != 0).double().sum(1)
        if self.energy_ is not None:
            level = getattr(self, "level_", 0.0)
            with torch.no_grad():
                logs = logs - self.energy_(z[:, self.varies_], level) - self.log_z_
        return (logs - self.columns_.log_volume).numpy()

    def score(self, X: Any, y: Any = None) -> Any:
        r"""Returns the mean log-density of rows, as scikit-learn's `GaussianMixture`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        r"""Returns rows drawn from the density, :math:`(n, D)`, in the units of the table.

        Rows of the base are exact; of a density with a correction they are resampled from the
        base in proportion to :math:`e^{-f}`.
        """
        check_is_fitted(self)
        generator = torch.Generator()
        seed = self.random_state if random_state is None else random_state
        generator.manual_seed(int(np.random.default_rng(seed).integers(2**31)))
        z = torch.zeros(n_samples, len(self.varies_), dtype=torch.float64)
        if self.energy_ is not None:
            z[:, self.varies_] = self._draw(n_samples, generator)
        rows = self.columns_.decode(z.numpy())
        return np.array([list(row.values()) for row in rows])

    def _draw(self, n: int, generator: torch.Generator) -> Tensor:
        energy = self.energy_
        if isinstance(energy, LevelEnergy):
            return energy.sample(n, generator)
        assert isinstance(energy, Corrected)
        x = energy.base.sample(20 * n, generator)
        x = x + self.level_ * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        with torch.no_grad():
            weights = torch.softmax(-energy.correction(x, self.level_), 0)
        return x[torch.multinomial(weights, n, replacement=False, generator=generator)]
