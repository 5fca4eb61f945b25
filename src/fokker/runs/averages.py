r"""Averages of a run whose width is chosen after training (`fokker.compute.averages`).

A run with `widths` keeps an average of each width, in its checkpoints. With `snapshots` it also
leaves copies of them in `averages/step-K.safetensors`, in float16, every so many steps. Those at
the last step alone give the widths between them; snapshots make them sharper, and give other
steps.
"""

__all__ = ["average_of", "snapshots_of", "write_snapshot"]

import re
import torch

from pathlib import Path
from safetensors.torch import load, save
from torch import Tensor

from .checkpoints import BROKEN, Checkpoint, newest
from .config import Config
from ..compute.averages import Kept, mix
from ..files import first_line, inner_folder, read_regular, write_bytes

FOLDER = "averages"
LARGEST = 2**34  # bytes of a snapshot
WORST = 0.2  # the error of a profile beyond which it is another one
Weights = dict[str, Tensor]


def snapshots_of(folder: Path) -> dict[int, Path]:
    r"""Returns the files of the snapshots of a run by their step."""
    found = {}
    for path in sorted((folder / FOLDER).glob("step-*.safetensors")):
        if name := re.fullmatch(r"step-(\d{8,})", path.stem):
            found[int(name[1])] = path
    return found


def write_snapshot(folder: Path, step: int, powers: list[Weights]) -> None:
    r"""Writes the averages of all widths after a step, in float16."""
    low = {
        f"{i}/{name}": t.detach().to(torch.float16 if t.is_floating_point() else t.dtype).cpu()
        for i, average in enumerate(powers)
        for name, t in average.items()
    }
    data = save({name: t.contiguous() for name, t in low.items()})
    write_bytes(inner_folder(folder / FOLDER) / f"step-{step:08d}.safetensors", data)


def average_of(
    folder: Path,
    config: Config,
    width: float,
    step: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Weights, float]:
    r"""Returns the average of a width, and the relative error of its profile.

    Arguments:
        folder: The run folder.
        config: Its configuration.
        width: The width, as a share of the steps.
        step: The step; that of the checkpoint if not given.
        checkpoint: The checkpoint; the newest if not given.
    """
    widths = config.optimization.widths
    if not widths:
        raise ValueError(
            f"expected a run with power-function averages, got {folder}, which kept none; --widths"
            " of fokker train keeps them"
        )
    checkpoint = newest(folder) if checkpoint is None else checkpoint
    wanted = Kept(width, checkpoint.step if step is None else step)
    places = {k: p for k, p in snapshots_of(folder).items() if k < checkpoint.step}
    kept = [Kept(w, k) for k in (*places, checkpoint.step) for w in widths]
    mixed = mix(kept, wanted)
    if not mixed.error <= WORST:
        raise ValueError(
            f"expected a width near those that were kept, {', '.join(map(str, widths))}, got"
            f" {width:g} at step {wanted.step}, whose profile would be off by"
            f" {100 * mixed.error:.0f} %"
        )
    coefficients = iter(mixed.coefficients)
    # in float64: coefficients may be large
    total = {
        name: torch.zeros_like(t, dtype=torch.float64) for name, t in checkpoint.model.items()
    }
    for path in (*places.values(), None):
        for weights in powers_of(path, folder, checkpoint, len(widths)):
            c = next(coefficients)
            for name, t in total.items():
                t += c * weights[name].to(t.dtype)
    model = checkpoint.model
    constant = lambda t: not t.is_floating_point()
    return {
        name: model[name] if constant(model[name]) else t.to(model[name].dtype)
        for name, t in total.items()
    }, mixed.error


def powers_of(
    path: Path | None, folder: Path, checkpoint: Checkpoint, count: int
) -> list[Weights]:
    r"""Returns the averages of all widths in a snapshot, or in the checkpoint."""
    if path is None:
        found = list(checkpoint.powers)
    else:
        try:
            tensors = load(read_regular(path, LARGEST, folder))
        except BROKEN as error:
            raise ValueError(f"expected a snapshot in {path}: {first_line(error)}") from None
        under = lambda i: {n.split("/", 1)[1]: t for n, t in tensors.items()
                           if n.split("/", 1)[0] == str(i)}  # fmt: skip
        found = [under(i) for i in range(count)]
    shapes = {name: t.shape for name, t in checkpoint.model.items()}
    if len(found) != count or any({n: t.shape for n, t in w.items()} != shapes for w in found):
        raise ValueError(f"expected averages of the network in {path or folder}, got others")
    return found
