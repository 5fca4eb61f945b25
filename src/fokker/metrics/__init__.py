r"""Metrics that judge an energy against an exact truth."""

from .density import (
    MixtureReport,
    PlanarReport,
    evaluate_mixture,
    evaluate_planar,
    fisher_gap,
    log_normalizer,
    score_matching_loss,
)
from .transport import wasserstein

__all__ = [
    "MixtureReport",
    "PlanarReport",
    "evaluate_mixture",
    "evaluate_planar",
    "fisher_gap",
    "log_normalizer",
    "score_matching_loss",
    "wasserstein",
]
