r"""CPU time of one training step, one thread, batch 1,000, the paper's 2-D network.

fokker's objectives beside those of torchebm 0.8.9, each a forward and a backward pass to all
parameter gradients (no optimizer). Rounds are interleaved, so that a slow moment of the machine
falls on all; the ratio of a round is taken within it, and the table gives medians. Only ratios
compare between machines.

    python benchmarks/step_time.py --out results/step_time.json
"""

import argparse
import statistics
import time
import torch

from collections.abc import Callable
from fokker import results
from fokker.evolution import Taylor
from fokker.networks import MLP
from fokker.objectives import (
    CD,
    DCD,
    PCD,
    DenoisingScoreMatching,
    MultiTimeDCD,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
)
from pathlib import Path
from rich.console import Console
from rich.table import Table
from torch import Tensor


def eager(objective: Objective, x: Tensor) -> Callable[[], None]:
    r"""One call and one backward pass, as in a user's own loop."""
    net, state = MLP(), None

    def step() -> None:
        nonlocal state
        net.zero_grad()
        out = objective(net, x, state)
        state = out.state
        out.loss.backward()

    return step


def compiled(objective: Objective, x: Tensor) -> Callable[[], None]:
    r"""The whole step, loss and parameter gradients, under `torch.compile`."""

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP()

        def forward(self, x: Tensor) -> Tensor:
            return objective.compute(self.net, x, None, None).loss

    loss = Loss()
    params = {k: p.detach() for k, p in loss.named_parameters()}
    pure = lambda params, x: torch.func.functional_call(loss, params, (x,))
    step = torch.compile(torch.func.grad_and_value(pure))
    return lambda: step(params, x)


def peer(x: Tensor) -> dict[str, Callable[[], None]]:
    r"""The steps of torchebm, on the same network."""
    from torchebm import losses
    from torchebm.core import BaseModel
    from torchebm.samplers import LangevinDynamics

    class Net(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    def step(make: Callable[[Net], torch.nn.Module]) -> Callable[[], None]:
        net = Net()
        loss = make(net)

        def run() -> None:
            net.zero_grad()
            out = loss(x)
            (out[0] if isinstance(out, tuple) else out).backward()

        return run

    langevin = lambda net: LangevinDynamics(net, step_size=1e-3)
    return {
        "exact SM": step(lambda net: losses.ScoreMatching(net, hessian_method="exact")),
        "sliced SM": step(lambda net: losses.SlicedScoreMatching(net, n_projections=1)),
        "denoising SM": step(losses.DenoisingScoreMatching),
        "CD-10": step(lambda n: losses.ContrastiveDivergence(n, langevin(n), k_steps=10)),
        "PCD-20": step(
            lambda n: losses.ContrastiveDivergence(n, langevin(n), k_steps=20, persistent=True)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = 0.5 * torch.randn(args.batch, 2)
    ours = {
        "DCD-VE, exact (paper)": DCD(),
        "DCD-VE, exact, bracket at x0, pairs": DCD(
            evolution=Taylor("start"), step=2e-5, antithetic=True
        ),
        "multi-time DCD": MultiTimeDCD(),
        "exact SM": ScoreMatching(),
        "sliced SM": SlicedScoreMatching(),
        "denoising SM": DenoisingScoreMatching(),
        "CD-10": CD(),
        "PCD-20": PCD(),
    }
    steps = {("torchebm", name): step for name, step in peer(x).items()}
    steps |= {("fokker", name): eager(objective, x) for name, objective in ours.items()}
    steps["fokker", "DCD-VE, exact (paper), compiled"] = compiled(DCD(), x)
    for step in steps.values():
        step()
        step()
    times: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    for _ in range(args.rounds):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            times[key].append(1000 * (time.perf_counter() - start))

    def ratio(key: tuple[str, str], base: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(times[key], times[base], strict=True))

    rows = []
    for (library, name), ms in times.items():
        quarter = statistics.quantiles(ms, n=4)
        rows.append({
            "library": library,
            "name": name,
            "net": "mlp-2d",
            "batch": args.batch,
            "threads": 1,
            "rounds": args.rounds,
            "ms": round(statistics.median(ms), 2),
            "spread": round(quarter[2] - quarter[0], 2),
            "x_sm": round(ratio((library, name), ("torchebm", "exact SM")), 3),
            "x_cd": round(ratio((library, name), ("torchebm", "CD-10")), 3),
        })
    table = Table("library", "step", "ms", "spread", "x exact SM", "x CD-10")
    for row in rows:
        table.add_row(*(str(row[k]) for k in ("library", "name", "ms", "spread", "x_sm", "x_cd")))
    Console(width=110).print(table)
    if args.out is not None:
        command = f"python benchmarks/step_time.py --rounds {args.rounds} --out {args.out}"
        results.save(args.out, rows, command)


if __name__ == "__main__":
    main()
