r"""The interface of PyOD: `EnergyDetector`, a `BaseDetector`.

Signs are those of PyOD: `decision_function` and `decision_scores_` are **high** for outliers,
`labels_` and `predict` are 1 for them. The threshold is the one of PyOD: a share `contamination`
of the training rows is above it. Needs ``pip install pyod``.
"""

__all__ = ["EnergyDetector"]


from typing import Any

try:
    from pyod.models.base import BaseDetector
except ImportError:
    raise ImportError("expected PyOD for fokker.tables.pyod: pip install pyod") from None

from .outlier import EnergyOutlier


class EnergyDetector(BaseDetector):
    r"""Creates a detector of PyOD that scores rows by `EnergyOutlier`.

    Arguments:
        contamination: The share of outliers among the training rows, above 0 and up to 0.5; or a
            thresholder of PyThresh, which sets the threshold when the share is not known.
        clean: Whether the training rows are nevertheless taken for normal: `contamination` then
            only sets the threshold.
        prototypes: The largest number of training rows that are kept to compare with.
        random_state: The seed, or a `RandomState`.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(200, 2))
        >>> EnergyDetector().fit(rows).predict([[0.0, 0.0], [9.0, 9.0]])
        array([0, 1])
    """

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        clean: bool = False,
        prototypes: int = 2000,
        random_state: Any = 0,
    ) -> None:
        super().__init__(contamination=contamination)
        self.clean = clean
        self.prototypes = prototypes
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Any:
        r"""Fits the detector to rows; `y` is ignored."""
        self._set_n_classes(y)
        known = isinstance(self.contamination, float | int)
        share = self.contamination if known else "auto"
        self.detector_ = EnergyOutlier(
            0.0 if self.clean else share,
            prototypes=self.prototypes,
            random_state=self.random_state,
        ).fit(X)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Any:
        r"""Returns the surprise of rows, high for outliers."""
        return -self.detector_.score_samples(X)
