r"""Fitting: an energy of your own, by an objective, on points that lie in memory.

Batches are drawn with replacement, Adam moves the weights, and their average :math:`\bar\theta`
follows (`fokker.compute.schedule`). No folder is written: `fokker.fit` trains a configuration,
with checkpoints, evaluations and a report.
"""

__all__ = ["check_scale", "fit_energy"]

import math
import torch
import warnings

from collections.abc import Callable
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import get_ema_multi_avg_fn
from typing import Any

from .schedule import Optimization, decay_at, rate_at
from .step import Step
from .. import checks
from ..objectives import OBJECTIVES, Objective

LOOK = 10  # steps between two looks at the loss
SCALES = (0.01, 100.0)  # standard deviations of data that the defaults are meant for


def fit_energy(
    energy: nn.Module,
    objective: Objective,
    data: Tensor,
    optimization: Optimization | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> nn.Module:
    r"""Trains an energy in place, gives it the average of its weights, and returns it.

    Arguments:
        energy: The energy, a module that maps points :math:`(B, *)` to :math:`(B)`.
        objective: The objective.
        data: The points, with shape :math:`(N, *)`, on the device of the energy.
        optimization: The steps, the batch and the rates; those of `Optimization` if not given.
        seed: The seed of the batches and of the noise.
        progress: Called every 10 steps and after the last with the steps done and the loss.

    Example:
        >>> from fokker.energies import Quadratic
        >>> from fokker.networks import MLP
        >>> from fokker.objectives import ScoreMatching
        >>> x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> short = Optimization(steps=20, batch=100)
        >>> energy = fit_energy(MLP(2, 16) + Quadratic(1.0), ScoreMatching(), x, short)
    """
    optimization = Optimization() if optimization is None else optimization
    checks.instance(Objective, OBJECTIVES, objective=objective)
    x = checks.points(data)
    check_scale(x)
    if optimization.muon is not None:
        raise ValueError(f"expected Adam alone, without Muon, got muon={optimization.muon}")
    step = Step(energy, objective)
    weights: list[Any] = [p for p in energy.parameters() if p.requires_grad]
    if not weights:
        raise ValueError(f"expected an energy with weights to train, got {checks.brief(energy)}")
    rows = torch.Generator(x.device).manual_seed(checks.seed(seed))
    objective(energy, draw(x, optimization.batch, rows), None, rows)  # to judge it (fokker.kinks)
    adam = torch.optim.Adam(weights, betas=(optimization.beta1, optimization.beta2))
    average = [p.detach().clone() for p in weights]
    generator, state = torch.Generator(x.device).manual_seed(checks.seed(seed)), None
    for k in range(optimization.steps):
        out = step(draw(x, optimization.batch, generator), state, generator)
        out.assign(energy)
        if optimization.clip is not None:
            norm = get_total_norm([p.grad for p in weights if p.grad is not None])
            clip_grads_with_norm_(weights, optimization.clip, norm)
        adam.param_groups[0]["lr"] = rate_at(k, optimization)
        adam.step()
        state = out.state
        get_ema_multi_avg_fn(decay_at(k, optimization))(average, weights, k)
        if (k + 1) % LOOK == 0 or k + 1 == optimization.steps:
            if not math.isfinite(loss := float(out.loss)):
                raise FloatingPointError(
                    f"diverged: the loss is not finite ({loss}) at step {k + 1}; try a lower rate"
                    " or clip=1"
                )
            progress(k + 1, loss)
    with torch.no_grad():
        for p, mean in zip(weights, average, strict=True):
            p.copy_(mean)
            p.grad = None
    return energy


def draw(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    r"""Returns n points, drawn with replacement."""
    return x[torch.randint(len(x), (n,), generator=generator, device=x.device)]


def check_scale(x: Tensor) -> None:
    r"""Warns where data is far from the scale that networks and noise are meant for."""
    std = float(x.double().std()) if x.numel() > 1 else 1.0
    low, high = SCALES
    if not low <= std <= high:
        warnings.warn(
            f"expected data with a standard deviation near 1, got {std:.4g}: standardize it, or"
            " choose the steps, the noise and the rate for its scale",
            stacklevel=3,
        )
