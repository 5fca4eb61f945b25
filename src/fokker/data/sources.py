r"""Sources: the files in which a set of images lies.

They are those of

- a folder laid out as on the Hugging Face hub: `train-*.parquet` and `test-*.parquet`, or those in
  `data/`, all the parts that their names promise (`-of-00002`);
- a folder of image files, at any depth, in the order of their paths. Names that start with a dot
  are left out. Its splits are its folders `train` and `test` if it has both. If not, a file
  belongs to `test` if the first 8 bytes of the SHA-256 of its path below the folder, as one
  big-endian number, are a multiple of 10: one in ten, whatever other files there are;
- a set known by name: its folder in the data folder, or in the cache, where it is fetched to from
  the hub, once;
- any other set on the hub, `hub:OWNER/NAME` or `hub:OWNER/NAME:CONFIG`, fetched to the cache,
  once.
"""

__all__ = [
    "SETS",
    "SPLITS",
    "Known",
    "absent",
    "at_hand",
    "files_of",
    "fingerprint",
    "from_hub",
    "locate",
    "name_of",
]

import hashlib
import os
import re

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from . import cache
from ..files import open_regular, replacing

SPLITS = ("train", "test")
LONGEST = 2**40  # bytes of a file
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class Known(NamedTuple):
    r"""A set known by name: its channels, and its id and configuration on the hub."""

    channels: int
    hub: str | None = None
    config: str | None = None


SETS = {
    "mnist": Known(1, "ylecun/mnist"),
    "fashion_mnist": Known(1, "zalando-datasets/fashion_mnist"),
    "cifar10": Known(3, "uoft-cs/cifar10"),
    "svhn": Known(3, "ufldl-stanford/svhn", "cropped_digits"),
    "celeba32": Known(3),
}


def locate(name: str, split: str, data_dir: str | Path | None) -> Path:
    r"""Returns the folder of a named set."""
    root = data_dir or os.environ.get("FOKKER_DATA")
    if root is not None:
        if not Path(root).is_dir():
            raise ValueError(f"expected data_dir or FOKKER_DATA to be a folder, got {root}")
        if Path(root, name).is_dir():
            return Path(root, name)
    known, needed = SETS[name], f"the set {name} in a folder {name} of data_dir or FOKKER_DATA"
    if known.hub is None:
        raise ValueError(f"expected {needed}, got none; it is not on the hub")
    return fetch(known.hub, known.config, split, cache.folder() / "hub" / name, needed)


def from_hub(source: str, split: str) -> Path:
    r"""Returns the folder in the cache of a set on the hub, `hub:OWNER/NAME` or with `:CONFIG`."""
    owner, name, config = parts_of(source)
    return fetch(f"{owner}/{name}", config, split, place_of(source), f"the set {source}")


def absent(source: str, data_dir: str | Path | None) -> str | None:
    r"""Returns the name of a set on the hub that reading a source would fetch; `None` if it lies
    on this machine, or nowhere."""
    if source in SETS:
        root, known = data_dir or os.environ.get("FOKKER_DATA"), SETS[source]
        if known.hub is None or (root is not None and Path(root, source).is_dir()):
            return None
        name, place = known.hub, cache.folder() / "hub" / source
    elif source.startswith("hub:"):
        name, place = source, place_of(source)
    else:
        return None
    return None if all((place / file_of(split)).exists() for split in SPLITS) else name


def at_hand(source: str, data_dir: str | Path | None) -> bool:
    r"""Returns whether a source lies on this machine."""
    if source.startswith("hub:"):
        return absent(source, data_dir) is None
    if source not in SETS:
        return Path(source).is_dir()
    root = data_dir or os.environ.get("FOKKER_DATA")
    if root is not None and Path(root, source).is_dir():
        return True
    return SETS[source].hub is not None and absent(source, data_dir) is None


def place_of(source: str) -> Path:
    r"""Returns the folder in the cache of a set on the hub."""
    return cache.folder() / "hub" / "--".join(part for part in parts_of(source) if part)


def parts_of(source: str) -> tuple[str, str, str | None]:
    r"""Returns the owner, the name and the configuration of a set on the hub."""
    found = re.fullmatch(r"hub:([\w.-]+)/([\w.-]+)(?::([\w.-]+))?", source)
    if found is None:
        raise ValueError(f"expected hub:OWNER/NAME or hub:OWNER/NAME:CONFIG, got {source!r}")
    owner, name, config = found.groups()
    return owner, name, config


def file_of(split: str) -> str:
    return f"{split}-00000-of-00001.parquet"


def fetch(hub: str, config: str | None, split: str, place: Path, needed: str) -> Path:
    r"""Returns the folder in the cache where a set from the hub lies, as one file a split."""
    target = place / file_of(split)
    if target.exists():
        return place
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"expected {needed}, got none; pip install 'fokker[hub]' to fetch it"
        ) from None
    place.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        try:
            load_dataset(hub, config, split=split).to_parquet(str(partial))
        except Exception as error:  # of many kinds, on networks
            reason = " ".join(str(error).split())
            raise ValueError(
                f"expected {needed}, or {split} of {hub} from the hub, got neither: {reason}"
            ) from error
    return place


def name_of(source: str | Path) -> str:
    r"""Returns the name of a set: of its folder, wherever that is seen from, or of a set by
    name."""
    if isinstance(source, str) and source in SETS:
        return source
    return Path(os.path.abspath(source)).name.replace(":", "-")  # a link has a name of its own


def files_of(folder: Path, split: str) -> list[Path]:
    r"""Returns the files of a split: of Parquet if there are any, else of images."""
    tables = sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")])
    if tables:
        found = [path for path in tables if path.name.startswith(f"{split}-")]
        for path in found:
            parts = re.search(r"-of-(\d+)\.parquet$", path.name)
            if parts and int(parts[1]) != len(found):
                raise ValueError(f"{path}: expected {int(parts[1])} such files, got {len(found)}")
        if not found:
            raise ValueError(f"{folder}: expected {split}-*.parquet, got only {tables[0].name}")
        return found
    images = {path.relative_to(folder).as_posix(): path for path in walk(folder)}
    if not images:
        raise ValueError(
            f"{folder}: expected {split}-*.parquet, or images ({', '.join(SUFFIXES)}), got none"
        )
    split_of = named_split if all((folder / s).is_dir() for s in SPLITS) else hashed_split
    found = [images[name] for name in sorted(images) if split_of(name) == split]
    if not found:
        rule = "" if split_of is named_split else "; one file in ten is, by its name"
        got = f"none of its {len(images)}{rule}"
        raise ValueError(f"{folder}: expected images in {split}, got {got}")
    return found


def walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> NoReturn:
        raise error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and name.lower().endswith(SUFFIXES):
                yield Path(place, name)


def named_split(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def hashed_split(name: str) -> str:
    digest = hashlib.sha256(os.fsencode(name)).digest()
    return "train" if int.from_bytes(digest[:8], "big") % 10 else "test"


def fingerprint(folder: Path, files: list[Path], options: tuple[int | None, ...]) -> str:
    r"""Returns a hash of the names and the contents of files, and of how they are read."""
    total = hashlib.sha256(repr(options).encode())
    for path in files:
        with open_regular(path, LONGEST) as file:
            content = hashlib.file_digest(file, "sha256").digest()
        name = os.fsencode(path.relative_to(folder).as_posix())
        total.update(len(name).to_bytes(4, "big") + name + content)
    return total.hexdigest()
