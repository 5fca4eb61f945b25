r"""Energies to generate from: presets, samples, previews, likelihood, and what is shipped."""

import json
import numpy as np
import pytest
import shutil
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app.cli import main
from fokker.app.guide import WEIGHT, Guidance
from fokker.app.train import TrainGeneration
from fokker.compute.ranks import Ranks
from fokker.data.images import Images
from fokker.data.picture import read_png, to_float
from fokker.derivatives import Hutchinson
from fokker.energies import Energy
from fokker.images.denoise import noisy
from fokker.images.generate import Sampling, generate
from fokker.images.likelihood import bits_of, residuals_of
from fokker.images.quality import described, judge_images, reference_of
from fokker.metrics import Extractor, fid_between, fokker_planck_residual
from fokker.objectives import (
    Denoising,
    Grid,
    LevelDCD,
    Limit,
    LogNormal,
    Noisy,
    Preserving,
    TimeScore,
    Uniform,
    Wide,
)
from fokker.objectives import levels as forms
from fokker.runs import shipped
from fokker.runs.checkpoints import Checkpoint
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.checkpoints import write as write_checkpoint
from fokker.runs.config import Config, ImageData, Optimization, ResNet, UNet
from fokker.runs.presets import GENERATION_METHODS, LEVELS, SIZES, generation_config
from fokker.runs.toml import dumps, loads
from fokker.samplers import Euler, Heun, karras
from fokker.tasks.trained import check_drawable, drawable
from pathlib import Path
from studies import results

MINI = str(Path(__file__).parent / "data" / "mnist-mini")
LIMIT = LevelDCD(LogNormal(), Limit(), conditional=True, weight="edm")
FAST = ("--steps", "4", "--sigma-min", "0.05", "--sigma-max", "20")
QUICK = Sampling(steps=4, sigma_min=0.05, sigma_max=20.0)


@pytest.fixture(autouse=True)
def plain(double, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as for a user
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOKKER_INCEPTION", raising=False)


def config(objective=LIMIT, **changes):
    base = Config(
        ImageData(MINI, size=12),
        objective,
        UNet(width=8, blocks=1),
        Optimization(steps=4, batch=4, warmup=2),
        evaluate=2,
        preview=4,
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fokker.tasks.image.Heun", lambda: Heun(karras(3)))  # of a preview
        return fit(config(), tmp_path_factory.mktemp("generation") / "run").path


def fails(args, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in args])
    assert stop.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()  # after what is said of licences
    return line


@pytest.mark.parametrize(
    ("preset", "method"), [(p, m) for p, methods in GENERATION_METHODS.items() for m in methods]
)
def test_every_preset_has_a_gradient(preset, method):
    full = generation_config(preset, method, ImageData(MINI), "small")
    assert loads(dumps(full)) == full
    net = replace(full.network, width=8).build((1, 4, 4))
    full.objective(net, torch.randn(2, 1, 4, 4)).loss.backward()
    slopes = {k: p.grad for k, p in net.named_parameters()}
    head = [g for k, g in slopes.items() if k.endswith("head.weight")]  # the rest wakes after it
    assert len(head) == 1 and head[0] is not None and bool(head[0].any())


def test_the_presets():
    data = ImageData("celeba32", flip=True)
    paper = generation_config("paper", "dcd", data)
    assert paper.network == UNet(96, 2, "sum")
    assert isinstance(paper.objective, LevelDCD)
    assert (paper.objective.level, paper.objective.form) == (
        LogNormal(-1.2, 1.2),
        forms.Hutchinson(),
    )
    ours = generation_config("fokker", "dcd-limit", data, "small", "cuda", time=0.5)
    assert ours.network == UNet(48, 1, "inner", precision="bfloat16") and ours.compile
    assert isinstance(ours.objective, LevelDCD) and ours.objective.ties == (TimeScore(0.5),)
    assert paper.optimization.muon is None and ours.optimization.muon == pytest.approx(0.01)
    for bad, near in (
        (("papr", "dcd"), "'paper'"),
        (("paper", "dcd-limt"), "'dcd-limit'"),
        (("fokker", "dcd", data, "15n"), "'15m'"),
    ):
        with pytest.raises(ValueError, match=f"did you mean {near}"):
            generation_config(*bad, *([data] if len(bad) == 2 else []))
    with pytest.raises(ValueError, match="time score only of an energy"):
        generation_config("fokker", "reference", data, time=1.0)


def test_sizes():
    count = {}
    for size in SIZES:
        with torch.device("meta"):
            net = generation_config("fokker", "dcd", ImageData(), size).network.build((3, 32, 32))
        count[size] = sum(p.numel() for p in net.parameters())
    assert count["small"] < count["15m"] < count["large"]
    assert 2 * 2 * count["small"] < 12 * 2**20  # two of them in bfloat16 can be shipped


def test_previews_follow_the_evaluations(trained):
    assert [p.name for p in sorted((trained / "previews").iterdir())] == [
        "step-00000002.png", "step-00000004.png"
    ]  # fmt: skip
    assert read_png(trained / "previews/step-00000004.png").shape == (1, 26, 26)
    main(["report", str(trained)])
    page = (trained / "report.html").read_text()
    assert "Samples after step 4" in page and "Samples after step 2" in page
    with pytest.raises(ValueError, match="previews only of a U-Net"):
        config(Noisy(), network=ResNet(10, 1))


class Bell(Energy):
    r"""N(0, s²) with noise, normalized: an energy of every level in closed form."""

    def __init__(self, s: float = 0.5) -> None:
        super().__init__()
        self.s = s

    def forward(self, x, sigma):
        v = torch.as_tensor(self.s**2 + sigma**2)
        d = x[0].numel()
        return x.flatten(1).square().sum(1) / (2 * v) + d / 2 * torch.log(2 * torch.pi * v)


@pytest.mark.parametrize("extra", [{}, {"churn": 2.0}, {"corrector": 1}], ids=str)
def test_images_of_a_seed_do_not_depend_on_the_batch(extra):
    energy, shape, sampling = Bell(), (1, 4, 4), Sampling(**extra)
    whole = generate(energy, 5, shape, sampling, seed=3)
    parts = generate(energy, 5, shape, sampling, seed=3, batch=2)
    later = generate(energy, 2, shape, sampling, seed=3, first=3)
    near = lambda a, b: (a.int() - b.int()).abs().max() <= 1  # the last bit may round
    assert near(whole.images, parts.images) and near(whole.images[3:], later.images)
    assert not near(whole.images, generate(energy, 5, shape, sampling, seed=4).images)
    assert whole.images.dtype == torch.uint8 and whole.images.shape == (5, 1, 4, 4)
    many = generate(energy, 500, shape, sampling, seed=0)
    assert (many.acceptance is None) is (not sampling.corrector)
    if many.acceptance is not None:
        assert abs(many.acceptance - 0.574) < 0.15  # tuned
    pixels = many.images / 127.5 - 1
    inside = pixels[(many.images > 0) & (many.images < 255)]
    exact = torch.distributions.Normal(0.0, 0.5)
    share = 1 - 2 * float(exact.cdf(torch.tensor(-1.0)))
    assert abs(len(inside) / pixels.numel() - share) < 0.02


def test_settings_reach_the_flow():
    flow = Sampling(steps=7, sigma_min=0.01, sigma_max=50.0, churn=3.0, corrector=2).flow(1000)
    assert isinstance(flow, Heun) and flow.levels == karras(7, 0.01, 50.0)
    assert flow.churn is not None and flow.churn.amount == pytest.approx(3.0)
    assert flow.corrector is not None and flow.corrector.transitions == 2
    assert flow.corrector.sampler.step_size == pytest.approx(0.3)
    assert isinstance(Sampling("euler").flow(1), Euler)
    for own in ({"churn": 2.0}, {"corrector": 1}):
        ((name, value),) = own.items()
        with pytest.raises(ValueError, match=f"expected {name} 0 with multistep.* got {value}"):
            Sampling("multistep", **own)
    for bad in ({"steps": 1}, {"sigma_min": 90.0}, {"churn": -1.0}, {"corrector": -1}):
        with pytest.raises(ValueError, match="expected"):
            Sampling(**bad)


def test_the_sample_command(tmp_path, capsys, trained, monkeypatch):
    monkeypatch.setattr("fokker.images.generate.WARMUP", 2)  # that tuning works is told elsewhere
    grid, array = tmp_path / "grid.png", tmp_path / "x.npy"
    main(["sample", str(trained), "-n", "4", "-o", str(grid), *FAST])
    assert read_png(grid).shape == (1, 26, 26)
    assert "7 evaluations per image" in capsys.readouterr().out
    main(["sample", str(trained), "-n", "4", "-o", str(array), "--batch", "3", *FAST])
    x = np.load(array)
    assert x.dtype == np.uint8 and x.shape == (4, 1, 12, 12)
    again = ((read_png(grid)[0, :12, :12] + 1) * 127.5).round().numpy()
    assert np.abs(again - x[0, 0]).max() <= 1
    assert "end in .png or .npy" in fails(["sample", trained, "-o", "x.csv"], capsys)
    assert "expected n" in fails(["sample", trained, "-n", "0"], capsys)
    assert "churn" in fails(["sample", trained, "--churn", "-1"], capsys)
    assert "seed" in fails(["sample", trained, "--seed", str(2**64), *FAST], capsys)
    last = str(2**63 - 1)
    main([
        "sample",
        str(trained),
        "-n",
        "1",
        "-o",
        str(grid),
        "--seed",
        last,
        "--corrector",
        "1",
        *FAST,
    ])


def test_guidance_at_the_command_line(tmp_path, capsys, trained, monkeypatch):
    worse = Path(shutil.copytree(trained, tmp_path / "worse"))
    saved = read_checkpoint(worse)
    write_checkpoint(worse, saved._replace(average={k: 0.8 * v for k, v in saved.average.items()}))

    def drawn(*options):
        main(["sample", str(trained), "-n", "1", "-o", str(tmp_path / "x.npy"), *FAST, *options])
        return np.load(tmp_path / "x.npy").astype(int)

    by = ("--guide", str(worse))
    plain, one, some, more = drawn(), drawn(*by, "--guidance", "1"), drawn(*by), drawn(*by, "--guidance", "3")  # fmt: skip
    assert np.abs(one - plain).max() <= 1  # 1 is no guidance
    assert "7 evaluations per image and as many of the guide" in capsys.readouterr().out
    assert 0 < np.abs(some - plain).mean() < np.abs(more - plain).mean()  # 1.5, and 3
    sample = ["sample", trained, *FAST]
    assert "from 1 to 1000, got 0.5" in fails([*sample, *by, "--guidance", "0.5"], capsys)
    assert "expected --guide with --guidance, got" in fails([*sample, "--guidance", "2"], capsys)
    assert "a guide for images of shape (1, 12, 12), got" in fails(
        [*sample, "--guide", "cifar10"], capsys
    )
    monkeypatch.setattr("fokker.tasks.ImageTask.judge", None)  # not called
    evaluate = ["evaluate", trained, *FAST]
    assert "expected --fid with --guide" in fails([*evaluate, *by], capsys)
    assert "from 1 to 1000, got nan" in fails([*evaluate, "--fid", "8", *by, "--guidance", "nan"], capsys)  # fmt: skip


def test_a_place_that_cannot_be_written_is_told_before_drawing(
    tmp_path, capsys, trained, monkeypatch
):
    monkeypatch.setattr("fokker.images.generate.generate", None)  # not called
    for out in (tmp_path / "none" / "x.png", tmp_path / "folder.npy"):
        (tmp_path / "folder.npy").mkdir(exist_ok=True)
        assert "file in a folder that exists" in fails(["sample", trained, "-o", out], capsys)


def test_a_guide_of_other_images_is_noticed():
    run = load("cifar10")
    guide, weight = Guidance("cifar10").find(run) or (None, 0)
    assert guide is not None and weight == WEIGHT
    with pytest.warns(UserWarning, match="of the same images, cifar10, got .*, one of celeba32"):
        Guidance("celeba32").find(run)


def test_what_cannot_be_sampled_says_so(tmp_path, capsys, trained):
    def changed(name, change):
        folder = Path(shutil.copytree(trained, tmp_path / name))
        saved = read_checkpoint(folder)
        write_checkpoint(folder, saved._replace(average=change(saved.average)))
        return folder

    start = config().build((1, 12, 12)).state_dict()
    untrained = changed("untrained", lambda average: start)
    assert "as it was started" in fails(["sample", untrained, *FAST], capsys)
    nan = changed("nan", lambda average: {k: v * torch.nan for k, v in average.items()})
    assert "did not diverge" in fails(["sample", nan, *FAST], capsys)
    wild = changed(
        "wild", lambda average: {k: 30 * torch.randn_like(v) for k, v in average.items()}
    )
    assert "did not diverge" in fails(["sample", wild, *FAST], capsys)

    one = config(Noisy(level=0.3), network=ResNet(10, 1), preview=0)
    weights = one.build((1, 12, 12)).state_dict()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.toml").write_text(dumps(one))
    assert "has none yet" in fails(["sample", tmp_path / "one"], capsys)
    write_checkpoint(tmp_path / "one", Checkpoint(1, (1, 12, 12), weights, weights, {}))
    assert "at every noise level" in fails(["sample", tmp_path / "one", *FAST], capsys)


def test_bits_of_a_gaussian():
    generator = torch.Generator().manual_seed(0)
    x = (0.5 * torch.randn(200, 1, 4, 4, generator=generator)).clamp(-1, 1)
    pixels = ((x + 1) * 127.5).round().to(torch.uint8)
    mean, error = bits_of(Bell(), pixels, pixels)
    nats = -torch.distributions.Normal(0.0, 0.5).log_prob(pixels / 127.5 - 1).mean()
    assert abs(mean - (float(nats) / np.log(2) + np.log2(127.5))) < 0.02
    assert 0 < error < 0.05
    with pytest.raises(ValueError, match="got a denoiser"):
        bits_of(UNet(8, 1, "denoiser").build((1, 8, 8)), pixels, pixels)
    with pytest.raises(ValueError, match="two images or more"):
        bits_of(Bell(), pixels[:1], pixels)


def test_residuals_of_a_gaussian():
    r"""Zero for the exact energy. With noise that counts half, E = |x|²/2s and s = ¼ + τ/2, it is
    R = |x|²/4s² − |x|²/2s² + D/2s."""
    generator = torch.Generator().manual_seed(0)
    x = (0.3 * torch.randn(400, 1, 4, 4, generator=generator)).clamp(-1, 1)
    pixels = ((x + 1) * 127.5).round().to(torch.uint8)
    assert all(abs(v) < 1e-6 for v in residuals_of(Bell(), pixels).values())

    class Slow(Energy):
        def forward(self, x, sigma):
            return x.square().sum((1, 2, 3)) / (2 * (0.25 + sigma**2 / 2))

    for sigma, found in residuals_of(Slow(), pixels, batch=150).items():
        k = -1 / (4 * (0.25 + sigma**2 / 2) ** 2)
        size = noisy(to_float(pixels), sigma).square().sum((1, 2, 3))
        assert found == pytest.approx(float((sigma**2 * k * size).var()), rel=1e-4)
    with pytest.raises(ValueError, match="got a denoiser"):
        residuals_of(UNet(8, 1, "denoiser").build((1, 8, 8)), pixels)
    with pytest.raises(ValueError, match="batch to be an integer >= 3, got 2"):
        residuals_of(Bell(), pixels, batch=2)


def test_the_noise_of_probes_is_not_in_the_residual():
    r"""R is constant over points, and its estimate is not: E is quadratic and not diagonal."""
    s = 0.2 * torch.ones(16, 16) + torch.eye(16)  # the covariance of the data

    class Joint(Energy):
        def forward(self, x, sigma):
            tau = sigma.square().expand(len(x))[:, None, None]
            c = s + tau * torch.eye(16)
            flat = x.flatten(1)
            solved = torch.linalg.solve(c, flat[:, :, None])[:, :, 0]
            return (flat * solved).sum(1) / 2 + torch.logdet(c) / 2

    pixels = torch.randint(256, (300, 1, 4, 4), dtype=torch.uint8)
    one = fokker_planck_residual(Joint(), to_float(pixels), 0.3, Hutchinson(1)).values
    noise = 0.3**4 * float(one.var())
    assert noise > 1e-4  # that of the probes alone, as R does not vary
    assert abs(residuals_of(Joint(), pixels)[0.3]) < 5 * noise / 300**0.5


class Moments:
    r"""A stand-in for Inception, for what surrounds it: eight numbers of each image."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), (2, 4)).flatten(1)


def test_fewer_images_than_ranks_are_refused():
    pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="one image a rank or more to share out, 3, got 2"):
        described(pixels, Extractor(Moments(), "0123"), ranks=Ranks(size=3))


def test_the_reference_is_computed_once():
    net = Moments()
    extractor = Extractor(net, "0123")
    pixels = torch.randint(256, (30, 1, 8, 8), dtype=torch.uint8)
    images = Images(pixels, "noise", "train")
    first = reference_of(images, extractor)
    calls = net.calls
    again = reference_of(images, extractor)
    assert net.calls == calls  # from the cache
    assert first.statistics.mean.dtype == torch.float64 and first.statistics.count == 30
    assert torch.equal(first.statistics.scatter, again.statistics.scatter)
    other = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8)
    fid, kid = judge_images(other, again, extractor)
    direct = fid_between(other, pixels, extractor)
    assert fid.value == pytest.approx(direct.value) and fid.counts == (40, 30)
    assert kid is not None and kid.subset == 30
    reference_of(Images(other, "noise", "train"), extractor)  # another set of the same name
    assert net.calls > calls


@pytest.mark.slow
def test_evaluate(capsys, trained, monkeypatch):
    main([
        "evaluate",
        str(trained),
        "--bpd",
        "3",
        "--json",
        "--sigma-min",
        "0.9",
        "--sigma-max",
        "1.1",
    ])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < line["bpd"] < 20 and line["bpd_n"] == 3
    assert "Inception" in fails(["evaluate", trained, "--fid", "8", *FAST], capsys)
    monkeypatch.setattr(
        "fokker.tasks.figures.load_inception", lambda *args: Extractor(Moments(), "0123")
    )
    main(["evaluate", str(trained), "--fid", "8", "--guide", str(trained), *FAST])
    said = capsys.readouterr().out
    assert "weight 1.5" in said and "7 evaluations per image and as many of the guide" in said
    main(["evaluate", str(trained), "--fid", "8", "--residual", "4", *FAST])
    said = capsys.readouterr().out
    assert "Fokker-Planck residual" in said and "4 noisy test images" in said and "at 0.9" in said
    assert "not those of 2015-12-05" in said
    assert "convention tf" in said and "FID" in said and "KID" in said and "8 and" in said


@pytest.mark.parametrize("count", ["-3", "0", "1"])
@pytest.mark.parametrize("option", ["--fid", "--bpd", "--residual"])
def test_counts_are_checked_before_anything_is_computed(
    capsys, trained, option, count, monkeypatch
):
    monkeypatch.setattr("fokker.tasks.ImageTask.judge", None)  # not called
    said = fails(["evaluate", trained, option, count], capsys)
    assert f"expected {option[2:]} to be an integer >= 2, got {count}" in said


def test_a_folder_of_images_does_not_hide_a_shipped_energy(tmp_path, trained, monkeypatch):
    root = tmp_path / "weights"
    shipped.export(load(trained), "mini", root)
    monkeypatch.setattr(shipped.names, "__defaults__", (root,))
    monkeypatch.setattr(shipped.read, "__defaults__", (root,))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    assert load("mini").path == root / "mini"
    shutil.copytree(trained, tmp_path / "mini", dirs_exist_ok=True)
    assert load("mini").path == Path("mini")  # a run comes first


def test_a_run_is_shipped(tmp_path, capsys, trained, monkeypatch):
    root = tmp_path / "weights"
    (tmp_path / "note.md").write_text("FID: not measured.")
    main(["export", str(trained), "mini", "--to", str(root), "--note", str(tmp_path / "note.md")])
    assert "MiB" in capsys.readouterr().out
    monkeypatch.setattr(shipped, "names", lambda root=root: ["mini"])
    monkeypatch.setattr(shipped.read, "__defaults__", (root,))
    run = load("mini")
    assert run.step == 4 and run.shape == (1, 12, 12)
    x, sigma = torch.randn(2, 1, 12, 12), torch.tensor(0.5)
    whole = load(trained)
    assert torch.allclose(run.energy(x, sigma), whole.energy(x, sigma), rtol=1e-3, atol=0.5)
    for a, b in zip(run.energy.parameters(), whole.energy.parameters(), strict=True):
        assert torch.equal(a, b.bfloat16().float())
    texts = "".join(p.read_text() for p in root.glob("mini/*.*") if p.suffix != ".safetensors")
    assert str(Path(MINI).parent) not in texts  # no path of this machine
    assert "not measured" in (root / "mini/card.md").read_text()
    main(["sample", "mini", "-n", "2", "-o", str(tmp_path / "x.png"), *FAST])
    assert "exists" in fails(["export", trained, "mini", "--to", root], capsys)
    assert "lower-case" in fails(["export", trained, "../x", "--to", root], capsys)


@pytest.mark.parametrize("file", ["model.safetensors", "config.toml", "card.md", "card.json"])
def test_a_flipped_byte_is_seen(tmp_path, trained, file):
    folder = shipped.export(load(trained), "mini", tmp_path)
    assert shipped.names(tmp_path) == ["mini"]
    assert shipped.read("mini", tmp_path).step == 4
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file}: expected the file whose checksum"):
        shipped.read("mini", tmp_path)
    (folder / file).unlink()
    with pytest.raises(ValueError, match="checksum"):
        shipped.read("mini", tmp_path)


def test_other_names_are_told(tmp_path, capsys, trained):
    assert "one of celeba32, cifar10, photographs, got nothing" in fails(
        ["sample", "nothing"], capsys
    )
    shipped.export(load(trained), "mini", tmp_path)
    with pytest.raises(ValueError, match="one of mini, got maxi"):
        shipped.read("maxi", tmp_path)


def test_three_energies_are_shipped_and_small():
    assert shipped.names() == ["celeba32", "cifar10", "photographs"]
    assert sum(path.stat().st_size for path in shipped.ROOT.rglob("*")) < 14 * 2**20
    for name in ("celeba32", "photographs"):
        assert "non-commercial" in (shipped.ROOT / name / "card.md").read_text()


DRAWN = [name for name in shipped.names() if drawable(shipped.read(name).config.objective)]


@pytest.mark.parametrize("name", DRAWN)
def test_the_card_of_what_is_shipped_says_what_was_measured(name):
    rows = results.load(Path(__file__).parents[1] / "results" / "generation.json")["rows"]
    step = shipped.read(name).step
    (row,) = (
        r
        for r in rows
        if (r["data"], r["size"], r["kind"], r["step"]) == (name, "small", "final", step)
    )
    card = (shipped.ROOT / name / "card.md").read_text()
    assert f"**FID**: {row['fid']:.2f} with {row['fid_n']:,} samples" in card
    assert f"KID {1000 * row['kid']:.1f}e-3" in card


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_shipped_is_whole(name):
    run = shipped.read(name)
    check_drawable(run)
    assert generate(run.energy, 1, run.shape, QUICK).images.shape == (1, *run.shape)


def test_what_is_not_trained_on_pure_noise_is_not_drawn_from(capsys, tmp_path):
    assert set(DRAWN) == {"celeba32", "cifar10"}
    said = fails(["sample", "photographs", "-o", str(tmp_path / "x.png")], capsys)
    assert "noise levels up to 5 or more to draw from" in said and "trained up to 0.784" in said
    card = (shipped.ROOT / "photographs" / "card.md").read_text()
    assert "fokker denoise noisy.png --energy photographs" in card
    assert "fokker sample" not in card


def test_levels_forms_and_weights_by_name():
    data = ImageData(MINI)
    for name, law in LEVELS.items():
        found = generation_config("paper", "dcd", data, levels=name).objective
        assert (
            isinstance(found, LevelDCD) and found.level == law and found.form == forms.Hutchinson()
        )
        found = generation_config("fokker", "reference", data, levels=name).objective
        assert isinstance(found, Denoising) and found.level == law
    assert {type(law) for law in LEVELS.values()} == {LogNormal, Uniform, Grid, Preserving, Wide}
    own = generation_config("paper", "dcd", data, form="bridge", weight="one", time=0.5).objective
    assert own == LevelDCD(LogNormal(), forms.Bridge(), True, "one", ties=(TimeScore(0.5),))
    for bad, message in (
        ({"levels": "gird"}, "--levels.*did you mean 'grid'"),
        ({"form": "exact"}, "--form"),
        ({"weight": "x"}, "--weight"),
        ({"form": "limit", "step": 0.1}, r"expected no step for Limit\(\), a limit, got 0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            generation_config("fokker", "dcd", data, **bad)
    with pytest.raises(ValueError, match="expected a form only of an energy"):
        generation_config("fokker", "reference", data, form="bridge")


@pytest.mark.slow
@pytest.mark.parametrize("levels", LEVELS)
def test_the_laws_at_the_command_line(tmp_path, levels):
    args = [
        "train",
        "generation",
        "--data",
        MINI,
        "--side",
        "12",
        "--size",
        "small",
        "--width",
        "8",
    ]
    args += ["--steps", "1", "--batch", "2", "--preview", "0", "--objective", "dcd"]
    main([
        *args,
        "--levels",
        levels,
        "--form",
        "path",
        "--step",
        "0.1",
        "--out",
        str(tmp_path / "run"),
    ])
    objective = load(tmp_path / "run").config.objective
    assert isinstance(objective, LevelDCD)
    assert objective.level == LEVELS[levels] and objective.form == forms.Path(0.1)


def test_digits_are_not_mirrored(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        TrainGeneration, "train", lambda self, base, name: seen.append((base, name)) or 1 / 0
    )
    for data in ("mnist", "cifar10"):
        with pytest.raises(ZeroDivisionError):
            TrainGeneration(data=data, form="central").run()
    assert [base.data.flip for base, _ in seen] == [False, True]
    assert seen[0][1] == "mnist-fokker-dcd-central-base-0"


@pytest.mark.slow
def test_the_train_command(tmp_path, capsys):
    args = ["train", "generation", "--data", MINI, "--side", "12", "--no-flip", "--size", "small"]
    args += ["--width", "8", "--steps", "2", "--batch", "2", "--evaluate", "2", "--preview", "0"]
    main([*args, "--out", str(tmp_path / "run"), "--time-score", "0.1"])
    said = capsys.readouterr().out
    assert "fokker sample" in said and "report" in said
    run = load(tmp_path / "run")
    assert isinstance(run.config.data, ImageData) and not run.config.data.flip
    assert "time" in run.metrics[-1]
    assert not (tmp_path / "run/previews").exists()
