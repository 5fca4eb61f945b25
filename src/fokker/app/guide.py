r"""Options of guidance: samples of a run, guided away from those of a worse one."""

__all__ = ["Guidance"]

from dataclasses import dataclass

from ..runs.loading import load
from ..samplers.guidance import check_weight
from ..tasks import Run

WEIGHT = 1.5  # where none is given


@dataclass(frozen=True)
class Guidance:
    r"""Which energy guides, and how much."""

    guide: str | None = None
    """For images: a worse energy of the same images, smaller or less trained, to be guided away
    from."""
    guidance: float | None = None
    """The weight of guidance: 1 is the run itself, more goes further from the guide; 1.5 if not
    given."""

    def find(self, run: Run) -> tuple[Run, float] | None:
        r"""Returns the guide of a run and the weight, `None` if there is none; raises if it cannot
        guide."""
        if self.guide is None:
            if self.guidance is not None:
                raise ValueError(
                    f"expected --guide with --guidance, got --guidance {self.guidance:g} alone"
                )
            return None
        weight = check_weight(WEIGHT if self.guidance is None else self.guidance)
        guide = load(self.guide)
        run.task.check_guide(run, guide)
        return guide, weight
