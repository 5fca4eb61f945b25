r"""A trial: a correction of the clusters that is learned by contrast with their own samples.

.. math:: E(x) = E_0(x, s) - f_\theta(x), \quad
    \min_\theta \; \mathbb{E}_{x} \log\big(1 + e^{-f(x)}\big)
    + \mathbb{E}_{y} \log\big(1 + e^{f(y)}\big) ,

with rows x with noise s and samples y of the mixture :math:`E_0` with noise s. The best f is the
logarithm of the ratio of their densities, so E is the energy of the noisy rows. Unlike the
divergence, which compares slopes point by point, the contrast weighs whole regions against each
other, in which the mixture has too much mass or too little. f is bounded and zero at the start;
the weights with the least loss on held-out rows are kept, if they are better than f = 0 by more
than two standard errors.

References:
    | Noise-Contrastive Estimation (Gutmann and Hyvarinen, 2010)
"""

__all__ = ["Contrasted", "contrast"]

import torch

from fokker.tables.correction import Learning, Net
from fokker.tables.mixture import Clusters
from torch import Tensor, nn
from torch.nn.functional import softplus

SETTINGS = Learning()


class Contrasted(nn.Module):
    r"""Creates the energy of clusters minus a bounded correction, at one level."""

    def __init__(self, base: Clusters, net: Net, bound: float) -> None:
        super().__init__()
        self.base, self.net, self.bound = base, net, bound

    def ratio(self, x: Tensor, sigma: float) -> Tensor:
        s = torch.as_tensor(sigma, dtype=x.dtype)
        return self.bound * torch.tanh(self.net.to(x.dtype)(x, s) / self.bound)

    def forward(self, x: Tensor, sigma: float) -> Tensor:
        return self.base(x, sigma) - self.ratio(x, sigma)


def contrast(
    rows: Tensor, clusters: int, level: float, floor: float, seed: int
) -> tuple[nn.Module, float, float]:
    r"""Returns the corrected energy of rows, or the clusters alone if the correction is no gain,
    the gain of the held-out loss and its standard error."""
    generator = torch.Generator().manual_seed(seed)
    whole = Clusters.fit(rows, clusters, floor, 3, generator)
    if len(rows) < 50:
        return whole, 0.0, 0.0
    held, train = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    base = Clusters.fit(train, clusters, floor, 3, generator)
    energy = Contrasted(base, Net(rows.shape[1], SETTINGS.width, generator), SETTINGS.bound)
    blur = lambda x: x + level * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    losses = lambda x, y: softplus(-energy.ratio(x, level)) + softplus(energy.ratio(y, level))
    again = max(1, 1000 // len(held))
    x, y = blur(held.repeat(again, 1)), blur(base.sample(again * len(held), generator))
    with torch.no_grad():
        start = losses(x, y)
    least, best, kept, since = float(start.mean()), None, start, 0
    optimizer = torch.optim.Adam(energy.net.parameters(), SETTINGS.rate)
    for step in range(1, SETTINGS.steps + 1):
        which = torch.randint(len(train), (SETTINGS.batch,), generator=generator)
        loss = losses(blur(train[which]), blur(base.sample(SETTINGS.batch, generator))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SETTINGS.every:
            continue
        with torch.no_grad():
            now = losses(x, y)
        if float(now.mean()) < least:
            least, kept, since = float(now.mean()), now, 0
            best = {k: v.clone() for k, v in energy.net.state_dict().items()}
        else:
            since += 1
            if since == SETTINGS.patience:
                break
    difference = (start - kept).reshape(again, -1).mean(0)
    gain, error = float(difference.mean()), float(difference.std() / len(held) ** 0.5)
    if best is None or gain <= SETTINGS.errors * error:
        return whole, gain, error
    energy.net.load_state_dict(best)
    energy.base = whole
    return energy.requires_grad_(False), gain, error
