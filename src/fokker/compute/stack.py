r"""Stacked training: many energies of one architecture in one computation.

K networks, one for each pair of a set and a seed, have their parameters stacked along a first axis.
The pure step (`fokker.compute.step`) is mapped over that axis (`torch.vmap`), so each matrix product becomes
one batched product and every network gets its own gradient. Adam and the average of the weights act
elementwise, hence on each network alone: a network that diverges takes no other with it.

On a GPU the step is compiled, which fuses the elementwise work between the products, and captured
once with the optimizer as a CUDA graph, which removes the launch overhead that such small networks
otherwise drown in.
"""

__all__ = ["Stacked", "train_stack"]

import math
import time
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from torch import Tensor
from typing import Protocol

from .graphs import capturing
from .step import bind
from .tracing import Traced, trace
from ..energies import Energy
from ..objectives import Objective
from ..runs.config import Network, Optimization

BLOCK = 250  # steps whose data is drawn at once


class Source(Protocol):
    r"""Anything that draws points: a planar set, a Gaussian mixture."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Stacked:
    r"""The outcome of stacked training."""

    energies: list[Energy]  # K, the averaged weights
    finite: list[bool]  # whether every loss and every weight of each was finite
    losses: Tensor  # (ticks, K), the loss every `BLOCK` steps
    seconds: float  # of training, compilation included


def rate_at(k: int, optimization: Optimization) -> float:
    r"""Returns the learning rate of step k."""
    begin, end = max(cycle for cycle in optimization.cycles if cycle[0] <= k)
    rate = optimization.rate * min(1.0, (k - begin + 1) / (optimization.warmup + 1))
    if optimization.schedule == "constant":
        return rate
    return rate * (1 + math.cos(math.pi * (k - begin) / (end - begin))) / 2


def decay_at(k: int, optimization: Optimization) -> float:
    r"""Returns the decay of the average of the weights after step k, lower early on."""
    return min(optimization.ema, (1 + k) / (10 + k)) if optimization.ema > 0 else 0.0


def train_stack(
    sources: Sequence[Source],
    objective: Objective,
    network: Network,
    optimization: Optimization,
    seeds: Sequence[int],
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] = lambda step: None,
    compile: bool | None = None,
) -> Stacked:
    r"""Trains one network for each source, all at once.

    Arguments:
        sources: The K sources of data, float32.
        objective: The objective of all.
        network: The architecture of all.
        optimization: The optimization of all.
        seeds: The K seeds, of weights and data.
        device: The device to train on.
        progress: Called with the number of steps done, every block of steps.
        compile: Whether the step is compiled; by default on a GPU, for 1,000 steps or more.
    """
    device = torch.device(device)
    if optimization.muon is not None:
        raise ValueError(f"expected no Muon for stacked networks, got muon={optimization.muon}")
    if compile is None:
        compile = device.type == "cuda" and optimization.steps >= 1000
    B, K = optimization.batch, len(sources)
    dim = sources[0].sample(1).shape[1]
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(network.build((dim,)).to(device))
    params, buffers = torch.func.stack_module_state(modules)
    params = {name: p.detach() for name, p in params.items()}
    mapped = torch.vmap(bind(modules[0], objective), randomness="different")
    weights = list(params.values())
    average = [p.detach().clone() for p in weights]
    cuda = device.type == "cuda"
    rate = torch.tensor(optimization.rate, device=device) if cuda else optimization.rate
    betas = (optimization.beta1, optimization.beta2)
    adam = torch.optim.Adam(weights, rate, betas, capturable=cuda, fused=cuda)
    drift = torch.zeros((), device=device)  # one minus the decay of the average
    x = torch.empty(K, B, dim, device=device)
    finite = torch.ones(K, dtype=torch.bool, device=device)
    loss, state = torch.zeros(K, device=device), ()
    traces: dict[bool, Traced] = {}  # without state, at first, and with it

    def step() -> None:
        nonlocal state
        first = not state
        inputs = (params, buffers, x, state)
        if first not in traces:
            traces[first] = trace(mapped, *inputs, compile=compile)
        gradients, fresh, new, _ = traces[first](*inputs, noise=traces[first].draw())
        if optimization.clip is not None:
            squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
            scale = (optimization.clip / torch.stack(squares).sum(0).sqrt()).clamp(max=1)
            shaped = lambda g: scale.reshape(-1, *[1] * (g.ndim - 1))
            gradients = {name: g * shaped(g) for name, g in gradients.items()}
        for name, p in params.items():
            p.grad = gradients[name]
        adam.step()
        with torch.no_grad():
            for a, p in zip(average, weights, strict=True):
                a.lerp_(p, drift)
            loss.copy_(fresh)
            finite.logical_and_(torch.isfinite(fresh))
            if not state:
                state = new
            else:
                for old, now in zip(state, new, strict=True):
                    old.copy_(now)

    def advance(k: int, run: Callable[[], None]) -> None:
        if cuda:
            rate.fill_(rate_at(k, optimization))  # pyright: ignore[reportAttributeAccessIssue]
        else:
            adam.param_groups[0]["lr"] = rate_at(k, optimization)
        drift.fill_(1 - decay_at(k, optimization))
        run()

    generators = [torch.Generator(device).manual_seed(10_007 * seed + 1) for seed in seeds]
    torch.manual_seed(seeds[0])
    run, ticks, start, points = step, [], time.perf_counter(), x[:, None]
    for k in range(optimization.steps):
        if k % BLOCK == 0:
            n = min(BLOCK, optimization.steps - k)
            drawn = [s.sample(n * B, g) for s, g in zip(sources, generators, strict=True)]
            points = torch.stack(drawn).reshape(K, n, B, dim)
            ticks.append(loss.clone())
            progress(k)
        x.copy_(points[:, k % BLOCK])
        if cuda and k == 3:  # three eager steps have warmed up what a capture must not do
            with capturing(device) as graph:
                step()
            run = graph.replay
        advance(k, run)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    progress(optimization.steps)
    energies = []
    for i, module in enumerate(modules):
        with torch.no_grad():
            for name, a in zip(params, average, strict=True):
                module.get_parameter(name).copy_(a[i])
        sound = all(torch.isfinite(p).all() for p in module.parameters())
        finite[i] &= sound
        energies.append(module.requires_grad_(False))
    return Stacked(energies, finite.tolist(), torch.stack(ticks[1:] + [loss]).cpu(), seconds)
