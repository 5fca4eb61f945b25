r"""Gradients over ranks: those of one rank, for every objective.

Each case is an objective on an energy in float64. Every rank takes a step of its share, and
another with the state of the first if there is one, and the mean over ranks is held against the
steps of one rank on the same batch and seed. Four ranks, then two of them; Gloo on a CPU.

    torchrun --nproc-per-node 4 studies/trust/rank_equality.py --out results/trust.json
"""

import argparse
import os
import tempfile
import torch
import torch.distributed as dist

from collections.abc import Sequence
from fokker.compute.ranks import ALONE, Ranks
from fokker.compute.step import Gradients, Step
from fokker.derivatives import FiniteDifference, Hutchinson, Stein
from fokker.diffusions import EDM, VE, VP
from fokker.energies import Energy, Quadratic
from fokker.evolution import MonteCarlo, Taylor
from fokker.networks import MLP
from fokker.objectives import (
    CD,
    DCD,
    FORMS,
    PCD,
    Bridge,
    Denoising,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    LevelDCD,
    LogNormal,
    LogUniform,
    MultiTimeDCD,
    Noisy,
    Objective,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
)
from fokker.objectives.levels import form_of
from pathlib import Path
from studies.trust import record
from torch import Tensor

LAW = LogUniform(0.05, 1.2)
CASES: dict[str, Objective] = {
    "dcd": DCD(),
    "dcd start": DCD(evolution=Taylor("start"), antithetic=True),
    "dcd vp": DCD(VP(), step=1e-2, antithetic=True),
    "dcd edm law": DCD(EDM(), step=LogUniform(0.02, 0.1)),
    "dcd hutchinson": DCD(laplacian=Hutchinson(3), antithetic=True),
    "dcd gaussian probes": DCD(laplacian=Hutchinson(2, "gaussian")),
    "dcd stein": DCD(laplacian=Stein(), step=1e-2, antithetic=True),
    "dcd finite difference": DCD(laplacian=FiniteDifference(), antithetic=True),
    "dcd monte carlo": DCD(VE(), MonteCarlo(5), step=LAW, antithetic=True, rate=False),
    "multi-time": MultiTimeDCD(points=8),
    "multi-time, all points": MultiTimeDCD(points=256),
    "cd": CD(3, 1e-2),
    "pcd": PCD(3, 1e-2, buffer=40),
    "pcd data": PCD(2, 1e-2, buffer=52, restart=0.5, source="data"),
    "sm": ScoreMatching(),
    "sm hutchinson": ScoreMatching(Hutchinson(2)),
    "ssm": SlicedScoreMatching(2),
    "ssm, not reduced": SlicedScoreMatching(2, variance_reduced=False),
    "dsm": DenoisingScoreMatching(0.1),
    "ed": EnergyDiscrepancy(0.2, 4),
    "recovery": RecoveryLikelihood(LogUniform(0.02, 0.1), 3),
    "recovery, one level": RecoveryLikelihood(0.05, 3),
    "noisy cd": Noisy(CD(2, 1e-2), LAW),
    "noisy pcd": Noisy(PCD(2, 1e-2, buffer=32), 0.3),
    "noisy multi-time": Noisy(MultiTimeDCD(points=4), 0.3),
    "denoising": Denoising(LAW),
    **{
        f"level {label}, {name}": LevelDCD(level, form, conditional=name != "one level")
        for label, form in (
            *((label, form_of(label)) for label in FORMS),
            ("bridge of three", Bridge(0.2, draws=3)),
        )
        for name, level in (("one level", 0.3), ("log-normal", LogNormal()), ("log-uniform", LAW))
    },
}
QUICK = (  # one of each objective, with the draws and the state that are hard to share
    "dcd hutchinson", "multi-time", "cd", "pcd data", "sm", "ssm, not reduced", "dsm", "ed",
    "recovery", "noisy pcd", "denoising", "level bridge of three, log-normal",
)  # fmt: skip
BATCH = 16


class Leveled(Energy):
    r"""An energy of every level, and its denoiser: one network of (x, σ)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(3, 12, 3)

    def forward(self, x: Tensor, sigma: Tensor | None = None) -> Tensor:
        level = x.new_zeros(len(x)) if sigma is None else sigma.expand(len(x))
        return self.net(torch.cat([x, level[:, None]], 1)) + x.square().sum(1) / 2

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        return x * torch.sigmoid(self(x, sigma))[:, None]


def energy_of(objective: Objective) -> Energy:
    r"""Returns an energy that suits an objective, the same on every rank."""
    torch.manual_seed(0)
    leveled = isinstance(objective, Denoising) or getattr(objective, "conditional", False)
    return (Leveled() if leveled else MLP(2, 12, 3) + Quadratic(1.0)).double()


def steps(objective: Objective, ranks: Ranks) -> list[Gradients]:
    r"""Returns two steps of a number of ranks, one if the objective has no state."""
    step, state, outs = Step(energy_of(objective), objective, share=ranks.share), None, []
    for k in range(1 if objective.carries is type(None) else 2):
        generator = torch.Generator().manual_seed(100 + k)
        x = torch.randn(BATCH, 2, generator=generator, dtype=torch.float64)
        out, _ = ranks.mean(step(x, state, generator))
        state = out.state
        outs.append(out._replace(state=tuple(map(ranks.gather, state or ()))))
    return outs


def distance(a: Gradients, b: Gradients) -> float:
    r"""Returns the largest difference of two steps, relative to the largest number of each
    tensor."""
    if a.info.keys() != b.info.keys() or len(a.state) != len(b.state):
        raise ValueError("expected steps with the same diagnostics and state, got others")
    pairs = [
        (a.loss, b.loss),
        *((a.gradients[name], b.gradients[name]) for name in a.gradients),
        *((a.info[name], b.info[name]) for name in a.info),
        *zip(a.state, b.state, strict=True),
    ]
    gaps = [(u - v).abs().max() / v.abs().max().clamp(min=1) for u, v in pairs]
    worst = torch.stack(gaps).max()
    if not torch.isfinite(worst):
        raise FloatingPointError("expected finite gradients, got NaN or infinity")
    return float(worst)


def compare(
    ranks: Ranks, cases: Sequence[str], expected: dict[str, list[Gradients]]
) -> dict[str, float]:
    r"""Returns the worst difference of each case from the steps of one rank, which rank 0
    knows."""
    found = {name: steps(CASES[name], ranks) for name in cases}
    return {name: max(map(distance, found[name], alone)) for name, alone in expected.items()}


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one case of each objective")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cases = QUICK if given.quick else tuple(CASES)
    expected = {name: steps(CASES[name], ALONE) for name in cases} if rank == 0 else {}
    found: dict[int, dict[str, float]] = {}
    store = Path(tempfile.gettempdir()) / f"fokker-ranks-{os.getppid()}"
    for count in dict.fromkeys((size, 2)):
        if rank >= count:
            break
        init = f"file://{store}-{count}"
        dist.init_process_group("gloo", init_method=init, rank=rank, world_size=count)
        found[count] = compare(Ranks(rank, count), cases, expected)
        dist.barrier()
        dist.destroy_process_group()
    if rank > 0:
        return
    rows = []
    for count, gaps in found.items():
        name, worst = max(gaps.items(), key=lambda pair: pair[1])
        detail = f"{count} ranks against 1, {len(gaps)} cases, float64; the worst is {name}"
        rows.append({"value": worst, "unit": "relative difference", "detail": detail})
        print(f"{worst:.2e}  {detail}")
    if max(row["value"] for row in rows) > 1e-10:
        raise SystemExit("expected the gradients of one rank to 1e-10, got others")
    if given.out is not None:
        command = (
            f"torchrun --nproc-per-node {size} studies/trust/rank_equality.py --out {given.out}"
        )
        record(given.out, "rank-equality", rows, command)


if __name__ == "__main__":
    main()
