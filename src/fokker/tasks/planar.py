r"""The task of a 2-D set, whose density is exact.

Points are fresh forever; an energy is judged by Fisher gap, KL and mass off the data
(`fokker.metrics`).
"""

__all__ = ["ToyTask"]

import math
import torch

from dataclasses import dataclass
from torch import Tensor

from .base import Task
from ..compute.ranks import ALONE, Ranks
from ..data import Planar
from ..energies import Energy
from ..metrics import evaluate_planar


@dataclass(frozen=True)
class ToyTask(Task):
    r"""Creates the task of a 2-D set."""

    data: Planar
    shape: tuple[int, ...] = (2,)
    merit: str | None = "kl"

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        return self.data.sample(n, generator, generator.device, torch.float32)

    def judge(
        self, energy: Energy, device: torch.device, ranks: Ranks = ALONE
    ) -> dict[str, float | None]:
        return ranks.once(lambda: self.judge_alone(energy, device))

    def judge_alone(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        report = evaluate_planar(energy, self.data, device=device)
        return {k: v if math.isfinite(v) else None for k, v in report._asdict().items()}
