r"""The generation study: the paper's CelebA table, our energies, and what they cost.

Each method trains in a folder of its own and leaves small snapshots of its average weights by the
clock; afterwards samples are drawn, judged by FID and KID, and shown. The stages `train`,
`sample`, `fid` and `figures` can run apart and be stopped at any time: what is done is kept and
not done again.
"""

from .judging import collect, judge
from .parts import (
    DRAWS,
    METHODS,
    STAGES,
    Clock,
    Draw,
    Part,
    Settings,
    draws_of,
)
from .working import sample, train

__all__ = [
    "DRAWS",
    "METHODS",
    "STAGES",
    "Clock",
    "Draw",
    "Part",
    "Settings",
    "collect",
    "draws_of",
    "judge",
    "sample",
    "train",
]
