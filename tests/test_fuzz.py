r"""Files from a stranger: a few hundred of those that `studies/trust/fuzz.py` makes, and the
faults it sees."""

import importlib.util
import json
import numpy as np
import pytest
import struct
import subprocess
import sys
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.checks import brief, number
from fokker.data.images import read_images
from fokker.data.table import read_table
from fokker.objectives import ScoreMatching
from fokker.runs import checkpoints
from fokker.runs import folder as runs
from fokker.runs.config import Config, Network, Optimization
from fokker.runs.toml import dumps, loads
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import data, randoms, sampled_from
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "studies/trust/fuzz.py"
spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
assert spec is not None and spec.loader is not None
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)

SMALL = Config(
    objective=ScoreMatching(),
    network=Network(width=4, layers=2),
    optimization=Optimization(steps=2, batch=4),
)


@pytest.fixture(autouse=True)
def single(tmp_path, monkeypatch):
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def kinds():
    return fuzz.kinds()


def test_files_are_read_or_refused_in_one_line(kinds, tmp_path):
    read = dict.fromkeys(kinds, 0)
    for name, kind in kinds.items():
        for i in range(25):
            whole, wrong = fuzz.attempt(kind, kind.make(fuzz.numbered(name, 7, i)), tmp_path)
            assert wrong is None, f"{name} {i}: {wrong}"
            read[name] += whole
    assert 20 < sum(read.values()) < 0.6 * 25 * len(kinds)  # some changes do no harm, most do


# no examples of earlier sessions: the files that are changed hold the seconds of a training
@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data())
def test_files_that_hypothesis_chooses(kinds, tmp_path, choice):
    r"""The same changes by choices of Hypothesis, which seeks the least one that is a fault."""
    kind = kinds[choice.draw(sampled_from(sorted(kinds)))]
    _, wrong = fuzz.attempt(kind, kind.make(choice.draw(randoms())), tmp_path)
    assert wrong is None


def test_an_input_follows_from_its_number(kinds):
    for name, kind in kinds.items():
        first, again, other = (kind.make(fuzz.numbered(name, 0, i)) for i in (3, 3, 4))
        assert first == again != other


def test_bounded_processes_and_the_record(tmp_path):
    out = tmp_path / "trust.json"
    args = ["--inputs", "60", "--kind", "csv", "--out", out, "--faults", tmp_path / "faults"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["check"], row["value"], row["unit"]) == ("fuzz", 60, "inputs")
    assert not (tmp_path / "faults").exists()


def raised(cause):
    try:
        try:
            raise cause
        except type(cause):
            raise ValueError("expected a file, got another") from None
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TypeError("expected x"), "got TypeError"),
        (RecursionError("expected x"), "got RecursionError"),
        (ValueError("expected x,\ngot y"), "one line"),
        (ValueError(""), "one line"),
        (ValueError("expected " + "x" * 600), "one line"),
        (ValueError("bad"), "what was expected"),
        (raised(MemoryError()), "bytes more"),
        (raised(RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory")), "bytes more"),
    ],
)  # fmt: skip
def test_faults_are_seen(error, said):
    assert said in fuzz.fault(error)


def test_documented_errors_are_no_fault():
    assert fuzz.fault(ValueError("expected x, got y")) is None
    assert fuzz.fault(FileNotFoundError(2, "No such file", "x")) is None
    assert fuzz.fault(raised(KeyError("x"))) is None


# --- what the fuzzer found ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000, "expected a configuration in TOML"),
        (
            "objective." * 1000 + 'kind = "noisy"',
            "expected a kind at config.objective, .*got 'None'",
        ),
        ("seed = " + "9" * 5000, "expected a configuration in TOML, .*4300 digits"),
        ("seed = 0x" + "f" * 500, "expected a number of 64 bits at config.seed, got an integer"),
        ("[optimization]\nrate = " + "9" * 400, "expected a number of 64 bits"),
        ("[objective]\nkind = []", r"expected a kind at config.objective, .*got '\[\]'"),
        ("#" * 20_000, "expected a configuration of at most 16384 characters, got 20000"),
        ("x" * 9000 + " = 1", r"expected a key at config, .*got 'x{80}'"),
        ('[objective]\nkind = "dcd"\n[objective.diffusion]\nkind = "ve"\ng = 1e308', "usual size"),
        ('[network]\nkind = "mlp"\nlayers = 1000000000', "expected layers between 2 and 1000"),
    ],
)
def test_hostile_configurations(text, message):
    with pytest.raises(ValueError, match=message) as found:
        loads(text)
    assert fuzz.fault(found.value) is None


def test_nested_objectives_have_an_end():
    deep = "objective" + ".objective" * 9
    text = "".join(f'[{deep[: 9 + 10 * i]}]\nkind = "noisy"\n' for i in range(10))
    with pytest.raises(ValueError, match="expected at most 8 tables within each other"):
        loads(text)


def test_a_config_of_other_bytes(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(
        ValueError, match=r"expected a text in UTF-8 in .*config.toml, got 'utf-8'"
    ):
        runs.read_config(tmp_path)


@pytest.mark.parametrize(
    "network",
    [Network(width=10**9, layers=2), Network(width=2**40, layers=2), Network(width=5, layers=2)],
)
def test_a_network_that_the_weights_do_not_fit_takes_no_memory(tmp_path, network):
    fit(SMALL, tmp_path / "run")
    (tmp_path / "run/config.toml").write_text(dumps(replace(SMALL, network=network)))
    with pytest.raises(
        ValueError, match=r"expected (weights of the network|a network of a usual)"
    ):
        load(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"version": float("inf")},
        {"step": float("inf")},
        {"shape": [10**400]},
        {"shape": "x"},
        {"lines": [5]},
        {"lines": 5},
        {"lines": [{"loss": 1.0}]},
        {"watch": [1]},
        {"watch": {"norms": 5}},
        {"leader": [1.0, [0]]},
        {"seconds": 10**400},
        {"files": {"part-0000.safetensors": {"bytes": 10**400, "sha256": ""}}},
    ],
    ids=str,
)
def test_hostile_headers(tmp_path, change):
    path = fit(SMALL, tmp_path).path / "checkpoint/step-00000002"
    header = json.loads((path / "checkpoint.json").read_text()) | change
    header["sha256"] = checkpoints.seal(header)
    (path / "checkpoint.json").write_text(json.dumps(header))
    with pytest.raises(
        ValueError, match=r"expected a whole checkpoint in .*, got a broken one"
    ) as e:
        checkpoints.read(path)
    assert fuzz.fault(e.value) is None


def test_a_header_nested_without_end(tmp_path):
    path = fit(SMALL, tmp_path).path
    (path / "checkpoint/step-00000002/checkpoint.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="expected a whole checkpoint"):
        load(path)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"step": Infinity}', '{"step": "x"}', "5"])
def test_hostile_metrics(tmp_path, line):
    path = fit(SMALL, tmp_path).path
    (path / "metrics.jsonl").write_text(line)
    with pytest.raises(ValueError, match=r"expected lines of JSON with a step in .*, got"):
        load(path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(0, 1000000000000)", "expected a row or more, got none"),
        ("(1000000000000, 1000000)", "0 bytes are no array of shape"),
        ("(2, 3)", "0 bytes are no array of shape"),
    ],
)
def test_arrays_that_promise_more_than_they_have(tmp_path, shape, message):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_a_parquet_table_of_few_bytes_and_many_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("fokker.data.table.NUMBERS", 1000)
    path = tmp_path / "x.parquet"
    path.write_bytes(fuzz.parquet({"a": np.zeros(501), "b": np.zeros(501)}))
    with pytest.raises(ValueError, match="1002 numbers are more than 1000"):
        read_table(path)


def test_a_long_row_group_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr("fokker.data.images.GROUP", 1000)
    rows = fuzz.image_column([bytes(2000)])
    (tmp_path / "train-0.parquet").write_bytes(fuzz.parquet(rows, compression="ZSTD"))
    with pytest.raises(ValueError, match=r"a row group of .* bytes is longer than 1000"):
        read_images(tmp_path)


def test_values_in_an_error_are_short():
    assert brief("x" * 100) == "'" + "x" * 80 + "'"
    assert brief(10**4400) == "an integer of 14617 bits"
    assert brief([1] * 100).endswith("...") and len(brief([1] * 100)) == 83
    assert brief(0.5) == "0.5"
    assert not number(10**400) and not number(float("nan")) and number(10**300)
