r"""Every formula of a diffusion follows from its coefficients."""

import math
import pytest
import torch

from fokker.analytic import Gaussian
from fokker.diffusions import (
    DIFFUSIONS,
    EDM,
    VE,
    VP,
    Custom,
    Diffusion,
    Driftless,
    Langevin,
    Linear,
)
from torch import tensor

LINEAR = [VE(), VE(2.0), VE(g=lambda t: 1 + torch.sin(t)), EDM(), VP(), VP(0.5, 2.0)]
names = [str(i) + type(d).__name__ for i, d in enumerate(LINEAR)]


def slope(f, t):
    return torch.func.grad(f)(t)


@pytest.mark.parametrize("diffusion", LINEAR, ids=names)
@pytest.mark.parametrize("t", [0.1, 0.7])
def test_kernel_solves_its_equations(diffusion, t):
    # d alpha / dt = a alpha, d sigma^2 / dt = 2 a sigma^2 + g^2, d/dt int g^2 = g^2
    s, t = tensor(0.05), tensor(t)
    alpha = lambda t: diffusion.transition(s, t)[0]
    sigma2 = lambda t: diffusion.transition(s, t)[1] ** 2
    a, g2 = diffusion.rate(t), diffusion.coefficient(t) ** 2
    assert torch.allclose(slope(alpha, t), a * alpha(t))
    assert torch.allclose(slope(sigma2, t), 2 * a * sigma2(t) + g2)
    assert torch.allclose(slope(lambda t: diffusion.variance(s, t), t), g2)


@pytest.mark.parametrize("diffusion", LINEAR, ids=names)
def test_transitions_compose(diffusion):
    s, u, t = tensor(0.1), tensor(0.4), tensor(0.9)
    (a1, s1), (a2, s2), (a, sigma) = (
        diffusion.transition(*pair) for pair in ((s, u), (u, t), (s, t))
    )
    assert torch.allclose(a1 * a2, a)
    assert torch.allclose(a2**2 * s1**2 + s2**2, sigma**2)


@pytest.mark.parametrize("diffusion", LINEAR, ids=names)
def test_increments_are_first_order_in_the_coefficients(diffusion):
    x, s, h = torch.randn(5, 3), tensor(0.3), 1e-6
    inc = diffusion.increment(x, s, s + h)
    assert torch.allclose(inc.drift, h * diffusion.drift(x, s), rtol=1e-4, atol=1e-15)
    assert torch.allclose(inc.divergence, h * diffusion.divergence(x, s), rtol=1e-4, atol=1e-15)
    assert torch.allclose(inc.variance, h * diffusion.coefficient(s) ** 2, rtol=1e-4)


def test_variance_is_the_integral_of_the_square():
    # the paper writes int g; at g = 2 they differ
    assert float(VE(2.0).transition(tensor(0.0), tensor(3.0))[1]) == pytest.approx(math.sqrt(12))
    # and sigma(t) = t of EDM means g^2 = 2t, not g = t, which would give sigma^2 = t^3 / 3
    wrong = VE(g=lambda t: t)
    assert float(wrong.variance(tensor(0.0), tensor(2.0))) == pytest.approx(8 / 3)
    assert float(EDM().variance(tensor(0.0), tensor(2.0))) == pytest.approx(4.0)
    same = VE(g=lambda t: torch.sqrt(2 * t))
    assert float(same.variance(tensor(0.5), tensor(2.0))) == pytest.approx(
        float(EDM().variance(tensor(0.5), tensor(2.0)))
    )


def test_short_steps_keep_their_digits():
    # 1 - alpha^2 and t^2 - s^2 cancel if written naively, in float32
    s, t = torch.tensor(0.0, dtype=torch.float32), torch.tensor(1e-6, dtype=torch.float32)
    exact = 1 - math.exp(-(1e-6 * 0.1 + 0.5e-12 * 19.9))
    assert float(VP().transition(s, t)[1] ** 2) == pytest.approx(exact, rel=1e-4)
    growth = VP().increment(torch.ones(1, 1), s, t).divergence
    assert float(growth) == pytest.approx(-(1e-6 * 0.1 + 0.5e-12 * 19.9) / 2, rel=1e-5)
    s = torch.tensor(80.0, dtype=torch.float32)
    t = s + torch.tensor(2.0**-10, dtype=torch.float32)
    exact = (80 + 2.0**-10) ** 2 - 80**2
    assert float(EDM().variance(s, t)) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("diffusion", LINEAR, ids=names)
def test_one_time_a_point(diffusion):
    x, t = torch.randn(4, 2, 3), tensor([0.1, 0.2, 0.3, 0.4])
    mean, std = diffusion.kernel(x, torch.zeros(4), t)
    inc = diffusion.increment(x, torch.zeros(4), t)
    for i in range(4):
        m, sd = diffusion.kernel(x[i : i + 1], tensor(0.0), t[i])
        assert torch.allclose(mean[i], m[0]) and torch.allclose(std[i], sd)
        one = diffusion.increment(x[i : i + 1], tensor(0.0), t[i])
        assert torch.allclose(inc.drift[i], one.drift[0])
        assert torch.allclose(inc.variance[i], one.variance)


def test_langevin():
    p, x, t = Gaussian(tensor([0.5, -1.0]), 2.0), torch.randn(5, 2), tensor(0.0)
    diffusion = Langevin(p)
    assert torch.allclose(diffusion.drift(x, t), p.score(x) / 2)  # plus half the score
    assert torch.allclose(diffusion.divergence(x, t), torch.full((5,), -2 / 4.0))
    assert torch.equal(diffusion.coefficient(t), torch.ones(()))


def test_custom_divergence_by_autograd():
    F = lambda x, t: torch.stack([x[:, 0] ** 2 * x[:, 1], torch.sin(x[:, 1]) + t], dim=1)
    diffusion = Custom(F, torch.ones_like)
    x = torch.randn(6, 2)
    exact = 2 * x[:, 0] * x[:, 1] + torch.cos(x[:, 1])
    assert torch.allclose(diffusion.divergence(x, tensor(0.3)), exact)
    given = Custom(F, torch.ones_like, div=lambda x, t: exact)
    assert torch.equal(given.divergence(x, tensor(0.3)), exact)


def test_custom_kernel_is_one_euler_step():
    diffusion = Custom(lambda x, t: -x, lambda t: 2 + t)
    x, s, t = torch.randn(6, 2), tensor(0.5), tensor(0.6)
    mean, std = diffusion.kernel(x, s, t)
    assert torch.allclose(mean, 0.9 * x)
    # the variance is the integral of (2 + t)^2
    assert float(std) == pytest.approx(math.sqrt((2.6**3 - 2.5**3) / 3))


def test_custom_takes_a_number_and_starts_from_rest():
    assert torch.equal(Custom(lambda x, t: -x, 2.0).coefficient(tensor(0.3)), tensor(2.0))
    # G(0) = 0, as in EDM: the first step has noise all the same
    like_edm = Custom(lambda x, t: 0 * x, lambda t: torch.sqrt(2 * t))
    x, s, t = torch.randn(4, 2), tensor(0.0), tensor(0.3)
    assert torch.allclose(like_edm.kernel(x, s, t)[1], EDM().kernel(x, s, t)[1])
    assert torch.allclose(like_edm.increment(x, s, t).variance, t**2)


BACK = [VP(), VE(), VE(torch.ones_like), EDM(), Langevin(Gaussian(torch.zeros(2), 1.0))]
BACK += [Custom(lambda x, t: -x, 1.0)]


@pytest.mark.parametrize("diffusion", BACK, ids=[str(i) for i in range(len(BACK))])
@pytest.mark.parametrize(
    ("s", "t", "message"),
    [
        (tensor(0.5), tensor(0.25), "expected times 0 <= s <= t, got s=0.5, t=0.25"),
        (tensor([0.0, 0.3]), tensor(0.2), "got s=0.3, t=0.2"),
        (tensor(0.1), tensor([0.2, 0.0]), "got s=0.1, t=0"),
        (tensor(-0.5), tensor(0.2), "got s=-0.5, t=0.2"),
        (tensor(math.nan), tensor(0.2), "got s=nan, t=0.2"),
    ],
)
def test_no_kernel_runs_backwards(diffusion, s, t, message):
    with pytest.raises(ValueError, match=message):
        diffusion.kernel(torch.zeros(2, 2), s, t)
    if isinstance(diffusion, Linear):
        with pytest.raises(ValueError, match=message):
            diffusion.transition(s, t)


@pytest.mark.parametrize("diffusion", BACK[:4], ids=[str(i) for i in range(4)])
def test_times_are_read_only_where_that_is_free(diffusion):
    x, s, t = torch.randn(3, 2), torch.zeros(3), tensor([0.1, 0.2, 0.3])
    mean, std = diffusion.kernel(x, s, t)
    # mapped over the times, compiled in one graph, and on a device: no value can be asked for
    mapped = torch.vmap(lambda x, s, t: diffusion.kernel(x[None], s, t))(x, s, t)
    assert torch.allclose(mapped[0][:, 0], mean) and torch.allclose(mapped[1], std)
    compiled = torch.compile(diffusion.kernel, fullgraph=True, backend="eager")(x, s, t)
    assert torch.allclose(compiled[0], mean) and torch.allclose(compiled[1], std)
    away = diffusion.kernel(*(v.to("meta") for v in (x, s, t)))
    assert away[0].shape == (3, 2) and away[1].shape == (3,)
    # where the check is left out, a step backwards is NaN
    assert torch.vmap(lambda s, t: diffusion.transition(s, t)[1])(t, s).isnan().all()


def test_frozen_values_compare():
    assert VE() == VE(1.0) != VE(2.0)
    assert hash(VP()) == hash(VP(0.1, 20.0))
    with pytest.raises(AttributeError):
        VP().beta_min = 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VE(0.0), "g to be a finite number > 0, got 0.0"),
        (lambda: VE(-1), "g to be a finite number > 0, got -1"),
        (lambda: VP(beta_min=0), "beta_min to be a finite number > 0, got 0"),
        (lambda: VP(beta_max=math.inf), "beta_max to be a finite number > 0, got inf"),
        (
            lambda: Custom(lambda x, t: x[:, :1], torch.ones_like).drift(
                torch.zeros(4, 2), tensor(0.0)
            ),
            r"the shape of x, \(4, 2\), got \(4, 1\)",
        ),
        (
            lambda: Custom(lambda x, t: x, 1.0, lambda x, t: x).divergence(
                torch.zeros(4, 2), tensor(0.0)
            ),
            r"divergence to have shape \(\) or \(4,\), got \(4, 2\)",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_every_diffusion_is_registered():
    concrete = {*Diffusion.__subclasses__(), *Linear.__subclasses__(), *Driftless.__subclasses__()}
    assert set(DIFFUSIONS.values()) == concrete - {Linear, Driftless}
