r"""The 2-D study with the objectives of torchebm: the same sets, network, steps and judge.

What differs from fokker's rows is the loss and its sampler, which are torchebm's own code. The
networks of all sets and seeds train at once as *one* energy of torchebm, in one of two layouts:

- rows: the points of all sets are one batch, and each goes through its own network. The mean over
  the batch, times K, is the sum of the K losses, so every network gets its own gradient, which
  Adam then treats elementwise. For losses that are means over independent points.
- columns: a point of the product of K sets, in 2 K coordinates, with the sum of the K energies.
  For persistent chains, whose buffer must stay with its network.

A network whose energies are not finite is cut out of the loss, so that it takes no other with it.
Energy matching couples the points of a batch, and exact score matching maps over single points, so
each of their networks trains alone, on a GPU several side by side. The coupling of energy matching
is torchebm's Sinkhorn iteration; on a GPU it runs compiled, a test compares the plans.

The settings of each loss are tuned first (`--stage tune`: all seven sets, one seed, fewer steps),
by the exact KL, which favours the peer: no user could know it.

    python studies/peers.py --stage tune --out runs/study-toy
    python studies/peers.py --stage run --out runs/study-toy
    fokker reproduce toy --out runs/study-toy --results results/toy.json
"""

import argparse
import json
import math
import numpy as np
import os
import time
import torch

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from fokker.compute.graphs import capture
from fokker.compute.stack import decay_at, rate_at
from fokker.energies import Energy
from fokker.runs.config import Optimization
from fokker.runs.presets import PRESETS
from pathlib import Path
from studies import results, toy
from torch import Tensor
from torchebm import losses
from torchebm.core import BaseModel
from torchebm.couplings import SinkhornCoupling
from torchebm.samplers import LangevinDynamics
from typing import Any

NETWORK, OPTIMIZATION, _ = PRESETS["fokker"]
ALONE = ("sm", "em")  # each network in a stack of its own
CAPTURED = ("sm", "ssm", "dsm")  # without a step on the host


class Stack(BaseModel):
    r"""K networks as one energy of torchebm."""

    def __init__(self, energies: list[Energy], layout: str) -> None:
        super().__init__()
        self.layout, self.count = layout, len(energies)
        params, self.frozen = torch.func.stack_module_state(energies)
        self.names = list(params)
        self.weights = torch.nn.ParameterList([p.detach() for p in params.values()])
        self.template = [energies[0]]  # in a list: not a submodule
        self.graphs: dict[Any, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        K = self.count
        if (
            K == 1
        ):  # a plain call: torchebm maps exact score matching over points, slow with a map within
            return self.single(x)
        split = (
            x.reshape(K, -1, 2) if self.layout == "rows" else x.reshape(-1, K, 2).transpose(0, 1)
        )
        call = lambda p, b, x: torch.func.functional_call(self.template[0], (p, b), (x,))
        params = dict(zip(self.names, self.weights, strict=True))
        e = torch.vmap(call)(params, self.frozen, split)  # (K, B)
        e = torch.where(torch.isfinite(e), e, 0.0)
        return e.flatten() if self.layout == "rows" else e.sum(0)

    def single(self, x: Tensor) -> Tensor:
        r"""Returns the energies of the only network."""
        params = {k: w[0] for k, w in zip(self.names, self.weights, strict=True)}
        frozen = {k: b[0] for k, b in self.frozen.items()}
        e = torch.func.functional_call(self.template[0], (params, frozen), (x,))
        return torch.where(torch.isfinite(e), e, 0.0)

    def gradient(self, x: Tensor, model_kwargs: dict | None = None) -> Tensor:
        r"""Returns the gradient in x; on a GPU from a captured graph, so that chains run fast."""
        if x.device.type != "cuda":
            return super().gradient(x, model_kwargs)
        if x.shape not in self.graphs:
            place = x.detach().clone()
            self.graphs[x.shape] = (place, *capture(lambda: super(Stack, self).gradient(place)))
        place, graph, out = self.graphs[x.shape]
        place.copy_(x)
        graph.replay()
        return out.clone()


class Sinkhorn(SinkhornCoupling):
    r"""The coupling of torchebm; on a GPU its iteration is compiled and captured as a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[Any, Any] = {}

    def _solve(self, cost: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if cost.device.type != "cuda":
            return super()._solve(cost, generator)
        if cost.shape not in self.graphs:
            place, half = cost.clone(), torch.compile(self.half)
            self.graphs[cost.shape] = (place, *capture(lambda: self.plan(place, half)))
        place, graph, plan = self.graphs[cost.shape]
        place.copy_(cost)
        graph.replay()
        return torch.multinomial(plan.clamp(min=0), 1, generator=generator).squeeze(-1)

    @staticmethod
    def half(M: Tensor, other: Tensor) -> Tensor:
        r"""Returns one potential from the other: half an iteration, over rows."""
        return -math.log(len(M)) - torch.logsumexp(M + other, dim=1)

    def plan(self, cost: Tensor, half: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        r"""Returns the entropic plan between uniform measures, as torchebm's own function."""
        M = -cost / self.reg
        turned = M.T.contiguous()
        g = torch.zeros(len(cost), device=cost.device)
        f = g
        for _ in range(self.n_iters):
            f = half(M, g)
            g = half(turned, f)
        return (M + f[:, None] + g).exp()


CHAIN = ("method", "rate", "step", "chain", "reg")
USED = {
    "cd": CHAIN,
    "pcd": CHAIN,
    "sm": ("method", "rate"),
    "ssm": ("method", "rate"),
    "dsm": ("method", "rate", "noise"),
    "em": ("method", "rate", "chain", "noise", "warmup", "step", "temperature", "clamp"),
}


@dataclass(frozen=True)
class Trial:
    r"""A loss of torchebm and its settings."""

    method: str
    rate: float = 1e-3
    step: float = 5e-4  # of the Langevin sampler, x - step ∇E + sqrt(2 step T) z
    chain: int = 10
    reg: float = 0.0  # the weight of the squared energies
    noise: float = 0.01  # of denoising
    warmup: float = 0.8  # the share of energy matching's first phase
    temperature: float = 1.0  # T; energy matching learns V, and the density exp(-V / T)
    clamp: float | None = None  # the floor under energy matching's contrast, if any

    @property
    def layout(self) -> str:
        return "columns" if self.method == "pcd" else "rows"

    def ran(self, row: results.Row) -> bool:
        r"""Whether a row is of this trial, by the settings that its method uses."""
        settings = asdict(self)
        return all(row["settings"][name] == settings[name] for name in USED[self.method])

    def loss(self, model: Stack, device: str) -> torch.nn.Module:
        on = {"device": torch.device(device)}
        langevin = lambda: LangevinDynamics(model, step_size=self.step, **on)
        cd = {"k_steps": self.chain, "energy_reg_weight": self.reg, **on}
        match self.method:
            case "cd":
                return losses.ContrastiveDivergence(model, langevin(), **cd)
            case "pcd":
                options = {"persistent": True, "buffer_size": 10_000, "new_sample_ratio": 0.05}
                return losses.ContrastiveDivergence(model, langevin(), **cd, **options)
            case "sm":
                return losses.ScoreMatching(model, hessian_method="exact", **on)
            case "ssm":
                return losses.SlicedScoreMatching(model, n_projections=1, **on)
            case "dsm":
                return losses.DenoisingScoreMatching(model, noise_scale=self.noise, **on)
            case "em":
                return losses.EnergyMatchingLoss(
                    model,
                    coupling=Sinkhorn(),  # "ot" takes seconds a batch of 1,000
                    lambda_cd=0.0,
                    epsilon_max=self.temperature,
                    sigma=self.noise,
                    n_langevin_steps=self.chain,
                    langevin_dt=self.step,
                    cd_clamp=self.clamp,
                    **on,
                )
        raise ValueError(f"expected a method of torchebm, got {self.method!r}")


TRIALS: dict[str, list[Trial]] = {
    "cd": [
        Trial("cd", r, s, reg=g)
        for r, s, g in [
            (1e-3, 5e-4, 0.0),
            (3e-4, 5e-4, 0.0),
            (1e-3, 1e-4, 0.0),
            (3e-4, 1e-4, 0.0),
            (3e-4, 2e-5, 0.0),
            (3e-4, 1e-4, 1e-3),
        ]
    ],
    "pcd": [
        Trial("pcd", r, s)
        for r, s in [
            (1e-3, 5e-4),
            (3e-4, 5e-4),
            (1e-3, 1e-4),
            (3e-4, 1e-4),
            (1e-4, 1e-4),
            (3e-4, 2e-5),
        ]
    ],
    "sm": [Trial("sm", 1e-3)],
    "ssm": [Trial("ssm", r) for r in (3e-4, 1e-3, 3e-3)],
    "dsm": [
        Trial("dsm", r, noise=s)
        for r, s in [(1e-3, 0.005), (1e-3, 0.01), (1e-3, 0.02), (3e-3, 0.01)]
    ],
    "em": [
        Trial("em", 1e-3, step, 40, noise=0.02, temperature=t, clamp=clamp, warmup=warmup)
        for step, t, clamp, warmup in [
            (0.05, 0.15, 0.02, 0.8),  # torchebm's own, for data of unit scale
            (0.01, 0.15, 0.02, 0.8),
            (0.01, 0.15, None, 0.8),
            (0.01, 0.05, 0.02, 0.8),
            (0.01, 0.05, None, 0.8),
            (0.01, 0.15, None, 0.4),
            (0.01, 0.50, None, 0.8),
        ]
    ],
}


def train(
    trial: Trial, names: list[str], seeds: list[int], optimization: Optimization, device: str
) -> tuple[list[Energy], list[bool], float]:
    r"""Trains one network for each set and seed; returns energies, finiteness and seconds."""
    optimization = replace(optimization, rate=trial.rate)
    energies = []
    for seed in seeds:
        torch.manual_seed(seed)
        energies.append(NETWORK.build((2,)).to(device))
    model = Stack(energies, trial.layout)
    loss = trial.loss(model, device)
    weights = list(model.weights)
    average = [w.detach().clone() for w in weights]
    captured = device == "cuda" and trial.method in CAPTURED
    rate = torch.tensor(trial.rate, device=device) if captured else trial.rate
    betas = (optimization.beta1, optimization.beta2)
    adam = torch.optim.Adam(weights, rate, betas, capturable=captured)
    drift = torch.zeros((), device=device)
    sources = [toy.Float32(name, device) for name in names]
    generators = [torch.Generator(device).manual_seed(10_007 * seed + 1) for seed in seeds]
    K, B, block = len(names), optimization.batch, 250
    x = torch.zeros((K * B, 2) if trial.layout == "rows" else (B, 2 * K), device=device)

    def step() -> Tensor:
        out = loss(x)
        value = out[0] if isinstance(out, tuple) else out
        adam.zero_grad()
        (value * (K if trial.layout == "rows" else 1)).backward()
        adam.step()
        with torch.no_grad():
            for a, w in zip(average, weights, strict=True):
                a.lerp_(w, drift)
        return value.detach()

    start, drawn, advance = time.perf_counter(), torch.empty(0), step
    for k in range(optimization.steps):
        if k % block == 0:
            drawn = [
                s.sample(block * B, g).reshape(block, B, 2)
                for s, g in zip(sources, generators, strict=True)
            ]
            drawn = torch.stack(drawn, dim=1)  # (block, K, B, 2)
        now = drawn[k % block]
        x.copy_(now.flatten(0, 1) if trial.layout == "rows" else now.transpose(0, 1).flatten(1))
        if trial.method == "em" and k == int(trial.warmup * optimization.steps):
            setattr(loss, "lambda_cd", 2.0)  # noqa: B010
        if captured:
            rate.fill_(rate_at(k, optimization))  # pyright: ignore[reportAttributeAccessIssue]
        else:
            adam.param_groups[0]["lr"] = rate_at(k, optimization)
        drift.fill_(1 - decay_at(k, optimization))
        if captured and k == 0:
            advance = capture(step)[0].replay
        advance()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    finite = []
    for i, energy in enumerate(energies):
        with torch.no_grad():
            for name, a in zip(model.names, average, strict=True):
                energy.get_parameter(name).copy_(a[i])
        finite.append(all(bool(torch.isfinite(p).all()) for p in energy.parameters()))
        energy.requires_grad_(False)
    if trial.method == "em":
        energies = [e / trial.temperature for e in energies]
    return energies, finite, seconds


def rows_of(
    trial: Trial, names: list[str], seeds: list[int], optimization: Optimization, device: str
) -> tuple[list[results.Row], dict[str, np.ndarray]]:
    r"""Trains and judges; returns the rows of the study and the densities of the first seed."""
    energies, finite, seconds = train(trial, names, seeds, optimization, device)
    rows, densities = [], {}
    for name, seed, energy, sound in zip(names, seeds, energies, finite, strict=True):
        rows.append({
            "data": name,
            "method": trial.method,
            "preset": "torchebm",
            "library": "torchebm",
            "seed": seed,
            **toy.judge(energy, name, sound, device),
            "steps": optimization.steps,
            "batch": optimization.batch,
            "seconds": round(seconds / len(names), 3),
            "stacked": len(names),
            "settings": asdict(trial),
            "device": results.hardware(device),
            "commit": results.commit(),
        })
        if seed == seeds[0] and sound:
            densities[name] = toy.density(energy, device)
    return rows, densities


def rows_of_task(task: tuple[Any, ...]) -> tuple[list[results.Row], dict[str, np.ndarray]]:
    return rows_of(*task)


def mean_kl(rows: list[results.Row]) -> float:
    r"""Returns the mean KL over the sets; a diverged run counts as 10 nats."""
    return sum(10.0 if row["diverged"] else row["kl"] for row in rows) / len(rows)


def spread(
    trials: list[Trial], pairs: list[tuple[str, int]], optimization: Optimization, device: str
) -> Iterator[tuple[list[results.Row], dict[str, np.ndarray]]]:
    r"""Runs trials on pairs of a set and a seed, and yields what each stack came to: a stack is a
    trial or, if its networks train alone, a network; on a GPU these train side by side, one for
    each core."""
    tasks = []
    for trial in trials:
        for part in [[pair] for pair in pairs] if trial.method in ALONE else [pairs]:
            names, seeds = [name for name, _ in part], [seed for _, seed in part]
            tasks.append((trial, names, seeds, optimization, device))
    if len(tasks) > len(trials) and device == "cuda":
        count = min(len(tasks), len(os.sched_getaffinity(0)))
        with torch.multiprocessing.get_context("spawn").Pool(count) as pool:
            yield from pool.imap_unordered(rows_of_task, tasks)
    else:
        yield from map(rows_of_task, tasks)


def tune(method: str, folder: Path, optimization: Optimization, device: str) -> None:
    r"""Runs the trials of a method that are not there yet, on every set with one seed; writes all
    rows."""
    target = folder / "tuning" / f"{method}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = json.loads(target.read_text()) if target.exists() else []
    whole = lambda trial: sum(map(trial.ran, rows)) == len(toy.SETS)
    fresh = [trial for trial in TRIALS[method] if not whole(trial)]
    rows = [row for row in rows if not any(trial.ran(row) for trial in fresh)]
    for found, _ in spread(fresh, [(name, 100) for name in toy.SETS], optimization, device):
        rows += found
        target.write_text(json.dumps(rows, indent=1, allow_nan=False))  # as far as it got
    for trial in TRIALS[method]:
        print(f"{trial}: mean KL {mean_kl([r for r in rows if trial.ran(r)]):.4f}", flush=True)


def best(method: str, folder: Path) -> Trial:
    r"""Returns the trial of a method with the least mean KL; the first if none was run."""
    path = folder / "tuning" / f"{method}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    tried = {trial: [r for r in rows if trial.ran(r)] for trial in TRIALS[method]}
    known = {trial: mean_kl(runs) for trial, runs in tried.items() if runs}
    return min(known, key=known.__getitem__, default=TRIALS[method][0])


def run(method: str, folder: Path, optimization: Optimization, device: str) -> None:
    r"""Runs the best trial of a method and writes its part of the study."""
    trial = best(method, folder)
    pairs = [(name, seed) for seed in (0, 1, 2) for name in toy.SETS]
    rows, densities = [], {}
    for found, maps in spread([trial], pairs, optimization, device):
        rows, densities = rows + found, densities | maps
        rows.sort(key=lambda row: pairs.index((row["data"], row["seed"])))
        toy.write(f"torchebm-{method}", rows, densities, folder)  # as far as it got
        print(f"{trial}: {len(rows)} of {len(pairs)}, mean KL {mean_kl(rows):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The 2-D study with torchebm.")
    parser.add_argument("--stage", choices=("tune", "run"), required=True)
    parser.add_argument("--methods", nargs="+", choices=tuple(TRIALS), default=tuple(TRIALS))
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/study-toy"))
    args = parser.parse_args()
    stage, steps = (tune, 1500) if args.stage == "tune" else (run, OPTIMIZATION.steps)
    optimization = replace(OPTIMIZATION, steps=args.steps or steps, batch=args.batch)
    for method in args.methods:
        stage(method, args.out, optimization, args.device)


if __name__ == "__main__":
    main()
