"""Your own energy: any module from (B, *) to (B). Here a learned ellipse, fitted by DCD.

About 10 s on one core.
"""

import torch

from fokker.data import Moons
from fokker.objectives import MultiTimeDCD

torch.manual_seed(0)


class Ellipse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.center, self.shape = (torch.nn.Parameter(p) for p in (torch.zeros(2), torch.eye(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # E(x); the density is exp(-E) / Z
        return ((x - self.center) @ self.shape).square().sum(1)


energy, objective = Ellipse(), MultiTimeDCD()
optimizer = torch.optim.Adam(energy.parameters(), 0.05)
for _ in range(300):
    loss = objective(energy, Moons().sample(500)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
covariance = torch.linalg.inv(2 * energy.shape @ energy.shape.T).detach()
print("learned covariance", covariance.tolist())
print("covariance of the data", Moons().sample(100_000).T.cov().tolist())
