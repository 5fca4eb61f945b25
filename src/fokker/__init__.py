r"""fokker: energy-based models trained with diffusion contrastive divergences."""

from . import (
    analytic,
    data,
    derivatives,
    diffusions,
    energies,
    evolution,
    grid,
    metrics,
    networks,
    objectives,
    samplers,
)
from .derivatives import score
from .energies import Energy, LogDensity
from .runs.loading import load
from .runs.training import fit

__all__ = [
    "Energy",
    "LogDensity",
    "analytic",
    "data",
    "derivatives",
    "diffusions",
    "energies",
    "evolution",
    "fit",
    "grid",
    "load",
    "metrics",
    "networks",
    "objectives",
    "samplers",
    "score",
]

__version__ = "0.1.0"
