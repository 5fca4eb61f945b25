r"""The first minutes at the command line, and every command of the README."""

import os
import pytest
import re
import shlex
import signal
import subprocess
import sys
import torch

from fokker import __version__, checks
from fokker.app.cli import main, parse
from fokker.app.train import Train
from fokker.data import cache
from fokker.data.picture import save_png
from fokker.runs.shipped import announce
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def error_of(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"fokker {__version__}\n"


def test_a_device_that_is_not_there(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    error = error_of(capsys, "train", "toy", "--device", "cuda")
    assert error.startswith("fokker: expected a device of this machine, cpu")
    assert error.endswith("got 'cuda'\n") and not (tmp_path / "runs").exists()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [checks.device(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    with pytest.raises(ValueError, match=r"cpu, cuda:0, cuda:1, cuda.*got 'cuda:2'"):
        checks.device("cuda:2")


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ("0", "expected slices to be an integer >= 1, got 0"),
        ("3", "expected batch to be a multiple of 3, the number of ranks times slices, got 10"),
    ],
)
def test_slices_that_cannot_be(capsys, tmp_path, slices, message):
    given = ["--steps", "1", "--batch", "10", "--out", str(tmp_path / "run")]
    assert error_of(capsys, "train", "toy", *given, "--slices", slices) == f"fokker: {message}\n"
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_there(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    error = error_of(capsys, "train", "table", "--data", "points.csv")
    assert error == "fokker: expected a file that exists, got points.csv\n"
    error = error_of(capsys, "train", "table", "--data", "far/points.csv")
    assert error == "fokker: expected a folder that exists, got far, for points.csv\n"
    (tmp_path / "folder.csv").mkdir()
    error = error_of(capsys, "train", "table", "--data", "folder.csv")
    assert error.startswith("fokker: expected ") and "folder.csv" in error and "Errno" not in error


@pytest.mark.parametrize("batch", [10**14, 2**62])  # beyond any address, and beyond any count
def test_more_than_the_memory_is_one_line(capsys, tmp_path, batch):
    out, n = str(tmp_path / "run"), str(batch)
    error = error_of(capsys, "train", "toy", "--steps", "1", "--out", out, "--batch", n)
    assert error.startswith("fokker: expected what fits into memory, got more: ")
    assert error.endswith("; a step needs less with --slices 2\n")
    assert error.count("\n") == 1


def test_each_rank_says_that_its_memory_is_short(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    def short(self):
        raise torch.OutOfMemoryError("CUDA out of memory.\nand much more")

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", short)
    error = error_of(capsys, "doctor")
    assert (
        error
        == "fokker: expected what fits into memory on rank 1, got more: CUDA out of memory.\n"
    )


def test_another_failure_is_not_taken_for_one_of_memory(monkeypatch):
    def broken(self):
        raise RuntimeError("expected the same weights on all 2 ranks")

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", broken)
    with pytest.raises(RuntimeError, match="the same weights"):
        main(["doctor"])


def test_an_interrupted_command_is_one_line(capsys, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 130 and capsys.readouterr().err == "fokker: interrupted\n"


def test_an_interrupt_while_modules_are_imported_has_no_traceback():
    code = """if True:
        import signal, sys

        class Finder:
            def find_spec(self, name, *rest):
                if name == "fokker.analytic":
                    signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["/usr/bin/fokker"]
        sys.meta_path.insert(0, Finder())
        import fokker
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode == -signal.SIGINT and not run.stderr


def test_a_reader_that_has_gone_is_no_fault(monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as stop:
            main(["doctor"])
    assert stop.value.code == 141 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OverflowError("math range error"), 2, "expected numbers of a usual size"),
        (ZeroDivisionError("division by zero"), 2, "expected numbers of a usual size"),
        (
            RuntimeError("value cannot be converted to type float without overflow"),
            2,
            "usual size",
        ),
        (
            RuntimeError("Storage size calculation overflowed with sizes=[4]"),
            2,
            "fits into memory",
        ),
    ],
)
def test_numbers_beyond_measure_are_one_line(monkeypatch, capsys, error, code, words):
    def fail(_):
        raise error

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", fail)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == code and words in line


def test_a_rank_that_has_lost_another_says_so(monkeypatch, capsys):
    def fail(_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5")

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", fail)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 1 and "got one that ended (rank 1 waited for it)" in line


def test_brackets_in_a_path_are_no_markup(tmp_path, capsys):
    folder = tmp_path / "[bold]x[/nothing]"
    small = ("--steps", "2", "--batch", "16", "--width", "8", "--evaluate", "1")
    main(["train", "toy", "--data", "moons", *small, "--out", str(folder)])
    main(["train", "toy", "--data", "moons", *small, "--out", str(folder), "--resume"])
    assert "resumed from step-00000002 in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--confine", "nan", "confine between"),
        ("--confine", "1e-20", "confine between"),
        ("--bandwidth", "nan", "bandwidth between"),
        ("--scale", "1e300", "scale between"),
        ("--scale", "1e-300", "scale between"),
        ("--features", "-1", "features to be an integer >= 0"),
        ("--width", "0", "width to be an integer >= 1"),
    ],
)
def test_an_option_beyond_measure_is_named_before_any_work(capsys, tmp_path, option, value, words):
    out = tmp_path / "run"
    line = error_of(capsys, "train", "toy", option, value, "--out", str(out))
    assert words in line and f"got {float(value) if 'e' in value else value}" in line
    assert not out.exists()


def test_a_count_beyond_64_bits_is_one_line(capsys, monkeypatch):
    with pytest.raises(ValueError, match="expected n to be an integer of 64 bits, got 10000"):
        checks.positive_integer(n=10**30)
    checks.positive_integer(n=2**63 - 1)

    def fail(_):
        torch.rand(2**63)  # twice a number that has 64 bits

    monkeypatch.setattr("fokker.app.doctor.Doctor.run", fail)
    assert "expected numbers of a usual size" in error_of(capsys, "doctor")


def test_what_a_terminal_would_obey_is_escaped_in_an_error(capsys):
    name = "a\nfokker: all is well\x1b[31m\u202e.csv"
    line = error_of(capsys, "score", name, "x.csv")
    assert "a\\nfokker: all is well\\x1b[31m\\u202e.csv" in line


def test_a_path_in_a_hint_is_quoted_for_the_shell(tmp_path, monkeypatch, capsys):
    hints = []
    config = SimpleNamespace(optimization=SimpleNamespace(steps=1))
    run = SimpleNamespace(path=Path("runs/a b"), step=1, config=config)
    monkeypatch.setattr(Train, "train", lambda *_: run)
    monkeypatch.setattr(Train, "report", lambda self, run, hint="": hints.append(hint))
    main(["train", "table", "--data", "$(rm -rf x).csv"])
    main(["train", "denoising", "--data", "a b"])
    main(["train", "generation", "--data", "a b"])
    for hint, words in zip(hints, (4, 5, 7), strict=True):
        command = shlex.split(hint.partition(": ")[2])
        assert command[0] == "fokker" and "runs/a b" in command and len(command) == words


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_an_output_that_has_no_unicode_is_no_fault(environment):
    code = r"""if True:
        from fokker.app import cli
        cli.Doctor.run = lambda _: print("600\u00b2", "a\udcff")
        cli.main(["doctor"])
    """
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0 and not run.stderr
    assert run.stdout.startswith(b"600") and rb"a\udcff" in run.stdout


def test_a_name_of_a_file_in_other_bytes_is_named(tmp_path, capsys):
    path, out = tmp_path / os.fsdecode(b"a\xff.csv"), tmp_path / "run"
    path.write_text("a\n1\n2\n3\n4\n")
    line = error_of(capsys, "train", "table", "--data", str(path), "--out", str(out))
    assert "expected a text in UTF-8 at config.data.path" in line and not out.exists()


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch, capsys):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FOKKER_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    main(["doctor"])
    assert "none that can be read: expected a home folder" in capsys.readouterr().out
    with pytest.raises(ValueError, match="FOKKER_CACHE to name a folder"):
        cache.folder()
    announce("celeba32")  # no cache is needed for that
    assert "non-commercial" in capsys.readouterr().err


def test_a_name_that_is_near_nothing_gets_no_guess(capsys):
    assert "did you mean" not in error_of(capsys, "xyzzy")
    assert "did you mean 'train'?" in error_of(capsys, "trian")


def test_an_option_may_be_left_out(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["train", "toy", "--help"])
    out = capsys.readouterr().out
    assert "--steps INT" in out and "--out PATH" in out and "{None}" not in out
    assert "invalid literal for int() with base 10: 'abc'" in error_of(
        capsys, "train", "toy", "--steps", "abc"
    )


# what makes a command of the README quick, by its first words; none: it is only parsed
SMALL = "--steps 2 --batch 8 --width 8"
QUICK = {
    "train toy": SMALL,
    "sample runs/moons-dcd-0": "-n 20",
    "train table": SMALL,
    "score runs/points-0": "",
    "score celeba32": None,  # needs a folder of pictures, and the set
    "denoise": "--sigma 25",
    "restore": None,  # minutes with that energy
    "sample celeba32": "-n 1 --steps 3",
    "evaluate": None,  # needs the set
    "reproduce toy": None,
    "studio": None,
}


def commands(path):
    r"""The commands of a document, in order: indented lines, and the cells of its tables."""
    text = path.read_text().replace("\\\n", " ")  # a line that goes on
    lines = re.findall(r"^(?:    |\|.*\| `)fokker ([^`\n]*)", text, re.MULTILINE)
    return [line.split("#")[0].strip() for line in lines]


def test_commands_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    rows = torch.randn(60, 3).tolist()
    (tmp_path / "points.csv").write_text("".join(f"{a},{b},{c}\n" for a, b, c in rows))
    save_png(tmp_path / "noisy.png", torch.randn(3, 32, 32).clamp(-1, 1))
    # which takes seconds, and has tests of its own
    monkeypatch.setattr("fokker.app.train.write_report", lambda run: run.path / "report.html")
    found = commands(ROOT / "README.md")
    assert len(found) == len(QUICK)
    for command in found:
        (first,) = (key for key in QUICK if f"{command} ".startswith(f"{key} "))
        if QUICK[first] is None:
            parse(shlex.split(command))
        else:
            main([*shlex.split(command), *shlex.split(QUICK[first])])
    out = capsys.readouterr().out
    assert "runs/moons-dcd-0/report.html" in out
    assert all((tmp_path / name).exists() for name in ("clean.png", "faces.png", "samples.csv"))
    assert {p.name for p in (tmp_path / "runs").iterdir()} >= {"moons-dcd-0", "points-0"}


def test_commands_of_the_pages_are_understood():
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 20
    for command in found:
        parse(shlex.split(command))


def test_targets_of_the_readme_exist():
    targets = set(re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    made = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets and targets <= made
