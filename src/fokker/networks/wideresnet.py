r"""Wide residual network energies, without normalization.

A WRN-d-k has d = 6 n + 4 layers: a 3×3 convolution to 16 channels, three groups of n
pre-activation blocks with 16 k, 32 k and 64 k channels and strides 1, 2 and 2, and a head. A block
is

.. math:: h \to s(h) + W_2 * \phi(W_1 * \phi(h)),

with the shortcut s the identity, or a 1×1 convolution where the shape changes. With h the features
:math:`\phi(\cdot)` of the last block at the positions i, the energy has one of three forms:

==========  ===============================================  ====================================
`pool`      :math:`E = w \cdot \mathrm{mean}_i h_i + b`      the paper's
`sum`       :math:`E = \sum_i (w \cdot h_i + b)`             grows with the image, as energies do
`square`    :math:`E = \tfrac{1}{2} \sum_i \|W h_i + b\|^2`  bounded from below
==========  ===============================================  ====================================

There is no normalization: it would tie the points of a batch, or cost a reduction a layer that is
differentiated twice. Its place is taken by the start. A convolution after an activation has the
variance :math:`1 / (n_\text{in} \, \mathbb{E} \, \phi(z)^2)`, z standard normal (He's rule, with
the constant of the activation at hand), and :math:`W_2` is scaled by one over the root of the
number of blocks, so that they add up to a variance below e times that of the first.

References:
    | Wide Residual Networks (Zagoruyko et al., 2016)
    | https://arxiv.org/abs/1605.07146
    | Fixup Initialization: Residual Learning Without Normalization (Zhang et al., 2019)
    | https://arxiv.org/abs/1901.09321
"""

__all__ = ["WideResNet"]

import math
import torch

from collections.abc import Callable
from torch import Tensor, nn

from .convolution import DTYPES, Conv2d, Linear, Precise
from .mlp import ACTIVATIONS
from .. import checks
from ..energies import Energy

FORMS = ("pool", "sum", "square")


def gain(activation: Callable[[Tensor], Tensor]) -> float:
    r"""Returns :math:`1 / \sqrt{\mathbb{E} \, \phi(z)^2}` for z standard normal, by quadrature."""
    z = torch.linspace(-9, 9, 1001, dtype=torch.float64, device="cpu")
    p = torch.exp(-z.square() / 2)
    return math.sqrt(p.sum() / (p * activation(z).square()).sum())


class Block(nn.Module):
    r"""Creates a residual block of two convolutions.

    Arguments:
        channels: The number of channels in.
        out: The number of channels out.
        stride: The stride of the first convolution.
        activation: The activation :math:`\phi`.
        scale: The standard deviation of the branch, for inputs of standard deviation one.
    """

    def __init__(
        self,
        channels: int,
        out: int,
        stride: int,
        activation: Callable[[Tensor], Tensor],
        scale: float,
    ) -> None:
        super().__init__()
        a = gain(activation)
        self.activation = activation
        self.first = Conv2d(channels, out, 3, stride, gain=a)
        self.second = Conv2d(out, out, 3, gain=a * scale)
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        branch = self.second(self.activation(self.first(self.activation(h))))
        return self.shortcut(h) + branch


class WideResNet(Precise, Energy):
    r"""Creates a wide residual network energy of images of any size.

    The default, WRN-28-10, has 36.5 million parameters.

    Arguments:
        channels: The number of channels of an image.
        depth: The number of layers, 6 n + 4.
        widen: The factor k on the number of channels.
        activation: A name in `ACTIVATIONS`; all are smooth, as second derivatives are needed.
        form: The form of the energy: pool, sum or square.
        dtype: A name in `DTYPES`, for the layers; the head runs in float32 at least.
    """

    def __init__(
        self,
        channels: int = 3,
        depth: int = 28,
        widen: int = 10,
        activation: str = "silu",
        form: str = "pool",
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        checks.positive_integer(channels=channels, depth=depth, widen=widen)
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"expected depth to be 6 n + 4 with n >= 1, got {depth}")
        checks.one_of(tuple(ACTIVATIONS), activation=activation)
        checks.one_of(FORMS, form=form)
        checks.one_of(tuple(DTYPES), dtype=dtype)
        self.channels, self.form, self.dtype = channels, form, DTYPES[dtype]
        self.activation, _ = ACTIVATIONS[activation]
        n = (depth - 4) // 6
        self.stem = Conv2d(channels, width := 16, 3)
        self.blocks = nn.Sequential()
        for out, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for i in range(n):
                step = stride if i == 0 else 1
                block = Block(width, out, step, self.activation, 1 / math.sqrt(3 * n))
                self.blocks.append(block)
                width = out
        self.head = Linear(width, channels if form == "square" else 1)

    def forward(self, x: Tensor) -> Tensor:
        checks.images(x, self.channels)
        h = self.stem(x.to(self.dtype, memory_format=torch.channels_last))
        h = self.activation(self.blocks(h))
        h = h.to(torch.promote_types(self.dtype, torch.float32))
        if self.form == "pool":
            return self.head(h.mean((2, 3))).squeeze(1)
        h = self.head(h.flatten(2).transpose(1, 2))  # (B, positions, outputs)
        return (h.square() / 2 if self.form == "square" else h).sum((1, 2))
