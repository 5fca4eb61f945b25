r"""The tables of composition, likelihoods of images and images out of distribution."""

__all__ = ["composition_table", "one_pass_table", "ood_table"]

from pathlib import Path

from .. import results

HOW = {"ode": "flow", "one-pass": "one pass"}


def composition_table(rows: list[results.Row]) -> str:
    r"""Returns the tables of the plane and of 64 dimensions."""
    plane = [r for r in rows if "kl" in r]
    space = [r for r in rows if "tv" in r]
    first = results.markdown(
        ["in the plane", "sampler", "KL, nats", "of exact samples", "samples", "evaluations"],
        [
            [
                r["composition"],
                r["sampler"],
                f"{r['kl']:.4f}",
                f"{r['floor']:.4f}",
                f"{r['n']:,}",
                f"{r['evaluations']:,}",
            ]
            for r in plane
        ],
    )
    second = results.markdown(
        [
            "in 64 dimensions",
            "sampler",
            "TV of mode weights, %",
            "width²",
            "samples",
            "evaluations",
        ],
        [
            [
                r["composition"],
                r["sampler"],
                f"{100 * r['tv']:.1f}",
                f"{r['width']:.3f}",
                f"{r['n']:,}",
                f"{r['evaluations']:,}",
            ]
            for r in space
        ],
    )
    return f"{first}\n\n{second}"


def ood_table(rows: list[results.Row]) -> str:
    r"""Returns the AUROC of each rule and level, a column a set."""
    parts = []
    for run in dict.fromkeys(r["run"] for r in rows):
        group = [r for r in rows if r["run"] == run]
        tests = list(dict.fromkeys(r["test"] for r in group))
        keys = dict.fromkeys((r["rule"], r["level"], r["chosen"]) for r in group)
        cell = {(r["rule"], r["level"], r["test"]): f"{r['auroc']:.2f}" for r in group}
        counts = {r["test"]: r["images"] for r in group}
        header = [f"{run}: rule", "σ", *(f"{t} ({counts[t]:,})" for t in tests)]
        lines = [
            [
                f"**{rule}**" if chosen else rule,
                "all" if level is None else f"{level:g}",
                *(cell.get((rule, level, t), "–") for t in tests),
            ]
            for rule, level, chosen in keys
        ]
        parts.append(results.markdown(header, lines))
    return "\n\n".join(parts)


def one_pass_table(path: Path) -> str:
    r"""Returns bits per dimension by both ways, or the command that measures them."""
    if not path.exists():
        return "Not measured yet: `fokker reproduce likelihood RUN --device cuda`."
    rows = results.load(path)["rows"]
    value = lambda v, digits: "–" if v is None else f"{v:.{digits}f}"
    header = ["data", "run", "how", "bits per dimension", "images", "minus flow", "residual"]
    lines = [
        [
            r["data"],
            r["run"],
            HOW[r["how"]],
            "none, not tied" if r["bpd"] is None else f"{r['bpd']:.3f} ± {r['error']:.3f}",
            f"{r['images']:,}",
            value(r["difference"], 3),
            value(r["residual"], 3),
            value(r["correlation"], 4),
            "–" if r["seconds"] is None else f"{r['seconds']:.3g}",
        ]
        for r in rows
    ]
    return results.markdown([*header, "correlation", "seconds an image"], lines)
