r"""Variance and bias of the parameter gradient of each form, relative to the limit.

A form of `LevelDCD` is judged twice.

**On two modes**, an energy with a closed form at every level in D dimensions, plus eleven features
whose weights are zero at the truth. With :math:`F = \mathbb{E} \, \nabla \phi_i \cdot \nabla
\phi_j` the Fisher information of the features, the noise of a gradient g is
:math:`\mathrm{tr}(F^{-1} \mathrm{Var} \, g)`, and the stationary point is, to first order,
:math:`-F^{-1} \mathbb{E} g`, whose relative Fisher gap is :math:`\mathbb{E} g^\top F^{-1}
\mathbb{E} g \, / \, \mathbb{E} \|\nabla \log p\|^2`.

**On a trained U-Net**, the shipped energy of faces, with real images: :math:`V = \mathrm{tr} \,
\mathrm{Var} \, g` over images, levels and noise, by pairs of draws, :math:`V = \mathbb{E} \|g -
g'\|^2 / 2`. Every form has the same images, the same levels whose density it learns, and the same
first noise, in the precision stated; the limit in float32 is the reference. The bias is the norm
of the mean difference to its gradient, without that of the noise, in units of the noise of a
training step of 256 images, so 1 is a bias as large as the noise of one step.
"""

__all__ = ["FORMS", "Featured", "Judged", "run"]

import math
import torch

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fokker.compute.step import Step
from fokker.data.images import read_images
from fokker.data.picture import to_float
from fokker.data.sources import name_of
from fokker.energies import Energy
from fokker.objectives import Bridge, Central, Form, LevelDCD, Limit, LogNormal, levels
from fokker.runs import shipped
from pathlib import Path
from torch import Tensor
from typing import Any

from . import results
from .units import begin

FORMS: tuple[Form, ...] = (
    Limit(),
    Central(),
    Bridge(0.02),
    Bridge(0.02, shift=0.0),
    Bridge(0.1),
    levels.Path(0.02),
    levels.Hutchinson(0.2),
)
DIMENSIONS = (2, 64, 256, 1024, 3072)
STEP = 256  # images of a training step, the unit of the bias


class Featured(Energy):
    r"""Two modes of anisotropic Gaussians, plus features with the weights θ: zero at the truth.

    A quarter of the coordinates is wide, variance 0.25, and the others narrow, 0.01. Of the eleven
    features four are functions of the norm, which tells the shells of noise apart."""

    def __init__(self, d: int, tau: float) -> None:
        super().__init__()
        self.mean = torch.zeros(d)
        self.mean[0] = 1.0
        self.data = torch.where(torch.arange(d) % 4 == 0, 0.25, 0.01)
        self.variance = self.data + tau
        self.theta = torch.nn.Parameter(torch.zeros(11))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        sign = 2.0 * torch.randint(0, 2, (n, 1), generator=generator) - 1
        noise = torch.randn(n, len(self.mean), generator=generator)
        return sign * self.mean + self.data.sqrt() * noise

    def truth(self, x: Tensor) -> Tensor:
        quadratic = (x.square() / self.variance).sum(1) / 2
        return quadratic - torch.log(torch.cosh((x * self.mean / self.variance).sum(1)))

    def features(self, x: Tensor) -> Tensor:
        d, first = x.shape[1], x[:, 0]
        u = x / self.variance.sqrt()
        norm = u.square().mean(1)
        columns = [
            d * norm / 2, d * (norm - 1).square() / 2, d * torch.tanh(2 * (norm - 1)),
            x.square().sum(1) / 2, first, first.square(), torch.tanh(2 * first),
            torch.cos(2 * x).sum(1), torch.cos(u).sum(1), x.sum(1) / math.sqrt(d),
            torch.logsumexp(x, 1),
        ]  # fmt: skip
        return torch.stack(columns, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.truth(x) + self.features(x) @ self.theta


class Judged:
    r"""Gradients at the truth of a form on two modes in d dimensions, in units of the Fisher
    information of the features."""

    level = 0.5

    def __init__(self, d: int) -> None:
        self.d, energy = d, Featured(d, self.level**2)
        generator = torch.Generator().manual_seed(9)
        clean = energy.sample(400, generator)
        x = (clean + self.level * torch.randn(clean.shape, generator=generator)).requires_grad_()
        slopes = [
            torch.autograd.grad(f.sum(), x, retain_graph=True)[0] for f in energy.features(x).T
        ]
        jacobian = torch.stack(slopes)
        self.inverse = torch.linalg.pinv(torch.einsum("ind,jnd->ij", jacobian, jacobian) / len(x))
        (score,) = torch.autograd.grad(energy.truth(x).sum(), x)
        self.information = float(score.square().sum(1).mean())

    def __call__(self, form: Form, n: int, draws: int = 40) -> tuple[float, float, float]:
        r"""Returns the noise of the gradient, and the relative Fisher gap of the stationary point,
        to first order, with its standard error."""
        objective = LevelDCD(self.level, form, weight="one")
        assert objective.learned is not None
        objective = replace(objective, level=self.level**2 / objective.learned)
        energy, generator = Featured(self.d, self.level**2), torch.Generator().manual_seed(0)
        grads = []
        for _ in range(draws):
            loss = objective(energy, energy.sample(n, generator), None, generator).loss
            grads.append(torch.autograd.grad(loss, energy.theta)[0])
        grads = torch.stack(grads)
        spread, mean = self.inverse @ torch.cov(grads.T), grads.mean(0)
        noise = float(spread.trace())
        gap = float(mean @ self.inverse @ mean) - noise / draws  # without that of the noise
        error = math.sqrt(2 * float((spread @ spread).trace())) / draws
        return noise, gap / self.information, error / self.information


def two_modes(
    dimensions: Sequence[int], draws: int, progress: Callable[[str], None]
) -> list[results.Row]:
    r"""Returns the rows of the forms on two modes."""
    rows = []
    units = begin("reproduce variance, two modes", len(dimensions) * (len(FORMS) + 1))
    for d in dimensions:
        judged, n = Judged(d), max(24, min(2000, 60_000 // d))
        floor = 0.0
        for form in (*FORMS, Bridge(0.1, draws=4)):
            noise, gap, error = judged(form, n, draws)
            floor = floor or noise
            row = {"net": "two modes", "dimension": d, **described(form), "precision": "float64"}
            row |= {"variance": round(noise / floor, 4), "bias": round(max(gap, 0.0), 7)}
            rows.append(row | {"bias_error": round(error, 7), "batch": n, "draws": draws})
            units.done()
            progress(f"D = {d}, {form}: variance {noise / floor:.3g}, gap {gap:.2g} ± {error:.1g}")
    return rows


def described(form: Form) -> results.Row:
    r"""Returns what a row says of a form."""
    (name,) = (name for name, kind in levels.FORMS.items() if type(form) is kind)
    options = (
        {"draws of the form": form.draws, "shift": form.shift} if type(form) is Bridge else {}
    )
    return {"form": name, "step": form.step, **options}


@dataclass
class Moments:
    r"""What is summed over the draws of a form."""

    previous: Tensor | None = None
    spreads: tuple[float, ...] = ()  # ‖g − g'‖² / 2 of each pair
    total: Tensor | float = 0.0  # of the difference to the limit
    squares: float = 0.0  # of its norm

    def add(self, g: Tensor, limit: Tensor) -> None:
        r"""Adds a draw of the gradient, and that of the limit by the same images and levels."""
        difference = g - limit
        self.total = self.total + difference
        self.squares += float(difference.square().sum())
        if self.previous is None:
            self.previous = g
        else:
            self.spreads += (float((g - self.previous).square().sum()) / 2,)
            self.previous = None

    def bias(self, draws: int) -> tuple[float, float]:
        r"""Returns the square of the norm of the mean difference without that of its noise, and
        that of its noise."""
        assert isinstance(self.total, Tensor)
        mean = float(self.total.square().sum()) / draws**2
        noise = (self.squares / draws - mean) / (draws - 1)
        return mean - noise, noise


def jackknife(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    r"""Returns the ratio of two sums over the same draws, and its standard error."""
    a, b, n = torch.tensor(above), torch.tensor(below), len(above)
    ratio = a.sum() / b.sum()
    without = (a.sum() - a) / (b.sum() - b)
    error = ((n - 1) / n * (without - without.mean()).square().sum()).sqrt()
    return float(ratio), float(error)


def objective_of(form: Form, law: LogNormal = LogNormal()) -> LevelDCD:
    r"""Returns the objective of the preset, with the law of its levels moved so that the level it
    learns has the law of the limit."""
    moved = replace(law, mean=law.mean - math.log(1 + form.reach * form.step) / 2)
    return LevelDCD(moved, form, conditional=True, weight="edm")


def unet(
    data: str, data_dir: str | None, draws: int, batch: int, progress: Callable[[str], None]
) -> list[results.Row]:
    r"""Returns the rows of the forms on the shipped U-Net energy of faces."""
    images = read_images(data, "test", data_dir)
    energy: Any = shipped.read("celeba32").energy.requires_grad_(True)
    cases = [(form, kind) for kind in ("float32", "bfloat16") for form in FORMS]
    steps = {case: Step(energy.cast(case[1]), objective_of(case[0])) for case in cases}
    found = {case: Moments() for case in cases}
    flat = lambda out: torch.cat([g.flatten() for g in out.gradients.values()])
    units = begin("reproduce variance, a U-Net", draws)
    for k in range(draws):
        x = to_float(images.pixels[torch.arange(k * batch, (k + 1) * batch) % len(images)])
        limit, within = None, units.within(len(steps))
        for i, (case, step) in enumerate(steps.items()):
            within(i)
            g = flat(step(x, None, torch.Generator().manual_seed(k)))
            limit = g if limit is None else limit  # the first case
            found[case].add(g, limit)
        units.done()
        progress(f"draw {k + 1} of {draws}")
    floor = found[FORMS[0], "float32"].spreads
    unit = math.sqrt(sum(floor) / len(floor) * batch / STEP)
    rows = []
    for (form, kind), measured in found.items():
        ratio, error = jackknife(measured.spreads, floor)
        square, noise = measured.bias(draws)
        row = {"net": "shipped celeba32", "dimension": math.prod(images.shape), **described(form)}
        row |= {"precision": kind, "variance": round(ratio, 4), "variance_error": round(error, 4)}
        row |= {"bias": round(math.sqrt(max(square, 0.0)) / unit, 4)}
        row |= {"bias_error": round(math.sqrt(noise) / unit, 4), "batch": batch, "draws": draws}
        rows.append({**row, "data": name_of(data)})
        progress(f"{form}, {kind}: variance {ratio:.3g} ± {error:.2g}")
    return rows


def run(
    out: Path,
    data: str = "celeba32",
    data_dir: str | None = None,
    draws: int = 32,
    batch: int = 8,
    dimensions: Sequence[int] = DIMENSIONS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Measures both and writes the rows.

    Arguments:
        out: The file.
        data: The set of images of 32×32.
        data_dir: The folder that holds the named sets.
        draws: The number of gradients of each form, even.
        batch: The number of images of each.
        dimensions: The dimensions of the two modes.
        progress: Called with a line for each thing done.
    """
    if draws < 4 or draws % 2:
        raise ValueError(f"expected draws to be an even number, 4 or more, got {draws}")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        rows = two_modes(dimensions, 100, progress)
    finally:
        torch.set_default_dtype(default)
    rows += unet(data, data_dir, draws, batch, progress)
    command = f"fokker reproduce variance --data {name_of(data)} --draws {draws} --batch {batch}"
    results.save(out, rows, command)
    return rows
