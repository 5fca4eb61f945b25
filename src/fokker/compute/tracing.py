r"""A function of tensors as one flat graph of plain operations, with its noise as an input.

Two things stand in the way of compiling an objective with its derivatives: a graph that is
differentiated while it runs, and random numbers drawn within. So it is *traced* first: `make_fx`
runs the function once, on tensors without storage, and writes down the tensor operations, those of
all derivatives among them, in one flat graph without autograd. Then

- every draw becomes an input: the noise is drawn outside, in the order in which the function
  would, so that a traced function with a generator gives what the function itself gives with that
  generator;
- what is asked for twice is done once (`share`), but where memory is written to;
- operations are put in an order that holds less memory at once (`fokker.compute.order`).

What is left runs as it is, or compiled whole, and on a GPU captured at its first call as a CUDA
graph (`fokker.compute.graphs`).
"""

__all__ = ["Draw", "Drawing", "Traced", "trace"]

import linecache
import operator
import torch
import torch.utils._pytree as pytree

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph_module import _loader
from torch.utils._python_dispatch import TorchDispatchMode
from typing import Any

from .graphs import Captured
from .order import reorder, written

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    r"""A tensor of random numbers that a traced function asks for."""

    law: str  # normal, uniform, integer or permutation
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    low: int = 0
    high: int = 0

    def __call__(self, generator: torch.Generator | None = None) -> Tensor:
        options = {"generator": generator, "dtype": self.dtype, "device": self.device}
        match self.law:
            case "normal":
                return torch.randn(self.shape, **options)
            case "uniform":
                return torch.rand(self.shape, **options)
            case "permutation":
                return torch.randperm(self.shape[0], **options)
            case _:
                return torch.randint(self.low, self.high, self.shape, **options)


def refused(target: torch._ops.OpOverload) -> ValueError:
    r"""Returns the error for an operation whose draws cannot be an input."""
    return ValueError(
        f"expected draws by randn, rand, randint or randperm in a traced function, got {target}"
    )


def dropout_of(target: torch._ops.OpOverload, given: Mapping[str, Any]) -> float | None:
    r"""Returns the rate of the dropout within an operation, such as fused attention; `None` if it
    has none."""
    for argument in target._schema.arguments:
        if argument.name == "dropout_p":
            return given.get("dropout_p", argument.default_value)
    return None


def draw_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], like: Tensor
) -> Draw | None:
    r"""Returns the draw that an operation makes, `None` if it makes none.

    Arguments:
        target: The operation.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        like: What it returns.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return None
    names = (argument.name for argument in target._schema.arguments)
    if dropout_of(target, dict(zip(names, args, strict=False)) | dict(kwargs)) == 0:
        return None
    if not isinstance(like, Tensor):
        raise refused(target)
    arguments = (tuple(like.shape), like.dtype, like.device)
    match target.overloadpacket:
        case aten.randn | aten.randn_like:
            return Draw("normal", *arguments)
        case aten.rand | aten.rand_like:
            return Draw("uniform", *arguments)
        case aten.randperm:
            return Draw("permutation", *arguments)
        case aten.randint:
            bounds = [a for a in args if isinstance(a, int)]
            return Draw("integer", *arguments, *([0, *bounds] if len(bounds) == 1 else bounds))
    raise refused(target)


class Drawing(TorchDispatchMode):
    r"""Writes down the draws of what is computed under it."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (draw := draw_of(func, args, kwargs or {}, out)) is not None:
            self.draws.append(draw)
        return out


def share(graph: Graph) -> None:
    r"""Does every operation once that a graph does several times on the same operands.

    Not where memory is written to: there the same operation finds another value, or must have a
    place of its own for what it returns.
    """
    seen: dict[Any, Node] = {}
    dirty = written(graph)
    for node in graph.nodes:
        target = node.target
        pure = isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable
        if node.op != "call_function" or not (pure or target is operator.getitem):
            continue
        if node in dirty or not dirty.isdisjoint(node.all_input_nodes):
            continue
        key = (target, *pytree.tree_flatten((node.args, node.kwargs)))
        key = (key[0], tuple((type(a), a) for a in key[1]), key[2])
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node


class Traced:
    r"""A function as one flat graph of tensor operations, with its noise as an input.

    Arguments:
        graph: The graph, from the leaves of the inputs and the noise to the leaves of the outputs.
        draws: The noise it asks for.
        restore: From the leaves of the outputs to the outputs.
        compile: Whether the graph is compiled, at its first call.
        capture: Whether it is captured, at its first call: outputs last until the next call.
    """

    def __init__(
        self,
        graph: GraphModule,
        draws: list[Draw],
        restore: Callable[[list[Tensor]], Any],
        compile: bool = False,
        capture: bool = False,
    ) -> None:
        self.graph, self.draws, self.restore, self.capture = graph, draws, restore, capture
        self.call: Callable[..., list[Tensor]] = graph
        if compile:
            self.call = torch.compile(graph, fullgraph=True, dynamic=False)

    def draw(self, generator: torch.Generator | None = None) -> list[Tensor]:
        r"""Returns fresh noise."""
        return [draw(generator) for draw in self.draws]

    def __call__(self, *inputs: Any, noise: list[Tensor]) -> Any:
        r"""Returns the outputs for inputs shaped as those of the trace."""
        leaves = [*pytree.tree_leaves(inputs), *noise]
        with torch.no_grad():
            if self.capture and not isinstance(self.call, Captured):
                self.call = Captured(self.call, leaves)
            return self.restore(self.call(*leaves))


def trace(
    function: Callable[..., Any], *inputs: Any, compile: bool = False, capture: bool = False
) -> Traced:
    r"""Returns a function of nested tensors as a flat graph.

    Arguments:
        function: The function; it may differentiate (`torch.func`), map (`torch.vmap`) and draw
            from torch's global source.
        inputs: Inputs of the shapes, dtypes and devices to come.
        compile: Whether the graph is to be compiled.
        capture: Whether it is to be captured as a CUDA graph.
    """
    leaves, spec = pytree.tree_flatten(inputs)
    shape: list[Any] = []
    known = set(_loader.eval_cache)

    def flat(*leaves: Tensor) -> list[Tensor]:
        outputs, out_spec = pytree.tree_flatten(function(*pytree.tree_unflatten(leaves, spec)))
        shape.append(out_spec)
        return outputs

    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(
        *(leaf.detach() for leaf in leaves)
    )
    draws, inputs_end = [], next(n for n in graph.graph.nodes if n.op != "placeholder")
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if (draw := draw_of(node.target, node.args, node.kwargs, node.meta.get("val"))) is None:
            continue
        with graph.graph.inserting_before(inputs_end):
            noise = graph.graph.placeholder(f"noise_{len(draws)}")
        noise.meta = dict(node.meta)
        node.replace_all_uses_with(noise)
        if node is inputs_end:
            inputs_end = node.next
        graph.graph.erase_node(node)
        draws.append(draw)
    share(graph.graph)
    graph.graph.eliminate_dead_code()
    reorder(graph.graph)
    graph.recompile()
    # torch.fx keeps the source of every graph for good
    for key in set(_loader.eval_cache) - known:
        del _loader.eval_cache[key]
        linecache.cache.pop(key, None)
    restore = lambda out: pytree.tree_unflatten(out, shape[-1])
    return Traced(graph, draws, restore, compile, capture)
