r"""Scores of picture files under an energy of images: a file of one line per picture.

A picture of another size is cropped to a square from its center and resized. Grey pictures become
colour where the energy is of colour; colour pictures do not become grey.
"""

__all__ = ["pictures_of", "score_pictures"]

import csv
import io
import numpy as np
import torch

from collections.abc import Sequence
from pathlib import Path
from torch import Tensor
from typing import Any

from .. import checks
from ..data.picture import as_channels, decode, read_bytes
from ..files import write_text
from ..images.oddness import CHOSEN, LEVELS, Usual, features_of, scores

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def pictures_of(place: Path, shape: tuple[int, ...]) -> tuple[list[Path], Tensor, int]:
    r"""Returns the pictures of a file or of a folder: their paths, their pixels as bytes
    (N, C, H, W), and how many were resized.

    Arguments:
        place: The file, or a folder with such files.
        shape: The shape (C, H, W) of an image of the energy.
    """
    if not place.exists():
        raise ValueError(f"expected a picture or a folder of pictures, got none at {place}")
    paths = [place]
    if place.is_dir():
        paths = sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise ValueError(f"{place}: expected pictures ({', '.join(SUFFIXES)}), got none")
    channels, height, width = shape
    found, resized = [], 0
    for path in paths:
        content = read_bytes(path)
        x = decode(content, str(path))
        if x.shape[1:] != (height, width):
            if height != width:
                raise ValueError(
                    f"{path}: expected a picture of {width}x{height}, got"
                    f" {x.shape[2]}x{x.shape[1]}"
                )
            x, resized = decode(content, str(path), size=height), resized + 1
        found.append(as_channels(x, channels, str(path)))
    return paths, torch.from_numpy(np.stack(found)), resized


def score_pictures(
    energy: Any,
    paths: Sequence[Path],
    pixels: Tensor,
    usual: Usual | None,
    out: Path,
    alarm_rate: float | None,
    device: torch.device | str,
) -> list[str]:
    r"""Writes the scores of pictures and returns notes about them.

    Arguments:
        energy: The energy of every level, on the device.
        paths: The paths of the pictures.
        pixels: Their pixels, bytes (N, C, H, W).
        usual: What is usual; without it there are energies and norms alone.
        out: The file, .csv.
        alarm_rate: The p-value from which on a picture is an alarm, if alarms are asked for.
        device: The device.
    """
    found = features_of(energy, pixels, LEVELS, device=device)
    columns: dict[str, list[str]] = {"file": [str(path) for path in paths]}
    nine = lambda values: [f"{v:.9g}" for v in values.tolist()]
    notes = []
    if usual is None:
        for k, sigma in enumerate(LEVELS):
            columns[f"energy_{sigma:g}"] = nine(found.energy[:, k])
            columns[f"score_{sigma:g}"] = nine(found.norm[:, k])
        notes.append("no rule compares with training images: there are none on this machine")
    else:
        for (rule, sigma), values in scores(usual, found).items():
            columns[rule if sigma is None else f"{rule}_{sigma:g}"] = nine(values)
        p = usual.p_values(found)
        columns["p_value"] = nine(p)
        notes.append(
            f"p_value: the share of {len(usual.kept)} training images kept aside that are as odd"
            f" by the rule {CHOSEN}; median {float(p.median()):.3g}"
        )
        if alarm_rate is not None:
            alarms = p <= alarm_rate
            columns["alarm"] = [str(int(a)) for a in alarms.tolist()]
            few = ""
            if (len(usual.kept) + 1) * alarm_rate < 1:
                few = f"; {len(usual.kept)} images kept aside are too few for this rate (--usual)"
            notes.append(f"{int(alarms.sum())} alarms at a rate of {alarm_rate:g}{few}")
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    checks.place(out, (".csv",))
    write_text(out, text.getvalue())
    return notes
