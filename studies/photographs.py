r"""The study of photographs: denoising and restoration, by energies and by other methods.

Noise of deviation σ (of 255) is added and neither rounded nor clipped, one seed per picture. PSNR
(range of 255) is taken over each picture and its mean over the pictures; SSIM is that of
`fokker.images.denoise`. *Coverage* is the share of pixels whose truth lies within 1 and 1.96
posterior deviations of the estimate, for a normal posterior 68.3 and 95 %; `quartiles` has the
same for each quarter of the pixels by local texture (the deviation of the truth in 7×7 windows).

Methods: an energy, told σ (`NAME`) or not (`NAME, blind`); `bm3d`, the package of its authors,
told σ; `nlm` and `tv`, non-local means and total variation of scikit-image, told σ, with the
settings of its examples (patches of 5, distance 6, h = 0.8 σ, fast) and the weight of total
variation that is best on each picture, which no user knows. `published` are the figures of the
literature, on whole sets.

Restoration: blur by a Gaussian of 1.6 pixels, 50 % of the pixels missing, and half the side, each
with noise 2 of 255. `start` is the operator's first guess, from which descent starts. Of a blurred
picture only the pixels of its own size are judged: of those in the margin it knows little.

`large` is a picture of 1,000×1,000 pixels, for the time and the memory that it takes.
"""

__all__ = [
    "PUBLISHED",
    "TASKS",
    "estimates",
    "estimators",
    "large",
    "methods",
    "pictures",
    "row_of",
]

import math
import numpy as np
import resource
import sys
import time
import torch
import torch.nn.functional as F

from collections.abc import Callable
from fokker.data.picture import read_png
from fokker.images.denoise import errors
from fokker.images.noise import estimate_sigma
from fokker.images.operators import Blur, Downscale, Mask, Operator, gaussian_kernel
from fokker.images.photograph import clean_photograph, noise_of, to_255
from fokker.images.restore import restore
from fokker.images.whole import extend
from fokker.networks.unet import UNetDenoiser
from fokker.pace import Pace
from fokker.runs.loading import load
from fokker.tasks import Run
from fokker.tasks.trained import levels_of
from pathlib import Path
from torch import Tensor
from typing import Any, NamedTuple

from . import results

SIGMAS = (15.0, 25.0, 50.0)
TASKS = ("denoise", "deblur", "inpaint", "upscale", "noise", "large")
SIDE = 1000  # of a large picture, a megapixel
PUBLISHED = {  # bsd68, whole: 15, 25, 50
    "BM3D, published": (31.07, 28.57, 25.62),
    "DnCNN, published": (31.73, 29.23, 26.23),
    "DRUNet, published": (31.91, 29.48, 26.59),
}
WEIGHTS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.14, 0.2, 0.3)  # of total variation


class Estimate(NamedTuple):
    r"""What a method makes of a picture, (1, H, W) in [−1, 1]."""

    picture: Tensor
    deviation: Tensor | None = None
    sigma: float | None = None  # its own estimate of the noise, of 255


Method = Callable[[Tensor, float, Tensor], Estimate]  # noisy, σ in [−1, 1], truth


def pictures(folder: Path, count: int, side: int | None) -> list[Tensor]:
    r"""Returns the first pictures of a folder, (1, H, W) each, or squares of their middle.

    Arguments:
        folder: The folder.
        count: The number of pictures; all if zero.
        side: The side of the squares; whole pictures if not given.
    """
    found = sorted(folder.glob("*.png"))
    if not found:
        raise ValueError(f"expected photographs, *.png, in {folder}, got none")
    out = []
    for path in found[: count or None]:
        x = read_png(path, 1)
        if side is not None:
            top, left = (max(0, (n - side) // 2) for n in x.shape[1:])
            x = x[:, top : top + side, left : left + side]
        out.append(x)
    return out


def noisy(x: Tensor, sigma: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return x + sigma * torch.randn(x.shape, generator=generator)


def by_energy(run: Run, blind: bool, sure: bool, device: str) -> Method:
    r"""Returns the method of an energy of every level."""
    energy, objective = run.energy_on(device, exact=True), run.config.objective
    low, high = levels_of(objective)

    def method(y: Tensor, sigma: float, truth: Tensor) -> Estimate:
        if blind:
            sigma, _ = noise_of(energy, y, run.shape, low, high)
        found = clean_photograph(energy, y.to(device), run.shape, sigma, sure=sure)
        spread = None if found.deviation is None else found.deviation.cpu()
        return Estimate(found.picture.cpu(), spread, to_255(sigma) if blind else None)

    return method


def by_denoiser(run: Run, device: str) -> Method:
    r"""Returns the method of a plain denoiser without attention, told σ, of the whole picture."""
    net: Any = run.energy_on(device)
    if not net.unet.local:
        raise ValueError(f"expected a denoiser without attention, got {run.path}, one with it")

    def method(y: Tensor, sigma: float, truth: Tensor) -> Estimate:
        h, w = y.shape[1:]
        more = [-n % net.unet.multiple for n in (w, h)]
        wide = extend(y[None].to(device), (0, more[0], 0, more[1]))
        with torch.no_grad():
            return Estimate(net.denoise(wide, sigma)[0, :, :h, :w].cpu().clamp(-1, 1))

    return method


def by_run(path: str, blind: bool, sure: bool, device: str) -> Method:
    r"""Returns the method of a run: an energy, or a plain denoiser, the bound of an energy."""
    run = load(path)
    if not isinstance(run.energy, UNetDenoiser):
        return by_energy(run, blind, sure, device)
    if blind or sure:
        what = "an estimate of the noise" if blind else "deviations"
        raise ValueError(f"expected an energy for {what}, got {run.path}, a plain denoiser")
    return by_denoiser(run, device)


def by_bm3d(y: Tensor, sigma: float, truth: Tensor) -> Estimate:
    import bm3d  # pyright: ignore[reportMissingImports]

    out = bm3d.bm3d(y[0].double().numpy() / 2 + 0.5, sigma / 2)
    return Estimate(torch.from_numpy(np.asarray(out))[None].float() * 2 - 1)


def by_nlm(y: Tensor, sigma: float, truth: Tensor) -> Estimate:
    from skimage.restoration import denoise_nl_means  # pyright: ignore[reportMissingImports]

    x, s = y[0].double().numpy() / 2 + 0.5, sigma / 2
    out = denoise_nl_means(x, patch_size=5, patch_distance=6, h=0.8 * s, sigma=s, fast_mode=True)
    return Estimate(torch.from_numpy(out)[None].float() * 2 - 1)


def by_tv(y: Tensor, sigma: float, truth: Tensor) -> Estimate:
    from skimage.restoration import denoise_tv_chambolle  # pyright: ignore[reportMissingImports]

    x = y[0].double().numpy() / 2 + 0.5
    tried = [torch.from_numpy(denoise_tv_chambolle(x, weight=w)) for w in WEIGHTS]
    tried = [out[None].float() * 2 - 1 for out in tried]
    return Estimate(min(tried, key=lambda out: float((out - truth).square().mean())))


def methods(
    names: tuple[str, ...], energy: str, sure: bool, device: str = "cpu"
) -> dict[str, Method]:
    r"""Returns the methods by their names, of which a package that is missing is refused.

    Arguments:
        names: Of energy, blind, bm3d, nlm and tv.
        energy: A run, of an energy or of a plain denoiser, or the name of a shipped energy.
        sure: Whether the energy gives deviations.
        device: The device of the energy.
    """
    packages = {"bm3d": "bm3d", "nlm": "skimage", "tv": "skimage"}
    import importlib.util

    for name in names:
        if name in packages and importlib.util.find_spec(packages[name]) is None:
            raise ValueError(f"expected the package {packages[name]} for {name}, got none")
    title = Path(energy).name
    known: dict[str, Callable[[], tuple[str, Method]]] = {
        "energy": lambda: (title, by_run(energy, False, sure, device)),
        "blind": lambda: (f"{title}, blind", by_run(energy, True, False, device)),
        "bm3d": lambda: ("bm3d", by_bm3d),
        "nlm": lambda: ("nlm", by_nlm),
        "tv": lambda: ("tv", by_tv),
    }
    return dict(known[name]() for name in names)


def covered(found: Tensor, spread: Tensor, truth: Tensor) -> Tensor:
    r"""Returns the number of pixels, and of those within 1 and 1.96 deviations, in each quarter of
    local texture, with shape (4, 3)."""
    mean = lambda x: F.avg_pool2d(F.pad(x[None], (3, 3, 3, 3), mode="reflect"), 7, 1)[0]
    texture = (mean(truth.square()) - mean(truth).square()).clamp_min(0).flatten()
    order = texture.argsort().argsort() * 4 // texture.numel()
    miss = ((found - truth).abs() / spread.clamp_min(1e-12)).flatten()
    return torch.stack([
        torch.tensor([
            float((order == q).sum()),
            float(((order == q) & (miss <= 1)).sum()),
            float(((order == q) & (miss <= 1.96)).sum()),
        ])
        for q in range(4)
    ])


def row_of(
    data: str,
    task: str,
    sigma: float,
    name: str,
    estimates: list[tuple[Estimate, Tensor, float]],
    **more: Any,
) -> results.Row:
    r"""Returns the row of a method: its estimates with the truths and the seconds."""
    found = [errors(e.picture[None], truth[None]) for e, truth, _ in estimates]
    ssims = [e.ssim for e in found if e.ssim is not None]
    sure = [(e.picture, e.deviation, t) for e, t, _ in estimates if e.deviation is not None]
    quarters = sum((covered(*one) for one in sure), start=torch.zeros(4, 3))
    share = lambda k: float(quarters[:, k].sum() / quarters[:, 0].sum()) if sure else None
    each = lambda k: (quarters[:, k] / quarters[:, 0]).tolist() if sure else None
    own = [abs(e.sigma / sigma - 1) for e, _, _ in estimates if e.sigma is not None]
    return {
        "data": data,
        "task": task,
        "sigma": sigma,
        "method": name,
        "psnr": math.fsum(e.psnr for e in found) / len(found),
        "ssim": math.fsum(ssims) / len(ssims) if ssims else None,
        "seconds": math.fsum(s for _, _, s in estimates) / len(estimates),
        "coverage68": share(1),
        "coverage95": share(2),
        "quartiles68": each(1),
        "quartiles95": each(2),
        "sigma_error": sorted(own)[len(own) // 2] if own else None,
        **more,
    }


def denoising(
    name: str,
    method: Method,
    clean: list[Tensor],
    sigma: float,
    units: Pace | None = None,
) -> list[tuple[Estimate, Tensor, float]]:
    r"""Returns the estimates of a method at a noise level, of 255; a part of the units."""
    out = []
    for seed, truth in enumerate(clean):
        y, began = noisy(truth, sigma / 127.5, seed), time.perf_counter()
        estimate = method(y, sigma / 127.5, truth)
        out.append((estimate, truth, time.perf_counter() - began))
        if units is not None:
            units.within(len(clean))(len(out))
    if units is not None:
        units.done()
    return out


def estimators(energy: str, device: str = "cpu") -> dict[str, Callable[[Tensor], float]]:
    r"""Returns the estimators of the noise of a picture, by their names: wavelets, and an energy.

    Arguments:
        energy: A run, or the name of a shipped energy.
        device: The device of the energy.
    """
    run = load(energy)
    field, (low, high) = run.energy_on(device, exact=True), levels_of(run.config.objective)
    return {
        "wavelets": lambda y: float(estimate_sigma(y[None])),
        Path(energy).name: lambda y: noise_of(field, y.to(device), run.shape, low, high)[0],
    }


def estimates(
    data: str,
    clean: list[Tensor],
    sigma: float,
    name: str,
    estimator: Callable[[Tensor], float],
    **more: Any,
) -> results.Row:
    r"""Returns the row of the estimates of the noise, with the median of their relative errors and
    their largest.

    Arguments:
        data: The name of the set.
        clean: The pictures.
        sigma: The noise, of 255.
        name: The name of the estimator.
        estimator: The estimator of the noise of a picture, in [−1, 1].
        more: What else the row says.
    """
    began = time.perf_counter()
    found = [to_255(estimator(noisy(x, sigma / 127.5, seed))) for seed, x in enumerate(clean)]
    off = sorted(abs(value / sigma - 1) for value in found)
    row: results.Row = {"data": data, "task": "noise", "sigma": sigma, "method": name}
    row |= dict.fromkeys(("psnr", "ssim", "coverage68", "coverage95"))
    row["seconds"] = (time.perf_counter() - began) / len(clean)
    return {**row, "sigma_error": off[len(off) // 2], "sigma_error_most": off[-1], **more}


def large(run: Run, name: str, device: str, side: int = SIDE) -> results.Row:
    r"""Returns the row of a large picture of waves, denoised by an energy told σ = 25, on as many
    threads as PyTorch takes, with the memory that this adds to the process at its peak."""
    energy, sigma = run.energy_on(device, exact=True), 25 / 127.5
    i, j = torch.meshgrid(*2 * (torch.arange(side) / side,), indexing="ij")
    truth = (0.5 * torch.sin(40 * i**2 + 9 * j) * torch.cos(30 * i * j))[None]
    y = noisy(truth, sigma, 0).to(device)
    before, began = peak(), time.perf_counter()
    found = clean_photograph(energy, y, run.shape, sigma).picture.cpu()
    seconds = time.perf_counter() - began
    row = row_of("waves", "large", 25.0, name, [(Estimate(found), truth, seconds)])
    more = {"pictures": 1, "side": side, "threads": torch.get_num_threads()}
    return row | more | {"megabytes": round(peak() - before)}


def peak() -> float:
    r"""Returns the most memory that the process has had, in megabytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def operator_of(task: str, shape: tuple[int, ...], seed: int) -> Operator:
    r"""Returns the operator of a task of restoration, for a picture of a shape (1, H, W)."""
    if task == "deblur":
        return Blur(gaussian_kernel(1.6).float())
    if task == "upscale":
        return Downscale(2)
    seen = torch.rand(shape[1:], generator=torch.Generator().manual_seed(1000 + seed))
    return Mask((seen < 0.5).float())


def restoration(
    run: Run, task: str, clean: list[Tensor], sigma: float, samples: int, device: str = "cpu"
) -> dict[str, list[tuple[Estimate, Tensor, float]]]:
    r"""Returns the estimates of a task of restoration: the first guess, the mode and, with
    samples, their mean."""
    energy, (low, high) = run.energy_on(device, exact=True), levels_of(run.config.objective)
    out: dict[str, list[tuple[Estimate, Tensor, float]]] = {}
    for seed, truth in enumerate(clean):
        h, w = (n // 2 * 2 for n in truth.shape[1:])
        truth = truth[:, :h, :w]
        a = operator_of(task, truth.shape, seed)  # operators follow the device of a picture
        y = noisy(a(truth[None])[0], sigma / 127.5, seed)
        y = a(y[None])[0] if task == "inpaint" else y
        start, began = a.back(y[None])[0], time.perf_counter()
        options: dict[str, Any] = {"low": low, "high": high}
        mode = restore(energy, y.to(device), run.shape, a, sigma / 127.5, **options)
        middle = time.perf_counter()
        parts: list[tuple[str, float, Tensor, Tensor | None]] = [
            ("start", 0.0, start, None),
            ("mode", middle - began, mode.picture, None),
        ]
        if samples:
            generator = torch.Generator(device).manual_seed(seed)
            options |= {"samples": samples, "generator": generator}
            drawn = restore(energy, y.to(device), run.shape, a, sigma / 127.5, **options)
            assert drawn.mean is not None and drawn.deviation is not None
            spent = time.perf_counter() - middle
            parts.append(("mean", spent, drawn.mean, drawn.deviation.cpu()))
        k = (h - y.shape[1]) // 2 if task == "deblur" else 0
        inside = (slice(None), slice(k, h - k), slice(k, w - k))
        for name, spent, x, spread in parts:
            estimate = Estimate(x.cpu()[inside], None if spread is None else spread[inside])
            out.setdefault(name, []).append((estimate, truth[inside], spent))
    return out
