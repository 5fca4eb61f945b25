r"""Units: what a study consists of, and about how long they take, said when it begins."""

__all__ = ["begin"]

from fokker.pace import Pace, told


def begin(study: str, parts: int) -> Pace:
    r"""Says how many parts a study has to do, and returns the pace that says how long they take
    once that is known."""
    if parts > 0:
        told(f"{study}: {parts} {'part' if parts == 1 else 'parts'}; the time follows once known")
    return Pace(study, parts)
