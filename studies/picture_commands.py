r"""The commands of the studies of pictures: `fokker reproduce posterior` and `photographs`."""

__all__ = ["ReproducePhotographs", "ReproducePosterior"]

from dataclasses import dataclass
from fokker import checks
from fokker.runs.shipped import PHOTOGRAPHS
from pathlib import Path
from typing import Any

from . import results
from .units import begin


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
        units = begin("reproduce posterior", 3 * len(self.dimensions) * len(self.operators))
        for dimension in self.dimensions:
            for name in self.operators:
                fresh = posterior.cell(name, dimension, self.particles, say=tell, units=units)
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


@dataclass(frozen=True)
class ReproducePhotographs:
    """Denoise and restore photographs by an energy and by other methods."""

    data: Path = Path("photographs")
    """The folder of the sets, a folder of pictures each."""
    energy: str = PHOTOGRAPHS
    """A run folder, or the name of an energy that comes with the package."""
    sets: tuple[str, ...] = ("set12", "bsd68")
    """The sets."""
    tasks: tuple[str, ...] = ("denoise", "deblur", "inpaint", "upscale", "noise", "large")
    """The tasks; noise is the estimate of the noise, large one picture of a megapixel."""
    sigmas: tuple[float, ...] = (15.0, 25.0, 50.0)
    """The noise of denoising, of 255."""
    noises: tuple[float, ...] = (5.0, 10.0, 15.0, 25.0, 50.0, 75.0)
    """The noise that is estimated."""
    methods: tuple[str, ...] = ("energy", "blind", "bm3d", "nlm", "tv")
    """The methods of denoising."""
    pictures: int = 0
    """The number of pictures of each set, its first ones; all if zero."""
    side: int | None = None
    """The side of a square from the middle of each picture; the whole if not given."""
    samples: int = 0
    """The number of samples of a restoration; their mean and coverage are measured too."""
    sure: bool = False
    """Measure the coverage of denoising: 16 times the work."""
    device: str = "cpu"
    """The device of the energy."""
    results: Path = Path("results/photographs.json")
    """The file of the rows. Rows of other data, methods and settings that are there stay."""

    def run(self) -> None:
        from fokker.runs.loading import load

        from . import photographs as study

        checks.at_least(0, pictures=self.pictures, samples=self.samples)
        for task in self.tasks:
            if task not in study.TASKS:
                raise checks.unknown(task, list(study.TASKS), "a task", "--tasks")
        known = ["energy", "blind", "bm3d", "nlm", "tv"]
        for name in self.methods:
            if name not in known:
                raise checks.unknown(name, known, "a method", "--methods")
        for name, sigmas in {"sigmas": self.sigmas, "noises": self.noises}.items():
            checks.positive(**{f"{name}[{k}]": sigma for k, sigma in enumerate(sigmas)})
        used = self.methods if "denoise" in self.tasks else ()
        methods = study.methods(used, self.energy, self.sure, self.device)
        estimators = study.estimators(self.energy, self.device) if "noise" in self.tasks else {}
        title = Path(self.energy).name
        some = len([task for task in self.tasks if task not in {"denoise", "noise", "large"}])
        each = some + ("denoise" in self.tasks) * len(self.sigmas) * len(methods)
        each += len(self.noises) * len(estimators)
        units = begin("reproduce photographs", len(self.sets) * each)
        if "large" in self.tasks:
            self.keep(study.large(load(self.energy), title, self.device))
        for data in self.sets if set(self.tasks) - {"large"} else ():
            clean = study.pictures(self.data / data, self.pictures, self.side)
            more = {"pictures": len(clean), "side": self.side}
            for task in self.tasks:
                if task == "large":
                    continue
                if task == "noise":
                    for sigma in self.noises:
                        for name, one in estimators.items():
                            self.keep(study.estimates(data, clean, sigma, name, one, **more))
                            units.done()
                    continue
                if task == "denoise":
                    for sigma in self.sigmas:
                        for name, method in methods.items():
                            found = study.denoising(name, method, clean, sigma, units)
                            self.keep(study.row_of(data, task, sigma, name, found, **more))
                    continue
                options = (task, clean, 2.0, self.samples, self.device)
                parts = study.restoration(load(self.energy), *options)
                for name, found in parts.items():
                    method = name if name == "start" else f"{title}, {name}"
                    self.keep(study.row_of(data, task, 2.0, method, found, **more))
                units.done()
        print(f"rows: {self.results}")

    def keep(self, row: dict[str, Any]) -> None:
        r"""Adds a row to the file, in place of the same one from before, and prints it."""
        key = lambda row: tuple(
            row.get(name) for name in ("data", "task", "sigma", "method", "pictures", "side")
        )
        rows = results.rows_of(results.load(self.results)) if self.results.exists() else []
        rows = [old for old in rows if key(old) != key(row)]
        rows.append({**row, **results.provenance(self.device)})
        config = {"seeds": "the number of the picture"}
        results.save(self.results, rows, "fokker reproduce photographs", config, self.device)
        said = f"{row['data']}, {row['task']}, sigma {row['sigma']:g}, {row['method']}:"
        if row["psnr"] is None:
            print(f"{said} {row['sigma_error']:.1%} off in the median", flush=True)
            return
        sure = "" if row["coverage68"] is None else f", {row['coverage68']:.1%} within 68 %"
        print(f"{said} {row['psnr']:.2f} dB, {row['seconds']:.1f} s a picture{sure}", flush=True)
