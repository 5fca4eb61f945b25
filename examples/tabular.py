"""Your own table: a density of its rows, and which of them do not belong.

Writes a CSV file with three measurements of 800 healthy machines, and trains a density on it. A
failing machine has every value in its usual range; it is their combination that is unusual.
Full: about 20 s on one core; --quick: a few steps.
"""

import sys
import torch

from dataclasses import replace
from fokker import fit
from fokker.runs.config import Network, Optimization
from fokker.runs.presets import table_config
from pathlib import Path
from tempfile import TemporaryDirectory

torch.manual_seed(0)
quick = "--quick" in sys.argv


def machines(n: int, healthy: bool) -> torch.Tensor:
    load = torch.rand(n)
    heat = (load if healthy else torch.rand(n)) ** 2 + 0.05 * torch.randn(n)  # follows the load
    hum = torch.sin(6 * load) + 0.1 * torch.randn(n)
    return torch.stack([100 * load, 20 + 60 * heat, 40 + 10 * hum], dim=1)


with TemporaryDirectory() as folder:
    file = Path(folder, "machines.csv")
    rows = machines(800, healthy=True).tolist()
    file.write_text("load,heat,hum\n" + "".join(f"{a:.3f},{b:.3f},{c:.3f}\n" for a, b, c in rows))

    config = table_config(str(file))  # three parts: training, validation and test rows
    steps = Optimization(steps=4 if quick else 600, batch=200)
    network = Network(width=64, confine=3.0)
    config = replace(config, optimization=steps, network=network, evaluate=2 if quick else 100)
    energy = fit(config, Path(folder, "run")).energy  # in the units of the table, normalized

good, bad = machines(500, healthy=True), machines(500, healthy=False)
print(f"mean log-density: healthy {-energy(good).mean():.2f}, failing {-energy(bad).mean():.2f}")
# the outlier score is the share of the test rows that are more likely: 0.98 or more is an alarm
alarms = [float((energy.outlier_score(x) >= 0.98).double().mean()) for x in (good, bad)]
print(f"share with an alarm: healthy {alarms[0]:.0%}, failing {alarms[1]:.0%}")
