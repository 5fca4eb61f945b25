r"""The lowest versions: fokker with each dependency at its lower bound, and its tests.

The lower bounds of the dependencies and of the extras that users install are read from
`pyproject.toml`. An empty environment gets fokker with each of them at exactly its bound, and what
only the tests need at whatever version goes with that; then the tests that are not slow run there.
A bound that does not install, or with which a test fails, is too low. A deprecation is no error
here: an old version may well use what its own dependencies have deprecated since.

torch may be another version, where the wheel of the bound is too large or does not exist:
`--torch`.

    python studies/trust/lowest.py --torch 2.13.0 --out results/trust.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib

from collections import Counter
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pathlib import Path
from studies.trust import record
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
TOOLS = ("dev", "docs")  # extras of those who work on fokker, not of its users


def bound(requirement: Requirement) -> str:
    r"""Returns the lowest version that a requirement allows.

    Arguments:
        requirement: The requirement, which must have one such bound.
    """
    found = [part.version for part in requirement.specifier if part.operator in {">=", "==", "~="}]
    if len(found) != 1 or "*" in found[0]:
        raise ValueError(f"expected one lower bound, as in name>=1.0, got {str(requirement)!r}")
    return found[0]


def bounds(project: dict[str, Any]) -> dict[str, str]:
    r"""Returns the lower bound of each dependency of a project and of its extras, by name.

    Arguments:
        project: The table `project` of a `pyproject.toml`.
    """
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"]]
    lines += [line for name, own in extras.items() if name not in TOOLS for line in own]
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, own = canonicalize_name(requirement.name), bound(requirement)
        found[name] = max(found.get(name, own), own, key=Version)
    return dict(sorted(found.items()))


def install(python: Path, project: dict[str, Any], pins: dict[str, str]) -> dict[str, str]:
    r"""Installs fokker with its dependencies at the given versions, and returns those found after.

    Arguments:
        python: The interpreter of an empty environment.
        project: The table `project`.
        pins: The version of each dependency.
    """
    constraints = python.parents[1] / "lowest.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    extras = ",".join(name for name in project["optional-dependencies"] if name != "docs")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    own = ["--constraint", str(constraints), "--editable", f"{ROOT}[{extras}]"]
    subprocess.run([*pip, "install", "--quiet", *own], check=True)
    listed = subprocess.run([*pip, "list", "--format=json"], check=True, stdout=subprocess.PIPE)
    have = {canonicalize_name(row["name"]): row["version"] for row in json.loads(listed.stdout)}
    return {name: have[canonicalize_name(name)] for name in pins}


def count(report: Path) -> Counter[str]:
    r"""Returns how many tests passed, failed and were skipped, from the report of pytest in
    XML."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        failed, skipped = kinds & {"failure", "error"}, "skipped" in kinds
        found["failed" if failed else "skipped" if skipped else "passed"] += 1
    return found


def test(python: Path, report: Path, processes: str) -> Counter[str]:
    r"""Runs the tests that are not slow, and returns how many passed, failed and were skipped.

    Arguments:
        python: The interpreter.
        report: The file of XML that pytest writes.
        processes: How many tests run at a time, or `auto`.
    """
    own = ["--numprocesses", processes, "--dist", "loadfile", "-m", "not slow"]
    own += ["-W", "default::DeprecationWarning"]
    place = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-m", "pytest", *own, f"--junitxml={report}"],
        check=False,
        cwd=ROOT,
        env=place,
    )
    if done.returncode > 1:  # 0: all passed, 1: some failed
        raise SystemExit(f"expected pytest to run, got exit code {done.returncode}")
    return count(report)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", default=None, help="its version; its lower bound if not given")
    parser.add_argument("--processes", default="auto", help="how many tests run at a time")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = bounds(project)
    lowest = pins["torch"]
    pins["torch"] = given.torch or lowest
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "bin/python")
        try:
            versions = install(python, project, pins)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"expected the lower bounds to install, got: {error}") from None
        used = ", ".join(f"{name} {version}" for name, version in versions.items())
        used = f"Python {sys.version.split()[0]} and {used}"
        print(used, flush=True)
        tests = test(python, Path(folder, "report.xml"), given.processes)
    detail = (
        used
        + ("" if pins["torch"] == lowest else f"; the bound of torch is {lowest}")
        + f"; {tests['skipped']} skipped, {tests['failed']} failed"
    )
    print(f"{tests['passed']} passed; {detail}")
    if tests["failed"] or not tests["passed"]:
        raise SystemExit(
            f"expected all tests to pass, got {tests['failed']} that failed"
            f" and {tests['passed']} that passed"
        )
    if given.out is not None:
        row = {"value": tests["passed"], "unit": "tests passed", "detail": detail}
        own = f" --torch {given.torch}" if given.torch else ""
        command = f"python studies/trust/lowest.py{own} --out {given.out}"
        record(given.out, "lowest-versions", [row], command)


if __name__ == "__main__":
    main()
