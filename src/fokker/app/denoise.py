r"""`fokker denoise`: photographs, with an energy that comes with the package or a trained run."""

__all__ = ["Denoise"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..data.picture import place_of_png
from ..runs.loading import load
from ..runs.shipped import PHOTOGRAPHS
from ..tasks.options import Denoising

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Denoise:
    """Denoise a picture of any size, grey or colour, or a folder of them; the size stays.

    Transparent pixels are laid on white, and the result is opaque. A PNG of 16 bits stays one."""

    picture: tyro.conf.Positional[Path]
    """The noisy picture, PNG, JPEG, WebP or BMP, or a folder of pictures."""
    energy: str = PHOTOGRAPHS
    """A run folder, or the name of an energy that comes with the package."""
    denoising: Denoising = Denoising()
    out: Path | None = None
    """The file of the denoised picture, a PNG, not the picture itself; clean.png if not given. Of
    a folder, the folder of the denoised ones, not the folder itself; clean if not given."""

    def run(self) -> None:
        self.denoising.check()
        jobs = pictures_of(self.picture, self.out)
        run = load(self.energy)
        for picture, out in jobs:
            print(run.task.denoise(run, picture, out, self.denoising), flush=True)


def pictures_of(picture: Path, out: Path | None) -> list[tuple[Path, Path]]:
    r"""Returns each picture to be read with the PNG to be written, before any work is done.

    Arguments:
        picture: A picture, or a folder of pictures.
        out: The file or the folder to be written.
    """
    if not picture.is_dir():
        out = Path("clean.png") if out is None else out
        place_of_png(out)
        return [(picture, out)]
    out = Path("clean") if out is None else out
    found = sorted(p for p in picture.iterdir() if p.suffix.lower() in SUFFIXES)
    if not found:
        raise ValueError(f"{picture}: expected pictures ({', '.join(SUFFIXES)}), got none")
    if out.exists() and (not out.is_dir() or out.samefile(picture)):
        raise ValueError(f"expected another folder than that of the pictures, got {out}")
    jobs = [(p, out / f"{p.stem}.png") for p in found]
    names = [place.name for _, place in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{picture}: expected pictures of different names, got two of {twice[0]}")
    out.mkdir(exist_ok=True)
    for _, place in jobs:
        place_of_png(place)
    return jobs
