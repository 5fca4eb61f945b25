r"""Multi-layer perceptron energies, with the forward Laplacian.

:math:`E(x) = W_L \, \phi(\dots \phi(W_1 \psi(x) + b_1) \dots) + b_L`, where :math:`\psi` is the
identity or adds random Fourier features :math:`\cos(\Omega x), \sin(\Omega x)`.

The **forward Laplacian** carries the triple of value :math:`h`, Jacobian :math:`J = \partial h /
\partial x` and Laplacian :math:`L = \Delta h` of every unit through the layers. A linear layer
applies its matrix to all D + 2 of them at once; an activation does

.. math:: h \to \phi(h), \quad J \to \phi'(h) J, \quad L \to \phi'(h) L + \phi''(h) \|J\|^2 .

The result is exact, at D + 2 passes, with no second reverse pass and no graph of a graph.

References:
    | Forward Laplacian: A New Computational Framework for Neural Network-based Variational Monte
      Carlo (Li et al., 2023)
    | https://arxiv.org/abs/2307.08214
"""

__all__ = ["ACTIVATIONS", "MLP", "Fourier"]

import itertools
import math
import torch
import torch.nn.functional as F

from collections.abc import Callable
from torch import Tensor, nn

from .. import checks
from ..derivatives import Jet
from ..energies import Energy

Curve = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def gelu(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`z \Phi(z)` and its first two derivatives."""
    cdf = 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))
    pdf = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    zp = z * pdf
    return z * cdf, cdf + zp, 2 * pdf - z * zp


def silu(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`z \, s(z)`, with s the sigmoid, and its first two derivatives."""
    s = torch.sigmoid(z)
    ds = s * (1 - s)
    return z * s, s + z * ds, ds * (2 + z * (1 - 2 * s))


def tanh(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`\tanh z` and its first two derivatives."""
    h = torch.tanh(z)
    dh = 1 - h * h
    return h, dh, -2 * h * dh


def softplus(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`\log(1 + e^z)` and its first two derivatives."""
    s = torch.sigmoid(z)
    return F.softplus(z), s, s * (1 - s)


ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Curve]] = {
    "gelu": (F.gelu, gelu),
    "silu": (F.silu, silu),
    "tanh": (torch.tanh, tanh),
    "softplus": (F.softplus, softplus),
}


class Fourier(nn.Module):
    r"""Creates random Fourier features, :math:`x \to (x, \cos \Omega x, \sin \Omega x)`.

    References:
        | Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains
          (Tancik et al., 2020)
        | https://arxiv.org/abs/2006.10739

    Arguments:
        dim: The dimension of x.
        features: The number of frequencies; there are two features to each.
        bandwidth: The standard deviation of the entries of :math:`\Omega`, in radians a unit of x.
    """

    omega: Tensor

    def __init__(self, dim: int, features: int, bandwidth: float) -> None:
        super().__init__()
        checks.positive_integer(features=features)
        checks.positive(bandwidth=bandwidth)
        self.register_buffer("omega", bandwidth * torch.randn(features, dim))

    def forward(self, x: Tensor) -> Tensor:
        phase = x @ self.omega.T
        return torch.cat([x, torch.cos(phase), torch.sin(phase)], dim=-1)

    def triple(self, x: Tensor) -> Tensor:
        r"""Returns value, Jacobian and Laplacian of the features, stacked, (D + 2, B, N)."""
        phase = x @ self.omega.T
        cos, sin = torch.cos(phase), torch.sin(phase)
        rows = self.omega.T[:, None]  # (D, 1, features)
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, None]
        square = self.omega.square().sum(1)
        return torch.cat([
            torch.cat([x, cos, sin], dim=-1)[None],
            torch.cat([eye.expand(-1, len(x), -1), -sin * rows, cos * rows], dim=-1),
            torch.cat([torch.zeros_like(x), -square * cos, -square * sin], dim=-1)[None],
        ])


def linear(triple: Tensor, layer: nn.Linear) -> Tensor:
    r"""Applies the matrix of a layer to all of a stacked triple, as one product."""
    return (triple.flatten(0, 1) @ layer.weight.T).unflatten(0, triple.shape[:2])


class MLP(Energy):
    r"""Creates a multi-layer perceptron energy.

    The defaults are the paper's 2-D network, 2-300-300-300-1 with GELU (its text says "3-layer"
    and "4 layers": these are the four linear layers of the appendix).

    Arguments:
        dim: The dimension D of a point.
        width: The number of hidden units a layer.
        layers: The number of linear layers.
        activation: A name in `ACTIVATIONS`; all are smooth, as second derivatives are needed.
        features: The number of random Fourier frequencies; none by default.
        bandwidth: The standard deviation of the frequencies, in radians a unit of x.

    Example:
        >>> energy, x = MLP(dim=3, width=16), torch.randn(5, 3)
        >>> [part.shape for part in energy.jet(x)]  # value, gradient, Laplacian in one pass
        [torch.Size([5]), torch.Size([5, 3]), torch.Size([5])]
    """

    def __init__(
        self,
        dim: int = 2,
        width: int = 300,
        layers: int = 4,
        activation: str = "gelu",
        features: int = 0,
        bandwidth: float = 4.0,
    ) -> None:
        super().__init__()
        checks.positive_integer(dim=dim, width=width)
        checks.one_of(tuple(ACTIVATIONS), activation=activation)
        checks.positive_integer(layers=layers)
        if layers < 2:
            raise ValueError(f"expected layers >= 2, got {layers}")
        self.dim = dim
        self.activation, self.curve = ACTIVATIONS[activation]
        self.fourier = Fourier(dim, features, bandwidth) if features else None
        widths = [dim + 2 * features, *[width] * (layers - 1), 1]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(widths)])

    @property
    def linears(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        *hidden, last = self.linears
        h = x if self.fourier is None else self.fourier(x)
        for layer in hidden:
            h = self.activation(layer(h))
        return (h * last.weight[0]).sum(-1) + last.bias  # fuses with the activation if compiled

    def jet(self, x: Tensor) -> Jet:
        self.check(x)
        first, *middle, last = self.linears
        if self.fourier is None:
            # the Jacobian of the first layer is its matrix, the same at every point
            rows = first.weight.T[:, None]  # (D, 1, width)
            h, d1, d2 = self.curve(first(x)[None])
            triple = torch.cat([h, d1 * rows, d2 * rows.square().sum(0)])
        else:
            triple = self.activate(linear(self.fourier.triple(x), first), first.bias)
        for layer in middle:
            triple = self.activate(linear(triple, layer), layer.bias)
        e, g, laplacian = (triple * last.weight[0]).sum(-1).split([1, self.dim, 1])
        return Jet(e[0] + last.bias, g.T, laplacian[0])

    def activate(self, triple: Tensor, bias: Tensor) -> Tensor:
        r"""Applies the activation to a stacked triple, (D + 2, B, N) to the same."""
        z, J, L = triple.split([1, self.dim, 1])
        h, d1, d2 = self.curve(z + bias)
        return torch.cat([h, d1 * J, d1 * L + d2 * J.square().sum(0, keepdim=True)])

    def check(self, x: Tensor) -> None:
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"expected points of shape (B, {self.dim}), got {tuple(x.shape)}")
        if x.dtype != (dtype := self.linears[0].weight.dtype):
            raise ValueError(
                f"expected points of dtype {dtype}, that of the network, got {x.dtype}"
            )
