r"""`fokker denoise`: a picture, with a trained run on images."""

__all__ = ["Denoise"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..data.picture import place_of_png
from ..runs.loading import load
from ..tasks.options import Denoising


@dataclass(frozen=True)
class Denoise:
    """Denoise a picture of any size, grey or colour, with a trained run; the size stays.

    Transparent pixels are laid on white, and the result is opaque."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    picture: tyro.conf.Positional[Path]
    """The noisy picture: PNG, JPEG, WebP or BMP."""
    denoising: Denoising = Denoising()
    out: Path = Path("clean.png")
    """The file of the denoised picture, a PNG, not the picture itself."""

    def run(self) -> None:
        self.denoising.check()
        place_of_png(self.out)  # before the network is loaded
        run = load(self.run_folder)
        print(run.task.denoise(run, self.picture, self.out, self.denoising))
