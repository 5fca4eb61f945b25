r"""Colour for energies of grey pictures.

A colour picture is turned by an orthogonal matrix into three grey pictures,

.. math::
    z = O x, \qquad O = \begin{pmatrix} 1/\sqrt{3} & 1/\sqrt{3} & 1/\sqrt{3} \\
    1/\sqrt{2} & 0 & -1/\sqrt{2} \\ 1/\sqrt{6} & -2/\sqrt{6} & 1/\sqrt{6} \end{pmatrix},
    \qquad O O^\top = I ,

brightness and two differences of colours, which for photographs are nearly uncorrelated. Noise of
standard deviation :math:`\sigma` in each channel of x is independent noise of standard deviation
:math:`\sigma` in each of z. Scaled into [−1, 1],

.. math:: u_k = c_k z_k, \qquad c = (1/\sqrt{3}, \; 1/\sqrt{2}, \; \sqrt{6}/4) ,

they are grey pictures with noise :math:`c_k \sigma`. An operator that acts on each channel alike
(`fokker.images.operators`) commutes with O. So a colour picture is three independent grey
problems. What the three share, such as edges at one place, is not used: an energy of colour
pictures can.

The posterior deviations of :math:`u_k` give those of the channels,
:math:`\mathrm{Var} \, x_c = \sum_k O_{kc}^2 \, \mathrm{Var} \, u_k / c_k^2`.
"""

__all__ = ["MATRIX", "SCALES", "from_parts", "to_parts", "variances"]

import math
import torch

from torch import Tensor

MATRIX = (
    (1 / math.sqrt(3), 1 / math.sqrt(3), 1 / math.sqrt(3)),
    (1 / math.sqrt(2), 0.0, -1 / math.sqrt(2)),
    (1 / math.sqrt(6), -2 / math.sqrt(6), 1 / math.sqrt(6)),
)
SCALES = (1 / math.sqrt(3), 1 / math.sqrt(2), math.sqrt(6) / 4)


def check(x: Tensor) -> Tensor:
    if x.ndim < 3 or x.shape[-3] != 3:
        raise ValueError(f"expected pictures of 3 channels, got shape {tuple(x.shape)}")
    return x


def to_parts(x: Tensor) -> Tensor:
    r"""Returns the three grey pictures u of colour pictures :math:`(*, 3, H, W)`."""
    turned = torch.einsum("kc,...chw->...khw", x.new_tensor(MATRIX), check(x))
    return turned * x.new_tensor(SCALES)[:, None, None]


def from_parts(u: Tensor) -> Tensor:
    r"""Returns the colour pictures of three grey ones: the inverse of `to_parts`."""
    z = check(u) / u.new_tensor(SCALES)[:, None, None]
    return torch.einsum("kc,...khw->...chw", u.new_tensor(MATRIX), z)


def variances(v: Tensor) -> Tensor:
    r"""Returns the variances of the channels, of those of independent parts
    :math:`(*, 3, H, W)`."""
    z = check(v) / v.new_tensor(SCALES).square()[:, None, None]
    return torch.einsum("kc,...khw->...chw", v.new_tensor(MATRIX).square(), z)
