r"""`fokker evaluate | score | report`: what a trained run is worth."""

__all__ = ["Evaluate", "Report", "Score", "judgement"]

import json
import torch
import tyro

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from .. import checks
from ..compute.ranks import Ranks, join
from ..images.generate import Sampling, guide_for
from ..runs.config import ImageData
from ..runs.folder import Run, load
from ..tasks import ImageTask


def judgement(line: dict[str, Any]) -> str:
    r"""Returns one line that judges an energy."""
    form = lambda key, how: "none" if line.get(key) is None else format(line[key], how)
    if "nll_gaussian" in line:
        rival = f"a Gaussian: {form('nll_gaussian', '.3f')}"
        if line["nll_gaussian"] is None:
            rival = "no Gaussian: rows are few, or a column follows from others"
        return (
            f"step {line['step']}: NLL training {form('nll_train', '.3f')}, validation"
            f" {form('nll_validation', '.3f')}, test {form('nll', '.3f')} ±"
            f" {form('nll_error', '.3f')} nats ({rival}),"
            f" effective share {form('ess', '.1%')}"
        )
    if "rmse_0.3" in line:
        levels = [f"{form(k, '.4f')} at {k[5:]}" for k in line if k.startswith("rmse_")]
        return f"step {line['step']}: RMSE of denoised test images {', '.join(levels)}"
    return (
        f"step {line['step']}: Fisher gap {form('fisher_gap', '.2%')}, KL {form('kl', '.4f')} nats,"
        f" off the data {form('off_mass', '.2%')}"
    )


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained run: against the exact density, on the test rows, or by denoising and samples."""

    run_folder: tyro.conf.Positional[str]
    """The run folder, or the name of a shipped energy."""
    json: bool = False
    """Print JSON."""
    fid: int | None = None
    """For images: also the FID and KID of so many samples against the training images."""
    bpd: int | None = None
    """For images: also the likelihood of so many test images, in bits a dimension."""
    residual: int | None = None
    """For images: also by how much the energies of neighboring levels disagree, the Fokker-Planck
    residual of so many noisy test images."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = Sampling()
    guide: str | None = None
    """For the FID: a worse energy of the same images, smaller or less trained, to be guided away from."""
    guidance: float | None = None
    """How far to go from the guide to the run and on: 1 is the run itself; 1.5 if not given."""
    seed: int = 0
    """The seed of the samples."""
    convention: Literal["tf", "torch"] = "tf"
    """How images are resized for Inception."""
    inception: Path | None = None
    """The weights of Inception, a safetensors file; FOKKER_INCEPTION or the package if not given."""
    batch: int = 64
    """The number of images at once."""
    device: str | None = None
    """The device; that of the run if not given."""

    def run(self) -> None:
        from ..tasks import TableEnergy

        asked = {"fid": self.fid, "bpd": self.bpd, "residual": self.residual}
        asked = {name: count for name, count in asked.items() if count is not None}
        checks.at_least(2, **asked)  # before anything is computed
        checks.seed(self.seed)
        if self.guide is not None and self.fid is None:
            raise ValueError(
                f"expected --fid with --guide, whose samples it judges, got {self.guide}"
            )
        used = () if self.bpd is None else ("--sigma-min", "--sigma-max")  # by the likelihood
        if self.fid is None and (given := [o for o in self.sampling.changed if o not in used]):
            raise ValueError(f"expected --fid with {', '.join(given)}, got no samples to draw")
        run = load(self.run_folder)
        guide = guide_for(run, self.guide, self.guidance)
        energy = run.energy.energy if isinstance(run.energy, TableEnergy) else run.energy
        with join(checks.device(self.device or run.config.device)) as ranks:
            task, device = ranks.each(run.task), ranks.device
            found = task.judge(energy.to(device), device, ranks)
            line: dict[str, Any] = {"step": run.chosen, **found}
            said = [judgement(line), f"by {run.weights}"]
            if asked:
                if not isinstance(task, ImageTask):
                    given = " and ".join(f"--{name}" for name in asked)
                    raise ValueError(f"expected a run on images for {given}, got {run.path}")
                self.images(run, guide, task, ranks, line, said)
        if ranks.first:
            print(json.dumps(line) if self.json else "\n".join(said))

    def images(
        self,
        run: Run,
        guide: tuple[Run, float] | None,
        task: ImageTask,
        ranks: Ranks,
        line: dict[str, Any],
        said: list[str],
    ) -> None:
        r"""Adds what samples and likelihood say, on the first rank."""
        from ..images.generate import (
            bits_of,
            check_trained,
            generate,
            guided,
            residuals_of,
            suited,
        )
        from ..metrics import described, judge_images, load_inception, reference_of

        check_trained(run)
        device = ranks.device
        exact = self.bpd is not None or self.residual is not None
        energy, train = suited(run, device, exact), task.images["train"]
        extractor = None
        if self.fid is not None:
            given = (self.inception, self.convention, device)
            extractor = ranks.each(lambda: load_inception(*given))
        if self.residual is not None:
            test = ranks.each(lambda: task.pixels("test"))[: self.residual]
            levels = residuals_of(energy, test, self.batch, self.seed, device)
            line |= {f"residual_{sigma}": v for sigma, v in levels.items()}
            told = (
                f"{f'{v**0.5:.3g} nats' if v > 0 else 'none to be seen'} at {sigma}"
                for sigma, v in levels.items()
            )
            said.append(
                f"Fokker-Planck residual, its std times σ² over {len(test):,} noisy test images:"
                f" {', '.join(told)}"
            )
        if self.bpd is not None:
            test = ranks.each(lambda: task.pixels("test"))[: self.bpd]
            how = (self.sampling, self.batch, self.seed, device)
            bits, error = bits_of(energy, test, train.pixels, *how, ranks=ranks)
            line |= {"bpd": bits, "bpd_error": error, "bpd_n": len(test)}
            said.append(
                f"{bits:.3f} ± {error:.3f} bits a dimension ({len(test):,} test images with uniform"
                f" noise, by the flow from {self.sampling.sigma_min:g} to"
                f" {self.sampling.sigma_max:g})"
            )
        if self.fid is not None and extractor is not None:
            how = (self.sampling, self.seed, self.batch, 0, device)
            exact = self.sampling.corrector > 0
            energy = suited(run, device, exact)
            also = ""
            if guide is not None:
                energy, also = guided(run, *guide, device, exact), " and as many of the guide"
                line |= {"guide": self.guide, "guidance": guide[1]}
                said.append(f"guided by {self.guide}, weight {guide[1]:g}")
            drawn = generate(energy, self.fid, run.shape, *how, ranks=ranks)
            features = described(drawn.images, extractor, self.batch, ranks)
            if not ranks.first:  # nothing is left to share out: the reference is made once a set
                return
            reference = reference_of(train, extractor, self.batch)
            fid, kid = judge_images(features, reference, extractor)
            line |= {"fid": fid.value, "fid_n": self.fid, "convention": fid.convention}
            line |= {"nfe": drawn.evaluations, "kid": None if kid is None else kid.mean}
            said += [f"{fid}, {drawn.evaluations} evaluations an image{also}", str(kid)]


@dataclass(frozen=True)
class Score:
    """Write the log-density and the outlier score of points under a run on a table."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    points: tyro.conf.Positional[Path]
    """The file of the points, with the columns that were trained on."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("scores.csv")
    """The file of the scores, .csv: a row a point. Not that of the points."""

    def run(self) -> None:
        from ..data.table import read_table
        from ..tasks import TableEnergy, energies

        checks.place(self.out, (".csv",))
        checks.another(self.out, self.points, "that of the points")
        run = load(self.run_folder)
        energy = run.energy
        if not isinstance(energy, TableEnergy):
            other = "images" if isinstance(run.config.data, ImageData) else "a 2-D set"
            raise ValueError(f"expected a run on a table, got {self.run_folder}, one on {other}")
        table = read_table(self.points)
        if table.columns != energy.columns:
            raise ValueError(
                f"expected the columns {', '.join(energy.columns)} in {self.points},"
                f" got {', '.join(table.columns)}"
            )
        log_density = -energies(energy, table.values, torch.device("cpu"))
        outlier = energy.outlier_score(table.values)
        lines = [f"{a:.6g},{b:.6g}" for a, b in zip(log_density, outlier, strict=True)]
        self.out.write_text("\n".join(["log_density,outlier", *lines]) + "\n")
        print(f"{len(lines)} points: {self.out}, by {run.weights}")


@dataclass(frozen=True)
class Report:
    """Write the report of a trained run anew."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""

    def run(self) -> None:
        from .report import write_report

        print(write_report(load(self.run_folder)))
