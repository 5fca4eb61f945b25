r"""Metrics that judge an energy against an exact truth, on data, and against itself."""

from .density import (
    MixtureReport,
    PlanarReport,
    evaluate_mixture,
    evaluate_planar,
    fisher_gap,
    log_normalizer,
    score_matching_loss,
)
from .likelihood import Likelihood, bits_per_dimension, dequantize, log_likelihood
from .residual import Residual, fokker_planck_residual
from .transport import wasserstein

__all__ = [
    "Likelihood",
    "MixtureReport",
    "PlanarReport",
    "Residual",
    "bits_per_dimension",
    "dequantize",
    "evaluate_mixture",
    "evaluate_planar",
    "fisher_gap",
    "fokker_planck_residual",
    "log_likelihood",
    "log_normalizer",
    "score_matching_loss",
    "wasserstein",
]
