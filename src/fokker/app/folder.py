r"""`fokker train images`: an energy of a folder of pictures, with nothing to choose."""

__all__ = ["TrainImages"]

import csv
import io
import numpy as np
import torch
import tyro

from dataclasses import dataclass, replace
from pathlib import Path
from PIL import Image
from torch import Tensor
from typing import Any

from .report import write_report
from .train import Train
from .. import checks
from ..data.picture import save_png, to_float
from ..data.sources import SPLITS, files_of
from ..files import write_bytes
from ..images.generate import Sampling, generate
from ..images.misfit import Misfit, misfit
from ..runs.config import Config
from ..runs.folder import read_config
from ..runs.plan import config_of, plan_of, side_of
from ..tasks import Run, task_of
from ..tasks.image import ImageTask

LOOKED = 200  # pictures whose size is read
ODD, SAMPLES = 12, 64  # pictures shown
SCORED = 5000  # pictures of which the oddest are sought, at most


@dataclass(frozen=True)
class TrainImages(Train):
    """Train an energy of a folder of pictures: samples, the oddest pictures and a report.

    Pictures may have any size; a few hundred are enough to begin. Crop, network, batch and steps
    are chosen from the pictures and the device, and said with the time and the memory they are
    expected to take, before training starts."""

    folder: tyro.conf.Positional[Path] = tyro.MISSING
    """The folder of pictures: .png, .jpg, .jpeg, .webp or .bmp, at any depth; or Parquet files."""
    budget: float = 20.0
    """The minutes of training, from which the number of steps follows."""
    side: int | None = None
    """The side to which pictures are cropped and resized; chosen if not given."""
    flip: bool = True
    """Mirror pictures at random: not for letters."""
    device: str | None = None
    """The device; a GPU if there is one."""
    seed: int = 0
    """The seed of the weights, the data and the noise."""

    def run(self) -> None:
        checks.positive(budget=self.budget)
        checks.seed(self.seed)
        name = self.folder.resolve().name
        out = self.out or Path("runs") / f"{name}-{self.seed}"
        config = self.config(out)
        if config is None:
            return
        trained = replace(self, out=out).train(config, name)
        show(trained, trained.loaded())
        print(f"samples: {out / 'samples.png'}")
        print(f"the oddest pictures, and where: {out / 'odd.png'}; scores: {out / 'odd.csv'}")
        print(f"report: {write_report(trained)}")
        print(f"more samples: fokker sample {out} -n 64 -o samples.png --sampler multistep3")

    def config(self, out: Path) -> Config | None:
        r"""Returns the configuration: that of a run that goes on, or one that is made for the
        folder; `None` after a dry run."""
        going = self.resume or (self.restartable and (out / "config.toml").exists())
        if going:
            return read_config(out)
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        checks.device(device)
        if not self.folder.is_dir():
            raise ValueError(f"expected a folder of pictures, got {self.folder}")
        kind = "cpu" if device == "cpu" else "cuda"
        sizes, grey = sizes_of(self.folder)
        side = self.side or side_of(sizes, kind)
        options = {"seed": self.seed, "flip": self.flip, "channels": 1 if grey else 3}
        count = len(loaded(config_of(self.folder, 2, side, device, **options)).images["train"])
        base = config_of(self.folder, count, side, device, **options)
        plan = plan_of(base, loaded(base), count, self.budget)
        print("\n".join(plan.sentences), flush=True)
        return None if self.dry_run else plan.config


def loaded(config: Config) -> ImageTask:
    r"""Returns the task of a configuration, its pictures read."""
    task: Any = task_of(config).load()
    return task


def sizes_of(folder: Path) -> tuple[list[tuple[int, int]], bool]:
    r"""Returns the sizes of some pictures, evenly spread over those of a folder, and whether all
    of these are grey."""
    files = files_of(folder, "train")
    if files[0].suffix == ".parquet":
        raise ValueError(f"expected --side with Parquet files, got {folder} without")
    found, modes = [], set()
    for path in files[:: max(1, len(files) // LOOKED)]:
        try:
            with Image.open(path) as picture:
                found.append(picture.size)
                modes.add(picture.mode)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path}: expected a picture: {error}") from None
    return found, modes <= {"L", "1", "I;16"}


def names_of(task: ImageTask, split: str) -> list[str]:
    r"""Returns the names of the pictures of a split: of their files, or their numbers."""
    folder = Path(task.data.source)
    files = files_of(folder, split)
    if files[0].suffix != ".parquet":
        return [path.relative_to(folder).as_posix() for path in files]
    return [f"{split} {i}" for i in range(len(task.images[split]))]


def show(run: Run, task: ImageTask) -> None:
    r"""Draws samples and seeks the oddest pictures, into the run folder."""
    device = torch.device(run.config.device)
    energy, batch = run.energy_on(device), run.config.optimization.batch
    sampling = Sampling("multistep3", 18)
    options = {"batch": min(SAMPLES, batch), "device": device}
    drawn = generate(energy, SAMPLES, run.shape, sampling, run.config.seed, **options)
    save_png(run.path / "samples.png", to_float(drawn.images))
    pixels = torch.cat([task.pixels(split).cpu() for split in SPLITS])
    names = [name for split in SPLITS for name in names_of(task, split)]
    mixed = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    rows = mixed[:SCORED].sort().values
    some = pixels[rows]
    found = misfit(energy, some, batch=min(64, batch), device=device)
    order = found.order
    text = io.StringIO(newline="")
    scores = [(names[int(rows[i])], f"{float(found.scores[i]):.4f}") for i in order]
    csv.writer(text).writerows([("picture", "oddness"), *scores])
    write_bytes(run.path / "odd.csv", text.getvalue().encode())
    save_png(run.path / "odd.png", paired(some, found, order[:ODD]))


def paired(pixels: Tensor, found: Misfit, chosen: list[int]) -> Tensor:
    r"""Returns pictures, each followed by itself with its map laid over it in red, in [-1, 1]:
    (2 n, 3, H, W)."""
    top = np.quantile(found.maps.numpy(), 0.999)  # one scale for all
    tiles = []
    for i in chosen:
        clean = to_float(pixels[i]).expand(3, -1, -1)
        heat = (found.maps[i] / max(float(top), 1e-12)).clamp(0, 1)
        red = torch.stack([torch.ones_like(heat), -torch.ones_like(heat), -torch.ones_like(heat)])
        dim = clean.mean(0, keepdim=True).expand(3, -1, -1) / 2
        tiles += [clean, dim * (1 - heat) + red * heat]
    return torch.stack(tiles)
