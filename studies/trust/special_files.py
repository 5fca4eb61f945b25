r"""Special files in a stranger's run folder: nothing waits, is read without end, or is written or
read through a link.

Each file and folder of a run is replaced by a pipe, a socket, a link to `/dev/zero`, a link to a
file elsewhere, a link to a folder elsewhere, a link to itself, or a file of a terabyte without
content; and each name that a command writes is such a file before it is written. Then each command
reads the folder in a process of its own. It ends well, or with one line. A fault is anything else,
a file elsewhere that has changed, or its content in what was written.

    python studies/trust/special_files.py --out results/trust.json
"""

import argparse
import base64
import os
import shutil
import socket
import tempfile
import torch

from functools import partial
from pathlib import Path
from studies.trust import record
from studies.trust.attempts import attempt, run_command
from studies.trust.hostile_folders import bases, commands

WRITTEN = (
    "report.html", "curves.png", "density.png", "field.png", "pairs.png", "denoised.png",
    "log_density.png", "metrics.jsonl", "config.toml", ".lock", "previews",
    ".report.html.partial", ".metrics.jsonl.partial", ".curves.png.partial",
)  # fmt: skip
KINDS = ("pipe", "socket", "zero", "file", "folder", "loop", "sparse")
SECRET = b"the content of a file elsewhere, which nobody asked for" * 3


def place(path: Path, kind: str, elsewhere: Path) -> None:
    r"""Puts a special file of a kind at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.getcwd()
            os.chdir(path.parent)  # the name of a socket is short
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
            os.chdir(here)
        case "zero":
            path.symlink_to("/dev/zero")
        case "file":
            path.symlink_to(elsewhere / "secret")
        case "folder":
            path.symlink_to(elsewhere)
        case "loop":
            path.symlink_to(path)
        case "sparse":
            path.touch()
            os.truncate(path, 2**40)


def harmed(elsewhere: Path, *written: Path) -> bool:
    r"""Returns whether the file elsewhere has changed, or stands in what was written."""
    if {p.name: p.read_bytes() for p in elsewhere.iterdir()} != {"secret": SECRET}:
        return True
    codes = (SECRET[:30], base64.b64encode(SECRET)[:30])
    files = [p for place in written for p in place.rglob("*")]
    files = [p for p in files if p.is_file() and not p.is_symlink() and p.stat().st_size < 2**30]
    return any(code in p.read_bytes() for p in files for code in codes)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="one attempt in so many is made")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    ends, faults, number = {"done": 0, "refused": 0}, [], 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["FOKKER_CACHE"] = str(root / "cache")
        elsewhere, run, out = root / "elsewhere", root / "changed", root / "out"
        elsewhere.mkdir()
        (elsewhere / "secret").write_bytes(SECRET)
        for base in bases(root):
            own = commands(base.name, run, out)
            names = {str(p.relative_to(base)) for p in base.rglob("*")} | {*WRITTEN}
            for i, name in enumerate(sorted(names)):
                for j, kind in enumerate(KINDS):
                    number += 1
                    if number % given.every:
                        continue
                    shutil.copytree(base, run)
                    out.mkdir()
                    place(run / name, kind, elsewhere)
                    command = own[(i + j) % len(own)]
                    outcome = attempt(partial(run_command, command), 60.0, 2**31)
                    ends[outcome.end] = ends.get(outcome.end, 0) + 1
                    if outcome.fault or harmed(elsewhere, run, out):
                        faults.append(f"{base.name}, {name} as {kind}, {command[0]}")
                        print(faults[-1], outcome.end, outcome.said[-700:], flush=True)
                    for made in (run, out):
                        shutil.rmtree(made)
    count = sum(ends.values())
    detail = (
        f"{count:,} run folders with a pipe, a socket, a device, a link or a file of 1 TiB in the"
        f" place of a file: {ends['done']:,} read, {ends['refused']:,} refused in one line;"
        f" {len(faults)} faults"
    )
    print(detail)
    if given.out is not None:
        row = {"value": len(faults), "unit": f"faults in {count:,} folders", "detail": detail}
        command = f"python studies/trust/special_files.py --every {given.every} --out {given.out}"
        record(given.out, "special-files", [row], command)
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}")


if __name__ == "__main__":
    main()
