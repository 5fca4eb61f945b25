r"""Configurations: one image in TOML, read strictly."""

import pytest
import re
import torch

from dataclasses import replace
from fokker.derivatives import Hutchinson
from fokker.diffusions import EDM, VE, VP, Custom
from fokker.evolution import MonteCarlo, Taylor
from fokker.objectives import DCD, OBJECTIVES, PCD, LogUniform
from fokker.runs.config import Config, Network, Optimization, TableData, ToyData
from fokker.runs.presets import PRESETS, preset
from fokker.runs.toml import difference, dumps, loads

SHIPPED = {
    f"{name}-{method}": preset(name, method)
    for name, (_, _, objectives) in PRESETS.items()
    for method in objectives
}
OTHERS = {
    "diffusions": Config(objective=DCD(VP(0.2, 3.0), Taylor("start"), Hutchinson(3), 0.1, True)),
    "law": Config(objective=DCD(EDM(), MonteCarlo(4, 0.0), step=LogUniform(0.1, 1.0))),
    "table": Config(TableData("points.csv", 0.3), PCD(restart=0.1, source="data"), patience=7),
    "own": Config(ToyData("moons", 1.0, 0.3), network=Network(16, confine=None), seed=7),
    "clip": Config(optimization=Optimization(10, 20, 0.1, clip=2.0)),
}


@pytest.mark.parametrize("name", [*SHIPPED, *OTHERS])
def test_what_is_written_is_read(name):
    config = {**SHIPPED, **OTHERS}[name]
    assert loads(dumps(config)) == config


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_saved(name):
    config = Config(objective=OBJECTIVES[name]())
    assert loads(dumps(config)) == config


def test_integers_are_read_as_floats_where_a_float_is_meant():
    text = dumps(Config()).replace("rate = 0.001", "rate = 1")
    assert loads(text).optimization.rate == pytest.approx(1.0)
    assert isinstance(loads(text).optimization.rate, float)


def test_restarts_are_a_list_of_integers():
    text = dumps(Config(optimization=Optimization(restarts=(10, 20))))
    assert loads(text).optimization.restarts == (10, 20)
    for bad, message in (("10.5", r"int at config\.optimization\.restarts\[0\], got 10\.5"), ("[1]", r"got \[1\]")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            loads(re.sub(r"restarts = \[\s*10,", f"restarts = [{bad},", text))
    with pytest.raises(ValueError, match=r"at config\.optimization\.restarts, got 7"):
        loads(dumps(Config()).replace("restarts = []", "restarts = 7"))


def test_where_two_configurations_differ():
    own = Config(ToyData("moons"), optimization=Optimization(rate=1))
    assert difference(own, loads(dumps(own))) is None  # 1 is 1.0
    slow = replace(own, optimization=Optimization(rate=0.5))
    assert difference(own, slow) == "optimization.rate is 1 here and 0.5 there"
    clipped = replace(own, optimization=Optimization(rate=1, clip=2.0))
    assert difference(own, clipped) == "optimization.clip is not given here and 2.0 there"
    other = replace(own, data=TableData("x.csv"))
    assert difference(own, other) == "data.kind is 'toy' here and 'table' there"


def test_the_paper_preset_is_the_appendix():
    config = preset("paper", "dcd")
    assert config.objective == DCD(VE(), Taylor("end"), step=5e-4)
    assert config.optimization == Optimization(5000, 1000, 1e-3, 0.9, 0.99, "constant", ema=0.0)
    assert config.network == Network(300, 4, "gelu")
    assert preset("paper", "cd").objective.steps == 10
    pcd = preset("paper", "pcd").objective
    assert (pcd.steps, pcd.buffer) == (20, 10_000) and pcd.restart == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            ("steps = 5000", "stepz = 5000"),
            r"a key at config.optimization, .* 'stepz'; .* 'steps'",
        ),
        (("steps = 5000", "steps = 1.5"), r"expected int at config.optimization.steps, got 1.5"),
        (("steps = 5000", 'steps = "x"'), r"expected int at config.optimization.steps, got 'x'"),
        (("steps = 5000", "steps = true"), r"expected int at .*steps, got True"),
        (("steps = 5000", "steps = 0"), r"steps to be an integer >= 1, got 0"),
        (
            ('kind = "multi-time"', 'kind = "multitime"'),
            r"a kind at config.objective, .*multi-time",
        ),
        (('kind = "multi-time"', ""), r"a kind at config.objective, .* got 'None'"),
        (
            ('schedule = "cosine"', 'schedule = "linear"'),
            r"config.optimization.schedule, .*linear",
        ),
        (("seed = 0", "seed = {a = 1}"), r"expected a plain value at config.seed, got a table"),
        (("seed = 0", "seed = "), r"expected a configuration in TOML, got a text that is not"),
        (('name = "rings"', "name = 3"), r"expected str at config.data.name, got 3"),
    ],
)
def test_bad_files_are_named(edit, message):
    text = dumps(Config())
    assert edit[0] in text
    with pytest.raises(ValueError, match=message):
        loads(text.replace(*edit))


def test_a_function_cannot_be_saved():
    config = Config(objective=DCD(VE(g=torch.ones_like)))
    with pytest.raises(ValueError, match=r"TOML can hold at config.objective.diffusion.g"):
        dumps(config)
    custom = replace(config, objective=DCD(Custom(lambda x, t: -x, 1.0)))
    with pytest.raises(ValueError, match=r"config.objective.diffusion.F"):
        dumps(custom)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: preset("papr"),
            "expected a preset at --preset, one of paper, fokker, got 'papr'",
        ),
        (
            lambda: preset("paper", "sm"),
            "an objective of preset 'paper' .* dcd, cd, pcd, got 'sm'",
        ),
        (lambda: preset(data="ring"), "got 'ring'; did you mean 'rings'"),
        (lambda: Optimization(batch=0), "batch to be an integer >= 1, got 0"),
        (lambda: Optimization(ema=1.5), "ema between 0 and 1, got 1.5"),
        (lambda: Optimization(clip=-1.0), "clip to be a finite number > 0, got -1.0"),
        (lambda: TableData("a.csv", 1.0), "held_out strictly between 0 and 1, got 1.0"),
        (lambda: Config(seed=2**63), "seed to be an integer of 64 bits, got 9223372036854775808"),
        (lambda: Config(seed=0.5), "seed to be an integer of 64 bits, got 0.5"),
        (lambda: Config(evaluate=0), "evaluate to be an integer >= 1, got 0"),
        (
            lambda: Config(TableData("a.csv"), patience=0),
            "patience to be an integer >= 1, got 0",
        ),
        (lambda: Config(patience=3), "patience only for a table, .* got 3 for ToyData"),
    ],
)
def test_bad_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
