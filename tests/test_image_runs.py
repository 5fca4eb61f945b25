r"""Training on images: the run, its report, pictures denoised, and the study."""

import json
import pytest
import shutil
import torch

from dataclasses import replace
from fokker import figures, fit, load
from fokker.cli import main
from fokker.config import Config, ImageData, Optimization, ResNet, UNet, dumps, loads
from fokker.data.picture import read_png, save_png, to_uint8
from fokker.denoising import denoise
from fokker.objectives import Denoising, LevelDCD, LogUniform, Noisy
from fokker.presets import IMAGE_METHODS, image_config
from fokker.studies import denoising
from fokker.tasks.image import ImageTask, level_of, noisy
from fokker.training import Interrupted
from pathlib import Path

MINI = str(Path(__file__).parent / "data" / "mnist-mini")


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))


def config(objective=LevelDCD(LogUniform(0.1, 1.0), form="limit", conditional=True), **changes):
    base = Config(
        ImageData(MINI),
        objective,
        UNet(width=8, blocks=1),
        Optimization(steps=3, batch=4, warmup=2),
        evaluate=3,
    )
    return replace(base, **changes)


def test_a_run_on_images_is_trained_judged_and_read(trained):
    run = load(trained)
    assert run.shape == (1, 28, 28)
    assert {"rmse_0.3", "rmse_0.6", "rmse_0.9"} <= set(run.metrics[-1])
    assert run.energy(torch.randn(2, 1, 28, 28), torch.tensor(0.5)).shape == (2,)


def test_it_resumes_to_the_same_weights_and_stops_by_the_clock(tmp_path, trained):
    whole = load(trained)
    with pytest.raises(Interrupted):
        fit(config(), tmp_path / "parts", minutes=0.0)
    parts = fit(config(), tmp_path / "parts", resume=True)
    for a, b in zip(whole.energy.parameters(), parts.energy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("objective", "network"),
    [
        (Noisy(level=0.3), ResNet(10, 1)),
        (LevelDCD(0.3, form="hutchinson"), ResNet(10, 1, form="sum")),
        (Denoising(LogUniform(0.1, 1.0)), UNet(8, 1, "denoiser")),
    ],
)
def test_other_objectives_and_networks(tmp_path, objective, network):
    changed = config(objective, network=network, optimization=Optimization(steps=1, batch=2))
    run = fit(changed, tmp_path / "run")
    assert run.step == 1
    assert loads(dumps(changed)) == changed


@pytest.mark.slow
def test_training_a_denoiser_lowers_its_error(tmp_path):
    longer = config(optimization=Optimization(steps=40, batch=16, rate=3e-3), evaluate=40)
    run = fit(longer, tmp_path / "run")
    task = run.task()
    assert isinstance(task, ImageTask)
    clean = task.test(50, torch.device("cpu"))
    x = noisy(clean, 0.6)
    # the Gaussian of the same variance, which the network starts from
    start = 0.25 / (0.25 + 0.36) * x
    error = lambda y: float((y - clean).square().mean())
    assert error(run.energy.denoise(x, 0.6)) < 0.8 * error(start)


def test_levels_of_objectives():
    assert level_of(IMAGE_METHODS["paper"]["cd"]) == pytest.approx(0.3)
    assert level_of(IMAGE_METHODS["paper"]["dcd"]) == pytest.approx(0.3 * 1.2**0.5)
    assert level_of(IMAGE_METHODS["fokker"]["dcd"]) is None


def test_presets_are_the_paper_s():
    data = ImageData("cifar10")
    paper = image_config("paper", "cd", data)
    assert paper.network == ResNet(28, 10)
    assert image_config("paper", "dcd", ImageData("mnist")).network == ResNet(16, 8)
    assert (paper.optimization.rate, paper.optimization.beta2) == (2e-4, 0.99)
    assert image_config("fokker", "dcd", data, "cuda").compile
    for bad, near in ((("papr", "cd"), "paper"), (("paper", "dc"), "dcd")):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            image_config(*bad, data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return fit(config(), tmp_path_factory.mktemp("images") / "run").path


def test_the_commands(tmp_path, capsys, trained):
    run, picture, out = trained, tmp_path / "in.png", tmp_path / "out.png"
    main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert "clean, noisy and denoised" in page and "://" not in page
    main(["evaluate", str(run), "--json"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < line["rmse_0.3"] < 1
    save_png(picture, 0.3 * torch.randn(3, 30, 45))
    main(["denoise", str(run), str(picture), "--sigma", "0.3", "-o", str(out)])
    assert read_png(out).shape == (3, 30, 45)
    main(["denoise", str(run), str(picture), "--add-noise", "0.2", "-o", str(out)])
    assert "estimated" in capsys.readouterr().out
    assert (tmp_path / "out-noisy.png").exists()


def test_images_smaller_than_the_window_of_ssim(tmp_path):
    run = fit(config(data=ImageData(MINI, size=8)), tmp_path / "run")
    assert run.metrics[-1]["rmse_0.3"] > 0
    main(["report", str(run.path)])
    assert "<td>none</td>" in (run.path / "report.html").read_text()
    rows, pictures = denoising.judge(run, denoising.Part(MINI, "fokker", "dcd-limit"), count=2)
    assert {row["ssim"] for row in rows} == {None}
    assert {k: v.shape for k, v in pictures.items()} == dict.fromkeys(
        ("0.3", "0.6", "0.9"), (2, 1, 8, 8)
    )
    assert all(row["psnr"] > 0 for row in rows)


def test_denoise_says_what_is_wrong(tmp_path, capsys, trained):
    for args, line in (
        ([str(trained), str(tmp_path / "none.png")], "none.png"),
        ([str(tmp_path / "no-run"), "a.png"], "run folder"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["denoise", *args])
        assert stop.value.code == 2
        assert line in capsys.readouterr().err


def test_the_study(tmp_path):
    for method in ("dcd-limit", "reference"):
        part = denoising.Part(MINI, "fokker", method, steps=2, batch=2, quick=True)
        denoising.run(part, tmp_path, count=3)
    part = denoising.Part(MINI, "paper", "cd", steps=2, batch=2, quick=True)
    denoising.run(part, tmp_path, count=3)
    rows = denoising.collect(tmp_path)
    fields = "data method preset sigma rmse_mean rmse_of_mean psnr ssim rule train_images"
    for row in rows:
        assert set(fields.split()) <= set(row)
        assert row["train_images"] == 4
    assert {row["rule"] for row in rows if row["method"] == "cd"} == {
        "one-step", "given", "descent", "posterior"
    }  # fmt: skip
    chosen = denoising.best(rows)
    assert len(chosen) == 3 * 3 and not any(row["clipped"] for row in chosen)
    assert {row["seconds_to_paper"] for row in rows} == {None}  # a set of our own
    stamp = (tmp_path / "mnist-mini-paper-cd.json").stat().st_mtime_ns
    denoising.run(part, tmp_path, count=3)  # done already
    assert (tmp_path / "mnist-mini-paper-cd.json").stat().st_mtime_ns == stamp

    shutil.rmtree(tmp_path / "mnist-mini-paper-cd")  # the figure needs no weights
    height = []
    for kept in (True, False):
        if not kept:
            (tmp_path / "mnist-mini-paper-cd.npz").unlink()
        figures.denoised(tmp_path, MINI, None, tmp_path / "figure.png")
        height.append(read_png(tmp_path / "figure.png").shape[1])
    assert height[0] > height[1]  # a row less


def test_the_figure_shows_the_best_rule(tmp_path):
    part = denoising.Part(MINI, "paper", "cd", steps=2, batch=2, quick=True)
    run = fit(part.config, tmp_path / "run")
    rows, pictures = denoising.judge(run, part, count=2)
    own = [row for row in rows if abs(row["sigma"] - 0.6) < 0.01 and not row["clipped"]]
    rule = min(own, key=lambda row: row["rmse_mean"])["rule"]
    task = run.task()
    x = noisy(task.test(2, torch.device("cpu")), 0.6)
    generator = torch.Generator().manual_seed(0)
    out = denoise(run.energy, x, 0.6, task.level, rule, generator=generator)
    assert torch.equal(pictures["0.6"], to_uint8(out))


def test_seconds_to_the_row_of_the_paper(tmp_path):
    line = lambda seconds, *rmse: json.dumps(
        {"seconds": seconds} | {f"rmse_{s}": v for s, v in zip((0.3, 0.6, 0.9), rmse, strict=True)}
    )
    assert denoising.reached(tmp_path, "mnist") is None  # no such run
    lines = [line(1.0, None, 0.1, 0.1), line(2.0, 0.1, 0.1, 0.4), line(3.0, 0.165, 0.194, 0.3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, line(4.0, 0.1, 0.1, 0.1)]))
    assert denoising.reached(tmp_path, "mnist") == pytest.approx(3)
    assert denoising.reached(tmp_path, "cifar10") == pytest.approx(4)
    assert denoising.reached(tmp_path, "other") is None


def test_variants_of_the_divergence_train(tmp_path):
    for _, method in denoising.VARIANTS:
        part = denoising.Part(MINI, "paper", method, steps=2, batch=4, quick=True)
        denoising.run(part, tmp_path, count=2)
    assert {row["method"] for row in denoising.collect(tmp_path)} == {"dcd-stein", "dcd-path"}


@pytest.mark.slow
def test_parts_side_by_side(tmp_path):
    parts = [
        denoising.Part(MINI, "paper", method, steps=2, batch=2, quick=True)
        for method in ("cd", "dcd")
    ]
    broken = replace(parts[0], data=str(tmp_path / "nothing"))
    said = []
    with pytest.raises(ValueError, match="nothing-paper-cd that did not"):
        denoising.run_all([*parts, broken], tmp_path, count=2, jobs=2, say=said.append)
    assert {row["method"] for row in denoising.collect(tmp_path)} == {"cd", "dcd"}
    assert len(said) == 3 and sum("done" in line for line in said) == 2
