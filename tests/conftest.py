r"""Fixtures: float64 by default, one thread, a seeded generator; an exact energy of all levels."""

import math
import pytest
import signal
import torch

from fokker.analytic import GaussianMixture
from fokker.diffusions import EDM
from fokker.energies import Energy

torch.set_num_threads(1)
# under nohup or in the background of a script the tests start with these ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def standard_error(values: torch.Tensor) -> torch.Tensor:
    r"""The standard error of the mean over the first axis."""
    return values.std(0) / len(values) ** 0.5


class Diffused(Energy):
    r"""The exact energy E(x, sigma) of a mixture with noise, for levels () or (B)."""

    def __init__(self, mixture):
        super().__init__()
        self.mixture = mixture
        self.variances, self.axes = torch.linalg.eigh(mixture.covariances)

    def forward(self, x, sigma):
        v = self.variances[:, None] + sigma.square().reshape(-1, 1)  # (K, B or 1, D)
        shift = (x - self.mixture.means[:, None]) @ self.axes
        logs = -(shift.square() / v + torch.log(2 * math.pi * v)).sum(-1) / 2
        return -torch.logsumexp(self.mixture.weights.log()[:, None] + logs, dim=0)

    def at(self, t):
        return self.mixture.diffuse(EDM(), t)


def three_modes() -> GaussianMixture:
    r"""Three correlated Gaussians of unequal weights in the plane."""
    means = torch.tensor([[2.0, 0.0], [-1.0, 1.5], [-1.0, -2.0]], dtype=torch.float64)
    covariances = torch.tensor(
        [[[0.3, 0.1], [0.1, 0.2]], [[0.1, 0.0], [0.0, 0.4]], [[0.2, -0.1], [-0.1, 0.3]]],
        dtype=torch.float64,
    )
    return GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
