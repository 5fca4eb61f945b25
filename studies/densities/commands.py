r"""The commands of the studies of densities."""

__all__ = ["ReproduceComposition", "ReproduceLikelihood", "ReproduceOOD"]

import tyro

from dataclasses import dataclass
from fokker import checks
from fokker.images.generate import Sampling
from pathlib import Path
from rich.console import Console


@dataclass(frozen=True)
class ReproduceComposition:
    """Compose energies of every level and compare three samplers with the exact law."""

    out: Path = Path("results/composition.json")
    """The file of the rows."""
    figure: Path | None = Path("docs/figures/composition.png")
    """The picture of the plane."""
    n: int = 16_384
    """The number of samples, an eighth of it by the corrected flow."""
    seed: int = 0
    """The seed."""
    parts: tuple[str, ...] = ("plane", "space")
    """The parts: plane, and space of 64 dimensions."""

    def run(self) -> None:
        from . import composition

        if self.n % 64 or self.n < 512:
            raise ValueError(f"expected n to be a multiple of 64 from 512 on, got {self.n}")
        for part in self.parts:
            checks.one_of(composition.PARTS, part=part)
        checks.seed(self.seed)
        console = Console(highlight=False)
        command = f"fokker reproduce composition --n {self.n} --seed {self.seed}"
        command += f" --parts {' '.join(self.parts)}"
        composition.run(
            self.out, self.figure, self.n, command, self.seed, self.parts, console.print
        )
        console.print(f"rows: {self.out}")


@dataclass(frozen=True)
class ReproduceOOD:
    """Measure how well an energy of images tells its own test images from those of other sets."""

    run_folder: tyro.conf.Positional[str] = "cifar10"
    """The run folder, or the name of a shipped energy."""
    tests: tuple[str, ...] = ("svhn", "celeba32", "fashion_mnist", "noise", "constant", "blurred")
    """The sets: named ones, and noise, constant and blurred."""
    images: int = 10_000
    """The number of test images of each set."""
    usual: int = 5000
    """The number of training images that tell what is usual."""
    data_dir: str | None = None
    """The folder of the named sets; that of FOKKER_DATA if not given."""
    out: Path = Path("results/ood.json")
    """The file of the rows; rows of other runs stay."""
    device: str = "cpu"
    """The device."""
    batch: int = 64
    """The number of images per batch."""

    def run(self) -> None:
        from . import ood

        console = Console(highlight=False)
        name = Path(self.run_folder).name
        command = (
            f"fokker reproduce ood {name} --tests {' '.join(self.tests)} --images {self.images}"
            f" --usual {self.usual}"
        )
        ood.run(
            self.out,
            self.run_folder,
            self.tests,
            self.images,
            self.usual,
            self.data_dir,
            self.device,
            self.batch,
            command,
            console.print,
        )
        console.print(f"rows: {self.out}")


@dataclass(frozen=True)
class ReproduceLikelihood:
    """Measure likelihoods of test images of runs, by the flow and in one pass, with a picture."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """The run folders, or names of shipped energies."""
    images: int = 1000
    """The number of test images."""
    probes: int = 1
    """The number of probes of the Laplacian of an image, by the flow."""
    sigma_min: float = 0.002
    """The level of the density."""
    sigma_max: float = 80.0
    """The level at which it is taken for Gaussian."""
    out: Path = Path("results/likelihood.json")
    """The file of the rows, with the picture beside it; rows of other runs stay."""
    device: str = "cpu"
    """The device."""
    batch: int = 64
    """The number of images per batch."""
    fetch: bool = False
    """Fetch the images of a run from the Hugging Face hub if they are not on this machine."""

    def run(self) -> None:
        from . import likelihood

        checks.at_least(2, images=self.images)
        if not self.runs:
            raise ValueError("expected runs on images, got none")
        console = Console(highlight=False)
        names = " ".join(Path(name).name for name in self.runs)
        command = f"fokker reproduce likelihood {names} --images {self.images}"
        command += f" --probes {self.probes}"
        likelihood.run(
            self.out,
            self.runs,
            self.images,
            Sampling(sigma_min=self.sigma_min, sigma_max=self.sigma_max),
            self.device,
            self.batch,
            self.probes,
            self.fetch,
            command,
            console.print,
        )
        console.print(f"rows: {self.out}")
