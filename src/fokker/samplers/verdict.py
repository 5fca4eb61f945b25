r"""The verdict on samples: the figures that say whether to trust them.

Samples of particles (`fokker.samplers.particles`) are trusted if

- the moves are accepted, 10 % of them or more on every rung;
- R-hat of the coordinates and the energy, with an island as a chain, is at most 1.05;
- the effective share of the weights is 5 % or more on every rung;
- :math:`\log Z` is known to half a nat, by the spread of the islands;
- two halves of the islands agree in the mean energy and in :math:`\log Z`, within six standard
  errors of their difference.

Samples drawn on a grid (`fokker.samplers.inversion`) are exact and independent.
"""

__all__ = ["Sampled", "Verdict", "judge_particles"]

import math

from dataclasses import dataclass
from torch import Tensor
from typing import NamedTuple

from .particles import Population, Unreliable

ACCEPTED = 0.1
RHAT = 1.05
SHARE = 0.05
KNOWN = 0.5  # nats
APART = 6.0  # standard errors


@dataclass(frozen=True)
class Verdict:
    r"""What is known of samples.

    Arguments:
        said: How they were drawn, and the figures, in words.
        faults: What speaks against them, one line each; none if they are to be trusted.
        figures: The figures, by name.
    """

    said: str
    faults: tuple[str, ...]
    figures: dict[str, float]

    @property
    def sentence(self) -> str:
        r"""What is known, on one line, faults first."""
        if self.faults:
            return f"Not to be trusted: {'; '.join(self.faults)} ({self.said})"
        return f"{self.said[0].upper()}{self.said[1:]}."

    def trust(self) -> None:
        r"""Raises `Unreliable`, with all faults on one line, if there are any."""
        if self.faults:
            raise Unreliable(f"{'; '.join(self.faults)} ({self.said})")


class Sampled(NamedTuple):
    r"""Samples and the verdict on them."""

    points: Tensor  # (n, D)
    verdict: Verdict


def halves_apart(values: Tensor) -> float:
    r"""Returns the difference of the means of two halves of the islands, in its standard
    errors."""
    n = len(values) // 2
    spread = float((values[:n].var() + values[n : 2 * n].var()).div(n).sqrt())
    gap = abs(float(values[:n].mean() - values[n : 2 * n].mean()))
    return gap / spread if spread > 0 else math.inf if gap > 0 else 0.0


def judge_particles(found: Population) -> Verdict:
    r"""Returns the verdict on the particles of a run."""
    apart = {
        "mean energy": halves_apart(found.energies),
        "log Z": halves_apart(found.islands),
    }
    faults = []
    if found.acceptance < ACCEPTED:
        faults.append(
            f"expected {ACCEPTED:.0%} or more of the moves to be accepted on every rung, got"
            f" {found.acceptance:.1%}"
        )
    if not found.rhat <= RHAT:
        faults.append(f"expected R-hat of the islands <= {RHAT}, got {found.rhat:.3f}")
    if not found.share >= SHARE:
        faults.append(
            f"expected an effective share of the weights of {SHARE:.0%} or more on every rung,"
            f" got {found.share:.1%}"
        )
    if not found.error <= KNOWN:
        faults.append(f"expected log Z to {KNOWN} nats, got a standard error of {found.error:.3g}")
    faults += [
        f"expected two halves of the particles to agree, got the {name} {errors:.1f} standard"
        " errors apart"
        for name, errors in apart.items()
        if not errors <= APART
    ]
    said = (
        f"{len(found.samples)} particles in {len(found.islands)} islands, {found.rungs} rungs:"
        f" acceptance {found.acceptance:.0%} or more, R-hat {found.rhat:.3f}, effective size"
        f" {found.size:.0f}, effective share {found.share:.0%} or more, log Z"
        f" {found.log_z:.3f} ± {found.error:.3f}, halves {apart['mean energy']:.1f} (energy) and"
        f" {apart['log Z']:.1f} (log Z) standard errors apart"
    )
    figures = {
        "acceptance": found.acceptance, "rhat": found.rhat, "ess": found.size,
        "share": found.share, "log_z": found.log_z, "log_z_error": found.error,
    }  # fmt: skip
    return Verdict(said, tuple(faults), figures)
