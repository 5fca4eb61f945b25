r"""Reports: one self-contained HTML file a run, to be looked at and passed on.

On a 2-D set (`planar`): true and learned density side by side, the energy with its score field,
samples, the curves of training, and the numbers against the optimum. On a table (`table`): columns
of the data and of samples, log-densities, the curves beside a Gaussian's, and the most unusual
rows. On images (`image`): test images clean, noisy and denoised. Pictures are inside the file; it follows the reader's choice of light or dark.
"""

__all__ = ["write_report"]

import matplotlib as mpl

from pathlib import Path

from . import image, planar, table
from .page import write_page
from ...runs.config import TableData, ToyData
from ...runs.folder import Run


def write_report(run: Run) -> Path:
    r"""Writes `report.html` and its pictures into the folder of a run, and returns its path.

    Arguments:
        run: A run. Its energy is moved to the CPU.
    """
    run.energy.cpu()
    data = run.config.data
    with mpl.rc_context({"font.size": 9, "font.family": "serif"}):
        if isinstance(data, ToyData):
            return write_page(run, data.name, planar.body(run, data.build()))
        if isinstance(data, TableData):
            return write_page(run, Path(data.path).name, table.body(run))
        return write_page(run, Path(data.source).name, image.body(run))
