r"""Tasks: what each kind of data means for a run, one file per kind.

A new kind of data is one file: a frozen dataclass under `fokker.runs.config.Data`, a `Task`, and
`register`.
"""

from .base import Line, Plane, PointTask, Run, Task, TooLate
from .image import ImageTask
from .mixture import MixtureEnergy, MixtureTask
from .table import TableEnergy, TableTask, energies
from .toy import ToyTask
from ..runs.config import DATA, Config, Correction, Data, ImageData, TableData, ToyData

__all__ = [
    "TASKS",
    "ImageTask",
    "Line",
    "MixtureEnergy",
    "MixtureTask",
    "Plane",
    "PointTask",
    "Run",
    "TableEnergy",
    "TableTask",
    "Task",
    "TooLate",
    "ToyTask",
    "energies",
    "register",
    "task_of",
]

TASKS: dict[type[Data], type[Task]] = {
    ToyData: ToyTask,
    TableData: TableTask,
    ImageData: ImageTask,
}


def register(name: str, data: type[Data], task: type[Task]) -> None:
    r"""Adds a kind of data.

    Arguments:
        name: The name under which a configuration saves it.
        data: The frozen dataclass that describes such data.
        task: The class of its task.
    """
    if DATA.get(name, data) is not data:
        raise ValueError(
            f"expected a name that is free, got {name!r}, that of {DATA[name].__name__}"
        )
    DATA[name], TASKS[data] = data, task


def task_of(config: Config) -> Task:
    r"""Returns the task of a configuration; its data is not loaded."""
    if isinstance(config.network, Correction):  # of a table
        return MixtureTask(config)
    return TASKS[type(config.data)](config)
