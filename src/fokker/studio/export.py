r"""Export: a run of the studio as a run folder, with the script that makes it again.

The folder is the one that `fokker.fit` wrote, copied, and is read by `fokker.load`,
`fokker report` and `fokker evaluate`. Beside it lies `script.py`, which holds the configuration as
Python and calls `fokker.fit` with it: on the same machine and versions it gives the same weights,
bit for bit. Drawn points come along in `points.csv`.
"""

__all__ = ["export", "script"]

import dataclasses
import errno
import shutil

from pathlib import Path
from typing import Any

from ..files import beside, write_text
from ..runs.config import Config
from ..runs.folder import read_config
from ..runs.toml import dumps

WIDTH = 88


def classes(value: Any) -> dict[str, set[str]]:
    r"""Returns the names of the dataclasses in a configuration, by the module to import from."""
    found: dict[str, set[str]] = {}
    if dataclasses.is_dataclass(value):
        found.setdefault(type(value).__module__, set()).add(type(value).__name__)
        for field in dataclasses.fields(value):
            for name, more in classes(getattr(value, field.name)).items():
                found.setdefault(name, set()).update(more)
    return found


def source(value: Any, indent: int = 0) -> str:
    r"""Returns a configuration as Python, one argument a line where it is long. Arguments that are
    the defaults of their class are written too: a later version may change them."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    name = type(value).__name__
    line = f"{name}({', '.join(f'{k}={source(v)}' for k, v in fields)})"
    if len(line) + indent <= WIDTH:
        return line
    pad = " " * (indent + 4)
    lines = [f"{pad}{k}={source(v, indent + 4)},\n" for k, v in fields]
    return f"{name}(\n{''.join(lines)}{' ' * indent})"


def script(config: Config, step: int) -> str:
    r"""Returns the script of a run.

    Arguments:
        config: The configuration.
        step: The step after which it was stopped, or the last.
    """
    imports = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(classes(config).items())
    ]
    made = source(config)
    for file in config.data.files():  # they lie beside the script
        made = made.replace(repr(file), f"str(here / {Path(file).name!r})")
    whole = step >= config.optimization.steps
    if whole:
        fit = 'run = fokker.fit(config, here / "again")'
    else:
        imports.append("from fokker.runs.training import Interrupted")
        fit = (
            f"try:  # it was stopped after step {step}\n"
            f'    fokker.fit(config, here / "again", watch=lambda step, *_: step == {step})\n'
            "except Interrupted as stop:\n"
            "    run = fokker.load(stop.folder)"
        )
    new = "\n"
    return f'''r"""A run of fokker studio. `python script.py` trains it again, into `again`."""

import fokker
import torch

{new.join(sorted([*imports, "from pathlib import Path"]))}

torch.set_num_threads(1)  # as in the studio
here = Path(__file__).parent
config = {made}
{fit}
print(run.weights, run.judged)
'''


def free(folder: Path) -> Path:
    r"""Returns a folder that does not exist yet, by a number at its end."""
    candidate, n = folder, 2
    while candidate.exists():
        candidate, n = folder.with_name(f"{folder.name}-{n}"), n + 1
    return candidate


def export(run: Path, runs: Path, name: str, step: int) -> tuple[Path, str]:
    r"""Copies a run into a folder of runs, and returns where it is and its script.

    Arguments:
        run: The run folder.
        runs: The folder of runs.
        name: The name of the copy; a number is added where it is taken.
        step: The step of the run.
    """
    saved = read_config(run)
    runs.mkdir(parents=True, exist_ok=True)
    with beside(runs / name, folder=True) as partial:
        try:
            shutil.copytree(
                run,
                partial,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns(".lock", ".*.partial"),
            )
        except shutil.Error as error:  # of every file that could not be copied
            *_, reason = error.args[0][0]
            raise OSError(
                f"expected a folder that a run can be exported to, got {runs}: {reason[:200]}"
            ) from error
        for file in saved.data.files():
            shutil.copy(file, partial / Path(file).name)
        while True:
            target = free(runs / name)
            config = dataclasses.replace(saved, data=saved.data.moved(target.resolve()))
            write_text(partial / "config.toml", dumps(config))
            text = script(config, step)
            write_text(partial / "script.py", text)
            try:
                partial.rename(target)
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                    raise
                continue  # another page was faster
            return target, text
