r"""What the generation study consists of.

====================================  ============================================================
`PART/run/`                           the run (`fokker.runs.folder`)
`PART/snapshots/step-K.safetensors`   averaged weights in bfloat16, with the seconds of training
`PART/samples/DRAW/00000.npy`         images, bytes (N, C, H, W), and `.json`, how they were drawn
`PART/rows/*.json`                    the figures
`PART/diverged.txt`                   why training stopped before its end, if it diverged
`PART/nearest.npz`                    distances to the nearest training image
`PART/energies.npz`                   energies of noisy images at each level
====================================  ============================================================

**Draws**, each of one set of weights and one sampler:

===========  =====================================================================================
`final`      the last weights, as many images as the training set has, 18 Heun steps
`snapshot`   each snapshot, fewer images: FID along training
`steps`      the last weights with fewer or more Heun steps, and by `multistep`
`corrector`  the last weights with a MALA transition at each level, accepted by the energy; its
layers
             in float32
`guided`     the last weights, guided away from those of the small network on the same set
             (`fokker.samplers.guidance`), where that is trained
===========  =====================================================================================
"""

__all__ = [
    "DRAWS",
    "GUIDE",
    "METHODS",
    "STAGES",
    "VARIANTS",
    "Clock",
    "Draw",
    "Part",
    "Settings",
    "draws_of",
    "guide_of",
    "trained_guide",
]

import time

from dataclasses import dataclass, replace
from fokker import checks
from fokker.images.generate import Sampling
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.config import Config, ImageData, UNet
from fokker.runs.folder import read_config
from fokker.runs.guard import Guard
from fokker.runs.presets import generation_config
from fokker.tasks import Run
from pathlib import Path

STAGES = ("train", "sample", "fid", "figures")
DRAWS = ("final", "snapshot", "steps", "corrector", "guided")
METHODS = (
    ("paper", "dcd"),
    ("paper", "dcd-limit"),
    ("fokker", "dcd"),
    ("fokker", "dcd-limit"),
    ("fokker", "reference"),
)
VARIANTS = (  # only where asked for
    ("paper", "dcd-grid"),
    ("paper", "dcd-grid-bridge"),
    ("fokker", "dcd-central"),
    ("fokker", "dcd-vp"),
)
MIRRORED = ("cifar10", "celeba32")  # sets whose mirror images are as likely
STEPS = (6, 9, 12, 27)  # of Heun, beside 18
MULTISTEPS = (12, 18, 24, 35)  # of as many evaluations
CORRECTED = (9, 18)  # steps with a corrector
GUIDE = "small"  # the size that guides the others
POINTS = 6  # evaluations of a run at least, which snapshots follow


class Clock:
    r"""Creates a limit on the time of a call.

    Arguments:
        minutes: The minutes from now; no limit if not given.
    """

    def __init__(self, minutes: float | None = None) -> None:
        if minutes is not None:
            checks.not_negative(minutes=minutes)
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    @property
    def left(self) -> float | None:
        r"""The minutes that are left, zero or more; `None` without a limit."""
        return None if self.end is None else max(0.0, self.end - time.monotonic()) / 60

    @property
    def over(self) -> bool:
        r"""Whether the time is over."""
        return self.left == 0


@dataclass(frozen=True)
class Part:
    r"""One method on one set."""

    data: str
    preset: str
    method: str
    size: str = "15m"
    data_dir: str | None = None
    device: str = "cpu"
    steps: int | None = None  # the preset's if not given
    batch: int | None = None
    quick: bool = False  # a small network, for tests and a first look on a CPU
    restarts: tuple[int, ...] = ()  # steps at which the rate begins anew
    seed: int = 0

    @property
    def name(self) -> str:
        seed = f"-seed{self.seed}" if self.seed else ""
        return f"{Path(self.data).name}-{self.preset}-{self.method}-{self.size}{seed}"

    @property
    def config(self) -> Config:
        name = Path(self.data).name
        images = ImageData(self.data, self.data_dir, flip=name in MIRRORED)
        base = generation_config(
            self.preset, self.method, images, self.size, self.device, self.seed
        )
        given = {"steps": self.steps, "batch": self.batch}
        changed = {k: v for k, v in given.items() if v is not None}
        optimization = replace(base.optimization, **changed, restarts=self.restarts)
        first = min((*self.restarts, optimization.steps))
        base = replace(
            base,
            optimization=optimization,
            evaluate=min(base.evaluate, max(1, first // POINTS)),
            guard=Guard("roll-back"),  # it runs for hours, and nobody watches
        )
        if not self.quick:
            return base
        assert isinstance(base.network, UNet)
        network = replace(base.network, width=8, blocks=1)
        quick = replace(base.optimization, rate=2e-3, warmup=2)
        half = max(1, first // 2)
        return replace(base, network=network, optimization=quick, evaluate=half, preview=0)

    @property
    def sampling(self) -> Sampling:
        r"""The sampler: the paper's lowest level for its preset and for VP, EDM's else."""
        low = self.preset == "paper" or self.method == "dcd-vp"  # no lower level is trained
        base = Sampling(sigma_min=0.01) if low else Sampling()
        return replace(base, steps=4) if self.quick else base


@dataclass(frozen=True)
class Settings:
    r"""How the samples of the study are drawn and judged."""

    count: int | None = None  # images of the final draw; as many as there are to train on
    few: int = 10_000  # images of the other draws
    kinds: tuple[str, ...] = DRAWS
    guidance: tuple[float, ...] = (1.5,)  # weights of the guided draws
    chunk: int = 1000  # images drawn at once, and to a file
    compile: bool = False
    convention: str = "tf"
    inception: Path | None = None
    bits: int = 512  # test images whose likelihood is taken
    near: int = 1000  # images whose nearest training image is sought
    batch: int = 250  # images at once in Inception and the likelihood


@dataclass(frozen=True)
class Draw:
    r"""Images of one set of weights, by one sampler."""

    kind: str
    step: int  # of the weights
    sampling: Sampling
    count: int
    guidance: float = 1.0
    guide_step: int = 0  # of the weights that guide

    @property
    def name(self) -> str:
        sampling = self.sampling
        label = f"{sampling.sampler}{sampling.steps}-c{sampling.corrector}"
        if self.kind == "guided":
            label += f"-g{self.guidance:g}-{self.guide_step:08d}"
        return f"{self.kind}-{self.step:08d}-{label}-{self.count}"


def guide_of(part: Part) -> Part:
    r"""Returns the part whose energy guides another: the same method in small on the same set."""
    return replace(part, size=GUIDE)


def trained_guide(part: Part, folder: Path) -> int | None:
    r"""Returns the steps of the guide of a part; `None` unless it is another and trained to the
    end."""
    place = folder / guide_of(part).name
    if part.size == GUIDE or not any((place / "run" / "checkpoint").glob("step-*")):
        return None
    step = read_checkpoint(place / "run").step
    whole = step >= read_config(place / "run").optimization.steps
    return step if whole and not (place / "diverged.txt").exists() else None


def draws_of(part: Part, run: Run, folder: Path, total: int, settings: Settings) -> list[Draw]:
    r"""Returns the draws of a part that is trained, or being trained.

    Arguments:
        part: The part.
        run: Its run.
        folder: The folder of the study.
        total: The number of training images.
        settings: What is drawn.
    """
    sampling, step = part.sampling, run.step
    count = total if settings.count is None else settings.count
    few = min(settings.few, count)
    steps, corrected, multisteps = STEPS, CORRECTED, MULTISTEPS
    if part.quick:
        steps, corrected, multisteps = (5,), (4,), (4,)
    found = [Draw("final", step, sampling, count)]
    for path in sorted((folder / part.name / "snapshots").glob("step-*.safetensors")):
        found.append(Draw("snapshot", int(path.stem[5:]), sampling, few))
    found += [
        Draw("steps", step, replace(sampling, steps=n), few) for n in (*steps, sampling.steps)
    ]
    other = replace(sampling, sampler="multistep")
    found += [Draw("steps", step, replace(other, steps=n), few) for n in multisteps]
    if part.method != "reference":  # a denoiser has no energy to accept by
        found += [
            Draw("corrector", step, replace(sampling, steps=n, corrector=1), few)
            for n in corrected
        ]
    last = trained_guide(part, folder)
    if last is not None:
        found += [Draw("guided", step, sampling, few, w, last) for w in settings.guidance]
    return [draw for draw in found if draw.kind in settings.kinds]
