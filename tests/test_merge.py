r"""`fokker merge`: parts of a study joined, each row with where it was made."""

import json
import pytest

from fokker.app.cli import main
from pathlib import Path
from studies import merge, results

ROOT = Path(__file__).parents[1]


def row(seed, value=1.0, **more):
    same = {"target": "funnel", "dimension": 10, "base": "mixture", "method": "forward"}
    return {**same, "seed": seed, "log_z": value, **more}


def written(path, rows, where="a core", config=None):
    results.save(path, rows, f"made {path.stem}", {"k": 2.5} if config is None else config,
                 where=where)  # fmt: skip
    return path


@pytest.mark.parametrize("kind", merge.KEYS)
def test_a_key_tells_the_rows_of_a_study_apart(kind):
    path = ROOT / f"results/{kind}.json"
    if not path.exists():
        pytest.skip("not measured yet")
    rows = results.load(path)["rows"]
    assert len({merge.key_of(r, kind) for r in rows}) == len(rows)


def test_parts_are_joined_and_rows_keep_their_provenance(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FOKKER_COMMIT", "old")
    out = written(tmp_path / "normalizer.json", [row(0), row(1)])
    monkeypatch.setenv("FOKKER_COMMIT", "new")
    own = {"commit": "own", "time": "then", "hardware": "a card", "torch": "2.11"}
    first = written(tmp_path / "a.json", [row(1), row(2, 1.5)], "a GPU")
    second = written(tmp_path / "b.json", [row(3, None, **own)])
    main(["merge", str(out), str(first), str(second)])
    assert capsys.readouterr().out.strip().endswith("2 rows came, 4 in all")
    content = results.load(out)
    found = {r["seed"]: r for r in content["rows"]}
    assert {k: r["log_z"] for k, r in found.items()} == {0: 1.0, 1: 1.0, 2: 1.5, 3: None}
    made = {seed: (r["commit"], r["hardware"]) for seed, r in found.items()}
    assert made == {
        0: ("old", "a core"), 1: ("old", "a core"), 2: ("new", "a GPU"), 3: ("own", "a card")
    }  # fmt: skip
    assert found[3]["torch"] == "2.11" and found[3]["log_z"] is None
    assert content["hardware"] == "a GPU; a card; a core"
    assert content["command"] == "made normalizer; made a; made b"
    assert content["config"] == {"k": 2.5}
    main(["merge", str(out), str(first), str(second)])  # once more changes no row
    assert "0 rows came, 4 in all" in capsys.readouterr().out
    assert results.load(out)["rows"] == content["rows"]


def test_a_file_that_is_not_there_is_made(tmp_path):
    part = written(tmp_path / "a.json", [row(5)])
    main(["merge", str(tmp_path / "all.json"), str(part), "--study", "normalizer"])
    assert [r["seed"] for r in results.load(tmp_path / "all.json")["rows"]] == [5]


@pytest.mark.parametrize(
    ("rows", "config", "words"),
    [
        ([row(0, 1.25)], None, ["rows that agree", "seed 0", "log_z 1.0 in", "and 1.25 in"]),
        ([row(0, more=True)], None, ["rows that agree", "more None in", "and True in"]),
        ([row(7)], {"k": 3.0}, ["one config", "{'k': 2.5}", "{'k': 3.0}"]),
    ],
)
def test_what_contradicts_is_refused_and_nothing_is_written(tmp_path, capsys, rows, config, words):
    out = written(tmp_path / "normalizer.json", [row(0), row(1)])
    part, before = written(tmp_path / "a.json", rows, config=config), out.read_bytes()
    with pytest.raises(SystemExit) as stop:
        main(["merge", str(out), str(part)])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and len(error.splitlines()) == 1
    assert all(word in error for word in words) and out.read_bytes() == before


def test_bad_files_and_studies_are_named(tmp_path, capsys):
    part = written(tmp_path / "a.json", [row(0)])
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps([1, 2]))
    cases = [
        ([str(tmp_path / "mine.json"), str(part)], "'mine'"),
        ([str(tmp_path / "normalizer.json")], "got none"),
        ([str(tmp_path / "normalizer.json"), str(broken)], "broken.json"),
        ([str(tmp_path / "normalizer.json"), str(tmp_path / "no.json")], "no.json"),
    ]
    for arguments, word in cases:
        with pytest.raises(SystemExit) as stop:
            main(["merge", *arguments])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and word in error and len(error.splitlines()) == 1
    assert not (tmp_path / "normalizer.json").exists()
