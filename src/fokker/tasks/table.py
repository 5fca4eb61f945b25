r"""The task of a table of points.

A table has few rows, which a network soon knows by heart. `TableTask` standardizes them and splits
them in three: training rows; **validation** rows, by which the weights that a run keeps are
chosen; and **test** rows, by which those are judged. The least of many numbers is too good, so the
NLL on the rows that choose is no measure of a model; that on rows which took no part in it is. It
judges by what can be known without a truth,

.. math:: \mathrm{NLL} = \mathbb{E} \, E(z) + \log Z + \sum_d \log s_d

in nats and in the units of the file, beside that of a single Gaussian. Z is estimated by
importance sampling from Gaussians about the training rows, blurred at three widths, and a wide
one, which finds what mass is far from all rows; `ess`, the effective share of that sample, says
whether to believe it (a few percent or more). A point's **outlier score** is the share of the test
rows that are more likely than it: near 1 for an outlier.
"""

__all__ = ["TableEnergy", "TableTask", "energies"]

import hashlib
import math
import torch
import warnings

from pathlib import Path
from torch import Tensor
from typing import Any, Self

from .base import Line, Plane, PointTask, Run
from .. import checks
from ..analytic import GaussianMixture
from ..checks import brief
from ..compute.ranks import ALONE, Ranks
from ..data.table import Standardize, read_table, split
from ..derivatives import EnergyLike, Hutchinson, value
from ..energies import Energy
from ..files import write_text
from ..metrics import log_normalizer, score_matching_loss
from ..runs.config import Config, TableData
from ..samplers import MALA, Annealed, geometric, invert_anywhere

FEW = 3  # rows whose mean says little
COLUMNS = 1024  # at most: the proposal for Z has a matrix of them for each center
CENTERS = 200  # training rows in the proposal for Z
DRAWS = 8000  # points of the importance sample
WIDTH = 0.3  # of the Gaussians about them, in standard deviations of the data
FAR, REACH = 0.2, 3.0  # the share of the wide Gaussian in it, and its width
SAMPLES = 400  # in the report
VALUES = 6  # columns beside an unusual row
UNUSUAL = 12  # rows
WINDOW, BLUR = 1.3, 0.05  # in the studio: half-width, and std of the points as a density


class TableTask(PointTask):
    r"""Creates the task of a table."""

    kind = "a table"
    criterion = merit = "nll_validation"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, TableData)
        self.source = config.data

    # --- without data ---

    def choice(self, step: int) -> str:
        return f" of {step}, the best on the validation rows"

    def describe(self, line: Line) -> str:
        show = lambda key, form: "none" if line.get(key) is None else format(line[key], form)
        rival = f"a Gaussian: {show('nll_gaussian', '.3f')}"
        if line["nll_gaussian"] is None:
            rival = "no Gaussian: rows are few, or a column follows from others"
        return (
            f"step {line['step']}: NLL training {show('nll_train', '.3f')}, validation"
            f" {show('nll_validation', '.3f')}, test {show('nll', '.3f')} ±"
            f" {show('nll_error', '.3f')} nats ({rival}),"
            f" effective share {show('ess', '.1%')}"
        )

    def wrap(self, energy: Energy, card: Line | None) -> "TableEnergy":
        if card is None:
            raise ValueError(
                "expected weights chosen by validation rows, got none: the run was stopped"
                " before its first"
                " evaluation; resume it"
            )
        return TableEnergy(energy, card)

    def unwrap(self, energy: "TableEnergy") -> Energy:
        return energy.energy

    def columns(self, run: Run) -> tuple[str, ...]:
        assert isinstance(run.energy, TableEnergy)
        return run.energy.columns

    def sample(self, run: Run, n: int, seed: int) -> Tensor:
        r"""Returns n points of the learned density.

        With two columns they are exact and independent (`fokker.samplers.inversion`). With more
        they are the ends of MALA chains that start from a wide Gaussian and are cooled down;
        nothing checks that these have arrived (`fokker.samplers.annealed`).
        """
        assert isinstance(run.energy, TableEnergy)
        inner, dim, generator = run.energy.energy, len(run.energy.columns), torch.Generator()
        generator.manual_seed(seed)
        if dim == 2:
            x = invert_anywhere(inner, n, generator).samples
        else:
            start = torch.randn(n, dim, generator=generator)
            sampler = Annealed(MALA(1e-4, warmup=100), geometric(30.0, 12), steps=150)
            x = sampler.run(inner, start, 200, generator).samples[-1]
        return run.energy.standardize.inverse(x)

    def score(self, run: Run, points: Path, out: Path) -> str:
        energy = run.energy
        assert isinstance(energy, TableEnergy)
        checks.place(out, (".csv",))
        checks.another(out, points, "that of the points")
        table = read_table(points)
        if table.columns != energy.columns:
            raise ValueError(
                f"expected the columns {', '.join(energy.columns)} in {points},"
                f" got {', '.join(table.columns)}"
            )
        log_density = -energies(energy, table.values, torch.device("cpu"))
        outlier = energy.outlier_score(table.values)
        lines = [f"{a:.6g},{b:.6g}" for a, b in zip(log_density, outlier, strict=True)]
        write_text(out, "\n".join(["log_density,outlier", *lines]) + "\n")
        return f"{len(lines)} points: {out}, by {run.weights}"

    # --- with data ---

    def load(self) -> Self:
        data, seed = self.source, self.config.seed
        table, self.path = read_table(Path(data.path)), data.path
        self.names, self.values = table.columns, table.values
        self.dim = len(table.columns)
        if self.dim > COLUMNS:
            raise ValueError(f"{data.path}: expected at most {COLUMNS} columns, got {self.dim}")
        self.shape = (self.dim,)
        if len(table.values) < 3:
            raise ValueError(
                f"{data.path}: expected 3 rows or more to train, validate and test on,"
                f" got {len(table.values)}"
            )
        rows = split(len(table.values), data.held_out, seed)
        self.rows = dict(zip(("training", "validation", "test"), rows, strict=True))
        train, validation, test = (table.values[which] for which in rows)
        try:
            self.standardize = Standardize.fit(train, table.columns)
        except ValueError as error:
            raise ValueError(f"{data.path}, rows to train on: {error}") from None
        self.train, self.validation, self.test = map(self.standardize, (train, validation, test))
        if len(test) < FEW:
            warnings.warn(
                f"{data.path}: expected {FEW} or more rows to judge by, got {len(test)}, and"
                f" {len(validation)} to choose the weights by; the figures say little",
                stacklevel=2,
            )
        return self

    def check(self, run: Run) -> Self:
        assert isinstance(run.energy, TableEnergy)
        self.check_card(run.energy.card)
        return self

    def fingerprint(self) -> str:
        total = hashlib.sha256(repr(self.names).encode())
        total.update(self.values.double().numpy().tobytes())
        return total.hexdigest()

    def check_card(self, card: Line) -> None:
        mine, said = self.standardize, (*card["mean"], *card["std"])
        # a sum may round in another order
        near = lambda a, b, s: abs(a - b) <= 1e-9 * s
        same = tuple(card["columns"]) == self.names
        if not (same and all(map(near, mine.mean + mine.std, said, 2 * mine.std))):
            raise ValueError(f"expected the rows that were trained on, got others in {self.path}")

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        rows = self.train.to(generator.device)
        which = torch.randint(len(rows), (n,), generator=generator, device=rows.device)
        return rows[which]

    def normalizer(self, energy: EnergyLike, device: torch.device) -> tuple[float, float, float]:
        r"""Returns :math:`\log Z` in standardized units, its standard error and the effective
        share."""
        centers = self.train[:CENTERS].to(device)
        means = torch.cat((centers, centers.new_zeros(1, self.dim)))
        variances, shares = means.new_full((2, len(means)), 1.0)
        variances[:-1], variances[-1] = WIDTH**2, REACH**2
        shares[:-1], shares[-1] = (1 - FAR) / len(centers), FAR
        covariances = variances[:, None, None] * torch.eye(self.dim, device=device)
        proposal = GaussianMixture(means, covariances, shares)
        generator = torch.Generator(device).manual_seed(0)
        log_z, error, ess = map(float, log_normalizer(energy, proposal, DRAWS, generator))
        return log_z, error, ess

    def gaussian(self, points: Tensor) -> float:
        r"""Returns the NLL of standardized points under the Gaussian with the moments of the
        training rows, in the units of the file; NaN if a column follows from others, or rows are
        too few."""
        x, train = points.double(), self.train.double()
        factor, failed = torch.linalg.cholesky_ex(torch.cov(train.T).reshape(self.dim, self.dim))
        if failed or factor.diagonal().min() < 1e-6:  # no more than the digits of float32
            return math.nan
        z = torch.linalg.solve_triangular(factor, (x - train.mean(0)).T, upper=False)
        constant = self.dim * math.log(2 * math.pi) / 2 + self.standardize.log_volume
        return float(z.square().sum(0).mean() / 2 + factor.diagonal().log().sum()) + constant

    def judge(self, energy: Energy, device: torch.device, ranks: Ranks = ALONE) -> Line:
        return ranks.once(lambda: self.judge_alone(energy, device))

    def judge_alone(self, energy: Energy, device: torch.device) -> Line:
        log_z, error, ess = self.normalizer(energy, device)
        shift = log_z + self.standardize.log_volume
        # as many training rows as validation rows, which come in random order
        train = energies(energy, self.train[: len(self.validation)], device)
        validation = energies(energy, self.validation, device)
        test = energies(energy, self.test, device)
        spread = float(test.std()) if len(test) > 1 else math.nan
        generator = torch.Generator(device).manual_seed(0)
        line = {
            "sm_loss": score_matching_loss(energy, self.test.to(device), Hutchinson(4), generator),
            "nll_train": float(train.mean()) + shift,
            "nll_validation": float(validation.mean()) + shift,
            "nll": float(test.mean()) + shift,
            "nll_error": math.hypot(error, spread / math.sqrt(len(test))),
            "nll_gaussian": self.gaussian(self.test),
            "ess": ess,
        }
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def card(self, energy: Energy, device: torch.device) -> Line:
        found = energies(energy, self.test, device).sort().values
        if not torch.isfinite(found).all():
            raise ValueError(
                f"{self.path}: expected test rows of finite energy, got"
                f" {int((~torch.isfinite(found)).sum())} of {len(found)} that have none: they lie"
                " too far from the rows to train on"
            )
        return {
            "columns": list(self.names),
            "mean": list(self.standardize.mean),
            "std": list(self.standardize.std),
            "log_z": self.normalizer(energy, device)[0],
            # of the test rows, in standardized units
            "energies": found.tolist(),
        }

    def report(self, run: Run) -> str:
        from .reports import table as figures
        from .reports.page import embed

        energy, cpu = run.energy, torch.device("cpu")
        assert isinstance(energy, TableEnergy)
        samples = run.sample(SAMPLES)
        every = -energies(energy, self.values, cpu)
        logs = {
            "training rows": every[self.rows["training"]],
            "test rows": every[self.rows["test"]],
            "samples of the model": -energies(energy, samples, cpu),
        }
        pairs = figures.pair_figure(self.values, samples, self.names)
        curves = figures.curves_figure(run.metrics, run.chosen, self.gaussian(self.validation))
        drawn = embed(
            figures.histogram_figure(logs), run.path / "log_density.png", "log-densities"
        )
        places = "" if self.dim == 1 else ", the rows below the diagonal and the samples above it"
        shown = figures.COLUMNS
        more = f" Columns after the {shown}th are not drawn." if self.dim > shown else ""
        return f"""
<h2>On rows kept aside</h2>
{self.numbers(run)}
<p class="sub">Believe an NLL whose effective share is a few percent or more.</p>
<h2>Data and samples</h2>
{embed(pairs, run.path / "pairs.png", "columns")}
<p class="sub">Rows of the table and {SAMPLES} samples of the model{places}. Axes hold
99 % of the rows.{more}</p>
<h2>Log-density</h2>
{drawn}
<p class="sub">Where training rows are more likely than test rows, the model has memorized them.
The first bin also holds all that is below it.</p>
<h2>Training</h2>
{embed(curves, run.path / "curves.png", "curves of training")}
<h2>Most unusual rows</h2>
{self.unusual(energy, every)}
<p class="sub">Rows count from 1, without a header. The outlier score is the share of test rows
that are more likely.</p>"""

    def numbers(self, run: Run) -> str:
        r"""Returns the table of the judgement of the chosen weights."""
        from .reports.page import rows

        line = run.judged
        show = lambda key, form: "none" if line[key] is None else format(line[key], form)
        sizes = " / ".join(str(len(which)) for which in self.rows.values())
        gain = None if line["nll_gaussian"] is None else line["nll_gaussian"] - line["nll"]
        return rows([
            ("rows: training / validation / test", sizes),
            ("NLL of the test rows, nats", f"{show('nll', '.3f')} ± {show('nll_error', '.3f')}"),
            ("the same of a Gaussian", show("nll_gaussian", ".3f")),
            ("gain over the Gaussian, nats per row", "none" if gain is None else f"{gain:.3f}"),
            ("NLL of the validation rows, which chose", show("nll_validation", ".3f")),
            ("NLL of as many training rows", show("nll_train", ".3f")),
            ("effective share of the sample for Z", show("ess", ".1%")),
            ("score matching loss, in standard deviations", show("sm_loss", ".2f")),
            ("seconds of training", f"{run.metrics[-1]['seconds']:.1f}"),
        ])

    def unusual(self, energy: "TableEnergy", logs: Tensor) -> str:
        r"""Returns the table of the rows with the least log-density, by their number in the
        file."""
        from .reports.page import rows

        shown, lines = self.names[:VALUES], []
        for i in logs.argsort()[:UNUSUAL].tolist():
            (part,) = (name for name, which in self.rows.items() if i in which)
            score = float(energy.outlier_score(self.values[i : i + 1]))
            values = (f"{v:.6g}" for v in self.values[i, : len(shown)])
            lines.append([str(i + 1), part, f"{logs[i]:.2f}", f"{score:.3f}", *values])
        return rows(lines, ("row", "part", "log-density", "outlier score", *shown))

    def plane(self) -> Plane:
        if self.dim != 2:
            return super().plane()
        points, n = self.values, len(self.values)
        width = BLUR**2 * torch.eye(2, dtype=torch.float64).expand(n, 2, 2)
        law = GaussianMixture(points.double(), width, torch.full((n,), 1 / n).double())
        return Plane(
            half=WINDOW,
            step=0.02**2,
            data=points,
            scores=None,
            true_energy=lambda grid: grid.evaluate(law, chunk=4096),
            exact=False,
            units=self.standardize,
            rows={"nll_train": self.train, "nll_validation": self.validation},
        )


def energies(energy: EnergyLike, points: Tensor, device: torch.device) -> Tensor:
    r"""Returns the energies of points, :math:`(N, D) \to (N)`, in float64 on the CPU."""
    with torch.no_grad():
        parts = [value(energy, part.to(device)) for part in points.split(8192)]
    return torch.cat(parts).double().cpu()


class TableEnergy(Energy):
    r"""Creates the energy of points in the units of a table, from that of standardized ones.

    It is normalized as well as :math:`\log Z` is known: :math:`E = -\log p`.

    Arguments:
        energy: The energy of standardized points.
        card: What `TableTask.card` returned of it.
    """

    def __init__(self, energy: Energy, card: dict[str, Any]) -> None:
        super().__init__()
        self.energy, self.card, self.columns = energy, card, tuple(card["columns"])
        self.standardize = Standardize(tuple(card["mean"]), tuple(card["std"]))
        self.log_z, self.reference = float(card["log_z"]), [float(e) for e in card["energies"]]
        if len(self.columns) != len(self.standardize.mean) or not self.reference:
            raise ValueError(f"expected a mean of each column and energies, got {brief(card)}")

    def forward(self, x: Tensor) -> Tensor:
        shift = self.log_z + self.standardize.log_volume
        return value(self.energy, self.standardize(x)) + shift

    def outlier_score(self, x: Tensor) -> Tensor:
        r"""Returns the share of the test rows that are more likely than each point."""
        e = energies(self.energy, self.standardize(x), x.device)
        reference = torch.tensor(self.reference, dtype=torch.float64)
        return torch.searchsorted(reference, e).double() / len(reference)
