r"""The tables of the README and the docs, each made from a file in `results/`."""

__all__ = [
    "BENCH_HEADER",
    "DENOISING_HEADER",
    "GENERATION_HEADER",
    "OPTIMA_HEADER",
    "PAPER_TABLE_2",
    "TOY_HEADER",
    "bench_rows",
    "denoising_rows",
    "documents",
    "generation_rows",
    "minutes_to",
    "mixture_matrix",
    "optima_rows",
    "render",
    "toy_matrix",
    "toy_rows",
]

import statistics

from collections.abc import Sequence
from pathlib import Path

from . import results

# "Estimated SM loss of learned EBM", Luo et al. 2023, Table 2: DCD-VE, CD, PCD (None: diverged)
PAPER_TABLE_2: dict[str, tuple[float | None, float | None, float | None]] = {
    "swissroll": (-2398.81, None, None),
    "circles": (-131.37, -130.03, -108.54),
    "rings": (-758.33, None, None),
    "moons": (-200.67, -195.72, -193.76),
    "8gaussians": (-120.09, -117.29, -97.59),
    "2spirals": (-470.92, None, None),
    "checkerboard": (-178.43, -67.22, -124.27),
}

# what a Monte-Carlo prototype gave for the optimum, to about 1 %
PROTOTYPE: dict[str, float] = {
    "swissroll": -203,
    "circles": -133,
    "rings": -1245,
    "moons": -209,
    "8gaussians": -122.6,
    "2spirals": -660,
}

OPTIMA_HEADER = ("set", "noise", "exact optimum", "prototype", "paper: DCD", "CD", "PCD")


BENCH_HEADER = ("net", "library", "step", "ms", "× plain", "GiB", "× plain", "points/s", "TFLOP/s")


def number(value: float | None, missing: str = "–") -> str:
    return missing if value is None else f"{value:.2f}".replace("-", "−")


def optima_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the table of optima."""
    lines = []
    for row in rows:
        name = row["data"]
        paper = PAPER_TABLE_2.get(name)
        theirs = ["–"] * 3 if paper is None else [number(v, "+∞") for v in paper]
        rough = PROTOTYPE.get(name)
        prototype = "–" if rough is None else f"{rough:g}".replace("-", "−")
        optimum = number(row["optimum"], "−∞")
        lines.append([name, f"{row['noise']:.3g}", optimum, prototype, *theirs])
    return lines


TOY_HEADER = ("set", "method", "SM loss", "optimum", "Fisher gap %", "KL", "off %", "diverged")
TOY_NAMES = {
    ("fokker", "paper", "dcd"): "paper DCD",
    ("fokker", "paper", "cd"): "paper CD",
    ("fokker", "paper", "pcd"): "paper PCD",
    ("fokker", "fokker", "sm"): "score matching",
    ("fokker", "fokker", "ed"): "energy discrepancy",
    ("torchebm", "torchebm", "cd"): "torchebm CD",
    ("torchebm", "torchebm", "pcd"): "torchebm PCD",
    ("torchebm", "torchebm", "sm"): "torchebm SM",
    ("torchebm", "torchebm", "ssm"): "torchebm SSM",
    ("torchebm", "torchebm", "dsm"): "torchebm DSM",
    ("torchebm", "torchebm", "em"): "torchebm energy matching",
    ("fokker", "fokker", "dcd"): "**fokker DCD**",
}


def spread(values: Sequence[float | None], factor: float = 1.0, digits: int = 2) -> str:
    r"""Returns mean ± standard deviation over seeds, a dash if there is nothing to average."""
    found = [factor * v for v in values if v is not None]
    if not found:
        return "–"
    mean = statistics.fmean(found)
    text = f"{mean:.{digits}f}"
    if len(found) > 1:
        text += f" ± {statistics.stdev(found):.{digits}f}"
    return text.replace("-", "−")


def toy_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the 2-D study: one a set and method, over the seeds that did not
    diverge."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        for key, label in TOY_NAMES.items():
            group = [
                row
                for row in rows
                if row["data"] == name and (row["library"], row["preset"], row["method"]) == key
            ]
            if not group:
                continue
            sound = [row for row in group if not row["diverged"]]
            column = lambda field, sound=sound: [row[field] for row in sound]
            lines.append([
                name,
                label,
                spread(column("sm_loss")),
                number(group[0]["optimum"], "−∞"),
                spread(column("fisher_gap"), 100),
                spread(column("kl"), 1, 4),
                spread(column("off_mass"), 100),
                f"{len(group) - len(sound)} of {len(group)}" if len(sound) < len(group) else "",
            ])
    return lines


def toy_matrix(rows: Sequence[results.Row]) -> str:
    r"""Returns the 2-D study as one line a method and one column a set: Fisher gap in %, KL in
    nats and mass off the data in %, the means over seeds."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    lines = []
    known = {(row["library"], row["preset"], row["method"]) for row in rows}
    for key, label in TOY_NAMES.items():
        if key not in known:
            continue
        line = [label]
        for name in sets:
            group = [
                row
                for row in rows
                if row["data"] == name and (row["library"], row["preset"], row["method"]) == key
            ]
            if any(row["diverged"] for row in group):
                line.append("diverged")
                continue
            gaps = [row["fisher_gap"] for row in group]
            gap = "–" if None in gaps else f"{100 * statistics.fmean(gaps):.2g}"
            kl = statistics.fmean(row["kl"] for row in group)
            off = 100 * statistics.fmean(row["off_mass"] for row in group)
            line.append(f"{gap} / {kl:.2g} / {off:.2g}")
        lines.append(line)
    return results.markdown(["gap % / KL / off %", *sets], lines)


MIXTURE_NAMES = {
    "dcd": "**multi-time DCD**",
    "dcd-short": "DCD, short times only",
    "sm": "score matching",
    "dsm": "denoising score matching",
    "cd": "CD-10",
}


def mixture_matrix(rows: Sequence[results.Row]) -> str:
    r"""Returns the study of mixtures: one line a method, Fisher gap and KL in each dimension."""
    dims = list(dict.fromkeys(row["d"] for row in rows))
    lines = []
    for method, label in MIXTURE_NAMES.items():
        line = [label]
        for d in dims:
            group = [row for row in rows if (row["d"], row["method"]) == (d, method)]
            sound = [row for row in group if not row["diverged"]]
            gap = spread([row["fisher_gap"] for row in sound], 100)
            line += [gap, spread([row["kl"] for row in sound], 1, 3)]
        lines.append(line)
    header = ["method", *(f"{what}, d={d}" for d in dims for what in ("gap %", "KL"))]
    return results.markdown(header, lines)


def documents(root: Path) -> list[Path]:
    r"""Returns the documents that hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def render(text: str, root: Path) -> str:
    r"""Returns a document with its tables made anew from `results/`."""
    rows = lambda name: results.load(root / "results" / f"{name}.json")["rows"]
    tables = {
        "optima": lambda: results.markdown(OPTIMA_HEADER, optima_rows(rows("optima"))),
        "toy": lambda: toy_matrix(rows("toy")),
        "toy-full": lambda: results.markdown(TOY_HEADER, toy_rows(rows("toy"))),
        "mixtures": lambda: mixture_matrix(rows("mixtures")),
        "bench": lambda: bench_table(rows("bench"), gpu=True),
        "bench-cpu": lambda: bench_table(rows("bench"), gpu=False),
        "denoising": lambda: results.markdown(DENOISING_HEADER, denoising_rows(rows("denoising"))),
        "estimators": lambda: estimator_table(root / "results/estimators.json"),
        "demo": lambda: demo_table(root / "results/demo.json"),
        "trust": lambda: trust_table(root / "results/trust.json"),
        "scaling": lambda: trust_table(root / "results/trust.json", "scaling"),
        "generation": lambda: generation_table(root / "results/generation.json"),
        "studio": lambda: studio_table(root / "results/studio.json"),
    }
    return results.render(text, tables)


DEMO_HEADER = ("machine", "clone", "install", "demo", "in all", "Fisher gap %", "KL", "off %")


def demo_table(path: Path) -> str:
    r"""Returns the table of a newcomer's first picture, or how to measure it."""
    if not path.exists():
        return (
            "Not measured yet: `python benchmarks/first_picture.py --out results/demo.json` does."
        )
    content = results.load(path)
    lines = [
        [
            content["hardware"],
            *(f"{row[f'{part}_seconds']:.0f} s" for part in ("clone", "install", "demo", "total")),
            f"{100 * row['fisher_gap']:.2g}",
            f"{row['kl']:.2g}",
            f"{100 * row['off_mass']:.2g}",
        ]
        for row in content["rows"]
    ]
    return results.markdown(DEMO_HEADER, lines)


def bench_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of a table of step times."""
    shown = lambda value, digits: "–" if value is None else f"{value:,.{digits}f}"
    return [
        [
            row["net"]
            if row["suite"] == "nets"
            else f"{row['net']} {row['batch']}×{row['shape']}",
            row["library"],
            row["name"],
            f"{row['ms']:.3g} ± {row['spread']:.1g}",
            shown(row["x_plain"], 2),
            shown(row["peak_gib"], 2),
            shown(row["x_plain_memory"], 2),
            shown(row["per_second"], 0),
            shown(row["tflops"], 1 if (row["tflops"] or 0) > 1 else 3),
        ]
        for row in rows
    ]


def bench_table(rows: Sequence[results.Row], gpu: bool) -> str:
    r"""Returns the tables of step times on a GPU, or on a CPU beside torchebm's exact SM."""
    own = [r for r in rows if r["suite"] == "nets" and r["device"].startswith("NVIDIA") is gpu]
    if gpu:
        return results.markdown(BENCH_HEADER, bench_rows(own))
    if not own:
        return "Not measured yet: `fokker bench --out results/bench.json` does."
    base = {r["name"]: r["ms"] for r in own if r["library"] == "torchebm"}
    header = ("library", "step", "compiled", "ms", "× plain", "× torchebm SM", "× torchebm DSM")
    return results.markdown(
        header,
        [
            [
                row["library"],
                row["name"],
                "yes" if row["compiled"] else "no",
                f"{row['ms']:.0f} ± {row['spread']:.0f}",
                f"{row['x_plain']:.2f}",
                f"{row['ms'] / base['sm']:.2f}",
                f"{row['ms'] / base['dsm']:.2f}",
            ]
            for row in own
        ],
    )


def estimator_table(path: Path) -> str:
    r"""Returns the table of variance and cost, or how to measure it."""
    if not path.exists():
        return "Not measured yet: `fokker reproduce estimators` does."
    header = ("group", "estimator", "× variance", "× plain", "merit")
    return results.markdown(
        header,
        [
            [
                row["group"],
                row["estimator"],
                f"{row['x_variance']:.3g}",
                f"{row['x_plain']:.2f}",
                f"{row['merit']:.3g}",
            ]
            for row in results.load(path)["rows"]
        ],
    )


TRUST = {
    "rank-equality": "torchrun --nproc-per-node 4 benchmarks/rank_equality.py",
    "kill": "python benchmarks/kill.py --kills 30",
    "nan": "python benchmarks/hostile.py --paper",
    "fuzz": "python benchmarks/fuzz.py --inputs 100000",
    "soak": "python benchmarks/soak.py --minutes 60",
    "lowest-versions": "python benchmarks/lowest.py",
    "scaling": "torchrun --nproc-per-node 2 benchmarks/scaling.py",
}


def trust_table(path: Path, check: str | None = None) -> str:
    r"""Returns the table of what was tried to break a run, or how to try it.

    Arguments:
        path: The file.
        check: The check to show; all of them if not given.
    """
    rows = results.load(path)["rows"] if path.exists() else []
    shown = [row for row in rows if check in {None, row["check"]}]
    lines = [
        [
            row["check"],
            f"{row['value']:.3g}" if isinstance(row["value"], float) else f"{row['value']:,}",
            row["unit"],
            row["detail"],
            f"`{row['commit'][:8]}`, {row['hardware']}",
        ]
        for row in shown
    ]
    found = {row["check"] for row in rows}
    missing = [name for name in TRUST if name not in found and check in {None, name}]
    lines += [[name, "–", "–", f"not measured yet: `{TRUST[name]}`", "–"] for name in missing]
    return results.markdown(("check", "value", "unit", "detail", "commit, machine"), lines)


STUDIO_HEADER = (
    "machine",
    "sides",
    "updates a second",
    "steps a second",
    "load before",
    "page, kB",
)


def studio_table(path: Path) -> str:
    r"""Returns how fast the studio draws, and the size of its page; a note while there are none."""
    if not path.exists():
        return "Not measured yet: `python benchmarks/studio.py --out results/studio.json` does."
    content = results.load(path)
    lines = [
        [
            content["hardware"],
            str(row["sides"]),
            f"{row['updates_per_second']:.1f}",
            f"{row['steps_per_second']:.1f}",
            f"{row['load_before']:.1f}",
            f"{row['page_gzip_bytes'] / 1000:.1f}",
        ]
        for row in content["rows"]
    ]
    return results.markdown(STUDIO_HEADER, lines)


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
    ("fokker", "dcd"): "**fokker DCD**",
    ("fokker", "dcd-limit"): "**fokker, δ → 0 (DSM)**",
    ("fokker", "reference"): "reference denoiser",
}


def denoising_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the denoising study: the mean RMSE by the best rule, not clipped, with
    the paper's own figures above ours."""
    from .studies.denoising import PAPER_TABLE_4, best

    chosen, lines = best(rows), []
    for name in dict.fromkeys(row["data"] for row in rows):
        for method, values in PAPER_TABLE_4.get(name, {}).items():
            label = f"{method.upper()}, as published"
            lines.append([name, label, *(f"{v:.3f}" for v in values), "not said", "–", "–"])
        for (preset, method), label in DENOISING_NAMES.items():
            key = (name, preset, method)
            own = [r for r in chosen if (r["data"], r["preset"], r["method"]) == key]
            if not own:
                continue
            own.sort(key=lambda row: row["sigma"])
            used = ", ".join(dict.fromkeys(row["rule"] for row in own))
            seconds = (
                f"{own[0]['gpu_seconds']:.0f}" if own[0]["device"].startswith("NVIDIA") else "–"
            )
            to_paper = own[0]["seconds_to_paper"]
            reached = "–" if to_paper is None else f"{to_paper:.0f}"
            figures = (f"{r['rmse_mean']:.4f}" for r in own)
            lines.append([name, label, *figures, used, seconds, reached])
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
    ("fokker", "dcd"): "**fokker DCD**",
    ("fokker", "dcd-limit"): "**fokker, δ → 0 (DSM)**",
    ("fokker", "reference"): "reference denoiser",
}
PUBLISHED = {"celeba32": 13.85}  # DCD, Luo et al. 2023, Table 5; the whole of CelebA
GOALS = {"celeba32": (13.85, 5.21), "cifar10": (9.58, 4.31)}  # the paper, GEBM; DRL, CDRL


def minutes_to(rows: Sequence[results.Row], goal: float) -> float | None:
    r"""Returns the minutes of training of the first snapshot whose FID is at most a goal."""
    found = [
        row["seconds"] / 60
        for row in rows
        if row["kind"] == "snapshot" and row["fid"] is not None and row["fid"] <= goal
    ]
    return min(found, default=None)


def generation_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the generation study: the final draw of each method, by the last weights
    drawn from, with the minutes after which the FID of a snapshot passed each goal."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        goals = GOALS.get(data, ())
        for row in own:
            if row["kind"] == "data":
                fid, count = number(row["fid"]), f"{row['fid_n']:,}"
                lines.append([data, "training against test images", "–", fid, count, *["–"] * 5])
        if data in PUBLISHED:
            published = number(PUBLISHED[data])
            lines.append([data, "DCD, as published", "–", published, "not said", *["–"] * 5])
        groups = dict.fromkeys((r["preset"], r["method"], r["size"]) for r in own)
        for preset, method, size in groups:
            group = [
                r
                for r in own
                if (r["preset"], r["method"], r.get("size")) == (preset, method, size)
            ]
            finals = [row for row in group if row["kind"] == "final"]
            if not finals:
                continue
            row = max(finals, key=lambda row: row["step"])
            passed = [minutes_to(group, goal) for goal in goals]
            said = [
                f"{g:g}: {'–' if m is None else f'{m:.1f}'}"
                for g, m in zip(goals, passed, strict=True)
            ]
            lines.append([
                data,
                GENERATION_NAMES.get((preset, method), f"{preset} {method}"),
                f"{row['params'] / 1e6:.1f} M",
                "diverged" if row["diverged"] else number(row["fid"]),
                f"{row['fid_n']:,}" + (f" ({row['convention']})" if row["convention"] else ""),
                str(row["nfe"]),
                number(None if row["kid"] is None else 1000 * row["kid"]),
                number(row["bpd"]),
                number(None if row["seconds"] is None else row["seconds"] / 60),
                ", ".join(said) or "–",
            ])
    return lines


def generation_table(path: Path) -> str:
    r"""Returns the table of the generation study, or how to make it."""
    if not path.exists():
        return "Not measured yet: `fokker reproduce generation --results results/generation.json` does."
    return results.markdown(GENERATION_HEADER, generation_rows(results.load(path)["rows"]))
