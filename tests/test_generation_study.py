r"""The generation study in small: its stages, what is kept, its rows, its figures."""

import json
import numpy as np
import pytest
import shutil
import torch

from dataclasses import replace
from fokker.app.cli import main
from fokker.data.picture import to_float
from fokker.metrics import Extractor
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.checkpoints import write as write_checkpoint
from fokker.runs.loading import load
from fokker.runs.training import Diverged, Interrupted
from fokker.tasks import Run
from matplotlib.axes import Axes
from pathlib import Path
from studies import generation, results, tables
from studies.generation.figures import along, draw_all, samplers
from studies.generation.judging import nearest
from studies.generation.working import gaps, images_of, snapshots_of
from studies.tables.images import draw_table

pytestmark = pytest.mark.slow  # it trains, draws and judges

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
PART = generation.Part(MINI, "fokker", "dcd-limit", "small", steps=4, batch=2, quick=True)
SETTINGS = generation.Settings(5, 3, ("final", "snapshot"), chunk=4, bits=0, near=4, batch=4)
FIELDS = (
    "data method preset params train_images seconds nfe fid fid_n convention kid bpd device commit"
)


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOKKER_INCEPTION", raising=False)


def pool(x):
    r"""A stand-in for Inception, to see what is done with features."""
    return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 2).flatten(1)


EXTRACTOR = Extractor(pool, "0123")


class Brief(generation.Clock):
    r"""Time for one step."""

    left, over = 0.0, False


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    r"""A study stopped by the clock in training and in drawing, and resumed."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("study")
    over, brief, seen = generation.Clock(0.0), Brief(1.0), []
    assert not generation.train(PART, folder, 0.0, over)
    assert not (folder / PART.name / "run").exists()  # there was no time
    assert not generation.train(PART, folder, 0.0, brief)
    (saved,) = (folder / PART.name / "run" / "checkpoint").iterdir()
    assert saved.name == "step-00000001"
    first = read_checkpoint(folder / PART.name / "run").seconds
    assert generation.train(PART, folder, 0.0, progress=lambda k, line: seen.append(k))
    assert seen[0] == 2 and seen[-1] == 4
    line = (folder / PART.name / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(line)["seconds"] > first > 0  # the time of all slices
    assert not generation.sample(PART, folder, SETTINGS, over)
    assert generation.sample(PART, folder, SETTINGS)
    return folder


def test_training_stops_by_the_clock_and_goes_on(study):
    lines = (study / PART.name / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    seen = []
    assert generation.train(PART, study, 0.0, progress=lambda k, line: seen.append(k))
    assert not seen  # trained already


def test_snapshots_are_small_and_know_their_time(study):
    found = snapshots_of(study / PART.name)
    assert list(found) == [2, 4] and 0 < found[2] < found[4]
    average = read_checkpoint(study / PART.name / "run").average
    last = study / PART.name / "snapshots/step-00000004.safetensors"
    assert last.stat().st_size < 0.7 * sum(v.nbytes for v in average.values())


def test_images_are_drawn_once_and_by_their_index(study, tmp_path):
    place = study / PART.name
    files = sorted(place.glob("samples/final-*/*.npy"))
    assert [np.load(path).shape[0] for path in files] == [4, 1]
    before, stamp = np.load(files[0]), files[1].stat().st_mtime_ns
    files[0].unlink()  # as if it was killed before
    assert generation.sample(PART, study, SETTINGS)
    assert np.array_equal(np.load(files[0]), before)
    assert files[1].stat().st_mtime_ns == stamp
    first = generation.Draw("snapshot", 2, PART.sampling, 3)
    found = images_of(place, first)
    assert found is not None and not np.array_equal(found[0].numpy(), before[:3])


def test_the_chunk_may_change_between_calls(tmp_path):
    r"""Images 0 to 9 of a draw, in files of other chunks before."""

    def keep(begin, n):
        np.save(tmp_path / f"{begin:07d}.npy", np.arange(begin, begin + n, dtype=np.uint8))
        (tmp_path / f"{begin:07d}.json").write_text("{}")

    assert gaps(tmp_path, 10, 4) == [(0, 4), (4, 4), (8, 2)]
    keep(0, 4)
    keep(6, 2)
    assert gaps(tmp_path, 10, 5) == [(4, 2), (8, 2)]
    assert gaps(tmp_path, 10, 1) == [(4, 1), (5, 1), (8, 1), (9, 1)]
    keep(4, 3)  # overlaps
    keep(8, 2)
    assert gaps(tmp_path, 10, 3) == []
    draw = generation.Draw("final", 1, PART.sampling, 10)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / draw.name).symlink_to(tmp_path)
    found = images_of(tmp_path, draw)
    assert found is not None and found[0].tolist() == list(range(10)) and len(found[1]) == 4
    (tmp_path / "0000004.npy").unlink()
    assert images_of(tmp_path, draw) is None


def test_other_chunks_are_judged_too(study, tmp_path):
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    (first, second) = sorted((folder / PART.name).glob("samples/final-*/*.npy"))
    before = np.concatenate([np.load(first), np.load(second)])
    first.unlink()
    own = replace(SETTINGS, chunk=3, kinds=("final",))
    said = []
    assert not generation.judge(PART, folder, EXTRACTOR, own, progress=said.append)
    assert any("is not drawn yet" in line for line in said)
    assert generation.sample(PART, folder, own)  # 0 to 2, and 3
    found = images_of(folder / PART.name, generation.Draw("final", 4, PART.sampling, 5))
    assert found is not None
    assert np.abs(found[0].numpy().astype(int) - before).max() <= 1  # but for rounding


def test_a_file_cut_short_is_drawn_again(study, tmp_path):
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    path, other = sorted((folder / PART.name).glob("samples/final-*/*.npy"))
    before = np.load(path)
    path.write_bytes(path.read_bytes()[:-100])
    other.with_suffix(".json").write_text("")
    said = []
    assert generation.sample(PART, folder, SETTINGS, progress=said.append)
    assert sum("is not whole" in line for line in said) == 2
    assert np.array_equal(np.load(path), before)
    snapshot = next((folder / PART.name / "snapshots").glob("*"))
    snapshot.write_bytes(snapshot.read_bytes()[:40])
    with pytest.raises(ValueError, match=f"{snapshot.name}: expected a whole snapshot"):
        generation.sample(PART, folder, SETTINGS)


def test_ctrl_c_ends_the_study(tmp_path, monkeypatch, capsys):
    def stopped(*args, **options):
        raise Interrupted(tmp_path, 3)

    monkeypatch.setattr("studies.generation.working.fit", stopped)
    with pytest.raises(Interrupted):
        generation.train(PART, tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "generation", "--data", MINI, "--quick", "--out", str(tmp_path / "s")])
    said = capsys.readouterr()
    assert stop.value.code == 130 and "clock" not in said.out
    assert "interrupted after step 3: what is done is kept" in said.err

    def pressed(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("studies.generation.working.train", pressed)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "generation", "--data", MINI, "--quick", "--out", str(tmp_path / "s")])
    assert stop.value.code == 130 and "the same command goes on" in capsys.readouterr().err


def test_what_diverged_is_not_called_trained(tmp_path, monkeypatch, capsys):
    def lost(*args, **options):
        raise Diverged("diverged: the loss is not finite")

    monkeypatch.setattr("studies.generation.working.fit", lost)
    args = ["reproduce", "generation", "--data", MINI, "--quick", "--out", str(tmp_path / "s")]
    for _ in range(2):  # and it is not tried again
        main([*args, "--stage", "train"])
        said = capsys.readouterr().out
        assert "diverged: the loss is not finite" in said and "trained" not in said
        assert "diverged before it was saved" in said and "Not all is done" not in said


def test_the_other_convention_is_beside_the_first(study, tmp_path):
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    shutil.rmtree(folder / PART.name / "rows", ignore_errors=True)
    own = replace(SETTINGS, kinds=("final",))
    assert generation.judge(PART, folder, EXTRACTOR, own)
    torch_ = replace(EXTRACTOR, convention="torch")
    assert generation.judge(PART, folder, torch_, replace(own, convention="torch"))
    rows = generation.collect(folder)
    for kind in ("final", "data"):
        found = {row["convention"]: row["fid"] for row in rows if row["kind"] == kind}
        assert found.keys() == {"tf", "torch"} and found["tf"] != found["torch"]
    first, second, method = tables.generation_rows(rows)
    assert {first[4][-4:], second[4][-4:]} == {"(tf)", "rch)"} and method[4] == "5 (tf)"
    other = replace(EXTRACTOR, weights="4567")  # another file of Inception
    assert generation.judge(PART, folder, other, own)
    (final,) = (
        r
        for r in generation.collect(folder)
        if (r["kind"], r.get("convention")) == ("final", "tf")
    )
    assert final["weights"] == "4567"


def test_the_time_is_that_of_the_last_step(study, tmp_path):
    r"""Not that of the last evaluation, which may be long before."""
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    place = folder / PART.name
    saved = read_checkpoint(place / "run")
    shutil.rmtree(place / "run/checkpoint")
    write_checkpoint(place / "run", saved._replace(seconds=saved.seconds + 500.0), 1)
    shutil.rmtree(place / "snapshots")
    shutil.rmtree(place / "rows", ignore_errors=True)
    own = replace(SETTINGS, kinds=("final",))
    assert generation.judge(PART, folder, None, own)
    (row,) = (row for row in generation.collect(folder) if row["kind"] == "final")
    assert row["seconds"] > 500


def test_rows_and_figures(study, tmp_path):
    assert generation.judge(PART, study, None, SETTINGS)  # no FID
    rows = generation.collect(study)
    draws = [row for row in rows if row["kind"] in generation.DRAWS]
    assert [row["kind"] for row in draws] == ["final", "snapshot", "snapshot"]
    assert all(row["fid"] is None and set(FIELDS.split()) <= set(row) for row in draws)
    assert not generation.judge(PART, study, EXTRACTOR, SETTINGS, generation.Clock(0.0))
    assert generation.judge(PART, study, EXTRACTOR, SETTINGS)
    rows = generation.collect(study)
    final, *others = (row for row in rows if row["kind"] in generation.DRAWS)
    assert final["fid"] > 0 and final["fid_n"] == 5 and final["convention"] == "tf"
    assert (final["train_images"], final["nfe"], final["bpd"]) == (8, 7, None)
    assert [row["train_images"] for row in others] == [4, 8] and others[0]["fid_n"] == 3
    (data,) = (row for row in rows if row["kind"] == "data")
    assert data["method"] == "train-vs-test" and data["fid"] > 0
    near = {row["set"]: row for row in rows if row["kind"] == "nearest"}
    assert near["test"]["q05"] <= near["test"]["q50"] <= near["test"]["q95"]
    energies = [row for row in rows if row["kind"] == "energy"]
    assert {row["set"] for row in energies} == {"train", "test", "generated"}
    results.save(tmp_path / "rows.json", rows, "test")  # no NaN
    lines = tables.generation_rows(rows)
    assert all(len(line) == len(tables.GENERATION_HEADER) for line in lines) and len(lines) == 2
    paths = {path.name for path in draw_all([PART], study, rows, SETTINGS)}
    assert {"mnist-mini-fid.png", f"{PART.name}-energies.png", f"{PART.name}-samples.png"} <= paths


def test_what_diverges_is_a_row(study, tmp_path):
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    place = folder / PART.name
    shutil.rmtree(place / "rows", ignore_errors=True)
    own = replace(SETTINGS, kinds=("steps",))
    good = read_checkpoint(place / "run")
    shutil.rmtree(place / "run/checkpoint")
    bad = {k: v * torch.nan for k, v in good.average.items()}
    write_checkpoint(place / "run", good._replace(average=bad), 1)
    assert generation.sample(PART, folder, own)
    assert generation.judge(PART, folder, EXTRACTOR, own)
    rows = [row for row in generation.collect(folder) if row["kind"] == "steps"]
    assert rows and all("NaN" in row["diverged"] and row["fid"] is None for row in rows)
    assert {row["sampler"] for row in rows} == {"heun", "multistep"}


def test_a_guided_draw(study, tmp_path):
    folder, small = Path(shutil.copytree(study, tmp_path / "study")), PART.name
    large = replace(PART, size="15m", steps=9)
    own = replace(SETTINGS, kinds=("final", "guided"), guidance=(1.0, 2.0))
    assert not any(
        d.kind == "guided" for d in drawn_by(PART, folder, own)
    )  # small guides the others
    shutil.rmtree(folder / small / "run/checkpoint")
    assert generation.train(large, folder)
    assert not any(d.kind == "guided" for d in drawn_by(large, folder, own))  # nothing guides yet
    shutil.copytree(study / small / "run/checkpoint", folder / small / "run/checkpoint")
    assert generation.sample(large, folder, own)
    final, plain, guided = (
        images_of(folder / large.name, draw)[0] for draw in drawn_by(large, folder, own)
    )
    torch.testing.assert_close(plain, final[:3], atol=1, rtol=0)  # w = 1 is no guidance
    assert not torch.equal(plain, guided)
    assert generation.judge(large, folder, EXTRACTOR, own)
    rows = [row for row in generation.collect(folder) if row["kind"] == "guided"]
    assert [row["guidance"] for row in rows] == [1.0, 2.0]
    assert {row["guide_step"] for row in rows} == {4}
    assert all(row["guide"] == "small" and row["guide_seconds"] > 0 for row in rows)
    lines = tables.generation_rows(generation.collect(folder))
    (line,) = (line for line in lines if "guided" in line[1])
    assert line[5] == "7 + 7" and " + " in line[2]
    said = draw_table(generation.collect(folder))
    assert "steps, w = 2" in said and said.count("\n") == 3
    names = {path.name for path in draw_all([large], folder, [], own)}
    assert {f"{large.name}-guided-2.png", f"{large.name}-samples.png"} <= names


def drawn_by(part, folder, settings):
    return generation.draws_of(part, load(folder / part.name / "run"), folder, 20, settings)


def test_a_corrected_draw_has_float32_layers(study, tmp_path, monkeypatch):
    folder, seen = Path(shutil.copytree(study, tmp_path / "study")), []
    path = folder / PART.name / "run" / "config.toml"
    assert 'precision = "float32"' in path.read_text()
    path.write_text(path.read_text().replace('"float32"', '"bfloat16"'))  # as on a GPU
    draw, other = generation.working.generate, load(path.parent)
    assert other.energy_on("meta").dtype == torch.bfloat16
    assert other.energy_on("meta", exact=True).dtype == torch.float32

    def energy_on(run, device, exact=False):
        return run.energy if exact else run.energy.cast("bfloat16")

    def generate(field, n, shape, sampling, **options):
        seen.append((sampling.corrector, field.energy.dtype))
        return draw(field, n, shape, sampling, **options)

    monkeypatch.setattr(Run, "energy_on", energy_on)
    monkeypatch.setattr(generation.working, "generate", generate)
    monkeypatch.setattr("fokker.images.generate.WARMUP", 2)
    shutil.rmtree(folder / PART.name / "samples")
    generation.sample(PART, folder, replace(SETTINGS, kinds=("corrector", "steps")))
    assert set(seen) == {(0, torch.bfloat16), (1, torch.float32)}


def test_nearest_finds_copies(study):
    train = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8)
    x = to_float(train[[7, 31]])
    x[1, 0, 0, 0] += 0.6
    distance, index = nearest(x, train)
    assert index.tolist() == [7, 31]
    assert torch.allclose(distance, torch.tensor([0.0, 0.1]), atol=1e-6)


def test_minutes_to_a_goal():
    row = lambda seconds, fid: {"kind": "snapshot", "seconds": seconds, "fid": fid}
    rows = [row(60, 20.0), row(180, 9.0), row(120, 13.0), row(30, None)]
    assert tables.minutes_to(rows, 13.85) == pytest.approx(2.0)
    assert tables.minutes_to(rows, 5.0) is None


def test_a_short_run_has_a_curve_too():
    at = lambda steps: generation.Part("celeba32", "fokker", "dcd-limit", steps=steps).config
    assert [at(steps).evaluate for steps in (30_000, 6_000, 4)] == [2000, 1000, 1]


@pytest.fixture
def plotted(monkeypatch):
    r"""What is plotted: the label, x and y of each line."""
    found, plot = [], Axes.plot

    def seen(axis, x, y, *style, label, **how):
        found.append((label, x, y))
        return plot(axis, x, y, *style, label=label, **how)

    monkeypatch.setattr(Axes, "plot", seen)
    return found


def test_the_figure_along_training(tmp_path, plotted):
    own = {"preset": "fokker", "size": "15m", "convention": "tf", "fid_n": 10_000}
    row = lambda kind, minutes, fid, **more: {
        **own, "kind": kind, "seconds": 60 * minutes, "fid": fid, "method": "dcd-limit", **more
    }  # fmt: skip
    ends = [row("final", 4, 40.0, method="dcd"), row("final", 7, 5.0, fid_n=50_000)]
    assert along(ends, "celeba32", tmp_path / "none.png") is None  # no curve
    rows = [row("snapshot", 6, 7.0), row("snapshot", 3, 10.0), *ends]
    assert along(rows, "celeba32", tmp_path / "fid.png") == tmp_path / "fid.png"
    assert plotted == [
        ("fokker dcd-limit, 15m", (3, 6), (10.0, 7.0)),
        ("fokker dcd-limit, 15m, 50,000 images", (7,), (5.0,)),
        ("fokker dcd, 15m, end of a run", (4,), (40.0,)),
    ]


def test_the_figure_of_samplers(tmp_path, plotted):
    own = {"preset": "fokker", "method": "dcd-limit", "size": "15m", "convention": "tf"}
    row = lambda steps, nfe, fid, step=9, n=2500, sampler="heun": {
        **own, "kind": "steps", "steps": steps, "nfe": nfe, "fid": fid, "step": step, "fid_n": n,
        "sampler": sampler,
    }  # fmt: skip
    rows = [
        row(18, 35, 20.0),
        row(9, 17, 24.0),
        row(18, 35, 30.0, step=5),
        row(18, 35, 15.0, n=5000),
    ]
    rows += [row(18, 18, 21.0, sampler="multistep")]
    assert samplers(rows, tmp_path / "s.png") == tmp_path / "s.png"
    assert plotted == [  # of the last weights, and each count apart
        ("fokker dcd-limit, 15m, 2,500 images", (17, 35), (24.0, 20.0)),
        ("fokker dcd-limit, 15m, multistep, 2,500 images", (18,), (21.0,)),
        ("fokker dcd-limit, 15m, 5,000 images", (35,), (15.0,)),
    ]


def test_the_command(tmp_path, capsys):
    out = tmp_path / "study"
    args = ["reproduce", "generation", "--data", MINI, "--quick", "--out", str(out), "--bpd", "0"]
    args += ["--steps", "2", "--draws", "final", "--samples", "2"]
    main([*args, "--stage", "train", "--methods", "fokker-reference"])
    said = capsys.readouterr().out
    assert "trained" in said and "FID" not in said
    rest = ["--stage", "sample", "fid", "figures", "--results", str(tmp_path / "rows.json")]
    main([*args, *rest, "--methods", "fokker-reference"])
    said = capsys.readouterr().out
    assert "FID is skipped" in said and "figure:" in said and "--quick" in said
    content = json.loads((tmp_path / "rows.json").read_text())
    assert content["rows"][0]["fid"] is None and content["rows"][0]["method"] == "reference"
    for bad, message in (
        (["--methods", "fokker-dc"], "did you mean"),
        (["--methods", "fokker-reference", "--batch", "3"], "got another one"),
        (["--inception", str(tmp_path / "none")], "none"),
        (["--inception", str(tmp_path)], "got the folder"),
        (["--minutes", "nan"], "minutes to be a finite number >= 0, got nan"),
        (["--minutes", "-1"], "minutes to be a finite number >= 0, got -1"),
        (["--snapshot-minutes", "-1"], "snapshot_minutes to be a finite number >= 0"),
        (["--samples", "0"], "samples to be an integer >= 1, got 0"),
        (["--few", "-4"], "few to be an integer >= 1, got -4"),
        (["--chunk", "0"], "chunk to be an integer >= 1, got 0"),
        (["--bpd", "-3"], "bpd to be an integer >= 2, got -3"),
        (["--guidance", "1.5", "nan"], "weight of guidance from 1 to 1000, got nan"),
        (["--guidance", "2", "2.0000001"], "different weights of guidance, got 2, 2"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*args, *bad])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_a_part_that_ended_goes_on(tmp_path, capsys):
    args = ["reproduce", "generation", "--data", MINI, "--quick", "--out", str(tmp_path)]
    args += ["--methods", "fokker-reference", "--bpd", "0", "--draws", "final", "--samples", "2"]
    main([*args, "--steps", "2", "--stage", "train"])
    with pytest.raises(SystemExit):
        main([*args, "--steps", "4", "--stage", "train"])
    said = " ".join(capsys.readouterr().err.split())
    assert "use the settings there, or another --out; with --restarts 2 it goes on" in said
    main([*args, "--steps", "4", "--restarts", "2", "--stage", "train", "sample", "fid"])
    (place,) = tmp_path.glob("*-reference-15m")
    assert load(place / "run").step == 4
    (path,) = place.glob("rows/final-*.json")
    (row,) = json.loads(path.read_text())
    assert (row["step"], row["train_images"], row["restarts"]) == (4, 32, [2])
    again = generation.Part(
        MINI, "fokker", "reference", steps=4, batch=8, quick=True, restarts=(2,)
    )
    assert generation.train(again, tmp_path / "again", every=60.0)
    assert set(snapshots_of(tmp_path / "again" / again.name)) == {1, 2, 4}  # first, and ends


def test_without_inception_the_study_does_not_start(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "generation", "--data", MINI, "--out", str(tmp_path / "study")])
    assert stop.value.code == 2
    assert "Inception" in capsys.readouterr().err and not (tmp_path / "study").exists()


def test_mirrors_and_levels():
    faces = generation.Part("celeba32", "paper", "dcd")
    assert faces.config.data.flip and faces.sampling.sigma_min == pytest.approx(0.01)
    digits = generation.Part("mnist", "fokker", "dcd")
    assert not digits.config.data.flip and digits.sampling.sigma_min == pytest.approx(0.002)
