r"""Fixtures: float64 by default, one thread, a seeded generator; mixtures."""

import pytest
import signal
import torch

from fokker.analytic import Diffused, GaussianMixture

__all__ = ["Diffused", "double", "generator", "standard_error", "three_modes"]

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


def three_modes() -> GaussianMixture:
    r"""Three correlated Gaussians of unequal weights in the plane."""
    means = torch.tensor([[2.0, 0.0], [-1.0, 1.5], [-1.0, -2.0]], dtype=torch.float64)
    covariances = torch.tensor(
        [[[0.3, 0.1], [0.1, 0.2]], [[0.1, 0.0], [0.0, 0.4]], [[0.2, -0.1], [-0.1, 0.3]]],
        dtype=torch.float64,
    )
    return GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
