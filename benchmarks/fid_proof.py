r"""Proof that the distance is the published one: CIFAR-10, 50,000 training against 10,000 test images.

By the convention of the original graph, `tf`, the FID of the two is 3.15, the figure in the
literature. The pixels are read from `.npy` files of bytes, (N, 3, 32, 32), one or more to a set. A
pass on a GPU takes seconds, on one core of a CPU two hours; `--keep` stores the statistics of each
set and convention in a folder and takes up from there.

    python benchmarks/fid_proof.py --train train.npy --test test.npy --device cuda --out results/fid.json
"""

import argparse
import numpy as np
import time
import torch

from fokker import results
from fokker.metrics.fid import Statistics, fid_between, statistics
from fokker.metrics.inception import CONVENTIONS, PUBLISHED, Extractor, load_inception
from pathlib import Path
from rich.console import Console
from rich.table import Table
from torch import Tensor


def read(paths: list[Path], limit: int | None) -> Tensor:
    r"""Returns the first images of some files."""
    return torch.from_numpy(np.concatenate([np.load(path) for path in paths])[:limit])


def measure(
    extractor: Extractor, images: Tensor, split: str, batch: int, keep: Path | None
) -> tuple[Statistics, float | None]:
    r"""Returns the statistics of a set, and the seconds it took if they were not kept."""
    path = keep / f"cifar10-{split}-{extractor.convention}.safetensors" if keep else None
    if path is not None and path.exists():
        kept = Statistics.load(path)
        if kept.count != len(images):
            raise ValueError(f"{path}: expected {len(images)} images, got {kept.count}")
        return kept, None
    start = time.perf_counter()
    made = statistics(extractor, images, "cifar10", split, batch)
    seconds = time.perf_counter() - start
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return made, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--weights", type=Path, default=None, help="a safetensors file")
    parser.add_argument("--conventions", nargs="+", choices=CONVENTIONS, default=CONVENTIONS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--limit", type=int, default=None, help="the first images of each set only"
    )
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the statistics")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    sets = {"train": read(args.train, args.limit), "test": read(args.test, args.limit)}
    console, rows = Console(), []
    for convention in args.conventions:
        extractor = load_inception(args.weights, convention, args.device, args.compile)
        if extractor.weights != PUBLISHED:
            console.print(f"weights other than the published ones, {PUBLISHED[:8]}")
        for _ in extractor.stream(sets["test"][: args.batch], args.batch):
            pass  # warm, and compiled
        found = {
            split: measure(extractor, images, split, args.batch, args.keep)
            for split, images in sets.items()
        }
        fid = fid_between(found["train"][0], found["test"][0])
        console.print(str(fid))
        timed = [(len(sets[split]), seconds) for split, (_, seconds) in found.items() if seconds]
        seconds = sum(s for _, s in timed) if timed else None
        rows.append({
            "convention": convention,
            "train": fid.counts[0],
            "test": fid.counts[1],
            "fid": round(fid.value, 4),
            "weights": fid.weights,
            "batch": args.batch,
            "compile": args.compile,
            "seconds": round(seconds, 1) if seconds else None,
            "ms_per_image": round(1000 * seconds / sum(n for n, _ in timed), 3)
            if seconds
            else None,
        })
    shown = "convention", "train", "test", "fid", "seconds", "ms_per_image"
    table = Table(*shown)
    for row in rows:
        table.add_row(*(str(row[key]) for key in shown))
    console.print(table)
    if args.out is not None:
        names = lambda paths: " ".join(path.name for path in paths)  # not where they are here
        command = (
            f"python benchmarks/fid_proof.py --train {names(args.train)} --test {names(args.test)}"
            f" --device {args.device} --batch {args.batch}{' --compile' * args.compile}"
        )
        results.save(args.out, rows, command, device=args.device)


if __name__ == "__main__":
    main()
