r"""`fokker pack` and `fokker unpack`: a run carried from one machine to another."""

__all__ = ["Pack", "Unpack"]

import re
import tyro

from dataclasses import dataclass
from pathlib import Path

from ..runs.folder import read_run
from ..runs.packing import pack, unpack

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def bytes_of(text: str) -> int:
    r"""Returns the bytes of a size such as 16MiB, 16M or 16777216."""
    found = re.fullmatch(r"(\d{1,12})\s*([KMG]?)(i?B)?", text.strip())
    if found is None:
        raise ValueError(f"expected --shard to be a size, such as 16MiB, got {text!r}")
    return int(found[1]) * UNITS[found[2]]


@dataclass(frozen=True)
class Pack:
    """Pack the whole state of a run into shards of a given size, with checksums."""

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path = tyro.MISSING
    """The folder of the pack, a new one."""
    shard: str = "16MiB"
    """The size of a shard at most, such as 15MiB."""
    half: bool = False
    """Round the moments of the optimizers, and the differences of the averages from the weights,
    to bfloat16. The weights keep all their bits."""
    snapshots: bool = False
    """Pack the copies of power-function averages as well, which may be large."""

    def run(self) -> None:
        packed = pack(self.run_folder, self.out, bytes_of(self.shard), self.half, self.snapshots)
        sentence = read_run(self.run_folder).history.sentence
        n = len(packed.shards)
        print(
            f"{self.out}: step {packed.step}, {n} shard{'s'[: n != 1]},"
            f" {packed.bytes / 2**20:.1f} MiB\n{sentence}\n"
            f"to go on: fokker unpack {self.out} --out RUN"
        )


@dataclass(frozen=True)
class Unpack:
    """Unpack a run into a new run folder, to be resumed, sampled from or evaluated there."""

    pack: tyro.conf.Positional[Path]
    """The folder of the pack, with all its shards."""
    out: Path = tyro.MISSING
    """The run folder, a new one."""

    def run(self) -> None:
        step = unpack(self.pack, self.out)
        print(f"{self.out}: step {step}\n{read_run(self.out).history.sentence}")
