r"""Options of `fokker train`, derived from the configuration.

A setting is written once: as a field of a dataclass of the configuration (`fokker.runs.config`),
with its type and the sentence that describes it. `with_settings` makes an option of each field; an
option that is not given leaves the preset as it is.
"""

__all__ = ["Source", "apply", "with_settings"]

import ast
import dataclasses
import docstring_parser
import inspect
import textwrap
import typing
import tyro

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from ..runs.config import Config
from ..runs.toml import decode

Command = TypeVar("Command", bound=type)
PLAIN = (int, float, str)


class Source(NamedTuple):
    r"""A dataclass of the configuration whose fields become options."""

    kind: type
    place: tuple[str, ...]  # the way to it from the configuration
    names: Mapping[str, str] = {}  # option by field, where they differ; empty for no option
    prefix: str = ""  # of the options that have no name of their own
    off: tuple[str, ...] = ()  # fields that the value 0 sets to `None`


@dataclass(frozen=True)
class Setting:
    r"""An option and the field that it sets."""

    place: tuple[str, ...]  # the way to the field from the configuration
    annotation: Any  # of the field
    off: bool  # whether 0 sets it to `None`


def documented(kind: type) -> dict[str, str]:
    r"""Returns the text of each field of a dataclass: under it, or under `Arguments` of the
    class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    arguments = docstring_parser.parse(inspect.getdoc(kind) or "").params
    found = {part.arg_name: " ".join((part.description or "").split()) for part in arguments}
    last = None
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[last] = " ".join(str(node.value.value).split())
            last = None
    return found


def option(annotation: Any, text: str, off: bool = False) -> tuple[Any, Any] | None:
    r"""Returns the type and the default of the option of a field; `None` if it is no plain
    value."""
    types = [t for t in typing.get_args(annotation) if t is not type(None)] or [annotation]
    if annotation is bool:
        return Annotated[bool, tyro.conf.arg(help=text), tyro.conf.FlagCreatePairsOff], False
    if typing.get_origin(annotation) is tuple and typing.get_args(annotation)[0] in PLAIN:
        return Annotated[annotation, tyro.conf.arg(help=text)], ()
    unset = f"{text} {'0 for none; the' if off else 'The'} preset's if not given."
    if typing.get_origin(annotation) is Literal:
        listed = "|".join(map(str, typing.get_args(annotation)))
        return Annotated[str | None, tyro.conf.arg(help=unset, metavar=listed)], None
    if types[0] in PLAIN:
        return Annotated[types[0] | None, tyro.conf.arg(help=unset)], None
    return None


def with_settings(*sources: Source) -> Callable[[Command], Command]:
    r"""Adds an option for each field of dataclasses of the configuration to a command."""

    def decorate(command: Command) -> Command:
        settings: dict[str, Setting] = {}
        fields = []
        taken = {f.name for f in dataclasses.fields(command)}
        for source in sources:
            hints, texts = typing.get_type_hints(source.kind), documented(source.kind)
            for part in dataclasses.fields(source.kind):
                name = source.names.get(part.name, source.prefix + part.name)
                hint, off = hints[part.name], part.name in source.off
                made = option(hint, texts.get(part.name, ""), off)
                if not name or name in taken or made is None:
                    continue
                taken.add(name)
                settings[name] = Setting((*source.place, part.name), hint, off)
                fields.append((name, made[0], field(default=made[1])))
        return dataclasses.make_dataclass(
            command.__name__,
            fields,
            bases=(command,),
            namespace={
                "__doc__": command.__doc__,
                "__module__": command.__module__,
                "settings": settings,
            },
            frozen=True,
        )  # pyright: ignore[reportReturnType]

    return decorate


def apply(command: Any, config: Config) -> Config:
    r"""Returns a configuration changed by the options that were given to a command."""
    for name, setting in command.settings.items():
        value = getattr(command, name)
        if value is None or value is False or value == ():
            continue
        value = None if setting.off and value == 0 else value
        config = changed(config, setting.place, value, f"--{name.replace('_', '-')}")
    return config


def changed(part: Any, place: tuple[str, ...], value: Any, option: str) -> Any:
    r"""Returns a dataclass with the field at a place set to a value."""
    name, *rest = place
    if name not in {f.name for f in dataclasses.fields(part)}:
        raise ValueError(f"expected a preset with the setting {name} for {option}, got {part}")
    if rest:
        return dataclasses.replace(
            part, **{name: changed(getattr(part, name), tuple(rest), value, option)}
        )
    hint = typing.get_type_hints(type(part))[name]
    if value is not None:
        value = decode(hint, list(value) if isinstance(value, tuple) else value, option)
    return dataclasses.replace(part, **{name: value})
