r"""Adam beside Muon: how well a small U-Net energy has learned after as many steps.

The energy, 1.2 million parameters, is trained by the limit of the divergence (denoising score matching) on
images of a set made 16×16, 64 a step, at a rate that falls to zero as half a cosine. It is judged on 1,000
test images by the error that it minimizes, a dimension: 1 for the Gaussian that it begins as. Every trial has the
same weights at the start, the same images and the same noise. What is in the file already stays, if
it is not measured anew.

    python benchmarks/optimizers.py --out results/optimizers.json
"""

import argparse
import math
import tempfile
import torch

from fokker import fit, results
from fokker.config import Config, ImageData, Optimization, UNet
from fokker.data.picture import to_float
from fokker.objectives import LevelDCD, LogNormal
from fokker.runs import Run
from fokker.tasks.image import ImageTask
from pathlib import Path
from rich.console import Console

OBJECTIVE = LevelDCD(LogNormal(), form="limit", conditional=True, weight="edm")
TRIALS = (
    "adam:1.5e-3",
    "adam:3e-3",
    "adam:6e-3",
    "muon:0.005",
    "muon:0.01",
    "muon:0.02",
    "muon:0.04",
)


def config(trial: str, steps: int, args: argparse.Namespace) -> Config:
    r"""Returns the configuration of a trial, `adam:RATE` or `muon:RATE`."""
    kind, _, rate = trial.partition(":")
    if kind not in {"adam", "muon"}:
        raise ValueError(f"expected adam:RATE or muon:RATE, got {trial!r}")
    own = {"rate": float(rate)} if kind == "adam" else {"rate": args.beside, "muon": float(rate)}
    optimization = Optimization(steps, args.batch, warmup=20, ema=0.98, **own)  # pyright: ignore[reportArgumentType]
    data = ImageData(args.data, args.data_dir, size=16)
    network = UNet(args.width, 1)
    return Config(data, OBJECTIVE, network, optimization, device=args.device, evaluate=steps)


def error_of(run: Run, count: int, batch: int = 125) -> float:
    r"""Returns the weighted error of denoised test images, a dimension: twice the loss."""
    task = run.task()
    assert isinstance(task, ImageTask)
    device = torch.device(run.config.device)
    energy, generator = run.energy.to(device), torch.Generator(device).manual_seed(0)
    x = to_float(task.pixels("test")[:count].to(device))
    losses = [
        len(part) * float(OBJECTIVE(energy, part, None, generator).loss) for part in x.split(batch)
    ]
    return 2 * sum(losses) / len(x) / math.prod(x.shape[1:])


def key_of(row: results.Row) -> tuple[str, float, int]:
    r"""Returns what tells trials apart."""
    return row["optimizer"], row["rate"], row["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
    for steps in args.steps:
        for trial in args.trials:
            with tempfile.TemporaryDirectory() as folder:
                run = fit(config(trial, steps, args), Path(folder) / "run")
            kind, _, rate = trial.partition(":")
            row = {"optimizer": kind, "rate": float(rate), "steps": steps, "batch": args.batch}
            row |= {"params": sum(p.numel() for p in run.energy.parameters())}
            row |= {"error": error_of(run, args.images), "images": args.images}
            row |= {"beside": args.beside if kind == "muon" else None}
            rows.append(row | {"data": Path(args.data).name, "seed": run.config.seed})
            console.print(f"{trial}, {steps} steps: {row['error']:.4f}")
    if args.out is not None:
        kept = results.load(args.out)["rows"] if args.out.exists() else []
        made = {key_of(row) for row in rows}
        rows = sorted([r for r in kept if key_of(r) not in made] + rows, key=key_of)
        results.save(args.out, rows, "python benchmarks/optimizers.py", device=args.device)


if __name__ == "__main__":
    main()
