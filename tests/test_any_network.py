r"""Networks with one derivative: fused attention, and what a step of each form holds."""

import pytest
import torch

from dataclasses import dataclass
from fokker.compute.step import Step
from fokker.energies import Energy
from fokker.networks import UNetEnergy, WideResNet
from fokker.objectives import Bridge, Central, LevelDCD, Limit, LogUniform, Objective, Output
from test_slices import Live
from torch import nn

ONE_DERIVATIVE = "derivative for aten::_scaled_dot_product_.* is not implemented"


class Tokens(Energy):
    r"""An energy of sequences by a transformer of torch, with its fused attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.enter = nn.Linear(1, 16)
        options = {"dropout": dropout, "activation": "gelu", "batch_first": True}
        layer = nn.TransformerEncoderLayer(16, 2, 32, **options)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        h = self.encoder(self.enter(x[..., None]) + torch.log(sigma)[:, None, None])
        return x.square().sum(1) / 2 + h.square().sum((1, 2))


def unet() -> UNetEnergy:
    return UNetEnergy(1, 8, (1,), 1, (0,), 8, fused=True)


@pytest.mark.parametrize(("make", "shape"), [(Tokens, (6,)), (unet, (1, 4, 4))])
@pytest.mark.parametrize("form", [Central(), Bridge()], ids=str)
def test_forms_with_one_derivative_train_through_fused_attention(make, shape, form):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    energy, x = make(), torch.randn(8, *shape)
    law = LogUniform(0.1, 1.0)
    with pytest.raises(RuntimeError, match=ONE_DERIVATIVE):
        LevelDCD(law, Limit(), conditional=True)(energy, x).loss.backward()
    with pytest.raises(RuntimeError, match=ONE_DERIVATIVE):
        Step(energy, LevelDCD(law, Limit(), conditional=True))(x)
    objective = LevelDCD(law, form, conditional=True)
    torch.manual_seed(1)
    objective(energy, x).loss.backward()
    torch.manual_seed(1)
    out = Step(energy, objective)(x)
    for name, p in energy.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, out.gradients[name], rtol=1e-3, atol=1e-4)
    assert sum(float(g.abs().sum()) for g in out.gradients.values()) > 0


def test_dropout_within_attention_is_refused():
    torch.set_default_dtype(torch.float32)
    step = Step(Tokens(0.1), LevelDCD(0.3, Central(), conditional=True))
    with pytest.raises(ValueError, match="expected draws by randn, rand, randint or randperm"):
        step(torch.randn(4, 6))


@dataclass(frozen=True)
class Plain(Objective):
    r"""The plain step: the mean energy of the data."""

    told: bool = False  # the noise level

    def compute(self, energy, x, state=None, generator=None):
        more = (torch.full((len(x),), 0.3),) if self.told else ()
        return Output(energy(x, *more).mean(), None, {})


def peak(energy: nn.Module, objective: Objective, x: torch.Tensor) -> int:
    r"""Returns the most bytes that a traced step held at once."""
    step = Step(energy, objective)
    step(x)
    with Live() as live:
        step(x)
    return live.peak


@pytest.mark.parametrize(
    ("energy", "x", "told"),
    [
        (lambda: WideResNet(1, 10, 1), torch.randn(32, 1, 16, 16), False),
        (lambda: UNetEnergy(1, 8, (1, 2), 1, (1,), 8), torch.randn(32, 1, 8, 8), True),
    ],
    ids=["wrn", "unet"],
)
def test_what_a_step_holds(energy, x, told):
    r"""Operation by operation: one energy at a time, where the limit holds three."""
    torch.set_default_dtype(torch.float32)
    energy, x = energy(), x.float()
    plain = peak(energy, Plain(told), x)
    share = {
        type(form): peak(energy, LevelDCD(0.3, form, conditional=told), x) / plain
        for form in (Limit(), Central(), Bridge())
    }
    assert max(share[Central], share[Bridge]) < 1.3
    assert share[Limit] > 2
