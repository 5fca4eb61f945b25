r"""Composed energies of every level, drawn by three samplers, against the exact composed law.

**In the plane** a ring and a bar, mixtures of Gaussians with exact energies of every level, are
multiplied, divided, mixed and tempered. The exact law is that of a fine grid. A sampler is judged
by the KL divergence of the histogram of its samples on 30×30 cells from the exact masses of the
cells; `floor` is that of as many exact samples, which have the noise of the histogram alone.

**In 64 dimensions** two mixtures with some modes in common are multiplied, mixed and tempered. The
weights of the modes of the exact law are known in closed form; a sampler is judged by the total
variation between them and the shares of its samples, and by the ratio of its mean squared distance
from the nearest mean to the exact one.

Samplers: `naive` follows the flow of the sum of the scores, as a score model would; `corrected` is
the same flow with ten MALA transitions at each level, accepted by the energy; `particles` is
`fokker.samplers.LevelParticles`.
"""

__all__ = ["PARTS", "SAMPLERS", "draw", "figure", "plane", "run", "space"]

import math
import time
import torch

from collections.abc import Callable, Iterator, Sequence
from fokker.analytic import GaussianMixture
from fokker.diffusions import EDM
from fokker.energies import Composed, Energy, Mixture
from fokker.grid import Grid
from fokker.samplers import MALA, Corrector, Heun, LevelParticles, as_mixture, karras
from pathlib import Path
from studies import results
from studies.units import begin
from torch import Tensor

LAST, HALF, CELLS, FINE = 0.02, 4.5, 30, 600
D, STD, RADIUS = 64, 0.7, 5.0
SAMPLERS = ("naive", "corrected", "particles")
PARTS = ("plane", "space")
STEPS, TRANSITIONS = 40, 10
FEWER = 8  # times fewer samples of the corrected flow, each of which has noise of its own


class Rounds(Energy):
    r"""Creates the exact energy of every level of Gaussians of one variance, by one product of
    matrices.

    Arguments:
        means: The means, with shape :math:`(K, D)`.
        variance: The variance of all.
        weights: The weights; equal by default.
    """

    def __init__(self, means: Tensor, variance: float, weights: Tensor | None = None) -> None:
        super().__init__()
        self.mixture = GaussianMixture(means, variance, weights)
        self.variance = variance

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        m, v = self.mixture.means, self.variance + sigma**2
        square = x.square().sum(1)[:, None] - 2 * x @ m.T + m.square().sum(1)
        logs = self.mixture.weights.log() - square / (2 * v)
        return x.shape[1] / 2 * torch.log(2 * math.pi * v) - torch.logsumexp(logs, 1)

    def at(self, t: Tensor | float) -> GaussianMixture:  # pyright: ignore
        return self.mixture.diffuse(EDM(), t)


def plane() -> dict[str, Composed]:
    r"""Returns the compositions in the plane, of a ring and a bar."""
    angles = torch.arange(24, dtype=torch.float64) * 2 * math.pi / 24
    circle = 2 * torch.stack([angles.cos(), angles.sin()], 1)
    line = torch.stack([torch.linspace(-3.2, 3.2, 17, dtype=torch.float64), torch.zeros(17)], 1)
    ring = Rounds(circle, 0.2**2)
    bar = Rounds(line.double(), 0.3**2)
    return {
        "ring · bar": ring + bar,
        "ring / bar^0.4": ring - 0.4 * bar,
        "ring or bar": Mixture([ring, bar], [0.5, 0.5]),
        "ring, T = 1/2": ring / 0.5,
    }


def space() -> dict[str, tuple[Composed, Tensor, Tensor, float]]:
    r"""Returns compositions in 64 dimensions: the energy, the means of its modes, their weights
    and the variance of a mode."""
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(6, D, generator=generator, dtype=torch.float64)
    m = RADIUS * m / m.norm(dim=1, keepdim=True)
    first, second = [0, 1, 2, 3], [0, 1, 4, 5]
    a = Rounds(m[first].float(), STD**2, torch.tensor([0.4, 0.1, 0.3, 0.2]))
    b = Rounds(m[second].float(), STD**2, torch.tensor([0.1, 0.5, 0.2, 0.2]))
    product, union = a + b, Mixture([a, b], [0.3, 0.7])
    found = {}
    variance = STD**2 + LAST**2
    for name, energy, wide in (("product", product, variance / 2), ("mixture", union, variance)):
        exact = as_mixture(energy.at(LAST), torch.zeros(1, D))
        assert exact is not None
        found[name] = (
            energy,
            m,
            shares(exact.mixture.sample(200_000, generator).double(), m),
            wide,
        )
    # far modes of one width: their weights to the power 1 / T
    hot = a.mixture.weights.double() ** (1 / 0.5)
    weights = torch.zeros(6, dtype=torch.float64)
    weights[first] = hot / hot.sum()
    found["T = 1/2"] = (a / 0.5, m, weights, variance * 0.5)
    return found


def shares(x: Tensor, means: Tensor) -> Tensor:
    r"""Returns the share of points nearest to each mean, float64."""
    near = torch.cat([torch.cdist(p, means).argmin(1) for p in x.split(2**16)])
    return torch.bincount(near, minlength=len(means)).double() / len(x)


def draw(
    sampler: str, energy: Composed, n: int, dim: int, seed: int
) -> tuple[Tensor, int, float | None]:
    r"""Returns n samples, the evaluations of the energy for each, and log Z if it is known."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if dim == 2 else torch.float32
    if sampler == "particles":
        # the noise of the weights of modes falls with the number of levels
        chosen = LevelParticles(80.0, LAST, share=0.9 if dim == 2 else 0.95)
        found = chosen.run(energy, n, (dim,), generator, dtype=dtype)
        return found.samples, found.evaluations, found.log_z
    flow = Heun(karras(STEPS, LAST, 80.0))
    if sampler == "corrected":
        corrector = Corrector(MALA(3 * dim ** (-1 / 3) / 2, warmup=30), TRANSITIONS)
        flow = Heun(flow.levels, corrector=corrector)
        flow = flow.tune(energy, (dim,), generator, dtype=dtype)
    drawn = flow.run(energy, n, (dim,), generator, batch=4096, dtype=dtype)
    return drawn.samples, drawn.evaluations, None


def divergence(x: Tensor, mass: Tensor) -> float:
    r"""Returns KL from the histogram of points to the masses of cells; points outside count as
    one more cell, of the mass that is left."""
    inside = (x.abs() < HALF).all(1)
    cell = ((x[inside] + HALF) / (2 * HALF) * CELLS).long().clamp(0, CELLS - 1)
    counts = torch.bincount(cell[:, 0] * CELLS + cell[:, 1], minlength=CELLS**2).double()
    p = torch.cat([counts, (~inside).sum()[None].double()]) / len(x)
    q = torch.cat([mass.flatten(), (1 - mass.sum()).clamp_min(1e-12)[None]]).clamp_min(1e-12)
    return float((p[p > 0] * torch.log(p[p > 0] / q[p > 0])).sum())


def masses(energy: Composed) -> tuple[Tensor, float]:
    r"""Returns the exact masses of the cells, (CELLS, CELLS), and log Z, by a fine grid."""
    grid = Grid(-HALF, HALF, FINE)
    e = grid.evaluate(energy.at(LAST))
    log_z = float(grid.log_normalizer(e))
    p = torch.exp(-e.double() - log_z) * grid.cell
    k = FINE // CELLS
    return p.reshape(CELLS, k, CELLS, k).sum((1, 3)), log_z


def exact(mass: Tensor, n: int, seed: int) -> Tensor:
    r"""Returns the centers of the cells of n exact samples."""
    generator = torch.Generator().manual_seed(seed)
    rest = (1 - mass.sum()).clamp_min(0)[None]
    cells = torch.multinomial(torch.cat([mass.flatten(), rest]), n, True, generator=generator)
    place = torch.stack([cells // CELLS, cells % CELLS], 1).double() + 0.5
    return place * (2 * HALF / CELLS) - HALF


def planar_rows(n: int, seed: int, kept: dict[tuple[str, str], Tensor]) -> Iterator[results.Row]:
    r"""Yields the rows of the plane, and keeps samples for the picture."""
    for name, energy in plane().items():
        mass, log_z = masses(energy)
        for sampler in SAMPLERS:
            clock = time.perf_counter()
            count = n // FEWER if sampler == "corrected" else n
            x, evaluations, found = draw(sampler, energy, count, 2, seed)
            row = {"dimension": 2, "composition": name, "sampler": sampler, "n": count}
            row |= {"seed": seed, "kl": divergence(x, mass)}
            row |= {"floor": divergence(exact(mass, count, seed), mass)}
            row |= {"evaluations": evaluations, "seconds": time.perf_counter() - clock}
            row |= {"log_z_error": None if found is None else found - log_z}
            kept[name, sampler] = x
            yield row


def spatial_rows(n: int, seed: int) -> Iterator[results.Row]:
    r"""Yields the rows of 64 dimensions, by energies in float32."""
    for name, (energy, means, weights, variance) in space().items():
        for sampler in SAMPLERS:
            clock = time.perf_counter()
            count = n // FEWER if sampler == "corrected" else n
            x, evaluations, _ = draw(sampler, energy, count, D, seed)
            total = float((shares(x.to(means), means) - weights).abs().sum() / 2)
            near = means[torch.cdist(x.to(means), means).argmin(1)]
            row = {"dimension": D, "composition": name, "sampler": sampler, "n": count}
            row |= {"seed": seed, "tv": total}
            row |= {"width": float((x - near).square().mean() / variance)}
            row |= {"evaluations": evaluations, "seconds": time.perf_counter() - clock}
            yield row


def figure(kept: dict, path: Path) -> None:
    r"""Draws the exact densities of the plane above the samples of each sampler."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names, grid = list(plane()), Grid(-HALF, HALF, 240)
    rows = ("exact", *reversed(SAMPLERS))
    fig, axes = plt.subplots(len(rows), len(names), figsize=(8, 8.2))
    for column, name in enumerate(names):
        e = grid.evaluate(plane()[name].at(LAST))
        p = torch.exp(-e - grid.log_normalizer(e)).reshape(240, 240)
        top = float(p.max())
        for line, label in enumerate(rows):
            ax = axes[line, column]
            if label == "exact":
                shown = p
            else:
                x = kept[name, label]
                shown = torch.histogramdd(
                    x, [120, 120], range=[-HALF, HALF, -HALF, HALF], density=True
                ).hist
            # the picture has y upwards
            ax.imshow(shown.T, origin="lower", cmap="magma", vmin=0, vmax=0.8 * top)
            ax.set(xticks=[], yticks=[])
            if line == 0:
                ax.set_title(name, fontsize=11)
            if column == 0:
                ax.set_ylabel(
                    {
                        "naive": "sum of scores",
                        "corrected": "flow, corrected",
                    }.get(label, label),
                    fontsize=11,
                )
    fig.tight_layout(pad=0.4)
    fig.savefig(path, dpi=90)
    plt.close(fig)


def compress(path: Path) -> None:
    r"""Reduces a PNG to a palette."""
    from PIL import Image

    image = Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def run(
    out: Path,
    picture: Path | None,
    n: int,
    command: str,
    seed: int = 0,
    parts: Sequence[str] = PARTS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Runs the parts of the study, writes each row when it is there, in place of the same one
    from before, and draws the picture of the plane."""
    rows = results.load(out)["rows"] if out.exists() else []
    kept: dict[tuple[str, str], Tensor] = {}
    made = results.provenance()
    key = lambda r: (r["dimension"], r["composition"], r["sampler"])
    each = {"plane": lambda: planar_rows(n, seed, kept), "space": lambda: spatial_rows(n, seed)}
    energies = {"plane": plane, "space": space}
    count = sum(len(energies[part]()) for part in parts)
    units = begin("reproduce composition", count * len(SAMPLERS))
    for part in parts:
        for row in each[part]():
            rows = [r for r in rows if key(r) != key(row)] + [{**row, **made}]
            rows.sort(key=lambda r: r["dimension"])
            config = {"last": LAST, "steps": STEPS, "transitions": TRANSITIONS}
            results.save(out, rows, command, config)
            found = {k: round(v, 4) for k, v in row.items() if k in {"kl", "floor", "tv", "width"}}
            units.done()
            progress(f"{row['composition']}, {row['sampler']}: {found}")
    if picture is not None and kept:
        figure(kept, picture)
        compress(picture)
    return rows
