r"""`EnergyOutlier`: anomalies of a table by the surprise of energies.

Signs are those of scikit-learn: `score_samples` and `decision_function` are **low** for outliers,
`predict` returns -1 for them. (PyOD's are high; `fokker.tables.pyod` has its interface.)

The **p-value** of a row is the share of held-out normal rows that are at least as odd. Held-out
rows are judged by experts that were fitted without them, a fifth of the rows at a time. A row is
an alarm if its surprise is above that of all but a share `alarm_rate` of the held-out rows; the
standard error of that rate is :math:`\sqrt{r (1 - r) / m}` with m held-out rows.
"""

__all__ = ["EnergyOutlier", "Explanation"]

import numpy as np
import torch

from dataclasses import dataclass
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted
from typing import Any, Literal, Self

from .estimator import TableEstimator
from .surprise import Surprise, held_out
from .. import checks
from ..metrics.attribution import contributions, nearest, p_values, threshold


@dataclass(frozen=True)
class Explanation:
    r"""Creates the explanation of rows.

    Arguments:
        columns: The names of the columns.
        surprise: The surprise of each row, :math:`(B)`, high for odd rows.
        contributions: What each column adds to it above that of the nearest likely row,
            :math:`(B, D)`.
        nearest: The nearest likely row of each, in the units of the table.
        index: The number of that row among the training rows, from 0, :math:`(B)`.
        p_value: The share of held-out rows that are at least as odd, :math:`(B)`.
    """

    columns: tuple[str, ...]
    surprise: np.ndarray
    contributions: np.ndarray
    nearest: list[dict[str, Any]]
    index: np.ndarray
    p_value: np.ndarray

    def reasons(self, most: int = 3) -> list[list[tuple[str, float]]]:
        r"""Returns the columns that add most to the surprise of each row, the largest first."""
        order = np.argsort(-self.contributions, axis=1)[:, :most]
        return [
            [(self.columns[j], float(row[j])) for j in which if row[j] > 0]
            for row, which in zip(self.contributions, order, strict=True)
        ]


class EnergyOutlier(OutlierMixin, TableEstimator):
    r"""Creates a detector of outliers that works on any finite table, in seconds.

    Arguments:
        contamination: What is known of the training rows: ``"auto"``, nothing; 0, that all are
            normal, which finds most if it is true; or the share of outliers among them, up to
            0.5, which also sets the threshold, so that this share of them is predicted to be -1.
        alarm_rate: The share of normal rows that may be predicted to be outliers, if
            `contamination` is ``"auto"`` or 0.
        prototypes: The largest number of training rows that are kept to compare with; of more
            than 75 columns fewer, but 500 or more.
        correction: Whether the mixture is given a learned correction, if that is a gain on
            held-out rows (`fokker.tables.correction`). Trials found no gain in detection.
        random_state: The seed, or a `RandomState`.

    Attributes:
        offset_: `decision_function` is `score_samples` minus this.
        threshold_: The surprise above which a row is an outlier.
        labels_: The predictions for the training rows, 1 or -1.
        reference_: The surprise of held-out rows, in ascending order.
        alarm_rate_, alarm_rate_error_: The share of held-out rows above the threshold, and its
            binomial standard error.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(200, 2))
        >>> detector = EnergyOutlier().fit(rows)
        >>> detector.predict([[0.0, 0.0], [9.0, 9.0]])
        array([ 1, -1])
    """

    def __init__(
        self,
        contamination: float | Literal["auto"] = "auto",
        *,
        alarm_rate: float = 0.05,
        prototypes: int = 2000,
        correction: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.contamination = contamination
        self.alarm_rate = alarm_rate
        self.prototypes = prototypes
        self.correction = correction
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        r"""Fits the detector to rows; `y` is ignored."""
        share = self._share()
        if not 0 < self.alarm_rate < 1:
            raise ValueError(
                f"expected alarm_rate strictly between 0 and 1, got {self.alarm_rate!r}"
            )
        checks.positive_integer(prototypes=self.prototypes)
        z = self._start(X)
        seed = self._seed()
        fit = lambda rows: Surprise.fit(rows, share, self.prototypes, self.correction, seed)
        self.surprise_ = fit(z)
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
        self.reference_ = held_out(z, fit, self.surprise_, order).numpy()
        surprise = self.surprise_(z, apart=True).numpy()
        if share:
            self.offset_ = float(np.percentile(-surprise, 100 * share))
        else:
            limit, _ = threshold(torch.from_numpy(self.reference_), self.alarm_rate)
            self.offset_ = -limit
        self.threshold_ = -self.offset_
        m = len(self.reference_)
        self.alarm_rate_ = float((self.reference_ > self.threshold_).mean())
        self.alarm_rate_error_ = float(np.sqrt(self.alarm_rate_ * (1 - self.alarm_rate_) / m))
        self.labels_ = np.where(-surprise >= self.offset_, 1, -1)
        keep = order[: self.prototypes]
        self.prototype_index_ = keep.numpy()
        self._kept = (z[keep], torch.from_numpy(surprise)[keep])
        return self

    def _share(self) -> float | None:
        r"""Returns the share of outliers; `None` if it is not known."""
        c = self.contamination
        if isinstance(c, str):
            if c != "auto":
                raise ValueError(
                    f"expected contamination to be 'auto' or from 0 to 0.5, got {c!r}"
                )
            return None
        checks.between(0.0, 0.5, contamination=float(c))
        return float(c)

    def _surprise(self, X: Any) -> np.ndarray:
        z = self._rows(X)
        with torch.no_grad():
            return self.surprise_(z, apart=True).numpy()

    def score_samples(self, X: Any) -> Any:
        r"""Returns minus the surprise of rows, high for normal rows. A row that is a training row
        is judged without itself."""
        check_is_fitted(self)
        return -self._surprise(X)

    def decision_function(self, X: Any) -> np.ndarray:
        r"""Returns `score_samples` minus `offset_`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        r"""Returns 1 for normal rows and -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def scores(self, X: Any) -> Any:
        r"""Returns a frame of score, p-value and prediction with the ids of the rows of a pandas
        frame."""
        if not hasattr(X, "index"):
            raise ValueError(f"expected a pandas frame, got {type(X).__name__}")
        score = self.score_samples(X)
        reference = torch.from_numpy(self.reference_)
        p = p_values(reference, torch.from_numpy(-score)).numpy()
        columns = {"score": score, "p_value": p, "outlier": score < self.offset_}
        return type(X)(columns, index=X.index)

    def p_values(self, X: Any) -> np.ndarray:
        r"""Returns the share of held-out rows that are at least as odd as each row; uniform for
        normal rows, near 0 for outliers."""
        check_is_fitted(self)
        reference = torch.from_numpy(self.reference_)
        return p_values(reference, torch.from_numpy(self._surprise(X))).numpy()

    def alarm_threshold(self, rate: float) -> tuple[float, float]:
        r"""Returns the surprise above which a share `rate` of normal rows lies, and the standard
        error of that share."""
        check_is_fitted(self)
        if not 0 < rate < 1:
            raise ValueError(f"expected rate strictly between 0 and 1, got {rate!r}")
        return threshold(torch.from_numpy(self.reference_), rate)

    def explain(self, X: Any) -> Explanation:
        r"""Returns why rows are odd: column by column, against the nearest likely row."""
        check_is_fitted(self)
        z, (rows, surprise) = self._rows(X), self._kept
        which = nearest(rows, surprise, z)
        parts = contributions(self.surprise_, z, rows[which]).detach().numpy()
        with torch.no_grad():
            now = self.surprise_(z)
        reference = torch.from_numpy(self.reference_)
        return Explanation(
            self.columns_.names,
            now.numpy(),
            self.columns_.gather(parts),
            self.columns_.decode(rows[which].numpy()),
            self.prototype_index_[which.numpy()],
            p_values(reference, self.surprise_(z, apart=True)).numpy(),
        )
