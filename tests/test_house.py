r"""The floors of the package: nothing imports upwards, and only tasks know the kinds of data."""

import subprocess
import sys

from pathlib import Path
from studies.house import FLOORS, Tree

ROOT = Path(__file__).parents[1]
TREE = Tree(ROOT)


def test_every_module_is_on_a_floor():
    names = [name for floor in FLOORS.values() for name in floor]
    assert len(names) == len(set(names))
    for module in TREE.modules:
        TREE.floor(module)


def test_no_import_goes_up():
    assert TREE.upward == []


def test_no_import_cycle():
    assert TREE.cycles == []


def test_only_tasks_know_the_kinds_of_data():
    assert len(TREE.kind_checks) <= 4, TREE.kind_checks


def test_functions_are_short():
    size, name = TREE.longest
    assert size <= 80, name


def test_lines_are_short():
    wide = [line for line in TREE.lines if len(line) > 99]
    assert not wide, wide[:5]


def test_the_package_does_not_import_the_studies():
    for name, path in TREE.modules.items():
        text = path.read_text()
        assert "import studies" not in text and "from studies" not in text, name


def test_import_is_light():
    r"""Heavy packages are imported by the commands that need them."""
    code = "import fokker, sys; print([m for m in ('matplotlib', 'rich', 'tyro', 'pyarrow', 'ot') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_tree_is_read_as_written(tmp_path):
    r"""The measures see what they should: an import up, a cycle, a check of a kind, a long
    function."""
    package = tmp_path / "src/fokker"
    (package / "runs").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "runs/__init__.py").write_text("")
    (package / "grid.py").write_text("def f():\n    from .runs import folder\n    return folder\n")
    (package / "runs/folder.py").write_text(
        "from ..grid import f\n\n\ndef g(data):\n    return isinstance(data, TableData)\n"
    )
    tree = Tree(tmp_path)
    assert tree.upward == ["grid -> runs.folder"]
    assert tree.cycles == [["grid", "runs.folder"]]
    assert tree.kind_checks == ["runs.folder:5"]
    assert tree.longest == (3, "grid.f")
