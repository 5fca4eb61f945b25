r"""Checks of what a user hands in.

A point has shape :math:`(B, *)` with :math:`D = \prod *` coordinates, an energy :math:`(B)`, a
time :math:`()` or :math:`(B)`. Every check raises a `ValueError` that names the value and what was
expected; none replaces a value.
"""

__all__ = [
    "TOO_MUCH",
    "alone",
    "another",
    "at_least",
    "between",
    "brief",
    "device",
    "images",
    "instance",
    "not_negative",
    "number",
    "one_of",
    "place",
    "points",
    "positive",
    "positive_integer",
    "seed",
    "share",
    "times",
    "unknown",
]

import difflib
import sys
import torch

from collections.abc import Iterable
from pathlib import Path
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from .files import check_place

# how torch says that there is not so much memory
TOO_MUCH = ("can't allocate memory", "not enough memory", "overflowed with sizes")
BATCHED = nn.modules.batchnorm._BatchNorm  # layers that mix the points of a batch


def points(x: Tensor, name: str = "x") -> Tensor:
    r"""Returns `x` if it is a non-empty, finite, floating batch of points :math:`(B, *)`."""
    if not isinstance(x, Tensor):
        raise ValueError(f"expected {name} to be a tensor of shape (B, *), got {type(x).__name__}")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"expected {name} to have shape (B, *) with B >= 1 points of one coordinate or more,"
            f" got shape {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise ValueError(f"expected {name} to have a floating dtype, got {x.dtype}")
    if not torch.isfinite(x).all():
        bad = (~torch.isfinite(x)).flatten(1).any(1)
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"expected {name} to be finite, got {int(bad.sum())} of {len(x)} points with NaN or"
            f" infinity, the first at index {first}"
        )
    return x


def images(x: Tensor, channels: int | None = None, multiple: int = 1) -> Tensor:
    r"""Returns `x` if it is a floating batch of images :math:`(B, C, H, W)` of C `channels`.

    The height and the width are multiples of `multiple`.
    """
    other = x.ndim == 4 and channels is not None and x.shape[1] != channels
    if x.ndim != 4 or other or any(n % multiple for n in x.shape[2:]):
        sizes = f" with H and W multiples of {multiple}" if multiple > 1 else ""
        raise ValueError(
            f"expected images of shape (B, {channels or 'C'}, H, W){sizes}, got {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise ValueError(f"expected images of a floating dtype, got {x.dtype}")
    return x


def brief(value: object, length: int = 80) -> str:
    r"""Returns a value as an error shows it: in one line, and cut if it is long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        text = repr(value[:length])
    else:
        text = " ".join(repr(value).split())  # of a tensor, a line a row
    return text if len(text) <= length + 2 else f"{text[:length]}..."


def number(value: object) -> bool:
    r"""Returns whether a value is a finite number, and not a truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false of NaN, and of a longer integer


def instance(kind: type, names: Iterable[str], **values: object) -> None:
    r"""Raises unless every named value is an instance of `kind`, one of those in a registry."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(
                f"expected {name} to be a {kind.__name__} ({', '.join(names)}), got {value!r}"
            )


def positive(**values: float) -> None:
    r"""Raises unless every named value is a finite number above zero."""
    for name, value in values.items():
        if not (number(value) and value > 0):
            raise ValueError(f"expected {name} to be a finite number > 0, got {brief(value)}")


def not_negative(**values: float) -> None:
    r"""Raises unless every named value is a finite number of zero or more."""
    for name, value in values.items():
        if not (number(value) and value >= 0):
            raise ValueError(f"expected {name} to be a finite number >= 0, got {brief(value)}")


def positive_integer(**values: int) -> None:
    r"""Raises unless every named value is an integer of one or more."""
    at_least(1, **values)


def share(**values: float) -> None:
    r"""Raises unless every named value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not (number(value) and 0 < value < 1):
            raise ValueError(f"expected {name} strictly between 0 and 1, got {brief(value)}")


def at_least(low: int, **values: int) -> None:
    r"""Raises unless every named value is an integer of `low` or more that 64 bits hold."""
    for name, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, int) and value >= low):
            raise ValueError(f"expected {name} to be an integer >= {low}, got {brief(value)}")
        if value >= 2**63:
            raise ValueError(f"expected {name} to be an integer of 64 bits, got {brief(value)}")


def between(low: float, high: float, **values: float) -> None:
    r"""Raises unless every named value lies in the closed interval from `low` to `high`."""
    for name, value in values.items():
        if not (number(value) and low <= value <= high):
            raise ValueError(f"expected {name} between {low} and {high}, got {brief(value)}")


def one_of(names: tuple[str, ...], **values: str) -> None:
    r"""Raises unless every named value is one of `names`."""
    for name, value in values.items():
        if value not in names:
            raise ValueError(
                f"expected {name} to be one of {', '.join(names)}, got {brief(value)}"
            )


def another(out: Path, source: Path, what: str) -> None:
    r"""Raises if a file to be written is the one that is read."""
    if out.exists() and source.exists() and out.samefile(source):
        raise ValueError(f"expected to write to another file than {what}, got {out}")


def place(out: Path, suffixes: tuple[str, ...]) -> None:
    r"""Raises unless a file of one of these kinds can be written there, before any work."""
    if out.suffix not in suffixes:
        raise ValueError(f"expected --out to end in {' or '.join(suffixes)}, got {out}")
    if not out.parent.is_dir() or out.is_dir():
        raise ValueError(f"expected --out to be a file in a folder that exists, got {out}")
    check_place(out)


def unknown(name: str, known: list[str], what: str, where: str) -> ValueError:
    r"""Returns the error of a name that is none of those known, with the nearest of them."""
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed, got = ", ".join(known), brief(name)
    return ValueError(f"expected {what} at {where}, one of {listed}, got {got}{hint}")


def seed(value: int) -> int:
    r"""Returns a seed if it is an integer that a generator takes."""
    if isinstance(value, bool) or not (isinstance(value, int) and -(2**63) <= value < 2**63):
        raise ValueError(f"expected seed to be an integer of 64 bits, got {brief(value)}")
    return value


def device(name: str) -> torch.device:
    r"""Returns the device of a name, one that this machine has."""
    here = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    here += ["cuda"] if len(here) > 1 else []
    here += ["mps"] if torch.backends.mps.is_available() else []
    if name not in here:
        raise ValueError(f"expected a device of this machine, {', '.join(here)}, got {name!r}")
    return torch.device(name)


def times(s: Tensor, t: Tensor) -> None:
    r"""Raises unless :math:`0 \leq s \leq t`, for times :math:`()` or :math:`(B)`.

    Only times that can be read for free are: on a CPU, and neither compiled nor inside a
    `torch.func` transform. Elsewhere a kernel that runs backwards has a NaN for its std.
    """
    if torch.compiler.is_compiling() or s.device.type != "cpu" or t.device.type != "cpu":
        return
    good = (s >= 0) & (s <= t)
    if is_functorch_wrapped_tensor(good) or good.all():
        return
    first, last = (u.expand_as(good)[~good][0].item() for u in (s, t))
    raise ValueError(f"expected times 0 <= s <= t, got s={first:g}, t={last:g}")


def alone(energy: object) -> None:
    r"""Raises if the energy of a point depends on the other points of a batch, as behind batch
    normalization in training: derivatives in x are those of each point alone."""
    for name, part in energy.named_modules() if isinstance(energy, nn.Module) else ():
        if isinstance(part, BATCHED) and (part.training or part.running_mean is None):
            raise ValueError(
                f"expected an energy of each point alone, got {type(part).__name__} at"
                f" {name or 'the top'}, which mixes the points of a batch; use LayerNorm or"
                " GroupNorm, or freeze it with eval()"
            )
