r"""The cost of one training step, of fokker's objectives and of their rivals.

A step is what goes from a batch to the gradient of every parameter. Its cost is given in
milliseconds and as a multiple of the *plain* step, value and parameter gradient of the mean
energy, compiled: what no method of training can beat by much. Rounds are interleaved, so that a
slow moment falls on all; a figure is the median over rounds and its spread the distance between
quartiles. Operations are counted in the traced graph, products and convolutions only, and compared
with the rate of a large product of matrices measured in the same run. The peak of memory holds
weights, batch and all that a step needs at once. On a GPU a step that is traced is captured as a
CUDA graph (`fokker.compute.graphs`), ours as a rival's; its peak of memory is taken from a run
before that, and so is a profile: the milliseconds in kernels of convolutions, of products, and of
all else, which moves memory.

Rivals are as good as they can be: they are traced and compiled as our own, CD-1 takes one backward
pass for both gradients at the data, and torchebm's losses run on the same network. `reference` is
what one would write first: Hutchinson's Laplacian by double backward, in eager mode, with
PyTorch's own convolutions.
"""

__all__ = ["bench", "bench_steps"]

import statistics
import time
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fokker.compute.graphs import capture
from fokker.compute.step import bind
from fokker.compute.tracing import trace
from fokker.networks import DTYPES
from fokker.objectives import PCD, Objective
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typing import Any

from .nets import Net, names_of, objectives_of
from .rivals import AtLevel, Run, cheapest_cd, peers, plain, reference
from .. import results


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
    kernels: dict[str, float] | None = None
    times: list[float] | None = None
    captured: Run | None = None  # kept: its graph writes to what it holds


# by what is in the name of a kernel of cuDNN, cuBLAS or Triton; the first that fits
KERNELS = {
    "convolution": ("fprop", "dgrad", "wgrad", "conv"),
    "product": ("gemm", "nvjet", "cublas"),
}


def kind_of(kernel: str) -> str:
    r"""Returns what a kernel does, by its name: convolution, product or memory.

    Example:
        >>> kind_of("sm90_xmma_dgrad_implicit_gemm_bf16"), kind_of("triton_red_fused_mean_mul")
        ('convolution', 'memory')
    """
    if kernel.startswith("triton"):
        return "memory"
    marks = KERNELS.items()
    return next((kind for kind, names in marks if any(n in kernel for n in names)), "memory")


def profile(run: Run) -> dict[str, float]:
    r"""Returns the milliseconds of a step on the GPU, by the kind of kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    spent = dict.fromkeys((*KERNELS, "memory"), 0.0)
    for event in found.key_averages():
        spent[kind_of(event.key)] += event.self_device_time_total / 1000
    return {kind: round(ms, 3) for kind, ms in spent.items()}


def prepare(
    name: str, net: Net, energy: nn.Module, x: Tensor, compile: bool, pool: Any = None
) -> Timed:
    r"""Traces a step, counts its operations, compiles it, and captures it on a GPU.

    Arguments:
        name: The name of the step.
        net: The network.
        energy: Its energy.
        x: The batch.
        compile: Whether the step is compiled.
        pool: The memory that the graphs of all steps share.
    """
    held = torch.cuda.memory_allocated() if x.is_cuda else 0
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
        adam = torch.optim.Adam(copies.values(), rate, capturable=x.is_cuda, fused=x.is_cuda)

        def run() -> Any:
            gradients = traced(copies, buffers, x, state, noise=traced.draw())[0]
            for k, p in copies.items():
                p.grad = gradients[k]
            adam.step()
            torch._foreach_lerp_(average, list(copies.values()), 0.01)  # pyright: ignore

    else:
        run = lambda: traced(*inputs, noise=traced.draw())
    start = time.perf_counter()
    run()
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    compile_s = time.perf_counter() - start if compile else None
    timed = Timed("fokker", name, run, counter.get_total_flops(), trace_s, compile_s)
    if x.is_cuda:
        look(timed, held)
        timed.run, timed.captured = capture(run, x.device, pool)[0].replay, run
    return timed


def look(timed: Timed, held: int) -> None:
    r"""Notes the peak of memory of a step on the GPU, beyond what was held before, and profiles
    it."""
    timed.run()  # warm
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    timed.run()
    torch.cuda.synchronize()
    timed.peak = (torch.cuda.max_memory_allocated() - held) / 2**30
    timed.kernels = profile(timed.run)


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
    if cuda:
        torch.cuda.set_device(x.device)  # of which memory is asked
    basis = torch.cuda.memory_allocated() / 2**30 if cuda else 0.0  # weights and batch
    pool = torch.cuda.graph_pool_handle() if cuda else None  # graphs are replayed one at a time
    names = names_of(net) if names is None else list(names)
    steps: list[Timed] = []
    every = list(dict.fromkeys(["plain", *names]))
    first = "compiled, seconds to minutes each, and then timed" if compile else "timed"
    progress(f"{net.name}: {len(every)} steps are {first} in {rounds} rounds")
    for name in every:
        steps.append(prepare(name, net, energy, x, compile, pool))
        took = steps[-1].compile_s
        progress(f"{net.name} {name}: {'ready' if took is None else f'compiled in {took:.0f} s'}")
    if rivals and not net.level:
        steps += [Timed("torchebm", name, run) for name, run in peers(energy, x, net).items()]
    for timed in steps:
        if cuda and timed.peak is None:  # not captured
            look(timed, torch.cuda.memory_allocated())
        timed.run()
        timed.times = []
        timed.repeats = max(1, min(50, int(20 / max(clock(timed, cuda), 1e-3))))
    for _ in range(rounds):
        for timed in steps:
            assert timed.times is not None
            timed.times.append(clock(timed, cuda))
    dtype = torch.float32 if net.kind == "points" else DTYPES[precision]
    peak = matmul_rate(torch.device(device), dtype)
    base = steps[0]
    rows = []
    for timed in steps:
        assert timed.times is not None and base.times is not None
        ms = statistics.median(timed.times)
        quarters = statistics.quantiles(timed.times, n=4) if rounds > 1 else [ms] * 3
        ratio = statistics.median(a / b for a, b in zip(timed.times, base.times, strict=True))
        tflops = None if timed.flops is None else timed.flops / ms / 1e9
        peak_gib = None if timed.peak is None else basis + timed.peak
        memory = None
        if peak_gib is not None and base.peak is not None:
            memory = peak_gib / (basis + base.peak)
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
            "peak_gib": rounded(peak_gib, 3),
            "x_plain_memory": rounded(memory, 3),
            "per_second": rounded(1000 * net.batch / ms, 1),
            "tflop": rounded(None if timed.flops is None else timed.flops / 1e12, 6),
            "tflops": rounded(tflops, 2),
            "peak_share": rounded(None if tflops is None else tflops / peak, 4),
            "kernel_ms": timed.kernels,
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
