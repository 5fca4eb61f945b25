r"""The surprise of a row: several energies of one table, on one scale.

An expert is an energy of a view of the rows. Its energies are centered by their median m over the
training rows and divided by their standard deviation s, each row judged without itself where the
expert knows it; the surprise is their mean after a soft compression,

.. math:: S(x) = \frac{1}{J} \sum_j a\Big( \frac{E_j(x) - m_j}{s_j} \Big), \quad
    a(u) = \frac{\operatorname{asinh}(g u)}{g} ,

so that one expert that is beside itself does not silence the others. High is odd. The experts:

- ``rows``: a Gaussian at each training row, at the level of the spacing of the rows; a soft
  distance to the nearest rows, on standardized columns (`Rows`);
- ``ranks``: the same on the normal scores of the columns (`NormalScores`), which heavy tails and
  units do not change;
- ``clusters``: a mixture of up to 64 Gaussians at level 0.2, with the learned correction
  (`fokker.tables.correction`) if it is a gain on held-out rows;
- ``rank clusters``: such a mixture of the normal scores, without a correction;
- ``core``: the same mixture of the 70 % of the rows nearest to others. It does not know small
  groups of odd rows, which the others take for normal if they are among the training rows.

**Rows that are not all normal.** By default a few rows far from the rest are not trained on: those
whose distance to their n/20-th neighbor is above the third quartile by three interquartile ranges,
in logarithms. Who knows that all rows are normal sets `contamination` to 0, and has neither this
fence nor the core. Who states the share of outliers has the experts without the core, trained on
the rows nearest to others, without three times that share (at most 30 %).

Choices were made by trials on 15 tables named beforehand (`fokker reproduce tables`).
"""

__all__ = ["EXPERTS", "Expert", "Surprise", "held_out"]

import torch

from collections.abc import Callable, Mapping, Sequence
from torch import Tensor, nn
from typing import Any

from .correction import learn
from .mixture import Clusters, Rows, assemble, most_rows, other, spacing
from .scaling import NormalScores

EXPERTS = ("rows", "ranks", "clusters", "rank clusters", "core")
RANKS = ("ranks", "rank clusters")  # those that see normal scores
LEVEL = 0.2  # of the clusters
COMPONENTS, PER_COMPONENT = 64, 16  # the most clusters, and the rows of each
FEWER = 2  # times as few clusters in the core
ITERATIONS = 3
FENCE = 3.0  # interquartile ranges
CORE = 0.3  # the share of the rows that the core leaves out
NEIGHBORS = 20  # one in so many rows is a neighbor that counts
FINEST = 0.01  # the least width of a Gaussian at a row
COMPRESSION = 0.5  # g
FITTED = 4000  # rows that clusters are fitted to, at most
FOLDS = 5
FULL = 1000  # rows up to which every fold is held out once; above, only the first
REFERENCES = 2000  # held-out rows, at most
BLOCK = 2**21  # numbers of the rows that all experts score at a time
WIDE = 32  # columns from which on energies are computed in float32, where that is enough


class Expert(nn.Module):
    r"""Creates an expert.

    Arguments:
        name: One of `EXPERTS`.
        energy: The energy of its view of the rows, :math:`(B, d) \to (B)`.
    """

    median: Tensor
    spread: Tensor

    def __init__(self, name: str, energy: nn.Module) -> None:
        super().__init__()
        self.name, self.energy = name, energy
        self.register_buffer("median", torch.zeros((), dtype=torch.float64))
        self.register_buffer("spread", torch.ones((), dtype=torch.float64))

    def energies(self, x: Tensor, apart: bool, rounded: Tensor | None = None) -> Tensor:
        r"""Returns the energies of rows in the view.

        Arguments:
            x: The rows in the view.
            apart: Whether a row is judged without itself.
            rounded: The rows in float32, where that is known already.
        """
        if x.shape[1] < WIDE:
            return self.exact(x, apart)
        rounded = x.float() if rounded is None else rounded
        far = (rounded.square().sum(1) > self.reach).nonzero()[:, 0]
        if 2 * len(far) > len(x):
            return self.exact(x, apart)
        e = self.exact(rounded, apart).double()
        return e.index_put((far,), self.exact(x[far], apart)) if len(far) else e

    def exact(self, x: Tensor, apart: bool) -> Tensor:
        if isinstance(self.energy, Rows):
            return self.energy(x, 0.0, apart)
        return self.energy(x, LEVEL)

    @property
    def reach(self) -> float:
        r"""The squared length of a row up to which float32 gives its energy to a hundredth of a
        nat."""
        if isinstance(self.energy, Rows):  # squares cancel
            return 1e5 * float(self.energy.width.min()) ** 2
        return 1e7 * LEVEL**2

    def calibrate(self, x: Tensor) -> None:
        r"""Sets the median and the spread to those of rows in the view."""
        e = self.energies(x, apart=True)
        self.median = e.median()
        self.spread = e.std(correction=0).clamp_min(1e-6)

    def forward(self, x: Tensor, apart: bool) -> Tensor:
        return self.compress(self.energies(x, apart))

    def compress(self, energies: Tensor) -> Tensor:
        r"""Returns the energies on the scale that all experts share."""
        u = (energies - self.median) / self.spread
        return torch.asinh(COMPRESSION * u) / COMPRESSION


class Surprise(nn.Module):
    r"""Creates the surprise of standardized rows.

    Arguments:
        view: The normal scores, which the experts in `RANKS` see.
        experts: The experts.
        notes: What was done: rows left out, corrections kept.
    """

    def __init__(
        self, view: NormalScores, experts: Sequence[Expert], notes: Mapping[str, Any] = {}
    ) -> None:
        super().__init__()
        self.view, self.notes = view, dict(notes)
        self.experts = nn.ModuleDict({e.name.replace(" ", "_"): e for e in experts})

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Surprise":
        r"""Returns the surprise with these buffers."""
        groups: dict[str, dict[str, Tensor]] = {}
        for name, t in tensors.items():
            head, _, rest = name.partition(".")
            if head == "experts":
                head, _, rest = rest.partition(".")
            groups.setdefault(head, {})[rest] = t
        view = NormalScores.of(groups.pop("view", {}))
        names = [name for name in EXPERTS if name.replace(" ", "_") in groups]
        if len(names) != len(groups) or not names:
            raise other(tensors, "a surprise")
        experts = []
        for name in names:
            group = groups[name.replace(" ", "_")]
            inner = {k.removeprefix("energy."): t for k, t in group.items() if "energy." in k}
            made = Expert(name, energy := assemble(inner))
            if energy.centers.shape[1] != len(view.mean):
                raise other(group, f"an expert of {len(view.mean)} columns")
            experts.append(made)
        return cls(view, experts)

    def forward(self, z: Tensor, apart: bool = False) -> Tensor:
        r"""Returns the surprise, :math:`(B)`.

        Arguments:
            z: The standardized rows, :math:`(B, d)` in float64.
            apart: Whether a row that is a training row is judged without it.
        """
        step = max(1, BLOCK // z.shape[1])
        return torch.cat([self.evaluate(part, apart) for part in z.split(step)])

    def evaluate(self, z: Tensor, apart: bool) -> Tensor:
        r"""Returns the surprise of rows that are few enough to stay in a cache."""
        views, found = {False: z, True: self.view(z)}, []
        wide = z.shape[1] >= WIDE
        rounded = {ranked: x.float() if wide else None for ranked, x in views.items()}
        for expert in self.experts.values():
            assert isinstance(expert, Expert)
            ranked = expert.name in RANKS
            energies = expert.energies(views[ranked], apart, rounded[ranked])
            found.append(expert.compress(energies))
        return torch.stack(found).mean(0)

    @classmethod
    def fit(
        cls,
        z: Tensor,
        contamination: float | None = None,
        prototypes: int = 2000,
        correct: bool = True,
        seed: int = 0,
        names: tuple[str, ...] = EXPERTS,
    ) -> "Surprise":
        r"""Returns the surprise fitted to standardized rows.

        Arguments:
            z: The rows, :math:`(N, d)` in float64.
            contamination: The share of outliers among them; `None` if it is not known.
            prototypes: The largest number of rows that `rows` and `ranks` keep; of more than 75
                columns fewer (`fokker.tables.mixture.most_rows`).
            correct: Whether the clusters are given a learned correction.
            seed: The seed.
            names: The experts.
        """
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(z), generator=generator)
        near, core = inner(z, order, contamination)
        experts, notes = [], {"left_out": len(order) - len(near)}
        kept = z[near[: most_rows(z.shape[1], prototypes)]]
        if "rows" in names:
            experts.append(Expert("rows", row_energy(kept)))
        view = NormalScores(z[near])
        if "ranks" in names:
            experts.append(Expert("ranks", row_energy(view(kept))))
        if "clusters" in names:
            energy, outcome = cluster_energy(
                z[near[:FITTED]], COMPONENTS, correct, seed, generator
            )
            experts.append(Expert("clusters", energy))
            notes |= outcome
        if "rank clusters" in names:
            rows = view(z[near[:FITTED]])
            energy, _ = cluster_energy(rows, COMPONENTS, False, seed, generator)
            experts.append(Expert("rank clusters", energy))
        if "core" in names and contamination is None:
            energy, _ = cluster_energy(z[core], COMPONENTS // FEWER, False, seed, generator)
            experts.append(Expert("core", energy))
        for expert in experts:  # the core by its own rows
            rows = z[core if expert.name == "core" else near[:FITTED]]
            expert.calibrate(view(rows) if expert.name in RANKS else rows)
        return cls(view, experts, notes)


def held_out(
    z: Tensor, fit: Callable[[Tensor], Surprise], whole: Surprise, order: Tensor
) -> Tensor:
    r"""Returns the surprise of held-out rows, in ascending order: of each row by experts that were
    fitted without it, a fifth of the rows at a time. Of many rows one fifth is held out; so few
    that a fifth is nothing are judged each by all others.

    Arguments:
        z: The rows.
        fit: What fits the experts to rows.
        whole: The surprise that was fitted to all rows.
        order: The rows in random order.
    """
    held = order.chunk(FOLDS)[: FOLDS if len(z) <= FULL else 1]
    parts = []
    for fold in held if len(z) >= 2 * FOLDS else ():
        others = torch.ones(len(z), dtype=torch.bool)
        others[fold] = False
        parts.append(fit(z[others])(z[fold[:REFERENCES]]))
    return (torch.cat(parts) if parts else whole(z, apart=True)).sort().values


def inner(z: Tensor, order: Tensor, contamination: float | None) -> tuple[Tensor, Tensor]:
    r"""Returns the indices of the rows to train on, and of those of the core, in the order
    given."""
    some = order[:FITTED]
    if contamination == 0 or len(some) < 4:
        return order, some
    distance = far(z[some])
    if contamination is not None:
        return (core := some[distance <= cut(distance, min(CORE, 3 * contamination))]), core
    near = torch.cat([some[distance <= fence(distance)], order[FITTED:]])
    return near, some[distance <= cut(distance, CORE)]


def cut(distance: Tensor, share: float) -> float:
    r"""Returns the distance that a share of the rows exceeds."""
    return float(torch.quantile(distance, 1 - share)) + 1e-9


def row_energy(rows: Tensor) -> Rows:
    r"""Returns the energy of a Gaussian at each row, as wide as the spacing of the rows."""
    return Rows(rows, max(spacing(rows), FINEST))


def cluster_energy(
    rows: Tensor, components: int, correct: bool, seed: int, generator: torch.Generator
) -> tuple[Any, dict[str, Any]]:
    r"""Returns a mixture of the rows, with a learned correction if that is a gain, and what is
    known of the gain."""
    k = max(1, min(components, len(rows) // (PER_COMPONENT * COMPONENTS // components)))
    whole = Clusters.fit(rows, k, LEVEL, ITERATIONS, generator)
    held = len(rows) // 5
    if not correct or held < 10:
        return whole, {}
    train, validation = rows[held:], rows[:held]
    base = Clusters.fit(train, k, LEVEL, ITERATIONS, generator)
    outcome = learn(base, train, validation, LEVEL / 2, seed)
    note = {"gain": outcome.gain, "error": outcome.error, "corrected": outcome.used}
    if not outcome.used:
        return whole, note
    outcome.energy.base = whole  # the base of all rows, under the correction of four fifths
    return outcome.energy, note


def far(z: Tensor) -> Tensor:
    r"""Returns the logarithm of the distance of each row to its n/20-th nearest other row."""
    n = len(z)
    k = min(max(5, n // NEIGHBORS), n - 1)
    parts = [
        torch.topk(torch.cdist(part, z), k + 1, largest=False).values[:, -1]
        for part in z.split(max(1, 2**21 // n))
    ]
    return torch.log(torch.cat(parts) + 1e-9)


def fence(distance: Tensor) -> float:
    r"""Returns the distance beyond which a row is not trained on; at least 70 % are."""
    q = torch.tensor([0.25, 0.75, 1 - CORE], dtype=distance.dtype)
    low, high, most = torch.quantile(distance, q).tolist()
    return max(high + FENCE * (high - low), most) + 1e-9
