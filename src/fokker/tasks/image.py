r"""The task of a set of images.

Training images are drawn at random from the training split, kept on the device as bytes; an energy
is judged by denoising images of the test split at three levels, by the mean over images of the RMSE,
pixels in [−1, 1] (`fokker.images.denoise`, without clipping). An energy of one level is judged by its
one-step rule. The number of images is small while training; a study judges on more. Each rank denoises
its share of them (`fokker.compute.ranks`), with the noise that one rank would give them.

An energy of every level may leave a **preview** in `previews/step-K.png` at each evaluation: samples of
one seed, so that their change shows what training does. It is drawn after the run is saved.
"""

__all__ = ["LEVELS", "ImageTask", "level_of", "levels_of", "noisy"]

import math
import torch

from pathlib import Path
from torch import Tensor

from .base import Task
from ..compute.ranks import ALONE, Ranks
from ..data.images import Images, read_images
from ..data.picture import save_png, to_float
from ..data.sources import SPLITS
from ..energies import Energy
from ..images.denoise import denoise, rmse
from ..objectives import Denoising, LevelDCD, Noisy, Objective
from ..objectives.laws import draw
from ..runs.config import ImageData
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


def levels_of(objective: Objective) -> tuple[float, float]:
    r"""Returns the lowest and the highest of many noise levels drawn as an objective draws them."""
    if not isinstance(objective, LevelDCD | Noisy | Denoising):
        names = "LevelDCD, Noisy or Denoising"
        raise ValueError(f"expected an objective with a noise level, {names}, got {objective!r}")
    levels = draw(objective.level, torch.zeros(4096, 1), torch.Generator().manual_seed(0))
    return float(levels.min()), float(levels.max())


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
        # both at once: a fault of the test images is found before there is anything to lose
        self.images: dict[str, Images] = {split: self.read(split) for split in SPLITS}
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
        return self.images[split].pixels

    def test(self, n: int, device: torch.device) -> Tensor:
        r"""Returns the first n test images, in [−1, 1]."""
        return to_float(self.pixels("test")[:n]).to(device)

    def judge(
        self, energy: Energy, device: torch.device, ranks: Ranks = ALONE
    ) -> dict[str, float | None]:
        count = FEW if device.type == "cpu" else JUDGED
        clean = ranks.each(lambda: self.test(count, device))
        mine = ranks.among(len(clean))
        own = slice(mine.start, mine.stop)

        def share() -> Tensor:
            found = torch.zeros(len(mine), len(LEVELS), dtype=torch.float64)
            for k, sigma in enumerate(LEVELS if mine else ()):
                out = denoise(energy, noisy(clean, sigma)[own], sigma, self.level)
                found[:, k] = rmse(out, clean[own])
            return found

        means = ranks.collect(ranks.each(share)).mean(0).tolist()
        line = {f"rmse_{sigma}": mean for sigma, mean in zip(LEVELS, means, strict=True)}
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def preview(
        self,
        energy: Energy,
        device: torch.device,
        folder: Path,
        step: int,
        ranks: Ranks = ALONE,
    ) -> None:
        if not self.shown:
            return
        mine, generator = ranks.among(self.shown), torch.Generator().manual_seed(0)
        own = {"first": mine.start, "device": device, "dtype": torch.float32}

        def share() -> Tensor:
            if not mine:
                return torch.zeros(0, *self.shape)
            return Heun().run(energy, len(mine), self.shape, generator, **own).samples.cpu()

        x, place = ranks.collect(ranks.each(share)), folder / "previews"

        def write() -> None:
            place.mkdir(exist_ok=True)
            save_png(place / f"step-{step:08d}.png", x)

        ranks.once(write)
