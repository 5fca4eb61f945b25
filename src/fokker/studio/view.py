r"""Pictures of an energy in the plane, as numbers that a page can draw.

A `View` knows the window, the truth (an exact density, or drawn points) and the particles. From
an energy it makes

- a **frame**: the log-density on a grid, normalized by a sum over it and over coarser cells all
  about, three times as wide, so that mass outside the window counts; the score at the nodes of a
  coarser one;
  particles after a few steps of MALA; and how far the model is from the truth;
- its **evolution** under Brownian motion, :math:`E^{(t)}`, exact on the grid, beside one Taylor
  step :math:`E + \tfrac{t}{2} (\Delta E - \|\nabla E\|^2)`, whose error is of order :math:`t^2`;
- the **meeting** of data and model, the paper's Figure 1: under contrastive divergence the data is
  carried by the Langevin diffusion of the model, which stands still, :math:`\mathrm{KL}(p_t \| q)
  \to 0`; under diffusion contrastive divergence one Brownian motion carries both,
  :math:`\mathrm{KL}(p_t \| q_t) \to 0`. How much KL falls is the divergence.

Arrays travel as bytes behind a header in JSON. A log-density becomes whole numbers: the largest
value of a grid is stored, and what is `RANGE` nats below it is cut off.
"""

__all__ = ["RANGE", "View", "pack"]

import json
import math
import numpy as np
import torch

from torch import Tensor
from typing import Any

from ..derivatives import EnergyLike, Exact, score, value
from ..grid import Grid
from ..metrics import fisher_gap
from ..objectives.cd import langevin
from ..runs.config import Config
from ..samplers import MALA
from ..shapes import dot
from ..tasks import task_of

SIZE = 80  # cells a side of a frame
ARROWS = 19  # of the score, a side
PARTICLES = 250
MOVES = 2  # of a particle, a frame
RANGE = 30.0  # nats that a log-density spans
DEPTH = 16.0  # nats that a log-density of an animation spans
TIMES = 25  # of an animation
WIDE = 1.5  # the window of an animation, in those of a frame
CUT = 25.0  # nats above its least value at which an energy is flat, far from all mass


def pack(header: dict[str, Any], **arrays: np.ndarray) -> bytes:
    r"""Returns one message: the length of the header, the header, and the bytes of each array."""
    layout = [{"name": k, "dtype": a.dtype.name, "shape": a.shape} for k, a in arrays.items()]
    text = json.dumps({**header, "arrays": layout}, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)  # so that arrays of every type start where they may
    parts = [len(text).to_bytes(8, "little"), text]
    for a in arrays.values():
        raw = np.ascontiguousarray(a).tobytes()
        parts.append(raw + b"\0" * (-len(raw) % 8))
    return b"".join(parts)


def finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def levels(logs: Tensor, span: float, dtype: type) -> tuple[np.ndarray, float]:
    r"""Returns a log-density as whole numbers, rows from top to bottom, and its largest value."""
    size = math.isqrt(logs.shape[-1])
    top = float(logs.max())
    share = ((logs - top) / span + 1).clamp(0, 1).nan_to_num(0.0)  # -inf - (-inf): no mass at all
    image = share.reshape(*logs.shape[:-1], size, size).transpose(-1, -2).flip(-2)
    most = np.iinfo(dtype).max
    return (image * most).round().numpy().astype(dtype), top


class View:
    r"""Creates the view of a run.

    Arguments:
        config: The configuration of the run, whose data is read.
    """

    def __init__(self, config: Config) -> None:
        self.view = view = task_of(config).load().plane()
        self.shape = (2,)
        self.half, self.data, self.scores = view.half, view.data, view.scores
        self.generator = torch.Generator().manual_seed(config.seed)
        self.grid = Grid(-self.half, self.half, SIZE)
        around = Grid(-3 * self.half, 3 * self.half, 36)  # its edges meet those of the window
        centers = around.points(torch.float32)
        outside = centers[centers.abs().amax(1) > self.half]
        self.points = torch.cat((self.grid.points(torch.float32), outside))
        cells = torch.full((len(self.points),), around.cell, dtype=torch.float64)
        cells[: SIZE**2] = self.grid.cell
        self.log_cells = torch.log(cells)
        self.nodes = Grid(-self.half, self.half, ARROWS).points(torch.float32)
        self.truth = view.true_energy(self.grid) if view.exact else None
        self.off = None if self.truth is None else off_data(self.grid, self.truth)
        u = torch.rand(PARTICLES, 2, generator=self.generator)
        self.particles = self.half * (2 * u - 1)
        self.sampler = MALA(view.step)

    def plane(self, energy: Any) -> EnergyLike:
        r"""Returns an energy of points of the plane: a table is trained in units of its own."""
        units = self.view.units
        return lambda x: value(energy, units(x))

    def start(self, header: dict[str, Any]) -> bytes:
        r"""Returns the message that describes the window and the data."""
        about = {"size": SIZE, "range": RANGE, "half": self.half, "exact": self.truth is not None}
        arrays = {"data": self.data.numpy().astype(np.float32)}
        if self.truth is not None:
            image, top = levels(-self.truth, RANGE, np.uint16)
            arrays["truth"], about["truth_top"] = image, top
        return pack({**header, **about}, **arrays)

    def frame(self, energy: Any, header: dict[str, Any], losses: list[float]) -> bytes:
        r"""Returns the message of a frame, after the particles have moved.

        Arguments:
            energy: The energy, in the units it is trained in.
            header: What to send along.
            losses: The losses of the steps since the last frame.
        """
        plane = self.plane(energy)
        with torch.no_grad():
            e = value(plane, self.points).double()
        if not torch.isfinite(e).all():
            raise FloatingPointError("expected finite energies in the window, got NaN or infinity")
        self.move(plane)
        log_z = torch.logsumexp(self.log_cells - e, dim=0)
        logs = (-e - log_z)[: SIZE**2]
        image, top = levels(logs, RANGE, np.uint16)
        inside = self.particles.clamp(-4 * self.half, 4 * self.half)
        return pack(
            {**header, "top": top, **self.judge(energy, plane, logs, float(log_z))},
            log_density=image,
            score=score(plane, self.nodes).numpy().astype(np.float32),
            particles=inside.numpy().astype(np.float32),
            losses=np.asarray(losses, dtype=np.float32),
        )

    def move(self, plane: EnergyLike) -> None:
        r"""Moves the particles by a few steps of MALA under an energy."""
        state = self.sampler.init(plane, self.particles)
        for _ in range(MOVES):
            state, _ = self.sampler.step(plane, state, self.generator)
        self.particles = state.x

    def judge(
        self, energy: Any, plane: EnergyLike, logs: Tensor, log_z: float
    ) -> dict[str, float | None]:
        r"""Returns how far an energy is from the truth.

        Arguments:
            energy: The energy, in the units it is trained in.
            plane: The energy of points of the plane.
            logs: Its log-density on the grid of the frames.
            log_z: The logarithm of its normalizer.
        """
        if self.truth is not None and self.off is not None:
            on = float(torch.exp(logs[~self.off]).sum()) * self.grid.cell
            # all of the truth is in the window, so what the model has outside adds its logarithm
            inside = float(self.grid.log_normalizer(-logs))
            found = {"kl": float(self.grid.kl(self.truth, -logs)) - inside, "off_mass": 1 - on}
            if self.scores is not None:
                truth = self.scores
                found["fisher_gap"] = fisher_gap(plane, lambda x: truth, self.data[: len(truth)])
        else:
            with torch.no_grad():  # in the units of the plane
                found = {
                    name: float(value(energy, z).double().mean()) + log_z
                    for name, z in self.view.rows.items()
                }
        return {name: finite(number) for name, number in found.items()}

    def wide(self) -> tuple[Grid, Grid, Tensor]:
        r"""Returns the grid on which a density spreads, the window of it that is shown, and the
        indices of the cells of the window."""
        shown = Grid(-WIDE * self.half, WIDE * self.half, 120)
        grid = Grid(-1.5 * WIDE * self.half, 1.5 * WIDE * self.half, 180)
        inner = torch.arange(30, 150)
        return grid, shown, (inner[:, None] * 180 + inner).flatten()

    def evolve(self, energy: Any, header: dict[str, Any]) -> bytes:
        r"""Returns the evolution of the learned energy under Brownian motion, exact and by one
        Taylor step.

        The error of the step, in nats, is the mean of :math:`|E_{Taylor} - E^{(t)}|` under the
        evolved density.
        """
        plane, (grid, shown, inner) = self.plane(energy), self.wide()
        parts = []
        with torch.no_grad():
            for x in grid.points(torch.float32).split(8192):
                jet = Exact()(plane, x)
                rate = (jet.laplacian - dot(jet.gradient, jet.gradient)) / 2
                parts.append(torch.stack((jet.energy, rate)).double())
        e, rate = torch.cat(parts, dim=1)
        e = e + grid.log_normalizer(
            e
        )  # the evolution keeps the normalizer, which is 1 from here on
        times = [0.0, *torch.logspace(-5, -1, TIMES - 1).double().mul(self.half**2)]
        times = [float(t) for t in times]
        exact, taylor, errors = [], [], []
        for t in times:
            right = grid.blur(e, math.sqrt(t)) if t else e
            wrong = e + t * rate
            p = torch.exp(-right)
            on = p > 1e-9 * p.max()  # rounding of the transform elsewhere
            errors.append(float(grid.integrate(p[on] * (wrong - right)[on].abs())))
            exact.append(-right[inner])
            taylor.append(-wrong[inner])
        top = max(float(logs.max()) for logs in exact)
        images = {}
        for name, logs in (("evolved", exact), ("taylor", taylor)):
            # one scale for both, so that they compare; each time has its own largest value
            images[name] = np.stack([
                animated(a, float(b.max())) for a, b in zip(logs, exact, strict=True)
            ])
        tops = [float(logs.max()) for logs in exact]
        about = {
            "half": WIDE * self.half,
            "size": shown.size,
            "range": DEPTH,
            "top": top,
            "tops": tops,
        }
        return pack({**header, **about, "times": times, "errors": errors}, **images)

    def meet(self, energy: Any, header: dict[str, Any]) -> bytes:
        r"""Returns how data and model meet, by Langevin dynamics and by a common diffusion."""
        plane, (grid, shown, inner) = self.plane(energy), self.wide()
        generator = torch.Generator().manual_seed(0)
        data, model = (
            (e + grid.log_normalizer(e)).double()
            for e in (self.view.true_energy(grid), grid.evaluate(plane, torch.float32))
        )
        share = torch.linspace(0, 1, TIMES).double() ** 3.2  # of the time: much happens early
        times = [float(t) for t in (0.8 * self.half) ** 2 * share]
        images: dict[str, list[Tensor]] = {
            "data_spread": [],
            "model_spread": [],
            "data_langevin": [],
        }
        spread, relaxed = [], []
        for t in times:
            p, q = (grid.blur(e, math.sqrt(t)) if t else e for e in (data, model))
            q = torch.minimum(q, q.min() + CUT)  # below it a transform is rounding
            spread.append(float(grid.kl(p, q)))
            images["data_spread"].append(-p[inner])
            images["model_spread"].append(-q[inner])

        # under Langevin dynamics the model stays; far from all mass its energy is cut
        q = torch.minimum(model, model.min() + CUT)
        q = q + grid.log_normalizer(q)
        clock = [float(t) for t in 0.25 * self.half**2 * share]
        for density in grid.relax(torch.exp(-data), q, clock):
            logs = torch.log(density.clamp_min(1e-300))
            relaxed.append(float(grid.kl(-logs, q)))
            images["data_langevin"].append(logs[inner])

        particles = self.carried(plane, shown, q[inner], times, clock, generator)
        stacks = {k: np.stack([animated(a, float(a.max())) for a in v]) for k, v in images.items()}
        about = {
            "half": WIDE * self.half,
            "size": shown.size,
            "range": DEPTH,
            "times": times,
            "clock": clock,
            "kl_diffusion": spread,
            "kl_langevin": relaxed,
        }
        return pack({**header, **about}, **stacks, **particles)

    def carried(
        self,
        plane: EnergyLike,
        shown: Grid,
        q: Tensor,
        times: list[float],
        clock: list[float],
        generator: torch.Generator,
    ) -> dict[str, np.ndarray]:
        r"""Returns the paths of points of data and model, (times, particles, 2)."""
        which = torch.randint(len(self.data), (PARTICLES,), generator=generator)
        data = self.data[which]
        cells = torch.multinomial(torch.exp(-q), PARTICLES, replacement=True, generator=generator)
        jitter = shown.spacing * (torch.rand(PARTICLES, 2, generator=generator) - 0.5)
        model = shown.points(torch.float32)[cells] + jitter
        paths: dict[str, list[Tensor]] = {"data": [data], "model": [model], "langevin": [data]}
        for i in range(1, len(times)):
            for name in ("data", "model"):
                z = torch.randn(PARTICLES, 2, generator=generator)
                paths[name].append(paths[name][-1] + math.sqrt(times[i] - times[i - 1]) * z)
            lapse = clock[i] - clock[i - 1]
            steps = max(1, math.ceil(lapse / (2.5 * self.view.step)))
            h = torch.tensor(lapse / steps)
            x = langevin(plane, paths["langevin"][-1], steps, h, generator)
            paths["langevin"].append(x)
        return {
            f"{name}_paths": torch.stack(path).nan_to_num(9e9).numpy().astype(np.float32)
            for name, path in paths.items()
        }


def animated(logs: Tensor, top: float) -> np.ndarray:
    r"""Returns a log-density in bytes, on the scale of a given largest value."""
    size = math.isqrt(len(logs))
    share = ((logs - top) / DEPTH + 1).clamp(0, 1).nan_to_num(0.0)
    return (share.reshape(size, size).T.flip(0) * 255).round().numpy().astype(np.uint8)


def off_data(grid: Grid, truth: Tensor) -> Tensor:
    r"""Returns where the last :math:`10^{-4}` of the true mass lies."""
    p = torch.exp(-truth - grid.log_normalizer(truth)) * grid.cell
    order = torch.argsort(p, descending=True)
    off = torch.ones_like(p, dtype=torch.bool)
    off[order[torch.cumsum(p[order], 0) <= 1 - 1e-4]] = False
    return off
