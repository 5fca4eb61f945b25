r"""What stands in the cells of a table."""

__all__ = ["number", "spread"]

import statistics

from collections.abc import Sequence


def number(value: float | None, missing: str = "–") -> str:
    return missing if value is None else f"{value:.2f}".replace("-", "−")


def spread(values: Sequence[float | None], factor: float = 1.0, digits: int = 2) -> str:
    r"""Returns mean ± standard deviation over seeds, a dash if there is nothing to average."""
    found = [factor * v for v in values if v is not None]
    if not found:
        return "–"
    mean = statistics.fmean(found)
    text = f"{mean:.{digits}f}"
    if len(found) > 1:
        text += f" ± {statistics.stdev(found):.{digits}f}"
    return text.replace("-", "−")
