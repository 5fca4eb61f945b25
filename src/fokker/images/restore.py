r"""Restoring photographs: the posterior of a picture under an energy, whatever its channels.

The observation y is that of `fokker.images.operators`, with noise s. The prior is the energy of
the whole picture (`fokker.images.whole`), whose sides and margin ask for a larger picture x: its
other pixels are unknown (`Cropped`).

**Channels.** A colour picture under an energy of grey ones is three problems, one for each part
:math:`u_k` (`fokker.images.color`), with noise :math:`c_k s`. A grey picture under an energy of
colour ones is seen in each of C channels with noise :math:`\sqrt{C} s`: on grey pictures,

.. math:: \sum_c \frac{\|A x - y\|^2}{2 C s^2} = \frac{\|A x - y\|^2}{2 s^2} ,

and the result is the mean of the channels.

**Levels** fall from the highest that the energy knows, 0.8 at most, to 2 of 255, or the lowest
that it knows, in equal ratios. Samples are those of `Annealing` without weights. In the dimension
of a photograph chains are short: accepted moves leave each target unchanged, but modes keep the
weights that the path gave them, and the deviations are those of chains that may not have forgotten
it.
"""

__all__ = ["Restored", "geometric_levels", "restore"]

import math
import torch

from collections.abc import Callable
from torch import Tensor
from typing import Any, NamedTuple

from .color import SCALES, from_parts, to_parts
from .operators import Cropped, Operator
from .posterior import Annealing, Descended, Posterior, Samples, descend
from .whole import padded, whole
from .. import checks

LAST, FIRST = 2 / 127.5, 0.8


class Restored(NamedTuple):
    r"""A restored photograph."""

    picture: Tensor  # (C, H, W), the mode found by descent, in [−1, 1]
    samples: Tensor | None  # (K, C, H, W)
    mean: Tensor | None  # (C, H, W), of the samples
    deviation: Tensor | None  # (C, H, W), of the samples
    energy: tuple[float, ...]  # U at the mode, of each problem; E without a constant
    descended: tuple[Descended, ...]
    acceptance: float | None  # the least over the levels


def geometric_levels(low: float, high: float, count: int) -> tuple[float, ...]:
    r"""Returns levels from the highest to the lowest, in equal ratios."""
    checks.positive(low=low, high=high)
    checks.at_least(2, count=count)
    if low >= high:
        raise ValueError(f"expected low < high, got {low:g} and {high:g}")
    return tuple(high * (low / high) ** (k / (count - 1)) for k in range(count))


def restore(
    energy: Any,
    y: Tensor,
    shape: tuple[int, ...],
    operator: Operator,
    noise: float,
    low: float,
    high: float,
    levels: int = 8,
    steps: int = 6,
    samples: int = 0,
    moves: int = 6,
    corrected: bool = True,
    tile: int = 256,
    generator: torch.Generator | None = None,
    watch: Callable[[float], None] = lambda share: None,
) -> Restored:
    r"""Returns a restored photograph.

    Arguments:
        energy: The energy of every level.
        y: What is seen, with shape :math:`(C, h, w)`, in [−1, 1].
        shape: The shape of the images that the energy was trained on.
        operator: The operator.
        noise: The standard deviation of the noise of y.
        low: The lowest level that the energy knows.
        high: The highest.
        levels: The number of levels.
        steps: The number of steps of descent at each level.
        samples: The number K of samples; none if zero.
        moves: The number of transitions of a sample at each level, three times as many at the
            last.
        corrected: Whether transitions are accepted by the energy.
        tile: The side of a tile of a local energy.
        generator: The source of randomness.
        watch: Called with the share of the work that was done since the last call; the number of
            steps is not known before, so it may stop short of one.
    """
    checks.points(checks.images(y[None]), "the picture")
    checks.positive(noise=noise)
    checks.at_least(0, samples=samples)
    planes, channels, y = len(y), shape[0], operator.seen_of(y[None])[0]
    ladder = geometric_levels(max(low, LAST), min(high, FIRST), levels)
    if planes == channels:
        problems = [(y[None], noise)]
    elif planes == 3 and channels == 1:
        problems = [(u[None, None], c * noise) for u, c in zip(to_parts(y), SCALES, strict=True)]
    elif planes == 1:
        problems = [(y.expand(1, channels, -1, -1), math.sqrt(channels) * noise)]
    else:
        raise ValueError(f"expected a picture of 1 or {channels} channels, got {planes}")
    work = levels * (steps * 1.5 + (1.5 * moves * max(1, samples) if samples else 0))
    found: list[tuple[Descended, Samples | None]] = []
    for seen, s in problems:
        field = whole(energy, shape, tile)
        height, width = operator.domain(*y.shape[1:])
        inside = Cropped(operator, padded(height, width, field))
        count = field.count(*inside.domain(*y.shape[1:]))
        share = 1 / (work * count * len(problems))
        field.watch = lambda share=share: watch(share)
        posterior = Posterior(field, inside, seen, s, ladder[-1])
        down = descend(posterior, posterior.start(1, 0.0), ladder, steps)
        drawn = None
        if samples:
            annealing = Annealing(
                ladder, moves, 3 * moves, max(1, moves // 2), 2 * moves, corrected, step_size=0.1
            )
            # from the mode, with the noise of the first level
            size, kind = (samples, *down.x.shape[1:]), {"dtype": y.dtype, "device": y.device}
            z = torch.randn(size, generator=generator, **kind)
            drawn = annealing.run(posterior, down.x + ladder[0] * z, generator)
        crop = inside.crop
        drawn = drawn and drawn._replace(
            x=crop(drawn.x), kept=crop(drawn.kept.flatten(0, 1)).unflatten(0, drawn.kept.shape[:2])
        )
        found.append((down._replace(x=crop(down.x)), drawn))
    return joined(found, planes, channels)


def joined(found: list[tuple[Descended, Samples | None]], planes: int, channels: int) -> Restored:
    r"""Returns the picture of which the problems are the parts."""

    def join(parts: list[Tensor]) -> Tensor:
        if planes == channels:
            return parts[0]
        if planes == 3:
            return from_parts(torch.cat(parts, 1))
        return parts[0].mean(1, keepdim=True)

    descended = tuple(down for down, _ in found)
    picture = join([down.x for down in descended])[0].clamp(-1, 1)
    energy = tuple(float(down.energy[0]) for down in descended)
    drawn = [part for _, part in found if part is not None]
    if not drawn:
        return Restored(picture, None, None, None, energy, descended, None)
    kept = join([part.kept.flatten(0, 1) for part in drawn])
    last = join([part.x for part in drawn])
    acceptance = min(min(part.acceptance) for part in drawn)
    return Restored(
        picture, last.clamp(-1, 1), kept.mean(0).clamp(-1, 1), kept.std(0), energy, descended,
        acceptance,
    )  # fmt: skip
