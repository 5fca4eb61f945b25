r"""Files of results that are joined: parts of a study that ran side by side, or elsewhere.

A run folder is a part of the generation study: its rows are those of its milestones
(`fokker.runs.milestones`).

What tells the rows of a study apart is its key, such as target, dimension, seed and method. The
rows of a part go into the file of the study, each with its provenance (commit, time, hardware and
version of torch: its own, or those of its file). A row that is there already is kept once; one
that differs from it in a figure contradicts it, and nothing is written.
"""

__all__ = ["KEYS", "joined", "merge"]

from collections.abc import Sequence
from dataclasses import replace
from fokker import load
from fokker.runs.config import UNet
from fokker.runs.milestones import read_quality
from fokker.runs.presets import GENERATION_METHODS, SIZES
from fokker.runs.toml import encode
from pathlib import Path

from . import results

DRAW = ("preset", "method", "size", "step", "kind", "sampler", "steps", "corrector", "guide")
DRAW += ("seed", "guidance", "muon", "set", "sigma", "fid_n", "nfe", "weights", "note", "commit")
STEP = ("suite", "library", "name", "net", "batch", "shape", "device", "precision", "compiled")
DRAWN = ("draws", "draws of the form", "step", "sigma", "shift")
KEYS: dict[str, tuple[str, ...]] = {
    "ablation": ("arm", "data", "seed", "steps"),
    "bench": STEP,
    "cd": ("method", "trial", "value", "data", "seed", "steps"),
    "composition": ("dimension", "composition", "sampler", "n", "seed"),
    "denoising": ("data", "preset", "method", "rule", "sigma", "clipped", "form"),
    "estimators": ("group", "estimator", "net", "batch", "trained", "form"),
    "flows": ("suite", "run", "sampler", "steps", "rho", "sigma_min"),
    "generation": ("data", *DRAW),
    "likelihood": ("data", "run", "step", "how", "images"),
    "likelihood_tables": ("data", "method", "seed"),
    "mixtures": ("d", "method", "seed", "steps"),
    "networks": ("name", "data", "seed", "minutes", "batch"),
    "normalizer": ("target", "dimension", "base", "seed", "method"),
    "ood": ("train", "run", "step", "test", "rule", "level"),
    "optima": ("data", "scale"),
    "optimizers": ("optimizer", "rate", "data", "seed"),
    "peers_tuning": ("data", "preset", "method", "library", "seed", "steps", "settings"),
    "photographs": ("data", "task", "sigma", "method", "pictures", "side"),
    "posterior": ("dimension", "operator", "corrected", "weighted", "particles", "seed"),
    "samples": ("target", "preset", "dimension", "sampler"),
    "sweep": ("sweep", "value", "data", "seed", "steps"),
    "tables": ("data", "setting", "method", "seed", "part"),
    "tables_fits": ("data", "most"),
    "tables_sizes": ("rows", "columns"),
    "tables_trials": ("data", "setting", "method", "seed", "part"),
    "toy": ("data", "preset", "method", "library", "seed", "steps"),
    "variance": ("net", "dimension", "form", "precision", "batch", *DRAWN),
}
MADE = ("commit", "time", "hardware", "torch")


def content_of(path: Path) -> results.Row:
    r"""Returns a file of results, or what a run folder holds as one."""
    if not path.is_dir():
        return results.load(path)
    run = load(path)
    if not (rows := read_quality(path)):
        raise ValueError(f"expected a run whose samples were judged, got {path}; use --fid-at")
    config = run.config
    optimization, network = config.optimization, config.network
    named = {
        objective: (preset, method)
        for preset, methods in GENERATION_METHODS.items()
        for method, objective in methods.items()
    }
    preset, method = named.get(config.objective, (None, None))
    sizes = [name for name, size in SIZES.items() if alike(network, size)]
    starts = run.starts[-1] if run.starts else {}
    head = {
        "data": run.task.title,
        "preset": preset,
        "method": method,
        "size": sizes[0] if sizes else None,
        "params": sum(p.numel() for p in run.energy.parameters()),
        "kind": "milestone",
        "seed": config.seed,
        "muon": optimization.muon,
        "batch": optimization.batch,
        "budget": optimization.steps * optimization.batch,
        "restarts": list(optimization.restarts),
        "guide": None,
        "guidance": None,
        "corrector": 0,
        "network": encode(network),
        "torch": starts.get("torch", "unknown"),
    }
    made = {"commit": rows[-1]["commit"], "time": rows[-1]["time"]}
    made |= {"hardware": rows[-1]["hardware"], "versions": {"torch": head["torch"]}}
    rows = [{**head, **row} for row in rows]
    return {"command": "fokker train generation", **made, "config": {}, "rows": rows}


def alike(network: object, size: UNet) -> bool:
    r"""Returns whether a network is one of a size, whatever the precision of its layers."""
    return isinstance(network, UNet) and replace(network, precision=size.precision) == size


def key_of(row: results.Row, kind: str) -> tuple[str, ...]:
    r"""Returns what tells a row of a study apart from the others."""
    return tuple(repr(row.get(field)) for field in KEYS[kind])


def joined(parts: Sequence[tuple[Path, results.Row]], kind: str) -> list[results.Row]:
    r"""Returns the rows of files of one study, in the order of the files; says which contradict
    each other."""
    found: dict[tuple[str, ...], tuple[results.Row, Path]] = {}
    for path, content in parts:
        for row in results.rows_of(content):
            key = key_of(row, kind)
            if key not in found:
                found[key] = row, path
                continue
            before, where = found[key]
            for field in sorted({*before, *row} - {*MADE}):
                if before.get(field) != row.get(field):
                    place = ", ".join(f"{f} {v}" for f, v in zip(KEYS[kind], key, strict=True))
                    raise ValueError(
                        f"expected rows that agree, got {place} with {field}"
                        f" {before.get(field)!r} in {where} and {row.get(field)!r} in {path}"
                    )
    return [row for row, _ in found.values()]


def merge(out: Path, parts: Sequence[Path], kind: str) -> int:
    r"""Adds the rows of files to that of a study, which need not exist yet; returns how many came
    anew."""
    before = [(out, results.load(out))] if out.exists() else []
    contents = before + [(path, content_of(path)) for path in parts]
    first, config = contents[0][0], contents[0][1].get("config")
    for path, content in contents:
        if content.get("config") != config:
            raise ValueError(
                f"expected files made with one config, got {config} in {first} and"
                f" {content.get('config')} in {path}"
            )
    rows = joined(contents, kind)
    command = "; ".join(dict.fromkeys(c["command"] for _, c in contents))
    where = "; ".join(sorted({row["hardware"] for row in rows}))
    results.save(out, rows, command, config, where=where)
    return len(rows) - sum(len(content["rows"]) for _, content in before)
