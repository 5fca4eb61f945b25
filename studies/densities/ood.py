r"""Out-of-distribution images: the AUROC of every rule of `fokker.images.oddness`.

An energy of images is shown test images of its own set and of others, and asked which are odd.
What a rule compares with comes from its own training images alone. Synthetic sets are `noise`
(uniform bytes), `constant` (one random colour an image) and `blurred` (its own test images,
blurred by a Gaussian of two pixels).

Every set, level and rule has a row. `chosen` marks the rule that was fixed before any figure was
known (`oddness.CHOSEN`).
"""

__all__ = ["SYNTHETIC", "pixels_of", "run"]

import torch
import torch.nn.functional as F

from collections.abc import Callable, Sequence
from fokker import checks, load
from fokker.data.images import read_images
from fokker.images.forecast import forecast
from fokker.images.oddness import CHOSEN, LEVELS, Usual, features_of, scores
from fokker.metrics import auroc
from fokker.runs.config import ImageData
from fokker.tasks.trained import check_trained
from pathlib import Path
from studies import results
from torch import Tensor

SYNTHETIC = ("noise", "constant", "blurred")
BLUR = 2.0  # pixels


def blurred(pixels: Tensor) -> Tensor:
    r"""Returns images blurred by a Gaussian, bytes."""
    k = torch.arange(-6, 7, dtype=torch.float32)
    kernel = torch.exp(-(k**2) / (2 * BLUR**2))
    kernel = (kernel / kernel.sum()).expand(pixels.shape[1], -1)
    x = F.pad(pixels.float(), (6, 6, 6, 6), mode="reflect")
    for weight in (kernel[:, None, None, :], kernel[:, None, :, None]):
        x = F.conv2d(x, weight, groups=pixels.shape[1])
    return x.round().clamp(0, 255).to(torch.uint8)


def pixels_of(
    name: str, own: Tensor, shape: tuple[int, ...], folder: str | None, n: int
) -> Tensor:
    r"""Returns n test images of a set, bytes of the shape of an image of the energy.

    Arguments:
        name: The name of the set, or one of `SYNTHETIC`.
        own: Test images of the set of the energy.
        shape: The shape (C, H, W).
        folder: The folder of the named sets; that of `FOKKER_DATA` if not given.
        n: The number of images, or all of fewer.
    """
    generator = torch.Generator().manual_seed(0)
    if name == "noise":
        return torch.randint(256, (n, *shape), generator=generator, dtype=torch.uint8)
    if name == "constant":
        colors = torch.randint(256, (n, shape[0], 1, 1), generator=generator, dtype=torch.uint8)
        return colors.expand(n, *shape).contiguous()
    if name == "blurred":
        return blurred(own[:n])
    size = None if shape[1:] == (32, 32) and name != "fashion_mnist" else shape[1]
    pixels = read_images(name, "test", folder, size=size).pixels
    if pixels.shape[1] != shape[0]:
        if pixels.shape[1] != 1:
            raise ValueError(f"expected grey images for a grey energy, got {name}, of colour")
        pixels = pixels.expand(-1, shape[0], -1, -1)
    if tuple(pixels.shape[1:]) != tuple(shape):
        raise ValueError(
            f"expected images of shape {shape}, got {tuple(pixels.shape[1:])}, {name}"
        )
    rows = torch.randperm(len(pixels), generator=generator)[:n]
    return pixels[rows]


def run(
    out: Path,
    name: str,
    tests: Sequence[str],
    n: int,
    usual: int,
    folder: str | None = None,
    device: str = "cpu",
    batch: int = 64,
    command: str = "fokker reproduce ood",
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Scores test images of several sets by a run and writes a row for each set, rule and level;
    rows of other runs in the file stay."""
    model = load(name)
    check_trained(model)
    data = model.config.data
    if not isinstance(data, ImageData):
        raise ValueError(f"expected a run on images, got {name}, a run on {data}")
    checks.at_least(2, images=n)
    energy, shape = model.energy_on(device, exact=True), model.shape
    split = lambda part: read_images(data.source, part, folder or data.data_dir, size=data.size)
    train, own = split("train").pixels, split("test").pixels
    order = torch.Generator().manual_seed(0)
    some = train[torch.randperm(len(train), generator=order)[:usual]]
    own = own[torch.randperm(len(own), generator=order)[:n]]
    look = lambda pixels: features_of(energy, pixels, LEVELS, batch, device)
    count = len(some) + len(own) + n * len(tests)
    on = torch.device(device)
    forecast("reproduce ood", energy, shape, count, batch, len(LEVELS), on)
    known = Usual.fit(look(some))
    mine = scores(known, look(own))
    made = {**results.provenance(device), "train": data.title, "step": model.chosen}
    made |= {"run": Path(name).name, "usual": len(some)}
    kept = results.load(out)["rows"] if out.exists() else []
    rows, rest = [], kept
    for test in tests:
        pixels = pixels_of(test, own, shape, folder or data.data_dir, n)
        theirs = scores(known, look(pixels))
        for (rule, level), values in theirs.items():
            area = auroc(mine[rule, level], values)
            row = {"test": test, "rule": rule, "level": level, "auroc": area}
            row |= {"images": len(values), "own": len(own), "chosen": rule == CHOSEN}
            rows.append({**made, **row})
        fresh = {(r["run"], r["test"]) for r in rows}
        rest = [r for r in kept if (r["run"], r["test"]) not in fresh]
        results.save(out, rest + rows, command, device=device)
        best = max(r["auroc"] for r in rows if r["test"] == test)
        told = {r["rule"]: r["auroc"] for r in rows if r["test"] == test and r["chosen"]}
        progress(f"{test}: {told}, best of all {best:.3f}")
    return rest + rows
