r"""What a task is."""

__all__ = ["Task"]

import abc
import torch

from pathlib import Path
from torch import Tensor
from typing import Any

from ..compute.ranks import ALONE, Ranks
from ..energies import Energy


class Task(abc.ABC):
    r"""Abstract task."""

    shape: tuple[int, ...]  # of a point
    criterion: str | None = None  # the judgement whose least value chooses; None for the last
    merit: str | None = None  # the judgement whose least value marks the best checkpoint

    @abc.abstractmethod
    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Returns n training points, :math:`(n, *)` in float32, on the device of the generator."""

    @abc.abstractmethod
    def judge(
        self, energy: Energy, device: torch.device, ranks: Ranks = ALONE
    ) -> dict[str, float | None]:
        r"""Returns how good an energy is, the same on all ranks; `None` where there is no answer."""

    def card(self, energy: Energy, device: torch.device) -> dict[str, Any]:
        r"""Returns what reading the run needs beside its weights, in the types of JSON."""
        return {}

    def preview(  # noqa: B027
        self,
        energy: Energy,
        device: torch.device,
        folder: Path,
        step: int,
        ranks: Ranks = ALONE,
    ) -> None:
        r"""Leaves a picture of an energy after a step in a run folder, where there is one to draw."""

    def check(self, card: dict[str, Any]) -> None:  # noqa: B027
        r"""Raises unless the data is what it was when a card was made."""
