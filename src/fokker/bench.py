r"""The cost of one training step, of fokker's objectives and of their rivals.

A step is what goes from a batch to the gradient of every parameter. Its cost is given in milliseconds
and as a multiple of the *plain* step, value and parameter gradient of the mean energy, compiled:
what no method of training can beat by much. Rounds are interleaved, so that a slow moment falls on
all; a figure is the median over rounds and its spread the distance between quartiles. Operations are
counted in the traced graph, products and convolutions only, and compared with the rate of a
large product of matrices measured in the same run. The peak of memory holds weights, batch and
all that a step needs at once.

Rivals are as good as they can be: they are traced and compiled as our own, CD-1 takes one backward
pass for both gradients at the data, and torchebm's losses run on the same network. `reference` is
what one would write first: Hutchinson's Laplacian by double backward, in eager mode, with PyTorch's
own convolutions.
"""

__all__ = ["NETS", "Net", "bench", "bench_steps", "growth", "names_of"]

import statistics
import time
import torch
import torch.nn.functional as F

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typing import Any

from . import results
from .evolution import Taylor
from .networks import MLP, UNetEnergy, WideResNet, convolution
from .objectives import (
    CD,
    DCD,
    PCD,
    DenoisingScoreMatching,
    LevelDCD,
    MultiTimeDCD,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
)
from .step import bind, trace

Run = Callable[[], Any]


@dataclass(frozen=True)
class Net:
    r"""A network to time steps on."""

    name: str
    build: Callable[[str], nn.Module]  # from a dtype
    batch: int
    shape: tuple[int, ...]
    level: bool = False  # whether the energy takes a noise level
    kind: str = "image"


NETS = {
    net.name: net
    for net in (
        Net("mlp-2d", lambda dtype: MLP(), 1000, (2,), kind="points"),
        Net("wrn-28-10", lambda dtype: WideResNet(dtype=dtype), 256, (3, 32, 32)),
        Net("wrn-16-8", lambda dtype: WideResNet(1, 16, 8, dtype=dtype), 128, (1, 28, 28)),
        Net("wrn-10-1", lambda dtype: WideResNet(1, 10, 1, dtype=dtype), 16, (1, 16, 16)),
        Net("unet-15m", lambda dtype: UNetEnergy(dtype=dtype), 512, (3, 32, 32), level=True),
        Net(
            "unet-fused",
            lambda dtype: UNetEnergy(dtype=dtype, fused=True),
            512,
            (3, 32, 32),
            level=True,
        ),
    )
}


def objectives_of(net: Net) -> dict[str, Objective]:
    r"""Returns the objectives that are timed on a network, by name."""
    if net.kind == "points":
        return {
            "dcd": DCD(),
            "dcd-pairs": DCD(evolution=Taylor("start"), step=2e-5, antithetic=True),
            "dcd-multi": MultiTimeDCD(),
            "dcd-limit": LevelDCD(0.05, form="limit"),
            "dcd-surrogate": LevelDCD(0.05, form="surrogate"),
            "dcd-hutchinson": LevelDCD(0.05, form="hutchinson"),
            "sm": ScoreMatching(),
            "ssm": SlicedScoreMatching(),
            "dsm": DenoisingScoreMatching(0.05),
            "cd-10": CD(10),
            "pcd-20": PCD(20),
        }
    own: dict[str, Any] = {"conditional": net.level}
    named: dict[str, Objective] = {
        "dcd": LevelDCD(form="stein", **own),
        "dcd-limit": LevelDCD(form="limit", **own),
        "dcd-surrogate": LevelDCD(form="surrogate", **own),
        "dcd-hutchinson": LevelDCD(form="hutchinson", **own),
    }
    if not net.level:
        named |= {"cd-10": CD(10), "pcd-10": PCD(10), "ssm": SlicedScoreMatching()}
    return named


def names_of(net: Net) -> list[str]:
    r"""Returns the names of all rows of a network."""
    names = ["plain", *objectives_of(net)]
    if not net.level:
        names += ["cd-1", "reference"]
    if net.kind == "points":
        names += ["dcd-train", "dcd-multi-train"]
    return names


class AtLevel(nn.Module):
    r"""An energy E(x, σ) at one level, as a module."""

    def __init__(self, energy: nn.Module, sigma: float) -> None:
        super().__init__()
        self.energy, self.sigma = energy, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.energy(x, x.new_full((len(x),), self.sigma))


def plain(energy: nn.Module) -> Callable[..., Any]:
    r"""The gradient of the mean energy: forward and backward, nothing else."""

    def step(params: Any, buffers: Any, x: Tensor, state: Any = ()) -> Any:
        call = lambda p: torch.func.functional_call(energy, p | buffers, (x,)).mean()
        gradients, loss = torch.func.grad_and_value(call)(params)
        return gradients, loss, (), {}

    return step


def cheapest_cd(energy: nn.Module, step_size: float) -> Callable[..., Any]:
    r"""CD-1 with one backward pass at the data for both gradients, in x and in the parameters."""

    def step(params: Any, buffers: Any, x: Tensor, state: Any = ()) -> Any:
        call = lambda p, x: torch.func.functional_call(energy, p | buffers, (x,))
        e, pull = torch.func.vjp(call, params, x)  # pyright: ignore[reportAssignmentType]
        up, slope = pull(torch.full_like(e, 1 / len(x)))
        noise = torch.randn(x.shape, dtype=x.dtype, device=x.device)
        y = x - step_size / 2 * len(x) * slope + step_size**0.5 * noise
        down, other = torch.func.grad_and_value(lambda p: call(p, y).mean())(params)
        return {k: up[k] - down[k] for k in params}, e.mean() - other, (), {}

    return step


def reference(energy: nn.Module, x: Tensor, level: float) -> Run:
    r"""Hutchinson's DCD by eager double backward, as one would write it first."""
    params = [p for p in energy.parameters() if p.requires_grad]
    step = LevelDCD(level).step * level**2

    def run() -> Any:
        with textbook_convolutions():
            y = x + level * torch.randn_like(x)
            z = (y + step**0.5 * torch.randn_like(x)).requires_grad_()
            e = energy(z)
            (g,) = torch.autograd.grad(e.sum(), z, create_graph=True)
            v = torch.randint_like(x, 2) * 2 - 1
            (hv,) = torch.autograd.grad((g * v).sum(), z, create_graph=True)
            bracket = (g.square() - v * hv).flatten(1).sum(1) / 2
            loss = (bracket + (energy(y) - e) / step).mean()
            return torch.autograd.grad(loss, params, allow_unused=True)

    return run


@contextmanager
def textbook_convolutions() -> Any:
    r"""Replaces our convolution by PyTorch's own, within."""
    ours = convolution.convolve
    convolution.convolve = F.conv2d  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        convolution.convolve = ours


def peers(energy: nn.Module, x: Tensor, net: Net) -> dict[str, Run]:
    r"""Returns the steps of torchebm on the same network, by name; none if it is not installed."""
    try:
        from torchebm import losses
        from torchebm.core import BaseModel
        from torchebm.samplers import LangevinDynamics
    except ImportError:
        return {}

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__(device=x.device)
            self.net = energy

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model, on = Model(), {"device": x.device}
    params = list(model.parameters())
    langevin = lambda: LangevinDynamics(model, step_size=5e-4, **on)
    cd = losses.ContrastiveDivergence
    made = {
        "cd-1": lambda: cd(model, langevin(), k_steps=1, **on),
        "cd-10": lambda: cd(model, langevin(), k_steps=10, **on),
        "dsm": lambda: losses.DenoisingScoreMatching(model, noise_scale=0.3, **on),
        "ssm": lambda: losses.SlicedScoreMatching(model, n_projections=1, **on),
    }
    if net.kind == "points":  # its exact score matching fails on convolutions
        made["sm"] = lambda: losses.ScoreMatching(model, hessian_method="exact", **on)
        made["pcd-20"] = lambda: cd(
            model, langevin(), k_steps=20, persistent=True, buffer_size=10_000, init_steps=0, **on
        )

    def step(make: Callable[[], nn.Module]) -> Run:
        loss = make()

        def run() -> Any:
            out = loss(x)
            value = out[0] if isinstance(out, tuple) else out
            return torch.autograd.grad(value, params, allow_unused=True)

        return run

    return {name: step(make) for name, make in made.items()}


@dataclass
class Timed:
    r"""A step to be timed, and what was measured."""

    library: str
    name: str
    run: Run
    flops: int | None = None
    trace_s: float | None = None
    compile_s: float | None = None
    repeats: int = 1
    peak: float | None = None
    times: list[float] | None = None


def capture(run: Run) -> Run:
    r"""Returns a step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def prepare(
    name: str, net: Net, energy: nn.Module, x: Tensor, compile: bool, graphs: bool
) -> Timed:
    r"""Traces a step, counts its operations and compiles it."""
    if name == "reference":
        return Timed("eager", name, reference(energy, x, 0.3))
    train = name.endswith("-train")
    objective = objectives_of(net).get(name.removesuffix("-train"))
    whole = AtLevel(energy, 0.5) if net.level else energy
    if name == "plain":
        pure, energy = plain(whole), whole
    elif name == "cd-1":
        pure = cheapest_cd(energy, 0.018)
    elif objective is None:
        raise ValueError(f"expected a step, one of {', '.join(names_of(net))}, got {name!r}")
    else:
        pure = bind(energy, objective)
    params = {k: p.detach() for k, p in energy.named_parameters()}
    buffers = dict(energy.named_buffers())
    state: tuple[Tensor, ...] = ()
    if isinstance(objective, PCD):
        state = (x.repeat(-(-objective.buffer // len(x)), *[1] * (x.ndim - 1)),)
    inputs = (params, buffers, x, state)
    start = time.perf_counter()
    traced = trace(pure, *inputs, compile=compile)
    trace_s = time.perf_counter() - start
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        leaves = [n.meta["val"] for n in traced.graph.graph.nodes if n.op == "placeholder"]
        with leaves[0].fake_mode:
            traced.graph(*leaves)
    if train:  # all that a step of training does
        copies = {k: p.clone() for k, p in params.items()}
        average = [p.clone() for p in copies.values()]
        rate = torch.tensor(1e-3, device=x.device)
        adam = torch.optim.Adam(copies.values(), rate, capturable=graphs, fused=graphs)

        def run() -> Any:
            gradients = traced(copies, buffers, x, state, noise=traced.draw())[0]
            for k, p in copies.items():
                p.grad = gradients[k]
            adam.step()
            torch._foreach_lerp_(average, list(copies.values()), 0.01)  # pyright: ignore[reportPrivateImportUsage]

    else:
        run = lambda: traced(*inputs, noise=traced.draw())
    start = time.perf_counter()
    run()
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    compile_s = time.perf_counter() - start if compile else None
    step = capture(run) if graphs else run
    return Timed("fokker", name, step, counter.get_total_flops(), trace_s, compile_s)


def clock(timed: Timed, cuda: bool) -> float:
    r"""Returns the milliseconds of one step, over its repeats."""
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(timed.repeats):
        timed.run()
    if cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / timed.repeats


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    r"""Returns the TFLOP/s of a large product of random matrices, the median of ten."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    product = Timed("", "", lambda: a @ b)
    clock(product, device.type == "cuda")
    ms = statistics.median(clock(product, device.type == "cuda") for _ in range(10))
    return 2 * n**3 / ms / 1e9


def bench(
    net: Net,
    names: Sequence[str] | None = None,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = 10,
    compile: bool = True,
    rivals: bool = True,
    suite: str = "nets",
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Times the steps of a network and returns one row each.

    Arguments:
        net: The network, batch and shape.
        names: The steps, see `names_of`; all by default. `plain` is always among them.
        device: The device.
        precision: The dtype of the layers of image networks, float32 or bfloat16.
        rounds: The number of interleaved rounds.
        compile: Whether steps are compiled.
        rivals: Whether torchebm's steps are timed too, if it is installed.
        suite: The name of the suite, for the rows.
        progress: Called with a line at each thing done.
    """
    cuda = device != "cpu"
    if cuda:
        torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    energy = net.build(precision).to(device)
    x = 0.5 * torch.randn(net.batch, *net.shape, device=device)
    graphs = cuda and net.kind == "points"
    names = list(names or names_of(net))
    steps: list[Timed] = []
    for name in dict.fromkeys(["plain", *names]):
        steps.append(prepare(name, net, energy, x, compile, graphs and name != "reference"))
        took = steps[-1].compile_s
        progress(f"{net.name} {name}: {'ready' if took is None else f'compiled in {took:.0f} s'}")
    if rivals and not net.level:
        steps += [Timed("torchebm", name, run) for name, run in peers(energy, x, net).items()]
    for timed in steps:
        timed.run()  # warm
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            timed.run()
            torch.cuda.synchronize()
            # a graph's memory is its own, allocated once: its replay says nothing
            captured = graphs and timed.library == "fokker"
            timed.peak = None if captured else torch.cuda.max_memory_allocated() / 2**30
        timed.times = []
        timed.repeats = max(1, min(50, int(20 / max(clock(timed, cuda), 1e-3))))
    for _ in range(rounds):
        for timed in steps:
            assert timed.times is not None
            timed.times.append(clock(timed, cuda))
    dtype = torch.float32 if net.kind == "points" else convolution.DTYPES[precision]
    peak = matmul_rate(torch.device(device), dtype)
    base = steps[0]
    rows = []
    for timed in steps:
        assert timed.times is not None and base.times is not None
        ms = statistics.median(timed.times)
        quarters = statistics.quantiles(timed.times, n=4) if rounds > 1 else [ms] * 3
        ratio = statistics.median(a / b for a, b in zip(timed.times, base.times, strict=True))
        tflops = None if timed.flops is None else timed.flops / ms / 1e9
        memory = None if not (timed.peak and base.peak) else timed.peak / base.peak
        rounded = lambda value, digits: None if value is None else round(value, digits)
        rows.append({
            "suite": suite,
            "library": timed.library,
            "name": timed.name,
            "net": net.name,
            "batch": net.batch,
            "shape": list(net.shape),
            "device": results.hardware(device),
            "threads": None if cuda else torch.get_num_threads(),
            "precision": "float32" if net.kind == "points" else precision,
            "compiled": compile and timed.library == "fokker",
            "ms": rounded(ms, 4),
            "spread": rounded(quarters[2] - quarters[0], 4),
            "x_plain": rounded(ratio, 3),
            "peak_gib": rounded(timed.peak, 3),
            "x_plain_memory": rounded(memory, 3),
            "per_second": rounded(1000 * net.batch / ms, 1),
            "tflop": rounded(None if timed.flops is None else timed.flops / 1e12, 6),
            "tflops": rounded(tflops, 2),
            "peak_share": rounded(None if tflops is None else tflops / peak, 4),
            "matmul_tflops": rounded(peak, 1),
            "trace_s": rounded(timed.trace_s, 2),
            "compile_s": rounded(timed.compile_s, 2),
        })
    return rows


def bench_steps(net: Net, objectives: dict[str, Objective], rounds: int = 9) -> dict[str, float]:
    r"""Returns the cost of a step of each objective on a CPU, as a multiple of the plain one.

    Arguments:
        net: The network, batch and shape.
        objectives: The objectives, by name.
        rounds: The number of interleaved rounds.
    """
    energy, x = net.build("float32"), 0.5 * torch.randn(net.batch, *net.shape)
    params = {k: p.detach() for k, p in energy.named_parameters()}
    inputs = (params, dict(energy.named_buffers()), x, ())
    pures = {"plain": plain(energy)} | {k: bind(energy, o) for k, o in objectives.items()}
    traces = {name: trace(pure, *inputs) for name, pure in pures.items()}
    steps = {
        name: Timed("fokker", name, lambda t=t: t(*inputs, noise=t.draw()))
        for name, t in traces.items()
    }
    for timed in steps.values():
        timed.run()
    times = [{name: clock(timed, False) for name, timed in steps.items()} for _ in range(rounds)]
    return {n: statistics.median(t[n] / t["plain"] for t in times) for n in objectives}


GROWING = ("dcd", "dcd-limit", "dcd-surrogate", "dcd-hutchinson", "cd-1", "cd-10")


def growth(
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = 5,
    compile: bool = False,
    points: Net = NETS["mlp-2d"],
    image: Net = NETS["wrn-16-8"],
    dims: Sequence[int] = (2, 8, 64, 512, 4096),
    batches: Sequence[int] = (100, 1000, 10_000),
    sizes: Sequence[int] = (16, 28, 56),
    names: Sequence[str] = GROWING,
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Times how steps grow with dimension, batch and image size.

    Arguments:
        device: The device.
        precision: The dtype of the layers of the image network.
        rounds: The number of interleaved rounds.
        compile: Whether steps are compiled.
        points: The network of points; its input layer follows the dimension.
        image: The network of images.
        dims: The dimensions.
        batches: The batches, of points.
        sizes: The sides of an image.
        names: The steps.
        progress: Called with a line at each thing done.
    """
    rows = []
    common = (device, precision, rounds, compile, False)
    for dim in dims:
        own = replace(points, build=lambda dtype, dim=dim: MLP(dim), shape=(dim,))
        kept = [n for n in names if n != "dcd" or dim <= 64]  # exact: d + 2 passes
        rows += bench(own, kept, *common, "dimension", progress)
    for batch in batches:
        rows += bench(replace(points, batch=batch), names, *common, "batch", progress)
    for size in sizes:
        own = replace(image, shape=(image.shape[0], size, size))
        rows += bench(own, names, *common, "size", progress)
    return rows
