r"""The commands of the studies of densities."""

__all__ = ["ReproduceComposition"]

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
