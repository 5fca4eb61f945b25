r"""Particles and normalizers against closed forms, and energies that are refused."""

import math
import numpy as np
import pytest
import torch

from conftest import three_modes
from fokker import load
from fokker.analytic import Gaussian, GaussianMixture, fit_mixture
from fokker.app.cli import main
from fokker.derivatives import gradient
from fokker.energies import Function, Mixture, Quadratic, Restricted
from fokker.grid import Grid
from fokker.samplers import (
    Particles,
    Unreliable,
    as_mixture,
    bracket,
    confining,
    draw,
    draw_particles,
    normalize,
    widened,
)
from fokker.samplers.particles import Path, Rung
from fokker.samplers.weights import combine, effective_share, resample
from studies.sampling.samples import BAD, energy_distance
from studies.sampling.targets import target, targets


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def correlated(d, seed=0):
    a = torch.randn(d, d, generator=seeded(seed))
    return a @ a.T / d + 0.2 * torch.eye(d)


# --- parts ---


def test_resampling_draws_in_proportion(generator):
    log_w = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 1.0]]).log()
    counts = torch.zeros(2, 4)
    for _ in range(2000):
        which = resample(log_w, generator)
        for g in range(2):
            counts[g] += torch.bincount(which[g], minlength=4)
    share = counts / counts.sum(1, keepdim=True)
    expected = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.5, 0.5]])
    assert ((share - expected).abs() < 5 * 0.5 / math.sqrt(8000)).all()
    # systematic: never further than one from its expectation
    one = torch.bincount(resample(log_w, generator)[1], minlength=4)
    assert one.tolist() == [0, 0, 2, 2]


def test_effective_share_and_the_mean_of_islands():
    assert effective_share(torch.zeros(1, 5)).item() == pytest.approx(1.0)
    alone = torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]])
    assert effective_share(alone).item() == pytest.approx(0.25)
    log_z = torch.tensor([1.0, 3.0], dtype=torch.float64).log()
    mean, error = combine(log_z)
    assert mean == pytest.approx(math.log(2.0)) and error == pytest.approx(0.5)


def test_a_widened_base_keeps_its_mean_and_has_far_mass(generator):
    base = three_modes()
    wide = widened(base, 3.0, 0.1)
    mean = lambda p: (p.weights[:, None] * p.means).sum(0)
    torch.testing.assert_close(mean(wide), mean(base))
    x = base.sample(200_000, generator)
    torch.testing.assert_close(wide.covariances[-1], 9 * x.T.cov(), rtol=0.05, atol=0.05)
    assert float(wide.weights[-1]) == pytest.approx(0.1)


# --- compositions of Gaussians ---


def compositions():
    a, b = three_modes(), Gaussian(torch.tensor([0.5, -1.0]), correlated(2))
    return {
        "product": a + b,
        "product of mixtures": a + a,
        "power": b / 0.3,
        "mixture": Mixture([a, b, Quadratic(0.7, torch.tensor([1.0, 1.0]))], [0.2, 3.0, 1.0]),
        "product with a quadratic": a + Quadratic(1.5),
        "all": (Mixture([a, b / 2.0]) + Quadratic(2.0)) + b,
    }


@pytest.mark.parametrize("name", compositions())
def test_a_composition_of_gaussians_is_a_mixture(name):
    r"""Equal to the energy at every point, and normalized by the constant of a grid."""
    energy, x = compositions()[name], 3 * torch.randn(50, 2, generator=seeded())
    found = as_mixture(energy, x)
    assert found is not None
    torch.testing.assert_close(found.mixture(x) - found.log_z, energy(x))
    grid = Grid(-14, 14, 500)
    assert found.log_z == pytest.approx(
        float(grid.log_normalizer(grid.evaluate(energy))), abs=1e-6
    )


def test_what_is_no_mixture_is_none():
    x = torch.zeros(1, 2)
    for energy in (
        three_modes() / 2.0,  # a power of a mixture
        Function(lambda x: x.square().sum(1)),
        three_modes() + Function(lambda x: 0 * x[:, 0]),
        Mixture([three_modes(), Function(lambda x: x.square().sum(1))]),
    ):
        assert as_mixture(energy, x) is None


def test_the_confining_quadratic_is_a_base():
    base = confining(Function(lambda x: x.sin().sum(1)) + Quadratic(2.0), 5)
    assert base is not None and base.means.shape == (1, 5)
    torch.testing.assert_close(base.covariances[0], 4 * torch.eye(5))
    assert confining(Quadratic(2.0), 5) is None


# --- gradients in closed form ---


@pytest.mark.parametrize("beta", [0.3, 1.0])
@pytest.mark.parametrize("name", ["mixture-unequal", "funnel", "gmm-40"])
def test_the_gradient_of_a_rung_is_that_of_autograd(name, beta, generator):
    known = target(name, 10, torch.zeros(()))
    d = known.dimension
    base = GaussianMixture(torch.randn(3, d, generator=generator), correlated(d))
    factor = torch.linalg.cholesky(correlated(d, 1))
    rung = Rung(beta, torch.randn(d, generator=generator), factor, 0.5)
    u, path = torch.randn(40, d, generator=generator), Path(base, known.energy, rung)

    def plain(u):
        x = rung.center + u @ factor.T
        first = -torch.logsumexp(base.parts(x)[0], 0)
        return (1 - beta) * first + beta * known.energy(x)

    g, e = torch.func.grad(lambda u: (plain(u).sum(), plain(u)), has_aux=True)(u)
    torch.testing.assert_close(path(u), e)
    torch.testing.assert_close(path.slope(u), (e, g))


def test_a_gradient_is_that_of_the_forward_it_belongs_to():
    class Steeper(GaussianMixture):
        def forward(self, x):
            return 2 * super().forward(x)

    base, x = three_modes(), torch.randn(20, 2, generator=seeded())
    steeper = Steeper(base.means, base.covariances, base.weights)
    e, g = gradient(base, x)
    torch.testing.assert_close(gradient(steeper, x), (2 * e, 2 * g))
    torch.testing.assert_close(base.score(x), -g)


def test_a_mixture_draws_each_component_by_its_own_covariance(generator):
    means = torch.tensor([[-20.0, 0.0], [20.0, 0.0], [0.0, 50.0]])
    covariances = torch.stack([correlated(2, k) for k in range(3)])
    p = GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2]))
    x = p.sample(60_000, generator)
    nearest = torch.cdist(x, means).argmin(1)
    for k in range(3):
        part = x[nearest == k]
        n, c = len(part), covariances[k]
        assert abs(n / len(x) - float(p.weights[k])) < 5 * 0.5 / math.sqrt(len(x))
        assert ((part.mean(0) - means[k]).abs() < 5 * torch.sqrt(c.diagonal() / n)).all()
        spread = torch.sqrt((c.square() + torch.outer(c.diagonal(), c.diagonal())) / n)
        assert ((part.T.cov() - c).abs() < 5 * spread).all()


# --- the constant ---


@pytest.mark.parametrize("dim", [2, 10, 30])
@pytest.mark.parametrize("kind", ["equal", "unequal", "far"])
def test_log_z_of_mixtures_is_within_its_error(kind, dim):
    r"""From a single Gaussian, which knows nothing of the modes; importance sampling is off by
    nats there."""
    torch.set_default_dtype(torch.float32)
    known, generator = target(f"mixture-{kind}", dim), seeded(dim)
    base = fit_mixture(known.sample(1000, generator), 1, generator=generator)
    found = Particles(base, moves=4).run(known.energy, 2048, generator)
    assert abs(found.log_z - known.log_z) < 5 * found.error + 0.01
    assert found.error < 0.15 and found.acceptance > 0.3


def test_a_bracket_covers_the_truth_in_60_dimensions():
    torch.set_default_dtype(torch.float32)
    known, generator = target("mixture-unequal", 60), seeded(1)
    base = fit_mixture(known.sample(1000, generator), 1, generator=generator)
    found = bracket(
        Particles(base, moves=4), known.energy, known.sample(1024, generator), generator
    )
    assert found.covers(known.log_z) and found.high - found.low < 0.6


@pytest.mark.parametrize("dim", [30, 60])
def test_log_z_of_wide_tables_of_normals(dim):
    r"""Exact standard Gaussians, where plain importance sampling was off by up to 15 nats."""
    torch.set_default_dtype(torch.float32)
    truth = dim / 2 * math.log(2 * math.pi)
    base = fit_mixture(torch.randn(200, dim, generator=seeded()), 1, generator=seeded())
    found = normalize(Function(lambda x: x.square().sum(1) / 2), base, seeded(1))
    assert found.known and abs(found.log_z - truth) < 5 * found.error
    assert found.error < 0.1


def test_one_and_two_dimensions_go_by_a_grid():
    line = normalize(
        Function(lambda x: x.abs().sum(1)), GaussianMixture(torch.zeros(1, 1), 1.0), seeded()
    )
    assert line.log_z == pytest.approx(math.log(2), abs=1e-4) and "grid" in line.said
    plane = normalize(Function(three_modes()), GaussianMixture(torch.zeros(1, 2), 1.0), seeded())
    assert plane.log_z == pytest.approx(0.0, abs=1e-6) and plane.known


def test_a_restricted_energy_is_sampled_inside_its_box(generator):
    r"""A Gaussian cut at half of its mass on each axis: log Z and the mean are closed form."""
    half = Restricted(Quadratic(), 0.0, 20.0)
    base = GaussianMixture(torch.zeros(1, 3), 1.0)
    drawn = draw_particles(half, 2000, base, generator)
    assert (drawn.points >= 0).all() and not drawn.verdict.faults
    mean, ess = math.sqrt(2 / math.pi), drawn.verdict.figures["ess"]
    spread = math.sqrt((1 - mean**2) / ess)
    assert ((drawn.points.mean(0) - mean).abs() < 5 * spread).all()
    log_z = drawn.verdict.figures["log_z"]
    truth = 1.5 * math.log(2 * math.pi) - 3 * math.log(2)
    assert abs(log_z - truth) < 5 * drawn.verdict.figures["log_z_error"]


# --- samples ---


@pytest.mark.parametrize("kind", ["equal", "unequal"])
def test_particles_have_the_law_of_a_mixture_in_ten_dimensions(kind):
    torch.set_default_dtype(torch.float32)
    known, generator = target(f"mixture-{kind}", 10), seeded(3)
    base = fit_mixture(known.sample(1000, generator), 1, generator=generator)
    drawn = draw_particles(known.energy, 1500, base, generator)
    assert not drawn.verdict.faults
    _, p = energy_distance(drawn.points, known.sample(1500, generator), seeded(4))
    assert p > 0.01


def test_the_energy_distance_sees_a_small_shift():
    torch.set_default_dtype(torch.float32)
    x, y = torch.randn(700, 2, generator=seeded()), torch.randn(700, 2, generator=seeded(1))
    assert energy_distance(x, y, seeded(2))[1] > 0.02
    assert energy_distance(x, y + 0.25, seeded(2))[1] < 0.001


@pytest.mark.parametrize("name", ["funnel", "gmm-40", "many-well-32"])
def test_exact_samples_of_targets_have_their_energies(name):
    r"""The mean energy of exact samples against that of particles, and no NaN."""
    torch.set_default_dtype(torch.float32)
    assert (name, target(name, 0).dimension) in targets()
    known = target(name, 0)
    x = known.sample(4000, seeded())
    assert x.shape == (4000, known.dimension) and x.dtype == torch.float32
    e = known.energy(x).double()
    base = fit_mixture(known.sample(1000, seeded(1)), 4, generator=seeded(1))
    found = Particles(base, moves=4).run(known.energy, 2048, seeded(2))
    error = float(found.energies.std() / math.sqrt(len(found.energies)))
    spread = math.hypot(error, float(e.std()) / math.sqrt(len(e)))
    assert abs(float(found.energies.mean() - e.mean())) < 5 * spread


def test_the_study_of_log_z_shares_out_its_seeds(tmp_path, monkeypatch, capsys):
    r"""Two processes with a file each make the rows that one makes."""
    from studies import results
    from studies.sampling import normalizer

    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(normalizer, "particles_of", lambda name, dim: 256)
    some = ["--dimensions", "3", "--targets", "mixture-equal"]
    for name, seeds in {"whole": (0, 3), "a": (0, 1), "b": (1, 2)}.items():
        first, count = (str(k) for k in seeds)
        out = str(tmp_path / f"{name}.json")
        arguments = [*some, "--first-seed", first, "--seeds", count, "--out", out]
        main(["reproduce", "normalizer", *arguments])
    parts = [str(tmp_path / f"{name}.json") for name in ("both", "a", "b")]
    main(["merge", *parts, "--study", "normalizer"])
    rows = lambda name: [
        {k: v for k, v in r.items() if k not in {"seconds", "time"}}
        for r in results.load(tmp_path / f"{name}.json")["rows"]
    ]
    assert rows("both") == rows("whole") and len(rows("whole")) == 9
    assert all({"commit", "hardware", "torch"} < r.keys() for r in rows("a"))
    for row in rows("whole"):
        if row["method"] == "bracket":
            assert row["low"] <= row["truth"] <= row["high"]


def test_draw_takes_the_exact_way_where_there_is_one(generator):
    mixture = draw(three_modes() + Quadratic(3.0), 100, dim=2, generator=generator)
    assert "mixture with 3 components" in mixture.verdict.said
    plane = draw(Function(three_modes()), 100, dim=2, generator=generator)
    assert "inversion" in plane.verdict.said and plane.points.shape == (100, 2)
    confined = Function(lambda x: x.sin().sum(1)) + Quadratic(1.0)
    solid = draw(confined, 100, dim=3, generator=generator)
    assert "particles" in solid.verdict.said and not solid.verdict.faults
    with pytest.raises(ValueError, match="expected a base, a mixture of Gaussians"):
        draw(Function(lambda x: x.square().sum(1)), 10, dim=3)
    with pytest.raises(ValueError, match="expected a base or a dimension"):
        draw(Function(lambda x: x.square().sum(1)), 10)


LONG = ("diverged network", "rough", "falls to one side")  # hundreds of rungs


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in BAD],
)
def test_an_energy_that_cannot_be_sampled_is_refused(name):
    torch.set_default_dtype(torch.float32)
    energy, dim = BAD[name]
    base = None if dim == 2 else GaussianMixture(torch.zeros(1, dim), 1.0)
    with pytest.raises((Unreliable, FloatingPointError), match="expected"):
        draw(energy, 1000, base, dim, seeded()).verdict.trust()


# --- the command ---


@pytest.fixture(scope="module")
def confined(tmp_path_factory):
    r"""A run on a table of three columns, trained for a few steps."""
    folder = tmp_path_factory.mktemp("particles")
    x = torch.randn(400, 3, generator=seeded()) @ torch.tensor([
        [2.0, 1.0, 0.0],
        [0.0, 1.0, 0.5],
        [0.0, 0.0, 3.0],
    ])
    np.save(folder / "x.npy", x.numpy() + np.array([3e7, 0.0, -5.0]))
    torch.set_default_dtype(torch.float32)
    small = "--preset network --steps 40 --batch 64 --width 32 --evaluate 20 --rate 3e-3"
    args = ["train", "table", "--data", str(folder / "x.npy"), *small.split()]
    main([*args, "--out", str(folder / "run")])
    torch.set_default_dtype(torch.float64)
    return folder


def test_sample_draws_the_density_of_a_table(confined, capsys):
    r"""Points of the command, against exact expectations by self-normalized importance sampling
    from a Gaussian around the rows."""
    torch.set_default_dtype(torch.float32)
    out = confined / "s.npy"
    main(["sample", str(confined / "run"), "-n", "2000", "-o", str(out)])
    said = capsys.readouterr().out
    assert "R-hat" in said and "effective size" in said and "halves" in said
    energy, drawn = load(confined / "run").energy, torch.from_numpy(np.load(out))
    assert drawn.dtype == torch.float64  # a column offset by 3e7 keeps its digits
    z = energy.standardize(drawn, torch.float64)
    proposal = GaussianMixture(torch.zeros(1, 3).double(), 2.0)
    y = proposal.sample(200_000, seeded(5))
    with torch.no_grad():
        log_w = proposal(y) - energy.energy(y.float()).double()
    w = torch.softmax(log_w, 0)
    assert 1 / float(w.square().sum()) > 5000
    mean = (w[:, None] * y).sum(0)
    error = torch.sqrt(z.var(0) / 500 + (w.square()[:, None] * (y - mean).square()).sum(0))
    assert ((z.mean(0) - mean).abs() < 5 * error).all()
    second = (w[:, None] * y.square()).sum(0)
    assert ((z.square().mean(0) / second - 1).abs() < 0.2).all()
    log_z = float(torch.logsumexp(log_w, 0)) - math.log(len(y))
    card = energy.card
    assert abs(card["log_z"] - log_z) < 5 * card["log_z_error"] + 0.02


def test_what_is_not_to_be_trusted_has_an_exit_code_and_force(confined, capsys, monkeypatch):
    from fokker.samplers import verdict

    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(verdict, "RHAT", 0.5)
    out = confined / "refused.csv"
    with pytest.raises(SystemExit) as stop:
        main(["sample", str(confined / "run"), "-n", "20", "-o", str(out)])
    error = capsys.readouterr().err
    assert stop.value.code == 4 and not out.exists()
    assert "expected R-hat of the islands <= 0.5" in error and len(error.splitlines()) == 1
    with pytest.raises(Unreliable, match="R-hat"):
        load(confined / "run").sample(20)
    assert load(confined / "run").sample(20, force=True).shape == (20, 3)
    main(["sample", str(confined / "run"), "-n", "20", "-o", str(out), "--force"])
    assert "Not to be trusted: expected R-hat" in capsys.readouterr().out and out.exists()


def test_a_likelihood_without_support_is_not_given(confined, capsys, monkeypatch):
    from fokker.samplers import verdict

    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(verdict, "RHAT", 0.5)
    small = "--preset network --steps 4 --batch 16 --width 8 --evaluate 2"
    args = ["train", "table", "--data", str(confined / "x.npy"), *small.split()]
    main([*args, "--out", str(confined / "unknown")])
    said = " ".join(capsys.readouterr().out.split())
    assert "NLL not known" in said and "R-hat" in said
    run = load(confined / "unknown")
    assert run.judged["nll"] is None and not run.energy.normalized
    main(["score", str(run.path), str(confined / "x.npy"), "-o", str(confined / "o.csv")])
    assert "log Z is not known" in capsys.readouterr().out
    header = (confined / "o.csv").read_text().splitlines()[0]
    assert header == "log_density_up_to_a_constant,outlier,surprise,p_value"
    page = (run.path / "report.html").read_text()
    assert "No likelihood is given" in page and "not known" in page
