r"""Trained energies of images: their noise levels, and whether they can be drawn from.

A run learns the density of one noise level, or of all levels between a lowest and a highest one.
Only a trained energy of every level is drawn from, scored by and evaluated; it may be guided by a
worse one. Values of its levels are comparable if they are tied (`fokker.objectives.levels.ties`).
"""

__all__ = [
    "check_drawable",
    "check_trained",
    "drawable",
    "guided",
    "is_tied",
    "level_of",
    "levels_of",
]

import torch

from typing import Any

from .base import Run
from .. import objectives
from ..networks import UNetDenoiser, UNetEnergy
from ..objectives import LevelDCD, Noisy, Objective
from ..objectives.laws import draw
from ..samplers import Guided


def level_of(objective: Objective) -> float | None:
    r"""Returns the noise level whose density an objective learns; `None` if it learns many."""
    if isinstance(objective, LevelDCD) and not objective.conditional:
        return objective.learned
    if isinstance(objective, Noisy) and isinstance(objective.level, float):
        return objective.level
    return None


def levels_of(objective: Objective) -> tuple[float, float]:
    r"""Returns the lowest and the highest of many noise levels drawn as an objective draws
    them."""
    if not isinstance(objective, LevelDCD | Noisy | objectives.Denoising):
        names = "LevelDCD, Noisy or Denoising"
        raise ValueError(f"expected an objective with a noise level, {names}, got {objective!r}")
    levels = draw(objective.level, torch.zeros(4096, 1), torch.Generator().manual_seed(0))
    return float(levels.min()), float(levels.max())


def check_trained(run: Run) -> None:
    r"""Raises unless a run is an energy of images at every level, with weights that training has
    changed."""
    model = run.energy
    if not isinstance(model, UNetEnergy | UNetDenoiser):
        raise ValueError(
            f"expected an energy of images at every noise level to draw from, got {run.path},"
            f" a {type(model).__name__}"
        )
    start = run.config.build(run.shape).state_dict()
    if all(torch.equal(v.cpu().to(start[k]), start[k]) for k, v in model.state_dict().items()):
        raise ValueError(f"expected a trained energy, got {run.path}, which is as it was started")


WIDE = 5.0  # a level at which images, of deviation about 0.5, are nearly lost in noise


def drawable(objective: Objective) -> bool:
    r"""Returns whether images can be drawn by the levels that an objective trains: whether the
    highest is noise for the most part."""
    return levels_of(objective)[1] >= WIDE


def check_drawable(run: Run) -> None:
    r"""Raises unless images can be drawn by a run: it is trained, and up to levels that are noise
    for the most part."""
    check_trained(run)
    if not drawable(run.config.objective):
        highest = levels_of(run.config.objective)[1]
        raise ValueError(
            f"expected an energy of noise levels up to {WIDE:g} or more to draw from, got"
            f" {run.path}, trained up to {highest:.3g} alone: denoise or restore pictures with it"
        )


def guided(
    run: Run, guide: tuple[Run, float] | None, device: torch.device | str, exact: bool = False
) -> Any:
    r"""Returns the energy of a run on a device, guided away from that of a worse one if there is
    one (`fokker.samplers.guidance`).

    Arguments:
        run: The run.
        guide: The worse run and the weight of guidance.
        device: The device.
        exact: Whether values of the energy count, see `Run.energy_on`.
    """
    energy = run.energy_on(device, exact)
    if guide is None:
        return energy
    return Guided(energy, guide[0].energy_on(device, exact), guide[1]).to(device)


def is_tied(run: Run) -> bool:
    r"""Returns whether the energies of all levels of a run were trained to have one constant."""
    objective = run.config.objective
    return isinstance(objective, LevelDCD) and bool(objective.ties)
