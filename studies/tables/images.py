r"""The tables of the image studies: denoising and generation."""

__all__ = [
    "DENOISING_HEADER",
    "DENOISING_NAMES",
    "GENERATION_HEADER",
    "GENERATION_NAMES",
    "GOALS",
    "NETWORKS_HEADER",
    "PUBLISHED",
    "denoising_rows",
    "draw_table",
    "fid_table",
    "flow_table",
    "generation_rows",
    "generation_table",
    "minutes_to",
    "networks_rows",
    "optimizer_table",
    "pairs_of",
    "pairs_table",
]

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .cells import number
from .. import flows, results

DENOISING_HEADER = (
    "set",
    "method",
    "σ = 0.3",
    "σ = 0.6",
    "σ = 0.9",
    "rule",
    "GPU s",
    "s to paper",
)

DENOISING_NAMES = {
    ("paper", "cd"): "paper CD",
    ("paper", "dcd"): "paper DCD",
    ("paper", "dcd-stein"): "paper DCD, Stein's Laplacian",
    ("paper", "dcd-path"): "paper DCD, bracket along the path",
    ("paper", "dcd-bridge"): "paper DCD, bridge",
    ("fokker", "dcd"): "**fokker DCD**",
    ("fokker", "dcd-limit"): "**fokker, δ → 0 (DSM)**",
    ("fokker", "dcd-central"): "fokker, δ → 0, central",
    ("fokker", "reference"): "reference denoiser",
}


# where `Bridge` compared with a draw of the model and not with the mirror image of the data
BEFORE_MIRROR = {"f930877"}


def former(row: results.Row) -> str | None:
    r"""Returns the name of the form of a finite step that is no longer that of its method."""
    if (row["preset"], row["method"]) != ("fokker", "dcd"):
        return None
    if "path" in row.get("form", ""):
        return "by the path"
    return "to a draw of the model" if row["commit"] in BEFORE_MIRROR else None


def label_of(label: str, row: results.Row) -> str:
    r"""Returns the label of a method; a form that is no longer its own is named."""
    name = former(row)
    return label if name is None else f"{label}, {name}"


def denoising_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the denoising study: the mean RMSE by the best rule, not clipped, with
    the paper's own figures above ours."""
    from ..denoising import PAPER_TABLE_4, best

    chosen, lines = best(rows), []
    for name in dict.fromkeys(row["data"] for row in rows):
        for method, values in PAPER_TABLE_4.get(name, {}).items():
            label = f"{method.upper()}, as published"
            lines.append([name, label, *(f"{v:.3f}" for v in values), "not said", "–", "–"])
        for (preset, method), label in DENOISING_NAMES.items():
            key = (name, preset, method)
            group = [r for r in chosen if (r["data"], r["preset"], r["method"]) == key]
            if not group:
                continue
            group.sort(key=lambda row: row["sigma"])
            used = ", ".join(dict.fromkeys(row["rule"] for row in group))
            seconds = (
                f"{group[0]['gpu_seconds']:.0f}"
                if group[0]["device"].startswith("NVIDIA")
                else "–"
            )
            to_paper = group[0]["seconds_to_paper"]
            reached = "–" if to_paper is None else f"{to_paper:.0f}"
            figures = (f"{r['rmse_mean']:.4f}" for r in group)
            lines.append([name, label_of(label, group[0]), *figures, used, seconds, reached])
    return lines


GENERATION_HEADER = (
    "set",
    "method",
    "parameters",
    "FID",
    "images",
    "evaluations",
    "KID × 10³",
    "bits/dim",
    "minutes",
    "minutes to goals",
)

GENERATION_NAMES = {
    ("paper", "dcd"): "paper DCD",
    ("paper", "dcd-limit"): "paper DCD, δ → 0",
    ("paper", "dcd-grid"): "paper DCD, on its grid",
    ("paper", "dcd-grid-bridge"): "paper DCD, on its grid, bridge",
    ("fokker", "dcd"): "**fokker DCD**",
    ("fokker", "dcd-limit"): "**fokker, δ → 0 (DSM)**",
    ("fokker", "dcd-central"): "fokker, δ → 0, central",
    ("fokker", "dcd-vp"): "fokker DCD, levels of VP",
    ("fokker", "reference"): "reference denoiser",
}

PUBLISHED = {"celeba32": 13.85}  # DCD, Luo et al. 2023, Table 5; the whole of CelebA

# FID of others to pass, by their names
GOALS = {"celeba32": {"the paper": 13.85, "GEBM": 5.21}, "cifar10": {"DRL": 9.58, "CDRL": 4.31}}


def minutes_to(rows: Sequence[results.Row], goal: float) -> float | None:
    r"""Returns the minutes of training of the first weights drawn from whose FID is at most a
    goal."""
    found = [
        row["seconds"] / 60
        for row in rows
        if row["kind"] in {"snapshot", "final"} and row["fid"] is not None and row["fid"] <= goal
    ]
    return min(found, default=None)


def model_of(row: results.Row) -> tuple[Any, ...]:
    r"""Returns what tells the models of the generation study apart. Early rows, all by Adam, do
    not say it."""
    return (
        row["data"],
        row["preset"],
        row["method"],
        row["size"],
        row.get("muon"),
        row.get("seed", 0),
    )


def generation_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the generation study: the largest draw of each method, by the last
    weights drawn from, with the minutes after which a FID first passed each goal."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        chosen = [row for row in rows if row["data"] == data]
        goals = list(GOALS.get(data, {}).values())
        for row in {r["convention"]: r for r in chosen if r["kind"] == "data"}.values():
            fid, count = number(row["fid"]), f"{row['fid_n']:,} ({row['convention']})"
            lines.append([data, "training against test images", "–", fid, count, *["–"] * 5])
        if data in PUBLISHED:
            published = number(PUBLISHED[data])
            lines.append([data, "DCD, as published", "–", published, "not said", *["–"] * 5])
        for name in dict.fromkeys(map(model_of, chosen)):
            group = [row for row in chosen if model_of(row) == name]
            finals = [row for row in group if row["kind"] == "final"]
            if not finals:
                continue
            # where both conventions were asked for, that of most papers
            row = max(finals, key=lambda r: (r["step"], r["fid_n"], r["convention"] != "torch"))
            alike = [r for r in group if r.get("convention") == row["convention"]]
            passed = [minutes_to(alike, goal) for goal in goals]
            notes = [
                f"{g:g}: {'–' if m is None else f'{m:.1f}'}"
                for g, m in zip(goals, passed, strict=True)
            ]
            lines.append(generation_line(row, ", ".join(notes) or "–"))
            guided = newest_guide(r for r in alike if r["step"] == row["step"])
            if guided:
                best = max(guided, key=lambda r: (r["fid_n"], -(r["fid"] or float("inf"))))
                lines.append(generation_line(best, "–"))
    return lines


def pairs_of(rows: Sequence[results.Row]) -> list[tuple[results.Row, results.Row]]:
    r"""Returns the pairs of final draws of a bridge and of the limit, of one set, network,
    optimizer, seed and number of steps."""
    same = ("data", "size", "muon", "seed", "step", "fid_n", "convention")
    final = [r for r in rows if r["kind"] == "final" and r["preset"] == "fokker"]
    limits = {tuple(r.get(k) for k in same): r for r in final if r["method"] == "dcd-limit"}
    finite = [r for r in final if r["method"] == "dcd" and "Bridge" in r.get("form", "")]
    return [
        (row, limits[key]) for row in finite if (key := tuple(row.get(k) for k in same)) in limits
    ]


def pairs_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the finite step beside its limit, pair by pair."""
    header = ("set", "size", "seed", "steps", "bridge to", "samples", "FID, δ → 0")
    header += ("FID, finite", "ratio")
    lines = [
        [
            row["data"],
            row["size"],
            str(row["seed"]),
            f"{row['step']:,}",
            "a draw of the model" if former(row) else "the mirror image",
            f"{row['fid_n']:,}",
            number(limit["fid"]),
            number(row["fid"]),
            number(row["fid"] / limit["fid"]),
        ]
        for row, limit in pairs_of(rows)
    ]
    return results.markdown(header, lines)


def newest_guide(rows: Iterable[results.Row]) -> list[results.Row]:
    r"""Returns the guided draws among rows of one model, by the last weights that guided it."""
    guided = [row for row in rows if row["kind"] == "guided"]
    return [row for row in guided if row["guide_step"] == max(r["guide_step"] for r in guided)]


def generation_line(row: results.Row, goals: str) -> list[str]:
    r"""Returns the line of a draw. Guided, it has the parameters, evaluations and minutes of
    both."""
    label = GENERATION_NAMES.get(
        (row["preset"], row["method"]), f"{row['preset']} {row['method']}"
    )
    label = label_of(label, row) + (", Muon" if row.get("muon") else "")
    params, nfe, seconds = f"{row['params'] / 1e6:.1f}", str(row["nfe"]), row["seconds"]
    if row["kind"] == "guided":
        label += f", guided, w = {row['guidance']:g}"
        params, nfe = f"{params} + {row['guide_params'] / 1e6:.1f}", f"{nfe} + {nfe}"
        seconds = None if seconds is None else seconds + row["guide_seconds"]
    return [
        row["data"],
        label,
        f"{params} M",
        "diverged" if row["diverged"] else number(row["fid"]),
        f"{row['fid_n']:,}" + (f" ({row['convention']})" if row["convention"] else ""),
        nfe,
        number(None if row["kid"] is None else 1000 * row["kid"]),
        number(row["bpd"]),
        number(None if seconds is None else seconds / 60),
        goals,
    ]


def draw_table(rows: Sequence[results.Row]) -> str:
    r"""Returns what other steps, a corrector and guidance do to the FID: draws by the last weights
    of each model, in its order, plain before guided."""
    header = (
        "set", "method", "draw", "parameters", "evaluations", "FID", "images", "KID × 10³",
        "accepted", "images/s",
    )  # fmt: skip
    kinds = {"steps": 0, "corrector": 1, "guided": 2}
    found = [row for row in rows if row["kind"] in kinds]
    lines = []
    for name in dict.fromkeys(map(model_of, found)):
        drawn = [row for row in found if model_of(row) == name]
        drawn = [row for row in drawn if row["step"] == max(r["step"] for r in drawn)]
        drawn = [row for row in drawn if row["kind"] != "guided"] + newest_guide(drawn)
        order = lambda r: (str(r["convention"]), r["fid_n"], kinds[r["kind"]], r["nfe"])
        drawn.sort(key=lambda r: (*order(r), r.get("guidance", 1)))
        for row in drawn:
            data, label, params, fid, count, nfe, kid, *_ = generation_line(row, "")
            draw = f"{row['steps']} {'multisteps' if row['sampler'] == 'multistep' else 'steps'}"
            if row["corrector"]:
                moves = row["corrector"]
                draw += f", {moves} transition{'s' * (moves > 1)} of MALA a level"
            if row["kind"] == "guided":
                draw, label = f"{draw}, w = {row['guidance']:g}", label.split(", guided")[0]
            rate = "–" if row["acceptance"] is None else f"{row['acceptance']:.0%}"
            speed = row["images_per_second"]
            speed = "–" if speed is None else f"{speed:.0f}"
            lines.append([data, label, draw, params, nfe, fid, count, kid, rate, speed])
    return results.markdown(header, lines)


def fid_table(path: Path) -> str:
    r"""Returns the FID of CIFAR-10's training against its test images, or how to measure it."""
    if not path.exists():
        return "Not measured yet: `python studies/fid_proof.py --out results/fid.json` does."
    header = ("convention", "training images", "test images", "FID", "weights")
    lines = [
        [r["convention"], f"{r['train']:,}", f"{r['test']:,}", f"{r['fid']:.3f}", r["weights"][:8]]
        for r in results.load(path)["rows"]
    ]
    return results.markdown(header, lines)


def generation_table(path: Path) -> str:
    r"""Returns the table of the generation study, or how to make it."""
    if not path.exists():
        command = "fokker reproduce generation --results results/generation.json"
        return f"Not measured yet: `{command}` does."
    return results.markdown(GENERATION_HEADER, generation_rows(results.load(path)["rows"]))


def optimizer_table(path: Path) -> str:
    r"""Returns what a small energy has learned by Adam and by Muon, or how to measure it."""
    if not path.exists():
        return (
            "Not measured yet: `python studies/optimizers.py --out results/optimizers.json` does."
        )
    rows = results.load(path)["rows"]
    steps = sorted({row["steps"] for row in rows})
    cells: dict[tuple[str, float], dict[int, str]] = {}
    for row in rows:
        errors = cells.setdefault((row["optimizer"], row["rate"]), {})
        errors[row["steps"]] = f"{row['error']:.3f}"
    header = ("optimizer", "rate", *(f"{n} steps" for n in steps))
    lines = [
        [kind.capitalize(), f"{rate:g}", *(errors.get(n, "–") for n in steps)]
        for (kind, rate), errors in cells.items()
    ]
    return results.markdown(header, lines)


USUAL = {"rho": 7.0, "sigma_min": 0.002}  # of EDM's ladder


def flow_table(path: Path) -> str:
    r"""Returns how far samples are from where the flow leads, or how to measure it."""
    if not path.exists():
        return "Not measured yet: `fokker reproduce flows --out results/flows.json` does."
    rows = results.load(path)["rows"]
    rows = [row for row in rows if row.get("suite", "methods") == "methods"]
    runs = list(dict.fromkeys(row["run"] for row in rows))
    cells: dict[tuple[int, int, str], dict[str, str]] = {}
    for row in rows:
        errors = cells.setdefault((row["evaluations"], row["steps"], row["sampler"]), {})
        errors[row["run"]] = f"{row['error']:.4f}"
    lines = [
        [name, str(steps), str(asked), *(errors.get(run, "–") for run in runs)]
        for (asked, steps, name), errors in sorted(cells.items())
    ]
    return results.markdown(("sampler", "steps", "evaluations", *runs), lines)


def schedule_table(path: Path) -> str:
    r"""Returns the best levels for few evaluations, beside EDM's with the same method."""
    rows = results.load(path)["rows"] if path.exists() else []
    rows = [row for row in rows if row.get("suite") == "schedules"]
    if not rows:
        return "Not measured yet: `fokker reproduce flows --out results/flows.json` does."
    header = ("energy", "evaluations", "sampler", "steps", "ρ", "last level", "error", "EDM's")
    lines = []
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        for n, best in flows.choose(own).items():
            same = lambda row, best=best: (
                USUAL.items() <= row.items()
                and (row["sampler"], row["steps"]) == (best["sampler"], best["steps"])
            )
            usual = next((f"{row['error']:.4f}" for row in own if same(row)), "–")
            line = [run, str(n), best["sampler"], str(best["steps"]), f"{best['rho']:g}"]
            lines.append([*line, f"{best['sigma_min']:g}", f"{best['error']:.4f}", usual])
    return results.markdown(header, lines)


NETWORKS_HEADER = (
    "set",
    "network",
    "parameters",
    "ms/step",
    "images/s",
    "GiB",
    "minutes",
    "images seen",
    "RMSE at 0.3 / 0.6 / 0.9",
    "FID",
)


def networks_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the trials of networks, one a trial, the lowest FID of each set
    first."""
    lines = []
    last = float("inf")
    for row in sorted(rows, key=lambda r: (r["data"], last if r["fid"] is None else r["fid"])):
        errors = [row[f"rmse_{sigma}"] for sigma in (0.3, 0.6, 0.9)]
        name = row["name"] + (f", seed {row['seed']}" if row["seed"] else "")
        memory, fid = row["peak_gib"], row["fid"]
        lines.append([
            row["data"],
            name,
            f"{row['params'] / 1e6:.1f} M",
            f"{row['ms']:.1f}",
            f"{row['images_per_second']:,.0f}",
            "–" if memory is None else f"{memory:.1f}",
            f"{row['minutes']:g}",
            f"{row['images_seen'] / 1e6:.2f} M",
            " / ".join("–" if e is None else f"{e:.4f}" for e in errors),
            "diverged" if row["diverged"] else number(fid),
        ])
    return lines
