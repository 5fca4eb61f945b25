r"""The shape of the code base, in numbers:
`python studies/house.py [--root CLONE] [--out results/house.json]`.

The package is a stack of floors. A module may import from its own floor and from those below,
never from above; lazy imports inside functions and type-only imports count too. Nothing in the
package imports the studies. `tests/test_house.py` holds the rules; this script measures, on this
clone or on another commit's.
"""

__all__ = ["FLOORS", "Tree", "measure"]

import argparse
import ast
import collections
import json
import re
import subprocess
import sys
import tempfile

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from studies import results
from typing import Any

# from the ground up; a name is a module or a package right under fokker
FLOORS: dict[str, tuple[str, ...]] = {
    "ground": ("shapes", "checks", "files", "pace"),
    "maths": (
        "analytic", "derivatives", "diffusions", "energies", "evolution", "grid",
        "kinks", "networks", "objectives", "samplers",
    ),
    "data": ("data", "metrics"),
    "compute": ("compute",),
    "images": ("images",),
    "tables": ("tables",),
    "runs": ("runs", "tasks"),
    "package": ("",),  # fokker/__init__.py
    "app": ("app", "studio", "__main__"),
}  # fmt: skip
# where the modules of a tree from before the floors belong
BEFORE = {
    "compute": ("graphs", "muon", "ranks", "stack", "step", "tracing"),
    "images": ("denoising", "generation"),
    "runs": (
        "checkpoints", "config", "guard", "presets", "shipped", "state", "toml", "tracking",
        "training",
    ),
    "app": ("cli", "commands", "doctor", "report"),
    "studies": ("bench", "figures", "results", "studies", "tables", "trust"),
}  # fmt: skip
KINDS = r"(ToyData|TableData|ImageData|ToyTask|TableTask|ImageTask|TableEnergy)"
WIDE = 99  # characters of a line
WINDOW = 6  # equal lines that count as standing in two places


@dataclass(frozen=True)
class Tree:
    r"""Creates the import graph of a package.

    Arguments:
        root: The root of a clone.
    """

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "src/fokker"

    @cached_property
    def modules(self) -> dict[str, Path]:
        r"""The modules by their dotted name under `fokker`, the package itself as the empty
        name."""
        found = {}
        for path in sorted(self.source.rglob("*.py")):
            parts = path.relative_to(self.source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def edges(self) -> set[tuple[str, str]]:
        r"""The pairs of modules of which the first imports the second, at any depth of a
        function."""
        found = set()
        for name, path in self.modules.items():
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            package = [part for part in package if part]
            for node in ast.walk(ast.parse(path.read_text())):
                for target in self.targets(node, package):
                    if target != name:
                        found.add((name, target))
        return found

    def targets(self, node: ast.AST, package: list[str]) -> list[str]:
        r"""Returns the modules of the package that a statement imports."""
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            return [".".join(n[1:]) for n in names if n[0] == "fokker"]
        if not isinstance(node, ast.ImportFrom):
            return []
        module = node.module.split(".") if node.module else []
        if node.level:
            base = package[: len(package) - node.level + 1] + module
        elif module[0] == "fokker":
            base = module[1:]
        else:
            return []
        whole = [".".join([*base, alias.name]) for alias in node.names]
        return [name if name in self.modules else ".".join(base) for name in whole]

    def floor(self, name: str) -> int:
        r"""Returns the number of the floor of a module; studies are above all."""
        top = name.split(".", maxsplit=1)[0]
        order = list(FLOORS)
        if (self.source / "studies").exists():  # a tree from before the floors
            for floor, names in BEFORE.items():
                if top in names:
                    return order.index(floor) if floor in order else len(order)
        for number, names in enumerate(FLOORS.values()):
            if top in names:
                return number
        raise ValueError(f"expected a module on a floor of studies/house.py, got fokker.{name}")

    @cached_property
    def upward(self) -> list[str]:
        r"""The imports that go up a floor."""
        pairs = sorted(self.edges)
        return [f"{a or 'fokker'} -> {b}" for a, b in pairs if self.floor(a) < self.floor(b)]

    @cached_property
    def cycles(self) -> list[list[str]]:
        r"""The groups of modules that import one another, directly or not."""
        graph = collections.defaultdict(set)
        for a, b in self.edges:
            graph[a].add(b)

        def reached(start: str) -> set[str]:
            seen, todo = set(), [start]
            while todo:
                for other in graph[todo.pop()] - seen:
                    seen.add(other)
                    todo.append(other)
            return seen

        reach = {name: reached(name) for name in self.modules}
        groups = {
            tuple(sorted(other for other in reach[name] if name in reach[other]))
            for name in self.modules
            if name in reach[name]
        }
        return [list(group) for group in sorted(groups)]

    @cached_property
    def kind_checks(self) -> list[str]:
        r"""The `isinstance` checks of a kind of data outside `tasks/` and the configuration."""
        found = []
        for name, path in self.modules.items():
            if name.startswith("tasks") or name in {"config", "runs.config", "runs.toml", "toml"}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if "isinstance(" in line and re.search(KINDS, line):
                    found.append(f"{name}:{number}")
        return found

    @cached_property
    def longest(self) -> tuple[int, str]:
        r"""The lines of the longest function, and its name."""
        sizes = [(0, "")]
        for name, path in self.modules.items():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    size = (node.end_lineno or 0) - node.lineno + 1
                    sizes.append((size, f"{name}.{node.name}"))
        return max(sizes)

    @cached_property
    def lines(self) -> list[str]:
        return [line for path in self.modules.values() for line in path.read_text().splitlines()]

    @cached_property
    def repeated(self) -> int:
        r"""The lines that belong to six or more equal ones in a row somewhere else."""
        places: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        kept: list[str] = []
        for path in self.modules.values():
            code = [line.strip() for line in path.read_text().splitlines()]
            kept += [s for s in code if len(s) > 1 and not s.startswith(("#", "import ", "from "))]
            kept.append(f"\0{path}")  # no run crosses two files
        for i in range(len(kept) - WINDOW + 1):
            places[tuple(kept[i : i + WINDOW])].append(i)
        twice = {i + k for at in places.values() if len(at) > 1 for i in at for k in range(WINDOW)}
        return len(twice)


def wheel_size(root: Path) -> int | None:
    r"""Returns the bytes of the wheel without the shipped weights; `None` if it cannot be
    built."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            folder,
        ]
        done = subprocess.run([*command, str(root)], capture_output=True, check=False)
        if done.returncode != 0:
            return None
        import zipfile

        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as archive:
            return sum(
                i.compress_size for i in archive.infolist() if "/weights/" not in i.filename
            )


def import_seconds(root: Path) -> float:
    r"""Returns the seconds of `import fokker` after `import torch`, the least of three
    processes."""
    now = "time.perf_counter()"
    code = f"import time, torch; t = {now}; import fokker; print({now} - t)"
    run = lambda: subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return min(float(run().stdout) for _ in range(3))


def measure(root: Path) -> dict[str, Any]:
    r"""Returns the numbers of a clone."""
    tree = Tree(root)
    size, name = tree.longest
    commit = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.run(
            commit, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "modules": len(tree.modules),
        "lines": len(tree.lines),
        "top_level_names": len({n.split(".")[0] for n in tree.modules if n}),
        "imports_up": len(tree.upward),
        "import_cycles": len(tree.cycles),
        "kind_checks": len(tree.kind_checks),
        "longest_function": size,
        "longest_function_name": name,
        "wide_lines": sum(len(line) > WIDE for line in tree.lines),
        "repeated_lines": tree.repeated,
        "wheel_kib": None if (n := wheel_size(root)) is None else round(n / 1024),
        "import_seconds": round(import_seconds(root), 3),
    }


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(), help="a clone; this one by default")
    parser.add_argument(
        "--label", default="now", help="the name of the row, such as before or now"
    )
    parser.add_argument("--out", type=Path, default=None, help="also put the row into this file")
    given = parser.parse_args(args)
    row = {"label": given.label, **measure(given.root.resolve())}
    print(json.dumps(row, indent=1))
    tree = Tree(given.root.resolve())
    for title, found in (("up", tree.upward), ("kind", tree.kind_checks), ("cycle", tree.cycles)):
        for line in found:
            print(f"{title}: {line}")
    if given.out is not None:
        old = results.load(given.out)["rows"] if given.out.exists() else []
        rows = [r for r in old if r["label"] != given.label] + [row]
        results.save(given.out, rows, "python studies/house.py")


if __name__ == "__main__":
    main()
