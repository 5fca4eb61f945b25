r"""The tables of the code base, the demonstration, the checks of trust, and the studio."""

__all__ = [
    "DEMO_HEADER",
    "HOUSE",
    "STUDIO_HEADER",
    "TRUST",
    "demo_table",
    "house_table",
    "studio_table",
    "trust_table",
]

from pathlib import Path

from .. import results

DEMO_HEADER = ("machine", "clone", "install", "demo", "in all", "Fisher gap %", "KL", "off %")


def demo_table(path: Path) -> str:
    r"""Returns the table of a newcomer's first picture, or how to measure it."""
    if not path.exists():
        return "Not measured yet: `python studies/first_picture.py --out results/demo.json` does."
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


HOUSE = {
    "modules": "modules",
    "lines": "lines",
    "top_level_names": "names right under `fokker`",
    "imports_up": "imports that go up a floor",
    "import_cycles": "import cycles",
    "kind_checks": "`isinstance` on kinds of data outside tasks and configuration",
    "longest_function": "lines of the longest function",
    "wide_lines": "lines over 99 characters",
    "repeated_lines": "lines in six or more that stand in two places",
    "wheel_kib": "wheel without weights, KiB",
    "import_seconds": "`import fokker` after torch, seconds",
}


def house_table(path: Path) -> str:
    r"""Returns the measures of the code base, one column a row of the file, or how to measure
    it."""
    if not path.exists():
        return "Not measured yet: `python studies/house.py --out results/house.json` does."
    found = results.load(path)["rows"]
    header = ("measure", *(f"{row['label']}, `{row['commit']}`" for row in found))
    show = lambda value: "–" if value is None else f"{value:,}"
    lines = [[text, *(show(row[key]) for row in found)] for key, text in HOUSE.items()]
    return results.markdown(header, lines)


TRUST = {
    "rank-equality": "torchrun --nproc-per-node 4 studies/trust/rank_equality.py",
    "kill": "python studies/trust/kill.py --kills 30",
    "pack": "python studies/trust/packing.py --data svhn",
    "nan": "python studies/trust/hostile.py --paper",
    "fuzz": "python studies/trust/fuzz.py --inputs 100000",
    "hostile-folders": "python studies/trust/hostile_folders.py",
    "special-files": "python studies/trust/special_files.py",
    "races": "python studies/trust/races.py --starts 240",
    "full-disk": "python studies/trust/full_disk.py --points 50",
    "wide-tables": "python studies/trust/wide_tables.py",
    "parquet-bombs": "python studies/trust/parquet_bombs.py",
    "studio-flood": "python studies/trust/studio_flood.py",
    "soak": "python studies/trust/soak.py --minutes 60",
    "lowest-versions": "python studies/trust/lowest.py",
    "nodes": "python studies/trust/nodes.py",
    "scaling": "torchrun --nproc-per-node 2 studies/trust/scaling.py",
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
    r"""Returns how fast the studio draws, and the size of its page; a note while there are
    none."""
    if not path.exists():
        return "Not measured yet: `python studies/trust/studio.py --out results/studio.json` does."
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
