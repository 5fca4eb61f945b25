r"""Metrics: an energy against an exact truth, on data and against itself; samples against data."""

from .density import (
    MixtureReport,
    PlanarReport,
    evaluate_mixture,
    evaluate_planar,
    fisher_gap,
    log_normalizer,
    score_matching_loss,
)
from .fid import (
    FID,
    KID,
    Statistics,
    fid_between,
    frechet,
    kid_between,
    statistics,
)
from .inception import Extractor, load_inception
from .likelihood import Likelihood, bits_per_dimension, dequantize, log_likelihood
from .quality import Quality, Reference, described, judge_images, reference_of
from .residual import Residual, fokker_planck_residual
from .transport import wasserstein

__all__ = [
    "FID",
    "KID",
    "Extractor",
    "Likelihood",
    "MixtureReport",
    "PlanarReport",
    "Quality",
    "Reference",
    "Residual",
    "Statistics",
    "bits_per_dimension",
    "dequantize",
    "described",
    "evaluate_mixture",
    "evaluate_planar",
    "fid_between",
    "fisher_gap",
    "fokker_planck_residual",
    "frechet",
    "judge_images",
    "kid_between",
    "load_inception",
    "log_likelihood",
    "log_normalizer",
    "reference_of",
    "score_matching_loss",
    "statistics",
    "wasserstein",
]
