r"""Curves of a run for TensorBoard: the scalars of `metrics.jsonl`, as they are written.

`fokker train ... --tensorboard` writes event files into the run folder;
`tensorboard --logdir runs` shows them. The extra `tensorboard` installs what is needed.
"""

__all__ = ["tensorboard"]

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def tensorboard(
    folder: str | Path,
) -> Generator[Callable[[int, dict[str, Any]], None], None, None]:
    r"""Opens event files in a folder; what it yields is a `progress` of `fokker.fit`.

    A run that is resumed goes on in a second file. What lies behind the checkpoint that it goes on
    from is written again, and TensorBoard shows the later one.

    Arguments:
        folder: The run folder.

    Example:
        >>> from fokker import fit
        >>> from fokker.runs.config import Config, Network, Optimization
        >>> from tempfile import TemporaryDirectory
        >>> short = Config(network=Network(width=8), optimization=Optimization(steps=2))
        >>> with TemporaryDirectory() as folder, tensorboard(folder) as progress:
        ...     run = fit(short, folder, progress=progress)
        >>> run.metrics[-1]["step"]
        2
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise ValueError(
            "expected the package tensorboard for --tensorboard, got none;"
            " pip install 'fokker[tensorboard]'"
        ) from None
    writer: SummaryWriter | None = None

    def progress(step: int, line: dict[str, Any]) -> None:
        nonlocal writer
        for name, value in line.items():
            if name != "step" and isinstance(value, (int, float)):
                if writer is None:  # not before the run folder is known to be good
                    writer = SummaryWriter(str(folder), purge_step=step)
                writer.add_scalar(name, value, step)
        if line and writer is not None:
            writer.flush()

    try:
        yield progress
    finally:
        if writer is not None:
            writer.close()
