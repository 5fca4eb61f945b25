r"""Averages of the weights with a power-function profile, mixed after training.

With :math:`\theta_k` the weights after step k, the average of exponent :math:`\gamma` at step t is

.. math::
    \hat\theta_\gamma(t) = \sum_{k=1}^t p_\gamma(k, t) \, \theta_k, \qquad
    p_\gamma(k, t) = \Big(\frac{k}{t}\Big)^{\gamma + 1} - \Big(\frac{k - 1}{t}\Big)^{\gamma + 1},

the integral of :math:`(\gamma + 1) \tau^\gamma / t^{\gamma + 1}` over each step. It follows the
weights by :math:`\hat\theta \leftarrow \beta_t \hat\theta + (1 - \beta_t) \theta_t` with
:math:`\beta_t = (1 - 1/t)^{\gamma + 1}`. Its window grows with the run: its standard deviation is
a fixed share of the steps, the *width*

.. math:: w = \sqrt{\frac{\gamma + 1}{(\gamma + 2)^2 (\gamma + 3)}} .

**Mixing.** An average of any width at any step is nearly a linear combination of a few that were
kept, :math:`\sum_i x_i \hat\theta_{\gamma_i}(t_i)`, with the coefficients that bring its profile
nearest to the one that is wanted, in mean square, and sum to one. The inner products are closed
form: with :math:`m = \min(t, s)`

.. math::
    \langle p_\gamma(\cdot, t), p_\delta(\cdot, s) \rangle
    = \frac{(\gamma + 1)(\delta + 1)}{\gamma + \delta + 1} \,
    \Big(\frac{m}{t}\Big)^{\gamma + 1} \Big(\frac{m}{s}\Big)^{\delta + 1} \frac{1}{m} .

References:
    | Analyzing and Improving the Training Dynamics of Diffusion Models (Karras et al., 2024)
    | https://arxiv.org/abs/2312.02696
"""

__all__ = ["Kept", "Mixed", "decay", "exponent", "mix", "overlap", "width"]

import math
import numpy as np

from collections.abc import Sequence
from typing import NamedTuple

from .. import checks

WIDEST = 0.28  # of a plain mean, the exponent zero, 1 / sqrt(12), it is 0.289


class Kept(NamedTuple):
    r"""An average that was kept."""

    width: float
    step: int


class Mixed(NamedTuple):
    r"""A combination of averages."""

    coefficients: tuple[float, ...]
    error: float  # of the profile, relative to its size, in the root mean square


def width(gamma: float) -> float:
    r"""Returns the width w of the profile of an exponent."""
    return math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3)))


def exponent(w: float) -> float:
    r"""Returns the exponent of the profile of a width.

    Arguments:
        w: The width, from 0.001 to 0.28 of the steps.

    Example:
        >>> exponent(0.05), exponent(0.1)
        (16.97, 6.94)
    """
    checks.between(0.001, WIDEST, width=w)
    low, high = 0.0, 2000.0
    for _ in range(100):  # the width falls with the exponent
        middle = (low + high) / 2
        low, high = (middle, high) if width(middle) > w else (low, middle)
    return (low + high) / 2


def decay(step: int, w: float) -> float:
    r"""Returns :math:`\beta_t` of a width, the share of the average that stays at step t, from
    1."""
    return (1 - 1 / step) ** (exponent(w) + 1)


def overlap(a: Kept, b: Kept) -> float:
    r"""Returns the inner product of the profiles of two averages."""
    g, d, m = exponent(a.width), exponent(b.width), min(a.step, b.step)
    share = (m / a.step) ** (g + 1) * (m / b.step) ** (d + 1)
    return (g + 1) * (d + 1) / (g + d + 1) * share / m


def mix(kept: Sequence[Kept], wanted: Kept) -> Mixed:
    r"""Returns the combination of averages nearest to one that was not kept.

    Arguments:
        kept: The averages that were kept, one or more.
        wanted: The width, and the step, that are wanted.
    """
    if not kept:
        raise ValueError("expected averages to mix, got none")
    checks.positive_integer(step=wanted.step)
    scale = overlap(wanted, wanted)
    gram = np.array([[overlap(a, b) for b in kept] for a in kept]) / scale
    target = np.array([overlap(a, wanted) for a in kept]) / scale
    ones = np.ones((len(kept), 1))
    system = np.block([[gram, ones], [ones.T, np.zeros((1, 1))]])
    x = np.linalg.lstsq(system, np.append(target, 1.0), rcond=1e-13)[0][:-1]
    error = 1 - 2 * x @ target + x @ gram @ x
    return Mixed(tuple(float(v) for v in x), math.sqrt(max(0.0, float(error))))
