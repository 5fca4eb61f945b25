"""A density in the plane in twenty lines: learn it, judge it against the truth, draw from it.

Shows the whole of the Python interface. Full: about 20 s on one core; --quick: a few steps.
"""

import sys
import torch

from fokker.data import Moons
from fokker.energies import Quadratic
from fokker.metrics import evaluate_planar
from fokker.networks import MLP
from fokker.objectives import MultiTimeDCD
from fokker.samplers import MALA

torch.manual_seed(0)
data, objective = Moons(), MultiTimeDCD()
energy = MLP(2, 64, 3, features=32) + Quadratic(0.7)  # a network, and what keeps it normalizable
optimizer = torch.optim.Adam(energy.parameters(), 3e-3)
for _ in range(5 if "--quick" in sys.argv else 600):
    loss = objective(energy, data.sample(256)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

report = evaluate_planar(energy, data, points=5000)
print(f"KL {report.kl:.3f} nats, relative Fisher gap {report.fisher_gap:.1%}")
chains = MALA(step_size=1e-3, warmup=50).run(energy, data.sample(200), steps=50)
print(f"{len(chains.samples[-1])} points drawn, acceptance {chains.acceptance.mean:.0%}")
