r"""The task of a set of images.

Training images are drawn at random from the training split, kept on the device as bytes; an energy
is judged by denoising images of the test split at three levels, by the mean over images of the RMSE,
pixels in [−1, 1] (`fokker.denoising`, without clipping). An energy of one level is judged by its
one-step rule. The number of images is small while training; a study judges on more.
"""

__all__ = ["LEVELS", "ImageTask", "level_of", "noisy"]

import math
import torch

from torch import Tensor
from typing import Any

from .base import Task
from ..config import ImageData
from ..data.images import Images, read_images
from ..data.picture import to_float
from ..denoising import denoise, errors
from ..energies import Energy
from ..objectives import LevelDCD, Noisy, Objective

LEVELS = (0.3, 0.6, 0.9)  # the paper's
JUDGED, FEW = 256, 32  # images to judge by while training, on a GPU and on a CPU


def level_of(objective: Objective) -> float | None:
    r"""Returns the noise level whose density an objective learns; `None` if it learns many."""
    if isinstance(objective, LevelDCD) and not objective.conditional:
        return objective.learned
    if isinstance(objective, Noisy) and isinstance(objective.level, float):
        return objective.level
    return None


def noisy(clean: Tensor, sigma: float, seed: int = 0) -> Tensor:
    r"""Returns images with noise, the same for the same seed on any device."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(clean.shape, generator=generator)
    return clean + sigma * noise.to(clean.device)


class ImageTask(Task):
    r"""Creates the task of a set of images.

    Arguments:
        data: The set.
        objective: The objective, which says at what level an energy of one level is.
    """

    merit = "rmse_0.3"

    def __init__(self, data: ImageData, objective: Objective) -> None:
        self.data, self.level = data, level_of(objective)
        self.images: dict[str, Images] = {"train": self.read("train")}
        self.shape = self.images["train"].shape

    def read(self, split: str) -> Images:
        return read_images(self.data.source, split, self.data.data_dir, size=self.data.size)

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        if self.images["train"].pixels.device != device:
            self.images["train"] = self.images["train"].to(device)
        return self.images["train"].batch(n, generator, self.data.flip)

    def test(self, n: int, device: torch.device) -> Tensor:
        r"""Returns the first n test images, in [−1, 1]."""
        if "test" not in self.images:
            self.images["test"] = self.read("test")
        return to_float(self.images["test"].pixels[:n]).to(device)

    def judge(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        clean = self.test(FEW if device.type == "cpu" else JUDGED, device)
        line: dict[str, Any] = {}
        for sigma in LEVELS:
            x = noisy(clean, sigma)
            out = denoise(energy, x, sigma, self.level)
            line[f"rmse_{sigma}"] = errors(out, clean).rmse_mean
        return {k: v if math.isfinite(v) else None for k, v in line.items()}
