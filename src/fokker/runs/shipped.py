r"""Energies that come with the package.

Each lies in a folder of its name under `fokker/weights`:

=====================  ======================================================================
`model.safetensors`    the averaged weights in bfloat16; they are read as float32
`config.toml`          the configuration, for a CPU and without the paths of a machine
`card.md`              the model card
`card.json`            steps, shape of an image, and the last line of the metrics
`SHA256SUMS`           the checksums of the others, as of the program sha256sum
=====================  ======================================================================

A file that differs from its checksum is refused. `fokker.load(NAME)` reads such an energy as a
run, and `fokker export RUN NAME` makes one of a run.
"""

__all__ = ["NOTICES", "PHOTOGRAPHS", "ROOT", "export", "licences", "names", "read"]

import contextlib
import hashlib
import json
import re
import sys
import torch

from collections.abc import Mapping
from pathlib import Path
from safetensors.torch import load, save
from typing import Any

from . import toml
from .checkpoints import BROKEN, shape_of
from .config import Config
from .folder import restore
from ..compute.ranks import first_rank
from ..data import cache
from ..files import beside, first_line, read_regular, write_bytes
from ..tasks import Run, task_of
from ..tasks.trained import drawable

PHOTOGRAPHS = "photographs"  # the energy by which photographs are denoised and restored by default
ROOT = Path(__file__).parents[1] / "weights"
SUMS, LARGEST = 2**16, 2**28  # bytes of SHA256SUMS, and of another file
FILES = ("model.safetensors", "config.toml", "card.md", "card.json")
BERKELEY = (
    "Trained on photographs of the Berkeley segmentation data set (Martin et al., 2001), which are"
    " for non-commercial research and education only; so are these weights and what is made with"
    " them. No photograph of the set is in this folder."
)
NOTICES: Mapping[str, str] = {
    "celeba32": "Trained on CelebA (Liu et al., 2015), which is for non-commercial research only;"
    " so are these weights and what is made with them. No image of the set is in this folder.",
    "svhn": "Trained on SVHN (Netzer et al., 2011), which is for non-commercial use only; so are"
    " these weights and what is made with them. No image of the set is in this folder.",
    "photographs": BERKELEY,
    "train400": BERKELEY,
    "cifar10": "Trained on CIFAR-10 (Krizhevsky, 2009), whose author asks for that citation.",
}


def names(root: Path = ROOT) -> list[str]:
    r"""Returns the names of the energies in a folder."""
    return sorted(path.parent.name for path in root.glob("*/SHA256SUMS"))


def licences(root: Path = ROOT) -> dict[str, str]:
    r"""Returns what is said of the licence of each energy in a folder, by its name."""
    return {name: NOTICES.get(name, "Apache-2.0") for name in names(root)}


def announce(name: str) -> None:
    r"""Says the licence of an energy of the package on standard error when it is first used on
    this machine."""
    with contextlib.suppress(OSError, ValueError):  # no place where it was remembered
        if (cache.folder() / "licences" / name).exists():
            return
    print(f"fokker: the energy {name}: {licences()[name]}", file=sys.stderr)
    with contextlib.suppress(OSError, ValueError):  # no place to remember it: it is said again
        told = cache.folder() / "licences" / name
        told.parent.mkdir(parents=True, exist_ok=True)
        told.touch()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(name: str, root: Path = ROOT) -> Run:
    r"""Returns a shipped energy as a run, on the CPU.

    Arguments:
        name: Its name.
        root: The folder of the energies.
    """
    known = names(root)
    if name not in known:
        listed = f"one of {', '.join(known)}" if known else "of which there are none"
        raise ValueError(
            f"expected a run folder, or a shipped energy, {listed}, got {name}, which does"
            " not exist"
        )
    folder = root / name
    sums = read_regular(folder / "SHA256SUMS", SUMS, folder)
    lines = sums.decode(errors="replace").splitlines()
    said = {file: code for code, _, file in (line.partition("  ") for line in lines)}
    contents: dict[str, bytes] = {}
    for file in FILES:
        path = folder / file
        contents[file] = read_regular(path, LARGEST, folder) if path.exists() else b""
        if said.get(file) != digest(contents[file]):
            raise ValueError(
                f"{path}: expected the file whose checksum is in SHA256SUMS, got another;"
                " install fokker again"
            )
    try:
        config = toml.loads(contents["config.toml"].decode())
        card = json.loads(contents["card.json"])
        step, shape = int(card["step"]), shape_of(card["shape"])
        metrics = card["metrics"] | {"step": int(card["metrics"]["step"])}
        weights = {k: v.float() for k, v in load(contents["model.safetensors"]).items()}
        energy = restore(task_of(config), shape, weights, folder / "config.toml")
    except BROKEN as error:
        raise ValueError(
            f"{folder}: expected an energy and weights of its network: {first_line(error)}"
        ) from None
    energy.requires_grad_(False)
    if root == ROOT and first_rank():
        announce(name)
    return Run(folder, config, task_of(config), energy, shape, step, step, [metrics])


def export(run: Run, name: str, root: Path = ROOT, note: str = "") -> Path:
    r"""Makes a shipped energy of a run, and returns its folder.

    Arguments:
        run: A run on images.
        name: The name: lower-case letters, digits, `-` and `_`.
        root: The folder of the energies.
        note: What else the card should say, such as the figures measured, in Markdown.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise ValueError(f"expected a name of lower-case letters, digits, - and _, got {name!r}")
    folder = root / name
    if folder.exists():
        raise ValueError(f"expected a new folder, got {folder}, which exists; delete it first")
    config = run.task.shippable(run)
    weights = {
        k: v.detach().cpu().to(torch.bfloat16).contiguous()
        for k, v in run.energy.state_dict().items()
    }
    content = {"step": run.step, "shape": run.shape, "metrics": run.judged}
    contents = {
        "model.safetensors": save(weights),
        "config.toml": toml.dumps(config).encode(),
        "card.md": card_of(run, name, config, note).encode(),
        "card.json": json.dumps(content, allow_nan=False).encode() + b"\n",
    }
    lines = [f"{digest(contents[file])}  {file}" for file in FILES]
    contents["SHA256SUMS"] = ("\n".join(lines) + "\n").encode()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with beside(folder, folder=True) as partial:
            for file, data in contents.items():
                write_bytes(partial / file, data)
            partial.rename(folder)
    except OSError as error:
        raise OSError(
            f"expected a folder that an energy can be written to, got {folder}:"
            f" {first_line(error)}; nothing is left there"
        ) from error
    return folder


def card_of(run: Run, name: str, config: Config, note: str) -> str:
    r"""Returns the model card."""
    count = sum(p.numel() for p in run.energy.parameters())
    c, h, w = run.shape
    optimization = config.optimization
    muon = "" if optimization.muon is None else f", Muon at {optimization.muon:g}"
    objective: dict[str, Any] = toml.encode(config.objective)
    network = f"{type(config.network).__name__}, form {getattr(config.network, 'form', 'none')}"
    facts = {
        "data": f"{config.data.title}, images of {w}×{h}, {'grey' if c == 1 else 'color'}",
        "network": f"{network}, {count:,} parameters, stored in bfloat16",
        "objective": ", ".join(
            f"{k} {v}" for k, v in objective.items() if not isinstance(v, dict)
        ),
        "training": f"{run.step:,} steps of {optimization.batch} images, Adam at"
        f" {optimization.rate:g}{muon}, average of the weights {optimization.ema:g}",
    }
    seconds = run.judged.get("seconds")
    if seconds is not None:
        facts["time"] = f"{seconds / 60:.1f} minutes on {run.config.device}"
    lines = [f"# {name}", "", "An energy E(x, σ) of images with noise; p ∝ exp(−E).", ""]
    lines += [f"- **{k}**: {v}" for k, v in facts.items()]
    if config.data.title in NOTICES:
        lines += ["", NOTICES[config.data.title]]
    if note:
        lines += ["", note.strip()]
    use = (
        f"fokker sample {name} -n 64 -o samples.png"
        if drawable(config.objective)
        else f"fokker denoise noisy.png --energy {name} -o clean.png"
    )
    lines += ["", f"    {use}", ""]
    return "\n".join(lines)
