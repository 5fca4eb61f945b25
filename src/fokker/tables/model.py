r"""The model of a table: its density and its surprise, in the tensors of one network.

What a run on a table trains and saves (`fokker.tasks.mixture`). The density is a base that is
fitted to the training rows under a correction that is learned (`fokker.tables.correction`); only
the correction has parameters. The surprise (`fokker.tables.surprise`) ranks rows by how odd they
are, and is fitted once. The tensors of a model say all of its shapes, so that it is made again
from them (`TableModel.of`).
"""

__all__ = ["TableModel"]

import torch

from collections.abc import Mapping
from torch import Tensor

from .correction import Corrected, Net
from .mixture import PROTOTYPES, most_rows, other
from .stacking import stack
from .surprise import Surprise, held_out
from ..energies import Energy
from ..metrics.attribution import contributions, nearest


class TableModel(Energy):
    r"""Creates the model of a table.

    Arguments:
        density: The density, at every noise level.
        surprise: The surprise.
        reference: The surprise of held-out rows, :math:`(m)`, in ascending order.
        rows: Rows to compare odd ones with, :math:`(N, D)`, standardized.
        odd: Their surprise, :math:`(N)`.
    """

    reference: Tensor
    rows: Tensor
    odd: Tensor

    def __init__(
        self, density: Corrected, surprise: Surprise, reference: Tensor, rows: Tensor, odd: Tensor
    ) -> None:
        super().__init__()
        self.density, self.surprise = density, surprise
        self.register_buffer("reference", reference)
        self.register_buffer("rows", rows)
        self.register_buffer("odd", odd)

    @classmethod
    def fit(
        cls, train: Tensor, every: Tensor, varies: Tensor, width: int, bound: float, seed: int
    ) -> "TableModel":
        r"""Returns the model of standardized rows, its correction zero.

        Arguments:
            train: The rows that the density is fitted to, :math:`(N, D)` in float64.
            every: The rows that the surprise is fitted to, :math:`(M, D)`.
            varies: The columns that the density is of, those that vary, :math:`(D)`.
            width: The width of the correction.
            bound: Its bound.
            seed: The seed.
        """
        generator = torch.Generator().manual_seed(seed)
        train = train[:, varies]
        base = stack(train[torch.randperm(len(train), generator=generator)], generator)
        density = Corrected(base, Net(train.shape[1], width, generator), bound)
        fit = lambda rows: Surprise.fit(rows, None, PROTOTYPES, False, seed)
        surprise, order = fit(every), torch.randperm(len(every), generator=generator)
        reference = held_out(every, fit, surprise, order)
        rows = every[order[: most_rows(every.shape[1])]]
        return cls(density, surprise, reference, rows, surprise(rows, apart=True))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], bound: float) -> "TableModel":
        r"""Returns the model with these tensors."""
        groups: dict[str, dict[str, Tensor]] = {"density": {}, "surprise": {}, "": {}}
        for name, t in tensors.items():
            head, _, rest = name.partition(".")
            groups[head if head in groups else ""][rest if head in groups else name] = t
        found = [groups[""].get(name) for name in ("reference", "rows", "odd")]
        reference, rows, odd = found
        if len(groups[""]) != 3 or reference is None or rows is None or odd is None:
            raise other(groups[""], "a model of a table")
        whole = reference.ndim == 1 and rows.ndim == 2 and odd.shape == rows.shape[:1]
        if not (whole and reference.numel() and rows.numel()):
            raise other(groups[""], "a model of a table")
        if any(t.dtype != torch.float64 for t in (reference, rows, odd)):
            raise other(groups[""], "a model of a table")
        density = Corrected.of(groups["density"], bound)
        surprise = Surprise.of(groups["surprise"])
        columns, coordinates = density.base.centers.shape[1], rows.shape[1]
        if columns > coordinates or len(surprise.view.mean) != coordinates:
            raise other(groups[""], f"a model of {columns} columns")
        return cls(density, surprise, reference, rows, odd)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        return self.density(x, sigma)

    def oddness(self, z: Tensor) -> Tensor:
        r"""Returns the surprise of rows, a training row judged without itself."""
        with torch.no_grad():
            return self.surprise(z, apart=True)

    def reasons(self, z: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns what each coordinate adds to the surprise of rows above that of the nearest
        likely row, :math:`(B, D)`, and these likely rows."""
        near = self.rows[nearest(self.rows, self.odd, z)]
        return contributions(self.surprise, z, near).detach(), near
