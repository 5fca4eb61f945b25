r"""Data sets."""

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
    "toy",
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
    toy,
)
