r"""The task of a set of images.

Training images are drawn at random from the training split, kept on the device as bytes; an energy
is judged by denoising images of the test split at three levels, by the mean over images of the RMSE,
pixels in [−1, 1] (`fokker.denoising`, without clipping). An energy of one level is judged by its
one-step rule. The number of images is small while training; a study judges on more.

An energy of every level may leave a **preview** in `previews/step-K.png` at each evaluation: samples of
one seed, so that their change shows what training does. It is drawn after the run is saved.
"""

__all__ = ["LEVELS", "ImageTask", "level_of", "noisy"]

import math
import torch

from pathlib import Path
from torch import Tensor
from typing import Any

from .base import Task
from ..config import ImageData
from ..data.images import Images, read_images
from ..data.picture import save_png, to_float
from ..denoising import denoise, errors
from ..energies import Energy
from ..objectives import LevelDCD, Noisy, Objective
from ..samplers import Heun

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
        shown: The number of samples in a preview; none if zero.
    """

    merit = "rmse_0.3"

    def __init__(self, data: ImageData, objective: Objective, shown: int = 0) -> None:
        self.data, self.level, self.shown = data, level_of(objective), shown
        self.images: dict[str, Images] = {"train": self.read("train")}
        self.shape = self.images["train"].shape

    def read(self, split: str) -> Images:
        return read_images(self.data.source, split, self.data.data_dir, size=self.data.size)

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        if self.images["train"].pixels.device != device:
            self.images["train"] = self.images["train"].to(device)
        return self.images["train"].batch(n, generator, self.data.flip)

    def pixels(self, split: str) -> Tensor:
        r"""Returns the images of a split, bytes (N, C, H, W)."""
        if split not in self.images:
            self.images[split] = self.read(split)
        return self.images[split].pixels

    def test(self, n: int, device: torch.device) -> Tensor:
        r"""Returns the first n test images, in [−1, 1]."""
        return to_float(self.pixels("test")[:n]).to(device)

    def judge(self, energy: Energy, device: torch.device) -> dict[str, float | None]:
        clean = self.test(FEW if device.type == "cpu" else JUDGED, device)
        line: dict[str, Any] = {}
        for sigma in LEVELS:
            x = noisy(clean, sigma)
            out = denoise(energy, x, sigma, self.level)
            line[f"rmse_{sigma}"] = errors(out, clean).rmse_mean
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def preview(self, energy: Energy, device: torch.device, folder: Path, step: int) -> None:
        if not self.shown:
            return
        flow, generator = Heun(), torch.Generator().manual_seed(0)
        x = flow.run(
            energy, self.shown, self.shape, generator, device=device, dtype=torch.float32
        ).samples
        place = folder / "previews"
        place.mkdir(exist_ok=True)
        save_png(place / f"step-{step:08d}.png", x)
