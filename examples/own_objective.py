"""Your own objective: write `compute`. Here noise-contrastive estimation against a Gaussian.

About 10 s on one core.
"""

import torch
import torch.nn.functional as F

from dataclasses import dataclass
from fokker.analytic import Gaussian, GaussianMixture
from fokker.energies import Quadratic
from fokker.metrics import evaluate_mixture
from fokker.networks import MLP
from fokker.objectives import Objective, Output

torch.manual_seed(0)


@dataclass(frozen=True)
class NoiseContrastive(Objective):
    noise: Gaussian

    def compute(self, energy, x, state, generator) -> Output:  # noqa: ANN001
        fake = self.noise.sample(len(x), generator)
        logit = lambda y: self.noise(y) - energy(y)  # log p - log q
        loss = F.softplus(-logit(x)).mean() + F.softplus(logit(fake)).mean()
        return Output(loss, None, {})


objective = NoiseContrastive(Gaussian(torch.zeros(2), 2.0))
truth = GaussianMixture(torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), 0.2)
energy = MLP(2, 64, 3) + Quadratic(2.0)
optimizer = torch.optim.Adam(energy.parameters(), 5e-3)
for _ in range(400):
    loss = objective(energy, truth.sample(256)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"KL {evaluate_mixture(energy, truth).kl:.4f} nats")
