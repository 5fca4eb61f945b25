r"""Fixtures: float64 by default, one thread, a seeded generator."""

import pytest
import torch

torch.set_num_threads(1)


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
