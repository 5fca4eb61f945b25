r"""A disk that fills up: every command that writes, and no good file harmed.

A small file system (tmpfs) holds the good files that a command would replace, and is filled until
a number of bytes are free: none, a few, up to all that the command needs. Then the command runs,
in a process of its own. Either it ends well, or it is refused in one line that names the place. A
fault is any other end, an old file that is neither as it was nor wholly new, or a rest that is
left behind. Where nothing may be mounted, a limit on the length of files stands for the full disk,
and the row says so.

    python studies/trust/full_disk.py --out results/trust.json
"""

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import tempfile
import torch

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from fokker import fit, load
from fokker.data.images import read_images
from fokker.runs import shipped
from fokker.runs.checkpoints import newest
from fokker.runs.folder import read_config
from fokker.runs.packing import pack, unpack
from fokker.runs.training import Interrupted
from fokker.studio.export import export
from functools import partial
from pathlib import Path
from studies.trust import record
from studies.trust.attempts import FORK, Outcome, attempt, run_command
from studies.trust.hostile_folders import MINI, bases
from typing import NamedTuple

SIZE = 2**25  # bytes of the file system
PAGE = 4096
LATEST = 300.0  # seconds of a command, on a machine that is busy


class Job(NamedTuple):
    r"""A command that writes, in a folder of the full disk."""

    name: str
    prepare: Callable[[Path], None]  # makes the good files
    work: Callable[[Path], object]
    files: tuple[str, ...]  # those that it replaces
    whole: Callable[[Path], object]  # raises unless all that lies there is good


def commands(root: Path) -> list[Job]:
    r"""Returns the commands that write.

    Arguments:
        root: A folder with the runs of `hostile_folders.bases`.
    """
    table, images, points = str(root / "table"), str(root / "images"), str(root / "points.csv")
    picture = str(root / "images/previews/step-00000002.png")
    steps = ("--steps", "18", "--batch", "4")

    def job(name: str, files: tuple[str, ...], *words: str) -> Job:
        args = lambda place: [word.replace("@", str(place)) for word in words]
        run = lambda place: run_command(args(place))
        return Job(name, run, run, files, lambda place: None)

    def shorter(place: Path) -> None:
        config = read_config(root / "toy")
        try:
            fit(config, place / "run", watch=lambda step, *_: step == 2)
        except Interrupted:
            pass

    def resume(place: Path) -> None:
        fit(read_config(root / "toy"), place / "run", resume=True)

    def ship(place: Path) -> None:
        run_command(["export", images, "x", "--to", str(place / "energies")])

    def exported(place: Path) -> None:
        for name in shipped.names(place / "energies"):
            shipped.read(name, place / "energies")

    def again(place: Path) -> None:
        for path in (place / "runs").iterdir() if (place / "runs").is_dir() else ():
            load(path)

    def cached(place: Path) -> None:
        os.environ["FOKKER_CACHE"] = str(place / "cache")
        read_images(MINI, "test")

    def page(place: Path) -> None:
        if not (place / "run/report.html").read_text().rstrip().endswith("</html>"):
            raise ValueError("the report does not end")

    def report(place: Path) -> None:
        run_command(["report", str(place / "run")])

    def reported(place: Path) -> None:
        shutil.copytree(root / "table", place / "run", dirs_exist_ok=True)
        report(place)

    def studio(place: Path) -> None:
        export(root / "toy", place / "runs", "x", 4)

    def packed(place: Path) -> None:
        run_command(["pack", str(root / "toy"), "--out", str(place / "pack"), "--shard", "9KiB"])

    def complete(place: Path) -> None:
        if (place / "pack").exists():
            with tempfile.TemporaryDirectory() as folder:
                unpack(place / "pack", Path(folder, "run"))

    def unpacked(place: Path) -> None:
        shards = root / "shards"
        if not shards.exists():
            pack(root / "toy", shards)
        run_command(["unpack", str(shards), "--out", str(place / "runs/run")])

    nothing = lambda place: None
    return [
        job("score", ("s.csv",), "score", table, points, "-o", "@/s.csv"),
        job("sample csv", ("x.csv",), "sample", table, "-n", "3000", "-o", "@/x.csv"),
        job("sample npy", ("x.npy",), "sample", table, "-n", "9000", "-o", "@/x.npy"),
        job("sample png", ("x.png",), "sample", images, "-n", "4", *steps, "-o", "@/x.png"),
        job("sample bytes", ("i.npy",), "sample", images, "-n", "4", *steps, "-o", "@/i.npy"),
        job("denoise", ("c.png", "c-noisy.png"), "denoise", picture, "--energy", images,
            "--add-noise", "50", "-o", "@/c.png"),
        job("restore", ("r.png",), "restore", picture, "--energy", images, "--scale", "2",
            "--levels", "2", "--steps", "1", "-o", "@/r.png"),
        Job("report", reported, report, (), page),
        Job("train", shorter, resume, (), lambda p: newest(p / "run")),
        Job("export", nothing, ship, (), exported),
        Job("pack", nothing, packed, (), complete),
        Job("unpack", nothing, unpacked, (), again),
        Job("studio export", nothing, studio, (), again),
        Job("cache", nothing, cached, (), cached),
    ]  # fmt: skip


def well(job: Job, outcome: Outcome) -> None:
    r"""Raises unless a command ended well where the disk has room."""
    if outcome.end != "done":
        raise ValueError(f"expected {job.name} to end well, got {outcome.end}: {outcome.said}")


def contents(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def limited(work: Callable[[], object], most: int) -> object:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return work()


def once(job: Job, place: Path, free: int, mounted: bool, new: dict[str, bytes]) -> list[str]:
    r"""Runs a command where a number of bytes are free; returns what was wrong."""
    old, filler = contents(place), place.parent / "filler"
    work: Callable[[], object] = partial(job.work, place)
    if mounted:
        rest = os.statvfs(place)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, rest.f_bavail * PAGE - free))
    else:
        work = partial(limited, work, free)
    outcome: Outcome = attempt(work, LATEST, 2**31)
    filler.unlink(missing_ok=True)
    wrong = [f"{outcome.end}: {outcome.said[-300:]}"] if outcome.fault else []
    if outcome.end == "refused" and str(place.parent) not in outcome.said:
        wrong.append(f"it does not name the place: {outcome.said}")
    now = contents(place)
    for name in job.files:
        if now.get(name) not in (old.get(name), new[name]):
            wrong.append(f"{name} is neither as it was nor new")
    left = [p.name for p in place.rglob("*") if ".partial" in p.name]
    if left:
        wrong.append(f"left behind: {left}")
    try:
        job.whole(place)
    except Exception as error:  # noqa: BLE001 - it is the result
        wrong.append(f"it cannot be read: {error}")
    return [f"{job.name}, {free} bytes free: {text}" for text in wrong] or [outcome.end]


def check(name: str, root: Path, points: int) -> tuple[bool, dict[str, int], list[str]]:
    r"""Tries a command at fill points of a disk of its own; returns whether it was mounted, how
    often it ended in which way, and the faults."""
    (job,) = (job for job in commands(root) if job.name == name)
    disk, good = root / f"disk-{name}", root / f"good-{name}"
    ends: dict[str, int] = {"done": 0, "refused": 0}
    faults: list[str] = []
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        place = disk / "place"
        place.mkdir()
        well(job, attempt(partial(job.prepare, place), LATEST))
        shutil.copytree(place, good)
        well(job, attempt(partial(job.work, place), LATEST))
        new = contents(place)
        need = 2 * sum(map(len, new.values())) + 2**16
        for i in range(points):
            shutil.rmtree(place)
            shutil.copytree(good, place)
            for text in once(job, place, need * i // points // PAGE * PAGE, mounted, new):
                if text in ends:
                    ends[text] += 1
                else:
                    faults.append(text)
                    print(text, flush=True)
        print(f"{job.name}: {need} bytes, {ends}", flush=True)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
    return mounted, ends, faults


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=50, help="fill points of each command")
    parser.add_argument("--only", nargs="+", default=None, help="commands; all if not given")
    parser.add_argument("--jobs", type=int, default=1, help="commands tried at the same time")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["FOKKER_CACHE"] = str(root / "cache")
        bases(root)
        every = [job.name for job in commands(root)]
        names = every if given.only is None else given.only
        if not set(names) <= set(every):
            raise ValueError(f"expected names of {', '.join(every)}, got {', '.join(names)}")
        with ProcessPoolExecutor(given.jobs, FORK) as pool:
            tried = [pool.submit(check, name, root, given.points) for name in names]
            found = [job.result() for job in tried]
    faults = [text for _, _, texts in found for text in texts]
    done, refused = (sum(ends[end] for _, ends, _ in found) for end in ("done", "refused"))
    mounted = all(on for on, _, _ in found)
    how = "a tmpfs that is filled" if mounted else "a limit on the length of files"
    detail = (
        f"{len(names)} commands that write ({', '.join(names)}) at {given.points} fill points"
        f" each, on {how}: {done} ended well, {refused} were refused in one line that names the"
        f" place; {len(faults)} good files harmed, rests or other faults"
    )
    print(detail)
    if given.out is not None:
        count = given.points * len(names)
        row = {"value": len(faults), "unit": f"faults in {count:,} runs", "detail": detail}
        only = "" if given.only is None else f" --only {shlex.join(given.only)}"
        command = f"python studies/trust/full_disk.py --points {given.points}{only}"
        command += f" --jobs {given.jobs} --out {given.out}"
        record(given.out, "full-disk", [row], command)
    if faults:
        raise SystemExit(f"expected no fault, got {len(faults)}")


if __name__ == "__main__":
    main()
