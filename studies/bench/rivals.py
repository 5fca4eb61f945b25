r"""What our steps are compared with: the plain step, the cheapest CD-1, what one would write
first, and torchebm."""

__all__ = ["AtLevel", "cheapest_cd", "peers", "plain", "reference"]

import torch
import torch.nn.functional as F

from collections.abc import Callable
from contextlib import contextmanager
from fokker.networks import convolution
from fokker.objectives.levels import Hutchinson
from torch import Tensor, nn
from typing import Any

from .nets import Net

Run = Callable[[], Any]


class AtLevel(nn.Module):
    r"""An energy E(x, σ) at one level, as a module."""

    def __init__(self, energy: nn.Module, sigma: float) -> None:
        super().__init__()
        self.energy, self.sigma = energy, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.energy(x, x.new_full((len(x),), self.sigma))


def plain(energy: nn.Module) -> Callable[..., Any]:
    r"""The gradient of the mean energy: forward and backward, nothing else."""

    def step(params: Any, buffers: Any, x: Tensor, state: Any = ()) -> Any:
        call = lambda p: torch.func.functional_call(energy, p | buffers, (x,)).mean()
        gradients, loss = torch.func.grad_and_value(call)(params)
        return gradients, loss, (), {}

    return step


def cheapest_cd(energy: nn.Module, step_size: float) -> Callable[..., Any]:
    r"""CD-1 with one backward pass at the data for both gradients, in x and in the parameters."""

    def step(params: Any, buffers: Any, x: Tensor, state: Any = ()) -> Any:
        call = lambda p, x: torch.func.functional_call(energy, p | buffers, (x,))
        e, pull = torch.func.vjp(call, params, x)  # pyright: ignore[reportAssignmentType]
        up, slope = pull(torch.full_like(e, 1 / len(x)))
        noise = torch.randn(x.shape, dtype=x.dtype, device=x.device)
        y = x - step_size / 2 * len(x) * slope + step_size**0.5 * noise
        down, other = torch.func.grad_and_value(lambda p: call(p, y).mean())(params)
        return {k: up[k] - down[k] for k in params}, e.mean() - other, (), {}

    return step


def reference(energy: nn.Module, x: Tensor, level: float) -> Run:
    r"""Hutchinson's DCD by eager double backward, as one would write it first."""
    params = [p for p in energy.parameters() if p.requires_grad]
    step = Hutchinson().step * level**2

    def run() -> Any:
        with textbook_convolutions():
            y = x + level * torch.randn_like(x)
            z = (y + step**0.5 * torch.randn_like(x)).requires_grad_()
            e = energy(z)
            (g,) = torch.autograd.grad(e.sum(), z, create_graph=True)
            v = torch.randint_like(x, 2) * 2 - 1
            (hv,) = torch.autograd.grad((g * v).sum(), z, create_graph=True)
            bracket = (g.square() - v * hv).flatten(1).sum(1) / 2
            loss = (bracket + (energy(y) - e) / step).mean()
            return torch.autograd.grad(loss, params, allow_unused=True)

    return run


@contextmanager
def textbook_convolutions() -> Any:
    r"""Replaces our convolution by PyTorch's own, within."""
    ours = convolution.convolve
    convolution.convolve = F.conv2d  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        convolution.convolve = ours


def peers(energy: nn.Module, x: Tensor, net: Net) -> dict[str, Run]:
    r"""Returns the steps of torchebm on the same network, by name; none if it is not installed."""
    try:
        from torchebm import losses
        from torchebm.core import BaseModel
        from torchebm.samplers import LangevinDynamics
    except ImportError:
        return {}

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__(device=x.device)
            self.net = energy

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model, on = Model(), {"device": x.device}
    params = list(model.parameters())
    langevin = lambda: LangevinDynamics(model, step_size=5e-4, **on)
    cd = losses.ContrastiveDivergence
    made = {
        "cd-1": lambda: cd(model, langevin(), k_steps=1, **on),
        "cd-10": lambda: cd(model, langevin(), k_steps=10, **on),
        "dsm": lambda: losses.DenoisingScoreMatching(model, noise_scale=0.3, **on),
        "ssm": lambda: losses.SlicedScoreMatching(model, n_projections=1, **on),
    }
    if net.kind == "points":  # its exact score matching fails on convolutions
        made["sm"] = lambda: losses.ScoreMatching(model, hessian_method="exact", **on)
        made["pcd-20"] = lambda: cd(
            model, langevin(), k_steps=20, persistent=True, buffer_size=10_000, init_steps=0, **on
        )

    def step(make: Callable[[], nn.Module]) -> Run:
        loss = make()

        def run() -> Any:
            out = loss(x)
            value = out[0] if isinstance(out, tuple) else out
            return torch.autograd.grad(value, params, allow_unused=True)

        return run

    return {name: step(make) for name, make in made.items()}
