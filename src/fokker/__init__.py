r"""fokker: energy-based models trained with diffusion contrastive divergences."""

import signal
import sys

# Ctrl-C while the command line is imported, which takes seconds, ends it without a traceback
if (sys.argv[:1] == ["-m"] or sys.argv[0].endswith("/fokker")) and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

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
from .compute.fitting import fit_energy
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
    "fit_energy",
    "grid",
    "load",
    "metrics",
    "networks",
    "objectives",
    "samplers",
    "score",
]

__version__ = "0.1.0"
