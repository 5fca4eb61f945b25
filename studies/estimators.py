r"""Variance × cost of the estimators: what a step is worth, on points and on images.

All estimators of one group aim at the same gradient up to their bias; they differ in how much
noise they add to it and in what they cost. At a network half trained, the gradient of the
parameters is drawn many times, each with a fresh batch and fresh noise, and

.. math:: V = \mathbb{E} \, \|G - \mathbb{E} G\|^2

is divided by that of a reference without added noise: exact score matching for points, denoising
score matching for images. The merit is variance × cost, both relative: a method with a tenth of
the variance may take ten times as long. Cost is the time of a step as a multiple of the plain one,
interleaved (`studies.bench`); on a CPU it compares only within a run.

Points are drawn from the rings, and in D = 8, 32 and 64 dimensions from eight Gaussians; images
are smooth Gaussian fields, 16×16, with a power spectrum of :math:`1 / (1 + k^2)^2`, a stand-in
with the smoothness of photographs.
"""

__all__ = ["ESTIMATORS", "fields", "run"]

import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fokker.analytic import ring_of_gaussians
from fokker.compute.step import Step
from fokker.data import toy
from fokker.derivatives import Exact, FiniteDifference, Hutchinson, Stein
from fokker.evolution import Taylor
from fokker.networks import MLP, WideResNet
from fokker.objectives import (
    DCD,
    Bridge,
    Central,
    LevelDCD,
    Limit,
    Objective,
    ScoreMatching,
    levels,
)
from pathlib import Path
from torch import Tensor, nn

from . import results
from .bench import NETS, Net, bench_steps
from .units import begin


def short(evolution: str, laplacian: object, antithetic: bool, step: float = 5e-5) -> DCD:
    return DCD(
        evolution=Taylor(evolution),  # pyright: ignore[reportArgumentType]
        laplacian=laplacian,  # pyright: ignore[reportArgumentType]
        step=step,
        antithetic=antithetic,
    )


# the first of each group is its reference
ESTIMATORS: dict[str, dict[str, Objective]] = {
    "points": {
        "exact score matching": ScoreMatching(),
        "exact at x_t (paper)": short("end", Exact(), False),
        "exact at x_0": short("start", Exact(), False),
        "exact at x_0, pairs": short("start", Exact(), True),
        "hutchinson at x_0, pairs": short("start", Hutchinson(), True),
        "finite differences at x_0, pairs": short("start", FiniteDifference(), True),
        "stein at x_t": short("end", Stein(), False),
        "stein at x_t, pairs": short("end", Stein(), True),
        "level 0.02, bridge": LevelDCD(0.02, Bridge(), weight="one"),
        "level 0.02, path": LevelDCD(0.02, levels.Path(), weight="one"),
        "level 0.02, central": LevelDCD(0.02, Central(), weight="one"),
        "level 0.02, limit (DSM)": LevelDCD(0.02, Limit(), weight="one"),
    },
    **{
        f"points, D = {d}": {
            "exact score matching": ScoreMatching(),
            "exact at x_0, pairs": short("start", Exact(), True, 1e-3),
            "hutchinson at x_0, pairs": short("start", Hutchinson(), True, 1e-3),
            "finite differences at x_0, pairs": short("start", FiniteDifference(), True, 1e-3),
        }
        for d in (8, 32, 64)
    },
    "images": {
        "level 0.3, limit (DSM)": LevelDCD(0.3, Limit()),
        "level 0.3, central": LevelDCD(0.3, Central()),
        "level 0.3, bridge": LevelDCD(0.3, Bridge()),
        "level 0.3, path": LevelDCD(0.3, levels.Path()),
        "level 0.3, hutchinson": LevelDCD(0.3, levels.Hutchinson()),
        "hutchinson at x_0, pairs": short("start", Hutchinson(), True, 1e-3),
        "finite differences at x_0, pairs": short("start", FiniteDifference(0.05), True, 1e-3),
    },
}


def fields(n: int, generator: torch.Generator, size: int = 16) -> Tensor:
    r"""Returns smooth Gaussian fields of unit variance, with shape (n, 1, size, size)."""
    k = torch.fft.fftfreq(size, 1 / size)
    spectrum = 1 / (1 + k[:, None] ** 2 + k**2)  # the root of the power
    spectrum = spectrum / spectrum.square().mean().sqrt()
    noise = torch.randn(n, 1, size, size, generator=generator)
    return torch.fft.ifft2(torch.fft.fft2(noise) * spectrum).real


@dataclass(frozen=True)
class Group:
    r"""A network and the data it is judged on."""

    net: Net
    build: Callable[[], nn.Module]
    sample: Callable[[int, torch.Generator], Tensor]


def group(name: str, batch: int) -> Group:
    if name == "points":
        sample = lambda n, g: toy("rings").sample(n, g, "cpu", torch.float32)
        return Group(replace(NETS["mlp-2d"], batch=batch), MLP, sample)
    if name != "images":
        d = int(name.rpartition(" ")[2])
        mixture = ring_of_gaussians(d)
        make = lambda: MLP(d)
        net = replace(NETS["mlp-2d"], name=f"mlp-{d}d", build=lambda dtype: make(), shape=(d,))
        draw = lambda n, g: mixture.sample(n, g).float()
        return Group(replace(net, batch=batch), make, draw)
    build = lambda: WideResNet(1, 10, 2)
    net = replace(NETS["wrn-10-1"], name="wrn-10-2", build=lambda dtype: build(), batch=batch // 4)
    return Group(net, build, fields)


def variance(
    energy: nn.Module, objective: Objective, sample: Callable[[], Tensor], draws: int
) -> float:
    r"""Returns the variance of the parameter gradient over fresh batches and noise, unbiased."""
    step, generator = Step(energy, objective), torch.Generator().manual_seed(1)
    flat = lambda out: torch.cat([g.flatten() for g in out.gradients.values()]).double()
    grads = torch.stack([flat(step(sample(), None, generator)) for _ in range(draws)])
    return float(grads.var(0).sum())


def run(
    out: Path,
    groups: Sequence[str] = tuple(ESTIMATORS),
    steps: int = 200,
    batch: int = 128,
    draws: int = 64,
    rounds: int = 9,
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Measures all estimators and writes the rows after each group.

    Arguments:
        out: The file.
        groups: The groups of estimators.
        steps: The steps of training, by the reference, before the measurement.
        batch: The number of points a step; of images a quarter as many.
        draws: The number of gradients whose variance is taken.
        rounds: The number of interleaved rounds of timing.
        progress: Called with a line a row.
    """
    rows = []
    units = begin("reproduce estimators", sum(len(ESTIMATORS[name]) for name in groups))
    for name in groups:
        own = group(name, batch)
        size = own.net.batch
        torch.manual_seed(0)
        energy = own.build()
        named = ESTIMATORS[name]
        generator = torch.Generator().manual_seed(0)
        adam = torch.optim.Adam(energy.parameters(), 1e-3)
        step = Step(energy, next(iter(named.values())))
        within = units.within(steps * len(named))  # a part of the first of a group
        for k in range(steps):
            within(k)
            step(own.sample(size, generator), None, generator).assign(energy)
            adam.step()
        sample = lambda own=own, size=size, g=generator: own.sample(size, g)
        timed = bench_steps(own.net, named, rounds=rounds)
        floor = 0.0
        for label, objective in named.items():
            found = variance(energy, objective, sample, draws)
            floor = floor or found
            cost = timed[label]
            rows.append({
                "group": name,
                "estimator": label,
                "net": own.net.name,
                "batch": size,
                "draws": draws,
                "trained": steps,
                "x_variance": round(found / floor, 4),
                "x_plain": round(cost, 3),
                "merit": round(found / floor * cost, 3),
            })
            units.done()
            progress(f"{name}: {label}: variance {found / floor:.3g}, cost {cost:.3g}")
        results.save(out, rows, f"fokker reproduce estimators --out {out}")
    return rows
