r"""The tables of the 2-D study: the optima, the methods, and the mixtures."""

__all__ = [
    "MIXTURE_NAMES",
    "OPTIMA_HEADER",
    "PAPER_TABLE_2",
    "TOY_HEADER",
    "TOY_NAMES",
    "ablation_matrix",
    "cd_matrix",
    "mixture_matrix",
    "optima_rows",
    "toy_matrix",
    "toy_rows",
]

import statistics

from collections.abc import Sequence

from .cells import number, spread
from .. import results

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

OPTIMA_HEADER = ("set", "noise", "exact optimum", "paper: DCD", "CD", "PCD")


def optima_rows(rows: Sequence[results.Row]) -> list[list[str]]:
    r"""Returns the lines of the table of optima."""
    lines = []
    for row in rows:
        name = row["data"]
        paper = PAPER_TABLE_2.get(name)
        theirs = ["–"] * 3 if paper is None else [number(v, "+∞") for v in paper]
        optimum = number(row["optimum"], "−∞")
        lines.append([name, f"{row['noise']:.3g}", optimum, *theirs])
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
    nats and mass off the data in %, the means over seeds; no means where a seed diverged."""
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
            if fell := sum(row["diverged"] for row in group):
                some = f" {fell} of {len(group)}" if fell < len(group) else ""
                line.append(f"diverged{some}")
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


def means_of(group: Sequence[results.Row]) -> str:
    r"""Returns gap in %, KL and mass off the data in %, means over the rows that did not diverge,
    and how many did."""
    sound = [row for row in group if not row["diverged"]]
    if not sound:
        return "diverged"
    gaps = [row["fisher_gap"] for row in sound]
    gap = "–" if None in gaps else f"{100 * statistics.fmean(gaps):.2g}"
    kl = statistics.fmean(row["kl"] for row in sound)
    off = 100 * statistics.fmean(row["off_mass"] for row in sound)
    fell = len(group) - len(sound)
    return f"{gap} / {kl:.2g} / {off:.2g}" + (f"; {fell} diverged" if fell else "")


def ablation_matrix(rows: Sequence[results.Row]) -> str:
    r"""Returns the parts of the multi-time divergence: one line an arm, one column a set."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    lines = [
        [arm, *(means_of([r for r in rows if (r["arm"], r["data"]) == (arm, s)]) for s in sets)]
        for arm in dict.fromkeys(row["arm"] for row in rows)
    ]
    return results.markdown(["gap % / KL / off %", *sets], lines)


def cd_matrix(rows: Sequence[results.Row]) -> str:
    r"""Returns CD with and without its term beside DCD: the chosen value of each method on each
    set, and how many of its trials diverged."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    header = ["gap % / KL / off %", "step", *sets, "diverged, of all runs", "seconds"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        runs = [row for row in rows if row["method"] == method]
        final = [row for row in runs if row["trial"] == "chosen"]
        if not final:  # stopped before
            continue
        cells = [means_of([row for row in final if row["data"] == name]) for name in sets]
        fell = sum(row["diverged"] for row in runs)
        seconds = statistics.fmean(row["seconds"] for row in final)
        step = f"{final[0]['value']:g}"
        lines.append([method, step, *cells, f"{fell} of {len(runs)}", f"{seconds:.1f}"])
    return results.markdown(header, lines)
