r"""Energies as priors and denoisers of deepinv, for its plug-and-play, Langevin and diffusion
solvers. Needs ``pip install 'fokker[deepinv]'``.

Pixels v of deepinv lie in [0, 1], ours, :math:`x = 2 v - 1`, in [−1, 1], and noise
:math:`\sigma_v` there is :math:`2 \sigma_v` here:

.. math:: g(v, \sigma_v) = E(2 v - 1, 2 \sigma_v), \qquad
    \nabla g = 2 \nabla E, \qquad D_v(v, \sigma_v) = \tfrac{1}{2} (D(2 v - 1, 2 \sigma_v) + 1) .

deepinv's Langevin samplers take every step; `fokker.images.posterior` accepts or rejects by g.
"""

__all__ = ["as_denoiser", "as_prior"]

import torch

from torch import Tensor
from typing import Any

from .denoise import denoise_picture
from .whole import whole
from ..shapes import constant

HINT = "expected deepinv: pip install 'fokker[deepinv]'"


def as_prior(energy: Any, shape: tuple[int, ...], tile: int = 256) -> Any:
    r"""Returns an energy of every level as a `deepinv.optim.Prior`, explicit, with `fn(v, σ)` and
    `grad(v, σ)`.

    The sides of pictures must be multiples of the sides that the field of the energy takes
    (`fokker.images.whole`).

    Arguments:
        energy: The energy, such as that of a run.
        shape: The shape (C, h, w) of the images that it was trained on.
        tile: The side of a tile of a local energy.
    """
    try:
        from deepinv.optim import Prior  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(HINT) from None
    field = whole(energy, shape, tile)

    class EnergyPrior(Prior):
        def __init__(self) -> None:
            super().__init__()
            self.explicit_prior = True

        def fn(self, x: Tensor, sigma_denoiser: Any, *args: Any, **options: Any) -> Tensor:
            sigma = one_level(sigma_denoiser)
            return field.total(2 * x - 1, constant(2 * sigma, x))

        def grad(self, x: Tensor, sigma_denoiser: Any, *args: Any, **options: Any) -> Tensor:
            return 2 * field.jet(2 * x - 1, 2 * one_level(sigma_denoiser))[1]

    return EnergyPrior()


def as_denoiser(energy: Any, shape: tuple[int, ...], tile: int = 256) -> Any:
    r"""Returns an energy of every level as a `deepinv.models.Denoiser`, for pictures of any size.

    Arguments:
        energy: The energy, such as that of a run.
        shape: The shape (C, h, w) of the images that it was trained on.
        tile: The side of a tile of a local energy.
    """
    try:
        from deepinv.models import Denoiser  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(HINT) from None

    class EnergyDenoiser(Denoiser):
        def forward(self, x: Tensor, sigma: Any, **options: Any) -> Tensor:
            levels = torch.as_tensor(sigma, dtype=torch.float64).flatten().expand(len(x)).tolist()
            out = [
                denoise_picture(energy, 2 * v - 1, shape, 2 * s, clip=False, tile=tile)[0]
                for v, s in zip(x, levels, strict=True)
            ]
            return (torch.stack(out).to(x) + 1) / 2

    return EnergyDenoiser()


def one_level(sigma: Any) -> float:
    r"""Returns the noise level of a batch, which must be one."""
    levels = torch.as_tensor(sigma, dtype=torch.float64).flatten()
    if not (levels == levels[0]).all():
        raise ValueError(f"expected one noise level for all pictures, got {levels.tolist()}")
    return float(levels[0])
