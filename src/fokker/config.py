r"""Configurations: one typed source for the API, the command line and the saved `config.toml`.

A configuration is a tree of frozen dataclasses. Its image in TOML has one table a dataclass; where
a field admits several classes (an objective, a diffusion, ...) the table says which under the key
`kind`, the name in the registry of the package. `None` is left out. Reading is strict: an unknown
key, a wrong type or an unknown kind is an error that names the place and what was expected.
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
    "difference",
    "dumps",
    "encode",
    "loads",
]

import dataclasses
import difflib
import itertools
import math
import tomllib
import types
import typing

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import checks
from .data import Planar, toy
from .derivatives import LAPLACIANS
from .diffusions import DIFFUSIONS
from .energies import Energy, Quadratic
from .evolution import EVOLUTIONS
from .guard import Guard
from .networks import MLP, UNetDenoiser, UNetEnergy, WideResNet
from .objectives import (
    OBJECTIVES,
    Grid,
    LogNormal,
    LogUniform,
    MultiTimeDCD,
    Objective,
    Preserving,
    Uniform,
)

LONGEST = 2**14  # characters of a file; reading a long key takes the square of its length
DEEPEST = 8  # tables within each other


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
    """The first rate of Muon (`fokker.muon`), on the same schedule, for the kernels and matrices inside a
    U-Net; Adam moves the others. Adam moves all if not given."""

    def __post_init__(self) -> None:
        checks.positive_integer(steps=self.steps, batch=self.batch)
        checks.positive(rate=self.rate)
        checks.between(0, 1, beta1=self.beta1, beta2=self.beta2, ema=self.ema)
        checks.one_of(("constant", "cosine"), schedule=self.schedule)
        if not isinstance(self.warmup, int) or self.warmup < 0:
            raise ValueError(f"expected warmup to be a number of steps, got {self.warmup!r}")
        turns = (0, *self.restarts, self.steps)
        if any(a >= b for a, b in itertools.pairwise(turns)):
            given = ", ".join(map(str, self.restarts))
            raise ValueError(
                f"expected restarts in ascending order between 0 and the {self.steps} steps, got {given}"
            )
        if self.clip is not None:
            checks.positive(clip=self.clip)
        if self.muon is not None:
            checks.positive(muon=self.muon)

    @property
    def shorter(self) -> "Optimization | None":
        r"""The optimization that this one goes on with, the same up to its last step; `None` without restarts."""
        if not self.restarts:
            return None
        *before, last = self.restarts
        return dataclasses.replace(self, steps=last, restarts=tuple(before))


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
    """Whether the training step is compiled: worth its seconds on long runs, see `fokker.step`."""
    slices: int = 1
    """The number of slices of a batch that a step takes one after another: less memory, the same
    gradient up to rounding, see `fokker.step`."""
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


# the classes that are saved with a kind, by name
REGISTRIES: list[Mapping[str, type]] = [
    OBJECTIVES,
    DIFFUSIONS,
    EVOLUTIONS,
    LAPLACIANS,
    {"toy": ToyData, "table": TableData, "images": ImageData},
    {"mlp": Network, "wide-resnet": ResNet, "unet": UNet},
    {
        "log-uniform": LogUniform,
        "log-normal": LogNormal,
        "uniform": Uniform,
        "grid": Grid,
        "preserving": Preserving,
    },
]


def kinds(types_: tuple[type, ...]) -> dict[str, type]:
    r"""Returns the classes with a kind that a field of these types may hold, by kind."""
    bases = tuple(t for t in types_ if isinstance(t, type))
    return {
        name: kind
        for names in REGISTRIES
        for name, kind in names.items()
        if issubclass(kind, bases)
    }


def kind_of(value: object) -> str | None:
    r"""Returns the kind under which an object is saved, if its class has one."""
    return {kind: name for names in REGISTRIES for name, kind in names.items()}.get(type(value))


def encode(value: object, where: str = "config") -> Any:
    r"""Returns the image of a configuration in the types of TOML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = kind_of(value)
        out = {} if kind is None else {"kind": kind}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if part is not None:
                out[field.name] = encode(part, f"{where}.{field.name}")
        return out
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [encode(v, where) for v in value]
    raise ValueError(f"expected a value that TOML can hold at {where}, got {value!r}")


def difference(here: Config, there: Config) -> str | None:
    r"""Returns the first place where two configurations differ, and how; `None` if they do not."""

    def flat(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {place: value}
        return {
            k: v for name, own in value.items() for k, v in flat(own, f"{place}.{name}").items()
        }

    mine, theirs = (flat(encode(c), "config") for c in (here, there))
    for place in dict.fromkeys([*mine, *theirs]):
        if mine.get(place) != theirs.get(place):  # None is left out of both
            said = [repr(held[place]) if place in held else "not given" for held in (mine, theirs)]
            return f"{place.removeprefix('config.')} is {said[0]} here and {said[1]} there"
    return None


def alternatives(annotation: Any) -> tuple[type, ...]:
    r"""Returns the types of a union, or the type alone."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return tuple(t for t in typing.get_args(annotation) if t is not type(None))
    return (annotation,)


def unknown(name: str, known: list[str], what: str, where: str) -> ValueError:
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed, got = ", ".join(known), checks.brief(name)
    return ValueError(f"expected {what} at {where}, one of {listed}, got {got}{hint}")


def decode(annotation: Any, value: object, where: str = "config") -> Any:
    r"""Returns the configuration of a type whose image is `value`."""
    types_ = alternatives(annotation)
    if where.count(".") > DEEPEST:
        raise ValueError(
            f"expected at most {DEEPEST} tables within each other, got more at {where}"
        )
    if isinstance(value, dict):
        named = kinds(types_)
        plain = [t for t in types_ if dataclasses.is_dataclass(t)]
        if named:
            value = dict(value)
            kind = value.pop("kind", "mlp" if "mlp" in named else None)  # as once written
            if not isinstance(kind, str) or kind not in named:
                got = kind if isinstance(kind, str) else checks.brief(kind)
                raise unknown(got, list(named), "a kind", where)
            target = named[kind]
        elif plain:
            target = plain[0]
        else:
            raise ValueError(f"expected a plain value at {where}, got a table")
        hints = typing.get_type_hints(target)
        fields = [field.name for field in dataclasses.fields(target)]
        for key in value:
            if key not in fields:
                raise unknown(key, fields, "a key", where)
        for field in dataclasses.fields(target):
            if field.default is dataclasses.MISSING and field.name not in value:
                raise ValueError(f"expected the key {field.name!r} at {where}, got none")
        own = {k: decode(hints[k], v, f"{where}.{k}") for k, v in value.items()}
        try:
            return target(**own)
        except OverflowError as error:  # a square of 1e308
            raise ValueError(
                f"expected numbers of a usual size at {where}, got {checks.brief(own)}: {error}"
            ) from None
    for t in types_:
        if typing.get_origin(t) is tuple and isinstance(value, list):
            (own, _) = typing.get_args(t)
            return tuple(decode(own, v, f"{where}[{i}]") for i, v in enumerate(value))
        if typing.get_origin(t) is Literal:
            if value in typing.get_args(t):
                return value
            got = value if isinstance(value, str) else checks.brief(value)
            raise unknown(got, list(typing.get_args(t)), "a value", where)
        if isinstance(value, int) and value.bit_length() > 63:
            raise ValueError(f"expected a number of 64 bits at {where}, got {checks.brief(value)}")
        if t is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if t in {int, str, bool} and type(value) is t:
            return value
    expected = " or ".join(getattr(t, "__name__", str(t)) for t in types_)
    raise ValueError(f"expected {expected} at {where}, got {checks.brief(value)}")


def dumps(config: Config) -> str:
    r"""Returns a configuration as TOML."""
    import tomli_w

    return tomli_w.dumps(encode(config))


def loads(text: str) -> Config:
    r"""Returns the configuration that a TOML text describes."""
    if len(text) > LONGEST:
        raise ValueError(
            f"expected a configuration of at most {LONGEST} characters, got {len(text)}"
        )
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"expected a configuration in TOML, got a text that is not: {str(error)[:200]}"
        ) from None
    return decode(Config, content)
