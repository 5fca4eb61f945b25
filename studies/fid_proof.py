r"""Proof that the distance is the published one: CIFAR-10, 50,000 training against 10,000 test
images.

By the convention of the original graph, `tf`, the FID of the two is 3.15, the figure in the
literature. The set is looked for under `--data-dir`, or `FOKKER_DATA` if it is not given. A pass
on a GPU takes seconds, on one core of a CPU two hours or more; `--keep` stores the statistics so
far in a folder, and a second call takes up from there.

    python studies/fid_proof.py --device cuda --out results/fid.json
"""

import argparse
import time

from fokker.data.images import read_images
from fokker.metrics.fid import Statistics, fid_between, statistics
from fokker.metrics.inception import CONVENTIONS, PUBLISHED, Extractor, load_inception
from pathlib import Path
from rich.console import Console
from rich.table import Table
from studies import results
from torch import Tensor
from typing import NamedTuple


class Measured(NamedTuple):
    total: Statistics
    new: int  # images, the others were kept
    seconds: float


def measure(
    extractor: Extractor, images: Tensor, split: str, batch: int, keep: Path | None
) -> Measured:
    r"""Returns the statistics of a set, kept every 2,000 images."""
    path = keep / f"cifar10-{split}-{extractor.convention}.safetensors" if keep else None
    total = Statistics.load(path) if path is not None and path.exists() else None
    kept = total.count if total is not None else 0
    if kept > len(images):
        raise ValueError(f"{path}: expected at most {len(images)} images, got {kept}")
    start = time.perf_counter()
    for i in range(kept, len(images), 2000):
        new = statistics(extractor, images[i : i + 2000], "cifar10", split, batch)
        total = new if total is None else total.merge(new)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            total.save(path)
    assert total is not None
    return Measured(total, len(images) - kept, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=None)
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
    read = lambda split: read_images("cifar10", split, args.data_dir).pixels[: args.limit]
    sets = {split: read(split) for split in ("train", "test")}
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
        fid = fid_between(found["train"].total, found["test"].total)
        console.print(str(fid))
        new = sum(part.new for part in found.values())
        seconds = sum(part.seconds for part in found.values())
        rows.append({
            "convention": convention,
            "train": fid.counts[0],
            "test": fid.counts[1],
            "fid": round(fid.value, 4),
            "weights": fid.weights,
            "batch": args.batch,
            "compile": args.compile,
            "new": new,
            "seconds": round(seconds, 1),
            "ms_per_image": round(1000 * seconds / new, 3) if new else None,
        })
    shown = "convention", "train", "test", "fid", "new", "seconds", "ms_per_image"
    table = Table(*shown)
    for row in rows:
        table.add_row(*(str(row[key]) for key in shown))
    console.print(table)
    if args.out is not None:
        command = (
            f"python studies/fid_proof.py --device {args.device} --batch {args.batch}"
            f"{' --compile' * args.compile}"
        )
        results.save(args.out, rows, command, device=args.device)


if __name__ == "__main__":
    main()
