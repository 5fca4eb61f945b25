r"""Metrics: an energy against an exact truth, on data and against itself; samples against data."""

from .constant import Constant, TiedEnergy, top_constant
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
from .ranking import auroc
from .residual import Residual, fokker_planck_residual
from .transport import wasserstein

__all__ = [
    "FID",
    "KID",
    "Constant",
    "Extractor",
    "Likelihood",
    "MixtureReport",
    "PlanarReport",
    "Residual",
    "Statistics",
    "TiedEnergy",
    "auroc",
    "bits_per_dimension",
    "dequantize",
    "evaluate_mixture",
    "evaluate_planar",
    "fid_between",
    "fisher_gap",
    "fokker_planck_residual",
    "frechet",
    "kid_between",
    "load_inception",
    "log_likelihood",
    "log_normalizer",
    "score_matching_loss",
    "statistics",
    "top_constant",
    "wasserstein",
]
