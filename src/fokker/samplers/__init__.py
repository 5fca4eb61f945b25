r"""Samplers: Langevin chains, with and without a Metropolis test, and annealing."""

__all__ = [
    "MALA",
    "SAMPLERS",
    "ULA",
    "Acceptance",
    "Annealed",
    "Info",
    "Run",
    "Sampler",
    "State",
    "ess",
    "geometric",
    "rhat",
    "standard_error",
]

from .annealed import Annealed, geometric
from .base import Info, Run, Sampler, State
from .diagnostics import Acceptance, ess, rhat, standard_error
from .langevin import MALA, ULA

SAMPLERS: dict[str, type[Sampler]] = {"ula": ULA, "mala": MALA, "annealed": Annealed}
