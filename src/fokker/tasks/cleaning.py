r"""Denoising of files: a picture, of its own noise or of noise that is added, by the energy of a
run.

Noise is of 255, given or estimated; a warning says if the energy was not trained on it. Beside the
clean picture may lie the noisy one and a map of the deviation of each pixel, four times as bright.
"""

__all__ = ["denoise_file", "progress"]

import math
import warnings

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from torch import Tensor

from .base import Run
from .options import Denoising
from .trained import level_of, levels_of
from .. import checks
from ..data.deep import read_picture, save_picture
from ..data.picture import place_of_png, save_png
from ..images.color import SCALES
from ..images.denoise import RULES, noisy
from ..images.photograph import clean_photograph, noise_of, of_255, to_255
from ..pace import Pace


@contextmanager
def progress(name: str) -> Generator[Callable[[float], None], None, None]:
    r"""Shows a progress bar on a terminal, and yields what takes the share of the work done. After
    two seconds it says about how long the whole will take, if that is long."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown, pace = bar.add_task(escape(name), total=1.0), Pace(name)

        def advance(share: float) -> None:
            bar.advance(shown, share)
            pace.done(share)

        yield advance


def denoise_file(run: Run, picture: Path, out: Path, denoising: Denoising) -> str:
    r"""Denoises a picture, writes it, and returns what was done, in words."""
    level = level_of(run.config.objective)
    places = places_of(picture, out, denoising)
    if denoising.rule is not None:
        checks.one_of(RULES, rule=denoising.rule)
        if level is None:
            expected = f"no rule for {run.path}, an energy of every level"
            raise ValueError(f"expected {expected}, got {denoising.rule!r}")
    (x, bits), said = read_picture(picture), []
    if denoising.add_noise is not None:
        x = noisy(x, of_255(add_noise=denoising.add_noise))
        save_picture(places["noisy"], x, bits)
        said.append(f"noisy: {places['noisy']}")
    energy = run.energy_on(denoising.device)
    rule, x = denoising.rule or "one-step", x.to(denoising.device)
    low, high = levels_of(run.config.objective)
    try:
        if denoising.sigma is None:
            sigma, source = noise_of(energy, x, run.shape, low, high)
            source = f"estimated {source}"
        else:
            sigma, source = of_255(sigma=denoising.sigma), "given"
        warn(run, x, sigma, low, high)
        with progress(picture.name) as watch:
            clean, spread = clean_photograph(
                energy, x, run.shape, sigma, level, rule, denoising.uncertainty,
                denoising.tile // 8 * 8, watch,
            )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{picture}: {error}") from error
    save_picture(out, clean, bits)
    by = "" if level is None else f", by the rule {rule} from level {to_255(level):.3g}"
    said.append(f"noise {to_255(sigma):.3g} of 255 ({source}){by}: {out}")
    if spread is not None:
        shown = (4 * to_255(1.0) * spread).clamp_max(255) / 127.5 - 1
        save_png(places["deviation"], shown)
        mean = to_255(float(spread.mean()))
        said.append(f"deviation {mean:.3g} of 255 in the mean: {places['deviation']}")
    return "\n".join(said)


def warn(run: Run, x: Tensor, sigma: float, low: float, high: float) -> None:
    r"""Warns of noise that the energy has not seen."""
    channels, seen, also = run.shape[0], [sigma], ""
    if len(x) < channels:
        seen, also = (
            [sigma * math.sqrt(channels)],
            ", as a grey picture has in a colour energy",
        )
    elif len(x) > channels:
        seen = [sigma * scale for scale in SCALES]
        also = ", as a colour picture has in a grey energy"
    wrong = [s for s in seen if not 0.99 * low <= s <= 1.01 * high]
    if level_of(run.config.objective) is None and wrong:
        warnings.warn(
            f"expected noise of a level that was trained on, {to_255(low):.3g} to"
            f" {to_255(high):.3g} of 255, got {to_255(wrong[0]):.3g}{also}; the result is a"
            " guess",
            stacklevel=3,
        )


def places_of(picture: Path, out: Path, denoising: Denoising) -> dict[str, Path]:
    r"""Returns the files that are written, none of them the picture that is read."""
    places = {"clean": place_of_png(out)}
    if denoising.add_noise is not None:
        places["noisy"] = place_of_png(out.with_stem(f"{out.stem}-noisy"))
    if denoising.uncertainty:
        places["deviation"] = place_of_png(out.with_stem(f"{out.stem}-deviation"))
    for place in places.values():
        checks.another(place, picture, "the picture")
    return places
