r"""Ranks of methods over many data sets, and the least difference that is not chance.

On each data set the methods are ranked, 1 the best, ties sharing their ranks. Mean ranks of two
methods differ significantly (Nemenyi, 5 %) if they are apart by

.. math:: CD = q_{0.05} \sqrt{\frac{k (k + 1)}{6 n}}

for k methods on n sets, with q the quantile of the studentized range divided by
:math:`\sqrt{2}`.

References:
    | Statistical Comparisons of Classifiers over Multiple Data Sets (Demsar, 2006)
"""

__all__ = ["critical_difference", "draw", "mean_ranks"]

import math
import numpy as np

from matplotlib.figure import Figure
from pathlib import Path
from scipy.stats import rankdata, studentized_range

from . import results
from .tables.tabular import means


def mean_ranks(scores: dict[str, dict[str, float]]) -> tuple[dict[str, float], int]:
    r"""Returns the mean rank of each method over the data sets that all have, and their number;
    a high score is good."""
    shared = sorted(set.intersection(*(set(s) for s in scores.values())))
    matrix = np.array([[scores[m][data] for m in scores] for data in shared])
    ranks = rankdata(-matrix, axis=1).mean(0)
    return dict(zip(scores, ranks.tolist(), strict=True)), len(shared)


def critical_difference(methods: int, sets: int) -> float:
    r"""Returns the least difference of mean ranks that is significant at 5 %."""
    q = studentized_range.ppf(0.95, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * sets)))


def draw(path: Path, out: Path) -> None:
    r"""Draws the mean ranks in both settings, over all tables, with the critical difference."""
    rows = results.load(path)["rows"]
    figure = Figure(figsize=(9.6, 4.2), dpi=120, layout="constrained")
    for axis, setting in zip(figure.subplots(1, 2), ("normal", "mixed"), strict=True):
        own = [r for r in rows if r["setting"] == setting and r["part"] == "reported"]
        every = {r["method"] for r in rows if r["setting"] == "mixed"} - {"MCD"}
        methods = [m for m in dict.fromkeys(r["method"] for r in own) if m in every]
        scores = {m: means([r for r in own if r["method"] == m], "auroc") for m in methods}
        ranks, n = mean_ranks(scores)
        width = critical_difference(len(ranks), n)
        ordered = sorted(ranks.items(), key=lambda item: item[1])
        for k, (name, rank) in enumerate(ordered):
            color = "#b5367a" if name.startswith("energy") else "#3b4a6b"
            axis.plot([rank - width / 2, rank + width / 2], [k, k], color=color, lw=2)
            axis.plot(rank, k, "o", color=color)
        axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
        axis.invert_yaxis()
        axis.set(
            xlabel="mean rank, 1 is best",
            title=f"{setting}: {n} sets; bars that overlap do not differ (5 %)",
        )
        axis.title.set_fontsize(9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
