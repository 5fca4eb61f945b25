r"""One pure step: (parameters, buffers, batch, state, noise) to gradients, loss and diagnostics.

Training needs :math:`\partial_\theta L`, and L holds derivatives in x already. The objective and
all of its derivatives, forward, score, Laplacian and parameter gradient, are traced into one flat
graph with the noise as an input (`fokker.compute.tracing`). What is left is a pure function,

.. math:: (\theta, b, x, s, \varepsilon) \to (\partial_\theta L, L, s', \text{info}),

that runs as it is, or compiled whole. It returns gradients and touches nothing: the optimizer, the
all-reduce over devices and the guard against divergence are the caller's.

**Many ranks.** With a `Share` the step takes the whole batch and gives the part of one rank. The
noise is drawn for the whole batch on every rank, in the order and shapes of a step without ranks,
and the rank keeps its rows: along the one axis of a draw that shrinks with the share those at r, r
+ R, r + 2R, ...; a draw that does not shrink is used whole. So the mean over the ranks is the step
of one rank, whatever their number, up to the rounding of a sum.

**Memory for time.** A step holds all that its derivatives need of the whole batch at once. The
usual remedy, to compute the forward pass again within the backward pass
(`torch.utils.checkpoint`), is closed here twice: it works by hooks on saved tensors, which
`torch.func` does not allow, and in a flat graph that does once what is asked for twice, what is
computed again would be merged with what was computed before. But every objective is a mean over
rows. So a share can be cut into S *slices*, shares of R S ranks, that one device takes one after
another, each with the noise that its rows have in the whole batch:

.. math:: \partial_\theta L = \frac{1}{S} \sum_s \partial_\theta L_s .

The gradient is that of the whole batch up to the rounding of a sum. What the derivatives need
falls to the S-th part; weights, batch and noise are held as before, and the sum of the gradients
beside those of a slice. No operation on a row is done twice, but what is done once a batch
(kernels to launch, weights to read, the moments of its rows) is done S times. The number of the
slice is an input of the graph, so there is one trace and one compilation for all.

Tracing fixes shapes, layouts, dtypes and devices, which parameters are trained, whether a module
is in its training mode, and autocast; `Step` traces again when one of them changes. All else that
is no tensor is fixed for good by the first trace: a step asks of an energy and an objective what
compilation asks, no branch on the value of a tensor, and no randomness but torch's.

**Cost.** Tracing takes about as long as a few eager steps of the network. The compiler takes
seconds for the networks of the 2-D study and minutes for those of images (`results/bench.json`),
and keeps what it made in the folder that `TORCHINDUCTOR_CACHE_DIR` names.

On a GPU a compiled step is captured at its first call as a CUDA graph (`fokker.compute.graphs`),
and replayed: a U-Net step is thousands of kernels, and at the batch of the presets a processor
launches them no faster than the GPU is done with them. A replay fills the same memory again, so
the gradients of a step are there until the next one; loss, state and diagnostics are copied out of
it.
"""

__all__ = ["Gradients", "Step", "bind"]

import torch
import torch.utils._pytree as pytree

from collections.abc import Callable, Iterable, Sequence
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from typing import Any, NamedTuple

from .tracing import Draw, Drawing, Traced, trace
from .. import checks
from ..checks import brief
from ..objectives import WHOLE, Objective, Output, Share, interleave

add, divide = torch._foreach_add_, torch._foreach_div_  # pyright: ignore[reportPrivateImportUsage]


class Bound(nn.Module):
    r"""An objective bound to an energy, as a module whose parameters can be replaced."""

    def __init__(self, energy: nn.Module, objective: Objective, share: Share) -> None:
        super().__init__()
        self.energy, self.objective, self.share = energy, objective, share

    def forward(
        self,
        x: Tensor,
        state: tuple[Tensor, ...],
        rank: Tensor | None,
        label: Tensor | None,
    ) -> tuple[Tensor, Any, Any]:
        before = self.objective.restore(state)
        share = self.share if rank is None else self.share._replace(rank=rank)
        energy: Any = self.energy
        if label is not None:
            mine = share(label)
            # a form or a tie may ask for several points a row, block after block
            rows = lambda p: mine.repeat(len(p) // len(mine), *(1,) * (mine.ndim - 1))
            energy = lambda p, level: self.energy(p, level, rows(p))
        out: Output = self.objective.part(energy, x, before, None, share)
        return out.loss, tuple(out.state or ()), out.info


def bind(energy: nn.Module, objective: Objective, share: Share = WHOLE) -> Callable[..., Any]:
    r"""Returns the step as a pure function of parameters, buffers, batch and state.

    The parameters and buffers are dictionaries by name, the state the tuple of the tensors of the
    objective's state, empty at first. It gives gradients, loss, state and info. A further
    argument, if given, is the number of the rank as a tensor (1), in place of that of the share;
    another, the classes of the rows (B), for an energy of points, levels and classes.
    """
    bound = Bound(energy, objective, share)

    def step(
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        state: tuple[Tensor, ...] = (),
        rank: Tensor | None = None,
        label: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        def loss(params: dict[str, Tensor]) -> tuple[Tensor, Any]:
            named = {f"energy.{k}": v for k, v in (params | buffers).items()}
            out = torch.func.functional_call(bound, named, (x, state, rank, label))
            return out[0], out

        gradients, (value, after, info) = torch.func.grad(loss, has_aux=True)(params)
        return gradients, value, after, info

    return step


def apart(named: dict[str, Tensor], others: Iterable[Tensor]) -> dict[str, Tensor]:
    r"""Returns tensors that share memory neither with each other nor with others: each may be
    written to.

    What is done once is there once: the biases of two branches that are added have one gradient,
    and a parameter that is its own gradient is that gradient. To clip such a one in place would be
    wrong. Nor do the elements of one share it, as those of the gradient of a sum do, which is a
    number expanded.
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
        share: The share of a rank, if there are several. The batch is the whole one in any case,
            the state that of the share.
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
        checks.alone(energy)
        self.energy, self.objective, self.compile = energy, objective, compile
        self.parts = share.cut(slices)
        self.pure = bind(energy, objective, self.parts[0])
        self.traces: dict[Any, Traced] = {}
        self.draws: dict[Any, list[Draw]] = {}  # of the whole batch

    def __call__(
        self,
        x: Tensor,
        state: Any = None,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
    ) -> Gradients:
        r"""Returns gradients and loss on a batch; see `Objective`. An energy of classes is told
        those of the rows, `label` (B)."""
        self.objective.accept(state)
        named = dict(self.energy.named_parameters())
        params = {k: p.detach() for k, p in named.items() if p.requires_grad}
        others = {k: p.detach() for k, p in named.items() if not p.requires_grad}
        arguments = (params, others | dict(self.energy.named_buffers()), x)
        inputs: list[Any] = [(*arguments, *piece) for piece in self.pieces(x, tuple(state or ()))]
        if label is not None:  # a rank as well, to have its place
            whole = torch.as_tensor(self.parts[0].rank, device=x.device).reshape(1)
            inputs = [(*(i if len(i) == 5 else (*i, whole)), label) for i in inputs]
        key = self.key(inputs[0])
        if key not in self.traces:
            self.even(len(checks.points(x)))
            if not params:
                raise ValueError("expected an energy with a parameter to train, got none")
            options = {"compile": self.compile, "capture": self.compile and x.is_cuda}
            self.traces[key] = trace(self.pure, *inputs[0], **options)
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
            info = {name: mean([part[name] for part in infos]) for name in info}
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
        r"""Returns what the slices do not have in common: their rows of the state, and their
        number."""
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
        self,
        params: Any,
        buffers: Any,
        x: Tensor,
        state: tuple[Tensor, ...],
        rank: Tensor | None = None,
        label: Tensor | None = None,
    ) -> list[Draw]:
        r"""Returns the draws of a step of the whole batch, checked against those of a slice."""
        key, ranks = next(reversed(self.traces)), self.parts[0].ranks
        if ranks == 1:
            return self.traces[key].draws
        full = tuple(t.new_empty((len(t) * ranks, *t.shape[1:])) for t in state)
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, Drawing() as drawing:
            inputs = pytree.tree_map(fake.from_tensor, (params, buffers, x, full))
            told = None if label is None else fake.from_tensor(label)
            bind(self.energy, self.objective)(*inputs, label=told)
        draws = drawing.draws
        for whole, traced in zip(draws, self.traces[key].draws, strict=True):
            same = (whole.law, whole.low, whole.high) == (traced.law, traced.low, traced.high)
            if not same or (whole.law == "permutation" and whole.shape != traced.shape):
                raise ValueError(
                    "expected draws that ranks or slices can share, rows of the same law, got"
                    f" {traced} of {whole}; write the `part` of {type(self.objective).__name__}"
                )
        return draws


def rows(noise: Tensor, shape: tuple[int, ...], share: Share) -> Tensor:
    r"""Returns the rows of a draw of the whole batch that are a share's, with the shape it asks
    for."""
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
