r"""The study of samplers beside other libraries: its measure of error, and its targets."""

import pytest
import torch

from fokker.samplers import HMC, MALA
from studies.sampling import rivals


@pytest.fixture(scope="module")
def rotated():
    return rivals.problem("rotated-30", 30)


def test_independent_samples_count_as_many(rotated):
    r"""The mean squared error of averages over n exact samples says n."""
    x = rotated.target.sample(400 * 1000, torch.Generator().manual_seed(5)).reshape(400, 1000, 30)
    found = [rivals.Outcome(rotated.features(part), 0) for part in x]
    # 60 features and 400 runs: a relative error below 1 %
    assert 1 / rivals.error(rotated, found) == pytest.approx(1000, rel=0.05)


def test_a_missed_mode_counts(rotated):
    x = rotated.target.sample(100_000, torch.Generator().manual_seed(5))
    half = rivals.Outcome(rotated.features(x[x[:, 0] > 0]), 0)
    assert 1 / rivals.error(rotated, [half]) < 200  # of the 50,000 that it is made of


def test_evaluations_are_counted(rotated, monkeypatch):
    monkeypatch.setattr(rivals, "EVALUATIONS", 20_000)
    # the first evaluation of the 64 chains, then one a transition
    assert rivals.chains(MALA(0.01))(rotated, 0, 0.0).evaluations == 64 * 313
    leaps = rivals.chains(HMC(0.01, leaps=1))(rotated, 0, 0.0)
    assert leaps.evaluations == 64 * 313 and torch.isfinite(leaps.features).all()


def test_torchebm_runs_on_our_targets(rotated, monkeypatch):
    monkeypatch.setattr(rivals, "EVALUATIONS", 6400)
    for name, least in (("Langevin", 0.2), ("HMC", 0.2)):
        method, by_grid = rivals.METHODS["torchebm", name]
        out = method(rotated, 0, 0.01)
        assert by_grid and out.evaluations <= 6400 and 1 / rivals.error(rotated, [out]) > least
