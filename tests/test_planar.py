import dataclasses
import functools
import math
import mpmath
import numpy as np
import pytest
import sklearn.datasets
import torch

from fokker.data import curves
from fokker.data.planar import PLANAR, Checkerboard, Circles, Pinwheel, Planar, Rings, toy
from fokker.derivatives import gradient

DEFAULT = [kind() for kind in PLANAR.values()]
SMOOTH = [law for law in DEFAULT if law.noise > 0] + [Checkerboard(noise=0.2)]
every = pytest.mark.parametrize("law", [*DEFAULT, SMOOTH[-1]], ids=str)
smooth = pytest.mark.parametrize("law", SMOOTH, ids=str)


def seed(number=0):
    return torch.Generator().manual_seed(number)


@functools.cache
def draws(law, n=5000):
    x = law.sample(n, seed(), dtype=torch.float64)
    return x, law.score(x)


def assert_mean(values, expected, errors=5):
    # five standard errors of the mean of independent draws
    se = values.std(0) / math.sqrt(len(values))
    assert ((values.mean(0) - expected).abs() <= errors * se + 1e-12).all()


def grid(half, n):
    axis = torch.linspace(-half, half, n, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis), float(axis[1] - axis[0]) ** 2


# --- the density ---


@smooth
def test_density_integrates_to_one(law):
    # trapezoidal rule at a step of one std: a Gaussian's error is 2 exp(-2 pi^2) = 5e-9
    half = law.box(7.0)
    x, area = grid(half, math.ceil(2 * half / (law.scale * law.noise)))
    assert float(law.log_density(x).exp().sum()) * area == pytest.approx(1, abs=1e-6)


@every
def test_samples_follow_the_density(law):
    # chi-square of 64 bins, whose masses are integrals of the density by Gauss-Legendre
    bins, n, half = 8, 20_000, law.box(6.0)
    u, w = map(torch.from_numpy, np.polynomial.legendre.leggauss(12))
    edges = torch.linspace(-half, half, bins + 1, dtype=torch.float64)
    axis = (edges[:-1, None] + half / bins * (1 + u)).flatten()
    p = law.log_density(torch.cartesian_prod(axis, axis)).exp().reshape(bins, 12, bins, 12)
    mass = torch.einsum("aibj,i,j->ab", p, w, w) * (half / bins) ** 2
    x = law.sample(n, seed(1), dtype=torch.float64)
    assert int((x.abs() > half).sum()) <= 1
    index = torch.bucketize(x, edges[1:-1])
    count = torch.bincount(index[:, 0] * bins + index[:, 1], minlength=bins**2).double()
    expected = n * mass.flatten()
    full = expected >= 5
    rest, missed = expected[~full].sum(), count[~full].sum()
    assert abs(missed - rest) <= 5 * rest.sqrt() + 1
    chi2 = ((count - expected)[full] ** 2 / expected[full]).sum()
    dof = int(full.sum()) - 1
    assert chi2 <= dof + 5 * math.sqrt(2 * dof)


@pytest.mark.parametrize("law", [Circles(), Rings(scale=1.0), Rings(noise=0.3)], ids=str)
def test_circles_are_bessel_functions(law):
    # a circle of radius R and noise s: exp(-(r - R)^2 / 2 s^2) i0e(r R / s^2) / 2 pi s^2
    s = law.scale * law.noise
    radii = [law.scale * (3 - (1.5, 0.75)[law.branches == 4] * k) for k in range(law.branches)]

    def density(r):
        parts = [
            torch.exp(-((r - R) ** 2) / 2 / s**2) * torch.special.i0e(r * R / s**2) for R in radii
        ]
        return sum(parts) / len(radii) / (2 * math.pi * s**2)

    x, _ = draws(law)
    torch.testing.assert_close(law.log_density(x).exp(), density(x.norm(dim=1)), rtol=1e-9, atol=0)

    # and the optimum is an integral over the radius alone
    r = torch.linspace(1e-9, law.box(8.0), 20_001, dtype=torch.float64, requires_grad=True)
    p = density(r)
    slope = torch.autograd.grad(p.sum(), r)[0]
    integral = torch.trapezoid(2 * math.pi * r * slope**2 / p, r).detach()
    assert law.optimum() == pytest.approx(-float(integral) / 2, rel=1e-6)


def test_eight_gaussians_are_a_mixture():
    law = toy("8gaussians")
    angle = torch.arange(8, dtype=torch.float64) * math.pi / 4
    mean = torch.stack((angle.cos(), angle.sin()), 1) / 1.414
    std = torch.full_like(mean, 0.5 / 1.414 / 4)
    parts = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    weights = torch.distributions.Categorical(torch.ones(8, dtype=torch.float64))
    mixture = torch.distributions.MixtureSameFamily(weights, parts)
    x, _ = draws(law)
    torch.testing.assert_close(law.log_density(x), mixture.log_prob(x))


def test_spirals_are_shifted_by_their_box():
    # the mean of one branch: t has density 2 t / 9 pi^2, and (-t cos t, t sin t) gets U(0, 1/2)
    centers, weights = (part[: len(part) // 2] for part in toy("2spirals", scale=3.0).nodes)
    mean = 2 * (weights[:, None] * centers).sum(0)
    exact = [0.25 + 4 / (3 * math.pi), 0.25 + 2 - 8 / (9 * math.pi**2)]
    torch.testing.assert_close(mean, torch.tensor(exact))


def test_checkerboard_is_uniform_on_its_squares():
    law = Checkerboard()
    x = torch.tensor([[-0.99, -0.99], [0.3, 0.2], [0.99, 0.99]], dtype=torch.float64)
    off = torch.tensor([[-0.99, 0.99], [0.3, -0.2], [2.0, 0.0]], dtype=torch.float64)
    # eight squares of side 1/2 have an area of 2
    torch.testing.assert_close(law.log_density(x).exp(), torch.full((3,), 0.5).double())
    assert torch.isneginf(law.log_density(off)).all()
    assert (law.score(x) == 0).all()
    assert (gradient(law.energy(), x)[1] == 0).all()
    with pytest.raises(ValueError, match=r"density is positive, got 3 .* such as .*-0.99"):
        law.score(torch.cat((x, off)))
    assert law.optimum() == -math.inf
    assert torch.isfinite(law.log_density(law.sample(10_000, seed(), dtype=torch.float64))).all()


def test_noise_softens_the_checkerboard():
    x, _ = draws(Checkerboard())
    x = x[(x / 0.5 - (x / 0.5).round()).abs().amin(1) > 0.2]  # further from all edges than 10 stds
    soft = Checkerboard(noise=0.04)
    torch.testing.assert_close(soft.log_density(x).exp(), torch.full_like(x[:, 0], 0.5))
    # near an edge the density is Phi(y / s) / 2, so E|score|^2 is an edge length of 16 units
    # (32 sides of 1/2) times integral phi^2 / Phi / 2 s; corners are what is left
    u = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    edge = torch.trapezoid((-(u**2) - torch.special.log_ndtr(u)).exp() / (2 * math.pi), u)
    assert soft.optimum() == pytest.approx(-0.5 * 16 * float(edge) / 2 / 0.01, rel=0.05)


@pytest.mark.parametrize("width", [0.02, 1.0, 40.0])
def test_kernel_in_the_tails(width):
    # against 60 digits; z and width in stds
    z = torch.tensor([-300.0, -41.0, -20.0, -3.0, -0.1, 0.0, 0.5, 7.0, 19.0, 60.0]).double()
    with mpmath.workdps(60):
        mass = [
            mpmath.ncdf(width / 2 - abs(y)) - mpmath.ncdf(-width / 2 - abs(y)) for y in z.tolist()
        ]
        rise = [mpmath.npdf(y + width / 2) - mpmath.npdf(y - width / 2) for y in z.tolist()]
        log = torch.tensor([float(mpmath.log(m / width)) for m in mass]).double()
        slope = torch.tensor([float(r / m) for r, m in zip(rise, mass, strict=True)]).double()
    exact = (log, slope)
    torch.testing.assert_close(curves.kernel(z, width, 1.0), exact, rtol=1e-10, atol=1e-12)
    single = tuple(part.float() for part in exact)
    torch.testing.assert_close(curves.kernel(z.float(), width, 1.0), single, rtol=1e-4, atol=1e-4)


# --- the score ---


@smooth
def test_score_is_the_gradient_of_the_log_density(law):
    x = torch.cat((draws(law)[0][:100], 3 * torch.randn(50, 2, generator=seed()).double()))
    e, g = gradient(law.energy(), x)
    assert torch.equal(e, -law.log_density(x))
    torch.testing.assert_close(law.score(x), -g, rtol=1e-9, atol=1e-9)


@smooth
def test_laplacian_is_the_divergence_of_the_score(law):
    # by central differences; nodes are among the points, as there the offsets are zero
    x = torch.cat((draws(law)[0][:20], law.nodes[0][:3]))
    h = 1e-3 * law.scale * law.noise
    step = h * torch.eye(2, dtype=torch.float64)
    divergence = sum((law.score(x + v) - law.score(x - v)) @ v for v in step) / (2 * h**2)
    jet = law.energy().jet(x)
    scale = 1 / (law.scale * law.noise) ** 2  # of a second derivative
    torch.testing.assert_close(jet.laplacian, -divergence, rtol=1e-5, atol=1e-5 * scale)


@smooth
def test_stein_identities(law):
    # E score = 0 and E score x^T = -I
    x, score = draws(law)
    assert_mean(score, torch.zeros(2))
    assert_mean(torch.einsum("bi,bj->bij", score, x), -torch.eye(2))


@smooth
@pytest.mark.parametrize("radius", [10.0, 100.0])
def test_far_tails_point_to_the_nearest_node(law, radius):
    angle = torch.linspace(0, 6, 16, dtype=torch.float64)
    x = radius * torch.stack((angle.cos(), angle.sin()), 1)
    score, s = law.score(x), law.scale * law.noise
    # with c the mean of the nodes seen from x, the score is (c - x) / s^2, moved by the box if any
    seen = x + s**2 * score
    assert (seen.abs() <= law.box(0.0) + 1e-9 * radius).all()
    nearest = (torch.cdist(x, law.nodes[0]) - law.scale * law.width).amin(1)
    assert (torch.cdist(x, seen[None])[0].diagonal() <= nearest + 3 * law.scale).all()
    assert (law.log_density(x) <= -(nearest**2) / 2 / s**2 - 2 * math.log(2 * s)).all()
    # float32 keeps its precision relative to these large numbers
    error = (law.score(x.float()) - score).norm(dim=1)
    assert (error <= 1e-3 * score.norm(dim=1)).all()
    log = law.log_density(x)
    torch.testing.assert_close(law.log_density(x.float()).double(), log, rtol=1e-5, atol=0)


def test_far_tails_of_circles_are_bessel_functions():
    # the outer circle is all one sees from afar: (log p)' = ((i1e / i0e)(r R / s^2) R - r) / s^2
    law, R, s = Circles(), 0.75, 0.06
    angle = torch.linspace(0, 6, 50)
    for r in (2.0, 10.0):
        x = r * torch.stack((angle.cos(), angle.sin()), 1)
        y = torch.tensor(r * R / s**2)
        ratio = torch.special.i1e(y) / torch.special.i0e(y)
        score = (law.score(x) * x).sum(1) / r
        torch.testing.assert_close(score, ((ratio * R - r) / s**2).expand(50), rtol=1e-5, atol=0)


# --- the optimum ---


@smooth
def test_optimum_is_half_the_fisher_information(law):
    _, score = draws(law)
    assert_mean(-score.square().sum(1) / 2, law.optimum())


@smooth
def test_optimum_is_the_score_matching_loss_of_the_truth(law):
    x = draws(law)[0][:400]
    jet = law.energy().jet(x)
    assert_mean(jet.gradient.square().sum(1) / 2 - jet.laplacian, law.optimum())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("swissroll", -203),
        ("circles", -133),
        ("rings", -1245),
        ("moons", -209),
        ("8gaussians", -122.6),
        ("2spirals", -660),
    ],
)
def test_optimum_agrees_with_the_prototype(name, value):
    # those values are Monte-Carlo means with errors of about 1 %
    assert toy(name).optimum() == pytest.approx(value, rel=0.02)


@smooth
def test_optimum_scales(law):
    other = dataclasses.replace(law, scale=1.7)
    assert other.optimum() == pytest.approx(law.optimum() * (law.scale / 1.7) ** 2, rel=1e-8)


def test_optimum_of_one_wide_blur():
    # noise far above the curve: a Gaussian of variance s^2 + var(c), up to order (c / s)^4
    law = toy("moons", scale=1.0, noise=100.0)
    mean = (law.nodes[1][:, None] * law.nodes[0]).sum(0)
    variance = 100.0**2 + (law.nodes[1][:, None] * (law.nodes[0] - mean) ** 2).sum(0)
    assert law.optimum() == pytest.approx(-float((1 / variance).sum()) / 2, rel=1e-6)


# --- against the original generators ---


def original(name, n, rng):
    if name == "swissroll":
        x = sklearn.datasets.make_swiss_roll(n, noise=1.0, random_state=rng)[0][:, [0, 2]] / 5
    elif name == "circles":
        x = sklearn.datasets.make_circles(n, factor=0.5, noise=0.08, random_state=rng)[0] * 3
    elif name == "moons":
        x = sklearn.datasets.make_moons(n, noise=0.1, random_state=rng)[0] * 2 + [-1, -0.2]
    elif name == "rings":
        angle, radius = rng.uniform(0, 2 * np.pi, n), rng.choice([3, 2.25, 1.5, 0.75], n)
        x = radius[:, None] * np.stack((np.cos(angle), np.sin(angle)), 1)
        x = x + rng.normal(scale=0.08, size=x.shape)
    elif name == "8gaussians":
        root = math.sqrt(0.5)
        centers = [(1, 0), (0, 1), (root, root), (root, -root)]
        centers = 4 * np.array([(s * a, s * b) for a, b in centers for s in (1, -1)])
        x = (centers[rng.randint(8, size=n)] + 0.5 * rng.randn(n, 2)) / 1.414
    elif name == "2spirals":
        t = np.sqrt(rng.rand(n)) * 540 * (2 * np.pi) / 360
        x = np.stack((-np.cos(t) * t, np.sin(t) * t), 1) + 0.5 * rng.rand(n, 2)
        x = x * rng.choice([-1, 1], (n, 1)) / 3 + 0.1 * rng.randn(n, 2)
    elif name == "checkerboard":
        x1 = rng.rand(n) * 4 - 2
        x = 2 * np.stack((x1, rng.rand(n) - 2 * rng.randint(0, 2, n) + np.floor(x1) % 2), 1)
    elif name == "pinwheel":
        f = rng.randn(n, 2) * [0.3, 0.1] + [1, 0]
        angle = 2 * np.pi / 5 * rng.randint(5, size=n) + 0.25 * np.exp(f[:, 0])
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        x = 2 * np.einsum("ti,ijt->tj", f, rotation)
    return torch.from_numpy(x) / 4


@pytest.mark.parametrize("name", [name for name in PLANAR if name != "pinwheel"])
def test_moments_and_likelihood_of_the_original(name):
    law = toy(name)
    theirs, (ours, _) = original(name, 5000, np.random.RandomState(0)), draws(law)

    def features(x):
        second = torch.einsum("bi,bj->bij", x, x).flatten(1)
        return torch.cat((x, second, law.log_density(x)[:, None]), 1)

    # two independent samples of one size; even spacing only lowers the variance of theirs
    assert_mean(features(theirs), features(ours).mean(0), errors=5 * math.sqrt(2))
    if law.noise > 0:  # the sharpest test: the mean score tells a shift of a hundredth of a std
        score = law.score(theirs)
        assert_mean(score, torch.zeros(2))
        assert_mean(torch.einsum("bi,bj->bij", score, theirs), -torch.eye(2))


def test_pinwheel_is_near_the_original():
    # the noise differs in its direction, so that the laws are close and not equal
    law, theirs = Pinwheel(), original("pinwheel", 5000, np.random.RandomState(0))
    ours = draws(law)[0]
    assert_mean(theirs, ours.mean(0), errors=5 * math.sqrt(2))
    # ours has noise along the arm too, of variance 0.05^2
    square = ours.square().sum(1).mean() - 0.05**2
    assert_mean(theirs.square().sum(1), square, errors=5 * math.sqrt(2))
    # no turn of theirs, and no reflection, is likelier under ours
    best = law.log_density(theirs).mean()
    for turn in (-0.05, 0.05):
        c, s = math.cos(turn), math.sin(turn)
        assert law.log_density(theirs @ torch.tensor([[c, s], [-s, c]])).mean() < best
    assert law.log_density(theirs * torch.tensor([1.0, -1.0])).mean() < best - 1


# --- sampling and settings ---


@every
def test_sample_is_set_by_its_generator(law):
    a, b, c = (law.sample(50, seed(number)) for number in (3, 3, 4))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert a.shape == (50, 2) and a.dtype == torch.get_default_dtype()
    assert law.sample(1, dtype=torch.float32).dtype == torch.float32
    assert law.sample(1, device="meta").device.type == "meta"


@every
def test_box_holds_the_mass(law):
    x = law.sample(20_000, seed())
    assert (x.abs() <= law.box()).all()
    assert x.abs().max() >= 0.5 * law.box()


def test_chunks_do_not_change_the_result(monkeypatch):
    law = toy("2spirals")
    x = draws(law)[0][:301]
    log, score = law.log_density(x), law.score(x)
    monkeypatch.setattr(curves, "PAIRS", 10 * len(law.nodes[1]))
    assert len(law.chunks(x)) == 31
    torch.testing.assert_close(law.log_density(x), log)
    torch.testing.assert_close(law.score(x), score)


@pytest.mark.parametrize("place", ["inference", "transform"])
def test_a_law_outlives_the_place_it_was_made_in(place):
    x, made = draws(toy("moons"))[0][:5], []

    def loss(x):
        made.append(toy("moons", noise=0.123))
        return made[0].log_density(x).sum()

    if place == "inference":
        with torch.inference_mode():
            loss(x)
    else:
        torch.func.grad(loss)(x)
    x = x.clone().requires_grad_()
    g = torch.autograd.grad(made[0].log_density(x).sum(), x)[0]
    torch.testing.assert_close(g, toy("moons", noise=0.123).score(x.detach()))


def test_laws_are_values():
    assert toy("moons") == toy("moons", scale=0.25) != toy("moons", scale=1.0)
    assert len({toy("moons"), toy("moons"), toy("pinwheel")}) == 2
    assert repr(toy("moons", noise=0.3)) == "Moons(scale=0.25, noise=0.3)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy("moons").noise = 1.0


def test_every_set_is_registered():
    assert set(PLANAR.values()) == set(Planar.__subclasses__())


def test_unknown_name_lists_the_names_and_the_nearest():
    with pytest.raises(ValueError, match=r"swissroll.*pinwheel, got '2spiral'.*'2spirals'"):
        toy("2spiral")


@pytest.mark.parametrize("name", PLANAR)
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=f"scale to be a finite number > 0, got {value}"):
        toy(name, scale=value)
    with pytest.raises(ValueError, match=f"noise to be a finite number >=? 0, got {value}"):
        toy(name, noise=value)


@pytest.mark.parametrize("name", [name for name in PLANAR if name != "checkerboard"])
def test_no_noise_is_for_the_checkerboard_only(name):
    with pytest.raises(ValueError, match="noise to be a finite number > 0, got 0"):
        toy(name, noise=0.0)


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_bad_number_of_points(n):
    with pytest.raises(ValueError, match=f"n to be an integer >= 1, got {n}"):
        toy("moons").sample(n)


@pytest.mark.parametrize("x", [torch.zeros(2), torch.zeros(4, 3), torch.zeros(4, 2).long()])
def test_bad_points(x):
    for method in (toy("moons").log_density, toy("moons").score):
        with pytest.raises(ValueError, match=r"shape \(B, 2\), got shape"):
            method(x)


@pytest.mark.parametrize("name", PLANAR)
def test_density_on_a_grid(name):
    law = toy(name)
    axis = torch.linspace(-1, 1, 21, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    exact = torch.exp(law.log_density(points)).reshape(21, 21)
    torch.testing.assert_close(law.density(axis), exact, rtol=1e-9, atol=1e-12)
