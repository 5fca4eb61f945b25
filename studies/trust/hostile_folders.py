r"""Run folders from a stranger: every command reads them, or refuses them in one line.

A run on a 2-D set, one on a table and one on images are changed: a number of `config.toml` made
extreme, a text made odd, a field of a line of `metrics.jsonl` or of the card dropped or made
absurd, a file cut or filled with junk. Then a command reads the folder, in a process of its own
whose memory and time are bounded. It ends well, or with one line and exit code 2 or 3. Anything
else is a fault: a traceback, a death, memory or time beyond the bound, another file changed.

    python studies/trust/hostile_folders.py --out results/trust.json
"""

import argparse
import json
import os
import random
import re
import shutil
import tempfile
import torch

from collections.abc import Iterator
from fokker import fit
from fokker.objectives import LevelDCD, Limit, LogUniform, MultiTimeDCD
from fokker.runs import checkpoints
from fokker.runs.config import Config, ImageData, Network, Optimization, TableData, ToyData, UNet
from functools import partial
from pathlib import Path
from studies.trust import record
from studies.trust.attempts import attempt, run_command

MINI = Path(__file__).parents[2] / "tests/data/mnist-mini"
NUMBERS = (
    "1e-320", "1e-300", "1e-45", "1e-20", "1e20", "1e38", "1e300", "0.0", "-1.0", "nan", "inf",
    "0", "1", "-1", "4611686018427387904", "2147483648", "1099511627776", "9223372036854775807",
)  # fmt: skip
TEXTS = (
    '"[bold]x[/bold] [/]"', '"hub:some/where"', '"mnist"', '"/dev/zero"', '"/dev/tty"', '""',
    '"\\u0000"', '"x\\ny"', '"$x_{1}$ <script>"', '"~"', '"/"', '"cuda"', "[]", "{}", "true",
)  # fmt: skip
VALUES = (
    None, "x", "", [], {}, True, -1, 0, 10**400, 1e308, -1e308, 1e20, "<b>", "[/x]", [[1]], 10**18,
)  # fmt: skip
JUNK = (b"", b"\x00" * 99, b"{" * 99_999, b"[" * 99_999, b"\xff\xfe", b"a=1\n" * 5000, b"{}\n[]\n")
OPTIMIZATION = Optimization(steps=4, batch=8)


def bases(root: Path) -> list[Path]:
    r"""Trains the runs that are changed."""
    torch.set_default_dtype(torch.float32)
    table = root / "points.csv"
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).tolist()
    table.write_text("u,v\n" + "\n".join(f"{a:.4f},{b:.4f}" for a, b in rows) + "\n")
    network, multi = Network(8, 2, confine=0.7), MultiTimeDCD(points=8)
    level = LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True)
    configs = {
        "toy": Config(ToyData("moons"), multi, network, OPTIMIZATION, evaluate=2),
        "table": Config(TableData(str(table)), multi, network, OPTIMIZATION, evaluate=2),
        "images": Config(
            ImageData(str(MINI)), level, UNet(8, 1), OPTIMIZATION, evaluate=2, preview=2
        ),
    }
    for name, config in configs.items():
        fit(config, root / name)
    return [root / name for name in configs]


def changes(run: Path) -> Iterator[tuple[str, str, bytes]]:
    r"""Yields changed files of a run: what was done, the path in the folder, the content."""
    lines = (run / "config.toml").read_text().splitlines()
    for i, line in enumerate(lines):
        key, equals, value = line.partition(" = ")
        if not equals:
            continue
        words = NUMBERS if re.fullmatch(r"-?[\d.e+-]+|\[.*", value) else TEXTS
        for word in words:
            changed = [*lines[:i], f"{key} = {word}", *lines[i + 1 :]]
            yield f"{key} = {word}", "config.toml", "\n".join(changed).encode()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key in metrics[-1]:
        for value in ("dropped", *VALUES):
            changed = [{k: v for k, v in line.items() if k != key} for line in metrics]
            if value != "dropped":
                changed = [{**line, key: value} for line in changed]
            text = "\n".join(json.dumps(line) for line in changed)
            yield f"{key}: {str(value)[:20]} in metrics", "metrics.jsonl", text.encode()
    path = next((run / "checkpoint").glob("*4/checkpoint.json"))
    name, header = str(path.relative_to(run)), json.loads(path.read_text())
    for tree, label in (((header.get("lines") or [{}])[-1], "line"), (header, "header")):
        for key in list(tree):
            before = tree[key]
            for value in VALUES:
                tree[key] = value
                header["sha256"] = checkpoints.seal(header)
                yield f"{label} {key}: {str(value)[:20]}", name, json.dumps(header).encode()
            tree[key] = before
    event = {"step": 1, "event": "rolled back", "reason": "x", "to": 0, "trial": 1, "rate": 0.1}
    for key in event:
        for value in VALUES:
            text = json.dumps({**event, key: value})
            yield f"event {key}: {str(value)[:20]}", "metrics.jsonl", text.encode()
    files = [file for file in run.rglob("*") if file.is_file()]
    for file in files:
        for junk in JUNK:
            yield f"{junk[:4]!r} in {file.name}", str(file.relative_to(run)), junk


def commands(name: str, run: Path, out: Path) -> list[list[str]]:
    r"""Returns the commands that read a run of a kind."""
    found = [["report", str(run)], ["evaluate", str(run)], ["evaluate", str(run), "--json"]]
    if name == "images":
        steps = ("--steps", "18", "--batch", "2")
        found += [["sample", str(run), "-n", "2", *steps, "-o", str(out / "x.png")]]
        found += [["export", str(run), "x", "--to", str(out)]]
    else:
        found += [["sample", str(run), "-n", "5", "-o", str(out / "x.csv")]]
    if name == "table":
        found += [["score", str(run), str(out.parent / "points.csv"), "-o", str(out / "y.csv")]]
    return found


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=0.12, help="of all changes, at random")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    rng, ends, faults = random.Random(0), {"done": 0, "refused": 0}, []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["FOKKER_CACHE"] = str(root / "cache")
        os.environ.pop("FOKKER_DATA", None)
        for base in bases(root):
            for what, name, content in changes(base):
                if rng.random() > given.share:
                    continue
                run, out = root / "changed", root / "out"
                shutil.copytree(base, run)
                out.mkdir()
                (run / name).write_bytes(content)
                command = rng.choice(commands(base.name, run, out))
                before = sorted(p.name for p in root.iterdir())
                outcome = attempt(partial(run_command, command), 60.0, 2**31)
                ends[outcome.end] = ends.get(outcome.end, 0) + 1
                if outcome.fault or before != sorted(p.name for p in root.iterdir()):
                    faults.append(f"{base.name}, {what}, {command[0]}: {outcome.end}")
                    print(faults[-1], outcome.said[-700:], flush=True)
                for place in (run, out):
                    shutil.rmtree(place)
    count = sum(ends.values())
    detail = (
        f"{count:,} changed run folders on 2-D sets, tables and images: {ends['done']:,} read,"
        f" {ends['refused']:,} refused in one line; {len(faults)} faults"
    )
    print(detail)
    if given.out is not None:
        row = {"value": len(faults), "unit": f"faults in {count:,} folders", "detail": detail}
        command = (
            f"python studies/trust/hostile_folders.py --share {given.share} --out {given.out}"
        )
        record(given.out, "hostile-folders", [row], command)
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}")


if __name__ == "__main__":
    main()
