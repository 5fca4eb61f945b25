r"""Files: only regular ones are read, and what is written is whole or not there."""

import fcntl
import os
import pytest
import socket
import stat
import threading
import torch

from fokker.app.report import write_report
from fokker.data.images import read_images
from fokker.data.table import read_table
from fokker.files import (
    beside,
    check_place,
    open_regular,
    read_regular,
    replacing,
    write_text,
)
from fokker.objectives import ScoreMatching
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.folder import read_config
from fokker.runs.loading import load
from fokker.runs.training import fit

SMALL = Config(
    ToyData("moons"),
    ScoreMatching(),
    Network(width=8, layers=3, confine=0.7),
    Optimization(steps=2, batch=16),
    evaluate=1,
)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def special(path, kind):
    r"""Makes a special file."""
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case "a device":
            path.symlink_to("/dev/zero")


KINDS = ("a pipe", "a socket", "a device")


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = tmp_path / "x"
    special(type(path)("x"), kind)
    with pytest.raises(ValueError, match=rf"x: expected a regular file, got {kind}"):
        open_regular(path, 10)
    expected = "a link" if kind == "a device" else kind  # below a root no link is followed
    with pytest.raises(ValueError, match=rf"x: expected a regular file, got {expected}"):
        open_regular(path, 10, tmp_path)


def test_a_file_has_a_bounded_length(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == read_regular(path, 5, tmp_path) == b"12345"
    for root in (None, tmp_path):
        with pytest.raises(ValueError, match=r"x: expected at most 4 bytes, got 5"):
            read_regular(path, 4, root)
    os.truncate(path, 2**40)  # takes no disk
    with pytest.raises(ValueError, match=r"at most 100 bytes"):
        read_regular(path, 100)
    with pytest.raises(ValueError, match=r"at most 3 bytes, got more"):
        read_regular(type(path)("/proc/self/status"), 3)  # says that it is empty


def test_below_a_root_no_link_is_followed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/secret").write_text("secret")
    root = tmp_path / "run"
    (root / "real").mkdir(parents=True)
    (root / "real/x").write_text("x")
    (root / "folder").symlink_to(tmp_path / "out")
    (root / "file").symlink_to(tmp_path / "out/secret")
    (tmp_path / "named").symlink_to(root)  # the root itself may be one: the user named it
    assert read_regular(tmp_path / "named/real/x", 9, tmp_path / "named") == b"x"
    with pytest.raises(ValueError, match=r"file: expected a regular file, got a link"):
        read_regular(root / "file", 9, root)
    with pytest.raises(ValueError, match=r"secret: expected folder to be a folder, got a link"):
        read_regular(root / "folder/secret", 9, root)
    with pytest.raises(FileNotFoundError, match=r"run/none"):
        read_regular(root / "none", 9, root)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["config.toml", "metrics.jsonl", "checkpoint.json", "part-0000.safetensors"],
)
def test_a_special_file_in_a_run_folder_is_refused(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    fit(SMALL, "r")
    paths = [*type(tmp_path)("r").rglob(name)]
    assert paths
    for path in paths:
        path.unlink()
        special(path, kind)
    with pytest.raises(ValueError, match=r"expected a (regular file|whole checkpoint)"):
        load("r")


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_a_pipe_is_no_table(tmp_path, suffix):
    os.mkfifo(tmp_path / f"x{suffix}")
    with pytest.raises(ValueError, match=r"a regular file, got a pipe"):
        read_table(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("name", ["a.png", "train-0.parquet"])
def test_a_pipe_is_no_image(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"a regular file, got a pipe|expected images in"):
        read_images(tmp_path)


def test_nothing_is_written_through_a_link(tmp_path):
    target, run = tmp_path / "precious", tmp_path / "run"
    fit(SMALL, run)
    target.write_text("precious")
    for name in (
        "report.html", "curves.png", "density.png", "field.png",
        ".report.html.partial", ".metrics.jsonl.partial", ".config.toml.partial",
    ):  # fmt: skip
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)
    write_report(load(run))
    write_text(run / "metrics.jsonl", "")
    assert target.read_text() == "precious"
    assert not (run / "report.html").is_symlink()  # replaced


@pytest.mark.parametrize("name", ["checkpoint", "previews"])
@pytest.mark.parametrize("resume", [False, "if-any"])
def test_training_writes_into_no_linked_folder(tmp_path, name, resume):
    (tmp_path / "away").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "away")
    with pytest.raises(ValueError, match=rf"a folder of its own, got .*{name}, which is a link"):
        fit(SMALL, tmp_path / "run", resume)
    assert not any((tmp_path / "away").iterdir())
    assert not (tmp_path / "run/config.toml").exists()


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o640)

    def fail():
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]
    write_text(path, "new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    write_text(tmp_path / "y", "")
    usual = tmp_path / "usual"
    usual.touch()
    assert (tmp_path / "y").stat().st_mode == usual.stat().st_mode


def test_a_failure_names_the_file_and_leaves_no_rest(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(OSError, match=r"gone") as caught, replacing(path):
        raise OSError("gone")
    assert caught.value.filename == str(path) and not any(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "none/x", "")
    assert caught.value.filename == str(tmp_path / "none/x")


def test_what_a_killed_writer_left_goes_and_what_a_live_one_has_stays(tmp_path):
    path = tmp_path / "x"
    dead, folder = tmp_path / ".x.0123abcd.partial", tmp_path / ".x.0123abce.partial"
    other, strange = tmp_path / ".y.0123abcd.partial", tmp_path / ".x.notes.partial"
    linked = tmp_path / ".x.0123abcf.partial"
    (tmp_path / "precious").write_text("precious")
    for file in (dead, other, strange):
        file.touch()
    folder.mkdir()
    (folder / "inside").touch()
    linked.symlink_to(tmp_path / "precious")
    with beside(path) as live:
        handle = os.open(live, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        assert not dead.exists() and not folder.exists()
        write_text(path, "second")  # by another writer of the same place
        assert live.exists()
    assert path.read_text() == "second" and (tmp_path / "precious").read_text() == "precious"
    assert {p.name for p in tmp_path.iterdir()} == {
        "x", "precious", other.name, strange.name, linked.name
    }  # fmt: skip


def test_many_writers_of_one_place_leave_one_whole_file(tmp_path):
    texts = [f"{i}" * 20_000 for i in range(8)]

    def write(text):
        for _ in range(10):
            write_text(tmp_path / "x", text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_text() in texts
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_place_is_checked_before_the_work(tmp_path):
    check_place(tmp_path / "new")
    assert not any(tmp_path.iterdir())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"a place for a file, got .*, which is no regular"):
        check_place(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        check_place(tmp_path)
    with pytest.raises(OSError) as caught:
        check_place(type(tmp_path)("/proc/new"))
    assert caught.value.filename == "/proc/new"


def test_a_configuration_is_read_to_its_limit(tmp_path):
    (tmp_path / "config.toml").write_text("# " + "x" * 70_000)
    with pytest.raises(ValueError, match=r"config.toml: expected at most 65536 bytes, got"):
        read_config(tmp_path)
