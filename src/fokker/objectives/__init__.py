r"""Objectives, each named after its method."""

from .base import WHOLE, Objective, Output, Share, interleave
from .cd import CD, PCD, Particles
from .dcd import DCD, EnergyDiscrepancy, MultiTimeDCD
from .laws import Grid, LogNormal, LogUniform, Preserving, Uniform, Wide, lens
from .levels import (
    FORMS,
    TIES,
    Bridge,
    Central,
    Classification,
    Denoising,
    Form,
    LevelDCD,
    Limit,
    Noisy,
    Tie,
    TimeScore,
)
from .recovery import RecoveryLikelihood
from .score import DenoisingScoreMatching, ScoreMatching, SlicedScoreMatching

__all__ = [
    "CD",
    "DCD",
    "FORMS",
    "OBJECTIVES",
    "PCD",
    "TIES",
    "WHOLE",
    "Bridge",
    "Central",
    "Classification",
    "Denoising",
    "DenoisingScoreMatching",
    "EnergyDiscrepancy",
    "Form",
    "Grid",
    "LevelDCD",
    "Limit",
    "LogNormal",
    "LogUniform",
    "MultiTimeDCD",
    "Noisy",
    "Objective",
    "Output",
    "Particles",
    "Preserving",
    "RecoveryLikelihood",
    "ScoreMatching",
    "Share",
    "SlicedScoreMatching",
    "Tie",
    "TimeScore",
    "Uniform",
    "Wide",
    "interleave",
    "lens",
]

OBJECTIVES: dict[str, type[Objective]] = {
    "dcd": DCD,
    "multi-time": MultiTimeDCD,
    "level-dcd": LevelDCD,
    "noisy": Noisy,
    "denoising": Denoising,
    "cd": CD,
    "pcd": PCD,
    "sm": ScoreMatching,
    "ssm": SlicedScoreMatching,
    "dsm": DenoisingScoreMatching,
    "ed": EnergyDiscrepancy,
    "recovery": RecoveryLikelihood,
}
