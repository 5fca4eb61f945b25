r"""The benchmark: what it counts, what it writes, and that its rivals are what they say."""

import json
import math
import pytest
import torch

from dataclasses import replace
from fokker.app.cli import main
from fokker.compute.step import bind
from fokker.compute.tracing import trace
from fokker.energies import Energy
from fokker.networks import MLP, WideResNet, convolution
from fokker.objectives import CD, LevelDCD, ScoreMatching
from fokker.objectives.levels import Hutchinson
from studies import estimators
from studies.bench import NETS, bench, bench_steps, growth, names_of
from studies.bench.nets import objectives_of
from studies.bench.rivals import cheapest_cd, plain, reference

SMALL = replace(NETS["wrn-10-1"], batch=2, shape=(1, 8, 8))


def test_operations_are_those_of_the_count() -> None:
    names = ["dcd", "dcd-central", "dcd-limit", "dcd-path", "dcd-hutchinson", "cd-1"]
    rows = {r["name"]: r for r in bench(SMALL, names, rounds=1, compile=False, rivals=False)}
    forms = {
        name: objective.form
        for name, objective in objectives_of(SMALL).items()
        if isinstance(objective, LevelDCD)
    }
    passes = {name: row["tflop"] / rows["plain"]["tflop"] for name, row in rows.items()}
    counted = {name: form.passes / 3 for name, form in forms.items()} | {"cd-1": 2}
    assert counted["dcd"] == pytest.approx(8 / 3)
    for name, expected in counted.items():
        assert passes[name] == pytest.approx(expected, rel=0.03), name


def test_rows_have_the_documented_fields() -> None:
    rows = bench(SMALL, ["dcd-limit", "reference"], rounds=2, compile=False)
    assert {(r["library"], r["name"]) for r in rows} >= {
        ("fokker", "plain"), ("fokker", "dcd-limit"), ("eager", "reference"), ("torchebm", "dsm")
    }  # fmt: skip
    fields = "suite library name net batch shape device precision ms spread x_plain peak_gib"
    fields += " x_plain_memory per_second tflops peak_share"
    for row in rows:
        assert set(fields.split()) <= set(row)
        assert row["ms"] > 0 and row["per_second"] == pytest.approx(2000 / row["ms"], abs=0.1)
    assert rows[0]["x_plain"] == 1


def parameters(energy: torch.nn.Module) -> dict:
    return {k: p.detach() for k, p in energy.named_parameters()}


def test_the_cheapest_cd_is_cd() -> None:
    torch.manual_seed(0)
    energy, x = MLP(width=16).double(), torch.randn(32, 2, dtype=torch.float64)
    inputs = (parameters(energy), {}, x, ())
    cheap, plain_ = (
        trace(cheapest_cd(energy, 0.01), *inputs),
        trace(bind(energy, CD(1, 0.01)), *inputs),
    )
    noise = cheap.draw(torch.Generator().manual_seed(0))
    a, b = cheap(*inputs, noise=noise)[0], plain_(*inputs, noise=noise)[0]
    assert all(torch.allclose(a[k], b[k], atol=1e-12) for k in a)


def test_the_plain_step_is_the_gradient_of_the_mean() -> None:
    energy, x = MLP(width=8), torch.randn(16, 2)
    gradients = plain(energy)(parameters(energy), {}, x)[0]
    energy(x).mean().backward()
    for name, p in energy.named_parameters():
        assert torch.allclose(gradients[name], p.grad)


def test_the_reference_is_hutchinson_s_dcd() -> None:
    r"""In expectation over its noise, on a quadratic, whose Laplacian has no variance."""

    class Bowl(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(1.3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a * x.square().sum((1, 2, 3)) / 2

    torch.manual_seed(0)
    energy, x = Bowl(), torch.randn(20_000, 1, 2, 2)
    run = reference(energy, x, 0.3)
    found = torch.stack([run()[0] for _ in range(20)]).mean() / 4
    S = 1 + LevelDCD(0.3, Hutchinson()).learned ** 2
    assert float(found) == pytest.approx(1.3 * S - 1, abs=0.03)


def test_the_reference_leaves_our_convolution_in_place() -> None:
    ours = convolution.convolve
    reference(WideResNet(1, 10, 1), torch.randn(2, 1, 8, 8), 0.3)()
    assert convolution.convolve is ours


def test_growth_covers_dimension_batch_and_size() -> None:
    tiny = replace(NETS["mlp-2d"], batch=10)
    rows = growth(
        rounds=1, points=tiny, image=SMALL, dims=(2, 65), batches=(5,), sizes=(8,), names=["dcd"]
    )
    exact = [row["shape"] for row in rows if row["name"] == "dcd" and row["suite"] == "dimension"]
    assert exact == [[2]]  # in 65 dimensions it takes too long
    assert {row["suite"] for row in rows} == {"dimension", "batch", "size"}


def test_the_command_adds_rows_and_replaces_old_ones(tmp_path, capsys) -> None:
    out = tmp_path / "bench.json"
    args = ["bench", "--nets", "wrn-10-1", "--no-compile", "--no-rivals", "--rounds", "1"]
    for names in (["dcd-limit"], ["dcd-limit", "dcd"]):
        main([*args, "--out", str(out), "--names", *names])
    rows = json.loads(out.read_text())["rows"]
    assert sorted(row["name"] for row in rows) == ["dcd", "dcd-limit", "plain"]
    assert out.with_suffix(".png").exists()
    for bad, line in ((["--nets", "wrn-10-2"], "wrn-10-1"), (["--names", "dcx"], "dcd")):
        with pytest.raises(SystemExit) as stop:
            main(["bench", *bad])
        assert stop.value.code == 2
        assert f"did you mean '{line}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ('{"rows": [', [], "expected a file of results, got {out}: Expecting value"),
        ('{"columns": []}', [], "expected a file of results, got {out}, which has no rows"),
        ("[1]", [], "expected a file of results, got {out}, which has no rows"),
        ('{"rows": [{"suite": "nets"}]}', [], "expected rows of fokker bench in {out}, got one"),
        (None, [], "Is a directory"),
        ("", ["--rounds", "0"], "expected rounds to be an integer >= 1, got 0"),
        ("", ["--threads", "0"], "expected threads to be an integer >= 1, got 0"),
    ],
    ids=["half", "other", "list", "version", "folder", "rounds", "threads"],
)
def test_what_cannot_be_kept_is_not_timed(
    tmp_path, capsys, monkeypatch, text, more, message
) -> None:
    monkeypatch.setattr("studies.bench.bench", lambda *args, **kwargs: pytest.fail("timed"))
    out = tmp_path / "bench.json"
    out.mkdir() if text is None else out.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--out", str(out), *more])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message.format(out=out) in error and error.count("\n") == 1
    assert text is None or out.read_text() == text
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_every_name_of_a_network_can_be_made() -> None:
    net = replace(NETS["mlp-2d"], batch=20, build=lambda dtype: MLP(width=8))
    rows = bench(net, rounds=1, compile=False, rivals=False)
    assert [row["name"] for row in rows] == names_of(net)


def test_variance_of_a_gradient_in_closed_form() -> None:
    class Bowl(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a * x.square().sum(1) / 2

    generator, B = torch.Generator().manual_seed(0), 50
    sample = lambda: torch.randn(B, 1, generator=generator)
    found = estimators.variance(Bowl(), ScoreMatching(), sample, 2000)
    assert found == pytest.approx(2 / B, rel=0.15)  # of a mean of a x² − 1 at a = 1


@pytest.mark.slow
def test_the_study_of_estimators(tmp_path, monkeypatch) -> None:
    few = dict(list(estimators.ESTIMATORS["images"].items())[:2])
    monkeypatch.setitem(estimators.ESTIMATORS, "images", few)
    rows = estimators.run(tmp_path / "e.json", ("images",), steps=1, batch=4, draws=3, rounds=1)
    assert [row["estimator"] for row in rows] == list(few)
    assert rows[0]["x_variance"] == 1
    for row in rows:
        assert row["merit"] == pytest.approx(row["x_variance"] * row["x_plain"], rel=0.01)


def test_fields_have_unit_variance_and_are_smooth() -> None:
    x = estimators.fields(2000, torch.Generator().manual_seed(0))
    assert float(x.var()) == pytest.approx(1, rel=0.05)
    step = x[..., 1:] - x[..., :-1]
    assert float(step.var()) < 0.5  # white noise has 2


def test_costs_are_ratios() -> None:
    net = replace(NETS["mlp-2d"], batch=50, build=lambda dtype: MLP(width=64))
    found = bench_steps(net, {"sm": ScoreMatching()}, rounds=25)
    assert math.isfinite(found["sm"]) and found["sm"] > 1
