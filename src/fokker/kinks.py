r"""Kinks: energies whose gradient jumps, which a Laplacian does not see.

The gradient of a network of ReLUs is constant between its kinks and jumps at them. Its second
derivative is zero almost everywhere, so every Laplacian is wrong. Two looks find such an energy:

1. which functions it calls. Only an energy with one that may have a kink is looked at further;
2. its gradient on the way from each point to the next one of the batch. The way is halved again
   and again, and the half with the larger change of the gradient stays. The change of a smooth
   gradient falls with the length of the way, that of one with a kink to the jump.

The second look tells :math:`\max(x, 0)`, which has a kink, from :math:`\max(x, 0)^2`, whose
Laplacian is right. It needs numbers. While a step is traced there are none: the names alone
decide, unless the energy has been looked at before, as `fokker.fit_energy` does.
"""

__all__ = ["judged", "look"]

import torch
import warnings

from collections.abc import Callable
from functools import partial
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from .shapes import align

T = TypeVar("T")

# functions whose second derivative is zero almost everywhere, and others that may have a kink
FLAT = {
    "hardshrink", "hardsigmoid", "hardtanh", "leaky_relu", "prelu", "relu", "relu6", "rrelu",
    "softshrink", "threshold",
}  # fmt: skip
KINKED = FLAT | {
    "abs", "absolute", "amax", "amin", "celu", "clamp", "clamp_max", "clamp_min", "clip", "elu",
    "fmax", "fmin", "hardswish", "l1_loss", "max", "max_pool1d", "max_pool2d", "max_pool3d",
    "maximum", "min", "minimum", "norm", "selu", "sort", "topk", "where",
}  # fmt: skip
FEW, MANY = 10, 20  # times that a way is halved
FALL = 0.05  # what is left of the change between the two, at most, if it is smooth: 0.001
ROUNDING = 3e-4  # of the change of the gradient on a whole way, which numbers may make
ENOUGH = 16  # points, to be judged for good

JUDGED: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # whether an energy has kinks


class Calls(TorchFunctionMode):
    r"""Writes down the names of the functions that are called under it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(getattr(func, "__name__", "").rstrip("_"))
        return func(*args, **(kwargs or {}))


def key_of(energy: Callable[[Tensor], Tensor]) -> Any:
    r"""Returns what an energy is known by. A function may be made anew for each call; its code is
    not."""
    while isinstance(energy, partial):
        energy = energy.func
    return energy if isinstance(energy, nn.Module) else getattr(energy, "__code__", type(energy))


def judged(energy: Callable[[Tensor], Tensor]) -> bool:
    r"""Returns whether an energy need not be looked at any more."""
    return torch.compiler.is_compiling() or key_of(energy) in JUDGED


def look(
    energy: Callable[[Tensor], Tensor],
    x: Tensor,
    slope: Callable[[Tensor], Tensor],
    work: Callable[[], T],
) -> T:
    r"""Returns what `work` returns, which calls the energy for a Laplacian. Warns if the gradient
    of the energy jumps.

    Arguments:
        energy: The energy.
        x: The points of the Laplacian, with shape :math:`(B, *)`.
        slope: Returns the gradient at as many points.
        work: Called without arguments.
    """
    with Calls() as calls:
        out = work()
    found, told = calls.names & KINKED, concrete(x)
    kinked = bool(found & FLAT)
    if found and told and repeated(x, slope):
        kinked = jumps(x, slope)
    certain = kinked or (len(x) >= ENOUGH if found else isinstance(energy, nn.Module))
    if told and certain:
        JUDGED[key_of(energy)] = kinked
    if kinked:
        warnings.warn(
            f"expected a smooth energy under a Laplacian, got one with {named(energy, found)}: its"
            " gradient jumps, which its second derivative does not see, so the Laplacian is wrong;"
            " use SiLU, GELU, Softplus or Tanh",
            stacklevel=1,  # one place, where it is said once
        )
    return out


def named(energy: Callable[[Tensor], Tensor], found: set[str]) -> str:
    r"""Returns the names of the layers with kinks; those of the functions where there are none."""
    parts = energy.modules() if isinstance(energy, nn.Module) else ()
    flat = {name.replace("_", "") for name in FLAT}
    layers = {type(part).__name__ for part in parts if type(part).__name__.lower() in flat}
    return ", ".join(sorted(layers or found & FLAT or found))


def concrete(x: Tensor) -> bool:
    r"""Returns whether a tensor holds numbers to be read: neither traced, nor transformed, nor
    captured."""
    if is_functorch_wrapped_tensor(x) or _get_current_dispatch_mode() is not None:
        return False
    return len(x) > 1 and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def repeated(x: Tensor, slope: Callable[[Tensor], Tensor]) -> bool:
    r"""Returns whether a gradient is the same twice: not where an energy has dropout."""
    return torch.equal(slope(x), slope(x))


def jumps(x: Tensor, slope: Callable[[Tensor], Tensor]) -> bool:
    r"""Returns whether a gradient jumps on the way from a point to the next one of a batch."""
    here = x.detach()
    there = here.roll(1, 0)
    low, high = slope(here), slope(there)
    changes = [size(high - low)]
    for _ in range(MANY):
        middle = here + (there - here) / 2
        g = slope(middle)
        left = size(g - low) >= size(high - g)
        there, high = choose(left, middle, there), choose(left, g, high)
        here, low = choose(left, here, middle), choose(left, low, g)
        changes.append(size(high - low))
    jump = (changes[MANY] > FALL * changes[FEW]) & (changes[MANY] > ROUNDING * changes[0].max())
    return bool(jump.any())


def size(x: Tensor) -> Tensor:
    return x.detach().flatten(1).double().norm(dim=1)


def choose(first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Returns the rows of `a` where `first` is true, and those of `b` elsewhere."""
    return torch.where(align(first, a), a, b).detach()
