r"""The commands of the studies of densities."""

__all__ = ["ReproduceComposition", "ReproduceOOD"]

import tyro

from dataclasses import dataclass
from fokker import checks
from pathlib import Path
from rich.console import Console


@dataclass(frozen=True)
class ReproduceComposition:
    """Compose energies of every level and compare three samplers with the exact law."""

    out: Path = Path("results/composition.json")
    """The file of the rows."""
    figure: Path | None = Path("docs/figures/composition.png")
    """The picture of the plane."""
    n: int = 32_768
    """The number of samples in the plane; half of it in 64 dimensions."""
    seed: int = 0
    """The seed."""

    def run(self) -> None:
        from . import composition

        if self.n % 32 or self.n < 256:
            raise ValueError(f"expected n to be a multiple of 32 from 256 on, got {self.n}")
        checks.seed(self.seed)
        console = Console(highlight=False)
        command = f"fokker reproduce composition --n {self.n} --seed {self.seed}"
        composition.run(self.out, self.figure, self.n, command, self.seed, console.print)
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
