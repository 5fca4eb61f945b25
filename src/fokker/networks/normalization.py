r"""Normalization that is cheap to differentiate twice.

With :math:`\langle \cdot \rangle` the mean along an axis, a vector is divided by its root mean
square,

.. math:: n = r h, \qquad r = (\langle h^2 \rangle + \epsilon)^{-1/2} .

The differential is :math:`dn = r (dh - \langle n \, dh \rangle n)`, whatever :math:`\epsilon`: a
symmetric map, so the gradient is the same map of what comes in,
:math:`B(g, h) = r (g - \langle n g \rangle n)`. That is linear in g, and in h its own gradient,
for an incoming u, is

.. math::
    r^2 \big[ (3 \langle u n \rangle \langle n g \rangle - \langle u g \rangle) \, n
    - \langle n g \rangle \, u - \langle u n \rangle \, g \big] .

Three means and a few products: automatic differentiation writes four times as many operations,
which a compiler must then read, fuse and schedule. Reverse mode only, and PyTorch's own
derivatives under `torch.compile`, for the reasons of `fokker.networks.convolution`.
"""

__all__ = ["normalize", "wide"]

import torch

from torch import Tensor
from typing import Any

EPSILON = 1e-4

Gradients = tuple[Tensor | None, ...]


def wide(dtype: torch.dtype) -> torch.dtype:
    r"""Returns the dtype of reductions: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def inverse_root(h: Tensor, dim: int) -> Tensor:
    return torch.rsqrt((h * h).mean(dim, keepdim=True) + EPSILON)


class Normalize(torch.autograd.Function):
    r"""The map :math:`h \to n`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, dim: int) -> Tensor:
        return h * inverse_root(h, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, ctx.dim = inputs
        ctx.save_for_backward(h)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:  # pyright: ignore
        return Project.apply(g, *ctx.saved_tensors, ctx.dim), None


class Project(torch.autograd.Function):
    r"""The gradient :math:`B(g, h)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, h: Tensor, dim: int) -> Tensor:
        r = inverse_root(h, dim)
        n = h * r
        return r * (g - (n * g).mean(dim, keepdim=True) * n)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, h, ctx.dim = inputs
        ctx.save_for_backward(g, h)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Gradients:  # pyright: ignore
        g, h = ctx.saved_tensors
        by_g, by_h, _ = ctx.needs_input_grad
        mean = lambda x: x.mean(ctx.dim, keepdim=True)
        along_h = None
        if by_h:
            r = inverse_root(h, ctx.dim)
            n = h * r
            un, ng, ug = mean(u * n), mean(n * g), mean(u * g)
            along_h = r * r * ((3 * un * ng - ug) * n - ng * u - un * g)
        return Project.apply(u, h, ctx.dim) if by_g else None, along_h, None


def normalize(h: Tensor, dim: int = 1) -> Tensor:
    r"""Divides by the root mean square along an axis; the result is in float32 at least."""
    h = h.to(wide(h.dtype))
    if torch.compiler.is_dynamo_compiling():
        return h * inverse_root(h, dim)
    n: Tensor = Normalize.apply(h, dim)  # pyright: ignore[reportAssignmentType]
    return n
