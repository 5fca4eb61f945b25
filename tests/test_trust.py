r"""The record of checks, and its table."""

import pytest

from studies import results, tables
from studies.trust import record

ROW = {"value": 3, "unit": "kills survived", "detail": "3 kills in 1 run"}


def test_a_check_replaces_its_own_rows_only(tmp_path):
    path = tmp_path / "results/trust.json"
    record(path, "kill", [ROW, ROW], "python kill.py")
    record(path, "soak", [ROW | {"value": 0.5, "unit": "%"}], "python soak.py")
    record(path, "kill", [ROW | {"value": 30}], "python kill.py --kills 30")
    kill, soak = results.load(path)["rows"]
    assert (kill["check"], kill["value"], kill["command"]) == (
        "kill", 30, "python kill.py --kills 30"
    )  # fmt: skip
    assert (soak["check"], soak["value"], soak["command"]) == ("soak", 0.5, "python soak.py")
    assert {"commit", "time", "hardware"} <= kill.keys()
    text = "<!-- results:trust -->\n<!-- /results -->"
    lines = tables.render(text, tmp_path).splitlines()
    assert any("| kill | 30 | kills survived | 3 kills in 1 run |" in line for line in lines)
    assert any("rank-equality" in line and "not measured yet" in line for line in lines)
    assert not any("kill" in line and "not measured yet" in line for line in lines)
    only = tables.render(text.replace("trust", "scaling"), tmp_path)
    assert "kill" not in only and "not measured yet: `torchrun" in only


def test_a_row_has_a_value_a_unit_and_a_detail(tmp_path):
    with pytest.raises(ValueError, match="a row of value, unit and detail, got"):
        record(tmp_path / "a.json", "kill", [{"value": 3}], "x")
