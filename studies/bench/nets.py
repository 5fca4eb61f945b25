r"""The networks to time steps on, and the steps of each."""

__all__ = ["NETS", "Net", "names_of", "objectives_of"]

from collections.abc import Callable
from dataclasses import dataclass
from fokker.evolution import Taylor
from fokker.networks import MLP, UNetEnergy, WideResNet
from fokker.objectives import (
    CD,
    DCD,
    PCD,
    Bridge,
    Central,
    DenoisingScoreMatching,
    LevelDCD,
    Limit,
    MultiTimeDCD,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    levels,
)
from torch import nn
from typing import Any


@dataclass(frozen=True)
class Net:
    r"""A network to time steps on."""

    name: str
    build: Callable[[str], nn.Module]  # from a dtype
    batch: int
    shape: tuple[int, ...]
    level: bool = False  # whether the energy takes a noise level
    kind: str = "image"


NETS = {
    net.name: net
    for net in (
        Net("mlp-2d", lambda dtype: MLP(), 1000, (2,), kind="points"),
        Net("wrn-28-10", lambda dtype: WideResNet(dtype=dtype), 256, (3, 32, 32)),
        Net("wrn-16-8", lambda dtype: WideResNet(1, 16, 8, dtype=dtype), 128, (1, 28, 28)),
        Net("wrn-10-1", lambda dtype: WideResNet(1, 10, 1, dtype=dtype), 16, (1, 16, 16)),
        Net("unet-15m", lambda dtype: UNetEnergy(dtype=dtype), 512, (3, 32, 32), level=True),
        Net(
            "unet-fused",
            lambda dtype: UNetEnergy(dtype=dtype, fused=True),
            512,
            (3, 32, 32),
            level=True,
        ),
    )
}


def objectives_of(net: Net) -> dict[str, Objective]:
    r"""Returns the objectives that are timed on a network, by name."""
    if net.kind == "points":
        return {
            "dcd": DCD(),
            "dcd-pairs": DCD(evolution=Taylor("start"), step=2e-5, antithetic=True),
            "dcd-multi": MultiTimeDCD(),
            "dcd-limit": LevelDCD(0.05, Limit()),
            "dcd-central": LevelDCD(0.05, Central()),
            "dcd-bridge": LevelDCD(0.05, Bridge()),
            "dcd-hutchinson": LevelDCD(0.05, levels.Hutchinson()),
            "sm": ScoreMatching(),
            "ssm": SlicedScoreMatching(),
            "dsm": DenoisingScoreMatching(0.05),
            "cd-10": CD(10),
            "pcd-20": PCD(20),
        }
    options: dict[str, Any] = {"conditional": net.level}
    named: dict[str, Objective] = {
        "dcd": LevelDCD(form=Bridge(), **options),
        "dcd-central": LevelDCD(form=Central(), **options),
        "dcd-limit": LevelDCD(form=Limit(), **options),
        "dcd-path": LevelDCD(form=levels.Path(), **options),
        "dcd-hutchinson": LevelDCD(form=levels.Hutchinson(), **options),
    }
    if not net.level:
        named |= {"cd-10": CD(10), "pcd-10": PCD(10), "ssm": SlicedScoreMatching()}
    return named


def names_of(net: Net) -> list[str]:
    r"""Returns the names of all rows of a network."""
    names = ["plain", *objectives_of(net)]
    if not net.level:
        names += ["cd-1", "reference"]
    if net.kind == "points":
        names += ["dcd-train", "dcd-multi-train"]
    if net.level:
        names += ["dcd-train", "dcd-limit-train"]
    return names
