"""Two moons in a minute: train an energy with multi-time DCD, judge it, sample it, draw it."""

import matplotlib as mpl
import torch

from fokker.data import Moons
from fokker.energies import Quadratic
from fokker.grid import Grid
from fokker.metrics import evaluate_planar
from fokker.networks import MLP
from fokker.objectives import MultiTimeDCD
from fokker.samplers import MALA
from pathlib import Path

mpl.use("Agg")
import matplotlib.pyplot as plt

torch.manual_seed(0)
data, objective, steps = Moons(), MultiTimeDCD(), 600
energy = MLP(2, 128, 4, features=64) + Quadratic(0.7)
optimizer = torch.optim.Adam(energy.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for step in range(steps):
    out = objective(energy, data.sample(512))
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % 100 == 0:
        print(f"step {step + 1}  loss {out.loss.item():9.2f}")

report = evaluate_planar(energy, data)
print(f"Fisher gap {report.fisher_gap:.2%}  KL {report.kl:.4f}  off {report.off_mass:.2%}")
run = MALA(1e-3, warmup=300).run(energy, data.sample(500), steps=100)
print(f"MALA: acceptance {run.acceptance.mean:.2f}, R-hat {run.rhat().max():.3f}")

grid = Grid(-1, 1, 300)
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, title, e in (
    (axes[0], "true density", grid.evaluate(data.energy())),
    (axes[1], "learned density", grid.evaluate(energy, torch.float32)),
):
    density = torch.exp(-e.double() - grid.log_normalizer(e)).reshape(300, 300)
    axis.imshow(density.T, origin="lower", extent=(-1, 1, -1, 1), cmap="magma")
    axis.set_title(title)
x = run.samples[-1]
axes[2].scatter(x[:, 0], x[:, 1], s=2)
axes[2].set(title="samples by MALA", xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
for axis in axes:
    axis.set(xticks=[], yticks=[])
path = Path("out/two_moons.png")
path.parent.mkdir(exist_ok=True)
fig.savefig(path, dpi=150)
print(f"picture: {path}")
