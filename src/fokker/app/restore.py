r"""`fokker restore`: blurred, damaged or small photographs, with an energy as the prior."""

__all__ = ["Restore"]

import tyro

from dataclasses import dataclass
from pathlib import Path

from ..data.picture import place_of_png
from ..runs.loading import load
from ..runs.shipped import PHOTOGRAPHS
from ..tasks.options import Restoration


@dataclass(frozen=True)
class Restore:
    """Restore a picture that is blurred, has missing pixels or is too small.

    The picture is the most likely one under the energy, given what is seen; --samples draws others
    that are likely as well. A blurred picture gets a margin back, of half its kernel."""

    picture: tyro.conf.Positional[Path]
    """The picture, PNG, JPEG, WebP or BMP."""
    restoration: Restoration = Restoration()
    energy: str = PHOTOGRAPHS
    """A run folder, or the name of an energy that comes with the package."""
    out: Path = Path("restored.png")
    """The file of the restored picture, a PNG, not the picture itself. Samples, their mean and
    deviation lie beside it, as NAME-sample-1.png, NAME-mean.png and NAME-deviation.png."""

    def run(self) -> None:
        self.restoration.check()
        place_of_png(self.out)
        run = load(self.energy)
        print(run.task.restore(run, self.picture, self.out, self.restoration))
