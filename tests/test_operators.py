r"""Linear operators: adjoints, norms and functions of A'A against dense matrices."""

import pytest
import torch

from fokker.images.operators import (
    Blur,
    Cropped,
    Downscale,
    Identity,
    Mask,
    Operator,
    gaussian_kernel,
)

H, W = 12, 8


def odd_kernel():
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(3))


def half_seen():
    return (torch.rand(H, W, generator=torch.Generator().manual_seed(4)) < 0.5).double()


OPERATORS = {
    "identity": Identity,
    "mask": lambda: Mask(half_seen()),
    "downscale": lambda: Downscale(2),
    "blur": lambda: Blur(odd_kernel()),
    "gaussian": lambda: Blur(gaussian_kernel(0.8)),
    "cropped": lambda: Cropped(Downscale(2), (1, 3, 2, 4)),
}


def dense(a, h=H, w=W):
    r"""The matrix of A."""
    eye = torch.eye(h * w).reshape(h * w, 1, h, w)
    return a(eye).flatten(1).T


@pytest.mark.parametrize("name", OPERATORS)
def test_the_adjoint(name, generator):
    a: Operator = OPERATORS[name]()
    x = torch.randn(3, 2, H, W, generator=generator)
    y = torch.randn(a(x).shape, generator=generator)
    assert a.domain(*y.shape[2:]) == (H, W)
    assert torch.allclose((a(x) * y).sum((1, 2, 3)), (x * a.adjoint(y)).sum((1, 2, 3)))
    assert a.back(y).shape == x.shape


@pytest.mark.parametrize("name", OPERATORS)
def test_powers_are_those_of_the_matrix(name, generator):
    a = OPERATORS[name]()
    x = torch.randn(2, 1, H, W, generator=generator)
    m = dense(a)
    full = torch.eye(H * W) * 0.7 + 3.0 * m.T @ m
    if isinstance(a, Blur):  # B is circular: A has the rows that do not wrap around
        shifted = [torch.roll(r, (i, j), (0, 1)).flatten()
                   for r in [m[0].reshape(H, W)] for i in range(H) for j in range(W)]  # fmt: skip
        b = torch.stack(shifted)
        assert all((b == row).all(1).any() for row in m)
        full = torch.eye(H * W) * 0.7 + 3.0 * b.T @ b
    values, vectors = torch.linalg.eigh(full)
    for p in (-1.0, -0.5, 0.5):
        expected = x.flatten(1) @ (vectors * values**p) @ vectors.T
        assert torch.allclose(a.power(x, 0.7, 3.0, p).flatten(1), expected, atol=1e-9)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_norm(name):
    a = OPERATORS[name]()
    largest = float(torch.linalg.svdvals(dense(a))[0])
    assert largest <= a.norm + 1e-12
    if name in {"identity", "mask", "downscale"}:  # a bound alone of a blur
        assert largest == pytest.approx(a.norm, rel=0.05)


def test_what_operators_do():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert Downscale(2)(x).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert Blur(torch.ones(3, 3) / 9)(x).flatten().tolist() == pytest.approx([5, 6, 9, 10])
    seen = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert Mask(seen)(x[..., :2, :2]).flatten().tolist() == [0, 0, 4, 5]
    guess = Mask(seen).back(Mask(seen)(x[..., :2, :2]))
    assert guess[seen[None, None] == 1].tolist() == [0, 4, 5] and 0 < float(guess[0, 0, 0, 1]) < 5
    assert float(gaussian_kernel(2.0).sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Downscale(1), "factor to be an integer >= 2, got 1"),
        (lambda: Mask(torch.zeros(2, 2)), "a mask of shape"),
        (lambda: Mask(torch.full((2, 2), 0.5)), "zeros and ones"),
        (lambda: Blur(torch.ones(2, 2)), "odd side, got shape"),
        (lambda: Blur(torch.zeros(3, 3)), "not all zero"),
        (lambda: Blur(torch.ones(5, 5))(torch.zeros(1, 1, 4, 9)), "5 pixels a side or more"),
        (lambda: Mask(torch.ones(2, 2))(torch.zeros(1, 1, 4, 4)), "size of the mask"),
        (lambda: gaussian_kernel(0.0), "expected sigma to be a finite number > 0, got 0.0"),
    ],
)
def test_bad_operators_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
