r"""How the cost of a step grows with dimension, batch and image size.

The images go through a network that a step takes a moment on: a Wide ResNet 16-8 on a GPU, a 10-1
on a CPU.
"""

__all__ = ["growth"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from fokker.networks import MLP

from .nets import NETS, Net
from .timing import bench
from .. import results

GROWING = ("dcd", "dcd-limit", "dcd-central", "dcd-hutchinson", "cd-1", "cd-10")


def growth(
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = 5,
    compile: bool = False,
    points: Net = NETS["mlp-2d"],
    image: Net | None = None,
    dims: Sequence[int] = (2, 8, 64, 512, 4096),
    batches: Sequence[int] = (100, 1000, 10_000),
    sizes: Sequence[int] = (16, 28, 56),
    names: Sequence[str] = GROWING,
    progress: Callable[[str], None] = lambda line: None,
) -> list[results.Row]:
    r"""Times how steps grow with dimension, batch and image size.

    Arguments:
        device: The device.
        precision: The dtype of the layers of the image network.
        rounds: The number of interleaved rounds.
        compile: Whether steps are compiled.
        points: The network of points; its input layer follows the dimension.
        image: The network of images; by the device if not given.
        dims: The dimensions.
        batches: The batches, of points.
        sizes: The sides of an image.
        names: The steps.
        progress: Called with a line at each thing done.
    """
    if image is None:
        image = NETS["wrn-10-1" if device == "cpu" else "wrn-16-8"]
    rows = []
    common = (device, precision, rounds, compile, False)
    for dim in dims:
        net = replace(points, build=lambda dtype, dim=dim: MLP(dim), shape=(dim,))
        kept = [n for n in names if n != "dcd" or dim <= 64]  # exact: d + 2 passes
        rows += bench(net, kept, *common, "dimension", progress)
    for batch in batches:
        rows += bench(replace(points, batch=batch), names, *common, "batch", progress)
    for size in sizes:
        net = replace(image, shape=(image.shape[0], size, size))
        rows += bench(net, names, *common, "size", progress)
    return rows
