r"""The benchmark of torchebm: what of it is written anew gives what torchebm's own would."""

import importlib.util
import pytest
import torch

from pathlib import Path
from torchebm.couplings.ot import _sinkhorn_log


@pytest.fixture(scope="module")
def peers():
    path = Path(__file__).parents[1] / "studies" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_our_plan_is_that_of_torchebm(peers):
    coupling = peers.Sinkhorn()
    cost = torch.rand(30, 30)
    torch.testing.assert_close(
        coupling.plan(cost, coupling.half), _sinkhorn_log(cost, coupling.reg, coupling.n_iters)
    )


def test_a_stack_of_one_is_its_network(peers):
    energies = [peers.NETWORK.build((2,)) for _ in range(2)]
    x = torch.randn(8, 2)
    both = peers.Stack(energies, "rows")(torch.cat([x, x])).reshape(2, 8)
    for energy, e in zip(energies, both, strict=True):
        stack = peers.Stack([energy], "rows")
        torch.testing.assert_close(stack(x), e)
        torch.testing.assert_close(stack(x), energy(x))
        stack(x).sum().backward()
        energy(x).sum().backward()
        for w, p in zip(stack.weights, energy.parameters(), strict=True):
            if p.grad is not None:
                torch.testing.assert_close(w.grad[0], p.grad)
