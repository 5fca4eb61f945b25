r"""Data sets.

The function `planar.planar` is not re-exported, as its name is that of its module.
"""

__all__ = [
    "PLANAR",
    "Checkerboard",
    "Circles",
    "EightGaussians",
    "Moons",
    "Pinwheel",
    "Planar",
    "Rings",
    "SwissRoll",
    "TwoSpirals",
]

from .planar import (
    PLANAR,
    Checkerboard,
    Circles,
    EightGaussians,
    Moons,
    Pinwheel,
    Planar,
    Rings,
    SwissRoll,
    TwoSpirals,
)
