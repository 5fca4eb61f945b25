r"""Adam beside Muon: how well a small U-Net energy has learned after as many steps.

The energy, 1.2 million parameters, is trained by the limit of the divergence (denoising score
matching) on images of a set made 16×16, 64 a step, at a rate that falls to zero as half a cosine.
It is judged on 1,000 test images by the error that it minimizes, a dimension: about 1 for the
Gaussian that it begins as. Every trial has the same weights at the start, the same images and the
same noise.

    python studies/optimizers.py --out results/optimizers.json
"""

import argparse
import math
import tempfile
import torch

from dataclasses import replace
from fokker import fit
from fokker.data.picture import to_float
from fokker.objectives import LevelDCD, Limit, LogNormal
from fokker.runs.config import Config, ImageData, Optimization, UNet
from fokker.tasks import Run
from fokker.tasks.image import ImageTask
from pathlib import Path
from rich.console import Console
from studies import results

OBJECTIVE = LevelDCD(LogNormal(), Limit(), conditional=True, weight="edm")
TRIALS = (
    "adam:1.5e-3",
    "adam:3e-3",
    "adam:6e-3",
    "muon:0.005",
    "muon:0.01",
    "muon:0.02",
    "muon:0.04",
)


def optimization_of(trial: str, steps: int, args: argparse.Namespace) -> Optimization:
    r"""Returns the optimization of a trial, `adam:RATE` or `muon:RATE`."""
    kind, _, text = trial.partition(":")
    try:
        rate = float(text)
    except ValueError:
        kind, rate = "", 0.0
    if kind not in {"adam", "muon"}:
        raise ValueError(f"expected adam:RATE or muon:RATE, got {trial!r}")
    muon = rate if kind == "muon" else None
    settings = {"rate": args.beside if muon else rate, "muon": muon, "warmup": 20, "ema": 0.98}
    return Optimization(steps, args.batch, **settings)  # pyright: ignore[reportArgumentType]


def error_of(run: Run, count: int, batch: int = 125) -> float:
    r"""Returns the weighted error of denoised test images, a dimension: twice the loss."""
    task = run.loaded()
    assert isinstance(task, ImageTask)
    device = torch.device(run.config.device)
    energy, generator = run.energy.to(device), torch.Generator(device).manual_seed(0)
    x = to_float(task.pixels("test")[:count].to(device))
    losses = [
        len(part) * float(OBJECTIVE(energy, part, None, generator).loss) for part in x.split(batch)
    ]
    return 2 * sum(losses) / len(x) / math.prod(x.shape[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--steps", type=int, nargs="+", default=[200])
    parser.add_argument("--trials", nargs="+", default=TRIALS, help="adam:RATE or muon:RATE")
    parser.add_argument(
        "--beside", type=float, default=1.5e-3, help="the rate of Adam beside Muon"
    )
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=1000, help="of the test set, to judge by")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    console, rows = Console(), []
    trials = [(t, optimization_of(t, n, args)) for n in args.steps for t in args.trials]
    base = Config(
        ImageData(args.data, args.data_dir, size=16),
        OBJECTIVE,
        UNet(args.width, 1),
        device=args.device,
    )
    for trial, chosen in trials:
        with tempfile.TemporaryDirectory() as folder:
            config = replace(base, optimization=chosen, evaluate=chosen.steps)
            run = fit(config, Path(folder) / "run")
        row = {"optimizer": "adam" if chosen.muon is None else "muon"}
        row |= {"rate": chosen.rate if chosen.muon is None else chosen.muon, "steps": chosen.steps}
        row |= {"beside": None if chosen.muon is None else chosen.rate, "batch": chosen.batch}
        row |= {"error": error_of(run, args.images), "images": args.images}
        row |= {"params": sum(p.numel() for p in run.energy.parameters())}
        rows.append(row | {"data": Path(args.data).name, "seed": config.seed})
        console.print(f"{trial}, {chosen.steps} steps: {row['error']:.4f}")
        if args.out is not None:
            results.save(args.out, rows, "python studies/optimizers.py", device=args.device)


if __name__ == "__main__":
    main()
