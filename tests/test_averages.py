r"""Power-function averages: the exact profile, mixing after training, and runs that keep them."""

import numpy as np
import pytest
import torch

from dataclasses import replace
from fokker import fit, load
from fokker.app.cli import main
from fokker.compute.averages import Kept, decay, exponent, mix, overlap, width
from fokker.runs.averages import average_of, snapshots_of
from fokker.runs.checkpoints import newest
from fokker.runs.config import Config, Network, Optimization
from fokker.runs.packing import pack, unpack
from fokker.runs.training import Interrupted

STEPS = 400


def profile(w, step, steps=STEPS):
    g = exponent(w) + 1
    k = np.minimum(np.arange(steps + 1) / step, 1)
    return np.diff(k**g)


def test_widths_and_exponents():
    assert exponent(0.05) == pytest.approx(16.97, abs=0.01)  # as published
    assert exponent(0.10) == pytest.approx(6.94, abs=0.01)
    for w in (0.01, 0.05, 0.1, 0.2, 0.28):
        assert width(exponent(w)) == pytest.approx(w, rel=1e-9)
        p, k = profile(w, STEPS), (np.arange(STEPS) + 0.5) / STEPS
        std = np.sqrt((p * k**2).sum() - (p * k).sum() ** 2)
        assert std == pytest.approx(w, rel=0.02)  # the share of the steps that it says
    with pytest.raises(ValueError, match=r"expected width between 0.001 and 0.28, got 0.3"):
        exponent(0.3)


@pytest.mark.parametrize("w", [0.03, 0.1, 0.25])
def test_the_recursion_has_the_profile(w):
    walk = np.random.default_rng(0).normal(size=STEPS).cumsum()
    mean = 0.0
    for k, theta in enumerate(walk, 1):
        beta = decay(k, w)
        mean = beta * mean + (1 - beta) * theta
    assert mean == pytest.approx(profile(w, STEPS) @ walk, rel=1e-12)


def test_overlaps_are_integrals():
    tau = (np.arange(200_000) + 0.5) / 200_000 * 30
    density = lambda k: np.where(
        tau <= k.step,
        (exponent(k.width) + 1) / k.step * (tau / k.step) ** exponent(k.width),
        0,
    )
    for a, b in ((Kept(0.1, 30), Kept(0.05, 30)), (Kept(0.2, 30), Kept(0.1, 17))):
        expected = (density(a) * density(b)).mean() * 30
        assert overlap(a, b) == pytest.approx(expected, rel=1e-3) == overlap(b, a)


def test_a_kept_average_is_its_own_mixture():
    kept = [Kept(0.05, 100), Kept(0.1, 100), Kept(0.1, 200)]
    found = mix(kept, Kept(0.1, 100))
    assert found.coefficients == pytest.approx((0, 1, 0), abs=1e-6) and found.error < 1e-5


@pytest.mark.parametrize("wanted", [0.04, 0.07, 0.13])
def test_mixed_averages_of_a_random_walk_and_a_quadratic(wanted):
    r"""The average that was not kept, against the same computed directly."""
    kept = [Kept(w, t) for w in (0.05, 0.1) for t in range(25, STEPS + 1, 25)]
    found = mix(kept, Kept(wanted, STEPS))
    assert found.error < 0.05 and sum(found.coefficients) == pytest.approx(1)
    mixture = sum(
        x * profile(k.width, k.step) for x, k in zip(found.coefficients, kept, strict=True)
    )
    exact = profile(wanted, STEPS)
    # the error that is said is that of the profile
    assert np.linalg.norm(mixture - exact) / np.linalg.norm(exact) == pytest.approx(
        found.error, rel=0.2, abs=2e-3
    )
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(STEPS, 50)).cumsum(0)
    spread = np.abs(walk[-1] - exact @ walk).mean()  # of the last weights from the average
    assert np.abs((mixture - exact) @ walk).mean() < 0.03 * spread
    theta, path = np.ones(50), []  # noisy descent of a quadratic
    for _ in range(STEPS):
        theta = theta - 0.02 * (theta + rng.normal(size=50))
        path.append(theta)
    noise = np.abs(path[-1] - exact @ np.array(path)).mean()
    assert np.abs((mixture - exact) @ np.array(path)).mean() < 0.06 * noise
    # and without what was kept in between it is worse, and says so
    assert mix(kept[-1:], Kept(wanted, STEPS)).error > 2 * found.error


CONFIG = Config(
    network=Network(8, 3),
    optimization=Optimization(steps=30, batch=16, rate=1e-2, widths=(0.05, 0.1)),
    evaluate=15,
    snapshots=5,
)


def test_a_run_keeps_them_through_stops_and_packs(tmp_path):
    torch.set_default_dtype(torch.float32)  # as for a user
    seen = []

    def look(step, loss, average):
        seen.append(fields["run"]())
        return False

    # the weights of every step, to average them directly
    from fokker.runs import training

    fields, state = {}, training.State

    class Spy(state):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            fields["run"] = lambda: [p.detach().double().clone() for p in self.energy.parameters()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "State", Spy)
        alone = fit(CONFIG, tmp_path / "alone", watch=look)
    names = list(newest(alone.path).model)
    for i, w in enumerate(CONFIG.optimization.widths):
        p = torch.from_numpy(profile(w, 30, 30))
        kept = newest(alone.path).powers[i]
        for j, name in enumerate(names):
            direct = sum(c * step[j] for c, step in zip(p, seen, strict=True))
            torch.testing.assert_close(kept[name].double(), direct, rtol=1e-5, atol=1e-6)
    assert sorted(snapshots_of(alone.path)) == [5, 10, 15, 20, 25, 30]
    # a width that was not kept
    p = torch.from_numpy(profile(0.08, 30, 30))
    found, error = average_of(alone.path, CONFIG, 0.08)
    assert error < 0.05
    last, spread = seen[-1], []
    for j, name in enumerate(names):
        direct = sum(c * step[j] for c, step in zip(p, seen, strict=True))
        spread.append(float((last[j] - direct).norm()))
        assert float((found[name].double() - direct).norm()) < 0.1 * spread[-1] + 1e-3
    run = load(alone.path, width=0.08)
    assert torch.equal(run.energy.state_dict()[names[0]], found[names[0]])
    assert "width 0.08" in run.weights and "width" not in load(alone.path).weights
    # stopped, packed, unpacked
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path / "run", watch=lambda k, loss, average: k == 12)
    pack(tmp_path / "run", tmp_path / "pack", snapshots=True)
    unpack(tmp_path / "pack", tmp_path / "other")
    fit(CONFIG, tmp_path / "other", resume=True)
    again, _ = average_of(tmp_path / "other", CONFIG, 0.08)
    assert all(torch.equal(found[name], again[name]) for name in names)


def test_widths_that_cannot_be_had_are_refused(tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    short = replace(
        CONFIG, optimization=replace(CONFIG.optimization, steps=3), evaluate=3, snapshots=0
    )
    run = fit(short, tmp_path / "run").path
    with pytest.raises(ValueError, match=r"expected a width near those that were kept, 0.05, 0.1"):
        load(run, width=0.25)
    plain = replace(short, optimization=replace(short.optimization, widths=()))
    with pytest.raises(ValueError, match="expected a run with power-function averages"):
        load(fit(plain, tmp_path / "plain").path, width=0.1)
    with pytest.raises(ValueError, match=r"expected widths from 0\.001 to 0\.28"):
        Optimization(widths=(0.5,))
    with pytest.raises(ValueError, match="expected snapshots only of power-function averages"):
        replace(plain, snapshots=5)
    main(["evaluate", str(run), "--widths", "0.05", "0.1", "--json"])
    assert capsys.readouterr().out.count('"width"') == 2
