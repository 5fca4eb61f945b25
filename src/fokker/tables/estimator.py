r"""The base of the estimators: tables in, standardized rows out.

An array is checked as scikit-learn checks it; NaN is a missing value (`fokker.tables.columns`). A
pandas frame is matched by the names of its columns.
"""

__all__ = ["TableEstimator"]

import numpy as np
import torch

from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor
from typing import Any

from .columns import Columns, is_frame


class TableEstimator(BaseEstimator):
    r"""Abstract estimator of tables."""

    columns_: Columns
    n_features_in_: int
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _start(self, X: Any) -> Tensor:
        r"""Fits the map of the columns, and returns the standardized training rows."""
        if is_frame(X):
            if len(X) < 2 or not len(X.columns):
                raise ValueError(f"expected 2 rows and a column or more, got {X.shape}")
            self.n_features_in_ = len(X.columns)
            self.feature_names_in_ = np.array([str(c) for c in X.columns], dtype=object)
        else:
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_  # of a frame that it was fitted to before
            X = validate_data(
                self, X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2
            )
        self.columns_ = Columns.fit(X)
        return torch.from_numpy(self.columns_.encode(X))

    def _rows(self, X: Any) -> Tensor:
        r"""Returns standardized rows."""
        if not (is_frame(X) and self.columns_.named):
            X = validate_data(
                self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False
            )
        return torch.from_numpy(self.columns_.encode(X))

    def _seed(self) -> int:
        r"""Returns the seed that `random_state` gives."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))
