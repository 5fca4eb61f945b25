r"""Energies of classes: guidance, composition and a classifier.

Let :math:`E(x, \sigma, c)` be the energy of the data of class c with noise, and :math:`E(x,
\sigma)` that of all classes, the same network told no class. Then

.. math::
    E_w(x, \sigma) = E(x, \sigma) + w \sum_{c \in C} \big( E(x, \sigma, c) - E(x, \sigma) \big),
    \qquad p_w \propto p(x) \prod_{c \in C} p(c \mid x)^w

is **classifier-free guidance** towards one class, with w = 1 the class itself, and the
**composition** of several: what is likely in all of them at once.

**The classifier** is Bayes' rule. With as many data of each class,

.. math:: p(c \mid x) = \mathrm{softmax}_c \big( b_c - E(x, \sigma, c) \big) .

Training by scores leaves a constant in the energy of each class, which samples do not depend on:
:math:`b_c` makes up for it. `calibrate` finds the b of the least cross-entropy on labelled data, a
convex problem in as many numbers as there are classes; without it b is zero.

References:
    | Classifier-Free Diffusion Guidance (Ho and Salimans, 2022)
    | https://arxiv.org/abs/2207.12598
    | Your Classifier is Secretly an Energy Based Model (Grathwohl et al., 2020)
    | https://arxiv.org/abs/1912.03263
    | Compositional Visual Generation with Composable Diffusion Models (Liu et al., 2022)
    | https://arxiv.org/abs/2206.01714
"""

__all__ = ["OfClasses", "calibrate", "class_energies", "log_probs"]

import torch
import torch.nn.functional as F

from collections.abc import Callable, Sequence
from torch import Tensor
from typing import Any

from .field import slope
from .. import checks
from ..energies import Energy
from ..shapes import align, constant

ROUNDS = 50  # of Newton's method


class OfClasses(Energy):
    r"""Creates the energy :math:`E_w(x, \sigma)` of one class, of each image's own, or of several
    at once.

    Arguments:
        energy: The energy :math:`E(x, \sigma, c)`, which takes no class as well.
        labels: The classes, one or more; each a number, or a tensor (B) with one for each image of
            a batch.
        weight: The weight w, above zero.

    Example:
        >>> energy = lambda x, sigma, c=0: (x - c).square().sum(1) / 2
        >>> both = OfClasses(energy, [1, 2], weight=1.0)
        >>> both(torch.zeros(1, 1), torch.tensor(0.1))  # 0.5 + 2 - 0
        tensor([2.5000])
    """

    weight: Tensor

    def __init__(self, energy: Any, labels: Sequence[int | Tensor], weight: float = 1.0) -> None:
        super().__init__()
        if not labels:
            raise ValueError("expected one class or more, got none")
        checks.positive(weight=weight)
        self.energy = energy
        self.count, self.alone = len(labels), len(labels) == 1 and weight == 1
        for i, label in enumerate(labels):
            self.register_buffer(f"label_{i}", torch.as_tensor(label, dtype=torch.long))
        self.register_buffer("weight", torch.tensor(float(weight)))

    @property
    def labels(self) -> list[Tensor]:
        r"""The classes."""
        return [getattr(self, f"label_{i}") for i in range(self.count)]

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.combined(lambda *told: self.energy(x, sigma, *told), x)

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns the denoised points of :math:`E_w`."""

        def one(*told: Tensor) -> Tensor:
            part = Told(self.energy, told)
            return slope(part, x, sigma)

        return x - align(sigma, x) * self.combined(one, x)

    def combined(self, part: Callable[..., Tensor], x: Tensor) -> Tensor:
        r"""Returns the combination of what a function of the class, or of none, returns."""
        # the last batch may be shorter
        told = [part(c if c.ndim == 0 else c[: len(x)]) for c in self.labels]
        if self.alone:
            return told[0]
        base = part()
        return base + self.weight * sum((t - base for t in told), torch.zeros_like(base))


class Told:
    r"""An energy that is told a class, or none, with its own way to denoise if it has one."""

    def __init__(self, energy: Any, told: tuple[Tensor, ...]) -> None:
        self.energy, self.told = energy, told
        if hasattr(energy, "denoise"):
            self.denoise = lambda x, sigma: energy.denoise(x, sigma, *told)

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.energy(x, sigma, *self.told)


@torch.no_grad()
def class_energies(energy: Any, x: Tensor, sigma: float, classes: int, batch: int = 250) -> Tensor:
    r"""Returns :math:`E(x, \sigma, c)` of each point and class, (B, K).

    Arguments:
        energy: The energy.
        x: The points, :math:`(B, *)`, with noise of the level.
        sigma: The level.
        classes: The number K of classes.
        batch: The number of points at once.
    """
    checks.positive_integer(classes=classes, batch=batch)
    level = constant(sigma, x)
    rows = []
    for part in x.split(batch):
        label = lambda c, part=part: torch.full((len(part),), c, device=part.device)
        rows.append(torch.stack([energy(part, level, label(c)) for c in range(classes)], dim=1))
    return torch.cat(rows)


def log_probs(energies: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Returns :math:`\log p(c \mid x)` from the energies of each class, (B, K).

    Arguments:
        energies: :math:`E(x, \sigma, c)`.
        bias: :math:`b_c`, (K); zero if not given.
    """
    return F.log_softmax((0 if bias is None else bias) - energies, dim=1)


def calibrate(energies: Tensor, labels: Tensor) -> Tensor:
    r"""Returns the bias :math:`b_c` of the least cross-entropy on labelled points, with mean zero,
    by Newton's method in float64.

    Arguments:
        energies: :math:`E(x, \sigma, c)`, (B, K).
        labels: The classes, (B), each of them at least once.
    """
    e, count = energies.double(), energies.shape[1]
    if set(labels.tolist()) != set(range(count)):
        raise ValueError(f"expected points of all {count} classes to calibrate, got fewer")
    bias = e.new_zeros(count)
    share = F.one_hot(labels, count).double().mean(0)
    loss = lambda b: F.nll_loss(log_probs(e, b), labels)
    for _ in range(ROUNDS):
        p = log_probs(e, bias).exp()
        grad = p.mean(0) - share
        hessian = torch.diag(p.mean(0)) - p.T @ p / len(e)
        ridge = 1e-9 + 1e-6 * float(hessian.diagonal().mean())
        move = torch.linalg.solve(hessian + ridge * torch.eye(count).to(e), grad)
        size = 1.0
        while size > 1e-10 and loss(bias - size * move) > loss(bias):
            size /= 2
        bias = bias - size * move
        bias = bias - bias.mean()
        if float(grad.abs().max()) < 1e-10:
            break
    return bias
