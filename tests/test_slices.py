r"""Slices of a batch: the step of the whole one, in less memory."""

import importlib.util
import pytest
import torch
import weakref

from fokker import fit
from fokker.compute.step import Gradients, Step
from fokker.networks import MLP
from fokker.objectives import (
    OBJECTIVES,
    PCD,
    LevelDCD,
    MultiTimeDCD,
    Noisy,
    ScoreMatching,
    Share,
    interleave,
)
from fokker.objectives.levels import FORMS
from fokker.objectives.levels import Path as PathForm
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.toml import dumps, loads
from pathlib import Path
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SCRIPT = Path(__file__).parents[1] / "studies/trust/rank_equality.py"
spec = importlib.util.spec_from_file_location("rank_equality", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

QUICK = [script.CASES[name] for name in script.QUICK]
LEVELS = [LevelDCD(0.3, form()) for form in FORMS.values()]
NAMES = (*script.QUICK, *FORMS)


def eager(energy, objective):
    r"""Returns the step of the whole batch, by the objective itself."""
    named = dict(energy.named_parameters())

    def step(x, state, generator):
        out = objective(energy, x, state, generator)
        found = torch.autograd.grad(out.loss, list(named.values()), materialize_grads=True)
        gradients = dict(zip(named, found, strict=True))
        return Gradients(gradients, out.loss.detach(), out.state, out.info)

    return step


def two_steps(step, objective):
    r"""Returns two steps, one if the objective has no state, with the state as tensors."""
    state, outs = None, []
    for k in range(1 if objective.carries is type(None) else 2):
        generator = torch.Generator().manual_seed(100 + k)
        x = torch.randn(script.BATCH, 2, generator=generator)
        out = step(x, state, generator)
        state = out.state
        outs.append(out._replace(state=tuple(state or ())))
    return outs


def test_every_objective_is_cut():
    assert {type(objective) for objective in QUICK} == set(OBJECTIVES.values())


@pytest.mark.parametrize("objective", [*QUICK, *LEVELS], ids=NAMES)
def test_slices_give_the_step_of_the_whole_batch(objective):
    energy = script.energy_of(objective)
    expected = two_steps(eager(energy, objective), objective)
    # a contrast over a time of 2e-5 has its rounding divided by it
    tolerance = 1e-11 if isinstance(objective, MultiTimeDCD) else 1e-12
    for slices in (2, 4):  # one: tests/test_step.py
        step = Step(energy, objective, slices=slices)
        got = two_steps(step, objective)
        assert max(map(script.distance, got, expected)) <= tolerance
        assert len(step.traces) == len(got)  # one for all slices


@pytest.mark.parametrize(
    "objective",
    [MultiTimeDCD(points=8), Noisy(PCD(2, 1e-2, 48, 0.5, "data"), 0.3)],
    ids=lambda o: type(o).__name__,
)
def test_ranks_take_their_shares_in_slices(objective):
    energy = script.energy_of(objective)
    expected = two_steps(eager(energy, objective), objective)
    shares = [Share(r, 2) for r in range(2)]
    outs = [two_steps(Step(energy, objective, share=s, slices=2), objective) for s in shares]
    for (a, b), one in zip(zip(*outs, strict=True), expected, strict=True):
        mean = lambda u, v: {name: (u[name] + v[name]) / 2 for name in u}
        state = tuple(map(interleave, zip(a.state, b.state, strict=True)))
        gradients, info = mean(a.gradients, b.gradients), mean(a.info, b.info)
        both = one._replace(
            gradients=gradients, loss=(a.loss + b.loss) / 2, state=state, info=info
        )
        assert script.distance(both, one) <= 1e-11


def test_a_share_consists_of_its_slices():
    x = torch.arange(24).reshape(12, 2)
    whole = Share(1, 2)
    assert torch.equal(interleave([part(x) for part in whole.cut(3)]), whole(x))
    for rank in range(3):  # in a graph its number is a tensor
        assert torch.equal(Share(torch.tensor([rank]), 3)(x), Share(rank, 3)(x))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the compiler's own
def test_compiled_slices_are_those_of_the_eager_step():
    energy, x = MLP(2, 8, 2), torch.randn(8, 2)
    objective = PCD(1, buffer=16)
    step, plain = Step(energy, objective, compile=True, slices=2), Step(energy, objective)
    a, b = (s(x, None, torch.Generator().manual_seed(1)) for s in (step, plain))
    torch.testing.assert_close(a.loss, b.loss)
    torch.testing.assert_close(a.state.x, b.state.x)
    torch.testing.assert_close(a.info, b.info)
    torch.testing.assert_close(a.gradients, b.gradients)


class Live(TorchDispatchMode):
    r"""Notes the most bytes that the tensors made under it held at once."""

    def __init__(self):
        super().__init__()
        self.held, self.users, self.peak = 0, {}, 0

    def leave(self, place, size):
        self.users[place] -= 1
        if not self.users[place]:
            del self.users[place]
            self.held -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = lambda tree: [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]
        given = {t.untyped_storage().data_ptr() for t in tensors(args)}
        for t in tensors(out):
            storage = t.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            if place not in self.users:
                if place in given:  # a view of what was there before
                    continue
                self.users[place] = 0
                self.held += size
            self.users[place] += 1
            weakref.finalize(t, self.leave, place, size)
        self.peak = max(self.peak, self.held)
        return out


def test_slices_take_less_memory():
    energy, x = MLP(2, 32, 4), torch.randn(2048, 2)
    weights = sum(p.numel() * p.element_size() for p in energy.parameters())
    peaks = {}
    for slices in (1, 2, 4):
        step = Step(energy, LevelDCD(0.3, PathForm()), slices=slices)
        step(x)  # traced
        with Live() as live:
            step(x)
        assert live.held == 0
        peaks[slices] = live.peak
    for slices in (2, 4):
        # what does not shrink: the sum of the gradients, those of a slice, the noise of the batch,
        # a number a row
        beside = 2 * weights + (2 * x.numel() + len(x)) * x.element_size()
        assert peaks[slices] <= peaks[1] / slices + beside
    assert peaks[4] < 0.3 * peaks[1]


@pytest.mark.parametrize(
    ("objective", "rows", "message"),
    [
        (
            ScoreMatching(),
            6,
            "batch to be a multiple of 4, the number of ranks times slices, got 6",
        ),
        (
            PCD(buffer=30),
            12,
            "buffer to be a multiple of 4, the number of ranks times slices, got",
        ),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, ScoreMatching | PCD) else None,
)
def test_what_cannot_be_cut_is_named(objective, rows, message):
    step = Step(MLP(width=4), objective, share=Share(1, 2), slices=2)
    with pytest.raises(ValueError, match=message):
        step(torch.randn(rows, 2))
    with pytest.raises(ValueError, match="slices to be an integer >= 1, got 0"):
        Step(MLP(width=4), objective, slices=0)


def test_a_state_that_cannot_be_cut_is_named():
    objective = PCD(1, buffer=16)
    step = Step(MLP(width=4), objective, slices=2)
    with pytest.raises(ValueError, match=r"state to be a multiple of 2, .* got 15"):
        step(torch.randn(8, 2), objective.restore([torch.randn(15, 2)]))


def test_a_run_in_slices_is_the_run(tmp_path):
    torch.set_default_dtype(torch.float32)
    weights = []
    for slices in (1, 2):
        optimization, network = Optimization(steps=6, batch=16), Network(width=8)
        config = Config(
            ToyData("moons"), PCD(2, buffer=64), network, optimization, slices=slices, evaluate=3
        )
        run = fit(config, tmp_path / str(slices))
        assert run.config == config
        weights.append(run.energy.state_dict())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    assert not torch.equal(*(torch.cat([v.flatten() for v in w.values()]) for w in weights))


def test_a_configuration_of_before_has_one_slice():
    config = Config()
    text = dumps(config)
    assert "slices = 1\n" in text and loads(text.replace("slices = 1\n", "")) == config
    assert loads(dumps(Config(slices=3))).slices == 3
    with pytest.raises(ValueError, match="slices to be an integer >= 1, got 0"):
        loads(text.replace("slices = 1\n", "slices = 0\n"))
