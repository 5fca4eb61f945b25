r"""Gaussian mixtures in d = 8, 32 and 64: what the 2-D recipe does in higher dimension.

Eight Gaussians of standard deviation 0.7 with means at radius 5. The short term uses one
Rademacher probe instead of the exact Laplacian, steps of :math:`t = 10^{-3}` and no Fourier
features; all methods share the network, a confining quadratic, the steps and the batch.

In d = 64 the long term's Monte-Carlo evolution degenerates at large noise, so its times stop at
the width of a component.
"""

__all__ = ["DIMENSIONS", "METHODS", "run"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker.analytic import ring_of_gaussians
from fokker.compute.stack import train_stack
from fokker.derivatives import Hutchinson
from fokker.evolution import MonteCarlo, Taylor
from fokker.metrics import evaluate_mixture
from fokker.objectives import (
    CD,
    DCD,
    DenoisingScoreMatching,
    LogUniform,
    MultiTimeDCD,
    Objective,
    ScoreMatching,
)
from fokker.runs.config import Network, Optimization
from pathlib import Path

from . import results
from .units import begin

DIMENSIONS = (8, 32, 64)
METHODS: dict[str, Objective] = {
    "dcd": MultiTimeDCD(
        DCD(evolution=Taylor("start"), laplacian=Hutchinson(), step=1e-3, antithetic=True),
        DCD(evolution=MonteCarlo(16), step=LogUniform(0.1**2, 0.7**2), rate=False),
        weight=1.0,
    ),
    "dcd-short": DCD(
        evolution=Taylor("start"), laplacian=Hutchinson(), step=1e-3, antithetic=True
    ),
    "sm": ScoreMatching(Hutchinson()),
    "dsm": DenoisingScoreMatching(0.1),
    "cd": CD(steps=10, step_size=0.02),
}
NETWORK = Network(confine=3.0)
OPTIMIZATION = Optimization(steps=5000)


def run(
    path: Path,
    device: str = "cpu",
    steps: int | None = None,
    dimensions: Sequence[int] = DIMENSIONS,
    seeds: Sequence[int] = (0, 1, 2),
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Trains every method in every dimension and writes the rows after each; those in the file
    already are not trained again."""
    rows = results.load(path)["rows"] if path.exists() else []
    optimization = OPTIMIZATION if steps is None else replace(OPTIMIZATION, steps=steps)
    made = {(row["d"], row["method"]) for row in rows}
    units = begin("reproduce mixtures", len(dimensions) * len(METHODS) - len(made))
    for D in dimensions:
        truth = ring_of_gaussians(D).to(device)
        for method, objective in METHODS.items():
            if any((row["d"], row["method"]) == (D, method) for row in rows):
                continue
            out = train_stack(
                [truth] * len(seeds), objective, NETWORK, optimization, seeds, device,
                units.within(optimization.steps),
            )  # fmt: skip
            for seed, energy, finite in zip(seeds, out.energies, out.finite, strict=True):
                report = evaluate_mixture(energy, truth) if finite else None
                rows.append({
                    "d": D,
                    "method": method,
                    "seed": seed,
                    "fisher_gap": report and report.fisher_gap,
                    "kl": report and report.kl,
                    "kl_error": report and report.kl_error,
                    "ess": report and report.ess,
                    "diverged": report is None or report.fisher_gap > 1,
                    "steps": optimization.steps,
                    "batch": optimization.batch,
                    "seconds": round(out.seconds / len(seeds), 3),
                })
            results.save(path, rows, f"fokker reproduce mixtures --device {device}", device=device)
            units.done()
            progress(f"d={D} {method}: gap {rows[-1]['fisher_gap']}, KL {rows[-1]['kl']}")
