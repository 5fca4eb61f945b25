r"""The commands of the studies of pictures: `fokker reproduce posterior` and `photographs`."""

__all__ = ["ReproducePosterior"]

from dataclasses import dataclass
from fokker import checks
from pathlib import Path

from . import results


@dataclass(frozen=True)
class ReproducePosterior:
    """Sample posteriors of linear inverse problems under mixtures, against the closed form."""

    dimensions: tuple[int, ...] = (64, 256)
    """The numbers of pixels, squares of even numbers."""
    operators: tuple[str, ...] = ("identity", "blur", "mask", "downscale")
    """The operators."""
    particles: int = 4096
    """The number of particles, a multiple of 16."""
    results: Path = Path("results/posterior.json")
    """The file of the rows. Rows of other dimensions, operators or numbers of particles that are
    there stay."""

    def run(self) -> None:
        from . import posterior

        for name in self.operators:
            if name not in posterior.OPERATORS:
                raise checks.unknown(name, list(posterior.OPERATORS), "an operator", "--operators")
        for dimension in self.dimensions:
            if dimension < 16 or round(dimension**0.5 / 2) ** 2 * 4 != dimension:
                raise ValueError(
                    f"expected the square of an even number, 16 or more, at --dimensions, got"
                    f" {dimension}"
                )
        if self.particles < 16 or self.particles % 16:
            raise ValueError(f"expected a multiple of 16 at --particles, got {self.particles}")
        key = lambda row: (row["dimension"], row["operator"], row["particles"])
        rows = results.rows_of(results.load(self.results)) if self.results.exists() else []
        for dimension in self.dimensions:
            for name in self.operators:
                fresh = posterior.cell(name, dimension, self.particles, say=tell)
                rows = [row for row in rows if key(row) != key(fresh[0])]
                rows += [{**row, **results.provenance()} for row in fresh]
                words = " ".join(str(v) for v in sorted({row["dimension"] for row in rows}))
                command = f"fokker reproduce posterior --dimensions {words}"
                if self.particles != 4096:
                    command += f" --particles {self.particles}"
                results.save(self.results, rows, command, posterior.CONFIG)
        print(f"rows: {self.results}")


def tell(row: results.Row) -> None:
    r"""Prints a row of the study of posteriors."""
    kind = "corrected" if row["corrected"] else "not corrected"
    kind += "" if row["weighted"] else ", no weights"
    print(
        f"{row['operator']}, {row['dimension']} pixels, {kind}: mean {row['mean_error']:.2%},"
        f" covariance {row['covariance_error']:.2%}, weights {row['weight_error']:.2%},"
        f" {row['seconds']:.0f} s",
        flush=True,
    )
