r"""Likelihoods of images in words: by the flow, in one pass, and of training against test."""

__all__ = ["beyond", "told_bits", "told_memory"]

import math
import torch

from typing import Any

from .base import Line
from ..images.likelihood import Bits, agreement
from ..images.memory import Memory
from ..metrics import Constant
from ..objectives.laws import draw

FEW = 2e-3  # share of the levels of training within a factor of two of an end that is too few


def told_bits(bits: Bits, constant: Constant | None, dimension: int) -> tuple[Line, list[str]]:
    r"""Returns the bits per dimension of images, and the same in words.

    Arguments:
        bits: The bits of each image.
        constant: The constant of the energy; none if its levels are not tied.
        dimension: The number of coordinates of an image.
    """
    mean = float(bits.flow.mean())
    error = float(bits.flow.std() / math.sqrt(len(bits.flow)))
    line: Line = {"bpd": mean, "bpd_error": error, "one_pass": None}
    words = [f"{mean:.3f} ± {error:.3f} bits per dimension"]
    if constant is None or bits.one_pass is None:
        words.append(
            "in one pass: none. The levels of this energy are not tied: each has a constant of its"
            " own, and its value at one level means nothing (train with --time-score or"
            " --classify)"
        )
        return line, words
    one, both = bits.one_pass, agreement(bits.flow, bits.one_pass)
    nats = 1 / (dimension * math.log(2))
    line |= {
        "one_pass": float(one.mean()),
        "one_pass_error": float(one.std() / math.sqrt(len(one))),
        "difference": both.difference,
        "residual_std": both.residual,
        "correlation": both.correlation,
        "constant": constant.value,
        "constant_error": constant.error,
        "constant_spread": constant.spread,
        "seconds": bits.flow_seconds,
        "one_pass_seconds": bits.one_pass_seconds,
    }
    words.append(
        f"{line['one_pass']:.3f} ± {line['one_pass_error']:.3f} bits per dimension in one pass,"
        f" with the constant of the top level ({constant.value:.2f} ± {constant.error:.2g} nats,"
        f" {nats * constant.error:.2g} bits per dimension)"
    )
    told = (
        f"image by image: one pass minus flow {both.difference:+.3f} ± {both.error:.3f},"
        f" standard deviation {both.residual:.3f}, correlation {both.correlation:.4f};"
        f" {1000 * bits.one_pass_seconds:.1f} ms an image in one pass, {bits.flow_seconds:.2g} s"
        " by the flow"
    )
    return line, [*words, told]


def beyond(objective: Any, low: float, high: float) -> list[str]:
    r"""Returns a warning if an objective hardly ever draws a level near either end of a
    likelihood; nothing otherwise."""
    levels = draw(objective.level, torch.zeros(2**16, 1), torch.Generator().manual_seed(0))
    shares = {low: (levels < 2 * low), high: (levels > high / 2)}
    few = {f"{end:g}": float(near.double().mean()) for end, near in shares.items()}
    lacking = [f"{100 * v:.2g} % of them near {end}" for end, v in few.items() if v < FEW]
    if not lacking:
        return []
    return [f"levels of training are few at the ends: {' and '.join(lacking)} (--levels wide)"]


def told_memory(rows: list[Memory], near: dict[str, float], count: int) -> tuple[Line, list[str]]:
    r"""Returns how training and test images compare, and the same in words.

    Arguments:
        rows: The comparison at each level.
        near: The median distance to the nearest training image, by split.
        count: The number of images of each split.
    """
    line: Line = {"memory_n": count}
    words = [f"energy of {count:,} test images minus that of training images, AUROC (0.5: none)"]
    for row in rows:
        for name, value in (("gap", row.gap), ("error", row.error), ("auroc", row.auroc)):
            line[f"memory_{name}_{row.sigma:g}"] = value
        words.append(
            f"  at {row.sigma:g}: {row.gap:+.2f} ± {row.error:.2f} nats, AUROC {row.auroc:.3f}"
        )
    line |= {"nearest_test": near["test"], "nearest_train": near["train"]}
    words.append(
        f"nearest training image, median RMSE: {near['test']:.3f} from a test image,"
        f" {near['train']:.3f} from a training image to another"
    )
    return line, words
