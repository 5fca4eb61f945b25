r"""Anomalies of real tables: `EnergyOutlier` beside the usual detectors, on ADBench.

**Settings.** ``normal``: half of the normal rows to train, all other rows to test. ``mixed``: half
of all rows to train, anomalies among them, and half to test. Of a set with more rows than asked
for, so many are drawn, with the share of anomalies kept and at least 20 of them where there are so
many. Columns are standardized by the training rows for every method; ours does it itself.

**Choice.** Every choice was made on the 15 sets in `CHOSEN`, every second one in the order of the
file names. The other 15 were not looked at before; the tables report these.

Seconds are of the processor, fit and scores together. A method that raises is written down as
failed, with its message.
"""

__all__ = ["CHOSEN", "METHODS", "TRIALS", "Split", "load", "run", "sets"]

import numpy as np
import time
import warnings

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from fokker import checks
from pathlib import Path
from typing import Any

from . import results
from .units import begin

CHOSEN = (
    "10_cover", "12_fault", "15_Hepatitis", "18_Ionosphere", "22_magic.gamma", "26_optdigits",
    "28_pendigits", "2_annthyroid", "31_satimage-2", "34_smtp", "37_Stamps", "39_vertebral",
    "43_WDBC", "47_yeast", "6_cardio",
)  # fmt: skip
SETTINGS = ("normal", "mixed")
ANOMALIES = 20  # kept at least
SAME = ("rows", "ranks", "clusters", "rank clusters")  # experts of all rows alike
WIDE = 300  # columns above which MCD is not run: it takes hours

Scores = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # train, test, seed: high is odd


@dataclass(frozen=True)
class Split:
    r"""Creates the rows of one table in one setting."""

    train: np.ndarray
    test: np.ndarray
    odd: np.ndarray  # of the test rows

    def standardized(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.train.mean(0), self.train.std(0)
        std = np.where(std > 0, std, 1.0)
        return (self.train - mean) / std, (self.test - mean) / std


def sets(folder: Path, names: Collection[str] | None = None) -> list[Path]:
    r"""Returns the files of the tables, in the order of their names: of all, or of those
    named."""
    found = sorted(folder.glob("*.npz"))
    if not found:
        raise ValueError(f"expected tables, .npz files of X and y, in {folder}, got none")
    if names is None:
        return found
    known = {path.stem: path for path in found}
    for name in names:
        if name not in known:
            raise checks.unknown(name, list(known), "a table", "--tables")
    return [path for path in found if path.stem in set(names)]


def load(path: Path, setting: str, seed: int, most: int) -> Split:
    r"""Returns the rows of a table, at most `most` in all."""
    with np.load(path) as data:
        x, y = data["X"].astype(np.float64), data["y"].astype(int)
    rng = np.random.default_rng(seed)
    odd, normal = (rng.permutation(np.flatnonzero(y == k)) for k in (1, 0))
    if len(x) > most:
        keep = min(len(odd), max(ANOMALIES, round(most * len(odd) / len(x))))
        odd, normal = odd[:keep], normal[: most - keep]
    first = len(normal) // 2
    half = len(odd) // 2 if setting == "mixed" else 0
    train = rng.permutation(np.concatenate([normal[:first], odd[:half]]))
    test = np.concatenate([normal[first:], odd[half:]])
    return Split(x[train], x[test], y[test])


# --- methods ---


def energy(contamination: Any = "auto", correction: bool = False) -> Scores:
    def scores(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
        from fokker.tables import EnergyOutlier

        detector = EnergyOutlier(contamination, correction=correction, random_state=seed)
        return -detector.fit(train).score_samples(test)

    return scores


def experts(
    *names: str, contamination: float | None = 0.0, correct: bool = False, kept: int = 2000
) -> Scores:
    r"""Returns the surprise of some experts alone, without held-out rows."""

    def scores(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
        import torch

        from fokker.tables.columns import Columns
        from fokker.tables.surprise import Surprise

        columns = Columns.fit(train)
        encode = lambda x: torch.from_numpy(columns.encode(x))
        found = Surprise.fit(encode(train), contamination, kept, correct, seed, names)
        with torch.no_grad():
            return found(encode(test)).numpy()

    return scores


def contrasted(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    r"""Clusters with a correction that is learned by contrast with their samples."""
    import torch

    from fokker.tables.columns import Columns
    from fokker.tables.surprise import COMPONENTS, FITTED, LEVEL, PER_COMPONENT, Expert

    from .contrast import contrast

    columns = Columns.fit(train)
    encode = lambda x: torch.from_numpy(columns.encode(x))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    rows = encode(train)[order[:FITTED]]
    clusters = max(1, min(COMPONENTS, len(rows) // PER_COMPONENT))
    energy, _, _ = contrast(rows, clusters, LEVEL, LEVEL, seed)
    expert = Expert("clusters", energy)
    expert.calibrate(rows)
    with torch.no_grad():
        return expert(encode(test), apart=False).numpy()


def neighbors(k: int, mean: bool) -> Scores:
    def scores(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
        from sklearn.neighbors import NearestNeighbors

        distance, _ = NearestNeighbors(n_neighbors=min(k, len(train))).fit(train).kneighbors(test)
        return distance.mean(1) if mean else distance[:, -1]

    return scores


def factor(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.neighbors import LocalOutlierFactor

    found = LocalOutlierFactor(min(20, len(train) - 1), novelty=True).fit(train)
    return -found.score_samples(test)


def forest(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import IsolationForest

    return -IsolationForest(random_state=seed).fit(train).score_samples(test)


def gaussians(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    r"""A mixture of 1, 2, 4 or 8 Gaussians, by BIC."""
    from sklearn.mixture import GaussianMixture

    found = [
        GaussianMixture(k, reg_covar=1e-3, random_state=seed).fit(train)
        for k in (1, 2, 4, 8)
        if 4 * k <= len(train) or k == 1
    ]
    return -min(found, key=lambda m: m.bic(train)).score_samples(test)


def ecod(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from pyod.models.ecod import ECOD

    return ECOD().fit(train).decision_function(test)


def mcd(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.covariance import MinCovDet

    if train.shape[1] > WIDE:
        raise ValueError(f"expected at most {WIDE} columns for MCD, got {train.shape[1]}")
    return MinCovDet(random_state=seed).fit(train).mahalanobis(test)


OURS: dict[str, Scores] = {
    "energy": energy(),
    "energy, told": energy(0.0),
    "energy, corrected": energy(0.0, correction=True),
}
TOLD = {  # in the setting mixed
    "energy, told": energy(0.1),
    "energy, corrected": energy(0.1, correction=True),
}
BASELINES: dict[str, Scores] = {
    "kNN": neighbors(5, mean=False),
    "DTE-NP": neighbors(5, mean=True),
    "LOF": factor,
    "IForest": forest,
    "GMM": gaussians,
    "ECOD": ecod,
    "MCD": mcd,
}
METHODS = OURS | BASELINES
TRIALS: dict[str, Scores] = {
    "rows": experts("rows"),
    "ranks": experts("ranks"),
    "clusters": experts("clusters"),
    "clusters, corrected": experts("clusters", correct=True),
    "clusters, contrasted": contrasted,
    "core": experts("core", contamination=None),
    "rows, ranks": experts("rows", "ranks"),
    "rows, ranks, clusters": experts("rows", "ranks", "clusters"),
    "rows, ranks, clusters, corrected": experts("rows", "ranks", "clusters", correct=True),
    "rows, ranks, both clusters": experts(*SAME),
    "rows, ranks, both clusters, 500 rows kept": experts(*SAME, kept=500),
    "all, fenced": experts("rows", "ranks", "clusters", "core", contamination=None),
    "all and rank clusters, fenced": experts(*SAME, "core", contamination=None),
    "rows, ranks, clusters of the core": experts("rows", "ranks", "clusters", contamination=0.1),
    "rows, ranks, both clusters of the core": experts(*SAME, contamination=0.1),
    "kNN": BASELINES["kNN"],
    "GMM": BASELINES["GMM"],
    "IForest": BASELINES["IForest"],
}


def measure(name: str, method: Scores, split: Split, seed: int) -> results.Row:
    r"""Returns the figures of a method on a table."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    ours = name in OURS or name not in BASELINES
    train, test = (split.train, split.test) if ours else split.standardized()
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = method(train, test, seed)
        if not np.isfinite(scores).all():
            raise FloatingPointError("scores that are not finite")
    except Exception as error:  # noqa: BLE001  (a failure is a result)
        line = {"auroc": None, "auprc": None, "failed": True, "error": str(error)[:120]}
    else:
        line = {
            "auroc": round(100 * float(roc_auc_score(split.odd, scores)), 3),
            "auprc": round(100 * float(average_precision_score(split.odd, scores)), 3),
            "failed": False,
        }
    return line | {"seconds": round(time.process_time() - start, 3)}


def run(
    out: Path,
    folder: Path,
    methods: dict[str, Scores],
    names: Collection[str] | None = None,
    settings: Iterable[str] = SETTINGS,
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
    most: int = 10_000,
    command: str = "fokker reproduce tables",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Runs methods on tables, all if none are named, and writes the rows after each table; those
    in the file already are not run again."""
    rows = results.load(out)["rows"] if out.exists() else []
    done = {(r["data"], r["setting"], r["method"], r["seed"]) for r in rows}
    paths, made = sets(folder, names), results.provenance()
    cases = [(seed, s, path) for seed in seeds for s in settings for path in paths]
    new = [(path.stem, s, m, seed) for seed, s, path in cases for m in methods]
    units = begin("reproduce tables", len(set(new) - done))
    for seed in dict.fromkeys(seed for seed, _, _ in cases):
        for setting in dict.fromkeys(s for _, s, _ in cases):
            for path in paths:
                todo = [m for m in methods if (path.stem, setting, m, seed) not in done]
                if not todo:
                    continue
                split = load(path, setting, seed, most)
                for name in todo:
                    method = methods[name]
                    if setting == "mixed" and name in TOLD:
                        method = TOLD[name]
                    key = {
                        "data": path.stem, "setting": setting, "method": name, "seed": seed,
                        "part": "chosen on" if path.stem in CHOSEN else "reported",
                    }  # fmt: skip
                    rows.append(key | measure(name, method, split, seed) | {"rows": most} | made)
                    units.done()
                results.save(out, rows, command, {"rows": most, "threads": 1})
                shown = {r["method"]: r["auroc"] for r in rows[-len(todo) :]}
                progress(f"{path.stem}, {setting}, seed {seed}: {shown}")
