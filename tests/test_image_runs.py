r"""Training on images: the run, its report, pictures denoised, and the study."""

import json
import pytest
import shutil
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app.cli import main
from fokker.data import sources
from fokker.data.picture import read_png, save_png, to_uint8
from fokker.images.denoise import denoise, noisy
from fokker.objectives import Denoising, LevelDCD, Limit, LogUniform, Noisy
from fokker.objectives.levels import Hutchinson
from fokker.runs.config import Config, ImageData, Optimization, ResNet, UNet
from fokker.runs.presets import IMAGE_METHODS, image_config
from fokker.runs.toml import dumps, loads
from fokker.runs.training import Interrupted
from fokker.tasks.image import ImageTask
from fokker.tasks.trained import level_of
from pathlib import Path
from studies import denoising, figures

MINI = str(Path(__file__).parent / "data" / "mnist-mini")


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))


SMALL = (Noisy(level=0.3), ResNet(10, 1))  # soon traced


def config(
    objective=LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True),
    network=UNet(width=8, blocks=1),
    **changes,
):
    base = Config(
        ImageData(MINI),
        objective,
        network,
        Optimization(steps=3, batch=4, warmup=2),
        evaluate=3,
    )
    return replace(base, **changes)


def test_a_run_on_images_is_trained_judged_and_read(trained):
    run = load(trained)
    assert run.shape == (1, 28, 28)
    assert {"rmse_0.3", "rmse_0.6", "rmse_0.9"} <= set(run.metrics[-1])
    assert run.energy(torch.randn(2, 1, 28, 28), torch.tensor(0.5)).shape == (2,)


def test_it_resumes_to_the_same_weights_and_stops_by_the_clock(tmp_path):
    own = config(*SMALL)
    whole = fit(own, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(own, tmp_path / "parts", minutes=0.0)
    parts = fit(own, tmp_path / "parts", resume=True)
    for a, b in zip(whole.energy.parameters(), parts.energy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("objective", "network"),
    [
        (Noisy(level=0.3), ResNet(10, 1)),
        (LevelDCD(0.3, Hutchinson()), ResNet(10, 1, form="sum")),
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
    task = run.loaded()
    assert isinstance(task, ImageTask)
    clean = task.test(50, torch.device("cpu"))
    x = noisy(clean, 0.6)
    # the Gaussian of the same variance, which the network starts from
    start = 0.25 / (0.25 + 0.36) * x
    error = lambda y: float((y - clean).square().mean())
    assert error(run.energy.denoise(x, 0.6)) < 0.8 * error(start)


@pytest.mark.parametrize(
    "network",
    [
        UNet(8, 1, precision="bfloat16"),
        UNet(8, 1, "denoiser", precision="bfloat16"),
        ResNet(10, 1, precision="bfloat16"),
    ],
)
def test_a_run_trained_in_bfloat16_is_judged_in_float32_on_a_cpu(tmp_path, network, capsys):
    r"""Values in bfloat16 are off by nats: on a CPU every command reads the weights in float32."""
    objective = LevelDCD(LogUniform(0.1, 1.0), Limit(), conditional=True)
    if isinstance(network, ResNet):
        objective = Noisy(level=0.3)
    elif network.form == "denoiser":
        objective = Denoising(LogUniform(0.1, 1.0))
    steps = Optimization(steps=2, batch=4)
    run = fit(config(objective, network, optimization=steps, evaluate=2), tmp_path / "run")
    wide = replace(run.config, network=replace(network, precision="float32"))
    model = wide.build(run.shape)
    model.load_state_dict(run.energy.state_dict())
    x = torch.randn(3, *run.shape)
    level = None if not isinstance(network, ResNet) else 0.3
    clean = denoise(model, x, 0.5, level)
    assert torch.equal(denoise(run.energy, x, 0.5, level), clean)
    assert torch.equal(denoise(run.energy_on("cpu"), x, 0.5, level), clean)
    narrow = run.energy.cast("bfloat16")
    assert not torch.equal(denoise(narrow, x, 0.5, level), clean)
    assert torch.equal(denoise(run.energy, x, 0.5, level), clean)  # the original is as it was
    for a, b in zip(narrow.parameters(), run.energy.parameters(), strict=True):
        assert a is b
    main(["evaluate", str(run.path), "--json"])
    line = json.loads(capsys.readouterr().out)
    exact = run.loaded().judge(model, torch.device("cpu"))
    assert line["rmse_0.3"] == exact["rmse_0.3"] != run.judged["rmse_0.3"]


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
    main(["denoise", str(picture), "--energy", str(run), "--sigma", "38", "-o", str(out)])
    assert read_png(out).shape == (3, 30, 45)
    main(["denoise", str(picture), "--energy", str(run), "--add-noise", "25", "-o", str(out)])
    assert "estimated by wavelets" in capsys.readouterr().out
    assert (tmp_path / "out-noisy.png").exists()


def test_images_smaller_than_the_window_of_ssim(tmp_path):
    run = fit(config(*SMALL, data=ImageData(MINI, size=8)), tmp_path / "run")
    assert run.metrics[-1]["rmse_0.3"] > 0
    main(["report", str(run.path)])
    assert "<td>none</td>" in (run.path / "report.html").read_text()
    rows, pictures = denoising.judge(run, denoising.Cell(MINI, "fokker", "dcd-limit"), count=2)
    assert {row["ssim"] for row in rows} == {None}
    assert {k: v.shape for k, v in pictures.items()} == dict.fromkeys(
        ("0.3", "0.6", "0.9"), (2, 1, 8, 8)
    )
    assert all(row["psnr"] > 0 for row in rows)


def refused(capsys, *args):
    r"""Returns the one line that a command refuses its arguments with."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_denoise_says_what_is_wrong(tmp_path, capsys, trained):
    assert "none.png" in refused(capsys, "denoise", tmp_path / "none.png", "--energy", trained)
    assert "run folder" in refused(capsys, "denoise", "a.png", "--energy", tmp_path / "no-run")
    picture, out = tmp_path / "in.png", tmp_path / "out.png"
    save_png(picture, 0.3 * torch.randn(1, 30, 45))
    save_png(thin := tmp_path / "thin.png", torch.zeros(1, 9, 1))
    say = lambda *options: refused(
        capsys, "denoise", picture, "--energy", trained, "-o", out, *options
    )
    line = say("--sigma", "nan")
    assert "expected sigma to be a finite number of 255 shades, from 0.5 to 255, got nan" in line
    for bad in ("0", "-1", "inf", "0.3"):  # the last is that of pixels in [-1, 1]
        line = say("--add-noise", bad)
        assert "expected add_noise to be a finite number of 255 shades" in line
    assert "of pixels in [-1, 1] 127.5 s" in line
    assert "expected tile between 16 and 8192, got 4" in say("--tile", "4")
    assert "expected rule to be one of one-step, given" in say("--rule", "guess")
    assert "expected no rule for" in say("--rule", "descent")
    line = refused(capsys, "denoise", thin, "--energy", trained, "-o", out)
    assert "thin.png: expected 2 pixels a side or more" in line
    # before any work is done
    line = refused(
        capsys, "denoise", picture, "--energy", "no-run", "-o", tmp_path / "no" / "out.png"
    )
    assert "no/out.png: expected a folder" in line
    assert "x.jpg: expected a name" in refused(
        capsys, "denoise", picture, "--energy", "no", "-o", "x.jpg"
    )
    assert not out.exists()


def test_denoise_does_not_write_over_the_picture(tmp_path, capsys, trained):
    picture, link = tmp_path / "a-noisy.png", tmp_path / "link.png"
    save_png(picture, 0.3 * torch.randn(1, 30, 45))
    link.symlink_to(picture)
    content = picture.read_bytes()
    for options in (
        ["-o", picture],
        ["-o", link],
        ["-o", tmp_path / "a.png", "--add-noise", "100"],
    ):
        line = refused(capsys, "denoise", picture, "--energy", trained, *options)
        assert "expected to write to another file than the picture" in line
    assert picture.read_bytes() == content


@pytest.mark.filterwarnings("always")  # one line each, and no error
def test_denoise_warns_of_levels_that_were_not_trained_on(tmp_path, capsys, trained):
    save_png(picture := tmp_path / "in.png", 0.3 * torch.randn(1, 8, 8))
    command = ["denoise", str(picture), "--energy", str(trained), "-o", str(tmp_path / "o.png")]
    command.append("--sigma")
    for sigma, count in (("38", 0), ("6", 1), ("200", 1)):
        main([*command, sigma])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == count
        assert all(
            f"trained on, 12.8 to 127 of 255, got {sigma}; the result" in line for line in lines
        )


def test_denoise_with_an_energy_of_one_level(tmp_path, capsys):
    one = config(Noisy(level=0.3), network=ResNet(10, 1), data=ImageData(MINI, size=9))
    run = fit(one, tmp_path / "run")  # of an odd side
    save_png(picture := tmp_path / "in.png", 0.3 * torch.randn(1, 8, 11))
    seen, command = set(), ["denoise", str(picture), "--energy", str(run.path), "--sigma", "76"]
    for rule in (None, "given", "descent", "posterior"):
        options = [] if rule is None else ["--rule", rule]
        out = tmp_path / f"{rule}.png"
        main([*command, "-o", str(out), *options])
        assert f"by the rule {rule or 'one-step'} from level 38.2" in capsys.readouterr().out
        assert read_png(out).shape == (1, 8, 11)
        seen.add(out.read_bytes())
    assert len(seen) > 1


def test_training_says_what_is_wrong_before_it_starts(tmp_path, capsys):
    out = tmp_path / "run"
    say = lambda *options: refused(
        capsys, "train", "denoising", "--data", MINI, "--out", out, *options
    )
    paper = ("--preset", "paper", "--objective", "cd")
    assert "expected a preset with the setting width for --width, got ResNet" in say(
        *paper, "--width", "8"
    )
    assert "at --form, one of pool, sum, square, got 'inner'" in say(*paper, "--form", "inner")
    assert "at --form, one of inner, square, pool, sum, denoiser, got 'x'" in say("--form", "x")
    assert "no form for reference" in say("--objective", "reference", "--form", "sum")


def test_faults_of_the_data_are_found_before_training(tmp_path):
    few, out = tmp_path / "few", tmp_path / "run"
    few.mkdir()
    for name in ("b.png", "c.png"):  # by their hashes both are to train on
        save_png(few / name, torch.zeros(1, 8, 8))
    with pytest.raises(ValueError, match="expected images in test, got none of its 2"):
        fit(config(data=ImageData(str(few))), out)
    with pytest.raises(ValueError, match="sides that are multiples of 4, got 30x30; a size"):
        fit(config(data=ImageData(MINI, size=30)), out)
    assert not out.exists()


def test_grey_images_are_not_judged_on_colour(tmp_path):
    for split, channels in (("train", 1), ("test", 3)):
        (tmp_path / split).mkdir()
        for i in range(3):
            save_png(tmp_path / split / f"{i}.png", torch.rand(channels, 32, 32) * 2 - 1)
    own = replace(config(*SMALL), data=ImageData(str(tmp_path)))
    with pytest.raises(ValueError, match=r"test images like those .*, 32x32 grey, got 32x32 col"):
        fit(own, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", ["hub:some/where", "hub:some/where:x", "mnist", "svhn"])
def test_a_configuration_reaches_no_network_unasked(
    tmp_path, monkeypatch, capsys, trained, source
):
    fetched = []

    def fetch(*args):
        fetched.append(args)
        raise ValueError("expected a network, got none")

    monkeypatch.setattr(sources, "fetch", fetch)
    monkeypatch.delenv("FOKKER_DATA", raising=False)
    shutil.copytree(trained, tmp_path / "run")
    own = tmp_path / "run/config.toml"
    own.write_text(dumps(replace(load(trained).config, data=ImageData(source))))
    for command in ("evaluate", "report"):
        line = refused(capsys, command, str(tmp_path / "run"))
        assert "on this machine, got none of" in line and "--fetch" in line
        assert not fetched
        assert "expected a network" in refused(capsys, command, str(tmp_path / "run"), "--fetch")
        assert fetched.pop()


def test_a_set_that_lies_here_is_not_absent(tmp_path, monkeypatch):
    monkeypatch.delenv("FOKKER_DATA", raising=False)
    assert ImageData("hub:a/b").absent() == "hub:a/b"
    assert ImageData("mnist").absent() == "ylecun/mnist"
    assert ImageData("celeba32").absent() is None  # on no hub
    assert ImageData(MINI).absent() is None
    for place in ("a--b", "mnist"):
        folder = tmp_path / "cache/hub" / place
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            (folder / f"{split}-00000-of-00001.parquet").touch()
    assert ImageData("hub:a/b").absent() is None and ImageData("mnist").absent() is None
    (tmp_path / "svhn").mkdir()
    assert ImageData("svhn", data_dir=str(tmp_path)).absent() is None


def test_the_form_of_the_energy_is_an_option(monkeypatch):
    seen = []

    def fit(config, *rest, **options):
        seen.append(config)
        raise ValueError("enough")

    monkeypatch.setattr("fokker.app.train.fit", fit)
    with pytest.raises(SystemExit):
        main(["train", "denoising", "--data", MINI, "--form", "sum"])
    assert seen[0].network.form == "sum"


def test_the_report_counts_its_images(tmp_path):
    few = tmp_path / "few"
    for split in ("train", "test"):
        (few / split).mkdir(parents=True)
        save_png(few / split / "0.png", torch.zeros(1, 8, 8))
    run = fit(config(*SMALL, data=ImageData(str(few))), tmp_path / "run")
    main(["report", str(run.path)])
    assert "Errors of this one test image" in (run.path / "report.html").read_text()


def test_a_study_is_not_mixed_with_another(tmp_path, capsys):
    part = denoising.Cell(MINI, "fokker", "reference", steps=1, batch=2, quick=True)
    denoising.run(part, tmp_path, count=2)
    denoising.run(part, tmp_path, count=2)  # done
    for other, count, line in (
        (replace(part, quick=False, steps=3), 2, "train_images 6, got 2; give another --out"),
        (part, 3, "images 3, got 2; give another --out"),
    ):
        with pytest.raises(ValueError, match=line):
            denoising.run(other, tmp_path, count)
    with pytest.raises(ValueError, match="expected images to be an integer >= 1, got 0"):
        denoising.run(part, tmp_path / "other", 0)
    study = ("reproduce", "denoising", "--data", MINI)
    assert "sets of different names" in refused(capsys, *study, f"{MINI}/")
    assert "expected images to be an integer" in refused(capsys, *study, "--images", "-3")
    assert "expected jobs to be an integer" in refused(capsys, *study, "--jobs", "0")


def test_a_slice_of_the_study_has_a_folder_of_its_own(tmp_path, monkeypatch):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(denoising, "run", lambda part, out, *_: seen.append(out))
    for options in ([], ["--quick"]):
        with pytest.raises(SystemExit):  # there is nothing to collect
            main(["reproduce", "denoising", "--data", MINI, *options])
    assert {str(out) for out in seen} == {"runs/study-denoising", "runs/study-denoising-quick"}


def test_the_study(tmp_path):
    for method in ("dcd-limit", "reference"):
        part = denoising.Cell(MINI, "fokker", method, steps=2, batch=2, quick=True)
        denoising.run(part, tmp_path, count=3)
    part = denoising.Cell(MINI, "paper", "cd", steps=2, batch=2, quick=True)
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
    part = denoising.Cell(MINI, "paper", "cd", steps=2, batch=2, quick=True)
    run = fit(part.config, tmp_path / "run")
    rows, pictures = denoising.judge(run, part, count=2)
    own = [row for row in rows if abs(row["sigma"] - 0.6) < 0.01 and not row["clipped"]]
    rule = min(own, key=lambda row: row["rmse_mean"])["rule"]
    task = run.loaded()
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


@pytest.mark.slow
def test_variants_of_the_divergence_train(tmp_path):
    for preset, method in denoising.VARIANTS:
        part = denoising.Cell(MINI, preset, method, steps=2, batch=4, quick=True)
        denoising.run(part, tmp_path, count=2)
    rows = denoising.collect(tmp_path)
    assert {(row["preset"], row["method"]) for row in rows} == set(denoising.VARIANTS)
    assert {row["form"].partition("(")[0] for row in rows} == {"Path", "Bridge", "Central"}


@pytest.mark.slow
def test_parts_side_by_side(tmp_path):
    parts = [
        denoising.Cell(MINI, "paper", method, steps=2, batch=2, quick=True)
        for method in ("cd", "dcd")
    ]
    broken = replace(parts[0], data=str(tmp_path / "nothing"))
    said = []
    with pytest.raises(ValueError, match="nothing-paper-cd that did not"):
        denoising.run_all([*parts, broken], tmp_path, count=2, jobs=2, say=said.append)
    assert {row["method"] for row in denoising.collect(tmp_path)} == {"cd", "dcd"}
    assert len(said) == 3 and sum("done" in line for line in said) == 2
