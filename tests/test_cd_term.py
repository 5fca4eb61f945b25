r"""The term that contrastive divergence leaves out, where it is closed form: Gaussians."""

import pytest
import torch

from conftest import standard_error
from fokker.compute.step import Step
from fokker.energies import Energy
from fokker.networks import MLP
from fokker.objectives import CD, PCD, Objective, Particles

S2, SIZE, K, D = 0.5, 0.2, 1, 2  # the variance of the data, the step size, the steps


class Bowl(Energy):
    r"""a ‖x‖² / 2, whose Langevin chains keep Gaussians Gaussian."""

    def __init__(self, a):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(a))

    def forward(self, x):
        return self.a * x.square().sum(1) / 2


def late(a, v=S2, size=SIZE):
    r"""The variance of the ends of chains that start with variance v."""
    keep = 1 - size * a / 2
    for _ in range(K):
        v = keep**2 * v + size
    return v


def kl(a, v):
    r"""KL of N(0, v) to the model, a coordinate, up to terms without v."""
    return (a * v - torch.log(v)) / 2


def gradients(a, v=S2, size=SIZE):
    r"""The kept part, the term of the ends, and the divergence's whole gradient, in a."""
    a = torch.tensor(a, requires_grad=True)
    end, fixed = late(a, v, size), a.detach()
    (kept,) = torch.autograd.grad(a * (S2 - end.detach()) / 2, a, retain_graph=True)
    (term,) = torch.autograd.grad(kl(fixed, end), a)
    end = late(a, v, size)  # KL(p | q) - KL(p_T | q), with log Z of the model in both
    (whole,) = torch.autograd.grad(a * S2 / 2 - kl(a, end), a)
    return D * float(kept), D * float(term), D * float(whole)


def slope(objective: Objective, a, state=None, n=400, draws=120):
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(draws):
        energy, x = Bowl(a), S2**0.5 * torch.randn(n, D, generator=generator)
        if state is not None:
            state = Particles(state.x[torch.randperm(len(state.x), generator=generator)])
        loss = objective(energy, x, state, generator).loss
        found.append(torch.autograd.grad(loss, energy.a)[0])
    found = torch.stack(found)
    return float(found.mean()), float(standard_error(found))


@pytest.mark.parametrize("a", [0.8, 4.0])
def test_the_term_on_gaussians(a):
    kept, term, whole = gradients(a)
    assert whole == pytest.approx(kept - term)  # so the weight of the whole gradient is -1
    mean, error = slope(CD(K, SIZE, 1.0), a, draws=40)
    assert abs(mean - (kept + term)) < 5 * error
    mean, error = slope(CD(K, SIZE, -1.0), a)
    assert abs(mean - whole) < 5 * error < abs(kept - whole)


def test_a_short_chain_keeps_half_and_the_term_is_the_other():
    kept, term, whole = gradients(3.5, size=1e-5)
    assert kept / whole == pytest.approx(0.5, abs=1e-3)
    assert (kept + term) / whole == pytest.approx(0.0, abs=1e-3)  # with the weight of Du et al.


def test_the_term_of_particles():
    a, v = 1.0, 0.8
    particles = Particles(
        v**0.5 * torch.randn(5000, D, generator=torch.Generator().manual_seed(1))
    )
    spread = float(particles.x.square().mean())
    end = late(torch.tensor(a), spread)
    _, term, _ = gradients(a, spread)
    kept = D * (S2 - float(end)) / 2
    objective = PCD(K, SIZE, buffer=5000, restart=0.0, term=-1.0)
    mean, error = slope(objective, a, particles)
    assert abs(mean - (kept - term)) < 5 * error
    out = objective(Bowl(a), torch.randn(50, D), particles)
    assert not out.state.x.requires_grad and set(out.info) == {"energy", "negative", "term"}


def test_the_term_in_a_traced_step():
    energy, x = MLP(2, 8, 2), torch.randn(32, 2)
    objective = CD(3, 0.1, -1.0)
    torch.manual_seed(1)
    objective(energy, x).loss.backward()
    torch.manual_seed(1)
    out = Step(energy, objective)(x)
    for name, p in energy.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, out.gradients[name])
    with pytest.raises(ValueError, match=r"no term with several ranks or slices, got term=-1\.0"):
        Step(energy, objective, slices=2)(x)
    with pytest.raises(ValueError, match="term between"):
        CD(term=float("nan"))
