r"""Held-out likelihoods of real tables: `EnergyDensity` beside three usual densities.

**Tables.** The normal rows of each table of ADBench, equal rows once, without columns in which one
value takes more than 5 % of the rows, whose density depends on how such values are smoothed; the
first 30 columns; tables with 3 columns or more and 100 rows or more that are left. Rows are split
60 / 20 / 20 into rows to train on, rows to choose by and test rows, the same for every method.
Columns are standardized by the training rows; figures are nats per row in these units.

**Methods.** A Gaussian mixture with 1 to 16 components by BIC; a kernel density with the best of
12 bandwidths by 5-fold cross-validation; a neural spline flow (`zuko`: 3 transforms, two hidden
layers of 64), at most 60 epochs of Adam, stopped by the rows to choose by. All others are fitted
to training rows and rows to choose by together.

The error of a figure is the standard error of the mean over test rows.
"""

__all__ = ["METHODS", "prepare", "run"]

import numpy as np
import time
import torch
import warnings

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from . import results
from .anomalies import sets
from .units import begin

LARGEST = 0.05  # share of the rows with one value
FEWEST = 100  # rows
COLUMNS = 30
EPOCHS, PATIENCE = 60, 8
FLOOR = 1e-3  # the variance that is added to covariances

LogDensity = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def prepare(path: Path, seed: int, most: int) -> tuple[np.ndarray, ...] | None:
    r"""Returns the standardized rows to train on, to choose by and to test on; `None` if too
    little of the table is left."""
    with np.load(path) as data:
        x = np.unique(data["X"][data["y"] == 0].astype(np.float64), axis=0)
    rng = np.random.default_rng(seed)
    kept = [
        j
        for j in range(x.shape[1])
        if np.unique(x[:, j], return_counts=True)[1].max() <= LARGEST * len(x)
    ][:COLUMNS]
    if len(kept) < 3 or len(x) < FEWEST:
        return None
    x = np.unique(x[:, kept], axis=0)
    x = rng.permutation(x)[:most]
    n = len(x)
    train, choose, test = np.split(x, [int(0.6 * n), int(0.8 * n)])
    mean, std = train.mean(0), train.std(0)
    return tuple((part - mean) / std for part in (train, choose, test))


def energy(train: np.ndarray, choose: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from fokker.tables import EnergyDensity

    density = EnergyDensity(random_state=seed)
    return density.fit(np.concatenate([train, choose])).score_samples(test)


def corrected(train: np.ndarray, choose: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from fokker.tables import EnergyDensity

    density = EnergyDensity(correction=True, random_state=seed)
    return density.fit(np.concatenate([train, choose])).score_samples(test)


def gaussians(train: np.ndarray, choose: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    rows = np.concatenate([train, choose])
    found = [
        GaussianMixture(k, reg_covar=FLOOR, random_state=seed).fit(rows)
        for k in (1, 2, 3, 4, 6, 8, 12, 16)
        if k == 1 or 4 * k <= len(rows)
    ]
    return min(found, key=lambda m: m.bic(rows)).score_samples(test)


def kernels(train: np.ndarray, choose: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KernelDensity

    rows = np.concatenate([train, choose])
    widths = {"bandwidth": np.geomspace(0.03, 1.5, 12)}
    search = GridSearchCV(KernelDensity(), widths, cv=5).fit(rows)
    return search.best_estimator_.score_samples(test)


def flow(train: np.ndarray, choose: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    import zuko

    torch.manual_seed(seed)
    model = zuko.flows.NSF(train.shape[1], transforms=3, hidden_features=(64, 64)).float()
    rows, held, last = (torch.from_numpy(x).float() for x in (train, choose, test))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    best, weights, since = -np.inf, model.state_dict(), 0
    for _ in range(EPOCHS):
        for batch in rows[torch.randperm(len(rows))].split(min(128, max(16, len(rows) // 8))):
            loss = -model().log_prob(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        with torch.no_grad():
            now = float(model().log_prob(held).mean())
        if now > best:
            best, since = now, 0
            weights = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            since += 1
            if since == PATIENCE:
                break
    model.load_state_dict(weights)
    with torch.no_grad():
        return model().log_prob(last).double().numpy()


METHODS: dict[str, LogDensity] = {
    "energy": energy,
    "energy, corrected": corrected,
    "GMM by BIC": gaussians,
    "KDE by CV": kernels,
    "neural spline flow": flow,
}


def run(
    out: Path,
    folder: Path,
    methods: dict[str, LogDensity],
    names: Collection[str] | None = None,
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
    most: int = 10_000,
    command: str = "fokker reproduce tables --what likelihood",
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    r"""Runs methods on tables, all if none are named, and writes the rows after each; those in
    the file already are not run again."""
    rows = results.load(out)["rows"] if out.exists() else []
    done = {(r["data"], r["method"], r["seed"]) for r in rows}
    paths, made = sets(folder, names), results.provenance()
    seeds = tuple(seeds)
    units = begin("reproduce tables", len(seeds) * len(paths) * len(methods))
    for seed in seeds:
        for path in paths:
            todo = [m for m in methods if (path.stem, m, seed) not in done]
            parts = prepare(path, seed, most) if todo else None
            for _ in range(len(methods) - len(todo) if parts else len(methods)):
                units.skip()
            if parts is None:
                continue
            for name in todo:
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    logs = methods[name](parts[0], parts[1], parts[2], seed)
                rows.append({
                    "data": path.stem,
                    "method": name,
                    "seed": seed,
                    "loglik": round(float(logs.mean()), 4),
                    "error": round(float(logs.std() / len(logs) ** 0.5), 4),
                    "seconds": round(time.process_time() - start, 3),
                    "rows": len(parts[0]),
                    "columns": parts[0].shape[1],
                    **made,
                })
                units.done()
            results.save(out, rows, command, {"rows": most, "threads": 1})
            shown = {r["method"]: r["loglik"] for r in rows[-len(todo) :]}
            progress(f"{path.stem}, seed {seed}: {shown}")
