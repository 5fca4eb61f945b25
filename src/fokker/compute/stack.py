r"""Stacked training: many energies of one architecture in one computation.

K networks, one for each pair of a set and a seed, have their parameters stacked along a first
axis. The pure step (`fokker.compute.step`) is mapped over that axis (`torch.vmap`), so each matrix
product becomes one batched product and every network gets its own gradient. Adam and the average
of the weights act elementwise, hence on each network alone: a network that diverges takes no other
with it.

On a GPU the step is compiled, which fuses the elementwise work between the products, and captured
once with the optimizer as a CUDA graph, which removes the launch overhead that such small networks
otherwise drown in.
"""

__all__ = ["Stacked", "train_stack"]

import time
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from torch import Tensor
from typing import Protocol

from .graphs import capturing
from .schedule import Optimization, decay_at, rate_at
from .step import bind
from .tracing import Traced, trace
from ..energies import Energy
from ..objectives import Objective

BLOCK = 250  # steps whose data is drawn at once


class Source(Protocol):
    r"""Anything that draws points: a planar set, a Gaussian mixture."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor: ...


class Architecture(Protocol):
    r"""Anything that builds an energy of points of a shape: a network of a configuration."""

    def build(self, shape: tuple[int, ...]) -> Energy: ...


@dataclass(frozen=True)
class Stacked:
    r"""The outcome of stacked training."""

    energies: list[Energy]  # K, the averaged weights
    finite: list[bool]  # whether every loss and every weight of each was finite
    losses: Tensor  # (ticks, K), the loss every `BLOCK` steps
    seconds: float  # of training, compilation included


class Stack:
    r"""K networks of one architecture with stacked parameters, their optimizer and their average.

    Arguments:
        modules: The K networks, on one device.
        objective: The objective of all.
        optimization: The optimization of all.
        compile: Whether the step is compiled.
    """

    def __init__(
        self,
        modules: list[Energy],
        objective: Objective,
        optimization: Optimization,
        compile: bool,
    ) -> None:
        self.modules, self.optimization, self.compile = modules, optimization, compile
        params, self.buffers = torch.func.stack_module_state(modules)
        self.params = {name: p.detach() for name, p in params.items()}
        self.mapped = torch.vmap(bind(modules[0], objective), randomness="different")
        self.weights = list(self.params.values())
        self.average = [p.detach().clone() for p in self.weights]
        device = self.weights[0].device
        self.cuda = device.type == "cuda"
        rate = optimization.rate
        self.rate = torch.tensor(rate, device=device)  # read by a captured step
        betas = (optimization.beta1, optimization.beta2)
        self.adam = torch.optim.Adam(
            self.weights,
            self.rate if self.cuda else rate,
            betas,
            capturable=self.cuda,
            fused=self.cuda,
        )
        self.drift = torch.zeros((), device=device)  # one minus the decay of the average
        self.loss = torch.zeros(len(modules), device=device)
        self.finite = torch.ones(len(modules), dtype=torch.bool, device=device)
        self.state: tuple[Tensor, ...] = ()
        self.traces: dict[bool, Traced] = {}  # without state, at first, and with it

    def schedule(self, k: int) -> None:
        r"""Sets the rate and the decay of step k."""
        rate = rate_at(k, self.optimization)
        self.rate.fill_(rate)
        if not self.cuda:
            self.adam.param_groups[0]["lr"] = rate
        self.drift.fill_(1 - decay_at(k, self.optimization))

    def step(self, x: Tensor) -> None:
        r"""Takes a step of all networks on points, with shape :math:`(K, B, D)`."""
        first = not self.state
        inputs = (self.params, self.buffers, x, self.state)
        if first not in self.traces:
            self.traces[first] = trace(self.mapped, *inputs, compile=self.compile)
        traced = self.traces[first]
        gradients, loss, state, _ = traced(*inputs, noise=traced.draw())
        for name, g in self.clipped(gradients).items():
            self.params[name].grad = g
        self.adam.step()
        with torch.no_grad():
            for a, p in zip(self.average, self.weights, strict=True):
                a.lerp_(p, self.drift)
            self.loss.copy_(loss)
            self.finite.logical_and_(torch.isfinite(loss))
            if first:
                self.state = state
            else:
                for old, new in zip(self.state, state, strict=True):
                    old.copy_(new)

    def clipped(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        r"""Returns the gradients, those of each network scaled down to the largest norm."""
        if self.optimization.clip is None:
            return gradients
        squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
        scale = (self.optimization.clip / torch.stack(squares).sum(0).sqrt()).clamp(max=1)
        shaped = lambda g: scale.reshape(-1, *[1] * (g.ndim - 1))
        return {name: g * shaped(g) for name, g in gradients.items()}

    def energies(self) -> list[Energy]:
        r"""Returns the networks with their averaged weights; notes those that are not finite."""
        for i, module in enumerate(self.modules):
            with torch.no_grad():
                for name, a in zip(self.params, self.average, strict=True):
                    module.get_parameter(name).copy_(a[i])
            self.finite[i] &= all(torch.isfinite(p).all() for p in module.parameters())
            module.requires_grad_(False)
        return self.modules


def train_stack(
    sources: Sequence[Source],
    objective: Objective,
    network: Architecture,
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
        progress: Called with the number of steps done, once per block of steps.
        compile: Whether the step is compiled; by default on a GPU, for 1,000 steps or more.
    """
    device = torch.device(device)
    if optimization.muon is not None:
        raise ValueError(f"expected no Muon for stacked networks, got muon={optimization.muon}")
    cuda, B, K = device.type == "cuda", optimization.batch, len(sources)
    if compile is None:
        compile = cuda and optimization.steps >= 1000
    dim = sources[0].sample(1).shape[1]
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(network.build((dim,)).to(device))
    stack = Stack(modules, objective, optimization, compile)
    x = torch.empty(K, B, dim, device=device)
    generators = [torch.Generator(device).manual_seed(10_007 * seed + 1) for seed in seeds]
    torch.manual_seed(seeds[0])
    run, ticks, start, points = (lambda: stack.step(x)), [], time.perf_counter(), x[:, None]
    for k in range(optimization.steps):
        if k % BLOCK == 0:
            n = min(BLOCK, optimization.steps - k)
            drawn = [s.sample(n * B, g) for s, g in zip(sources, generators, strict=True)]
            points = torch.stack(drawn).reshape(K, n, B, dim)
            ticks.append(stack.loss.clone())
            progress(k)
        x.copy_(points[:, k % BLOCK])
        if cuda and k == 3:  # three eager steps have warmed up what a capture must not do
            with capturing(device) as graph:
                stack.step(x)
            run = graph.replay
        stack.schedule(k)
        run()
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    progress(optimization.steps)
    energies = stack.energies()
    losses = torch.stack([*ticks[1:], stack.loss]).cpu()
    return Stacked(energies, stack.finite.tolist(), losses, seconds)
