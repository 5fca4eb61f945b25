r"""Throughput over ranks on one machine, and what a step spends on drawing and on communication.

Every rank has one thread (or one GPU). In turn, rank 0 alone takes steps of the whole batch while
the others wait, and all take steps of their shares; the turns are interleaved, so that what else
the machine does falls on both. A step is all of training's: batch and noise drawn, gradient,
all-reduce, Adam. Apart from it are timed the draws and the all-reduce, after a barrier, so that
waiting for a slower rank is not counted.

    torchrun --nproc-per-node 2 studies/trust/scaling.py --out results/trust.json
"""

import argparse
import statistics
import time
import torch
import torch.distributed as dist

from collections.abc import Callable
from dataclasses import replace
from fokker.compute.ranks import ALONE, Ranks, join
from fokker.compute.step import Step
from fokker.energies import Energy
from fokker.objectives import LevelDCD, MultiTimeDCD, Objective
from fokker.runs.config import Network, ResNet
from pathlib import Path
from studies import results
from studies.trust import record
from typing import NamedTuple

BLOCK = 5  # steps a turn


class Case(NamedTuple):
    r"""A network and an objective on a batch."""

    build: Callable[[tuple[int, ...]], Energy]
    objective: Objective
    batch: int
    shape: tuple[int, ...]


CASES = {
    "mlp-2d": Case(Network(features=64, confine=0.7).build, MultiTimeDCD(), 1000, (2,)),
    "wrn-10-2": Case(ResNet(10, 2).build, LevelDCD(), 64, (3, 16, 16)),
}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Trainee:
    r"""A case as one of some ranks, or alone."""

    def __init__(self, case: Case, ranks: Ranks) -> None:
        self.case, self.ranks, self.k = case, ranks, 0
        torch.manual_seed(0)
        self.energy = case.build(case.shape).to(ranks.device)
        self.step = Step(self.energy, case.objective, share=ranks.share)
        self.adam = torch.optim.Adam(self.energy.parameters(), 1e-4)
        self.batch()

    def batch(self) -> tuple[torch.Tensor, torch.Generator]:
        generator = torch.Generator(self.ranks.device).manual_seed(self.k)
        shape = (self.case.batch, *self.case.shape)
        self.k += 1
        return torch.randn(shape, generator=generator, device=self.ranks.device), generator

    def run(self, steps: int) -> float:
        r"""Returns the seconds a step."""
        wait(self.ranks.device)
        start = time.perf_counter()
        for _ in range(steps):
            x, generator = self.batch()
            out, _ = self.ranks.mean(self.step(x, None, generator), [0.0])
            out.assign(self.energy)
            self.adam.step()
        wait(self.ranks.device)
        return (time.perf_counter() - start) / steps

    def draws(self, steps: int) -> float:
        r"""Returns the seconds that a step draws batch and noise."""
        (draws,) = self.step.draws.values()
        start = time.perf_counter()
        for _ in range(steps):
            _, generator = self.batch()
            for draw in draws:
                draw(generator)
        wait(self.ranks.device)
        return (time.perf_counter() - start) / steps

    def talk(self, steps: int) -> tuple[float, int]:
        r"""Returns the seconds of the all-reduce of a step, and its bytes."""
        x, generator = self.batch()
        out = self.step(x, None, generator)
        numbers = sum(g.numel() for g in out.gradients.values()) + 2 + len(out.info)
        spent = []
        for _ in range(steps):
            dist.barrier()
            start = time.perf_counter()
            self.ranks.mean(out, [0.0])
            wait(self.ranks.device)
            spent.append(time.perf_counter() - start)
        return statistics.median(spent), 4 * numbers


def measure(name: str, ranks: Ranks, turns: int) -> results.Row:
    r"""Returns the row of a case; the others than rank 0 return one of no meaning."""
    case = CASES[name]
    alone = Trainee(case, replace(ALONE, device=ranks.device)) if ranks.first else None
    together = Trainee(case, ranks)
    ones, alls = [], []
    for turn in range(turns + 1):
        dist.barrier()
        one = alone.run(BLOCK) if alone is not None else 0.0
        dist.barrier()
        every = together.run(BLOCK)
        if turn > 0:  # the first traces
            ones.append(one)
            alls.append(every)
    drawn = together.draws(4 * BLOCK)
    spent, volume = together.talk(4 * BLOCK)
    one, every = statistics.median(ones), statistics.median(alls)
    detail = (
        f"{name}, batch {case.batch}: {1e3 * one:.3g} ms a step on 1 rank, {1e3 * every:.3g} on"
        f" {ranks.size}; drawing the whole batch {1e3 * drawn:.2g} ms, all-reduce of"
        f" {volume / 2**20:.3g} MiB {1e3 * spent:.2g} ms"
    )
    return {"value": round(one / every, 3), "unit": "× 1 rank", "detail": detail}


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    with join(given.device) as ranks:
        if ranks.size == 1:
            raise SystemExit("expected two ranks or more, got one: start it with torchrun")
        rows = [measure(name, ranks, given.turns) for name in CASES]
    if ranks.first:
        for row in rows:
            print(f"{row['value']:.2f} {row['unit']}: {row['detail']}")
        if given.out is not None:
            command = f"torchrun --nproc-per-node {ranks.size} studies/trust/scaling.py"
            record(given.out, "scaling", rows, f"{command} --out {given.out}")


if __name__ == "__main__":
    main()
