r"""The samplers beside those of blackjax and torchebm, on targets with known moments.

Every sampler starts at points of the same round Gaussian, with the mean and the average variance
of 1,000 exact samples, and spends about as many evaluations of the energy. From the average of
:math:`f_j \in \{x_i, (x_i - \mu_i)^2\}` over all that it keeps, in R independent runs,

.. math:: \mathrm{ESS} = \Big( \frac{1}{2D} \sum_j
    \frac{\frac{1}{R} \sum_r (\bar{f}_j^{(r)} - \mathbb{E} f_j)^2}{\mathrm{Var} f_j} \Big)^{-1},

the number of independent samples with the same error. It counts bias and modes that are missed,
which the autocorrelation of chains does not see, and it serves chains and particles alike.
:math:`\mathbb{E} f_j` and :math:`\mathrm{Var} f_j` come from :math:`2^{20}` exact samples.

An evaluation is one call of the energy at one point, with or without its gradient; the warmup and
the pilot run count. Seconds are of one core, all samplers in turn in one process, without the
compilation of JAX. Ours run with their defaults. NUTS adapts itself. The step sizes of torchebm's
samplers and of blackjax's tempered particles are the best of the grids below, by this very error
on other seeds, which favors them.

Needs `pip install blackjax torchebm`. `python studies/sampling/rivals.py`.
"""

__all__ = ["METHODS", "Outcome", "Problem", "problem", "run"]

import argparse
import math
import time
import torch

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fokker.analytic import GaussianMixture
from fokker.derivatives import EnergyLike, gradient, value
from fokker.samplers import HMC, MALA, Particles, Sampler, Tempered, geometric
from pathlib import Path
from studies import results
from studies.sampling.targets import Target, target
from torch import Tensor
from typing import Any, NamedTuple

CHAINS = 64
EVALUATIONS = 200_000  # of a run
REPEATS = 6
ROWS = 1000  # exact samples that the start knows
TRUTH = 2**20  # exact samples that the moments come from
TARGETS = (("rotated-30", 30), ("mixture-unequal", 10), ("many-well-32", 32), ("funnel", 10))
STEPS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # the grid of a sampler that does not adapt


class Counted:
    r"""Creates an energy that counts the points at which it is evaluated."""

    def __init__(self, energy: EnergyLike) -> None:
        self.energy, self.count = energy, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += len(x)
        return value(self.energy, x)

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the energy and its gradient."""
        self.count += len(x)
        return gradient(self.energy, x)


@dataclass(frozen=True, eq=False)
class Problem:
    r"""A target, where samplers start, and its exact moments."""

    target: Target
    base: GaussianMixture
    mean: Tensor  # (D)
    expected: Tensor  # (2 D), of f
    variance: Tensor  # (2 D), of f

    def features(self, x: Tensor) -> Tensor:
        r"""Returns the mean of f over points of any shape :math:`(*, D)`, :math:`(2 D)`."""
        x = x.reshape(-1, x.shape[-1]).double()
        return torch.cat((x.mean(0), (x - self.mean).square().mean(0)))


class Outcome(NamedTuple):
    r"""What a run of a sampler gives."""

    features: Tensor  # (2 D), averages of f
    evaluations: int


Method = Callable[[Problem, int, float], Outcome]  # with a seed and a step size


def rotated(dim: int = 30) -> Target:
    r"""Returns a Gaussian with standard deviations from 0.1 to 10 along random axes."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float32))[0]
    std = torch.logspace(-1, 1, dim, dtype=torch.float32)
    inward = axes / std
    energy = lambda x: (x @ inward).square().sum(1) / 2
    sample = lambda n, g: (std * torch.randn(n, dim, generator=g, dtype=torch.float32)) @ axes.T
    log_z = dim / 2 * math.log(2 * math.pi) + float(std.double().log().sum())
    return Target("rotated-30", dim, energy, log_z, sample)


def problem(name: str, dim: int) -> Problem:
    r"""Returns a target with its start and its moments, always the same."""
    known = rotated(dim) if name == "rotated-30" else target(name, dim)
    generator = torch.Generator().manual_seed(0)
    seen = known.sample(ROWS, generator)
    base = GaussianMixture(seen.mean(0)[None], float(seen.var(0).mean()))
    x = known.sample(TRUTH, generator).double()
    mean = x.mean(0)
    f = torch.cat((x, (x - mean).square()), 1)
    return Problem(known, base, mean, f.mean(0), f.var(0))


def chains(sampler: Sampler) -> Method:
    r"""Returns the method that runs a sampler of fokker until the evaluations are spent."""

    def method(given: Problem, seed: int, _: float) -> Outcome:
        generator = torch.Generator().manual_seed(seed)
        energy = Counted(given.target.energy)
        state = sampler.init(energy, given.base.sample(CHAINS, generator))
        kept: list[Tensor] = []
        while energy.count < EVALUATIONS or not kept:
            state, _info = sampler.step(energy, state, generator)
            if state.count > sampler.transient:
                kept.append(state.x)
        return Outcome(given.features(torch.stack(kept)), energy.count)

    return method


def particles(given: Problem, seed: int, _: float) -> Outcome:
    r"""Runs particles, as many as the evaluations are likely to last for."""
    generator = torch.Generator().manual_seed(seed)
    energy, sampler = Counted(given.target.energy), Particles(given.base)
    pilot = 512
    ladder = sampler.ladder(energy, pilot, generator)
    each = (sampler.moves + 3) * len(ladder.rungs)
    n = max(pilot, sampler.islands * ((EVALUATIONS - energy.count) // each // sampler.islands))
    found = sampler.run(energy, n, generator, ladder)
    return Outcome(given.features(found.samples), energy.count)


def peer(kind: str) -> Method:
    r"""Returns the method that runs a sampler of torchebm; the first quarter is its warmup."""

    def method(given: Problem, seed: int, step: float) -> Outcome:
        from torchebm.core import BaseModel
        from torchebm.samplers import HamiltonianMonteCarlo, LangevinDynamics

        class Model(BaseModel):
            count = 0

            def forward(self, x: Tensor) -> Tensor:
                self.count += len(x)
                return value(given.target.energy, x)

        generator, model = torch.Generator().manual_seed(seed), Model()
        start = given.base.sample(CHAINS, generator)
        leaps = 10 if kind == "hmc" else 1
        settings: dict[str, Any] = {"n_leapfrog_steps": leaps} if kind == "hmc" else {}
        made = HamiltonianMonteCarlo if kind == "hmc" else LangevinDynamics
        sampler = made(model, step_size=step, **settings)
        each = 2 * leaps + 2 if kind == "hmc" else 1  # evaluations of a transition
        steps = EVALUATIONS // (CHAINS * each)
        path = sampler.sample(x=start, n_steps=steps, return_trajectory=True, generator=generator)
        assert isinstance(path, Tensor)
        return Outcome(given.features(path[:, path.shape[1] // 4 :]), model.count)

    return method


def rival(kind: str) -> Method:
    r"""Returns the method that runs a sampler of blackjax."""

    def method(given: Problem, seed: int, step: float) -> Outcome:
        from studies.sampling import jax_samplers

        start = given.base.sample(CHAINS, torch.Generator().manual_seed(seed)).numpy()
        made = jax_samplers.RUNS[kind]
        x, evaluations = made(given, start, seed, step, EVALUATIONS)
        return Outcome(given.features(torch.tensor(x)), evaluations)

    return method


LADDER = geometric(30.0, 6)[::-1]
# library, sampler: the method, and whether its step is chosen from the grid
METHODS: dict[tuple[str, str], tuple[Method, bool]] = {
    ("fokker", "particles"): (particles, False),
    ("fokker", "MALA"): (chains(MALA(0.1, warmup=200)), False),
    ("fokker", "HMC, diagonal"): (chains(HMC(0.1, warmup=100)), False),
    ("fokker", "HMC, dense"): (chains(HMC(0.1, warmup=100, mass="dense")), False),
    ("fokker", "parallel tempering"): (
        chains(Tempered(HMC(0.1, warmup=50), LADDER, power=0.5)), False,
    ),
    ("torchebm", "Langevin"): (peer("langevin"), True),
    ("torchebm", "HMC"): (peer("hmc"), True),
    ("blackjax", "NUTS, diagonal"): (rival("nuts"), False),
    ("blackjax", "NUTS, dense"): (rival("nuts-dense"), False),
    ("blackjax", "tempered particles"): (rival("smc"), True),
}  # fmt: skip


def error(given: Problem, found: list[Outcome]) -> float:
    r"""Returns the mean squared error of the averages, in variances of f; infinite where one is
    not finite."""
    missed = torch.stack([(o.features - given.expected).square() for o in found])
    mean = float((missed.mean(0) / given.variance).mean())
    return mean if math.isfinite(mean) else math.inf


def tuned(given: Problem, method: Method) -> Iterator[tuple[float, float]]:
    r"""Yields every step size of the grid with its error, on two seeds of their own."""
    for step in STEPS:
        found = [attempt(method, given, seed, step) for seed in (1001, 1002)]
        yield step, math.inf if None in found else error(given, [o for o in found if o])


def attempt(method: Method, given: Problem, seed: int, step: float) -> Outcome | None:
    r"""Returns the outcome of a run; none if its chains leave the finite numbers."""
    try:
        return method(given, seed, step)
    except (FloatingPointError, ValueError):
        return None


def judge(given: Problem, library: str, name: str) -> results.Row:
    r"""Returns the row of a sampler on a target."""
    method, by_grid = METHODS[library, name]
    trials = dict(tuned(given, method)) if by_grid else {}
    step = min(trials, key=lambda s: trials[s]) if trials else 0.0
    method(given, 2000, step)  # compiles what is compiled
    clock = time.process_time()
    found = [attempt(method, given, seed, step) for seed in range(REPEATS)]
    seconds = (time.process_time() - clock) / REPEATS
    whole = [o for o in found if o is not None]
    evaluations = sum(o.evaluations for o in whole) / max(len(whole), 1)
    miss = error(given, whole) if len(whole) == REPEATS else math.inf
    ess = 1 / miss
    return {
        "target": given.target.name, "dimension": given.target.dimension, "library": library,
        "sampler": name, "step": step or None, "failed": REPEATS - len(whole),
        "trials": {str(s): v if math.isfinite(v) else None for s, v in trials.items()},
        "ess": ess, "evaluations": evaluations, "ess_per_1000": 1000 * ess / max(evaluations, 1),
        "ess_per_second": ess / seconds, "seconds": round(seconds, 3), "repeats": REPEATS,
    }  # fmt: skip


def run(
    path: Path,
    chosen: tuple[tuple[str, str], ...] = tuple(METHODS),
    progress: Callable[[str], None] = print,
) -> None:
    r"""Judges every sampler on every target and writes the rows after each; those in the file
    already are not made again."""
    rows = results.rows_of(results.load(path)) if path.exists() else []
    done = {(r["target"], r["library"], r["sampler"]) for r in rows}
    config = {"chains": CHAINS, "evaluations": EVALUATIONS, "steps": STEPS}
    for target_name, dim in TARGETS:
        left = [key for key in chosen if (target_name, *key) not in done]
        given = problem(target_name, dim) if left else None
        for key in left:
            assert given is not None
            row = judge(given, *key) | results.provenance()
            rows.append(row)
            results.save(path, rows, "python studies/sampling/rivals.py", config)
            progress(f"{target_name}, {' '.join(key)}: {row['ess_per_1000']:.3g} per 1,000"
                     f" evaluations, {row['ess_per_second']:.4g} a second")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Samplers beside those of blackjax and torchebm.")
    parser.add_argument("--out", type=Path, default=Path("results/samplers.json"))
    parser.add_argument("--libraries", nargs="+", default=["fokker", "torchebm", "blackjax"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.out, tuple(key for key in METHODS if key[0] in options.libraries))
