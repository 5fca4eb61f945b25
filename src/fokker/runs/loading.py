r"""Loading a run: from its folder, or one that comes with the package."""

__all__ = ["load"]

from pathlib import Path

from . import shipped
from .folder import read_run
from ..tasks import Run


def load(path: str | Path, best: bool = False, width: float | None = None) -> Run:
    r"""Returns a trained run: its energy, its configuration and its metrics.

    Arguments:
        path: The run folder, or the name of an energy that comes with the package
            (`fokker.runs.shipped`).
        best: Whether to read the best judged checkpoint instead of the newest, for a run that got
            worse.
        width: The width of the power-function average whose weights are read, for a run that
            kept such averages (`fokker.compute.averages`); the usual average if not given.

    Example:
        >>> import torch
        >>> from fokker import fit
        >>> from fokker.runs.config import Config, Network, Optimization
        >>> from tempfile import TemporaryDirectory
        >>> short = Config(network=Network(width=8), optimization=Optimization(steps=2))
        >>> with TemporaryDirectory() as folder:
        ...     run = load(fit(short, folder).path)
        >>> run.step, run.energy(torch.zeros(1, 2)).shape
        (2, torch.Size([1]))
    """
    folder = Path(path)
    # a folder of images may have the name of a shipped energy
    named = str(path) in shipped.names() and not (folder / "config.toml").exists()
    if not named and folder.is_dir():
        return read_run(folder, best, width)
    if width is not None:
        raise ValueError(f"expected a run folder for a width, got {path}")
    return shipped.read(str(path))
