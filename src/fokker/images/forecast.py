r"""Forecasts: about how long a job on images will take, said before it begins.

A job is mostly gradients of one network at batches of one size. One of them is timed, after one
that warms up; the job takes as many times as long.
"""

__all__ = ["forecast"]

import time
import torch

from collections.abc import Callable
from typing import Any

from ..pace import SHORT, told, words
from ..samplers.field import slope
from ..shapes import constant


def forecast(
    job: str,
    energy: Any,
    shape: tuple[int, ...],
    n: int,
    batch: int,
    gradients: int,
    device: torch.device,
    say: Callable[[str], None] = told,
) -> float:
    r"""Says about how long a job will take, if that is long, and returns the seconds.

    Arguments:
        job: What it is, in words.
        energy: The energy of every level, or denoiser.
        shape: The shape of an image.
        n: The number of images.
        batch: The number of images at once.
        gradients: The number of gradients per batch.
        device: The device.
        say: Called with a line.
    """
    count = min(n, batch)
    x = torch.zeros(count, *shape, device=device)
    gradient = lambda: float(slope(energy, x, constant(1.0, x)).detach().mean())  # as a number
    gradient()
    begin = time.perf_counter()
    gradient()
    seconds = (time.perf_counter() - begin) * gradients * n / count
    if seconds > SHORT:
        say(f"{job}: about {words(seconds)}")
    return seconds
