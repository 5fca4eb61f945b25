import importlib.util
import torch

from pathlib import Path
from torchebm.couplings.ot import _sinkhorn_log


def test_our_plan_is_that_of_torchebm():
    path = Path(__file__).parents[1] / "benchmarks" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", path)
    peers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peers)
    coupling = peers.Sinkhorn()
    cost = torch.rand(30, 30)
    torch.testing.assert_close(
        coupling.plan(cost, coupling.half), _sinkhorn_log(cost, coupling.reg, coupling.n_iters)
    )
