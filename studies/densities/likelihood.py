r"""Likelihoods of images by the flow and in one pass, side by side.

For each run on images: bits per dimension of test images by the probability-flow ODE, and in one
pass with the constant of the top level, of the same dequantized images. An energy whose levels are
not tied has no likelihood in one pass; its row says so with `bpd` of `None`. The picture has one
against the other, a point an image.
"""

__all__ = ["figure", "rows_of", "run"]

import math
import torch

from collections.abc import Callable, Sequence
from fokker import load
from fokker.images.forecast import forecast
from fokker.images.generate import Sampling
from fokker.images.likelihood import (
    Bits,
    agreement,
    bits_by_image,
    constant_of,
    residuals_of,
)
from fokker.runs.config import ImageData
from fokker.tasks.figures import GRADIENTS
from fokker.tasks.trained import check_trained, is_tied
from pathlib import Path
from studies import results
from studies.units import begin

RESIDUAL = 256  # images, at most


def rows_of(
    name: str,
    n: int,
    sampling: Sampling,
    device: str,
    batch: int,
    probes: int,
    fetch: bool,
) -> tuple[list[results.Row], Bits]:
    r"""Returns the rows of a run, by the flow and in one pass, and the bits of each image."""
    model = load(name)
    check_trained(model)
    data = model.config.data
    if not isinstance(data, ImageData):
        raise ValueError(f"expected a run on images, got {name}, a run on {data}")
    task, energy = model.loaded(fetch), model.energy_on(device, exact=True)
    test, train = task.pixels("test")[:n], task.pixels("train")
    on = torch.device(device)
    forecast(f"likelihoods of {name}", energy, model.shape, n, batch, GRADIENTS["bpd"], on)
    options = (sampling, batch, 0, device)
    constant = constant_of(energy, train, *options) if is_tied(model) else None
    bits = bits_by_image(energy, test, train, *options, constant=constant, probes=probes)
    residual = residuals_of(energy, test[:RESIDUAL], batch, 0, device)
    head = {"data": data.title, "run": Path(name).name, "step": model.chosen, "images": len(test)}
    head |= {"parameters": sum(p.numel() for p in model.energy.parameters())}
    head |= {"sigma_min": sampling.sigma_min, "sigma_max": sampling.sigma_max, "probes": probes}
    head |= {"ties": [repr(tie) for tie in getattr(model.config.objective, "ties", ())]}
    head |= {"dequantization": "uniform", **results.provenance(device)}
    head |= {f"residual_{sigma:g}": v for sigma, v in residual.items()}
    error = lambda b: float(b.std() / math.sqrt(len(b)))
    flow = {"how": "ode", "bpd": float(bits.flow.mean()), "error": error(bits.flow)}
    flow |= {"correlation": None, "residual": None, "difference": None}
    flow |= {"seconds": bits.flow_seconds}
    one = {"how": "one-pass", "bpd": None, "error": None, "correlation": None}
    one |= {"residual": None, "difference": None, "seconds": None}
    if constant is not None and bits.one_pass is not None:
        both = agreement(bits.flow, bits.one_pass)
        one |= {"bpd": float(bits.one_pass.mean()), "error": error(bits.one_pass)}
        one |= {"correlation": both.correlation, "residual": both.residual}
        one |= {"difference": both.difference, "seconds": bits.one_pass_seconds}
        one |= {"constant_error": constant.error, "constant_spread": constant.spread}
    return [{**head, **flow}, {**head, **one}], bits


def figure(found: dict[str, Bits], path: Path) -> None:
    r"""Draws bits in one pass against bits by the flow, a point an image."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tied = {name: bits for name, bits in found.items() if bits.one_pass is not None}
    if not tied:
        return
    fig, axes = plt.subplots(1, len(tied), figsize=(4.2 * len(tied), 4), squeeze=False)
    for ax, (name, bits) in zip(axes[0], tied.items(), strict=True):
        assert bits.one_pass is not None
        both = torch.stack([bits.flow, bits.one_pass])
        ends = [float(both.min()), float(both.max())]
        ax.plot(ends, ends, color="0.6", lw=1)
        ax.plot(*both.numpy(), ".", ms=3, alpha=0.6)
        ax.set(title=name, xlabel="bits per dimension by the flow", ylabel="in one pass")
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)


def run(
    out: Path,
    names: Sequence[str],
    n: int,
    sampling: Sampling = Sampling(),
    device: str = "cpu",
    batch: int = 64,
    probes: int = 1,
    fetch: bool = False,
    command: str = "fokker reproduce likelihood",
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Measures runs and writes their rows, in place of the same ones from before, and the
    picture beside the file."""
    rows = results.load(out)["rows"] if out.exists() else []
    found = {}
    units = begin("reproduce likelihood", len(names))
    for name in names:
        fresh, bits = rows_of(name, n, sampling, device, batch, probes, fetch)
        key = lambda r: (r["data"], r["run"], r["step"])
        rows = [r for r in rows if key(r) != key(fresh[0])] + fresh
        results.save(out, rows, command, device=device)
        found[Path(name).name] = bits
        units.done()
        for row in fresh:
            value = "none, not tied" if row["bpd"] is None else f"{row['bpd']:.4f}"
            more = "" if row["error"] is None else f" ± {row['error']:.4f}"
            if row["correlation"] is not None:
                more += f", residual {row['residual']:.4f}, correlation {row['correlation']:.4f}"
            progress(f"{name}, {row['how']}: {value}{more}")
    figure(found, out.with_suffix(".png"))
    return rows
