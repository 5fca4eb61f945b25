r"""Figures of an energy of images that are computed when they are asked for.

Each function of `FIGURES` returns the figures, as a line of the metrics, and what they say in
words. On several ranks (`fokker.compute.ranks`) the work is shared out.
"""

__all__ = ["FIGURES", "foretell", "of_each"]

import math
import torch

from collections.abc import Callable, Sequence
from dataclasses import replace
from torch import Tensor
from typing import Any, Protocol

from .base import Line, Run
from .likelihoods import beyond, told_bits, told_memory
from .options import Evaluation
from .trained import guided, is_tied
from ..compute.ranks import Ranks
from ..data.images import Images
from ..data.picture import to_float
from ..images.denoise import noisy
from ..images.forecast import forecast
from ..images.generate import generate
from ..images.likelihood import bits_by_image, constant_of, residuals_of
from ..images.memory import memory_of, nearest
from ..images.quality import described, judge_images, reference_of
from ..metrics import load_inception
from ..samplers import OfClasses, calibrate, class_energies, log_probs

# about how many gradients a batch takes of each figure; those of the samples for --fid, and those
# of a class for --accuracy, for which an energy without a gradient counts a half
GRADIENTS = {"fid": None, "bpd": 450, "residual": 30, "memory": 5, "accuracy": 3}
CLASSIFIED = (0.1, 0.2, 0.4)  # noise levels at which a classifier is judged

Guide = tuple[Run, float] | None  # a worse run, and the weight of guidance
Told = tuple[Line, list[str]]  # figures, and what they say


class Loaded(Protocol):
    r"""The task of a set of images with its data loaded."""

    classes: int
    images: dict[str, Images]

    def pixels(self, split: str) -> Tensor: ...

    def labels(self, split: str) -> Tensor: ...

    def check_classes(self, run: Run, labels: Sequence[int], guide: Guide = None) -> None: ...


def foretell(task: Loaded, run: Run, name: str, evaluation: Evaluation, ranks: Ranks) -> None:
    r"""Says about how long a figure will take, on the first rank, if that is long."""
    if not (ranks.first and name in GRADIENTS):
        return
    n, batch, device = evaluation.asked[name], evaluation.batch, ranks.device
    gradients = GRADIENTS[name] or evaluation.sampling.flow(1).evaluations
    if name == "accuracy":
        gradients *= max(1, task.classes)
    energy, share = run.energy_on(device, exact=name == "bpd"), -(-n // ranks.size)
    forecast(f"--{name} {n}", energy, run.shape, share, batch, gradients, device)


def residual(task: Loaded, run: Run, evaluation: Evaluation, guide: Guide, ranks: Ranks) -> Told:
    r"""Returns how much the energies of neighboring levels disagree."""
    test = task.pixels("test")[: evaluation.residual]
    levels = residuals_of(
        run.energy_on(ranks.device, exact=True),
        test,
        evaluation.batch,
        evaluation.seed,
        ranks.device,
    )
    told = (
        f"{f'{v**0.5:.3g} nats' if v > 0 else 'none to be seen'} at {sigma}"
        for sigma, v in levels.items()
    )
    words = (
        f"Fokker-Planck residual, its std times σ² over {len(test):,} noisy test images:"
        f" {', '.join(told)}"
    )
    return {f"residual_{sigma}": v for sigma, v in levels.items()}, [words]


def bpd(task: Loaded, run: Run, evaluation: Evaluation, guide: Guide, ranks: Ranks) -> Told:
    r"""Returns the likelihood of test images, by the flow and in one pass."""
    test, sampling = task.pixels("test")[: evaluation.bpd], evaluation.sampling
    train, energy = task.pixels("train"), run.energy_on(ranks.device, exact=True)
    options = (sampling, evaluation.batch, evaluation.seed, ranks.device)
    constant = constant_of(energy, train, *options) if is_tied(run) else None
    bits = bits_by_image(
        energy, test, train, *options, ranks=ranks, constant=constant, probes=evaluation.probes
    )
    line, words = told_bits(bits, constant, math.prod(run.shape))
    words[0] += (
        f" ({len(test):,} test images with uniform noise as wide as one of 256 levels, by the"
        f" flow from {sampling.sigma_min:g} to {sampling.sigma_max:g})"
    )
    words += beyond(run.config.objective, sampling.sigma_min, sampling.sigma_max)
    if evaluation.residual is None:  # beside it in any case
        few = replace(evaluation, residual=min(len(test), 64))
        more, said = residual(task, run, few, guide, ranks)
        line, words = line | more, words + said
    return line | {"bpd_n": len(test)}, words


def memory(task: Loaded, run: Run, evaluation: Evaluation, guide: Guide, ranks: Ranks) -> Told:
    r"""Returns whether training images are likelier than test images, on the first rank."""
    assert evaluation.memory is not None
    energy = run.energy_on(ranks.device, exact=True)
    if not ranks.first:
        return {}, []
    count = evaluation.memory
    train, test = (task.pixels(split) for split in ("train", "test"))
    options = (evaluation.batch, evaluation.seed, ranks.device)
    rows = memory_of(energy, train[:count], test[:count], *options)
    near = {
        "test": nearest(to_float(test[:count]).to(ranks.device), train)[0],
        "train": nearest(to_float(train[:count]).to(ranks.device), train, others=True)[0],
    }
    return told_memory(rows, {k: float(v.median()) for k, v in near.items()}, count)


def of_each(
    energy: Any, classes: int, batch: int, device: torch.device, weight: float = 1.0
) -> OfClasses:
    r"""Returns the energy of the classes in turn, for batches of a multiple of their
    number."""
    return OfClasses(energy, [torch.arange(batch) % classes], weight).to(device)


def accuracy(task: Loaded, run: Run, evaluation: Evaluation, guide: Guide, ranks: Ranks) -> Told:
    r"""Returns how often the classifier of the energies is right on test images with a little
    noise; its bias is found on as many training images."""
    task.check_classes(run, ())
    assert evaluation.accuracy is not None
    energy, device = run.energy_on(ranks.device, exact=True), ranks.device
    line: Line = {"accuracy_n": min(evaluation.accuracy, len(task.pixels("test")))}

    def found(split: str, sigma: float) -> tuple[Tensor, Tensor]:
        x = to_float(task.pixels(split)[: evaluation.accuracy].to(device))
        x, label = noisy(x, sigma, evaluation.seed), task.labels(split)[: len(x)]
        energies = class_energies(energy, x, sigma, task.classes, evaluation.batch)
        return energies.cpu(), label

    told = []
    for sigma in CLASSIFIED:
        bias = calibrate(*found("train", sigma))
        energies, label = found("test", sigma)
        right = (log_probs(energies, bias).argmax(1) == label).double().mean()
        line[f"accuracy_{sigma}"] = float(right)
        told.append(f"{100 * float(right):.1f} % at {sigma}")
    words = f"accuracy of the classifier on {line['accuracy_n']:,} test images:"
    return line, [f"{words} {', '.join(told)}"]


def fid(task: Loaded, run: Run, evaluation: Evaluation, guide: Guide, ranks: Ranks) -> Told:
    r"""Returns how near samples are to the training images; on the first rank."""
    device, batch, sampling = ranks.device, evaluation.batch, evaluation.sampling
    assert evaluation.fid is not None
    extractor = ranks.each(
        lambda: load_inception(evaluation.inception, evaluation.convention, device)
    )
    energy = guided(run, guide, device, sampling.corrector > 0)
    if evaluation.each_class:
        task.check_classes(run, (), guide)
        batch = max(task.classes, batch - batch % task.classes)
        energy = of_each(energy, task.classes, batch, device, evaluation.class_weight)
    drawn = generate(
        energy,
        evaluation.fid,
        run.shape,
        sampling,
        evaluation.seed,
        batch,
        device=device,
        ranks=ranks,
    )
    features = described(drawn.images, extractor, batch, ranks)
    if not ranks.first:  # the reference is computed once per set, by the first
        return {}, []
    reference = reference_of(task.images["train"], extractor, batch)
    found, kid = judge_images(features, reference, extractor)
    line: Line = {"fid": found.value, "fid_n": evaluation.fid, "convention": found.convention}
    line |= {"nfe": drawn.evaluations, "kid": None if kid is None else kid.mean}
    words, also = [], ""
    if evaluation.each_class:
        line |= {"conditional": True, "class_weight": evaluation.class_weight}
        words = [f"of each class in turn, weight {evaluation.class_weight:g}"]
    if guide is not None:
        name, also = str(guide[0].path), " and as many of the guide"
        line |= {"guide": name, "guidance": guide[1]}
        words = [f"guided by {name}, weight {guide[1]:g}"]
    return line, [*words, f"{found}, {drawn.evaluations} evaluations per image{also}", str(kid)]


FIGURES: dict[str, Callable[..., Told]] = {
    "fid": fid,
    "bpd": bpd,
    "residual": residual,
    "memory": memory,
    "accuracy": accuracy,
}
