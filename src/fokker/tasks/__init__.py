r"""Tasks: what a run is trained on, and how it is judged."""

from .base import Task
from .image import ImageTask
from .planar import ToyTask
from .table import TableEnergy, TableTask, energies
from ..runs.config import Config, TableData, ToyData

__all__ = ["ImageTask", "TableEnergy", "TableTask", "Task", "ToyTask", "energies", "task_of"]


def task_of(config: Config) -> Task:
    r"""Returns the task of a configuration."""
    if isinstance(config.data, ToyData):
        return ToyTask(config.data.build())
    if isinstance(config.data, TableData):
        return TableTask(config.data, config.seed)
    return ImageTask(config.data, config.objective, config.preview)
