r"""Muon: steps of equal length in every direction of a matrix.

A kernel or matrix is a linear map W, from n inputs to m outputs (a kernel is flattened to that).
Adam scales each of its numbers; Muon scales its singular directions. With G the gradient, M its
average and N looking ahead as Nesterov does,

.. math::
    M \leftarrow \beta M + (1 - \beta) G, \qquad N = \beta M + (1 - \beta) G, \qquad
    W \leftarrow W - \eta \sqrt{\max(1, m / n)} \; O(N), \qquad O(U S V^\top) = U V^\top .

Every singular value of :math:`O(N)` is one: no output changes by more than the rate allows, and
directions with small gradients, of which there are many, are learned as fast as the few with large
ones. What the rate means does not depend on the width of the network.

The map O comes without a decomposition. With :math:`X_0 = N / \|N\|`, five times

.. math:: X \leftarrow a X + b (X X^\top) X + c (X X^\top)^2 X, \qquad
    (a, b, c) = (3.4445, -4.7750, 2.0315),

moves every singular value s by the polynomial :math:`a s + b s^3 + c s^5`, which takes all but the
tiniest to between 0.68 and 1.21, near enough to one. It needs products of matrices only, in
bfloat16 on a GPU; matrices of one shape go through it together.

`torch.optim.Muon` without its weight decay is the same for one matrix after another, and refuses
kernels; `tests/test_muon.py` compares the two.

References:
    | Muon: An optimizer for hidden layers in neural networks (Jordan et al., 2024)
    | https://kellerjordan.github.io/posts/muon/
"""

__all__ = ["Muon", "orthogonal"]

import math
import torch

from collections.abc import Iterable
from torch import Tensor, nn
from typing import Any

from .. import checks

# one launch for many tensors
add_ = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
lerp, lerp_ = torch._foreach_lerp, torch._foreach_lerp_  # pyright: ignore

QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
TINY = 1e-7  # the least norm that is divided by


def orthogonal(x: Tensor) -> Tensor:
    r"""Returns :math:`O(N)`, nearly, of a stack of matrices, with shape :math:`(K, m, n)`, in
    their dtype."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # the smaller of both products
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=TINY)
    a, b, c = QUINTIC
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    r"""Creates Muon for matrices and kernels.

    Arguments:
        parameters: Parameters of two axes or more, outputs first.
        rate: The rate :math:`\eta`.
        momentum: The decay :math:`\beta` of the average.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float = 0.01, momentum: float = 0.95
    ) -> None:
        parameters = list(parameters)
        checks.positive(rate=rate)
        if not 0 <= momentum < 1:
            raise ValueError(f"expected momentum from 0 to less than 1, got {momentum!r}")
        for p in parameters:
            if p.ndim < 2:
                raise ValueError(f"expected matrices or kernels, got shape {tuple(p.shape)}")
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}  # by the shape of the matrix
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(flat(p).shape, []).append(p)
            for (outputs, inputs), same in alike.items():
                gradients: list[Any] = [p.grad for p in same]
                averages = [self.average(p) for p in same]
                lerp_(averages, gradients, 1 - group["momentum"])
                ahead = torch.stack([
                    flat(n) for n in lerp(gradients, averages, group["momentum"])
                ])
                moves = orthogonal(ahead.bfloat16() if ahead.is_cuda else ahead).to(ahead.dtype)
                shaped = [
                    m.view(last(p).shape).movedim(-1, 1) for m, p in zip(moves, same, strict=True)
                ]
                add_(same, shaped, alpha=-group["lr"] * math.sqrt(max(1, outputs / inputs)))

    def average(self, p: Tensor) -> Tensor:
        r"""Returns the average of the gradients of a parameter, zero at first."""
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        return state["momentum"]


def last(p: Tensor) -> Tensor:
    r"""Returns a matrix or kernel with its inputs last, as a kernel lies in memory."""
    return p.movedim(1, -1)


def flat(p: Tensor) -> Tensor:
    r"""Returns it as a matrix. The order of inputs does not matter to :math:`O`."""
    return last(p).flatten(1)
