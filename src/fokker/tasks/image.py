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

__all__ = ["ImageTask"]

import hashlib
import math
import time
import torch
import warnings

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from torch import Tensor
from typing import Any, Self

from .base import Line, Run, Task, TooLate
from .cleaning import denoise_file, progress
from .figures import FIGURES, foretell, of_each
from .options import Denoising, Drawing, Evaluation, Restoration, Scoring
from .pictures import pictures_of, score_pictures
from .restoring import restore_file
from .trained import check_drawable, check_trained, guided, level_of, levels_of
from .. import checks
from ..compute.field import field_of
from ..compute.ranks import ALONE, Ranks, join
from ..data.augment import augment
from ..data.images import Images, read_images, read_labels
from ..data.picture import describe, save_png, to_float
from ..data.sources import SPLITS
from ..files import first_line, inner_folder, save_npy
from ..images.denoise import LEVELS, denoise, errors, noisy, rmse
from ..images.forecast import forecast
from ..images.generate import DivergedEnergy, Sampling, generate
from ..images.oddness import LEVELS as ODD_LEVELS
from ..images.oddness import Usual, features_of
from ..images.quality import Reference, described, judge_images, reference_of
from ..metrics import Extractor, Statistics, dequantize, load_inception
from ..pace import Pace, told
from ..runs.config import Config, ImageData
from ..samplers import (
    Field,
    Heun,
    OfClasses,
)

SHOWN = 10  # images in the report
PREVIEWS = 4  # grids of samples in the report
CHUNK, BATCH = 1000, 250  # samples between two looks at the clock, and at once
JUDGED, FEW = 256, 32  # images to judge by while training, on a GPU and on a CPU


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
        self.pace: Pace | None = None  # of a judgement that is asked for
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
        check_drawable(run)
        with join(drawing.device) as ranks:
            energy = guided(run, guide, ranks.device, drawing.sampling.corrector > 0)
            if drawing.classes:
                self.check_classes(run, drawing.classes, guide)
                energy = OfClasses(energy, drawing.classes, drawing.class_weight)
                energy = energy.to(ranks.device)
            batches = -(-len(ranks.among(n)) // drawing.batch)
            total = batches * drawing.sampling.flow(1).evaluations
            pace = Pace(f"{n} images", total, told if ranks.first else None)
            console = Console(stderr=True)
            hidden = not (ranks.first and console.is_terminal)
            with Progress(console=console, transient=True, disable=hidden) as bar:
                shown = bar.add_task("drawing", total=total)

                def tick() -> None:
                    bar.advance(shown)
                    pace.done()

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

    def score(self, run: Run, points: Path, out: Path, scoring: Scoring = Scoring()) -> str:
        r"""Scores a picture or the pictures of a folder by how odd they are to the energy."""
        scoring, path = scoring.checked, Path(points)
        checks.place(out, (".csv",))
        if scoring.explain:
            raise self.refuse("a run on a table for --explain", run)
        check_trained(run)
        paths, pixels, resized = pictures_of(path, run.shape)
        energy, device = run.energy_on(scoring.device, exact=True), scoring.device
        known = scoring.fetch or self.data.at_hand
        if scoring.alarm_rate is not None and not known:
            also = "" if self.data.absent() is None else "; --fetch fetches them"
            raise ValueError(
                f"expected the training images of {run.path} on this machine for --alarm-rate,"
                f" got none{also}"
            )
        usual, count = None, scoring.usual * known + len(paths)
        forecast("scores", energy, run.shape, count, 64, len(ODD_LEVELS), torch.device(device))
        if known:
            train = run.loaded(scoring.fetch).pixels("train")
            rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
            some = train[rows[: scoring.usual].to(train.device)]
            usual = Usual.fit(features_of(energy, some, device=device))
        notes = score_pictures(energy, paths, pixels, usual, out, scoring.alarm_rate, device)
        if resized:
            notes.append(f"{resized} pictures cropped and resized to {run.shape[1]} pixels")
        return "\n".join([f"{len(paths)} pictures: {out}, by {run.weights}", *notes])

    def denoise(self, run: Run, picture: Path, out: Path, denoising: Denoising) -> str:
        return denoise_file(run, picture, out, denoising)

    def restore(self, run: Run, picture: Path, out: Path, restoration: Restoration) -> str:
        if self.level is not None:
            raise ValueError(
                f"expected an energy of every level to restore with, got {run.path}, of the level"
                f" {self.level:.3g} alone"
            )
        levels = levels_of(run.config.objective)
        return restore_file(run, picture, out, restoration, levels, progress)

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
                if self.pace is not None:
                    self.pace.done()
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
            fast = of_each(fast, self.classes, chunk, device) if self.classes else fast
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
                statistics = Statistics.of(features[:n], extractor.convention, extractor.weights)
                reference = reference_of(self.images["train"], extractor, BATCH)
                some = Reference(statistics, features[:n])
                fid, kid = judge_images(some, reference, extractor, BATCH)
                line = {**head, "fid": fid.value, "fid_n": n, "convention": fid.convention}
                line |= {"weights": fid.weights[:8], "kid": None if kid is None else kid.mean}
                lines.append(line | {"judging_seconds": time.perf_counter() - clock})
        return ranks.tell(lines)

    def evaluate(
        self, run: Run, evaluation: Evaluation, guide: tuple[Run, float] | None, ranks: Ranks
    ) -> tuple[Line, list[str]]:
        if not evaluation.asked:
            job = f"denoising at {len(self.levels)} levels"
            self.pace = Pace(job, len(self.levels), told if ranks.first else None)
            return self.judge_run(run, ranks)
        check_trained(run)
        if "fid" in evaluation.asked:
            check_drawable(run)
        line: Line = {"step": run.chosen}
        said = [f"by {run.weights}"]
        for name in evaluation.asked:
            foretell(self, run, name, evaluation, ranks)
            more, words = FIGURES[name](self, run, evaluation, guide, ranks)
            line |= more
            said += words
        return line, said

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
