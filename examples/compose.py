"""Compose two learned energies: both, either, one but not so sharply.

Sums of energies are products of densities: what neither was trained on, points that both find
likely, is there for the asking. Full: about 20 s on one core; --quick: a few steps.
"""

import sys
import torch

from fokker.data import Circles, Moons, Planar
from fokker.energies import Energy, Quadratic
from fokker.grid import Grid
from fokker.networks import MLP
from fokker.objectives import MultiTimeDCD

torch.manual_seed(0)


def learn(data: Planar) -> Energy:
    energy, objective = MLP(2, 64, 3, features=32) + Quadratic(0.7), MultiTimeDCD()
    optimizer = torch.optim.Adam(energy.parameters(), 3e-3)
    for _ in range(5 if "--quick" in sys.argv else 500):
        loss = objective(energy, data.sample(256)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return energy.requires_grad_(False)


moons, circles = learn(Moons()), learn(Circles())
densities = {
    "moons": moons,
    "moons and circles": moons + circles,  # a product: likely under both
    "moons or circles": moons | circles,  # a mixture
    "moons, hot": moons / 3,  # the power 1/3: the same modes, wider
}
grid = Grid(-2, 2, 200)
for name, energy in densities.items():
    e = grid.evaluate(energy, dtype=torch.float32)
    p = torch.softmax(-e, 0)  # on the cells of the grid
    entropy = -(p * torch.log(p.clamp_min(1e-30) / grid.cell)).sum()
    print(f"{name:18} entropy {entropy:6.2f} nats")
