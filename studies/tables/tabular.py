r"""The tables of real tables: anomalies, trials, likelihoods, fits and seconds."""

__all__ = [
    "anomaly_table",
    "correction_table",
    "fit_table",
    "likelihood_table",
    "size_table",
    "trial_table",
]

import math
import statistics

from collections.abc import Iterable
from pathlib import Path

from .. import results

Figures = dict[str, float]  # by table
BASELINES = ("kNN", "DTE-NP", "LOF", "IForest", "GMM", "ECOD", "MCD")
CORRECTIONS = {"divergence": "clusters, corrected", "contrast": "clusters, contrasted"}
NAMES = {
    "energy": "`EnergyOutlier()`",
    "energy, told": "`EnergyOutlier(contamination=...)`",
    "energy, corrected": "`EnergyOutlier(0, correction=True)`",
}


def means(rows: Iterable[results.Row], key: str) -> Figures:
    r"""Returns the mean of a figure over seeds, for each table."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row[key] is not None:
            found.setdefault(row["data"], []).append(row[key])
    return {data: statistics.fmean(values) for data, values in found.items()}


def paired(a: Figures, b: Figures) -> tuple[float, float]:
    r"""Returns the mean difference over the tables that both have, and its standard error."""
    gaps = [a[data] - b[data] for data in a.keys() & b.keys()]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))


def anomaly_table(path: Path, part: str = "reported") -> str:
    r"""Returns the table of the methods on the tables reported."""
    rows = [r for r in results.load(path)["rows"] if r["part"] == part]
    of = lambda m, s: [r for r in rows if (r["method"], r["setting"]) == (m, s)]
    methods = dict.fromkeys(r["method"] for r in rows if of(r["method"], "mixed"))
    ours = {s: means(of("energy", s), "auroc") for s in ("normal", "mixed")}
    lines = []
    for method in methods:
        cells = [NAMES.get(method, method)]
        for setting in ("normal", "mixed"):
            auroc = means(of(method, setting), "auroc")
            auprc = means(of(method, setting), "auprc")
            gap, error = paired(ours[setting], auroc)
            cells += [
                f"{statistics.fmean(auroc.values()):.1f}",
                f"{statistics.fmean(auprc.values()):.1f}",
                "" if method == "energy" else f"{gap:+.1f} ± {error:.1f}",
            ]
        both = of(method, "normal") + of(method, "mixed")
        seconds = [r["seconds"] for r in both if not r["failed"]]
        cells += [
            f"{sum(r['failed'] for r in both)} of {len(both)}",
            f"{statistics.median(seconds):.2f}",
            f"{max(seconds):.1f}",
        ]
        lines.append(cells)
    header = (
        "method", "normal: AUROC", "AUPRC", "default minus it", "mixed: AUROC", "AUPRC",
        "default minus it", "failed", "seconds, median", "worst",
    )  # fmt: skip
    return results.markdown(header, lines)


def trial_table(path: Path) -> str:
    r"""Returns the table of the trials on the tables that choices were made on."""
    rows = results.load(path)["rows"]
    of = lambda m, s: means([r for r in rows if (r["method"], r["setting"]) == (m, s)], "auroc")
    full = max(len(of(r["method"], "normal")) for r in rows)
    lines = []
    for method in dict.fromkeys(r["method"] for r in rows):
        found = [of(method, s) for s in ("normal", "mixed")]
        if all(len(f) == full for f in found):
            seeds = str(len({r["seed"] for r in rows if r["method"] == method}))
            figures = (f"{statistics.fmean(f.values()):.1f}" for f in found)
            lines.append([method, seeds, *figures])
    return results.markdown(("experts", "seeds", "normal: AUROC", "mixed: AUROC"), lines)


def correction_table(path: Path) -> str:
    r"""Returns the gain of learned corrections in the trials, on the seeds that both have, with
    its error."""
    rows = results.load(path)["rows"]
    lines = []
    for kind, name in CORRECTIONS.items():
        for setting in ("normal", "mixed"):
            both = [
                [r for r in rows if (r["method"], r["setting"]) == (m, setting)]
                for m in ("clusters", name)
            ]
            seeds = set.intersection(*({r["seed"] for r in some} for some in both))
            base, more = (means([r for r in s if r["seed"] in seeds], "auroc") for s in both)
            gap, error = paired(more, base)
            values = (f"{statistics.fmean(v.values()):.1f}" for v in (base, more))
            lines.append([kind, setting, str(len(seeds)), *values, f"{gap:+.2f} ± {error:.2f}"])
    header = ("learned by", "setting", "seeds", "clusters alone", "corrected", "gain")
    return results.markdown(header, lines)


def likelihood_rows(path: Path) -> dict[str, dict[str, tuple[float, float]]]:
    r"""Returns the mean log-likelihood over seeds of each method on each table, and its
    error."""
    rows = results.load(path)["rows"]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for data in dict.fromkeys(r["data"] for r in rows):
        for method in dict.fromkeys(r["method"] for r in rows):
            own = [r for r in rows if (r["data"], r["method"]) == (data, method)]
            if own:
                value = statistics.fmean(r["loglik"] for r in own)
                error = math.hypot(*(r["error"] for r in own)) / len(own)
                found.setdefault(data, {})[method] = (value, error)
    return found


def best_or_within(found: dict[str, dict[str, tuple[float, float]]], method: str) -> int:
    r"""Returns on how many tables a method is the best, or within its error of the best."""
    return sum(
        values[method][0] + values[method][1] >= max(v for v, _ in values.values())
        for values in found.values()
        if method in values
    )


def likelihood_table(path: Path) -> str:
    r"""Returns the held-out log-likelihoods, and on how many tables each method is best or within
    its error of the best."""
    found = likelihood_rows(path)
    methods = list(dict.fromkeys(m for values in found.values() for m in values))
    lines = []
    for data, values in found.items():
        top = max(v for v, _ in values.values())
        cells = [
            f"{'**' * (v == top)}{v:.2f}{'**' * (v == top)} ± {e:.2f}"
            for v, e in (values[m] for m in methods if m in values)
        ]
        lines.append([data.split("_", 1)[1], *cells])
    counts = [f"{best_or_within(found, m)} of {len(found)}" for m in methods]
    lines.append(["best, or within its error", *counts])
    return results.markdown(("table", *methods), lines)


def fit_table(path: Path) -> str:
    r"""Returns how many tables `fokker train table` fitted, and how long it took, by the largest
    number of rows."""
    rows = results.load(path)["rows"]
    lines = []
    for most in dict.fromkeys(r["most"] for r in rows):
        every = [r for r in rows if r["most"] == most]
        fitted = [r for r in every if not r["failed"]]
        cells = ["all" if most is None else f"{most:,}", f"{len(fitted)} of {len(every)}"]
        if fitted:
            slow, large = (max(fitted, key=lambda r: r[k]) for k in ("seconds", "megabytes"))
            cells += [
                f"{statistics.median(r['seconds'] for r in fitted):.1f}",
                f"{slow['seconds']:.1f} ({name_of(slow)})",
                f"{statistics.median(r['megabytes'] for r in fitted):.1f}",
                f"{large['megabytes']:.1f} ({name_of(large)})",
            ]
        lines.append(cells + ["–"] * (6 - len(cells)))
    header = ("rows, at most", "tables fitted", "seconds, median", "worst", "megabytes, median",
              "worst")  # fmt: skip
    return results.markdown(header, lines)


def name_of(row: results.Row) -> str:
    r"""Returns the name of a table with its size."""
    name = row["data"].split("_", 1)[-1]
    return f"{name}, {row['rows']:,} x {row['columns']:,}"


def size_table(path: Path) -> str:
    r"""Returns the seconds of training, of a million scores, and of the products in these, by the
    size of the table."""
    lines = [
        [
            f"{row['rows']:,} x {row['columns']:,}",
            *(
                f"{row[f'{kind}_{what}_seconds']:.1f}"
                for kind in ("outlier", "density")
                for what in ("fit", "million", "products")
            ),
        ]
        for row in results.load(path)["rows"]
    ]
    header = ("table", "`EnergyOutlier`: fit", "a million scores", "products alone",
              "`EnergyDensity`: fit", "a million scores", "products alone")  # fmt: skip
    return results.markdown(header, lines)
