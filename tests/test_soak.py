r"""The check of memory over a long run."""

import importlib.util
import torch

from dataclasses import replace
from fokker.runs.config import Network, Optimization
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "studies/trust/soak.py"
spec = importlib.util.spec_from_file_location("soak", SCRIPT)
assert spec is not None and spec.loader is not None
soak = importlib.util.module_from_spec(spec)
spec.loader.exec_module(soak)


def test_rounds_go_on_from_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "FEWEST", 3)
    torch.set_default_dtype(torch.float32)
    small = Network(width=4, layers=2, confine=0.7)
    config = replace(
        soak.CONFIG, network=small, optimization=Optimization(steps=10, batch=8), evaluate=5
    )
    held = soak.soak(config, 0.0, tmp_path, lambda: 0.0)
    assert len(held) == 3 and min(held) > 2**20
    names = [path.name for path in (tmp_path / "run/checkpoint").iterdir()]
    assert "step-00000003" in names  # the third round of one run


def test_growth_is_that_of_the_peak_after_warming_up():
    assert soak.growth([1, 50, 100, 100, 90, 100, 80, 100, 100]) == 0
    assert abs(soak.growth([1, 1, 1, 100, 90, 80, 95, 103, 80]) - 3) < 1e-9
    assert soak.growth([500, 1, 1, 100, 100, 100, 100, 100, 98]) == 0
