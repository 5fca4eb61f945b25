r"""The benchmark of a training step."""

from .growth import growth
from .nets import NETS, Net, names_of
from .timing import bench, bench_steps

__all__ = ["NETS", "Net", "bench", "bench_steps", "growth", "names_of"]
