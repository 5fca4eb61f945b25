r"""Options of the jobs that a task does: how samples are drawn, how a run is judged, how a picture
is denoised.

Each is a frozen dataclass; the command line makes options of its fields.
"""

__all__ = ["Denoising", "Drawing", "Evaluation", "Scoring"]

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import checks
from ..images.generate import Sampling


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
    """The standard deviation of its noise, for pixels in [-1, 1]; estimated if not given. The
    estimate is too low where noise was cut off at black or white."""
    rule: str | None = None
    """How an energy of one noise level denoises: one-step (if not given), given, descent or
    posterior. An energy of every level has one way, Tweedie's formula."""
    add_noise: float | None = None
    """First add noise of this standard deviation: shows what a run can do on a clean picture."""
    device: str = "cpu"
    """The device to run on."""

    def check(self) -> None:
        r"""Raises if an option has a wrong value."""
        for name in ("sigma", "add_noise"):
            if (value := getattr(self, name)) is not None:
                checks.positive(**{name: value})


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
