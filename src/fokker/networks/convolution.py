r"""Convolutions that are cheap to differentiate twice.

A convolution, its input gradient and its weight gradient are the three faces of one trilinear
form,

.. math:: T(g, x, w) = \langle g, x * w \rangle, \qquad
    x * w = \partial_g T, \quad \text{InputGradient}(g, w) = \partial_x T, \quad
    \text{WeightGradient}(x, g) = \partial_w T .

Each is linear in two of the three, so its derivatives are the other two: the set is closed under
differentiation, to any order. PyTorch knows this only to the first order. Its double backward asks
for the weight gradient as a plain convolution whose kernel is as large as the image, which is very
slow on a GPU; here it stays a weight gradient. And where PyTorch keeps the memory order of what
comes in, which a second derivative easily loses, here images are always channels last.

Reverse mode only. Under `torch.compile`, which mishandles custom functions within `torch.func`
transforms, `convolve` is PyTorch's own convolution; traced with `make_fx` it is this one.

The layers of this module keep their parameters in the default dtype and compute in that of their
input, so that a network runs in bfloat16 on float32 parameters. Their weights are drawn from
:math:`\mathcal{N}(0, a^2 / n)` with n the fan-in and a the `gain`, which maps inputs of unit
second moment to outputs of standard deviation a; their biases start at zero.
"""

__all__ = ["DTYPES", "Conv2d", "Linear", "Precise", "convolve"]

import copy
import math
import torch
import torch.nn.functional as F

from torch import Tensor, nn
from typing import Any, Self

from .. import checks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

Gradients = tuple[Tensor | None, ...]


class Precise(nn.Module):
    r"""Base class of networks whose layers run in a dtype of their own; parameters stay in
    float32."""

    dtype: torch.dtype

    def cast(self, dtype: str) -> Self:
        r"""Returns the same network, with the same parameters, whose layers run in another dtype.

        Arguments:
            dtype: A name in `DTYPES`.
        """
        checks.one_of(tuple(DTYPES), dtype=dtype)
        other = copy.copy(self)
        other.dtype = DTYPES[dtype]
        return other


def geometry(stride: int, padding: int) -> tuple[Any, ...]:
    r"""Returns stride, padding, dilation, transposed, output padding and groups, as aten wants."""
    return [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1


def last(x: Tensor) -> Tensor:
    r"""Returns images in the memory order channels last, copied only if they are not."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class Convolve(torch.autograd.Function):
    r"""The convolution :math:`x * w`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
        return torch.ops.aten.convolution(last(x), w, None, *geometry(stride, padding))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, *ctx.geometry = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:  # pyright: ignore
        x, w = ctx.saved_tensors
        by_x, by_w, *_ = ctx.needs_input_grad
        return (
            InputGradient.apply(g, w, x.detach(), *ctx.geometry) if by_x else None,
            WeightGradient.apply(x, g, w.detach(), *ctx.geometry) if by_w else None,
            None,
            None,
        )


class InputGradient(torch.autograd.Function):
    r"""The gradient of :math:`\langle g, x * w \rangle` in x, shaped `like` x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, w: Tensor, like: Tensor, stride: int, padding: int) -> Tensor:
        mask = [True, False, False]
        back = torch.ops.aten.convolution_backward
        return back(last(g), like, w, None, *geometry(stride, padding), mask)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, _, *ctx.geometry = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Gradients:  # pyright: ignore
        g, w = ctx.saved_tensors
        by_g, by_w, *_ = ctx.needs_input_grad
        return (
            Convolve.apply(x, w, *ctx.geometry) if by_g else None,
            WeightGradient.apply(x, g, w.detach(), *ctx.geometry) if by_w else None,
            None,
            None,
            None,
        )


class WeightGradient(torch.autograd.Function):
    r"""The gradient of :math:`\langle g, x * w \rangle` in w, shaped `like` w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, g: Tensor, like: Tensor, stride: int, padding: int) -> Tensor:
        mask = [False, True, False]
        back = torch.ops.aten.convolution_backward
        return back(last(g), last(x), like, None, *geometry(stride, padding), mask)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, g, _, *ctx.geometry = inputs
        ctx.save_for_backward(x, g)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Gradients:  # pyright: ignore
        x, g = ctx.saved_tensors
        by_x, by_g, *_ = ctx.needs_input_grad
        return (
            InputGradient.apply(g, w, x.detach(), *ctx.geometry) if by_x else None,
            Convolve.apply(x, w, *ctx.geometry) if by_g else None,
            None,
            None,
            None,
        )


def convolve(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: int = 1, padding: int = 0
) -> Tensor:
    r"""Returns the convolution of images with a kernel, plus a bias, as `F.conv2d` does.

    Arguments:
        x: The images, with shape :math:`(B, C, H, W)`.
        w: The kernel, with shape :math:`(C', C, K, K)`.
        b: The bias, with shape :math:`(C')`.
        stride: The stride along both axes.
        padding: The number of zeros around the image.
    """
    if torch.compiler.is_dynamo_compiling():
        return F.conv2d(x, w, b, stride, padding)
    y: Tensor = Convolve.apply(x, w, stride, padding)  # pyright: ignore[reportAssignmentType]
    return y if b is None else y + b[:, None, None]


class Conv2d(nn.Module):
    r"""Creates a convolution layer, padded so that stride 1 keeps the size of the image.

    Arguments:
        channels: The number of channels in.
        out: The number of channels out.
        kernel: The size of the kernel, odd.
        stride: The stride along both axes.
        bias: Whether a bias is added.
        gain: The standard deviation of the outputs at the start; zero gives zeros.
    """

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        bias: bool = True,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        checks.positive_integer(channels=channels, out=out, kernel=kernel, stride=stride)
        if kernel % 2 == 0:
            raise ValueError(f"expected kernel to be odd, got {kernel}")
        w = torch.randn(out, channels, kernel, kernel) * gain / math.sqrt(channels * kernel**2)
        self.weight = nn.Parameter(w.to(memory_format=torch.channels_last))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        self.stride, self.padding = stride, kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        b = None if self.bias is None else self.bias.to(x.dtype)
        return convolve(x, self.weight.to(x.dtype), b, self.stride, self.padding)

    def extra_repr(self) -> str:
        out, channels, kernel, _ = self.weight.shape
        return f"{channels}, {out}, kernel={kernel}, stride={self.stride}"


class Linear(nn.Linear):
    r"""Creates a linear layer that computes in the dtype of its input.

    Arguments:
        features: The number of features in.
        out: The number of features out.
        gain: The standard deviation of the outputs at the start; zero gives zeros.
    """

    def __init__(self, features: int, out: int, gain: float = 1.0) -> None:
        super().__init__(features, out)
        nn.init.normal_(self.weight, std=gain / math.sqrt(features))
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), self.bias.to(input.dtype))
