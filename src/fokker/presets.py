r"""Presets: the settings of the paper, and our own.

`paper`: what the appendix states. Adam (0.9, 0.99) at a constant rate of 1e-3, no average of the
weights, batch 1,000, 5,000 steps, the plain network 2-300-300-300-1 with GELU; DCD with t = 5e-4
and :math:`G^2 = 1`, CD with 10 and PCD with 20 Langevin steps of 1e-3, a buffer of 10,000 and 5 % of
the chains restarted. What the paper leaves open: the step of the chain is
:math:`x - \tfrac{h}{2} \nabla E + \sqrt{h} z`; chains restart from a Gaussian with the moments of the
batch; the sets are divided by 4; every batch is fresh.

`fokker`: the same steps and batch, with 64 Fourier features, a confining quadratic of standard
deviation 0.7, a cosine schedule and an average of the weights. Its `dcd` is the multi-time
divergence; the other methods run under the same conditions, so that what differs is the objective.

**Images.** `paper`: data with noise 0.3, WRN-16-8 on the grey sets and WRN-28-10 on the others, batch
128, Adam (0.9, 0.99) at 2e-4; DCD with a step of variance 0.018, its Laplacian by Hutchinson's
estimator, and CD with one Langevin step of 0.018; the number of steps, which the paper does not give,
is 1,000, at a constant rate and without an average of the weights. `fokker`: one U-Net energy of every
level from 0.05 to 1.2, log-uniform, 800 steps of 256 with a cosine schedule; `dcd` is the divergence of
finite step with its bracket along the path, `dcd-limit` its limit, which is denoising score matching.
`reference` is the same U-Net as a plain denoiser, trained on as many images. On a GPU all run in
bfloat16.
"""

__all__ = ["IMAGE_METHODS", "PRESETS", "Preset", "image_config", "preset", "table_config"]

from typing import NamedTuple

from .config import (
    Config,
    ImageData,
    Network,
    Optimization,
    ResNet,
    TableData,
    ToyData,
    UNet,
    unknown,
)
from .derivatives import Hutchinson
from .evolution import MonteCarlo, Taylor
from .objectives import (
    CD,
    DCD,
    PCD,
    Denoising,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    LevelDCD,
    LogUniform,
    MultiTimeDCD,
    Noisy,
    Objective,
    RecoveryLikelihood,
    ScoreMatching,
    SlicedScoreMatching,
)


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
    probes, long times of standard deviation 0.1 to 1, no Fourier features, a confining quadratic of
    standard deviation 3, and a network and schedule as for the 2-D sets. Rows are few and soon known
    by heart, so training is short, 2,000 steps of 500; it is judged every 50 steps, the best weights
    are kept, and it stops after twenty judgements without a better one, half of them all: the NLL
    may well rise and fall again.

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
        "dcd": LevelDCD(0.3, 0.2, "hutchinson", weight="one"),
        "cd": Noisy(CD(1, 0.018), 0.3),
    },
    "fokker": {
        "dcd": LevelDCD(LAW, 0.2, "path", conditional=True),
        "dcd-limit": LevelDCD(LAW, form="limit", conditional=True),
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
        own = {"schedule": "constant", "ema": 0.0}
        optimization = Optimization(steps=1000, batch=128, rate=2e-4, **own)
    else:
        form = "denoiser" if method == "reference" else "inner"
        network = UNet(form=form, precision=precision)
        optimization = Optimization(steps=800, batch=256, rate=7e-4, warmup=100, ema=0.995)
    return Config(
        data, methods[method], network, optimization, seed, device, compile=fast, evaluate=200
    )
