r"""The tables of what a step costs and how noisy its estimate is."""

__all__ = [
    "BENCH_HEADER",
    "bench_rows",
    "bench_table",
    "estimator_table",
    "growth_table",
    "kernel_table",
    "variance_table",
]

from collections.abc import Sequence
from pathlib import Path

from .. import results

BENCH_HEADER = ("net", "library", "step", "ms", "× plain", "GiB", "× plain", "points/s", "TFLOP/s")


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
    chosen = [r for r in rows if r["suite"] == "nets" and r["device"].startswith("NVIDIA") is gpu]
    if gpu:  # rows may have come in any order: those of a network together, its plain step first
        nets = list(dict.fromkeys(row["net"] for row in chosen))
        chosen.sort(key=lambda row: (nets.index(row["net"]), row["name"] != "plain"))
        return results.markdown(BENCH_HEADER, bench_rows(chosen))
    if not chosen:
        return "Not measured yet: `fokker bench --out results/bench.json` does."
    base = {r["name"]: r["ms"] for r in chosen if r["library"] == "torchebm"}
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
            for row in chosen
        ],
    )


def kernel_table(rows: Sequence[results.Row], net: str) -> str:
    r"""Returns where the time of the steps of a network goes on a GPU, by the kind of kernel."""
    chosen = [r for r in rows if r["suite"] == "nets" and r["net"] == net and r.get("kernel_ms")]
    header = ("step", "convolutions", "products", "all else")
    kinds = ("convolution", "product", "memory")
    return results.markdown(
        header,
        [[row["name"], *(f"{row['kernel_ms'][kind]:.1f} ms" for kind in kinds)] for row in chosen],
    )


GROWTH = {
    "dimension": ("D = {}", lambda row: row["shape"][0]),
    "batch": ("{} points", lambda row: row["batch"]),
    "size": ("{0}×{0} pixels", lambda row: row["shape"][-1]),
}


def growth_table(rows: Sequence[results.Row]) -> str:
    r"""Returns how steps grow with dimension, batch and image size: a table each, in plain
    steps."""
    found = []
    for suite, (text, size) in GROWTH.items():
        chosen = [row for row in rows if row["suite"] == suite]
        sizes = sorted({size(row) for row in chosen})
        header = ("step", *(text.format(f"{n:,}") for n in sizes))
        lines = []
        for name in dict.fromkeys(row["name"] for row in chosen if row["name"] != "plain"):
            costs = {size(row): f"{row['x_plain']:.2f}" for row in chosen if row["name"] == name}
            lines.append([name, *(costs.get(n, "–") for n in sizes)])
        if chosen:
            found.append(results.markdown(header, lines))
    return "\n\n".join(found) or "Not measured yet: `fokker bench --growth --no-compile` does."


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


def variance_table(rows: Sequence[results.Row]) -> str:
    r"""Returns variance and bias of the forms: on a U-Net in two precisions, and the variance and
    the Fisher gap in percent on two modes, a column a dimension."""
    modes = [row for row in rows if row["net"] == "two modes"]
    net = [row for row in rows if row["net"] != "two modes"]
    dims = sorted({row["dimension"] for row in modes})
    header = ["form", "U-Net, float32", "U-Net, bfloat16", *(f"D = {d:,}" for d in dims)]
    lines = []
    for label in dict.fromkeys(map(form_label, rows)):
        by_precision = {row["precision"]: row for row in net if form_label(row) == label}
        cells = []
        for kind in ("float32", "bfloat16"):
            row = by_precision.get(kind)
            cells.append(
                f"{row['variance']:.2f} ± {row['variance_error']:.2f}" if row is not None else "–"
            )
        for d in dims:
            (row,) = (r for r in modes if (form_label(r), r["dimension"]) == (label, d))
            cells.append(f"{row['variance']:.2g} / {100 * row['bias']:.1g}")
        lines.append([label, *cells])
    return results.markdown(header, lines)


def form_label(row: results.Row) -> str:
    r"""Returns the form of a row with its settings."""
    label = f", r = {row['step']:g}" if row["step"] else ""
    if (draws := row.get("draws of the form", 1)) > 1:
        label += f", {draws} draws"
    elif row.get("shift") == 0:
        label += ", not moved apart"
    return f"{row['form']}{label}"
