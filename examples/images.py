"""Train an energy of images and draw new ones: from noise to digits down the probability flow.

A small U-Net energy E(x, sigma) of every noise level learns 300 digits of 16 x 16 pixels; Heun's
method with EDM's ladder of levels then draws from it, and the energy says which drawings it thinks
likely. Writes digits.png. Full: about a minute on one core; --quick: a few steps.
"""

import sys
import torch

from fokker.data.images import read_images
from fokker.data.picture import save_png
from fokker.networks import UNetEnergy
from fokker.objectives import LevelDCD, Limit, LogNormal
from fokker.samplers import Heun, karras
from pathlib import Path

torch.manual_seed(0)
quick = "--quick" in sys.argv

digits = read_images(Path(__file__).parents[1] / "tests/data/mnist-mini", size=16)
generator = torch.Generator().manual_seed(0)
energy = UNetEnergy(channels=1, width=8, blocks=1, attention=(), head=8)
objective = LevelDCD(LogNormal(), Limit(), conditional=True, weight="edm")
optimizer = torch.optim.Adam(energy.parameters(), 5e-3)
for step in range(2 if quick else 200):
    loss = objective(energy, digits.batch(16, generator)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {float(loss.detach()):.1f}")

flow = Heun(karras(3 if quick else 18, sigma_min=0.02, sigma_max=10.0))
drawn = flow.run(energy, 4 if quick else 25, digits.shape, generator)
order = energy(drawn.samples, torch.tensor(0.02)).argsort()  # the likely ones first
save_png(Path("digits.png"), drawn.samples[order])
print(f"{len(drawn.samples)} digits, {drawn.evaluations} evaluations each: digits.png")
