r"""Presets: the settings of the paper, and our own.

`paper`: what the appendix states. Adam (0.9, 0.99) at a constant rate of 1e-3, no average of the
weights, batch 1,000, 5,000 steps, the plain network 2-300-300-300-1 with GELU; DCD with t = 5e-4
and :math:`G^2 = 1`, CD with 10 and PCD with 20 Langevin steps of 1e-3, a buffer of 10,000 and 5 %
of the chains restarted. What the paper leaves open: the step of the chain is
:math:`x - \tfrac{h}{2} \nabla E + \sqrt{h} z`; chains restart from a Gaussian with the moments of
the batch; the sets are divided by 4; every batch is fresh.

`fokker`: the same steps and batch, with 64 Fourier features, a confining quadratic of standard
deviation 0.7, a cosine schedule and an average of the weights. Its `dcd` is the multi-time
divergence; the other methods run under the same conditions, so that what differs is the objective.

**Images.** `paper`: data with noise 0.3, WRN-16-8 on the grey sets and WRN-28-10 on the others,
batch 128, Adam (0.9, 0.99) at 2e-4; DCD with a step of variance 0.018, its Laplacian by
Hutchinson's estimator, and CD with one Langevin step of 0.018; the number of steps, which the
paper does not give, is 1,000, at a constant rate and without an average of the weights; `dcd-path`
and `dcd-bridge` change the form alone. `fokker`: one U-Net energy of every level from 0.05 to 1.2,
log-uniform, 800 steps of 256 with a cosine schedule; `dcd` is the divergence of a finite step,
:math:`\delta = 0.02 \sigma^2`, by its bridge, `dcd-limit` its limit, which is denoising score
matching, and `dcd-central` the limit without a second derivative. `reference` is the same U-Net as
a plain denoiser, trained on as many images. On a GPU all run in bfloat16.

**Photographs.** One local energy (`fokker.networks.unet`) of every noise level from 1 to 100 of
255, log-uniform, of squares of 64 pixels cut at random, turned and mirrored: a U-Net of two levels
on folded pixels without attention, 1.7 million parameters, 3.3 MiB in bfloat16; the limit of the
divergence without a second derivative (`Central`), weight `edm`, Muon.

**Generation.** Energies of every level, :math:`\log \sigma \sim \mathcal{N}(-1.2, 1.2^2)` as in
the paper and EDM. `paper`: the encoder of the U-Net, pooled, with the additional SiLU before the
last pooling; Hutchinson's estimator. What the paper leaves open: the pooling, a sum, since by a
mean it hardly learned; the step of the divergence, which `dcd` takes as in the denoising study,
:math:`\delta = 0.2 \sigma^2`, although that is too long (`fokker.objectives.levels.hutchinson`),
`dcd-limit` to zero, and `dcd-grid` from each level of a `Grid` to the next, :math:`\delta_i =
t_i^2 - t_{i-1}^2`, 1,000 intervals spaced as in EDM, since the paper gives no number
(`dcd-grid-bridge`: the same with a bridge in the place of its form); the weight of a level,
:math:`\sigma^2`, that of the divergence itself where nothing is divided by its :math:`\delta`;
rate, schedule, batch and an average of the weights, ours, since with the 2e-4 of its other image
study it hardly learned at the start; the encoder, ours, at the same size. `fokker`: the full U-Net
with inner product, weight `edm`, a cosine schedule; methods as for denoising, and `dcd-vp`, the
levels of a VP diffusion. Kernels and matrices inside the U-Net are moved by Muon
(`fokker.compute.muon`) at 0.01, all else by Adam. The rates rise over the first 1,000 steps.
Sizes: `SIZES`.
"""

__all__ = [
    "CANDIDATES",
    "GENERATION_METHODS",
    "IMAGE_METHODS",
    "LEVELS",
    "PHOTOGRAPH_METHODS",
    "PRESETS",
    "SIZES",
    "Preset",
    "generation_config",
    "image_config",
    "mixture_config",
    "photograph_config",
    "preset",
    "table_config",
]

from dataclasses import replace
from typing import Any, NamedTuple

from .config import (
    Config,
    Correction,
    ImageData,
    Network,
    Optimization,
    ResNet,
    TableData,
    ToyData,
    UNet,
)
from ..checks import unknown
from ..derivatives import Hutchinson
from ..evolution import MonteCarlo, Taylor
from ..objectives import (
    CD,
    DCD,
    PCD,
    Bridge,
    Central,
    Classification,
    Denoising,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    Grid,
    LevelDCD,
    Limit,
    LogNormal,
    LogUniform,
    MultiTimeDCD,
    Noisy,
    Objective,
    Preserving,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
    Tie,
    TimeScore,
    Uniform,
    Wide,
)
from ..objectives import levels as forms
from ..objectives.levels import FORMS, WEIGHTS, form_of, with_step


class Preset(NamedTuple):
    r"""A network, an optimization, and the objectives that run with them, by method."""

    network: Network
    optimization: Optimization
    objectives: dict[str, Objective]


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        Network(),
        Optimization(schedule="constant", ema=0.0),
        {"dcd": DCD(), "cd": CD(), "pcd": PCD()},
    ),
    "fokker": Preset(
        Network(features=64, confine=0.7),
        Optimization(),
        {
            "dcd": MultiTimeDCD(),
            "sm": ScoreMatching(),
            "ssm": SlicedScoreMatching(),
            "dsm": DenoisingScoreMatching(0.01),
            "ed": EnergyDiscrepancy(0.02, 16),
            "recovery": RecoveryLikelihood(),
            "cd": CD(),
            "pcd": PCD(),
        },
    ),
}


def table_config(path: str, held_out: float = 0.2) -> Config:
    r"""Returns the configuration for a user's own points.

    The multi-time divergence in standardized units: steps of :math:`10^{-3}` with two Rademacher
    probes, long times of standard deviation 0.1 to 1, no Fourier features, a confining quadratic
    of standard deviation 3, and a network and schedule as for the 2-D sets. Rows are few and soon
    known by heart, so training is short, 2,000 steps of 500; it is judged every 50 steps, the best
    weights are kept, and it stops after twenty judgements without a better one, half of them all:
    the NLL may well rise and fall again.

    Arguments:
        path: The file.
        held_out: The share of rows kept aside, half for validation and half for the test.
    """
    objective = MultiTimeDCD(
        DCD(evolution=Taylor("start"), laplacian=Hutchinson(2), step=1e-3, antithetic=True),
        DCD(evolution=MonteCarlo(16), step=LogUniform(0.1**2, 1.0), rate=False),
        weight=30.0,
    )
    network = Network(width=200, confine=3.0)
    optimization = Optimization(steps=2000, batch=500)
    data = TableData(path, held_out)
    return Config(data, objective, network, optimization, evaluate=50, patience=20)


def mixture_config(path: str, held_out: float = 0.2) -> Config:
    r"""Returns the configuration for a user's own points that takes seconds: a mixture of
    Gaussians under a learned correction (`fokker.tasks.mixture`).

    The limit form of the divergence on noise levels from 0.1 to 1 standard deviations: the form
    with the least variance, and the mixture is exact at every level, so that only its error is
    learned. The correction is small and soon learned, 200 steps of 256; it is judged every 25
    steps, and training stops after three judgements without a better one.

    Arguments:
        path: The file.
        held_out: The share of rows kept aside, half for validation and half for the test.
    """
    objective = LevelDCD(LogUniform(0.1, 1.0), Limit(), weight="variance", conditional=True)
    optimization = Optimization(steps=200, batch=256, rate=2e-3, ema=0.9)
    data = TableData(path, held_out)
    return Config(data, objective, Correction(), optimization, evaluate=25, patience=3)


def preset(name: str = "fokker", method: str = "dcd", data: str = "rings") -> Config:
    r"""Returns the configuration of a method on a 2-D set under a preset.

    Arguments:
        name: The preset, `paper` or `fokker`.
        method: A method of the preset, by its name in the tables.
        data: The name of a 2-D set.
    """
    if name not in PRESETS:
        raise unknown(name, list(PRESETS), "a preset", "--preset")
    network, optimization, objectives = PRESETS[name]
    if method not in objectives:
        raise unknown(method, list(objectives), f"an objective of preset {name!r}", "--objective")
    ToyData(data).build()
    return Config(ToyData(data), objectives[method], network, optimization)


LAW = LogUniform(0.05, 1.2)
IMAGE_METHODS: dict[str, dict[str, Objective]] = {
    "paper": {
        "dcd": LevelDCD(0.3, forms.Hutchinson(0.2), weight="one"),
        "dcd-path": LevelDCD(0.3, forms.Path(0.2), weight="one"),
        "dcd-bridge": LevelDCD(0.3, Bridge(0.02), weight="one"),
        "cd": Noisy(CD(1, 0.018), 0.3),
    },
    "fokker": {
        "dcd": LevelDCD(LAW, Bridge(0.02), conditional=True),
        "dcd-central": LevelDCD(LAW, Central(), conditional=True),
        "dcd-limit": LevelDCD(LAW, Limit(), conditional=True),
        "reference": Denoising(LAW),
    },
}


def image_config(
    name: str, method: str, data: ImageData, device: str = "cpu", seed: int = 0
) -> Config:
    r"""Returns the configuration of a method on images under a preset.

    Arguments:
        name: The preset, `paper` or `fokker`.
        method: A method of the preset.
        data: The set of images.
        device: The device; on a GPU the layers run in bfloat16 and the step is compiled.
        seed: The seed.
    """
    if name not in IMAGE_METHODS:
        raise unknown(name, list(IMAGE_METHODS), "a preset", "--preset")
    methods = IMAGE_METHODS[name]
    if method not in methods:
        raise unknown(method, list(methods), f"an objective of preset {name!r}", "--objective")
    fast = device != "cpu"
    precision = "bfloat16" if fast else "float32"
    if name == "paper":
        grey = data.source in {"mnist", "fashion_mnist"}
        depth, widen = (16, 8) if grey else (28, 10)
        network = ResNet(depth, widen, precision=precision)
        constant = {"schedule": "constant", "ema": 0.0}
        optimization = Optimization(steps=1000, batch=128, rate=2e-4, **constant)
    else:
        form = "denoiser" if method == "reference" else "inner"
        network = UNet(form=form, precision=precision)
        # clip: far above the gradients of a sound run; after one a hundred times as long Adam
        # would take tiny steps for the rest of it
        optimization = Optimization(
            steps=800, batch=256, rate=7e-4, warmup=100, ema=0.995, clip=2e4
        )
    return Config(
        data, methods[method], network, optimization, seed, device, compile=fast, evaluate=100
    )


MUON = 0.01  # its rate under our presets; the paper's weights are moved by Adam
PHOTOGRAPH_LAW = LogUniform(1 / 127.5, 100 / 127.5)  # 1 to 100 of 255
PHOTOGRAPH_METHODS: dict[str, Objective] = {
    "dcd-central": LevelDCD(PHOTOGRAPH_LAW, Central(), True, "edm"),
    "dcd-limit": LevelDCD(PHOTOGRAPH_LAW, Limit(), True, "edm"),
    "reference": Denoising(PHOTOGRAPH_LAW, weight="edm"),
}


def photograph_config(
    method: str, data: ImageData, device: str = "cpu", seed: int = 0, time: float = 0.0
) -> Config:
    r"""Returns the configuration of an energy of photographs, to denoise and to restore.

    Arguments:
        method: The method, a name in `PHOTOGRAPH_METHODS`.
        data: The photographs, of one size.
        device: The device; on a GPU the layers run in bfloat16 and the step is compiled.
        seed: The seed.
        time: The weight of the time score of `LevelDCD`, which ties the levels; none if zero.
    """
    if method not in PHOTOGRAPH_METHODS:
        raise unknown(method, list(PHOTOGRAPH_METHODS), "a method", "--objective")
    objective, fast = PHOTOGRAPH_METHODS[method], device != "cpu"
    if time:
        if not isinstance(objective, LevelDCD):
            raise ValueError(f"expected a time score only of an energy, got one of {method!r}")
        objective = replace(objective, ties=(TimeScore(time),))
    network = UNet(
        width=64,
        blocks=2,
        form="denoiser" if method == "reference" else "inner",
        precision="bfloat16" if fast else "float32",
        fold=2,
        multipliers=(1, 1),
        attention=(),
        local=True,
    )
    optimization = Optimization(
        steps=60_000, batch=64, rate=7e-4, beta2=0.99, warmup=1000, ema=0.999, muon=MUON
    )
    return Config(
        data, objective, network, optimization, seed, device, compile=fast, evaluate=2000
    )


GENERATION_METHODS: dict[str, dict[str, Objective]] = {
    "paper": {
        "dcd": LevelDCD(LogNormal(), forms.Hutchinson(0.2), True, "variance"),
        "dcd-limit": LevelDCD(LogNormal(), forms.Hutchinson(0.0), True, "variance"),
        "dcd-grid": LevelDCD(Grid(), forms.Hutchinson(), True, "variance"),
        "dcd-grid-bridge": LevelDCD(Grid(), Bridge(), True, "variance"),
    },
    "fokker": {
        "dcd": LevelDCD(LogNormal(), Bridge(0.02), True, "edm"),
        "dcd-central": LevelDCD(LogNormal(), Central(), True, "edm"),
        "dcd-limit": LevelDCD(LogNormal(), Limit(), True, "edm"),
        "dcd-vp": LevelDCD(Preserving(), Bridge(0.02), True, "edm"),
        "reference": Denoising(LogNormal(), weight="edm"),
    },
}
# the laws of the noise level of a training image
LEVELS: dict[str, Grid | LogNormal | Preserving | Uniform | Wide] = {
    "log-normal": LogNormal(),
    "uniform": Uniform(),
    "grid": Grid(),
    "vp": Preserving(),
    "wide": Wide(),
}
# networks that `fokker reproduce networks` compares; millions of parameters on color images
CANDIDATES: dict[str, UNet] = {
    "small": UNet(48, 1),  # 2.7
    "default": UNet(),  # 15.6
    "default-attn8": UNet(attention=(2,)),  # 15.6; attention at 8×8 of 32×32 images only
    "fold-96-small": UNet(96, 2, fold=2, multipliers=(1, 1)),  # 4.1
    "fold-128": UNet(128, 3, fold=2, multipliers=(1, 2)),  # 22.4; attention at 8×8
    "fold-128-b4": UNet(128, 4, fold=2, multipliers=(1, 2)),  # 27.5
    "fold-128-attn16": UNet(
        128, 3, fold=2, multipliers=(1, 2), attention=(0,), heads=1
    ),  # 21.0; attention at 16×16
    "fold-128-head1": UNet(128, 3, fold=2, multipliers=(1, 2), heads=1),  # 22.4
    "fold-128-both": UNet(128, 3, fold=2, multipliers=(1, 2), attention=(0, 1), heads=1),  # 22.8
    "fold-160-b3": UNet(160, 3, fold=2, multipliers=(1, 2)),  # 34.9
    "fold-192": UNet(192, 3, fold=2, multipliers=(1, 2)),  # 50.2
}
# 2.7, 15.6 and 36.5 million parameters as a full U-Net of color images; `base` is the default
SIZES: dict[str, UNet] = {
    "small": CANDIDATES["small"],
    "base": CANDIDATES["default"],
    "15m": UNet(),  # what `base` was first
    "large": UNet(128, 3),
}


def generation_config(
    name: str,
    method: str,
    data: ImageData,
    size: str = "base",
    device: str = "cpu",
    seed: int = 0,
    time: float = 0.0,
    levels: str | None = None,
    form: str | None = None,
    step: float | None = None,
    weight: str | None = None,
    classify: float = 0.0,
) -> Config:
    r"""Returns the configuration of an energy of images at every level, to generate from.

    Arguments:
        name: The preset, `paper` or `fokker`.
        method: A method of the preset.
        data: The set of images.
        size: The size of the network, a name in `SIZES`.
        device: The device; on a GPU the layers run in bfloat16 and the step is compiled.
        seed: The seed.
        time: The weight of a time score (`TimeScore`); none if zero.
        levels: The law of the noise levels, a name in `LEVELS`; that of the preset if not given.
        form: The form of `LevelDCD`, a name in `FORMS`; that of the method if not given.
        step: The step of the form; its own if not given.
        weight: The weight of a level: one, variance or edm; that of the preset if not given.
        classify: The weight of a classification of levels (`Classification`); none if zero.
    """
    if name not in GENERATION_METHODS:
        raise unknown(name, list(GENERATION_METHODS), "a preset", "--preset")
    methods = GENERATION_METHODS[name]
    if method not in methods:
        raise unknown(method, list(methods), f"an objective of preset {name!r}", "--objective")
    if size not in SIZES:
        raise unknown(size, list(SIZES), "a size", "--size")
    known = {"levels": tuple(LEVELS), "form": tuple(FORMS), "weight": WEIGHTS}
    given = {"levels": levels, "form": form, "weight": weight}
    for key, value in given.items():
        if value is not None and value not in known[key]:
            raise unknown(value, list(known[key]), f"a value of {key}", f"--{key}")
    objective = methods[method]
    assert isinstance(objective, LevelDCD | Denoising)
    weights: dict[type[Tie], float] = {TimeScore: time, Classification: classify}
    ties = tuple(tie(w) for tie, w in weights.items() if w)
    options: dict[str, Any] = {"ties": ties or None, "weight": weight}
    options["level"] = None if levels is None else LEVELS[levels]
    if isinstance(objective, Denoising):
        if ties or form or step is not None:
            what = "a time score" if time else "a classification" if classify else "a form"
            raise ValueError(f"expected {what} only of an energy, got one of {method!r}")
    elif form is not None:
        options["form"] = form_of(form, step)
    elif step is not None:
        options["form"] = with_step(objective.form, step)
    objective = replace(objective, **{k: v for k, v in options.items() if v is not None})
    fast = device != "cpu"
    shape = "denoiser" if method == "reference" else "sum" if name == "paper" else "inner"
    precision = "bfloat16" if fast else "float32"
    muon = None if name == "paper" else MUON
    optimization = Optimization(
        steps=30_000, batch=256, rate=7e-4, beta2=0.99, warmup=1000, ema=0.999, muon=muon
    )
    return Config(
        data,
        objective,
        replace(SIZES[size], form=shape, precision=precision),
        optimization,
        seed,
        device,
        compile=fast,
        evaluate=2000,
        preview=64,
    )
