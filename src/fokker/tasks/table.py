r"""The task of a table of points.

A table has few rows, which a network soon knows by heart. `TableTask` standardizes them and splits
them in three: training rows; **validation** rows, by which the weights that a run keeps are
chosen; and **test** rows, by which those are judged. The least of many numbers is too good, so the
figure on the rows that choose is no measure of a model; that on rows which took no part in it is.

The weights are chosen by the **held-out divergence**: the multi-time divergence of the table
preset on the validation rows, with the same noise at every evaluation. It needs no
:math:`\log Z`, which would be too uncertain to choose by. At the end of training
:math:`\log Z` of the chosen weights is found once (`fokker.samplers.normalizer`), and the
likelihood of the rows with it,

.. math:: \mathrm{NLL} = \mathbb{E} \, E(z) + \log Z + \sum_d \log s_d

in nats and in the units of the file, beside that of a single Gaussian. If :math:`\log Z` cannot be
trusted, no likelihood is given, and the reason is. A point's **outlier score** is the share of the
test rows that are more likely than it: near 1 for an outlier. It needs no :math:`\log Z`.

Samples and :math:`\log Z` start from a base, a mixture of Gaussians fitted to training rows.
"""

__all__ = ["PointEnergy", "TableEnergy", "TableTask", "energies"]

import abc
import csv
import hashlib
import io
import math
import torch
import warnings

from copy import deepcopy
from functools import cached_property
from html import escape
from pathlib import Path
from torch import Tensor
from typing import Any, Self

from .base import Line, Plane, PointTask, Run
from .options import Scoring
from .scoring import Reasons, likely_of, matched, reasons_of, score_lines
from .. import checks
from ..analytic import GaussianMixture, fit_mixture
from ..checks import brief
from ..compute.ranks import ALONE, Ranks
from ..data.table import Standardize, read_table, split
from ..derivatives import EnergyLike, Hutchinson, value
from ..energies import Energy
from ..files import write_text
from ..metrics import score_matching_loss
from ..metrics.attribution import contributions, p_values
from ..objectives import Objective
from ..runs.config import Config, TableData
from ..runs.presets import table_config
from ..samplers import Normalizer, Sampled, draw, normalize

FEW = 3  # rows whose mean says little
COLUMNS = 1024  # at most
FITTED = 2000  # training rows that the base is fitted to
COMPONENTS, NUMBERS = 4, 2**16  # of the base, at most; the numbers of its covariances
HELD_OUT = 2000  # points of the held-out divergence, rows repeated
SAMPLES = 400  # in the report
VALUES = 6  # columns beside an unusual row
UNUSUAL = 12  # rows
DRAWN = 256  # points explained at once
WINDOW, BLUR = 1.3, 0.05  # in the studio: half-width, and std of the points as a density


class TableTask(PointTask):
    r"""Creates the task of a table."""

    kind = "a table"
    criterion = merit = "divergence"
    explained = (
        "The outlier score is the share of test rows that are more likely. The reasons are what"
        " columns add to the energy, in nats, above that of the nearest center of the rows."
    )
    repeated = HELD_OUT
    log_volume: float  # by which a log-density of standardized points exceeds that of points

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, TableData)
        self.source = config.data

    # --- without data ---

    def choice(self, step: int) -> str:
        return f" of {step}, the best on the validation rows"

    def describe(self, line: Line) -> str:
        show = lambda key, form: "none" if line.get(key) is None else format(line[key], form)
        held_out = (
            f"step {line['step']}: divergence training {show('divergence_train', '.4g')},"
            f" validation {show('divergence', '.4g')}"
        )
        if "nll_gaussian" not in line:
            return held_out
        rival = f"a Gaussian: {show('nll_gaussian', '.3f')}"
        if line["nll_gaussian"] is None:
            rival = "no Gaussian: rows are few, or a column follows from others"
        if line["unknown"]:
            return f"{held_out}\nNLL not known ({rival}): {line['unknown']}"
        return (
            f"{held_out}\nNLL training {show('nll_train', '.3f')}, validation"
            f" {show('nll_validation', '.3f')}, test {show('nll', '.3f')} ±"
            f" {show('nll_error', '.3f')} nats ({rival}), log Z {show('log_z', '.3f')} ±"
            f" {show('log_z_error', '.3f')}, effective share {show('ess', '.1%')} or more"
        )

    def wrap(self, energy: Any, card: Line | None) -> "PointEnergy":
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
        assert isinstance(run.energy, PointEnergy)
        return run.energy.columns

    def sample(self, run: Run, n: int, seed: int) -> Sampled:
        r"""Returns n points of the learned density and the verdict on them: exact with two
        columns, by particles otherwise."""
        energy = run.energy
        assert isinstance(energy, TableEnergy)
        generator = torch.Generator().manual_seed(seed)
        drawn = draw(energy.energy, n, energy.base, generator=generator)
        return drawn._replace(points=energy.standardize.inverse(drawn.points))

    def score(self, run: Run, points: Path, out: Path, scoring: Scoring = Scoring()) -> str:
        energy = run.energy
        assert isinstance(energy, PointEnergy)
        checks.place(out, (".csv",))
        checks.another(out, points, "that of the points")
        table = read_table(points, energy.mixed)
        x, extra = matched(table, energy.columns, str(points), energy.categories)
        e = energies(energy, x, torch.device("cpu"))
        for i in (~torch.isfinite(e)).nonzero().flatten()[:1].tolist():
            raise FloatingPointError(
                f"{points}, row {i + 1}: expected a point whose energy is finite, got"
                f" {float(e[i])}: it is too far from the rows that were trained on"
            )
        odd = energy.surprise(x)
        more, cells, notes = score_lines(energy, x, odd, scoring.checked)
        share, p = energy.share_below(odd), energy.p_values(odd)
        name = "log_density" if energy.normalized else "log_density_up_to_a_constant"
        text = io.StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([name, "outlier", "surprise", "p_value", *more])
        for a, b, c, d, line in zip(-e, share, odd, p, cells, strict=True):
            lines.writerow([f"{a:.9g}", f"{b:.6g}", f"{c:.9g}", f"{d:.6g}", *line])
        write_text(out, text.getvalue())
        if extra:
            notes.append(f"ignored columns: {checks.brief(', '.join(extra), 200)}")
        if not energy.normalized:
            notes.append(f"log Z is not known: {energy.unknown}")
        return "\n".join([f"{len(x)} points: {out}, by {run.weights}", *notes])

    # --- with data ---

    def load(self) -> Self:
        data, seed = self.source, self.config.seed
        table, self.path = read_table(Path(data.path)), data.path
        self.whole, self.names, self.values = table, table.columns, table.values
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
        self.log_volume = self.standardize.log_volume
        self.held_out = table_config(data.path).objective
        if len(test) < FEW:
            warnings.warn(
                f"{data.path}: expected {FEW} or more rows to judge by, got {len(test)}, and"
                f" {len(validation)} to choose the weights by; the figures say little",
                stacklevel=2,
            )
        return self

    def check(self, run: Run) -> Self:
        assert isinstance(run.energy, PointEnergy)
        self.check_card(run.energy.card)
        return self

    def fingerprint(self) -> str:
        total = hashlib.sha256(repr(self.names).encode())
        if self.whole.categories:
            total.update(repr(self.whole.categories).encode())
        total.update(self.values.double().numpy().tobytes())
        return total.hexdigest()

    def check_card(self, card: Line) -> None:
        if "base" not in card:
            raise ValueError(
                f"expected a run whose weights the held-out divergence chose, got an older one on"
                f" {self.path}: train it anew"
            )
        mine, saved = self.standardize, (*card["mean"], *card["std"])
        # a sum may round in another order
        near = lambda a, b, s: abs(a - b) <= 1e-9 * s
        same = tuple(card["columns"]) == self.names
        if not (same and all(map(near, mine.mean + mine.std, saved, 2 * mine.std))):
            raise ValueError(f"expected the rows that were trained on, got others in {self.path}")

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        rows = self.train.to(generator.device)
        which = torch.randint(len(rows), (n,), generator=generator, device=rows.device)
        return rows[which]

    @cached_property
    def base(self) -> GaussianMixture:
        r"""The base of particles, a mixture fitted to training rows; of one component where the
        covariances of more would be too many numbers, and without correlations beyond that."""
        rows, generator = self.train[:FITTED], torch.Generator().manual_seed(0)
        most = COMPONENTS if COMPONENTS * self.dim**2 <= NUMBERS else 1
        if self.dim**2 > NUMBERS:
            return GaussianMixture(rows.mean(0, keepdim=True), torch.diag(rows.var(0) + 0.05**2))
        return fit_mixture(rows, most, generator=generator)

    def divergence(self, energy: EnergyLike, rows: Tensor, device: torch.device) -> float:
        r"""Returns the divergence of rows, repeated, with the same noise at every call."""
        objective: Objective = self.held_out
        generator = torch.Generator(device).manual_seed(0)
        x = rows.to(device).repeat(-(-self.repeated // len(rows)), 1)[: self.repeated]
        with torch.no_grad():
            return float(objective(energy, x, None, generator).loss)

    def normalizer(self, energy: EnergyLike, device: torch.device) -> Normalizer:
        r"""Returns what is known of :math:`\log Z` in standardized units."""
        generator = torch.Generator(device).manual_seed(0)
        return normalize(energy, deepcopy(self.base).to(device), generator)

    def gaussian(self, points: Tensor) -> float:
        r"""Returns the NLL of standardized points under the Gaussian with the moments of the
        training rows, in the units of the file; NaN if a column follows from others, or rows are
        too few."""
        x, train = points.double(), self.train.double()
        factor, failed = torch.linalg.cholesky_ex(torch.cov(train.T).reshape(self.dim, self.dim))
        if failed or factor.diagonal().min() < 1e-6:  # no more than the digits of float32
            return math.nan
        z = torch.linalg.solve_triangular(factor, (x - train.mean(0)).T, upper=False)
        constant = self.dim * math.log(2 * math.pi) / 2 + self.log_volume
        return float(z.square().sum(0).mean() / 2 + factor.diagonal().log().sum()) + constant

    def judge(self, energy: Energy, device: torch.device, ranks: Ranks = ALONE) -> Line:
        return ranks.once(lambda: self.judge_alone(energy, device))

    def judge_alone(self, energy: Energy, device: torch.device) -> Line:
        generator = torch.Generator(device).manual_seed(0)
        rows = self.test.to(device)
        line = {
            "sm_loss": score_matching_loss(energy, rows, Hutchinson(4), generator),
            # as many training rows as validation rows, which come in random order
            "divergence_train": self.divergence(
                energy, self.train[: len(self.validation)], device
            ),
            "divergence": self.divergence(energy, self.validation, device),
        }
        return finite(line)

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
            "base": base_card(self.base),
            # of the test rows, in standardized units
            "energies": found.tolist(),
        }

    def complete(self, energy: Energy, device: torch.device) -> tuple[Line, Line]:
        found = self.normalizer(energy, device)
        card = {
            "log_z": found.log_z if found.known else None,
            "log_z_error": found.error if found.known else None,
            "unknown": "; ".join(found.faults),
        }
        return card, self.likelihood(energy, device, card) | {"ess": found.share}

    def likelihood(self, energy: Energy, device: torch.device, card: Line) -> Line:
        r"""Returns the likelihoods of the rows, given what is known of :math:`\log Z`."""
        log_z = math.nan if card["log_z"] is None else card["log_z"]
        error = math.nan if card["log_z"] is None else card["log_z_error"]
        shift = log_z + self.log_volume
        train, validation, test = (
            energies(energy, rows, device)
            for rows in (self.train[: len(self.validation)], self.validation, self.test)
        )
        spread = float(test.std()) if len(test) > 1 else math.nan
        line = {
            "nll_train": float(train.mean()) + shift,
            "nll_validation": float(validation.mean()) + shift,
            "nll": float(test.mean()) + shift,
            "nll_error": math.hypot(error, spread / math.sqrt(len(test))),
            "nll_gaussian": self.gaussian(self.test),
            "log_z": log_z,
            "log_z_error": error,
        }
        return finite(line) | {"unknown": card["unknown"]}

    def judge_run(self, run: Run, ranks: Ranks) -> tuple[Line, list[str]]:
        energy = run.energy
        assert isinstance(energy, TableEnergy)
        line, _ = super().judge_run(run, ranks)
        inner = energy.energy.to(ranks.device)
        if energy.completed:
            line |= self.likelihood(inner, ranks.device, energy.card)
        else:  # training was stopped before its end
            line |= ranks.once(lambda: self.complete(inner, ranks.device))[1]
        return line, [self.describe(line), f"by {run.weights}"]

    def report(self, run: Run) -> str:
        from .reports import table as figures
        from .reports.page import embed

        energy, cpu = run.energy, torch.device("cpu")
        assert isinstance(energy, PointEnergy)
        drawn = run.draw(SAMPLES)
        samples = drawn.points
        every = -energies(energy, self.values, cpu)
        logs = {
            "training rows": every[self.rows["training"]],
            "test rows": every[self.rows["test"]],
            "samples of the model": -energies(energy, samples, cpu),
        }
        odd = energy.surprise(self.values)
        pairs = self.pairs(samples)
        scores = figures.scores_figure(odd, torch.tensor(energy.reference), energy.judges)
        curves = figures.curves_figure(run.metrics, run.chosen)
        histogram = embed(
            figures.histogram_figure(logs), run.path / "log_density.png", "log-densities"
        )
        places = "" if self.dim == 1 else ", the rows below the diagonal and the samples above it"
        most = figures.COLUMNS
        more = f" Columns after the {most}th are not drawn." if self.dim > most else ""
        return f"""
<h2>On rows kept aside</h2>
{self.numbers(run)}
<p class="sub">{self.trust(energy)}</p>
<h2>Data and samples</h2>
{pairs and embed(pairs, run.path / "pairs.png", "columns")}
<p class="sub">Rows of the table and {SAMPLES} samples of the model{places}. Axes hold
99 % of the rows.{more} {escape(drawn.verdict.sentence)}</p>
<h2>Log-density</h2>
{histogram}
<p class="sub">Where training rows are more likely than test rows, the model has memorized them.
The first bin also holds all that is below it.</p>
<h2>Training</h2>
{embed(curves, run.path / "curves.png", "curves of training")}
<h2>Scores</h2>
{embed(scores, run.path / "scores.png", "outlier scores")}
<p class="sub">How odd the rows of the table are, beside {len(energy.reference)} {energy.judges}.
Of normal rows 5 % and 1 % are to the right of the lines.</p>
<h2>Most unusual rows</h2>
{self.unusual(energy, every, odd)}
<p class="sub">Rows count from 1, without a header. {self.explained}</p>"""

    def pairs(self, samples: Tensor) -> Any:
        r"""Returns the figure of the columns, or nothing where there is none to draw."""
        from .reports import table as figures

        return figures.pair_figure(self.values, samples, self.names)

    def trust(self, energy: "PointEnergy") -> str:
        r"""Returns what is known of the likelihoods, in words."""
        if not energy.normalized:
            return f"No likelihood is given: log Z is not known: {escape(energy.unknown)}."
        return "log Z is known to half a nat or better, by two runs of particles that agree."

    def numbers(self, run: Run) -> str:
        r"""Returns the table of the judgement of the chosen weights."""
        from .reports.page import rows

        line = run.judged
        show = lambda key, form: "not known" if line.get(key) is None else format(line[key], form)
        sizes = " / ".join(str(len(which)) for which in self.rows.values())
        nll = show("nll", ".3f")
        gain = "not known"
        if line.get("nll") is not None:
            nll = f"{nll} ± {show('nll_error', '.3f')}"
            if line["nll_gaussian"] is not None:
                gain = f"{line['nll_gaussian'] - line['nll']:.3f} ± {show('log_z_error', '.3f')}"
        found = [
            ("rows: training / validation / test", sizes),
            ("divergence of the validation rows, which chose", show("divergence", ".4g")),
            ("divergence of as many training rows", show("divergence_train", ".4g")),
            ("NLL of the test rows, nats", nll),
            ("the same of a Gaussian", show("nll_gaussian", ".3f")),
            ("gain over the Gaussian, nats per row", gain),
            ("NLL of the validation rows", show("nll_validation", ".3f")),
            ("NLL of as many training rows", show("nll_train", ".3f")),
            ("log Z, standardized", f"{show('log_z', '.3f')} ± {show('log_z_error', '.3f')}"),
            ("effective share of the weights, the least", show("ess", ".1%")),
            ("score matching loss, in standard deviations", show("sm_loss", ".2f")),
            ("gain of the correction on validation rows, nats", show("gain", "+.3f")),
            ("seconds of training", f"{run.metrics[-1]['seconds']:.1f}"),
        ]
        absent = {"score matching loss": "sm_loss", "gain of the correction": "gain"}
        return rows([
            (words, figure)
            for words, figure in found
            if all(key in line for start, key in absent.items() if words.startswith(start))
        ])

    def unusual(self, energy: "PointEnergy", logs: Tensor, odd: Tensor) -> str:
        r"""Returns the table of the rows with the highest surprise, by their number in the
        file."""
        from .reports.page import rows

        names, lines = self.names[:VALUES], []
        order = odd.argsort(descending=True)[:UNUSUAL]
        found = energy.reasons(self.values[order])
        scores = energy.share_below(odd[order]).tolist()
        why = reasons_of(found.parts, energy.columns)
        likely = likely_of(found, energy.columns, energy.categories)
        for i, score, reason, near in zip(order.tolist(), scores, why, likely, strict=True):
            (part,) = (name for name, which in self.rows.items() if i in which)
            values = (self.whole.cell(i, j) for j in range(len(names)))
            lines.append([
                str(i + 1), part, f"{logs[i]:.2f}", f"{score:.3f}", reason, near, *values
            ])  # fmt: skip
        head = ("row", "part", "log-density", "outlier score", "reasons", "nearest likely row")
        return rows(lines, (*head, *names))

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


def finite(line: Line) -> Line:
    r"""Returns figures as JSON has them, none where one is not finite."""
    return {k: v if math.isfinite(v) else None for k, v in line.items()}


def base_card(base: GaussianMixture) -> Line:
    r"""Returns a mixture in the types of JSON."""
    covariances = base.covariances
    if covariances[0].numel() > NUMBERS:
        covariances = covariances.diagonal(dim1=1, dim2=2)
    return {
        "weights": base.weights.tolist(),
        "means": base.means.tolist(),
        "covariances": covariances.tolist(),
    }


def base_of(card: Line) -> GaussianMixture:
    r"""Returns the mixture of which `base_card` returned this, in float32."""
    weights, means, covariances = (
        torch.tensor(card[key], dtype=torch.float32) for key in ("weights", "means", "covariances")
    )
    return GaussianMixture(
        means, covariances if covariances.ndim == 3 else torch.diag_embed(covariances), weights
    )


def energies(energy: EnergyLike, points: Tensor, device: torch.device) -> Tensor:
    r"""Returns the energies of points, :math:`(N, D) \to (N)`, in float64 on the CPU."""
    with torch.no_grad():
        parts = [value(energy, part.to(device)) for part in points.split(8192)]
    return torch.cat(parts).double().cpu()


class PointEnergy(Energy, abc.ABC):
    r"""Abstract energy of points in the units of a table, and what tells odd points."""

    columns: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...] = ()  # of each column, see `Table`
    mixed = False  # whether values may be missing, or categories
    normalized: bool  # whether E = -log p
    unknown: str  # why log Z is not known, in words
    reference: list[float]  # the surprise of rows kept aside, in ascending order
    judges: str  # those rows, in words
    card: Line  # what reading it needs

    @abc.abstractmethod
    def surprise(self, x: Tensor) -> Tensor:
        r"""Returns how odd points are, :math:`(N)`."""

    @abc.abstractmethod
    def reasons(self, x: Tensor) -> Reasons:
        r"""Returns what each column adds to how odd points are."""

    def outlier_score(self, x: Tensor) -> Tensor:
        r"""Returns the share of rows kept aside that are less odd than each point."""
        return self.share_below(self.surprise(x))

    def share_below(self, odd: Tensor) -> Tensor:
        r"""Returns the share of rows kept aside that have less surprise than each."""
        reference = torch.tensor(self.reference, dtype=torch.float64)
        return torch.searchsorted(reference, odd).double() / len(reference)

    def p_values(self, odd: Tensor) -> Tensor:
        r"""Returns the p-values of points by their surprise."""
        return p_values(torch.tensor(self.reference, dtype=torch.float64), odd)


class TableEnergy(PointEnergy):
    r"""Creates the energy of points in the units of a table, from that of standardized ones.

    It is normalized, :math:`E = -\log p`, where :math:`\log Z` is known.

    Arguments:
        energy: The energy of standardized points.
        card: What `TableTask.card` and `TableTask.complete` returned of it.
    """

    judges = "test rows"

    def __init__(self, energy: Energy, card: dict[str, Any]) -> None:
        super().__init__()
        self.energy, self.card, self.columns = energy, card, tuple(card["columns"])
        self.standardize = Standardize(tuple(card["mean"]), tuple(card["std"]))
        self.reference = [float(e) for e in card["energies"]]
        if len(self.columns) != len(self.standardize.mean) or not self.reference:
            raise ValueError(f"expected a mean of each column and energies, got {brief(card)}")
        self.completed = "unknown" in card  # log Z was looked for
        log_z = card.get("log_z") if self.completed else None
        self.log_z = 0.0 if log_z is None else float(log_z)
        self.normalized = log_z is not None
        self.unknown = (
            str(card["unknown"]) if self.completed else "training was stopped before its end"
        )

    @property
    def base(self) -> GaussianMixture:
        r"""The base of particles, in standardized units."""
        if "base" not in self.card:
            raise ValueError("expected a run with a base to draw from, got an older one: train it")
        return base_of(self.card["base"])

    def forward(self, x: Tensor) -> Tensor:
        shift = self.log_z + self.standardize.log_volume
        return value(self.energy, self.inner(x)) + shift

    def inner(self, x: Tensor) -> Tensor:
        r"""Returns standardized points, in the dtype of the energy."""
        dtype = next((p.dtype for p in self.energy.parameters()), torch.float32)
        return self.standardize(x, dtype)

    def surprise(self, x: Tensor) -> Tensor:
        r"""Returns the energies of standardized points."""
        return energies(self.energy, self.inner(x), x.device)

    def reasons(self, x: Tensor) -> Reasons:
        r"""Returns what each column adds to the energy above that of the nearest center of the
        rows."""
        means, parts, likely = self.base.means, [], []
        for z in self.inner(x).split(DRAWN):
            start = means.to(z)[torch.cdist(z, means.to(z)).argmin(1)]
            inside = lambda y: value(self.energy, y)
            parts.append(contributions(inside, z, start).detach())
            likely.append(self.standardize.inverse(start))
        return Reasons(torch.cat(parts).double(), torch.cat(likely))
