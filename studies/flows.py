r"""How far samples are from where the flow leads, and what each method asks of the network for it.

Images of an energy of every level are drawn from the same noise with few steps and with many of
Heun's, which stand for the exact flow; the error is the RMSE of their pixels, in [−1, 1].

    python studies/flows.py --out results/flows.json
"""

import argparse
import torch

from fokker import load
from fokker.samplers import FLOWS, Field, Heun, karras
from fokker.tasks.image import check_trained
from pathlib import Path
from rich.console import Console
from studies import results

TRIALS = (
    ("euler", 35), ("heun", 9), ("heun", 12), ("heun", 18),
    ("multistep", 12), ("multistep", 18), ("multistep", 24),
    ("multistep", 35),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=["celeba32", "cifar10"])
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--fine", type=int, default=100, help="the steps of the exact flow")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    console, rows = Console(), []
    for name in args.runs:
        run = load(name)
        check_trained(run)
        field = Field(run.energy_on(args.device, exact=True))

        def draw(method: str, steps: int, run=run, field=field) -> torch.Tensor:  # noqa: ANN001
            seed = torch.Generator().manual_seed(0)
            options = {"batch": 32, "device": args.device, "dtype": torch.float32}
            flow = FLOWS[method](karras(steps))
            return flow.run(field, args.images, run.shape, seed, **options).samples.clamp(-1, 1)

        exact = draw("heun", args.fine)
        for method, steps in TRIALS:
            error = float((draw(method, steps) - exact).square().mean().sqrt())
            row = {"run": run.path.name, "sampler": method, "steps": steps, "error": error}
            row |= {"evaluations": FLOWS[method](karras(steps)).evaluations}
            rows.append(row | {"images": args.images, "fine": Heun(karras(args.fine)).evaluations})
            console.print(f"{name}, {steps} steps of {method}: {error:.4f}")
    if args.out is not None:
        results.save(args.out, rows, "python studies/flows.py", device=args.device)


if __name__ == "__main__":
    main()
