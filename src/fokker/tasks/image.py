r"""The task of a set of images.

Training images are drawn at random from the training split, kept on the device as bytes; an energy
is judged by denoising images of the test split at three levels, by the mean over images of the
RMSE, pixels in [−1, 1] (`fokker.images.denoise`, without clipping). An energy of one level is
judged by its one-step rule. The number of images is small while training; a study judges on more.
Each rank denoises its share of them (`fokker.compute.ranks`), with the noise that one rank would
give them.

An energy of every level may leave a **preview** in `previews/step-K.png` at each evaluation:
samples of one seed, so that their change shows what training does. It is drawn after the run is
saved.

With `crop`, training images are random squares of photographs; test images stay whole.
"""

__all__ = ["ImageTask", "check_trained", "guided", "is_tied", "level_of", "levels_of"]

import hashlib
import math
import time
import torch
import warnings

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from torch import Tensor
from typing import Any, Self

from .base import Line, Run, Task, TooLate
from .likelihoods import beyond, told_bits, told_memory
from .options import Denoising, Drawing, Evaluation, Restoration, Scoring
from .pictures import pictures_of, score_pictures
from .restoring import restore_file
from .. import checks, objectives
from ..compute.field import field_of
from ..compute.ranks import ALONE, Ranks, join
from ..data.augment import augment
from ..data.deep import read_picture, save_picture
from ..data.images import Images, read_images, read_labels
from ..data.picture import describe, place_of_png, save_png, to_float
from ..data.sources import SPLITS
from ..files import first_line, inner_folder, save_npy
from ..images.color import SCALES
from ..images.denoise import LEVELS, RULES, denoise, errors, noisy, rmse
from ..images.forecast import forecast
from ..images.generate import DivergedEnergy, Sampling, generate
from ..images.likelihood import bits_by_image, constant_of, residuals_of
from ..images.memory import memory_of, nearest
from ..images.oddness import Usual, features_of
from ..images.photograph import clean_photograph, noise_of, of_255, to_255
from ..images.quality import Reference, described, judge_images, reference_of
from ..metrics import Extractor, Statistics, dequantize, load_inception
from ..networks import UNetDenoiser, UNetEnergy
from ..objectives import LevelDCD, Noisy, Objective
from ..objectives.laws import draw
from ..runs.config import Config, ImageData
from ..samplers import (
    Field,
    Guided,
    Heun,
    OfClasses,
    calibrate,
    class_energies,
    log_probs,
)

SHOWN = 10  # images in the report
PREVIEWS = 4  # grids of samples in the report
# about how many gradients a batch takes of each figure; those of the samples for --fid
GRADIENTS = {"fid": None, "bpd": 450, "residual": 30}
CLASSIFIED = (0.1, 0.2, 0.4)  # noise levels at which a classifier is judged
CHUNK, BATCH = 1000, 250  # samples between two looks at the clock, and at once
JUDGED, FEW = 256, 32  # images to judge by while training, on a GPU and on a CPU


def level_of(objective: Objective) -> float | None:
    r"""Returns the noise level whose density an objective learns; `None` if it learns many."""
    if isinstance(objective, LevelDCD) and not objective.conditional:
        return objective.learned
    if isinstance(objective, Noisy) and isinstance(objective.level, float):
        return objective.level
    return None


def levels_of(objective: Objective) -> tuple[float, float]:
    r"""Returns the lowest and the highest of many noise levels drawn as an objective draws
    them."""
    if not isinstance(objective, LevelDCD | Noisy | objectives.Denoising):
        names = "LevelDCD, Noisy or Denoising"
        raise ValueError(f"expected an objective with a noise level, {names}, got {objective!r}")
    levels = draw(objective.level, torch.zeros(4096, 1), torch.Generator().manual_seed(0))
    return float(levels.min()), float(levels.max())


def check_trained(run: Run) -> None:
    r"""Raises unless a run is an energy of images at every level, with weights that training has
    changed."""
    model = run.energy
    if not isinstance(model, UNetEnergy | UNetDenoiser):
        raise ValueError(
            f"expected an energy of images at every noise level to draw from, got {run.path},"
            f" a {type(model).__name__}"
        )
    start = run.config.build(run.shape).state_dict()
    if all(torch.equal(v.cpu().to(start[k]), start[k]) for k, v in model.state_dict().items()):
        raise ValueError(f"expected a trained energy, got {run.path}, which is as it was started")


def guided(
    run: Run, guide: tuple[Run, float] | None, device: torch.device | str, exact: bool = False
) -> Any:
    r"""Returns the energy of a run on a device, guided away from that of a worse one if there is
    one (`fokker.samplers.guidance`).

    Arguments:
        run: The run.
        guide: The worse run and the weight of guidance.
        device: The device.
        exact: Whether values of the energy count, see `Run.energy_on`.
    """
    energy = run.energy_on(device, exact)
    if guide is None:
        return energy
    return Guided(energy, guide[0].energy_on(device, exact), guide[1]).to(device)


def is_tied(run: Run) -> bool:
    r"""Returns whether the energies of all levels of a run were trained to have one constant."""
    objective = run.config.objective
    return isinstance(objective, LevelDCD) and bool(objective.ties)


@contextmanager
def progress(name: str) -> Generator[Callable[[float], None], None, None]:
    r"""Shows a progress bar on a terminal, and yields what takes the share of the work done."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(escape(name), total=1.0)
        yield lambda share: bar.advance(shown, share)


class ImageTask(Task):
    r"""Creates the task of a set of images."""

    kind = "images"
    noun = "images"
    merit = "rmse_0.3"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, ImageData)
        self.data, self.level = config.data, level_of(config.objective)
        self.extractor: Extractor | None = None  # of the FIDs at milestones
        self.classes: int = getattr(config.network, "classes", 0)
        self.told: dict[str, Tensor] = {}  # the classes of each split
        self.drawn: tuple[Any, Field] | None = None  # an energy, and the field to draw by
        self.levels = LEVELS
        if self.data.crop is not None:  # photographs: only levels that are trained on
            highest = levels_of(config.objective)[1]
            self.levels = tuple(level for level in LEVELS if level <= highest) or LEVELS[:1]

    # --- without data ---

    def describe(self, line: Line) -> str:
        errors = {k: v for k, v in line.items() if k.startswith("rmse_")}
        shown = [f"{'none' if v is None else f'{v:.4f}'} at {k[5:]}" for k, v in errors.items()]
        return f"step {line['step']}: RMSE of denoised test images {', '.join(shown)}"

    def draw(self, run: Run, drawing: Drawing, guide: tuple[Run, float] | None) -> str | None:
        from rich.console import Console
        from rich.progress import Progress

        n, out = drawing.place(64, Path("samples.png"), (".png", ".npy"))
        check_trained(run)
        with join(drawing.device) as ranks:
            energy = guided(run, guide, ranks.device, drawing.sampling.corrector > 0)
            if drawing.classes:
                self.check_classes(run, drawing.classes, guide)
                energy = OfClasses(energy, drawing.classes, drawing.class_weight)
                energy = energy.to(ranks.device)
            batches = -(-len(ranks.among(n)) // drawing.batch)
            console = Console(stderr=True)
            hidden = not (ranks.first and console.is_terminal)
            with Progress(console=console, transient=True, disable=hidden) as bar:
                shown = bar.add_task(
                    "drawing", total=batches * drawing.sampling.flow(1).evaluations
                )
                tick = lambda: bar.advance(shown)
                field = field_of(energy, ranks.device, tick, drawing.compile)
                drawn = generate(
                    field,
                    n,
                    run.shape,
                    drawing.sampling,
                    drawing.seed,
                    drawing.batch,
                    device=ranks.device,
                    ranks=ranks,
                )
            if not ranks.first:
                return None
        if out.suffix == ".npy":
            save_npy(out, drawn.images.numpy())
        else:
            save_png(out, to_float(drawn.images))
        rate = "" if drawn.acceptance is None else f", acceptance {drawn.acceptance:.2f}"
        also = "" if guide is None else " and as many of the guide"
        return (
            f"{n} images: {out}, {drawn.evaluations} evaluations per image{also},"
            f" {drawn.seconds:.1f} s{rate}, by {run.weights}"
        )

    def check_classes(
        self, run: Run, labels: Sequence[int], guide: tuple[Run, float] | None = None
    ) -> None:
        r"""Raises unless a run is an energy of these classes."""
        if not self.classes:
            raise ValueError(f"expected an energy of classes, got {run.path}, which knows none")
        if guide is not None:
            raise ValueError("expected --guide or classes, got both")
        for label in labels:
            checks.between(0, self.classes - 1, **{"class": label})

    def check_guide(self, run: Run, guide: Run) -> None:
        check_trained(guide)
        if guide.shape != run.shape:
            raise ValueError(
                f"expected a guide for images of shape {run.shape}, got {guide.path}, one for"
                f" {guide.shape}"
            )
        if guide.task.title != self.title:
            warnings.warn(
                f"expected a guide of the same images, {self.title}, got {guide.path}, one of"
                f" {guide.task.title}",
                stacklevel=2,
            )

    def denoise(self, run: Run, picture: Path, out: Path, denoising: Denoising) -> str:
        places, level = self.places(picture, out, denoising), self.level
        if denoising.rule is not None:
            checks.one_of(RULES, rule=denoising.rule)
            if level is None:
                expected = f"no rule for {run.path}, an energy of every level"
                raise ValueError(f"expected {expected}, got {denoising.rule!r}")
        (x, bits), said = read_picture(picture), []
        if denoising.add_noise is not None:
            x = noisy(x, of_255(add_noise=denoising.add_noise))
            save_picture(places["noisy"], x, bits)
            said.append(f"noisy: {places['noisy']}")
        energy = run.energy_on(denoising.device)
        rule, x = denoising.rule or "one-step", x.to(denoising.device)
        low, high = levels_of(run.config.objective)
        try:
            if denoising.sigma is None:
                tied = level is None and is_tied(run)
                sigma, source = noise_of(energy, x, run.shape, tied, low, high)
                source = f"estimated {source}"
            else:
                sigma, source = of_255(sigma=denoising.sigma), "given"
            self.warn(run, x, sigma, low, high)
            with progress(picture.name) as watch:
                clean, spread = clean_photograph(
                    energy, x, run.shape, sigma, level, rule, denoising.uncertainty,
                    denoising.tile // 8 * 8, watch,
                )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"{picture}: {error}") from error
        save_picture(out, clean, bits)
        by = "" if level is None else f", by the rule {rule} from level {to_255(level):.3g}"
        said.append(f"noise {to_255(sigma):.3g} of 255 ({source}){by}: {out}")
        if spread is not None:
            shown = (4 * to_255(1.0) * spread).clamp_max(255) / 127.5 - 1
            save_png(places["deviation"], shown)
            mean = to_255(float(spread.mean()))
            said.append(f"deviation {mean:.3g} of 255 in the mean: {places['deviation']}")
        return "\n".join(said)

    def score(self, run: Run, points: Path, out: Path, scoring: Scoring = Scoring()) -> str:
        r"""Scores a picture or the pictures of a folder by how odd they are to the energy."""
        scoring, path = scoring.checked, Path(points)
        checks.place(out, (".csv",))
        if scoring.explain:
            raise self.refuse("a run on a table for --explain", run)
        check_trained(run)
        paths, pixels, resized = pictures_of(path, run.shape)
        energy, device = run.energy_on(scoring.device, exact=True), scoring.device
        known = scoring.fetch or run.config.data.absent() is None
        if scoring.alarm_rate is not None and not known:
            raise ValueError(
                f"expected the training images of {run.path} on this machine for --alarm-rate,"
                " got none; --fetch fetches them"
            )
        usual = None
        if known:
            train = run.loaded(scoring.fetch).pixels("train")
            rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
            some = train[rows[: scoring.usual].to(train.device)]
            usual = Usual.fit(features_of(energy, some, device=device))
        notes = score_pictures(energy, paths, pixels, usual, out, scoring.alarm_rate, device)
        if resized:
            notes.append(f"{resized} pictures cropped and resized to {run.shape[1]} pixels")
        return "\n".join([f"{len(paths)} pictures: {out}, by {run.weights}", *notes])

    def restore(self, run: Run, picture: Path, out: Path, restoration: Restoration) -> str:
        if self.level is not None:
            raise ValueError(
                f"expected an energy of every level to restore with, got {run.path}, of the level"
                f" {self.level:.3g} alone"
            )
        levels = levels_of(run.config.objective)
        return restore_file(run, picture, out, restoration, levels, progress)

    def warn(self, run: Run, x: Tensor, sigma: float, low: float, high: float) -> None:
        r"""Warns of noise that the energy has not seen."""
        channels, seen, also = run.shape[0], [sigma], ""
        if len(x) < channels:
            seen, also = (
                [sigma * math.sqrt(channels)],
                ", as a grey picture has in a colour energy",
            )
        elif len(x) > channels:
            seen = [sigma * scale for scale in SCALES]
            also = ", as a colour picture has in a grey energy"
        wrong = [s for s in seen if not 0.99 * low <= s <= 1.01 * high]
        if self.level is None and wrong:
            warnings.warn(
                f"expected noise of a level that was trained on, {to_255(low):.3g} to"
                f" {to_255(high):.3g} of 255, got {to_255(wrong[0]):.3g}{also}; the result is a"
                " guess",
                stacklevel=3,
            )

    def places(self, picture: Path, out: Path, denoising: Denoising) -> dict[str, Path]:
        r"""Returns the files that are written, none of them the picture that is read."""
        places = {"clean": place_of_png(out)}
        if denoising.add_noise is not None:
            places["noisy"] = place_of_png(out.with_stem(f"{out.stem}-noisy"))
        if denoising.uncertainty:
            places["deviation"] = place_of_png(out.with_stem(f"{out.stem}-deviation"))
        for place in places.values():
            checks.another(place, picture, "the picture")
        return places

    def shippable(self, run: Run) -> Config:
        check_trained(run)
        return replace(
            run.config,
            data=replace(self.data, source=Path(self.data.source).name, data_dir=None),
            network=replace(run.config.network, precision="float32"),  # pyright: ignore
            device="cpu",
            compile=False,
            slices=1,
        )

    # --- with data ---

    def load(self) -> Self:
        # both splits at once: a fault of the test images is found before there is anything to lose
        self.images: dict[str, Images] = {split: self.read(split) for split in SPLITS}
        self.shape = self.images["train"].shape
        if self.data.crop is not None:  # test images stay whole, and may be of another size
            checks.between(1, min(self.shape[1:]), crop=self.data.crop)
            self.shape = (self.shape[0], self.data.crop, self.data.crop)
        elif (other := self.images["test"].shape) != self.shape:
            raise ValueError(
                f"expected test images like those to train on, {describe(self.shape)}, got"
                f" {describe(other)} in {self.data.source}"
            )
        if self.classes:
            self.labels("train")
        return self

    def fingerprint(self) -> str:
        total = hashlib.sha256()
        for split in SPLITS:
            pixels = self.pixels(split).cpu().contiguous().numpy()
            total.update(repr(pixels.shape).encode())
            total.update(pixels.data)
        return total.hexdigest()

    def read(self, split: str) -> Images:
        data = self.data
        return read_images(data.source, split, data.data_dir, data.size, data.channels)

    def batch(self, n: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        if self.images["train"].pixels.device != device:
            self.images["train"] = self.images["train"].to(device)
        x = self.images["train"].batch(n, generator, self.data.flip, self.data.crop)
        return dequantize(x, generator) if self.data.dequantize else x

    def labelled(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        if not self.classes and not self.data.augment:
            return self.batch(n, generator), None
        device = generator.device
        if self.images["train"].pixels.device != device:
            self.images["train"] = self.images["train"].to(device)
        x, rows = self.images["train"].pick(n, generator, self.data.flip, self.data.crop)
        x = dequantize(x, generator) if self.data.dequantize else x
        told = []
        if self.classes:
            label = self.labels("train").to(device)[rows]
            dropped = torch.rand(n, generator=generator, device=device) < self.data.drop
            label = torch.where(dropped, self.classes, label)
            if not self.data.augment:
                return x, label
            told = [torch.nn.functional.one_hot(label, self.classes + 1).to(x.dtype)]
        x, moves = augment(x, self.data.augment, generator)
        return x, torch.cat([*told, moves], 1)

    def labels(self, split: str) -> Tensor:
        r"""Returns the classes of a split, (N)."""
        if split not in self.told:
            found = read_labels(self.data.source, split, self.data.data_dir)
            if len(found) != len(self.images[split]) or int(found.max()) >= self.classes:
                raise ValueError(
                    f"expected classes 0 to {self.classes - 1} of {len(self.images[split])} images"
                    f" in {self.data.source}, got {len(found)}, up to {int(found.max())}"
                )
            self.told[split] = found
        return self.told[split]

    def pixels(self, split: str) -> Tensor:
        r"""Returns the images of a split, bytes (N, C, H, W)."""
        return self.images[split].pixels

    def test(self, n: int, device: torch.device) -> Tensor:
        r"""Returns the first n test images, in [−1, 1]."""
        return to_float(self.pixels("test")[:n]).to(device)

    def judge(self, energy: Any, device: torch.device, ranks: Ranks = ALONE) -> Line:
        count = FEW if device.type == "cpu" else JUDGED
        clean = ranks.each(lambda: self.test(count, device))
        mine = ranks.among(len(clean))
        mine_only = slice(mine.start, mine.stop)

        def share() -> Tensor:
            found = torch.zeros(len(mine), len(self.levels), dtype=torch.float64)
            for k, sigma in enumerate(self.levels if mine else ()):
                out = denoise(energy, noisy(clean, sigma)[mine_only], sigma, self.level)
                found[:, k] = rmse(out, clean[mine_only])
            return found

        means = ranks.collect(ranks.each(share)).mean(0).tolist()
        line = {f"rmse_{sigma}": mean for sigma, mean in zip(self.levels, means, strict=True)}
        return {k: v if math.isfinite(v) else None for k, v in line.items()}

    def preview(
        self, energy: Any, device: torch.device, folder: Path, step: int, ranks: Ranks = ALONE
    ) -> None:
        if not self.config.preview:
            return
        mine, generator = ranks.among(self.config.preview), torch.Generator().manual_seed(0)

        def share() -> Tensor:
            if not mine:
                return torch.zeros(0, *self.shape)
            drawn = Heun().run(
                energy,
                len(mine),
                self.shape,
                generator,
                first=mine.start,
                device=device,
                dtype=torch.float32,
            )
            return drawn.samples.cpu()

        x, place = ranks.collect(ranks.each(share)), folder / "previews"

        def write() -> None:
            save_png(inner_folder(place) / f"step-{step:08d}.png", x)

        ranks.once(write)

    def prepare_quality(self, device: torch.device) -> None:
        if self.extractor is None:
            self.extractor = load_inception(device=device)

    def quality(
        self,
        energy: Any,
        counts: Sequence[int],
        device: torch.device,
        ranks: Ranks = ALONE,
        left: Callable[[], float | None] = lambda: None,
    ) -> list[Line]:
        ranks.each(lambda: self.prepare_quality(device))
        extractor, total, sampling = self.extractor, max(counts), Sampling()
        chunk = max(self.classes, BATCH - BATCH % max(1, self.classes))
        assert extractor is not None
        if self.drawn is None or self.drawn[0] is not energy:  # captured once for all milestones
            fast = energy if device.type == "cpu" else energy.cast(self.config.precision)
            fast = self.of_each(fast, chunk, device) if self.classes else fast
            self.drawn = (energy, field_of(fast, device))
        parts, seconds, clock = [], 0.0, time.perf_counter()
        head = {"sampler": sampling.sampler, "steps": sampling.steps, "nfe": None, "fid": None}
        head["conditional"] = self.classes > 0
        whole = max(chunk, CHUNK - CHUNK % chunk)
        for begin in range(0, total, whole):
            size = min(whole, total - begin)
            options = {"batch": chunk, "first": begin, "device": device}
            try:
                images = generate(
                    self.drawn[1], size, self.shape, sampling, **options, ranks=ranks
                )
            except DivergedEnergy as error:
                return [{**head, "fid_n": n, "unknown": first_line(error)} for n in counts]
            parts.append(described(images.images, extractor, BATCH, ranks).features)
            head["nfe"], seconds = images.evaluations, seconds + images.seconds
            spent, rest = time.perf_counter() - clock, ranks.tell(left())
            # the first chunk alone waits for the capture: it tells too much, not too little
            if rest is not None and spent / (begin + size) * (total - begin - size) > rest:
                raise TooLate
        features = torch.cat(parts)
        head |= {"samples_per_second": total / seconds, "judging_seconds": None}
        lines = []
        for n in counts:
            if ranks.first:
                own = Statistics.of(features[:n], extractor.convention, extractor.weights)
                reference = reference_of(self.images["train"], extractor, BATCH)
                some = Reference(own, features[:n])
                fid, kid = judge_images(some, reference, extractor, BATCH)
                line = {**head, "fid": fid.value, "fid_n": n, "convention": fid.convention}
                line |= {"weights": fid.weights[:8], "kid": None if kid is None else kid.mean}
                lines.append(line | {"judging_seconds": time.perf_counter() - clock})
        return ranks.tell(lines)

    def evaluate(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        if not evaluation.asked:
            return self.judge_run(run, ranks)
        check_trained(run)
        line: Line = {"step": run.chosen}
        said = [f"by {run.weights}"]
        for name in evaluation.asked:
            self.foretell(run, name, evaluation, ranks)
            more, words = getattr(self, f"evaluate_{name}")(run, evaluation, guide, ranks)
            line |= more
            said += words
        return line, said

    def foretell(self, run: Run, name: str, evaluation: Evaluation, ranks: Ranks) -> None:
        r"""Says about how long a figure will take, on the first rank, if that is long."""
        if not (ranks.first and name in GRADIENTS):
            return
        n, batch, device = evaluation.asked[name], evaluation.batch, ranks.device
        gradients = GRADIENTS[name] or evaluation.sampling.flow(1).evaluations
        energy, share = run.energy_on(device, exact=name == "bpd"), -(-n // ranks.size)
        forecast(f"--{name} {n}", energy, run.shape, share, batch, gradients, device)

    def evaluate_residual(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        r"""Returns how much the energies of neighboring levels disagree."""
        test = self.pixels("test")[: evaluation.residual]
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

    def evaluate_bpd(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        r"""Returns the likelihood of test images, by the flow and in one pass."""
        test, sampling = self.pixels("test")[: evaluation.bpd], evaluation.sampling
        train, energy = self.pixels("train"), run.energy_on(ranks.device, exact=True)
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
            more, said = self.evaluate_residual(run, few, guide, ranks)
            line, words = line | more, words + said
        return line | {"bpd_n": len(test)}, words

    def evaluate_memory(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        r"""Returns whether training images are likelier than test images, on the first rank."""
        assert evaluation.memory is not None
        energy = run.energy_on(ranks.device, exact=True)
        if not ranks.first:
            return {}, []
        count = evaluation.memory
        train, test = (self.pixels(split) for split in ("train", "test"))
        options = (evaluation.batch, evaluation.seed, ranks.device)
        rows = memory_of(energy, train[:count], test[:count], *options)
        near = {
            "test": nearest(to_float(test[:count]).to(ranks.device), train)[0],
            "train": nearest(to_float(train[:count]).to(ranks.device), train, others=True)[0],
        }
        return told_memory(rows, {k: float(v.median()) for k, v in near.items()}, count)

    def of_each(
        self, energy: Any, batch: int, device: torch.device, weight: float = 1.0
    ) -> OfClasses:
        r"""Returns the energy of the classes in turn, for batches of a multiple of their
        number."""
        return OfClasses(energy, [torch.arange(batch) % self.classes], weight).to(device)

    def evaluate_accuracy(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        r"""Returns how often the classifier of the energies is right on test images with a little
        noise; its bias is found on as many training images."""
        self.check_classes(run, ())
        assert evaluation.accuracy is not None
        energy, device = run.energy_on(ranks.device, exact=True), ranks.device
        line: Line = {"accuracy_n": min(evaluation.accuracy, len(self.pixels("test")))}

        def found(split: str, sigma: float) -> tuple[Tensor, Tensor]:
            x = to_float(self.pixels(split)[: evaluation.accuracy].to(device))
            x, label = noisy(x, sigma, evaluation.seed), self.labels(split)[: len(x)]
            energies = class_energies(energy, x, sigma, self.classes, evaluation.batch)
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

    def evaluate_fid(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        r"""Returns how near samples are to the training images; on the first rank."""
        device, batch, sampling = ranks.device, evaluation.batch, evaluation.sampling
        assert evaluation.fid is not None
        extractor = ranks.each(
            lambda: load_inception(evaluation.inception, evaluation.convention, device)
        )
        energy = guided(run, guide, device, sampling.corrector > 0)
        if evaluation.each_class:
            self.check_classes(run, (), guide)
            batch = max(self.classes, batch - batch % self.classes)
            energy = self.of_each(energy, batch, device, evaluation.class_weight)
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
        reference = reference_of(self.images["train"], extractor, batch)
        fid, kid = judge_images(features, reference, extractor)
        line: Line = {"fid": fid.value, "fid_n": evaluation.fid, "convention": fid.convention}
        line |= {"nfe": drawn.evaluations, "kid": None if kid is None else kid.mean}
        words, also = [], ""
        if evaluation.each_class:
            line |= {"conditional": True, "class_weight": evaluation.class_weight}
            words = [f"of each class in turn, weight {evaluation.class_weight:g}"]
        if guide is not None:
            name, also = str(guide[0].path), " and as many of the guide"
            line |= {"guide": name, "guidance": guide[1]}
            words = [f"guided by {name}, weight {guide[1]:g}"]
        return line, [*words, f"{fid}, {drawn.evaluations} evaluations per image{also}", str(kid)]

    def report(self, run: Run) -> str:
        from .reports import image as figures
        from .reports.page import embed, picture, rows

        clean = self.test(SHOWN, torch.device("cpu"))
        lines, numbers = {"clean": clean}, []
        for sigma in self.levels:
            x = noisy(clean, sigma)
            out = denoise(run.energy, x, sigma, self.level)
            lines |= {f"σ = {sigma}": x, "denoised" + " " * len(lines): out}
            found = errors(out, clean)
            numbers.append([str(sigma), *("none" if v is None else f"{v:.4g}" for v in found)])
        pictures = embed(
            figures.strip(lines), run.path / "denoised.png", "clean, noisy and denoised"
        )
        curves = figures.curves_figure(run.metrics, self.levels)
        previews = sorted((run.path / "previews").glob("step-*.png"))
        shown = previews[:: -max(1, math.ceil(len(previews) / PREVIEWS))][
            ::-1
        ]  # the last among them
        drawings = "".join(
            f"<h2>Samples after step {int(path.stem[5:])}</h2>\n"
            f"{picture(path, 'samples', run.path)}\n"
            for path in shown
        )
        these = f"these {len(clean)} test images" if len(clean) > 1 else "this one test image"
        header = ("σ", "mean of RMSE", "RMSE of mean", "PSNR, dB", "SSIM")
        shown = {
            "samples.png": ("Samples", "samples drawn by the energy"),
            "odd.png": ("The oddest pictures, and where", "each picture, and red where it is odd"),
        }
        drawings += "".join(
            f"<h2>{title}</h2>\n{picture(run.path / name, words, run.path)}\n"
            for name, (title, words) in shown.items()
            if (run.path / name).exists()
        )
        return f"""{drawings}<h2>Denoising</h2>
{pictures}
<h2>Errors of {these}</h2>
{rows(numbers, header)}
<h2>Training</h2>
{embed(curves, run.path / "curves.png", "curves of training")}"""
