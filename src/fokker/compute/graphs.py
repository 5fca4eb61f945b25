r"""CUDA graphs: what a processor would launch kernel by kernel, launched at once.

A function of tensors runs on a GPU as a sequence of kernels, and a processor that launches
thousands of them one by one may be slower than the GPU is done with them. A *capture* writes the
sequence down, with the addresses that each kernel reads and writes; a *replay* launches all of it
by one call. So

- a replay reads its inputs where those of the capture were, and fills the same outputs again,
- memory that is asked for within a capture belongs to the graph, and stays taken as long as it
  lives,
- nothing within may ask for a value on the processor, and what is done only once (a compilation,
  the choice of an algorithm) must be over before: `capture` runs a function three times first.
"""

__all__ = ["Captured", "capture", "capturing"]

import functools
import torch

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from torch import Tensor
from typing import Any


@functools.cache
def side_stream(device: int) -> torch.cuda.Stream:
    r"""Returns the stream on which a device is captured: graphs of one stream can share memory."""
    return torch.cuda.Stream(device)


@contextmanager
def capturing(
    device: torch.device | None = None, pool: Any = None
) -> Generator[torch.cuda.CUDAGraph, None, None]:
    r"""Captures what runs within as a CUDA graph; see `capture`.

    Left to itself torch captures on the device of its first capture ever, and on another one
    nothing.
    """
    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, side_stream(torch.cuda.current_device())):
            yield graph


def capture(
    run: Callable[[], Any], device: torch.device | None = None, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    r"""Returns a function as a CUDA graph, and the result that each replay fills.

    The graph reads and writes the memory of what the function holds: keep it as long as the graph.

    Arguments:
        run: The function.
        device: The device on which it runs; the current one by default.
        pool: Memory that several graphs share (`torch.cuda.graph_pool_handle`), if any: a
            replay of
            one may overwrite the results of the others.
    """
    with torch.cuda.device(device):
        side = side_stream(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
    with capturing(device, pool) as graph:
        out = run()
    return graph, out


class Captured:
    r"""A function of tensors as a CUDA graph.

    Its inputs are copied to places of their own, and a call overwrites the outputs of the one
    before.

    Arguments:
        function: The function.
        inputs: Inputs of the shapes and dtypes to come, on one GPU.
    """

    def __init__(self, function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> None:
        self.places = places = [t.clone() for t in inputs]
        self.run = lambda: function(*places)  # kept: the graph uses what it holds
        self.run()  # compiled on the stream where it will run
        self.graph, self.outputs = capture(self.run, places[0].device)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        torch._foreach_copy_(self.places, list(inputs))  # pyright: ignore
        self.graph.replay()
        return self.outputs
