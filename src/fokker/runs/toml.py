r"""Configurations in TOML: written, read and compared.

The image of a configuration (`fokker.runs.config`) in TOML has one table a dataclass; where a
field admits several classes (an objective, a diffusion, ...) the table says which under the key
`kind`, the name in the registry of the package. `None` is left out. Reading is strict: an unknown
key, a wrong type or an unknown kind is an error that names the place and what was expected.
"""

__all__ = ["difference", "dumps", "encode", "loads"]

import dataclasses
import tomllib
import types
import typing

from collections.abc import Mapping
from typing import Any, Literal

from .config import DATA, NETWORKS, Config
from .. import checks
from ..derivatives import LAPLACIANS
from ..diffusions import DIFFUSIONS
from ..evolution import EVOLUTIONS
from ..objectives import (
    FORMS,
    OBJECTIVES,
    TIES,
    Grid,
    LevelDCD,
    LogNormal,
    LogUniform,
    Preserving,
    Uniform,
    Wide,
)

LONGEST = 2**14  # characters of a file; reading a long key takes the square of its length
DEEPEST = 8  # tables within each other

# the classes that are saved with a kind, by name
REGISTRIES: list[Mapping[str, type]] = [
    OBJECTIVES,
    DIFFUSIONS,
    EVOLUTIONS,
    LAPLACIANS,
    FORMS,
    TIES,
    DATA,
    NETWORKS,
    {
        "log-uniform": LogUniform,
        "log-normal": LogNormal,
        "uniform": Uniform,
        "grid": Grid,
        "preserving": Preserving,
        "wide": Wide,
    },
]


def kinds(types_: tuple[type, ...]) -> dict[str, type]:
    r"""Returns the classes with a kind that a field of these types may hold, by kind."""
    bases = tuple(t for t in types_ if isinstance(t, type))
    return {
        name: kind
        for names in REGISTRIES
        for name, kind in names.items()
        if issubclass(kind, bases)
    }


def kind_of(value: object) -> str | None:
    r"""Returns the kind under which an object is saved, if its class has one."""
    return {kind: name for names in REGISTRIES for name, kind in names.items()}.get(type(value))


def encode(value: object, where: str = "config") -> Any:
    r"""Returns the image of a configuration in the types of TOML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = kind_of(value)
        out = {} if kind is None else {"kind": kind}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if part is not None:
                out[field.name] = encode(part, f"{where}.{field.name}")
        return out
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # as the path of a file whose name is of other bytes
            raise ValueError(f"expected a text in UTF-8 at {where}, got {value!r}") from None
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [encode(v, where) for v in value]
    raise ValueError(f"expected a value that TOML can hold at {where}, got {value!r}")


def difference(here: Config, there: Config) -> str | None:
    r"""Returns the first place where two configurations differ, and how; `None` if they do not."""

    def flat(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {place: value}
        return {
            k: v
            for name, inner in value.items()
            for k, v in flat(inner, f"{place}.{name}").items()
        }

    mine, theirs = (flat(encode(c), "config") for c in (here, there))
    for place in dict.fromkeys([*mine, *theirs]):
        if mine.get(place) != theirs.get(place):  # None is left out of both
            values = [
                repr(held[place]) if place in held else "not given" for held in (mine, theirs)
            ]
            return f"{place.removeprefix('config.')} is {values[0]} here and {values[1]} there"
    return None


def alternatives(annotation: Any) -> tuple[type, ...]:
    r"""Returns the types of a union, or the type alone."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return tuple(t for t in typing.get_args(annotation) if t is not type(None))
    return (annotation,)


def with_form(value: dict[str, Any], where: str) -> dict[str, Any]:
    r"""Returns the image of a `LevelDCD` whose form is a name with the step beside it, as it was
    saved before forms were tables."""
    value = dict(value)
    name, step = value.pop("form"), value.pop("step", 0.2)
    forms: dict[str, dict[str, Any]] = {
        "limit": {"kind": "limit"},
        "path": {"kind": "path", "step": step},
        "hutchinson": {"kind": "hutchinson", "step": step},
        "hutchinson-limit": {"kind": "hutchinson", "step": 0.0},
    }
    if name in {"stein", "surrogate"}:
        raise ValueError(
            f"expected a form of this version at {where}.form ({', '.join(FORMS)}), got {name!r},"
            " which it no longer has: bridge is in its place, so train again"
        )
    if name not in forms:
        raise checks.unknown(name, list(FORMS), "a form", f"{where}.form")
    return {**value, "form": forms[name]}


def with_ties(value: dict[str, Any], where: str) -> dict[str, Any]:
    r"""Returns the image of a `LevelDCD` with the weight of a time score, as it was saved before
    ties were tables."""
    value = dict(value)
    weight = decode(float, value.pop("time"), f"{where}.time")
    ties = [{"kind": "time-score", "weight": weight}] if weight else []
    return {"ties": ties, **value}


def decode(annotation: Any, value: object, where: str = "config") -> Any:
    r"""Returns the configuration of a type whose image is `value`."""
    types_ = alternatives(annotation)
    if where.count(".") > DEEPEST:
        raise ValueError(
            f"expected at most {DEEPEST} tables within each other, got more at {where}"
        )
    if isinstance(value, dict):
        named = kinds(types_)
        plain = [t for t in types_ if dataclasses.is_dataclass(t)]
        if named:
            value = dict(value)
            only = next(iter(named)) if len(named) == 1 else None  # no need to say it
            kind = value.pop("kind", only)
            if not isinstance(kind, str) or kind not in named:
                got = kind if isinstance(kind, str) else checks.brief(kind)
                raise checks.unknown(got, list(named), "a kind", where)
            target = named[kind]
        elif plain:
            target = plain[0]
        else:
            raise ValueError(f"expected a plain value at {where}, got a table")
        if target is LevelDCD and isinstance(value.get("form"), str):
            value = with_form(value, where)
        if target is LevelDCD and "time" in value:
            value = with_ties(value, where)
        hints = typing.get_type_hints(target)
        fields = [field.name for field in dataclasses.fields(target)]
        for key in value:
            if key not in fields:
                raise checks.unknown(key, fields, "a key", where)
        for field in dataclasses.fields(target):
            if field.default is dataclasses.MISSING and field.name not in value:
                raise ValueError(f"expected the key {field.name!r} at {where}, got none")
        inner = {k: decode(hints[k], v, f"{where}.{k}") for k, v in value.items()}
        try:
            return target(**inner)
        except OverflowError as error:  # a square of 1e308
            raise ValueError(
                f"expected numbers of a usual size at {where}, got {checks.brief(inner)}: {error}"
            ) from None
    for t in types_:
        if typing.get_origin(t) is tuple and isinstance(value, list):
            (inner, _) = typing.get_args(t)
            return tuple(decode(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
        if typing.get_origin(t) is Literal:
            if value in typing.get_args(t):
                return value
            got = value if isinstance(value, str) else checks.brief(value)
            raise checks.unknown(got, list(typing.get_args(t)), "a value", where)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"expected a number of 64 bits at {where}, got {checks.brief(value)}")
        if t is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if t in {int, str, bool} and type(value) is t:
            return value
    expected = " or ".join(getattr(t, "__name__", str(t)) for t in types_)
    raise ValueError(f"expected {expected} at {where}, got {checks.brief(value)}")


def dumps(config: Config) -> str:
    r"""Returns a configuration as TOML."""
    import tomli_w

    return tomli_w.dumps(encode(config))


def loads(text: str) -> Config:
    r"""Returns the configuration that a TOML text describes."""
    if len(text) > LONGEST:
        raise ValueError(
            f"expected a configuration of at most {LONGEST} characters, got {len(text)}"
        )
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"expected a configuration in TOML, got a text that is not: {str(error)[:200]}"
        ) from None
    return decode(Config, content)
