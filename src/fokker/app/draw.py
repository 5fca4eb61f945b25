r"""`fokker sample | denoise`: points and images from a trained run."""

__all__ = ["Denoise", "Sample"]

import csv
import math
import numpy as np
import torch
import tyro
import warnings

from dataclasses import dataclass
from pathlib import Path
from rich.console import Console
from rich.progress import Progress
from typing import Annotated

from .. import checks
from ..compute.ranks import Ranks, first_rank, join
from ..images.generate import Sampling, guide_for
from ..runs.config import ImageData
from ..runs.folder import Run, load


@dataclass(frozen=True)
class Sample:
    """Draw from a trained run: points of the learned density, or images from noise."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    n: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    """The number of points or images; 1000 or 64 if not given."""
    seed: int = 0
    """The seed. Image i of a seed is the same for any number of images."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file: .csv or .npy of points; .png, a grid, or .npy, bytes (N, C, H, W), of images.
    samples.csv or samples.png if not given."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = Sampling()
    guide: str | None = None
    """For images: a worse energy of the same images, smaller or less trained, to be guided away from."""
    guidance: float | None = None
    """How far to go from the guide to the run and on: 1 is the run itself; 1.5 if not given."""
    batch: int = 64
    """The number of images at once."""
    device: str = "cpu"
    """The device for images."""
    compile: bool = False
    """Compile the network for images: minutes once, then faster."""

    def run(self) -> None:
        run = load(self.run_folder)
        images = isinstance(run.config.data, ImageData)
        n = (64 if images else 1000) if self.n is None else self.n
        out = Path("samples.png" if images else "samples.csv") if self.out is None else self.out
        kinds = (".png" if images else ".csv", ".npy")
        checks.positive_integer(n=n, batch=self.batch)
        checks.place(out, kinds)  # before anything is drawn
        if not images and (given := ", ".join(self.sampling.changed)):
            raise ValueError(f"expected {given} only for a run on images, got {self.run_folder}")
        guide = guide_for(run, self.guide, self.guidance)
        if images:
            with join(self.device) as ranks:
                self.images(run, guide, n, out, ranks)
        elif first_rank():
            self.points(run, n, out)

    def images(
        self, run: Run, guide: tuple[Run, float] | None, n: int, out: Path, ranks: Ranks
    ) -> None:
        from ..data.picture import save_png, to_float
        from ..images.generate import check_trained, generate, guided, suited
        from ..samplers import Field

        check_trained(run)
        exact = self.sampling.corrector > 0
        if guide is None:
            energy = suited(run, ranks.device, exact)
        else:
            energy = guided(run, *guide, ranks.device, exact)
        batches = -(-len(ranks.among(n)) // self.batch)
        total = batches * self.sampling.flow(1).evaluations
        how = (self.sampling, self.seed, self.batch, 0, ranks.device)
        console = Console(stderr=True)
        hidden = not (ranks.first and console.is_terminal)
        with Progress(console=console, transient=True, disable=hidden) as bar:
            task = bar.add_task("drawing", total=total)
            field = Field(energy, self.compile, lambda: bar.advance(task))
            drawn = generate(field, n, run.shape, *how, ranks=ranks)
        if not ranks.first:
            return
        if out.suffix == ".npy":
            np.save(out, drawn.images.numpy())
        else:
            save_png(out, to_float(drawn.images))
        rate = "" if drawn.acceptance is None else f", acceptance {drawn.acceptance:.2f}"
        also = "" if guide is None else " and as many of the guide"
        print(
            f"{n} images: {out}, {drawn.evaluations} evaluations an image{also},"
            f" {drawn.seconds:.1f} s{rate}, by {run.weights}"
        )

    def points(self, run: Run, n: int, out: Path) -> None:
        from ..tasks import TableEnergy

        x = run.sample(n, self.seed).numpy()
        if out.suffix == ".npy":
            np.save(out, x)
        else:
            names = run.energy.columns if isinstance(run.energy, TableEnergy) else ("x0", "x1")
            with out.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([names, *x.tolist()])
        print(f"{n} points: {out}, by {run.weights}")


@dataclass(frozen=True)
class Denoise:
    """Denoise a picture of any size, grey or colour, with a trained run; the size stays.

    Transparent pixels are laid on white, and the result is opaque."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    picture: tyro.conf.Positional[Path]
    """The noisy picture: PNG, JPEG, WebP or BMP."""
    sigma: float | None = None
    """The standard deviation of its noise, for pixels in [-1, 1]; estimated if not given. The
    estimate is too low where noise was cut off at black or white."""
    rule: str | None = None
    """How an energy of one noise level denoises: one-step (if not given), given, descent or
    posterior. An energy of every level has one way, Tweedie's formula."""
    add_noise: float | None = None
    """First add noise of this standard deviation: shows what a run can do on a clean picture."""
    device: str = "cpu"
    """The device to run on."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("clean.png")
    """The file of the denoised picture, a PNG, not the picture itself."""

    def run(self) -> None:
        from ..data.picture import read_png, save_png
        from ..images.denoise import RULES, denoise_picture
        from ..images.generate import suited
        from ..tasks.image import level_of, levels_of

        places = self.places()
        run = load(self.run_folder)
        if not isinstance(run.config.data, ImageData):
            raise ValueError(f"expected a run on images, got {self.run_folder}, which is not")
        level = level_of(run.config.objective)
        if self.rule is not None:
            checks.one_of(RULES, rule=self.rule)
            if level is None:
                expected = f"no rule for {self.run_folder}, an energy of every level"
                raise ValueError(f"expected {expected}, got {self.rule!r}")
        if self.sigma is not None:
            checks.positive(sigma=self.sigma)
        x = read_png(self.picture)
        if self.add_noise is not None:
            x = x + self.add_noise * torch.randn(
                x.shape, generator=torch.Generator().manual_seed(0)
            )
            save_png(places[1], x)
            print(f"noisy: {places[1]}")
        energy, device = suited(run, self.device), torch.device(self.device)
        rule = self.rule or "one-step"
        try:
            clean, sigma = denoise_picture(
                energy, x.to(device), run.shape, self.sigma, level, rule=rule
            )
        except ValueError as error:
            raise ValueError(f"{self.picture}: {error}") from error
        low, high = levels_of(run.config.objective)
        seen = sigma * math.sqrt(run.shape[0]) if len(x) < run.shape[0] else sigma
        if level is None and not 0.99 * low <= seen <= 1.01 * high:
            through = (
                "" if len(x) == run.shape[0] else ", as a grey picture has in a colour energy"
            )
            warnings.warn(
                f"expected noise of a level that was trained on, {low:.2g} to {high:.2g}, got"
                f" {seen:.3g}{through}; the result is a guess",
                stacklevel=2,
            )
        save_png(self.out, clean.cpu())
        how = "given" if self.sigma is not None else "estimated"
        by = "" if level is None else f", by the rule {rule} from level {level:.3g}"
        print(f"noise {sigma:.3g} ({how}){by}: {self.out}")

    def places(self) -> list[Path]:
        r"""Returns the files that are written, none of them the picture that is read."""
        from ..data.picture import place_of_png

        places = [place_of_png(self.out)]
        if self.add_noise is not None:
            checks.positive(add_noise=self.add_noise)
            places.append(place_of_png(self.out.with_stem(f"{self.out.stem}-noisy")))
        for place in places:
            checks.another(place, self.picture, "the picture")
        return places
