r"""Configurations: one typed source for the API, the command line and the saved `config.toml`.

A configuration is a tree of frozen dataclasses, all that a run depends on; `fokker.runs.toml` writes and
reads it.
"""

__all__ = [
    "Config",
    "ImageData",
    "Network",
    "Optimization",
    "ResNet",
    "TableData",
    "ToyData",
    "UNet",
]

import itertools
import math

from dataclasses import dataclass
from typing import Literal

from .. import checks
from ..data import Planar, toy
from ..energies import Energy, Quadratic
from .guard import Guard
from ..networks import MLP, UNetDenoiser, UNetEnergy, WideResNet
from ..objectives import MultiTimeDCD, Objective


@dataclass(frozen=True)
class ToyData:
    r"""A 2-D set by its name, with an exact density."""

    name: str = "rings"
    """The set: swissroll, circles, rings, moons, 8gaussians, 2spirals, checkerboard, pinwheel."""
    scale: float = 0.25
    """The factor of every point."""
    noise: float | None = None
    """The noise before the scale, 0.01 or more; the set's own if not given."""

    def __post_init__(self) -> None:
        if self.noise is not None and not (self.noise == 0 or 0.01 <= self.noise < math.inf):
            raise ValueError(
                "expected noise of 0, or of 0.01 or more (a grid that fits into memory does not"
                f" resolve less), got {self.noise!r}"
            )

    def build(self) -> Planar:
        r"""Returns the set."""
        own = {} if self.noise is None else {"noise": self.noise}
        return toy(self.name, scale=self.scale, **own)


@dataclass(frozen=True)
class TableData:
    r"""A user's own points, from a file."""

    path: str
    """The file: .csv, .tsv, .npy or .parquet."""
    held_out: float = 0.2
    """The share of rows kept aside: one half to choose the weights by (validation), the other to
    judge them by (test)."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"expected held_out strictly between 0 and 1, got {self.held_out!r}")


@dataclass(frozen=True)
class ImageData:
    r"""A set of images."""

    source: str = "mnist"
    """A set by its name (mnist, fashion_mnist, cifar10, svhn, celeba32), a folder (Parquet files as
    Hugging Face lays them out, or image files), or hub:OWNER/NAME for a set on the hub."""
    data_dir: str | None = None
    """The folder that holds the named sets; FOKKER_DATA if not given."""
    size: int | None = None
    """The side to which images are cropped and resized; as they are if not given."""
    flip: bool = False
    """Whether training images are mirrored at random."""


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
        checks.between(2, 1000, layers=self.layers)

    def build(self, shape: tuple[int, ...]) -> Energy:
        r"""Returns the energy of points of a shape :math:`(D)`, initialized from the global RNG."""
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
    """The number of channels of the first level; the next two have twice as many."""
    blocks: int = 2
    """The number of residual blocks a level."""
    form: Literal["inner", "square", "pool", "sum", "denoiser"] = "inner"
    """The form of the energy; `denoiser` is no energy, but the same network as a vector field."""
    sigma_data: float = 0.5
    """The standard deviation of the data."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the layers."""

    def __post_init__(self) -> None:
        checks.between(1, 100, blocks=self.blocks)

    def build(self, shape: tuple[int, ...]) -> Energy:
        r"""Returns the network of images (C, H, W), initialized from the global RNG."""
        check_images(shape)
        if any(side % 4 for side in shape[1:]):
            got = f"{shape[2]}x{shape[1]}; a size, such as 32, crops and resizes"
            raise ValueError(f"expected images with sides that are multiples of 4, got {got}")
        own = {
            "blocks": self.blocks,
            "head": math.gcd(64, 2 * self.width),
            "sigma_data": self.sigma_data,
            "dtype": self.precision,
        }
        if self.form == "denoiser":
            return UNetDenoiser(shape[0], self.width, **own)
        return UNetEnergy(shape[0], self.width, form=self.form, **own)


@dataclass(frozen=True)
class Optimization:
    r"""Adam, with Muon if asked for, their schedule and the moving average of the weights."""

    steps: int = 5000
    """The number of steps."""
    batch: int = 1000
    """The number of points a step."""
    rate: float = 1e-3
    """Adam's learning rate, the first one."""
    beta1: float = 0.9
    """The decay of Adam's first moment."""
    beta2: float = 0.99
    """The decay of Adam's second moment."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How the rate falls: not at all, or as half a cosine to zero."""
    warmup: int = 0
    """The number of first steps over which the rate rises from zero, linearly."""
    ema: float = 0.999
    """The decay of the average of the weights that is evaluated and saved; 0 for none. Early on
    it is lower, (1 + k) / (10 + k) at step k."""
    clip: float | None = None
    """The largest norm of the gradient; longer ones are scaled down to it."""
    restarts: tuple[int, ...] = ()
    """The steps at which the rate begins anew, with its warm-up, and falls towards the next of them or the
    end: a run that has ended goes on under the same configuration with its last step here and more steps."""
    muon: float | None = None
    """The first rate of Muon (`fokker.compute.muon`), on the same schedule, for the kernels and matrices inside a
    U-Net; Adam moves the others. Adam moves all if not given."""

    def __post_init__(self) -> None:
        checks.positive_integer(steps=self.steps, batch=self.batch)
        checks.positive(rate=self.rate)
        checks.between(0, 1, beta1=self.beta1, beta2=self.beta2, ema=self.ema)
        checks.one_of(("constant", "cosine"), schedule=self.schedule)
        if not isinstance(self.warmup, int) or self.warmup < 0:
            raise ValueError(f"expected warmup to be a number of steps, got {self.warmup!r}")
        if not isinstance(self.restarts, tuple) or not all(type(r) is int for r in self.restarts):
            raise ValueError(f"expected restarts to be a tuple of integers, got {self.restarts!r}")
        checks.between(0, 100, **{"the number of restarts": len(self.restarts)})
        if any(a >= b for a, b in self.cycles):
            given = ", ".join(map(str, self.restarts))
            raise ValueError(
                f"expected restarts in ascending order between 0 and the {self.steps} steps, got {given}"
            )
        if self.clip is not None:
            checks.positive(clip=self.clip)
        if self.muon is not None:
            checks.positive(muon=self.muon)

    @property
    def cycles(self) -> list[tuple[int, int]]:
        r"""The first step of each fall of the rate, and the step after its last."""
        return list(itertools.pairwise((0, *self.restarts, self.steps)))


@dataclass(frozen=True)
class Config:
    r"""All that a run depends on."""

    data: ToyData | TableData | ImageData = ToyData()
    objective: Objective = MultiTimeDCD()
    network: Network | ResNet | UNet = Network(features=64, confine=0.7)
    optimization: Optimization = Optimization()
    seed: int = 0
    """The seed of the weights, the data and the noise."""
    device: str = "cpu"
    """The device to train on."""
    compile: bool = False
    """Whether the training step is compiled: worth its seconds on long runs, see `fokker.compute.step`."""
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
    """The number of samples drawn at each evaluation and kept as a picture, for a network of images
    at every noise level; none if zero."""

    def __post_init__(self) -> None:
        checks.positive_integer(slices=self.slices, evaluate=self.evaluate, keep=self.keep)
        checks.seed(self.seed)
        if self.optimization.muon is not None and not isinstance(self.network, UNet):
            raise ValueError(
                f"expected Muon only for a U-Net, got muon={self.optimization.muon} for {self.network}"
            )
        if self.preview:
            checks.positive_integer(preview=self.preview)
            if not isinstance(self.network, UNet):
                raise ValueError(
                    "expected previews only of a U-Net, an energy of every noise level, got"
                    f" {self.preview} of {self.network}"
                )
        if self.patience is not None:
            checks.positive_integer(patience=self.patience)
            if not isinstance(self.data, TableData):
                raise ValueError(
                    "expected patience only for a table, which has validation rows, got"
                    f" {self.patience} for {self.data}"
                )
