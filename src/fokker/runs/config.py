r"""Configurations: one typed source for the API, the command line and the saved `config.toml`.

A configuration is a tree of frozen dataclasses, all that a run depends on; `fokker.runs.toml`
writes and reads it.
"""

__all__ = [
    "DATA",
    "NETWORKS",
    "Config",
    "Correction",
    "Data",
    "ImageData",
    "Milestones",
    "Network",
    "Optimization",
    "ResNet",
    "TableData",
    "ToyData",
    "UNet",
]

import abc
import math
import torch

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from .guard import Guard
from .milestones import Milestones
from .. import checks
from ..compute.schedule import Optimization
from ..data import Planar, toy
from ..data.augment import PARAMETERS
from ..data.sources import absent, at_hand, name_of
from ..energies import Denoiser, Energy, Quadratic
from ..networks import MLP, UNetDenoiser, UNetEnergy, WideResNet
from ..objectives import MultiTimeDCD, Objective


class Data(abc.ABC):
    r"""Base class of the kinds of data, frozen dataclasses. `fokker.tasks` has the task of
    each."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        r"""The name of the data."""

    def files(self) -> tuple[str, ...]:
        r"""Returns the files that a copy of a run must bring along."""
        return ()

    def moved(self, folder: Path) -> Self:
        r"""Returns this data with its files in another folder."""
        return self

    def absent(self) -> str | None:
        r"""Returns what reading the data would fetch from the network; `None` if nothing."""
        return None


@dataclass(frozen=True)
class ToyData(Data):
    r"""A 2-D set by its name, with an exact density."""

    name: str = "rings"
    """The set: swissroll, circles, rings, moons, 8gaussians, 2spirals, checkerboard, pinwheel."""
    scale: float = 0.25
    """The factor of every point."""
    noise: float | None = None
    """The noise before the scale, 0.01 or more; the set's own if not given."""

    def __post_init__(self) -> None:
        checks.between(1e-6, 1e6, scale=self.scale)
        if self.noise is not None and not (self.noise == 0 or 0.01 <= self.noise < math.inf):
            raise ValueError(
                "expected noise of 0, or of 0.01 or more (a grid that fits into memory does not"
                f" resolve less), got {self.noise!r}"
            )

    @property
    def title(self) -> str:
        return self.name

    def build(self) -> Planar:
        r"""Returns the set."""
        options = {} if self.noise is None else {"noise": self.noise}
        return toy(self.name, scale=self.scale, **options)


@dataclass(frozen=True)
class TableData(Data):
    r"""A user's own points, from a file."""

    path: str
    """The file: .csv, .tsv, .npy or .parquet."""
    held_out: float = 0.2
    """The share of rows kept aside: one half to choose the weights by (validation), the other to
    judge them by (test)."""

    def __post_init__(self) -> None:
        checks.share(held_out=self.held_out)

    @property
    def title(self) -> str:
        return Path(self.path).stem

    def files(self) -> tuple[str, ...]:
        return (self.path,)

    def moved(self, folder: Path) -> Self:
        return replace(self, path=str(folder / Path(self.path).name))


@dataclass(frozen=True)
class ImageData(Data):
    r"""A set of images."""

    source: str = "mnist"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files
    as Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    size: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    flip: bool = False
    """Whether training images are mirrored at random."""
    channels: int | None = None
    """The channels that images are brought to, 1 (grey) or 3; as they are if not given."""
    crop: int | None = None
    """The side of the square that is cut at a random place from each training image, turned by a
    random multiple of 90 degrees; the whole image if not given."""
    dequantize: bool = False
    """Whether training images get uniform noise as wide as one of their 256 levels, as those have
    whose likelihood is computed."""
    augment: float = 0.0
    """The probability of each part of the augmentation of training images
    (`fokker.data.augment`), 0.12 in EDM; the network is told what was done to an image."""
    drop: float = 0.1
    """The share of training images whose class is not told to a network of classes, so that it
    learns the energy without a class as well."""

    def __post_init__(self) -> None:
        checks.between(0, 1, drop=self.drop, augment=self.augment)
        if self.channels not in {None, 1, 3}:
            raise ValueError(f"expected channels 1 or 3, got {self.channels!r}")

    @property
    def title(self) -> str:
        return name_of(self.source)

    def absent(self) -> str | None:
        return absent(self.source, self.data_dir)

    @property
    def at_hand(self) -> bool:
        r"""Whether the images lie on this machine."""
        return at_hand(self.source, self.data_dir)


def check_images(shape: tuple[int, ...]) -> None:
    r"""Raises unless a point is an image."""
    if len(shape) != 3:
        raise ValueError(f"expected images of shape (C, H, W), got {shape}")


@dataclass(frozen=True)
class Network:
    r"""A multi-layer perceptron energy, with an optional confining quadratic."""

    width: int = 300
    """The number of units a hidden layer."""
    layers: int = 4
    """The number of linear layers."""
    activation: str = "gelu"
    """The activation: gelu, silu, tanh or softplus."""
    features: int = 0
    """The number of random Fourier frequencies."""
    bandwidth: float = 4.0
    """The standard deviation of the frequencies, in radians a unit of x."""
    confine: float | None = None
    """The standard deviation of a quadratic added to the energy; none if not given."""

    def __post_init__(self) -> None:
        checks.positive_integer(width=self.width)
        checks.between(2, 1000, layers=self.layers)
        checks.at_least(0, features=self.features)
        checks.between(1e-6, 1e6, bandwidth=self.bandwidth)
        if self.confine is not None:
            checks.between(1e-6, 1e6, confine=self.confine)

    def build(self, shape: tuple[int, ...]) -> Energy:
        r"""Returns the energy of points of a shape :math:`(D)`, initialized from the global
        RNG."""
        if len(shape) != 1:
            raise ValueError(f"expected points of shape (D) for a perceptron, got {shape}")
        (dim,) = shape
        net = MLP(dim, self.width, self.layers, self.activation, self.features, self.bandwidth)
        return net if self.confine is None else net + Quadratic(self.confine)


@dataclass(frozen=True)
class ResNet:
    r"""A wide residual network energy of images."""

    depth: int = 28
    """The number of layers, 6 n + 4."""
    widen: int = 10
    """The factor on the number of channels."""
    activation: str = "silu"
    """The activation: gelu, silu, tanh or softplus."""
    form: Literal["pool", "sum", "square"] = "pool"
    """The form of the energy; the paper's is pool."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the layers."""

    def __post_init__(self) -> None:
        checks.between(10, 1000, depth=self.depth)

    def build(self, shape: tuple[int, ...]) -> Energy:
        r"""Returns the energy of images (C, H, W), initialized from the global RNG."""
        check_images(shape)
        return WideResNet(
            shape[0], self.depth, self.widen, self.activation, self.form, self.precision
        )


@dataclass(frozen=True)
class UNet:
    r"""A noise-conditional U-Net, as an energy or as a plain denoiser."""

    width: int = 96
    """The number of channels of the first level; `multipliers` has those of the others."""
    blocks: int = 2
    """The number of residual blocks a level."""
    form: Literal["inner", "square", "pool", "sum", "denoiser"] = "inner"
    """The form of the energy; `denoiser` is no energy, but the same network as a vector field."""
    sigma_data: float = 0.5
    """The standard deviation of the data."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the layers."""
    fold: int = 1
    """The side n of blocks of n×n pixels that become channels before the first convolution and
    pixels again after the last: the first level has 1 / n of the image's side. 1 for none."""
    multipliers: tuple[int, ...] = (1, 2, 2)
    """The number of channels of each level, as a multiple of `width`; each level has half the side
    of the one before."""
    attention: tuple[int, ...] = (1,)
    """The levels with attention, counted from 0; the middle has it too."""
    heads: int | None = None
    """The number of heads of every attention; heads of 64 channels, or the largest power of two
    below that divides the channels, if not given."""
    classes: int = 0
    """The number of classes that an energy is told, those of the labels of the images; none if
    zero."""
    augmented: bool = False
    """Whether an energy is told how the images that it is trained on were moved (`augment`)."""
    local: bool = False
    """Whether there is no attention, in the middle neither: the energy is then a sum of local
    ones, and a picture may be of any size. `attention` does not count."""

    def __post_init__(self) -> None:
        checks.between(1, 100, blocks=self.blocks)
        checks.positive_integer(width=self.width, fold=self.fold)
        checks.between(1e-6, 1e6, sigma_data=self.sigma_data)
        for name in ("multipliers", "attention"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(type(v) is int for v in value):
                raise ValueError(f"expected {name} to be a tuple of integers, got {value!r}")
        levels = len(self.multipliers)
        checks.between(1, 8, **{"the number of multipliers": levels})
        checks.positive_integer(**{f"multipliers[{i}]": m for i, m in enumerate(self.multipliers)})
        if not all(0 <= level < levels for level in self.attention):
            raise ValueError(
                f"expected attention at levels 0 to {levels - 1}, one a multiplier, got"
                f" {self.attention}"
            )
        if self.heads is not None:
            checks.positive_integer(heads=self.heads)
        checks.at_least(0, classes=self.classes)
        if (self.classes or self.augmented) and self.form == "denoiser":
            what = "classes" if self.classes else "augmentation"
            raise ValueError(f"expected {what} only of an energy, got {self}")

    @property
    def multiple(self) -> int:
        r"""The number that must divide the sides of an image."""
        return self.fold * 2 ** (len(self.multipliers) - 1)

    def build(self, shape: tuple[int, ...]) -> Energy | Denoiser:
        r"""Returns the network of images (C, H, W), initialized from the global RNG."""
        check_images(shape)
        multiple = self.multiple
        if any(side % multiple for side in shape[1:]):
            fits = multiple * max(1, 32 // multiple)
            got = f"{shape[2]}x{shape[1]}; a size, such as {fits}, crops and resizes"
            raise ValueError(
                f"expected images with sides that are multiples of {multiple}, got {got}"
            )
        attention = () if self.local else self.attention
        attended = (self.multipliers[level] * self.width for level in attention)
        options: dict[str, Any] = {
            "blocks": self.blocks,
            "multipliers": self.multipliers,
            "attention": attention,
            "local": self.local,
            "head": math.gcd(64, self.multipliers[-1] * self.width, *attended),
            "heads": self.heads,
            "fold": self.fold,
            "classes": self.classes,
            "moves": PARAMETERS if self.augmented else 0,
            "sigma_data": self.sigma_data,
            "dtype": self.precision,
        }
        if self.form == "denoiser":
            return UNetDenoiser(shape[0], self.width, **options)
        return UNetEnergy(shape[0], self.width, form=self.form, **options)


@dataclass(frozen=True)
class Correction:
    r"""A bounded correction on top of a mixture of Gaussians that is fitted to the rows of a
    table."""

    width: int = 64
    """The number of units of each of the two hidden layers."""
    bound: float = 10.0
    """The largest correction, in nats."""
    level: float = 0.1
    """The noise level at which the correction is read, in standard deviations."""

    def __post_init__(self) -> None:
        checks.positive_integer(width=self.width)
        checks.between(1e-3, 100, bound=self.bound)
        checks.between(1e-3, 10, level=self.level)

    def build(self, shape: tuple[int, ...]) -> Energy:
        r"""Raises: the mixture comes from the rows."""
        raise ValueError(f"expected rows of a table to fit a mixture to, got the shape {shape}")


@dataclass(frozen=True)
class Config:
    r"""All that a run depends on."""

    data: Data = ToyData()
    objective: Objective = MultiTimeDCD()
    network: Network | ResNet | UNet | Correction = Network(features=64, confine=0.7)
    optimization: Optimization = Optimization()
    seed: int = 0
    """The seed of the weights, the data and the noise."""
    device: str = "cpu"
    """The device to train on."""
    compile: bool = False
    """Whether the training step is compiled: worth its seconds on long runs, see
    `fokker.compute.step`."""
    slices: int = 1
    """The number of slices of a batch that a step takes one after another: less memory, the same
    gradient up to rounding, see `fokker.compute.step`."""
    evaluate: int = 500
    """The number of steps between evaluations and checkpoints."""
    keep: int = 2
    """The number of checkpoints kept, beside the best."""
    guard: Guard = Guard()
    patience: int | None = None
    """For a table, the number of evaluations without a better one on the validation rows after
    which training stops; it goes on to the last step if not given."""
    preview: int = 0
    """The number of samples drawn at each evaluation and kept as a picture, for a network of
    images at every noise level; none if zero."""
    milestones: Milestones = Milestones()
    snapshots: int = 0
    """The number of steps between copies of the power-function averages that are kept beside the
    checkpoints, for widths chosen after training; none if zero."""

    def __post_init__(self) -> None:
        checks.positive_integer(slices=self.slices, evaluate=self.evaluate, keep=self.keep)
        checks.seed(self.seed)
        if self.optimization.muon is not None and not isinstance(self.network, UNet):
            raise ValueError(
                f"expected Muon only for a U-Net, got muon={self.optimization.muon} for"
                f" {self.network}"
            )
        if isinstance(self.network, Correction) and not isinstance(self.data, TableData):
            raise ValueError(
                f"expected a correction only for a table, whose rows its mixture is fitted to, got"
                f" {self.data}"
            )
        if self.preview:
            checks.positive_integer(preview=self.preview)
            if not isinstance(self.network, UNet):
                raise ValueError(
                    "expected previews only of a U-Net, an energy of every noise level, got"
                    f" {self.preview} of {self.network}"
                )
        checks.at_least(0, snapshots=self.snapshots)
        if self.snapshots and not self.optimization.widths:
            raise ValueError(
                "expected snapshots only of power-function averages, got"
                f" {self.snapshots} without widths"
            )
        moved = getattr(self.data, "augment", 0.0) > 0
        if moved != getattr(self.network, "augmented", False):
            raise ValueError(
                "expected a U-Net with augmented = true for images with augment, and no other, got"
                f" {self.network} for {self.data}"
            )
        if self.milestones.any:
            seen = self.optimization.steps * self.optimization.batch
            if not isinstance(self.network, UNet):
                raise ValueError(
                    "expected an FID only of a U-Net, an energy of every noise level, got"
                    f" {self.milestones} of {self.network}"
                )
            if late := [n for n in self.milestones.at if n > seen]:
                raise ValueError(
                    f"expected FIDs within the {seen:,} images of training, got one at {late[0]:,}"
                )
        if self.patience is not None:
            checks.positive_integer(patience=self.patience)
            if not isinstance(self.data, TableData):
                raise ValueError(
                    "expected patience only for a table, which has validation rows, got"
                    f" {self.patience} for {self.data}"
                )

    @property
    def precision(self) -> str:
        r"""The dtype of the layers of the network, by its name."""
        return getattr(self.network, "precision", "float32")

    def build(self, shape: tuple[int, ...], precision: str | None = None) -> Energy | Denoiser:
        r"""Returns the network, for points of a shape, initialized from the seed.

        Arguments:
            shape: The shape of a point.
            precision: The dtype of the layers; that of the network if not given.
        """
        network: Any = self.network
        if precision is not None and precision != self.precision:
            network = replace(network, precision=precision)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return network.build(shape)


# by the names under which they are saved
DATA: dict[str, type[Data]] = {"toy": ToyData, "table": TableData, "images": ImageData}
NETWORKS: dict[str, type] = {
    "mlp": Network,
    "wide-resnet": ResNet,
    "unet": UNet,
    "correction": Correction,
}
