r"""`EnergyDensity`: the density of a table, normalized and exact at every noise level.

The base is a mixture of mixtures whose weights held-out rows choose (`fokker.tables.stacking`):
:math:`Z = 1`, samples are exact. With `correction`, a correction is learned on top
(`fokker.tables.correction`). It is kept only if rows that took no part become more likely by more
than two standard errors.

In the units of the table, :math:`\log p_x(x) = \log p(z) - \sum_d \log s_d` over the columns that
vary. A column that is constant in the training rows has no density: a row with another value there
is less likely by a factor :math:`e^{-1000}`.
"""

__all__ = ["EnergyDensity"]

import numpy as np
import torch

from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing import Any, Self

from .columns import OFF
from .correction import Corrected, draw, learn, tilt
from .estimator import TableEstimator
from .mixture import LevelEnergy
from .stacking import stack

ERRORS = 2.0
LEVEL = 0.1  # at which the correction is read


class EnergyDensity(DensityMixin, TableEstimator):
    r"""Creates an estimator of the density of a table.

    Arguments:
        correction: Whether a correction is learned on top of the base, and kept if held-out rows
            become more likely.
        random_state: The seed, or a `RandomState`.

    Attributes:
        energy_: The energy of standardized columns that vary, :math:`E(z, \sigma)`: a
            `Corrected`, or the base alone.
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
        self.steady_ = z[0].clone()  # of the coordinates that do not vary
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
        outcome = learn(stack(train, generator), train, validation, LEVEL, seed)
        if not isinstance(energy := outcome.energy, Corrected):
            return
        found = tilt(energy, LEVEL, generator)
        with torch.no_grad():
            gain = -energy.correction(judge, LEVEL) - found.log_z
        spread = float(gain.std() / len(gain) ** 0.5)
        if float(gain.mean()) > ERRORS * (spread**2 + found.error**2) ** 0.5:
            assert isinstance(self.energy_, LevelEnergy)
            energy.base = self.energy_  # that of all rows
            self.energy_ = energy
            self.log_z_, self.log_z_error_, _ = tilt(energy, LEVEL, generator)

    def score_samples(self, X: Any) -> np.ndarray:
        r"""Returns the log-density of rows in the units of the table, high for likely rows."""
        check_is_fitted(self)
        z = self._rows(X)
        logs = -OFF * (z != self.steady_)[:, ~self.varies_].double().sum(1)
        if self.energy_ is not None:
            inner = z[:, self.varies_]
            with torch.no_grad():
                if isinstance(self.energy_, Corrected):
                    logs = logs - self.energy_.tilted(inner, LEVEL) - self.log_z_
                else:
                    logs = logs - self.energy_(inner)
        return (logs - self.columns_.log_volume).numpy()

    def score(self, X: Any, y: Any = None) -> Any:
        r"""Returns the mean log-density of rows, as scikit-learn's `GaussianMixture`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        r"""Returns rows drawn from the density, :math:`(n, D)`, in the units of the table.

        Rows of the base are exact; those of a density with a correction are rows of the base that
        are accepted in proportion to :math:`e^{-f}` (`fokker.tables.correction`).
        """
        check_is_fitted(self)
        generator = torch.Generator()
        seed = self.random_state if random_state is None else random_state
        generator.manual_seed(int(np.random.default_rng(seed).integers(2**31)))
        z = self.steady_.repeat(n_samples, 1)
        if self.energy_ is not None:
            z[:, self.varies_] = self._draw(n_samples, generator)
        rows = self.columns_.decode(z.numpy())
        return np.array([list(row.values()) for row in rows])

    def _draw(self, n: int, generator: torch.Generator) -> Tensor:
        energy = self.energy_
        if isinstance(energy, Corrected):
            return draw(energy, LEVEL, n, generator)
        assert isinstance(energy, LevelEnergy)
        return energy.sample(n, generator)
