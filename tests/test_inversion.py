r"""Exact samples in the plane: against mixtures, against the model's own density, and refusals."""

import numpy as np
import pytest
import torch

from conftest import three_modes
from fokker import load
from fokker.app.cli import main
from fokker.grid import Grid
from fokker.samplers import invert, invert_anywhere


def chi_square(x, energy, grid, cells=24):
    r"""The statistic of points against the masses of coarse cells, as a z-score."""
    e = grid.evaluate(energy, x.dtype).double()
    p = (torch.exp(-e - grid.log_normalizer(e)) * grid.cell).reshape(grid.size, grid.size)
    fine = grid.size // cells
    mass = p.reshape(cells, fine, cells, fine).sum((1, 3)).flatten()
    which = ((x - grid.low) / (fine * grid.spacing)).long().clamp(0, cells - 1)
    count = torch.bincount(which[:, 0] * cells + which[:, 1], minlength=cells**2).double()
    enough = len(x) * mass > 5  # the others together are one cell
    pool = lambda v: torch.cat([v[enough], v[~enough].sum()[None]])
    seen, expected = pool(count), pool(len(x) * mass)
    freedom = len(seen) - 1
    return float(((seen - expected).square() / expected).sum() - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [60, 240])
def test_samples_of_a_mixture(generator, size):
    r"""Moments and weights are right on a coarse grid too: rejection removes its spacing."""
    truth, n = three_modes(), 40_000
    drawn = invert(truth, Grid(-8, 8, size), n, generator, torch.float64)
    x = drawn.samples
    mean = (truth.weights[:, None] * truth.means).sum(0)
    assert x.shape == (n, 2) and 0.01 < drawn.acceptance <= 1
    assert ((x.mean(0) - mean).abs() < 5 * x.std(0) / n**0.5).all()
    e = truth(x)
    entropy = truth(truth.sample(10 * n, generator))
    assert (e.mean() - entropy.mean()).abs() < 5 * (e.std() + entropy.std()) / n**0.5
    nearest = torch.cdist(x, truth.means).argmin(1)
    share = torch.bincount(nearest, minlength=3) / n
    assert ((share - truth.weights).abs() < 0.005).all()  # modes overlap by less than this
    assert abs(chi_square(x, truth, Grid(-8, 8, 480))) < 5


def test_a_square_is_found(generator):
    far = three_modes()
    wide = lambda x: far(x / 6)
    drawn = invert_anywhere(wide, 2000, generator, torch.float64)
    assert drawn.grid.high > 8 and abs(chi_square(drawn.samples, wide, Grid(-40, 40, 480))) < 5


@pytest.mark.parametrize(
    ("energy", "said"),
    [
        (lambda x: -x.square().sum(1) / 2, "does not confine"),  # not normalizable
        (lambda x: 0 * x.sum(1), "does not confine"),  # flat
        (lambda x: x.sum(1) / 0, "finite energy"),
    ],
)
def test_refusals(energy, said):
    with pytest.raises(ValueError, match=said):
        invert(energy, Grid(-3, 3, 60), 10)


def test_sample_draws_the_learned_density(tmp_path, capsys):
    r"""What the command writes has the law of the model itself, by a grid."""
    torch.set_default_dtype(torch.float32)  # as for a user
    run, out = str(tmp_path / "run"), str(tmp_path / "x.npy")
    small = "--data 2spirals --steps 60 --batch 256 --width 64 --rate 3e-3 --evaluate 60"
    main(["train", "toy", *small.split(), "--out", run])
    main(["sample", run, "-n", "20000", "-o", out])
    x, energy, grid = torch.from_numpy(np.load(out)), load(run).energy, Grid(-3, 3, 600)
    e = grid.evaluate(energy, torch.float32).double()
    p = torch.exp(-e - grid.log_normalizer(e)) * grid.cell
    far = float(p[grid.points().norm(dim=1) > 1].sum())
    seen = float((x.norm(dim=1) > 1).double().mean())
    assert abs(seen - far) < 5 * (far * (1 - far) / len(x)) ** 0.5 + 1e-6
    drawn = energy(x).double()
    assert abs(float(drawn.mean() - (p * e).sum())) < 5 * float(drawn.std()) / len(x) ** 0.5
    assert abs(chi_square(x, energy, grid)) < 5
