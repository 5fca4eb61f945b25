r"""An exact base under a learned correction, at every noise level.

.. math:: E(x, \sigma) = E_0(x, \sigma) + B \tanh\big( f_\theta(x, \sigma) / B \big)

with :math:`E_0` a mixture of Gaussians, exact and normalized at every level
(`fokker.tables.mixture`), and a network f whose last layer starts at zero. So the energy starts as
good as the base, and its density is normalizable whatever the network learns:
:math:`e^{-B} \leq Z \leq e^{B}`.

**The objective** is the limit form of `LevelDCD`, the diffusion contrastive divergence for short
steps from a noise level on, with levels log-uniform between the least level and 1 (standard
deviations of the data). The base is exact at every level, so the correction only has to learn what
is left of the score; the limit is the form without a step, with the least variance, and it needs
no second derivative, which makes a step cost as much as that of a denoiser.

**When to stop.** Every few steps the same divergence is taken on held-out rows, with the same
noise each time. The weights with the least one are kept, and only if they are better than the base
by more than two standard errors; otherwise the base is returned unchanged.

**As a density** the correction is read at one level s, on top of the base without noise, which
blurs nothing:

.. math:: p(x) = \frac{1}{Z} \, p_0(x) \, e^{-c(x, s)}, \quad
    Z = \mathbb{E}_{p_0} \, e^{-c(x, s)}, \quad c = B \tanh(f_\theta / B) .

Z is a mean over exact samples of the base, of a bounded quantity, so it has an honest standard
error (`tilt`). Samples of p are those of the base that are accepted with probability
:math:`e^{-c(x, s) - M}`, with M the largest :math:`-c` that was met (`draw`).
"""

__all__ = ["Corrected", "Learning", "Outcome", "Tilt", "draw", "learn", "tilt"]

import math
import torch

from collections.abc import Mapping
from dataclasses import dataclass
from torch import Tensor, nn
from typing import Any, NamedTuple

from .mixture import LevelEnergy, assemble, other
from ..derivatives import gradient
from ..energies import Energy
from ..objectives import LevelDCD, Limit, LogUniform
from ..samplers import Unreliable
from ..shapes import align, dot

PROPOSALS = 20_000  # of the base, at a time
ROUNDS = 200  # of proposals without enough points after which drawing is given up


@dataclass(frozen=True)
class Learning:
    r"""Creates the settings of a correction.

    Arguments:
        steps: The largest number of steps.
        batch: The rows a step.
        rate: The learning rate of Adam; it falls to zero by a cosine.
        width: The width of the two hidden layers.
        bound: The bound B of the correction, nats.
        highest: The highest level; the lowest is an argument of `learn`.
        every: The steps between two looks at the held-out rows.
        patience: The looks without a gain after which training stops.
        errors: The standard errors by which the correction must be better than the base.
    """

    steps: int = 400
    batch: int = 256
    rate: float = 2e-3
    width: int = 64
    bound: float = 10.0
    highest: float = 1.0
    every: int = 25
    patience: int = 4
    errors: float = 2.0


class Outcome(NamedTuple):
    r"""What training a correction gave."""

    energy: Energy  # the base itself if the correction was no gain
    gain: float  # by which the held-out divergence fell, per row
    error: float  # standard error of the gain
    steps: int
    used: bool


class Net(nn.Module):
    r"""Creates the network :math:`f_\theta(x, \sigma)`, zero at the start."""

    def __init__(self, dim: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Linear(dim + 1, width, dtype=torch.float64),
            nn.Linear(width, width, dtype=torch.float64),
            nn.Linear(width, 1, dtype=torch.float64),
        ])
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
                if layer is self.layers[-1]:
                    layer.weight.zero_()
                    layer.bias.zero_()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        s = sigma.expand(len(x))[:, None]
        h = torch.cat([x / torch.sqrt(1 + s**2), torch.log(s) / 4], 1)
        for layer in self.layers[:-1]:
            h = nn.functional.silu(layer(h))
        return self.layers[-1](h)[:, 0]


class Corrected(Energy):
    r"""Creates the energy of a base and a bounded correction.

    Arguments:
        base: The base, exact at every level.
        net: The network f.
        bound: The bound B.
    """

    def __init__(self, base: LevelEnergy, net: Net, bound: float) -> None:
        super().__init__()
        self.base, self.net, self.bound = base, net, bound

    def correction(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        s = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
        return self.bound * torch.tanh(self.net(x, s) / self.bound)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], bound: float) -> "Corrected":
        r"""Returns the energy with these parameters and buffers."""
        parts: dict[str, dict[str, Tensor]] = {"base": {}, "net": {}}
        for name, t in tensors.items():
            head, _, rest = name.partition(".")
            parts.get(head, parts["base"])[rest or name] = t
        base, first = assemble(parts["base"]), parts["net"].get("layers.0.weight")
        dim = base.centers.shape[1]
        if first is None or first.ndim != 2 or first.shape[1] != dim + 1 or not len(first):
            raise other(parts["net"], f"a correction in {dim} dimensions")
        return cls(base, Net(dim, len(first), None), bound)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        return self.base(x, sigma) + self.correction(x, sigma)

    def tilted(self, x: Tensor, level: float) -> Tensor:
        r"""Returns the energy of the base without noise, plus the correction at a level."""
        return self.base(x) + self.correction(x, level)


class Tilt(NamedTuple):
    r"""The constant of a base tilted by a correction."""

    log_z: float
    error: float  # standard error of it
    share: float  # effective share of the weights


def tilt(energy: Corrected, level: float, generator: torch.Generator, n: int = PROPOSALS) -> Tilt:
    r"""Returns :math:`\log Z` of the tilted base from n samples of the base."""
    with torch.no_grad():
        log_w = -energy.correction(energy.base.sample(n, generator), level)
    w = torch.exp(log_w - (top := float(log_w.max())))
    mean = float(w.mean())
    error = float(w.std()) / (mean * math.sqrt(n))
    return Tilt(top + math.log(mean), error, mean**2 / float(w.square().mean()))


def draw(energy: Corrected, level: float, n: int, generator: torch.Generator) -> Tensor:
    r"""Returns n samples of the tilted base."""
    kept, top = [x[:0] for x in (energy.base.sample(1, generator),)], -math.inf
    for _ in range(ROUNDS):
        x = energy.base.sample(PROPOSALS, generator)
        with torch.no_grad():
            log_w = -energy.correction(x, level)
        top = max(top, float(log_w.max()))
        u = torch.rand(len(x), generator=generator, dtype=x.dtype)
        kept.append(x[torch.log(u) < log_w - top])
        if sum(map(len, kept)) >= n:
            return torch.cat(kept)[:n]
    raise Unreliable(
        f"expected {n} samples among {ROUNDS * PROPOSALS} of the base, got {sum(map(len, kept))}:"
        " the correction is far from the base"
    )


def held(energy: Corrected, x: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    r"""Returns the limit of the divergence at noisy rows, up to a constant of the data,
    :math:`\tfrac{1}{2} \|\sigma \nabla E - \varepsilon\|^2` for each row."""
    y = x + align(sigma, x) * noise
    pull = -energy.base.score(y, sigma)
    _, more = gradient(lambda p: energy.correction(p, sigma), y)
    miss = align(sigma, x) * (pull + more) - noise
    return (dot(miss, miss) / 2).detach()


def learn(
    base: LevelEnergy,
    train: Tensor,
    validation: Tensor,
    lowest: float,
    seed: int,
    settings: Learning = Learning(),
) -> Outcome:
    r"""Returns the energy with a learned correction, or the base if that is no gain.

    Arguments:
        base: The base, fitted to the training rows.
        train: The training rows, :math:`(N, D)` in float64.
        validation: The rows that decide when to stop and whether the correction is kept.
        lowest: The lowest noise level.
        seed: The seed.
        settings: The settings.
    """
    generator = torch.Generator().manual_seed(seed)
    energy = Corrected(base, Net(train.shape[1], settings.width, generator), settings.bound)
    law = LogUniform(lowest, max(settings.highest, 2 * lowest))
    objective = LevelDCD(law, Limit(), conditional=True, weight="variance")
    again = max(1, 1000 // len(validation))  # a row is looked at with several noises
    rows = validation.repeat(again, 1)
    sigma = law.sample(rows, generator)
    noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    start = held(energy, rows, sigma, noise)
    least, best, kept, since = float(start.mean()), None, start, 0
    optimizer = torch.optim.Adam(energy.net.parameters(), settings.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    step = 0
    for step in range(1, settings.steps + 1):
        which = torch.randint(len(train), (settings.batch,), generator=generator)
        loss = objective(anchored(energy), train[which], None, generator).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % settings.every:
            continue
        now = held(energy, rows, sigma, noise)
        if not torch.isfinite(now).all():
            raise FloatingPointError(f"expected a finite divergence, got none at step {step}")
        if float(now.mean()) < least:
            least, kept, since = float(now.mean()), now, 0
            best = {k: v.clone() for k, v in energy.net.state_dict().items()}
        else:
            since += 1
            if since == settings.patience:
                break
    difference = (start - kept).reshape(again, -1).mean(0)
    gain = float(difference.mean())
    error = float(difference.std() / len(difference) ** 0.5) if len(difference) > 1 else 0.0
    used = best is not None and gain > settings.errors * error
    if best is not None:
        energy.net.load_state_dict(best)
    energy.requires_grad_(False)
    return Outcome(energy if used else base, gain, error, step, used)


def anchored(energy: Corrected) -> Any:
    r"""Returns the energy for training: the base enters by its value and gradient at the points,
    which are held fixed, for it has no parameters."""

    def forward(x: Tensor, sigma: Tensor) -> Tensor:
        here = x.detach()
        with torch.no_grad():
            pull = -energy.base.score(here, sigma)
        return ((x - here) * pull).sum(1) + energy.correction(x, sigma)

    return forward
