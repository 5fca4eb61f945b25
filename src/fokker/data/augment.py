r"""Augmentation of images, with its parameters told to the network.

Each image is moved by one affine map of the plane, drawn at random; a map has up to five parts,
each used with probability p:

============  =========================================================  ==========
part          map                                                        parameters
============  =========================================================  ==========
mirror        up and down                                                1
scale         by :math:`2^{s}`, :math:`s \sim \mathcal{N}(0, 0.2^2)`     1
rotation      by :math:`\alpha \sim U(-\pi, \pi)`                        2
stretch       by :math:`2^{s}` along a random axis, by :math:`2^{-s}`    2
              across it
translation   by :math:`\mathcal{N}(0, (n/8)^2)` of n pixels a side      2
============  =========================================================  ==========

Pixels beyond the edge are those mirrored at it; values between pixels are bilinear. An image with
no part used is unchanged to the bit. The network is told the parameters, zero where a part is not
used: so it can tell a moved image from one of the data, and at zero it draws and judges images as
they are. The maps and their sizes are those of EDM, which mirrors left to right in any case.

References:
    | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022),
      appendix F.2
    | https://arxiv.org/abs/2206.00364
"""

__all__ = ["PARAMETERS", "augment", "transform"]

import math
import torch
import torch.nn.functional as F

from torch import Tensor

from .. import checks

PARAMETERS = 8  # told of each image
SIZE = 0.2  # standard deviation of the exponent of scale and stretch
SHIFT = 1 / 8  # of the translation, in sides


def augment(x: Tensor, p: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    r"""Returns images moved at random, and what is told of each, (B, 8).

    Arguments:
        x: The images, (B, C, H, W).
        p: The probability of each part.
        generator: The source of randomness, on the device of the images.
    """
    checks.between(0, 1, p=p)
    n = len(x)
    uniform = torch.rand(n, 5, generator=generator, device=x.device, dtype=x.dtype)
    normal = torch.randn(n, 4, generator=generator, device=x.device, dtype=x.dtype)
    turns = math.pi * (
        2 * torch.rand(n, 2, generator=generator, device=x.device, dtype=x.dtype) - 1
    )
    used = (uniform < p).to(x.dtype)
    zero = torch.zeros_like(used[:, 0])
    mirror = used[:, 0]
    scale = used[:, 1] * SIZE * normal[:, 0]
    angle = used[:, 2] * turns[:, 0]
    stretch, axis = used[:, 3] * SIZE * normal[:, 1], turns[:, 1]
    shift = used[:, 4:] * SHIFT * normal[:, 2:]
    # what is told is of order one where a part is used
    told = torch.stack(
        [
            mirror,
            scale / SIZE,
            torch.cos(angle) - 1,
            torch.sin(angle),
            stretch / SIZE * torch.cos(axis),
            stretch / SIZE * torch.sin(axis),
            *(shift / SHIFT).T,
        ],
        dim=1,
    )
    turn = rotation(axis)
    along = torch.stack([2**stretch, zero, zero, 2**-stretch], 1).reshape(n, 2, 2)
    flip = torch.stack([zero + 1, zero, zero, 1 - 2 * mirror], 1).reshape(n, 2, 2)
    whole = 2 ** scale[:, None, None] * rotation(angle) @ (turn @ along @ turn.mT) @ flip
    moved = transform(x, whole, shift)
    changed = used.any(1).reshape(-1, 1, 1, 1)
    return torch.where(changed, moved, x), told


def rotation(angle: Tensor) -> Tensor:
    r"""Returns the matrices (B, 2, 2) that turn by an angle (B)."""
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack([c, -s, s, c], 1).reshape(-1, 2, 2)


def transform(x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    r"""Returns images whose content is moved by affine maps about their centers.

    Arguments:
        x: The images, (B, C, H, W).
        matrix: The linear parts, (B, 2, 2), on points (right, down) in pixels.
        shift: The translations in sides of the image, (B, 2), to the right and down.
    """
    h, w = x.shape[2:]
    size = torch.tensor([w, h], dtype=x.dtype, device=x.device)
    back = torch.linalg.inv(matrix)  # where each pixel comes from
    inner = back * size[None, None, :] / size[None, :, None]  # in units of half a side
    offset = -(inner @ (2 * shift[:, :, None]))
    grid = F.affine_grid(torch.cat([inner, offset], 2), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, "bilinear", "reflection", align_corners=False)
