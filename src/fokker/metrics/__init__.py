r"""Metrics: an energy against an exact truth, samples against data."""

from .density import (
    MixtureReport,
    PlanarReport,
    evaluate_mixture,
    evaluate_planar,
    fisher_gap,
    log_normalizer,
    score_matching_loss,
)
from .fid import FID, KID, Statistics, fid_between, frechet, kid_between, statistics
from .inception import Extractor, load_inception
from .transport import wasserstein

__all__ = [
    "FID",
    "KID",
    "Extractor",
    "MixtureReport",
    "PlanarReport",
    "Statistics",
    "evaluate_mixture",
    "evaluate_planar",
    "fid_between",
    "fisher_gap",
    "frechet",
    "kid_between",
    "load_inception",
    "log_normalizer",
    "score_matching_loss",
    "statistics",
    "wasserstein",
]
