r"""One pure step: (parameters, buffers, batch, state, noise) to gradients, loss and diagnostics.

Training needs :math:`\partial_\theta L`, and L holds derivatives in x already. Two things stand in
the way of a compiler: a graph that is differentiated while it runs, and random numbers drawn within.
So a step is *traced* first: `make_fx` runs the objective and all of its derivatives once, on tensors
without storage, and writes down the plain tensor operations, forward, score, Laplacian and parameter
gradient in one flat graph without autograd. Every draw in it then becomes an input, and what is asked
for twice is done once. What is left is a pure function,

.. math:: (\theta, b, x, s, \varepsilon) \to (\partial_\theta L, L, s', \text{info}),

that runs as it is, or compiled whole. The noise is drawn outside, in the order in which the objective
would, so a traced step with a generator gives what the objective itself gives with that generator.
It returns gradients and touches nothing: the optimizer, the all-reduce over devices and the guard
against divergence are the caller's.

**Many ranks.** With a `Share` the step takes the whole batch and gives the part of one rank. The noise is
drawn for the whole batch on every rank, in the order and shapes of a step without ranks, and the rank
keeps its rows: along the one axis of a draw that shrinks with the share those at r, r + R, r + 2R, ...; a
draw that does not shrink is used whole. So the mean over the ranks is the step of one rank, whatever
their number, up to the rounding of a sum.

**Memory for time.** A step holds all that its derivatives need of the whole batch at once. The usual
remedy, to compute the forward pass again within the backward pass (`torch.utils.checkpoint`), is closed
here twice: it works by hooks on saved tensors, which `torch.func` does not allow, and in a flat graph that
does once what is asked for twice, what is computed again would be merged with what was computed before. But
every objective is a mean over rows. So a share can be cut into S *slices*, shares of R S ranks, that one
device takes one after another, each with the noise that its rows have in the whole batch:

.. math:: \partial_\theta L = \frac{1}{S} \sum_s \partial_\theta L_s .

The gradient is that of the whole batch up to the rounding of a sum. What the derivatives need falls to
the S-th part; weights, batch and noise are held as before, and the sum of the gradients beside those
of a slice. No operation on a row is done twice, but what is done once a batch (kernels to launch, weights
to read, the moments of its rows) is done S times. The number of the slice is an input of the graph, so
there is one trace and one compilation for all.

Tracing fixes shapes, layouts, dtypes and devices, which parameters are trained, whether a module is in its
training mode, and autocast; `Step` traces again when one of them changes. All else that is no tensor is
fixed for good by the first trace: a step asks of an energy and an objective what compilation asks, no
branch on the value of a tensor, and no randomness but torch's.

**Cost.** Tracing takes about as long as a few eager steps of the network. The compiler takes seconds
for the networks of the 2-D study and minutes for those of images (`results/bench.json`), and keeps
what it made in the folder that `TORCHINDUCTOR_CACHE_DIR` names.

On a GPU a compiled step is captured at its first call as a CUDA graph (`fokker.graphs`), and replayed: a
U-Net step is thousands of kernels, and at the batch of the presets a processor launches them no faster
than the GPU is done with them. A replay fills the same memory again, so the gradients of a step are there
until the next one; loss, state and diagnostics are copied out of it.
"""

__all__ = ["Gradients", "Step", "Traced", "bind", "trace"]

import linecache
import operator
import torch
import torch.utils._pytree as pytree

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph_module import _loader
from torch.utils._python_dispatch import TorchDispatchMode
from typing import Any, NamedTuple

from . import checks
from .checks import brief
from .derivatives import EnergyLike
from .graphs import Captured
from .objectives import WHOLE, Objective, Output, Share, interleave

aten = torch.ops.aten
add, divide = torch._foreach_add_, torch._foreach_div_  # pyright: ignore[reportPrivateImportUsage]


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
        own = {"generator": generator, "dtype": self.dtype, "device": self.device}
        match self.law:
            case "normal":
                return torch.randn(self.shape, **own)
            case "uniform":
                return torch.rand(self.shape, **own)
            case "permutation":
                return torch.randperm(self.shape[0], **own)
            case _:
                return torch.randint(self.low, self.high, self.shape, **own)


def draw_of(target: Any, args: Sequence[Any], like: Tensor) -> Draw | None:
    r"""Returns the draw that an operation makes, `None` if it makes none.

    Arguments:
        target: The operation.
        args: Its arguments.
        like: What it returns.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return None
    own = (tuple(like.shape), like.dtype, like.device)
    match target.overloadpacket:
        case aten.randn | aten.randn_like:
            return Draw("normal", *own)
        case aten.rand | aten.rand_like:
            return Draw("uniform", *own)
        case aten.randperm:
            return Draw("permutation", *own)
        case aten.randint:
            bounds = [a for a in args if isinstance(a, int)]
            return Draw("integer", *own, *([0, *bounds] if len(bounds) == 1 else bounds))
    raise ValueError(
        f"expected draws by randn, rand, randint or randperm in a traced function, got {target}"
    )


class Drawing(TorchDispatchMode):
    r"""Writes down the draws of what is computed under it."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (draw := draw_of(func, args, out)) is not None:
            self.draws.append(draw)
        return out


def written(graph: Graph) -> set[Node]:
    r"""Returns the nodes whose memory some operation of a graph writes to: results, and views of them."""
    roots: dict[Node, Node] = {}  # the node that first had the memory of each
    dirty: set[Node] = set()
    for node in graph.nodes:
        roots[node] = node
        if node.target is operator.getitem:
            roots[node] = roots[node.args[0]]
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema.arguments
        given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
        for argument in schema:
            if (alias := argument.alias_info) is None:
                continue
            for held in pytree.tree_leaves(given.get(argument.name)):
                if isinstance(held, Node):
                    roots[node] = roots[held]
                    dirty |= {roots[held]} if alias.is_write else set()
    return {node for node, root in roots.items() if root in dirty}


def share(graph: Graph) -> None:
    r"""Does every operation once that a graph does several times on the same operands.

    Not where memory is written to: there the same operation finds another value, or must have a place of
    its own for what it returns.
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
        if (draw := draw_of(node.target, node.args, node.meta.get("val"))) is None:
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
    graph.recompile()
    # torch.fx keeps the source of every graph for good
    for key in set(_loader.eval_cache) - known:
        del _loader.eval_cache[key]
        linecache.cache.pop(key, None)
    restore = lambda out: pytree.tree_unflatten(out, shape[-1])
    return Traced(graph, draws, restore, compile, capture)


class Bound(nn.Module):
    r"""An objective bound to an energy, as a module whose parameters can be replaced."""

    def __init__(self, energy: nn.Module, objective: Objective, share: Share) -> None:
        super().__init__()
        self.energy, self.objective, self.share = energy, objective, share

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], rank: Tensor | None
    ) -> tuple[Tensor, Any, Any]:
        own: EnergyLike = self.energy
        before = self.objective.restore(state)
        share = self.share if rank is None else self.share._replace(rank=rank)
        if share.ranks == 1:
            out: Output = self.objective.compute(own, x, before, None)
        else:
            out = self.objective.part(own, x, before, None, share)
        return out.loss, tuple(out.state or ()), out.info


def bind(energy: nn.Module, objective: Objective, share: Share = WHOLE) -> Callable[..., Any]:
    r"""Returns the step as a pure function of parameters, buffers, batch and state.

    The parameters and buffers are dictionaries by name, the state the tuple of the tensors of the
    objective's state, empty at first. It gives gradients, loss, state and info. A last argument, if
    given, is the number of the rank as a tensor (1), in place of that of the share.
    """
    bound = Bound(energy, objective, share)

    def step(
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        state: tuple[Tensor, ...] = (),
        rank: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        def loss(params: dict[str, Tensor]) -> tuple[Tensor, Any]:
            named = {f"energy.{k}": v for k, v in (params | buffers).items()}
            out = torch.func.functional_call(bound, named, (x, state, rank))
            return out[0], out

        gradients, (value, after, info) = torch.func.grad(loss, has_aux=True)(params)
        return gradients, value, after, info

    return step


def apart(named: dict[str, Tensor], others: Iterable[Tensor]) -> dict[str, Tensor]:
    r"""Returns tensors that share memory neither with each other nor with others: each may be written to.

    What is done once is there once: the biases of two branches that are added have one gradient, and a
    parameter that is its own gradient is that gradient. To clip such a one in place would be wrong. Nor
    do the elements of one share it, as those of the gradient of a sum do, which is a number expanded.
    """
    seen = {t.untyped_storage().data_ptr() for t in others}
    out = {}
    for name, t in named.items():
        place = t.untyped_storage().data_ptr()
        expanded = any(step == 0 and n > 1 for step, n in zip(t.stride(), t.shape, strict=True))
        out[name] = t.clone() if expanded or place in seen else t
        seen.add(place)
    return out


class Gradients(NamedTuple):
    r"""The result of a step."""

    gradients: dict[str, Tensor]  # by the name of the parameter; until the next step if captured
    loss: Tensor  # ()
    state: Any  # None, or what the next step needs
    info: dict[str, Tensor]  # diagnostics, ()

    def assign(self, energy: nn.Module) -> None:
        r"""Hands the gradients to the parameters of an energy, for an optimizer."""
        for name, p in energy.named_parameters():
            if p.requires_grad:
                p.grad = self.gradients[name]


def mean(values: Sequence[Tensor]) -> Tensor:
    r"""Returns the mean of tensors."""
    return torch.stack(tuple(values)).sum(0) / len(values)


class Step:
    r"""Creates the step of an objective on an energy, traced at its first call.

    .. code-block:: python

        step = Step(energy, objective, compile=True)
        out = step(x, state, generator)
        out.assign(energy)
        adam.step()

    Arguments:
        energy: The energy; its parameters and buffers are read anew at each call.
        objective: The objective.
        compile: Whether the step is compiled, and on a GPU captured.
        share: The share of a rank, if there are several. The batch is the whole one in any case, the
            state that of the share.
        slices: The number of slices of the share that are taken one after another, to save memory.
    """

    def __init__(
        self,
        energy: nn.Module,
        objective: Objective,
        compile: bool = False,
        share: Share = WHOLE,
        slices: int = 1,
    ) -> None:
        checks.positive_integer(slices=slices)
        if not isinstance(energy, nn.Module):
            raise ValueError(f"expected an energy that is an nn.Module, got {brief(energy)}")
        self.energy, self.objective, self.compile = energy, objective, compile
        self.parts = share.cut(slices)
        self.pure = bind(energy, objective, self.parts[0])
        self.traces: dict[Any, Traced] = {}
        self.draws: dict[Any, list[Draw]] = {}  # of the whole batch

    def __call__(
        self, x: Tensor, state: Any = None, generator: torch.Generator | None = None
    ) -> Gradients:
        r"""Returns gradients and loss on a batch; see `Objective`."""
        self.objective.accept(state)
        named = dict(self.energy.named_parameters())
        params = {k: p.detach() for k, p in named.items() if p.requires_grad}
        others = {k: p.detach() for k, p in named.items() if not p.requires_grad}
        own = (params, others | dict(self.energy.named_buffers()), x)
        inputs = [(*own, *piece) for piece in self.pieces(x, tuple(state or ()))]
        key = self.key(inputs[0])
        if key not in self.traces:
            self.even(len(checks.points(x)))
            if not params:
                raise ValueError("expected an energy with a parameter to train, got none")
            how = {"compile": self.compile, "capture": self.compile and x.is_cuda}
            self.traces[key] = trace(self.pure, *inputs[0], **how)
            self.draws[key] = self.whole(*inputs[0])
        traced = self.traces[key]
        noise = [draw(generator) for draw in self.draws[key]]
        total, rests = {}, []
        for part, given in zip(self.parts, inputs, strict=True):
            pairs = zip(noise, traced.draws, strict=True)
            gradients, *rest = traced(*given, noise=[rows(n, d.shape, part) for n, d in pairs])
            rests.append(pytree.tree_map(torch.clone, rest) if traced.capture else rest)
            if total:
                add(list(total.values()), list(gradients.values()))
            elif traced.capture and len(self.parts) > 1:  # the next slice overwrites them
                total = {name: g.clone() for name, g in gradients.items()}
            else:
                total = apart(gradients, pytree.tree_leaves(given))
            del gradients  # not held while the next slice is computed
        loss, after, info = rests[0]
        if (slices := len(self.parts)) > 1:
            divide(list(total.values()), slices)
            losses, states, infos = zip(*rests, strict=True)
            loss = mean(losses)
            after = tuple(map(interleave, zip(*states, strict=True)))
            info = {name: mean([own[name] for own in infos]) for name in info}
        return Gradients(total, loss, self.objective.restore(after), info)

    def key(self, inputs: tuple[Any, ...]) -> Any:
        r"""Returns all that a trace depends on."""
        params, buffers, x, *_ = inputs
        leaves = pytree.tree_leaves(inputs)
        kind = x.device.type
        return (
            (*params, None, *buffers),
            tuple((t.shape, t.stride(), t.dtype, t.device) for t in leaves),
            tuple(module.training for module in self.energy.modules()),
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        )

    def even(self, batch: int) -> None:
        r"""Raises unless every slice of every rank has as many rows of a batch."""
        self.parts[0].even(batch=batch)

    def pieces(self, x: Tensor, state: tuple[Tensor, ...]) -> list[tuple[Any, ...]]:
        r"""Returns what the slices do not have in common: their rows of the state, and their number."""
        if len(self.parts) == 1:
            return [(tuple(t.contiguous() for t in state),)]
        cuts = WHOLE.cut(len(self.parts))
        for t in state:
            cuts[0].even(state=len(t))
        number = lambda part: torch.full((1,), part.rank, dtype=torch.long, device=x.device)
        return [
            (tuple(cut(t).contiguous() for t in state), number(part))
            for cut, part in zip(cuts, self.parts, strict=True)
        ]

    def whole(
        self, params: Any, buffers: Any, x: Tensor, state: tuple[Tensor, ...], *_: Tensor
    ) -> list[Draw]:
        r"""Returns the draws of a step of the whole batch, checked against those of a slice."""
        key, ranks = next(reversed(self.traces)), self.parts[0].ranks
        if ranks == 1:
            return self.traces[key].draws
        full = tuple(t.new_empty((len(t) * ranks, *t.shape[1:])) for t in state)
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, Drawing() as drawing:
            inputs = pytree.tree_map(fake.from_tensor, (params, buffers, x, full))
            bind(self.energy, self.objective)(*inputs)
        draws = drawing.draws
        for whole, own in zip(draws, self.traces[key].draws, strict=True):
            same = (whole.law, whole.low, whole.high) == (own.law, own.low, own.high)
            if not same or (whole.law == "permutation" and whole.shape != own.shape):
                raise ValueError(
                    "expected draws that ranks or slices can share, rows of the same law, got"
                    f" {own} of {whole}; write the `part` of {type(self.objective).__name__}"
                )
        return draws


def rows(noise: Tensor, shape: tuple[int, ...], share: Share) -> Tensor:
    r"""Returns the rows of a draw of the whole batch that are a share's, with the shape it asks for."""
    if noise.shape == shape:
        return noise
    axes = [i for i, (n, m) in enumerate(zip(noise.shape, shape, strict=True)) if n != m]
    if len(axes) != 1 or noise.shape[axes[0]] != share.ranks * shape[axes[0]]:
        raise ValueError(
            f"expected a draw with one axis of {share.ranks} times its size in {shape}, got"
            f" {tuple(noise.shape)}"
        )
    (axis,) = axes
    return share(noise.transpose(0, axis)).transpose(0, axis).contiguous()
