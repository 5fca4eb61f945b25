r"""Energies of whole pictures: tiles have no seams, shifts count each pixel once; colour turns."""

import pytest
import torch

from fokker.energies import Quadratic
from fokker.images.color import MATRIX, SCALES, from_parts, to_parts, variances
from fokker.images.whole import Shifted, Tiled, extend, padded, whole
from fokker.networks import UNetEnergy


def local_energy(fold=1, blocks=1, multipliers=(1, 1)):
    torch.manual_seed(3)
    net = UNetEnergy(
        1, 4, multipliers, blocks, (), fold=fold, local=True, dtype="float64"
    )  # fmt: skip
    with torch.no_grad():
        for p in net.parameters():  # nothing is silent
            p.add_(0.3 * torch.randn_like(p))
    return net.requires_grad_(False)


@pytest.mark.parametrize(("fold", "blocks", "multipliers"), [(1, 1, (1, 1)), (2, 1, (1,))])
def test_local_energies_see_no_further_than_the_reach(fold, blocks, multipliers):
    net = local_energy(fold, blocks, multipliers)
    n = 2 * (net.reach + 10) // net.multiple * net.multiple
    x = torch.randn(1, 1, n, n)
    sigma = torch.tensor(0.4)
    e = net.density(x, sigma)
    assert torch.allclose(e.sum((1, 2)), net(x, sigma))
    i = n // 2
    y = x.clone()
    y[..., i, i] += 1.0
    changed = (net.density(y, sigma) - e).abs()[0] > 1e-14
    rows = changed.any(1).nonzero().flatten()
    far = max(int(rows.max()) - i, i - int(rows.min()))
    assert net.reach / 2 < far <= net.reach  # a bound, and not a wild one


@pytest.mark.parametrize("size", [(56, 40), (24, 72)])
def test_tiles_have_no_seams(size):
    net = local_energy()
    x, sigma = torch.randn(2, 1, *size), 0.3
    one = net(x, torch.tensor(sigma))
    field = Tiled(net, tile=16)
    assert field.count(*size) > 4 and field.halo < 40
    e, g = field.jet(x, sigma)
    assert torch.allclose(e, one) and torch.allclose(field.total(x, torch.tensor(sigma)), one)
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(net(y, torch.tensor(sigma)).sum(), y)
    assert torch.allclose(g, expected, atol=1e-10)
    assert torch.allclose(x - sigma**2 * g, net.denoise(x, sigma), atol=1e-9)
    field.halo = 0  # the test sees a margin that is too small
    assert not torch.allclose(field.jet(x, sigma)[1], expected, atol=1e-6)


def test_memory_is_that_of_a_tile():
    net, seen = local_energy(), []
    field = Tiled(net, tile=16)
    density = net.density
    net.density = lambda x, sigma: (seen.append(x.shape[2:]), density(x, sigma))[1]  # pyright: ignore
    field.jet(torch.randn(1, 1, 160, 160), 0.3)
    assert max(max(s) for s in seen) <= 16 + 2 * field.halo < 160


def test_shifts_count_each_pixel_once():
    field = Shifted(lambda x, sigma: Quadratic(2.0)(x) / sigma, 8, batch=3)
    x = torch.randn(2, 3, 16, 24)
    e, g = field.jet(x, 0.5)
    assert torch.allclose(e, Quadratic(2.0)(x) / 0.5) and torch.allclose(g, x / 4 / 0.5)
    assert torch.allclose(field.total(x, torch.tensor(0.5)), e)
    for shift in field.shifts:
        assert torch.equal(field.join(field.cut(x, shift), x, shift), x)


def test_shifts_are_one_energy():
    r"""The gradient is that of the value, of an energy that does see its neighbors."""
    field = Shifted(lambda x, sigma: (x[..., 1:] * x[..., :-1]).sum((1, 2, 3)).square(), 4)
    x, d = torch.randn(1, 1, 8, 8), torch.randn(1, 1, 8, 8)
    _, g = field.jet(x, 1.0)
    ahead, behind = (field.total(x + s * 1e-5 * d, torch.tensor(1.0)) for s in (1, -1))
    assert torch.allclose((ahead - behind) / 2e-5, (g * d).sum(), rtol=1e-6)


def test_the_field_of_an_energy():
    net = local_energy()
    assert isinstance(whole(net, (1, 64, 64)), Tiled)
    assert isinstance(whole(Quadratic(1.0), (3, 32, 32)), Shifted)
    with pytest.raises(ValueError, match="square images, got 9x8"):
        whole(Quadratic(1.0), (1, 8, 9))
    for h, w in ((30, 45), (3, 2)):
        for field in (whole(net, (1, 64, 64)), Shifted(Quadratic(1.0), 8)):
            pad = padded(h, w, field)
            x = extend(torch.arange(h * w).double().reshape(1, 1, h, w), pad)
            assert x.shape[2] % field.multiple == 0 == x.shape[3] % field.multiple
            left, _, top, _ = pad
            inside = x[0, 0, top : top + h, left : left + w]
            assert torch.equal(inside.flatten(), torch.arange(h * w).double())


def test_colour_turns_and_noise_stays_white(generator):
    o = torch.tensor(MATRIX)
    assert torch.allclose(o @ o.T, torch.eye(3))
    x = 2 * torch.rand(2, 3, 5, 4, generator=generator) - 1
    assert torch.allclose(from_parts(to_parts(x)), x)
    extremes = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)[:, :, None, None]
    assert to_parts(extremes).abs().max() == pytest.approx(1.0)
    assert to_parts(extremes).abs().amax((0, 2, 3)).tolist() == pytest.approx([1, 1, 1])
    n = to_parts(torch.randn(1, 3, 300, 300, generator=generator))[0].flatten(1)
    c = n.cov()
    scales = torch.tensor(SCALES)
    errors = (c - torch.diag(scales**2)).abs() / torch.outer(scales, scales)
    assert float(errors.max()) < 5 * (2 / 90_000) ** 0.5
    v = torch.rand(3, 2, 2, generator=generator)
    u = v.sqrt() * torch.randn(200_000, 3, 2, 2, generator=generator)
    ratio = from_parts(u).var(0) / variances(v)
    assert float((ratio - 1).abs().max()) < 5 * (2 / 200_000) ** 0.5
    with pytest.raises(ValueError, match="3 channels"):
        to_parts(x[:, :1])
