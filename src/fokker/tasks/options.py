r"""Options of the jobs that a task does: how samples are drawn, how a run is judged, how a picture
is denoised.

Each is a frozen dataclass; the command line makes options of its fields.
"""

__all__ = ["Denoising", "Drawing", "Evaluation", "Restoration", "Scoring"]

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import checks
from ..images.generate import Sampling
from ..images.photograph import of_255


@dataclass(frozen=True)
class SamplingOptions(Sampling):
    r"""The options of `Sampling`. They are checked when they are used, not while the command line
    is parsed: an error is one line then."""

    def __post_init__(self) -> None:
        pass

    @property
    def checked(self) -> Sampling:
        r"""The same as a `Sampling`; raises if an option has a wrong value."""
        return Sampling(**vars(self))


@dataclass(frozen=True)
class Drawing:
    r"""How samples are drawn, and where they go."""

    n: int | None = None
    """The number of points or images; 1000 or 64 if not given."""
    seed: int = 0
    """The seed. Image i of a seed is the same for any number of images."""
    out: Path | None = None
    """The file: .csv or .npy of points; .png, a grid, or .npy, bytes (N, C, H, W), of images.
    samples.csv or samples.png if not given."""
    force: bool = False
    """Write points that are not to be trusted, and say so, instead of refusing."""
    options: SamplingOptions = SamplingOptions()
    classes: tuple[int, ...] = ()
    """For an energy of classes, also written --class: the class to draw, or several at once, whose
    densities are multiplied."""
    class_weight: float = 1.0
    """How strongly the classes are followed: 1 draws the class itself, more what is surest to be
    of it (classifier-free guidance)."""
    batch: int = 64
    """The number of images per batch."""
    device: str = "cpu"
    """The device for images."""
    compile: bool = False
    """Compile the network for images: minutes once, then faster. On a GPU its evaluation is
    captured in any case, which takes seconds."""

    @property
    def sampling(self) -> Sampling:
        r"""How samples are drawn; raises if an option has a wrong value."""
        return self.options.checked

    def place(self, n: int, out: Path, kinds: tuple[str, ...]) -> tuple[int, Path]:
        r"""Returns the number of samples and the file, or these defaults; raises before anything
        is drawn.

        Arguments:
            n: The number of samples if none is given.
            out: The file if none is given.
            kinds: The suffixes that the file may have.
        """
        n, out = n if self.n is None else self.n, out if self.out is None else self.out
        checks.positive_integer(n=n, batch=self.batch)
        checks.seed(self.seed)
        checks.place(out, kinds)
        return n, out


@dataclass(frozen=True)
class Evaluation:
    r"""What a run on images is judged by, instead of denoising."""

    fid: int | None = None
    """For images: the FID and KID of this many samples against the training images."""
    bpd: int | None = None
    """For images: the likelihood of this many test images, in bits per dimension: by the flow, and
    in one pass if the levels of the energy are tied."""
    residual: int | None = None
    """For images: how much the energies of neighboring levels disagree: the Fokker-Planck
    residual of this many noisy test images."""
    probes: int = 1
    """The number of probes of the Laplacian of an image, for --bpd. More make the likelihood of
    each image exact; the mean over images is right with one."""
    memory: int | None = None
    """For images: whether this many training images are likelier than as many test images, and the
    nearest training image of each."""
    accuracy: int | None = None
    """For an energy of classes of images: the accuracy of its classifier on this many test
    images."""
    each_class: bool = False
    """Draw the samples of --fid class by class, image i of class i modulo their number."""
    class_weight: float = 1.0
    """How strongly the classes are followed with --each-class."""
    options: SamplingOptions = SamplingOptions()
    seed: int = 0
    """The seed of the samples."""
    convention: Literal["tf", "torch"] = "tf"
    """How images are resized for Inception."""
    inception: Path | None = None
    """The weights of Inception, a safetensors file; FOKKER_INCEPTION or the package if not
    given."""
    batch: int = 64
    """The number of images per batch."""

    @property
    def sampling(self) -> Sampling:
        r"""How samples are drawn; raises if an option has a wrong value."""
        return self.options.checked

    @property
    def asked(self) -> dict[str, int]:
        r"""The figures that are asked for, with the number of images of each."""
        given = {"fid": self.fid, "bpd": self.bpd, "residual": self.residual}
        given["memory"] = self.memory
        given["accuracy"] = self.accuracy
        return {name: count for name, count in given.items() if count is not None}

    def check(self) -> None:
        r"""Raises if an option has a wrong value, or none of the figures that are asked for uses
        it."""
        checks.at_least(2, **self.asked)
        checks.positive(class_weight=self.class_weight)
        if self.each_class and self.fid is None:
            raise ValueError("expected --fid with --each-class, got no samples to draw")
        checks.seed(self.seed)
        checks.positive_integer(probes=self.probes)
        if self.probes != 1 and self.bpd is None:
            raise ValueError(f"expected --bpd with --probes, got none with {self.probes} probes")
        used = () if self.bpd is None else ("--sigma-min", "--sigma-max")  # by the likelihood
        if self.fid is None and (given := [o for o in self.sampling.changed if o not in used]):
            raise ValueError(f"expected --fid with {', '.join(given)}, got no samples to draw")


@dataclass(frozen=True)
class Denoising:
    r"""How a picture is denoised."""

    sigma: float | None = None
    """The standard deviation of its noise, of 255 shades; estimated if not given. The estimate is
    too low where noise was cut off at black or white."""
    rule: str | None = None
    """How an energy of one noise level denoises: one-step (if not given), given, descent or
    posterior. An energy of every level has one way, Tweedie's formula."""
    add_noise: float | None = None
    """First add noise of this standard deviation, of 255: shows what a run can do on a clean
    picture."""
    uncertainty: bool = False
    """Also write how sure each pixel is, NAME-deviation.png: a shade of v stands for a posterior
    deviation of v / 4, of 255. It takes 16 times as long."""
    tile: int = 256
    """The side of the tiles that a picture is cut into, which bounds the memory; for an energy
    that is a sum of local ones."""
    device: str = "cpu"
    """The device to run on."""

    def check(self) -> None:
        r"""Raises if an option has a wrong value."""
        for name in ("sigma", "add_noise"):
            if (value := getattr(self, name)) is not None:
                of_255(**{name: value})
        checks.between(16, 8192, tile=self.tile)


@dataclass(frozen=True)
class Restoration:
    r"""What has happened to a picture, and how it is restored."""

    blur: str | None = None
    """It was blurred: gaussian:S with S the standard deviation in pixels, or the file of a kernel,
    a grey picture of odd sides."""
    mask: Path | None = None
    """Pixels are missing: a picture of the same size, white where a pixel is seen, black where it
    is not."""
    scale: int | None = None
    """It was made this many times smaller, by the mean of blocks of pixels."""
    sigma: float = 2.0
    """The standard deviation of its noise, of 255 shades."""
    samples: int = 0
    """The number of samples of the posterior: what else the picture may have been. Their mean and
    deviation are written as well."""
    levels: int = 8
    """The number of noise levels of the path."""
    steps: int = 6
    """The number of steps of descent at each level."""
    moves: int = 6
    """The number of transitions of a sample at each level."""
    uncorrected: bool = False
    """Take all transitions, without accepting them by the energy."""
    seed: int = 0
    """The seed of the samples."""
    tile: int = 256
    """The side of the tiles of an energy that is a sum of local ones."""
    device: str = "cpu"
    """The device to run on."""

    def check(self) -> None:
        r"""Raises if an option has a wrong value."""
        given = [n for n in ("blur", "mask", "scale") if getattr(self, n) is not None]
        if len(given) != 1:
            got = " and ".join(f"--{name}" for name in given) or "none"
            raise ValueError(f"expected one of --blur, --mask and --scale, got {got}")
        of_255(sigma=self.sigma)
        if self.scale is not None:
            checks.between(2, 16, scale=self.scale)
        checks.at_least(0, samples=self.samples)
        checks.at_least(2, levels=self.levels)
        checks.positive_integer(steps=self.steps, moves=self.moves)
        checks.between(16, 8192, tile=self.tile)
        checks.seed(self.seed)


@dataclass(frozen=True)
class Scoring:
    r"""What is said of points or images beside their scores."""

    explain: bool = False
    """Also write the columns that make each point odd, and what each adds to its energy above
    that of the nearest center of the rows."""
    alarm_rate: float | None = None
    """Also write whether a point is an alarm: its energy is above that of all but this share of
    the test rows; of an image, as odd as this share of training images."""
    usual: int = 256
    """For images: the number of training images that tell what is usual."""
    fetch: bool = False
    """For images: fetch the training images from the Hugging Face hub if they are not on this
    machine."""
    device: str = "cpu"
    """For images: the device."""

    @property
    def checked(self) -> "Scoring":
        r"""The same; raises if an option has a wrong value."""
        checks.positive_integer(usual=self.usual)
        if self.alarm_rate is not None and not 0 < self.alarm_rate < 1:
            raise ValueError(
                f"expected --alarm-rate strictly between 0 and 1, got {self.alarm_rate!r}"
            )
        return self
