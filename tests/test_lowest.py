r"""The check of the lowest versions: the bounds that it reads, and the tests that it counts."""

import importlib.util
import pytest
import tomllib

from packaging.requirements import Requirement
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "studies/trust/lowest.py"
spec = importlib.util.spec_from_file_location("lowest", SCRIPT)
assert spec is not None and spec.loader is not None
lowest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lowest)


def test_bounds_of_dependencies_and_of_the_extras_of_users():
    project = {
        "dependencies": ["b_c>=1.9,<3", "a ~= 0.2.1", "w>=1; sys_platform == 'none'"],
        "optional-dependencies": {"web": ["d[x]==4", "b-c>=1.10"], "dev": ["a>=9"], "docs": ["e"]},
    }
    found = lowest.bounds(project)
    assert found == {"a": "0.2.1", "b-c": "1.10", "d": "4"}  # the higher of two bounds


@pytest.mark.parametrize("text", ["a", "a<2", "a>1", "a==1.*", "a>=1,>=2"])
def test_a_requirement_without_one_lower_bound_is_refused(text):
    with pytest.raises(ValueError, match=r"one lower bound, as in name>=1.0, got 'a"):
        lowest.bound(Requirement(text))


def test_every_dependency_of_this_project_has_a_bound():
    project = tomllib.loads((lowest.ROOT / "pyproject.toml").read_text())["project"]
    found = lowest.bounds(project)
    assert {"torch", "numpy", "starlette", "datasets"} <= found.keys()
    assert not {"pytest", "sphinx"} & found.keys()


def test_tests_are_counted(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
        "<testcase name='c'><skipped/></testcase><testcase name='d'><error/></testcase>"
        "<testcase name='e'><system-out/></testcase></testsuite></testsuites>"
    )
    assert lowest.count(report) == {"passed": 2, "failed": 2, "skipped": 1}
