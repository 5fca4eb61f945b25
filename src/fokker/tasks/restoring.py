r"""Restoring a picture file with a run on images: what `fokker restore` does."""

__all__ = ["operator_of", "restore_file"]

import torch

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from .base import Run
from .options import Restoration
from .. import checks
from ..data.deep import read_picture, save_picture
from ..data.picture import place_of_png, save_png
from ..images.operators import Blur, Downscale, Mask, Operator, gaussian_kernel
from ..images.photograph import of_255, to_255
from ..images.restore import restore

Progress = Callable[[str], AbstractContextManager[Callable[[float], None]]]


def operator_of(restoration: Restoration) -> Operator:
    r"""Returns the operator that the options describe."""
    if restoration.scale is not None:
        return Downscale(restoration.scale)
    if restoration.mask is not None:
        x, _ = read_picture(restoration.mask)
        return Mask((x.mean(0) > 0).float())
    name, _, width = str(restoration.blur).partition(":")
    if name == "gaussian" and width:
        try:
            sigma = float(width)
        except ValueError:
            raise ValueError(
                f"expected a number of pixels at --blur gaussian:S, got {checks.brief(width)}"
            ) from None
        return Blur(gaussian_kernel(sigma).float())
    if not Path(str(restoration.blur)).is_file():
        raise ValueError(
            f"expected gaussian:S or the file of a kernel at --blur, got {restoration.blur!r}"
        )
    x, _ = read_picture(Path(str(restoration.blur)))
    weight = (x.mean(0) + 1) / 2
    if not float(weight.sum()) > 0:
        raise ValueError(f"{restoration.blur}: expected a kernel that is not black, got one")
    return Blur(weight / weight.sum())


def restore_file(
    run: Run,
    picture: Path,
    out: Path,
    restoration: Restoration,
    levels: tuple[float, float],
    progress: Progress,
) -> str:
    r"""Restores a picture, writes it and what else was asked for, and returns lines about it.

    Arguments:
        run: The run, an energy of every level.
        picture: The file of the picture.
        out: The PNG to be written.
        restoration: What has happened to the picture.
        levels: The lowest and the highest level that the energy was trained on.
        progress: The progress bar of a name.
    """
    beside = lambda name: out.with_stem(f"{out.stem}-{name}")
    names = ["mean", "deviation"] + [f"sample-{k + 1}" for k in range(restoration.samples)]
    places = [place_of_png(out)]
    places += [place_of_png(beside(name)) for name in names] if restoration.samples else []
    for place in places:
        checks.another(place, picture, "the picture")
        if restoration.mask is not None:
            checks.another(place, restoration.mask, "the mask")
    y, bits = read_picture(picture)
    operator = operator_of(restoration)
    device, sigma = torch.device(restoration.device), of_255(sigma=restoration.sigma)
    generator = torch.Generator(device).manual_seed(restoration.seed)
    try:
        with progress(picture.name) as watch:
            found = restore(
                run.energy_on(device, exact=True), y.to(device), run.shape, operator, sigma,
                *levels, restoration.levels, restoration.steps, restoration.samples,
                restoration.moves, not restoration.uncorrected, restoration.tile // 8 * 8,
                generator, watch,
            )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{picture}: {error}") from error
    save_picture(out, found.picture, bits)
    _, h, w = found.picture.shape
    steps = sum(down.evaluations for down in found.descended)
    total = sum(found.energy)
    said = [f"{w}x{h} after {steps} steps, posterior energy {total:.6g}: {out}"]
    if found.samples is None or found.mean is None or found.deviation is None:
        return said[0]
    save_picture(beside("mean"), found.mean, bits)
    shown = (4 * to_255(1.0) * found.deviation).clamp_max(255) / 127.5 - 1
    save_png(beside("deviation"), shown)
    for k, x in enumerate(found.samples):
        save_picture(beside(f"sample-{k + 1}"), x, bits)
    accepted = "taken" if restoration.uncorrected else f"acceptance {found.acceptance:.2f} or more"
    said.append(
        f"{restoration.samples} samples ({accepted}), deviation"
        f" {to_255(float(found.deviation.mean())):.3g} of 255 in the mean: {beside('mean')},"
        f" {beside('deviation')}, {beside('sample-1')}"
    )
    return "\n".join(said)
