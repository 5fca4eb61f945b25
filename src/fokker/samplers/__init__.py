r"""Samplers: chains, annealing, particles, exact samples in the plane, flows and guidance."""

__all__ = [
    "FLOWS",
    "HMC",
    "MALA",
    "SAMPLERS",
    "ULA",
    "Acceptance",
    "Annealed",
    "Bracket",
    "Churn",
    "Corrector",
    "Descent",
    "Drawn",
    "Euler",
    "Field",
    "Flow",
    "Guided",
    "Heun",
    "Info",
    "Inverted",
    "Ladder",
    "LevelParticles",
    "Multistep",
    "Multistep3",
    "Normalized",
    "Normalizer",
    "OfClasses",
    "Particles",
    "Population",
    "Run",
    "Sampled",
    "Sampler",
    "State",
    "Tempered",
    "Unreliable",
    "Verdict",
    "as_mixture",
    "bracket",
    "calibrate",
    "class_energies",
    "confining",
    "draw",
    "draw_particles",
    "ess",
    "geometric",
    "invert",
    "invert_anywhere",
    "judge_particles",
    "karras",
    "log_probs",
    "normalize",
    "rhat",
    "standard_error",
    "widened",
]

from .annealed import Annealed, geometric
from .base import Info, Run, Sampler, State
from .bases import confining, widened
from .classes import OfClasses, calibrate, class_energies, log_probs
from .corrector import Corrector
from .diagnostics import Acceptance, ess, rhat, standard_error
from .draw import draw, draw_particles
from .exact import Normalized, as_mixture
from .field import Field
from .flow import Churn, Drawn, Euler, Flow, Heun, Multistep, Multistep3, karras
from .guidance import Guided
from .hamiltonian import HMC
from .inversion import Inverted, invert, invert_anywhere
from .langevin import MALA, ULA
from .levels import Descent, LevelParticles
from .normalizer import Bracket, Normalizer, bracket, normalize
from .particles import Ladder, Particles, Population, Unreliable
from .tempering import Tempered
from .verdict import Sampled, Verdict, judge_particles

SAMPLERS: dict[str, type[Sampler]] = {
    "ula": ULA,
    "mala": MALA,
    "hmc": HMC,
    "annealed": Annealed,
    "tempered": Tempered,
}
FLOWS: dict[str, type[Flow]] = {
    "euler": Euler,
    "heun": Heun,
    "multistep": Multistep,
    "multistep3": Multistep3,
}
