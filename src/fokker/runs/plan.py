r"""Settings for a folder of pictures, from the pictures and the device.

======================  =======================================================================
side                    that of most pictures, a multiple of 16; 64 at most on a GPU, 32 on a
                        CPU. Pictures are cropped to their middle square and made smaller
network                 a U-Net on blocks of 2×2 pixels with attention at 8×8
augmentation            as in EDM, told to the network, where there are less than 10,000
                        pictures
batch                   128 on a GPU, 32 on a CPU, at most half of the pictures
slices                  as many as a step needs to fit into the memory
steps                   as many as fit into the minutes, of which a few are timed first
======================  =======================================================================
"""

__all__ = ["Measured", "Plan", "config_of", "measure", "plan_of", "side_of"]

import itertools
import resource
import time
import torch

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .config import Config, ImageData, UNet
from .presets import generation_config
from .state import State
from .. import checks
from ..compute.ranks import Ranks
from ..tasks import Task

SIDES = {"cuda": 64, "cpu": 32}
LEAST = 16  # pixels a side
FEW = 10_000  # pictures, below which they are moved about
BATCH = {"cuda": 128, "cpu": 32}
WIDTHS = {"cuda": (96, 2), "cpu": (32, 1)}  # and blocks
MEMORY = 7.5  # GiB of a GPU that are used at most
SLICES = 16  # at most
TIMED = 3  # steps
STEPS = (50, 40_000)  # at least and at most
EVALUATIONS = 18  # to draw the samples
GIB = 2**30


class Measured(NamedTuple):
    r"""What a step takes."""

    seconds: float
    memory: float  # GiB


@dataclass(frozen=True)
class Plan:
    r"""A configuration, and what it is expected to take."""

    config: Config
    pictures: int  # to train on
    parameters: int
    seconds: float  # of training
    after: float  # of drawing and judging
    memory: float  # GiB

    @property
    def sentences(self) -> list[str]:
        r"""The plan in words."""
        config, optimization = self.config, self.config.optimization
        data: Any = config.data
        moved = ", moved about at random" if data.augment else ""
        sliced = f" in {config.slices} slices" if config.slices > 1 else ""
        square = f"{data.size}x{data.size} pixels of their middle"
        rest = f"{self.after / 60:.1f} for samples and the report"
        millions = self.parameters / 1e6
        return [
            f"{self.pictures:,} pictures to train on, {square}{moved}",
            (
                f"a U-Net of {millions:.1f} million parameters, {optimization.steps:,} steps of"
                f" {optimization.batch}{sliced}"
            ),
            f"expected: {self.seconds / 60:.1f} minutes of training on {config.device}, then"
            + f" {rest}; {self.memory:.1f} GiB of memory",
        ]


def side_of(sizes: Sequence[tuple[int, int]], kind: str) -> int:
    r"""Returns the side to which pictures of these sizes are brought on a kind of device."""
    shorter = sorted(min(size) for size in sizes)
    usual = shorter[len(shorter) // 10]  # nine of ten are as large
    side = min(SIDES[kind], usual // LEAST * LEAST)
    if side < LEAST:
        raise ValueError(
            f"expected pictures of {LEAST} pixels a side or more, got most with {usual}; --side"
            " enlarges them"
        )
    return side


def config_of(
    folder: Path,
    count: int,
    side: int,
    device: str,
    seed: int = 0,
    flip: bool = True,
    channels: int = 3,
) -> Config:
    r"""Returns the configuration for a folder, its steps not known yet.

    Arguments:
        folder: The folder.
        count: The number of pictures to train on.
        side: Their side.
        device: The device.
        seed: The seed.
        flip: Whether pictures are mirrored at random.
        channels: Their channels, 1 or 3; others are converted.
    """
    if side % 8:
        raise ValueError(f"expected a side that is a multiple of 8, got {side}")
    kind = "cpu" if device == "cpu" else "cuda"
    width, blocks = WIDTHS[kind]
    multipliers, level = [1], 0
    while side // (2 * 2**level) > 8 and side // 2 % 2 ** (level + 1) == 0:  # down to 8×8
        level += 1
        multipliers.append(2)
    augment = 0.12 if count < FEW else 0.0
    data = ImageData(str(folder), size=side, flip=flip, augment=augment, channels=channels)
    base = generation_config("fokker", "dcd-limit", replace(data, augment=0.0), "small", device)
    network = UNet(
        width,
        blocks,
        precision=base.network.precision,  # pyright: ignore
        fold=2,
        multipliers=tuple(multipliers),
        attention=(level,),
        augmented=augment > 0,
    )
    batch = max(2, min(BATCH[kind], count // 2))
    optimization = replace(base.optimization, batch=batch, steps=STEPS[0], warmup=STEPS[0] // 5)
    return replace(
        base, data=data, network=network, optimization=optimization, seed=seed, preview=16
    )


def measure(config: Config, task: Task) -> Measured:
    r"""Returns what a step of a configuration takes, by a few that are forgotten."""
    device = torch.device(config.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run = State(config, Path(), task, Ranks(device=device))
    run.rehearse()
    marks = []
    for _ in range(TIMED + 1):
        marks.append(time.perf_counter())
        run.rehearse()  # waits for the device
    seconds = min(b - a for a, b in itertools.pairwise(marks))
    if device.type == "cuda":
        return Measured(seconds, torch.cuda.max_memory_reserved(device) / GIB)
    return Measured(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB)


def plan_of(
    config: Config, task: Task, pictures: int, minutes: float, memory: float = MEMORY
) -> Plan:
    r"""Returns the plan of a configuration: slices that fit into the memory of a GPU, and steps
    that fit into the time.

    Arguments:
        config: The configuration, see `config_of`.
        task: Its task, loaded.
        pictures: The number of pictures to train on.
        minutes: The minutes of training.
        memory: The GiB of a GPU that a step may use.
    """
    checks.positive(minutes=minutes, memory=memory)
    found = measure(config, task)
    while config.device != "cpu" and found.memory > memory and config.slices < SLICES:
        batch = config.optimization.batch
        config = replace(config, slices=2 * config.slices)
        batch -= batch % config.slices
        config = replace(config, optimization=replace(config.optimization, batch=batch))
        found = measure(config, task)
    low, high = STEPS
    steps = max(low, min(high, int(60 * minutes / found.seconds)))
    warmup = min(1000, steps // 10)
    ema = min(0.999, 1 - 10 / steps)
    optimization = replace(config.optimization, steps=steps, warmup=warmup, ema=ema)
    config = replace(config, optimization=optimization, evaluate=max(1, steps // 8))
    count = sum(p.numel() for p in task.network().parameters())
    # an evaluation is a third of a step; 64 samples, eight previews of 16, and the oddness of all
    images = EVALUATIONS * 64 + 8 * 35 * 16 + 6 * min(pictures, 1000)
    after = found.seconds / 3 * images / config.optimization.batch
    return Plan(config, pictures, count, steps * found.seconds, after, found.memory)
