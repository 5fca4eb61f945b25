r"""Muon: against the decomposition it goes without, and PyTorch's own for one matrix."""

import pytest
import runpy
import torch

from dataclasses import replace
from fokker import fit
from fokker.app.cli import main
from fokker.compute.muon import Muon, orthogonal
from fokker.compute.ranks import Ranks
from fokker.compute.stack import rate_at, train_stack
from fokker.networks import UNetEnergy
from fokker.objectives import DCD, Denoising
from fokker.runs.checkpoints import newest as read_checkpoint
from fokker.runs.config import Config, ImageData, Network, Optimization, UNet
from fokker.runs.guard import finite
from fokker.runs.state import State, step_generator
from fokker.runs.toml import dumps, loads
from fokker.runs.training import Interrupted
from fokker.tasks import task_of
from pathlib import Path
from studies import results, tables

MINI = str(Path(__file__).parent / "data" / "mnist-mini")


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 8, 8)])
def test_singular_values_become_nearly_one_and_the_directions_stay(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    own = u.mT @ orthogonal(x) @ v.mT  # diagonal, if the directions are those of x
    found = own.diagonal(dim1=1, dim2=2)
    assert (own - torch.diag_embed(found)).abs().max() < 1e-9
    fine = s / s.norm(dim=1, keepdim=True) > 0.01  # the tiniest take longer
    assert fine.float().mean() > 0.9
    assert 0.68 < found[fine].min() and found[fine].max() < 1.21


def test_a_gradient_of_zero_moves_nothing():
    assert torch.equal(orthogonal(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_it_is_the_muon_of_pytorch():
    torch.manual_seed(0)
    shapes = [(6, 9), (6, 9), (9, 6)]
    first = [torch.randn(s, dtype=torch.float32) for s in shapes]
    ours = [torch.nn.Parameter(p.clone()) for p in first]
    theirs = [torch.nn.Parameter(p.clone()) for p in first]
    pair = Muon(ours, 0.02), torch.optim.Muon(theirs, 0.02, weight_decay=0.0)
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in pair:
            optimizer.step()
    for p, q, start in zip(ours, theirs, first, strict=True):
        assert (p - start).abs().max() > 0.02
        assert (p - q).abs().max() < 2e-3  # theirs rounds to bfloat16


@pytest.mark.parametrize("shape", [(4, 6, 3, 3), (40, 2, 3, 3)])
def test_a_kernel_is_a_matrix_whatever_its_order_in_memory(shape):
    w, g = torch.randn(shape), torch.randn(shape)
    flat = torch.nn.Parameter(w.flatten(1).clone())
    kernel = torch.nn.Parameter(w.to(memory_format=torch.channels_last))
    flat.grad, kernel.grad = g.flatten(1), g.to(memory_format=torch.channels_last)
    Muon([flat]).step()
    Muon([kernel]).step()
    assert (kernel.flatten(1) - flat).abs().max() < 1e-12
    assert (kernel - w).abs().max() > 1e-3


def test_vectors_are_refused():
    with pytest.raises(ValueError, match=r"expected matrices or kernels, got shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))])


@pytest.mark.parametrize("form", ["inner", "sum"])
def test_the_hidden_weights_of_a_unet(form):
    net = UNetEnergy(1, 16, form=form, head=16, blocks=1)
    names = {id(p): name for name, p in net.named_parameters()}
    hidden = {names[id(p)] for p in net.hidden}
    assert {name for name in names.values() if name not in hidden} == {
        name
        for name in names.values()
        if name.endswith("bias")
        or name.split(".")[0] in {"stem", "head", "embedding"}
        or "affine" in name
    }


def test_muon_is_for_unets():
    with pytest.raises(ValueError, match=r"expected Muon only for a U-Net, got muon=0.02 for Net"):
        Config(optimization=Optimization(muon=0.02))
    with pytest.raises(ValueError, match="expected muon to be a finite number > 0, got 0"):
        Optimization(muon=0)
    with pytest.raises(ValueError, match=r"no Muon for stacked networks, got muon=0.02"):
        train_stack([], DCD(), Network(), Optimization(muon=0.02), [])
    with pytest.raises(ValueError, match="momentum from 0 to less than 1, got 1"):
        Muon([torch.nn.Parameter(torch.zeros(2, 2))], momentum=1)


def test_a_run_goes_on_with_both_optimizers_where_it_was_stopped(tmp_path):
    torch.set_default_dtype(torch.float32)  # as for a user
    own = Config(
        ImageData(MINI, size=8),
        Denoising(0.3),  # soon traced
        UNet(8, 1, "denoiser"),
        Optimization(steps=3, batch=4, warmup=1, muon=0.02),
        evaluate=3,
    )
    assert loads(dumps(own)) == own
    whole = fit(own, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(own, tmp_path / "parts", minutes=0.0)
    parts = fit(own, tmp_path / "parts", resume=True)
    for a, b in zip(whole.energy.parameters(), parts.energy.parameters(), strict=True):
        assert torch.equal(a, b)
    held = read_checkpoint(tmp_path / "whole").adam
    assert held is not None
    assert set(held["unet.head.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(held["unet.middle.0.block.first.weight"]) == {"momentum"}
    assert set(held) == {name for name, _ in whole.energy.named_parameters()}

    # by Adam alone it does not go on, nor the other way round
    alone = replace(own, optimization=replace(own.optimization, muon=None))
    with pytest.raises(
        ValueError, match=r"muon is not given here and 0\.02 there; resume without"
    ):
        fit(alone, tmp_path / "whole", resume=True)
    fit(alone, tmp_path / "alone")
    for folder, config, fields in (
        ("whole", alone, "for Adam, got momentum"),
        ("alone", own, "for Muon, got exp_avg, exp_avg_sq, step"),
    ):
        (tmp_path / folder / "config.toml").write_text(dumps(config))  # by hand
        with pytest.raises(ValueError, match=fields):
            fit(config, tmp_path / folder, resume=True)


def test_the_rates_of_both(tmp_path):
    optimization = Optimization(steps=9, batch=2, rate=7e-4, warmup=4, muon=0.01)
    own = Config(ImageData(MINI, size=8), Denoising(0.3), UNet(8, 1, "denoiser"), optimization)
    state = State(own, tmp_path, task_of(own).load(), Ranks())
    state.trial = 1  # rolled back once
    for k in range(3):
        generator = step_generator(own, k)
        _, rate = state.advance(state.task.batch(2, generator), generator, flag=False)
        (adam, _), (muon, _) = state.optimizers
        assert adam.param_groups[0]["lr"] == rate  # to the last bit, as without Muon
        assert muon.param_groups[0]["lr"] == pytest.approx(rate / 7e-4 * 0.01)
        assert rate == pytest.approx(rate_at(k, optimization) / 2)


def test_the_option(capsys, monkeypatch):
    seen = []

    def fit(config, *rest, **options):
        seen.append(config.optimization.muon)
        raise ValueError("enough")

    monkeypatch.setattr("fokker.app.train.fit", fit)
    for given in ([], ["--muon", "0"], ["--muon", "0.5"], ["--muon", "-1"]):
        with pytest.raises(SystemExit):
            main(["train", "generation", "--data", MINI, *given])
    assert seen == [pytest.approx(0.01), None, pytest.approx(0.5)]
    assert "muon to be a finite number > 0, got -1" in capsys.readouterr().err


SCRIPT = Path(__file__).parents[1] / "studies/optimizers.py"
FEW = ["--data", MINI, "--steps", "1", "--width", "8", "--batch", "2", "--images", "4"]


def test_bad_trials_are_refused_before_the_first(monkeypatch):
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *FEW, "--trials", "adam:1e-3", "muon:x"])
    with pytest.raises(ValueError, match="expected adam:RATE or muon:RATE, got 'muon:x'"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.slow
def test_the_benchmark(monkeypatch, tmp_path):
    out = tmp_path / "optimizers.json"
    argv = [str(SCRIPT), *FEW, "--trials", "adam:1e-3", "muon:0.01", "--out", str(out)]
    monkeypatch.setattr("sys.argv", argv)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = results.load(out)["rows"]
    assert [(r["optimizer"], r["beside"]) for r in rows] == [("adam", None), ("muon", 1.5e-3)]
    assert all(0 < row["error"] < 5 for row in rows)


def test_the_table_of_optimizers(tmp_path):
    text, out = "<!-- results:optimizers -->\n<!-- /results -->", tmp_path / "results/o.json"
    assert "Not measured yet: `python studies/optimizers.py" in tables.render(text, tmp_path)
    row = lambda kind, steps, error: {
        "optimizer": kind, "rate": 0.01, "steps": steps, "error": error
    }  # fmt: skip
    results.save(out.with_stem("optimizers"), [row("muon", 5, 0.25), row("adam", 1, 0.5)], "test")
    found = tables.render(text, tmp_path)
    assert "| 1 steps | 5 steps |" in found
    assert "| Muon | 0.01 | – | 0.250 |" in found and "| Adam | 0.01 | 0.500 | – |" in found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_waits_for_nothing(tmp_path):
    torch.set_default_dtype(torch.float32)
    optimization = Optimization(steps=9, batch=4, muon=0.01)
    own = Config(ImageData(MINI, size=8), Denoising(0.3), UNet(8, 1, "denoiser"), optimization)
    own = replace(own, device="cuda")
    state = State(own, tmp_path, task_of(own).load(), Ranks(device=torch.device("cuda")))
    for k in range(4):
        torch.cuda.set_sync_debug_mode("error" if k > 1 else "default")  # once all is traced
        try:
            generator = step_generator(own, k, 0, torch.device("cuda"))
            state.advance(state.task.batch(4, generator), generator, flag=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert finite(list(state.energy.parameters()))
