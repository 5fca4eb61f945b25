r"""The tables of the studies of samples and of normalizing constants."""

__all__ = ["normalizer_table", "refusal_table", "rivals_table", "samples_table", "tables_table"]

import statistics

from collections.abc import Sequence

from .. import results

ORDER = ("bracket", "forward", "importance")


def covered(rows: Sequence[results.Row]) -> str:
    r"""Returns in how many rows the interval holds the truth."""
    return f"{sum(r['low'] <= r['truth'] <= r['high'] for r in rows)} of {len(rows)}"


def normalizer_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the targets whose constant is known."""
    header = (
        "target", "D", "seeds", "bracket covers", "its width", "forward covers",
        "its error", "s", "importance sampling off by",
    )  # fmt: skip
    known = [r for r in rows if r["truth"] is not None]
    keys = sorted({(r["target"], r["dimension"], r["base"]) for r in known}, key=lambda k: k[::-1])
    lines = []
    for name, dim, base in sorted(keys, key=lambda k: (k[0].split("-")[0] != "mixture", k[1])):
        of = lambda method, key=(name, dim, base): [
            r for r in known
            if (r["target"], r["dimension"], r["base"], r["method"]) == (*key, method)
        ]  # fmt: skip
        bracket, forward, plain = map(of, ORDER)
        middle = statistics.median
        lines.append([
            name if base == "mixture" else f"{name}, from one Gaussian",
            str(dim),
            str(len(bracket)),
            covered(bracket),
            f"{middle(r['high'] - r['low'] for r in bracket):.3f}",
            covered(forward),
            f"{middle(abs(r['log_z'] - r['truth']) for r in forward):.3f}",
            f"{middle(r['seconds'] for r in bracket):.1f}",
            f"{middle(abs(r['log_z'] - r['truth']) for r in plain):.3f}",
        ])
    return results.markdown(header, lines)


def tables_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the constants of learned tables, by independent runs."""
    header = ("table", "columns", "log Z of independent runs", "largest difference, in its errors")
    found = [r for r in rows if r["method"] == "table"]
    if not found:
        return "Not measured yet: `fokker reproduce normalizer --tables FOLDER`."
    lines = []
    for name in dict.fromkeys(r["target"] for r in found):
        runs = [r for r in found if r["target"] == name]
        known = [r for r in runs if r["log_z"] is not None]
        said = ", ".join("not known" if r["log_z"] is None else f"{r['log_z']:.2f}" for r in runs)
        apart = "–"
        if len(known) > 1:
            error = lambda r: r["error"]
            apart = "{:.1f}".format(
                max(
                    abs(a["log_z"] - b["log_z"]) / (error(a) ** 2 + error(b) ** 2) ** 0.5
                    for a in known
                    for b in known
                    if a is not b
                )
            )
        lines.append([name.split("_", 1)[-1], str(runs[0]["dimension"]), said, apart])
    return results.markdown(header, lines)


def samples_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of what is drawn against the model's own density."""
    header = (
        "set", "preset", "sampler", "p", "Holm", "weights off, errors", "off the data, %",
        "the model's, %", "effective number", "R-hat", "s",
    )  # fmt: skip
    drawn = [r for r in rows if r["sampler"] != "bad"]
    tested = sorted((r["p"], i) for i, r in enumerate(drawn) if r.get("p") is not None)
    holm, least = {}, 0.0
    for rank, (p, i) in enumerate(tested):
        least = max(least, min(1.0, p * (len(tested) - rank)))
        holm[i] = least
    lines = []
    for i, r in enumerate(drawn):
        if r.get("p") is None:
            lines.append([r["target"], r["preset"], r["sampler"], "refused", *["–"] * 7])
            continue
        mark = " (refused)" if r["refused"] else ""
        lines.append([
            r["target"], r["preset"], r["sampler"] + mark, f"{r['p']:.3f}", f"{holm[i]:.2f}",
            f"{r['weight_error']:.1f}", f"{100 * r['off_mass']:.2f}",
            f"{100 * r['off_mass_model']:.2f}", f"{r['ess']:.0f}",
            "–" if r["rhat"] is None else f"{r['rhat']:.3f}", f"{r['seconds']:.1f}",
        ])  # fmt: skip
    return results.markdown(header, lines)


def refusal_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the energies that cannot be sampled."""
    bad = [r for r in rows if r["sampler"] == "bad"]
    lines = [[r["target"], str(r["dimension"]), r["refused"] or "**drawn**"] for r in bad]
    return results.markdown(("energy", "D", "refused because"), lines)


def rivals_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the samplers beside those of other libraries: effective samples per
    1,000 evaluations, and per second in brackets; the best of each target is bold."""
    targets = {r["target"]: r["dimension"] for r in rows}
    samplers = dict.fromkeys((r["library"], r["sampler"]) for r in rows)
    figures = {(r["library"], r["sampler"], r["target"]): r for r in rows}
    best = {name: max(r["ess_per_1000"] for r in rows if r["target"] == name) for name in targets}

    def cell(key: tuple[str, str, str]) -> str:
        if key not in figures:
            return "–"
        row = figures[key]
        value, speed = f"{row['ess_per_1000']:.2g}", f"{row['ess_per_second']:.2g}"
        value = f"**{value}**" if row["ess_per_1000"] == best[key[2]] else value
        failed = f", {row['failed']} of {row['repeats']} failed" if row["failed"] else ""
        return f"{value} ({float(speed):,g}{failed})"

    header = ("library", "sampler", *(f"{name}, D = {dim}" for name, dim in targets.items()))
    lines = [[*key, *(cell((*key, name)) for name in targets)] for key in samplers]
    return results.markdown(header, lines)
