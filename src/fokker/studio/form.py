r"""Forms: the typed settings of a run, described so that a page can show and send them back.

The dataclasses are the one source: their fields, types, defaults and documentation become a tree
of plain values, and what comes back is the image that `fokker.runs.toml` reads. A field is
described by

=============  ==============================================================================
`type`         `number`, `integer`, `flag`, `choice`, or `kind` where one of several classes,
               or a plain number, may stand
`default`      its default, in the same image; none if it may be left out
`doc`          its line of the documentation
=============  ==============================================================================
"""

__all__ = ["describe", "presets"]

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing

from functools import cache
from typing import Any, Literal

from ..objectives import DCD, Objective
from ..runs.config import Network, Optimization
from ..runs.presets import PRESETS, table_config
from ..runs.toml import alternatives, encode, kinds

PLAIN: dict[Any, str] = {float: "number", int: "integer", bool: "flag"}
# needs the Langevin diffusion, which has no plain image; CD is the two together
ABSENT = {"stationary"}
ACTIVATIONS = ("gelu", "silu", "tanh", "softplus")


def clean(text: str) -> str:
    r"""Returns a line of documentation without its markup."""
    text = re.sub(r":math:`([^`]*)`", lambda m: plain_math(m[1]), text)
    text = re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("`", "")
    return " ".join(text.split())


def plain_math(text: str) -> str:
    r"""Returns a short formula in plain letters."""
    names = {
        r"\sigma": "σ", r"\lambda": "λ", r"\varepsilon": "ε", r"\pm": "±",
        r"\geq": "≥", r"\leq": "≤",
        r"\beta": "β", r"\int": "∫", r"\log": "log", r"\approx": "≈", r"\to": "→", r"\nabla": "∇",
        r"\Delta": "Δ", r"\,": " ", r"\cdot": "·", r"\theta": "θ",
        r"\tilde x": "x̃", r"\mathcal": "",
    }  # fmt: skip
    for name, letter in names.items():
        text = text.replace(name, letter)
    return text.replace("^2", "²").replace("{", "").replace("}", "").replace("\\", "")


@cache
def documents(kind: type) -> dict[str, str]:
    r"""Returns the line of documentation of each field: the text under it, or its entry among the
    arguments of the class."""
    found: dict[str, str] = {}
    doc = inspect.cleandoc(kind.__doc__ or "")
    _, _, arguments = doc.partition("Arguments:\n")
    for entry in re.split(r"\n(?=    \w)", "\n" + arguments.split("\n\n")[0]):
        name, colon, text = entry.strip().partition(": ")
        if colon and name.isidentifier():
            found[name] = clean(text)
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    for field, text in itertools.pairwise(getattr(body, "body", [])):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(words))):
                    found[field.target.id] = clean(words)
    return found


def first_sentence(kind: type) -> str:
    r"""Returns what a class creates, in a sentence."""
    lead = clean(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0])
    lead = re.sub(r"^Creates (the |a |an )?", "", lead)
    return lead[:1].upper() + lead[1:]


def describe(kind: type) -> list[dict[str, Any]] | None:
    r"""Returns the description of the fields of a dataclass; `None` if a field has no plain image
    and no default."""
    hints, out = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        entry = describe_type(hints[field.name], field.name)
        if entry is None:
            if field.default is dataclasses.MISSING:
                return None
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        out.append({
            "name": field.name,
            "doc": documents(kind).get(field.name, ""),
            "default": None if default is None else encode(default),
            "optional": types.NoneType in typing.get_args(hints[field.name]),
            **entry,
        })
    return out


def describe_type(annotation: Any, name: str) -> dict[str, Any] | None:
    r"""Returns the description of a type; `None` if it has no plain image."""
    types_ = alternatives(annotation)
    if name == "activation":
        return {"type": "choice", "choices": list(ACTIVATIONS)}
    for t in types_:
        if typing.get_origin(t) is Literal:
            return {"type": "choice", "choices": list(typing.get_args(t))}
    plain = next((PLAIN[t] for t in types_ if t in PLAIN), None)
    classes = tuple(t for t in types_ if isinstance(t, type) and t not in PLAIN)
    # one class that has itself a kind (a DCD within another) is not open to its siblings
    named = {k: t for k, t in kinds(classes).items() if k not in ABSENT} if classes else {}
    described = {k: describe(t) for k, t in named.items()}
    options = {k: fields for k, fields in described.items() if fields is not None}
    if options:
        return {"type": "kind", "plain": plain, "kinds": options}
    return None if plain is None else {"type": plain}


def presets() -> dict[str, Any]:
    r"""Returns the objectives, the network and the optimization to start from, on a 2-D set and on
    drawn points, and the forms of all.

    Drawn points are trained on in units of their standard deviations, as a table is; a 2-D set in
    its own. The networks are smaller and the steps shorter than those of the presets, so that a
    laptop can show them as they learn.
    """
    mine, table = PRESETS["fokker"].objectives, table_config("points.csv")
    toys = {
        "DCD at many times": mine["dcd"],
        "DCD of the paper": DCD(),
        "Contrastive divergence": mine["cd"],
        "Persistent CD": mine["pcd"],
        "Score matching": mine["sm"],
        "Sliced score matching": mine["ssm"],
        "Denoising score matching": mine["dsm"],
        "Energy discrepancy": mine["ed"],
        "Recovery likelihood": mine["recovery"],
    }
    drawn: dict[str, Objective] = {
        **toys,
        "DCD at many times": table.objective,
        "DCD of the paper": DCD(step=1e-3),
        "Contrastive divergence": dataclasses.replace(
            toys["Contrastive divergence"], step_size=0.01
        ),
        "Persistent CD": dataclasses.replace(toys["Persistent CD"], step_size=0.01),
        "Denoising score matching": dataclasses.replace(
            toys["Denoising score matching"], sigma=0.1
        ),
        "Energy discrepancy": dataclasses.replace(toys["Energy discrepancy"], sigma=0.1),
        "Recovery likelihood": dataclasses.replace(toys["Recovery likelihood"], sigma=0.2),
    }

    def image(objectives: dict[str, Objective], network: Any, steps: int) -> dict[str, Any]:
        return {
            "objectives": {name: encode(value) for name, value in objectives.items()},
            "network": encode(dataclasses.replace(network, width=64)),
            "optimization": encode(Optimization(steps=steps, batch=128, rate=3e-3)),
        }

    forms = {encode(value)["kind"]: type(value) for value in toys.values()}
    return {
        "set": image(toys, PRESETS["fokker"].network, 1200),
        "points": image(drawn, table.network, 1000),
        "forms": {
            "objectives": {
                k: {"about": first_sentence(t), "fields": describe(t)} for k, t in forms.items()
            },
            "network": describe(Network),
            # Muon is for U-Nets, which are not trained here
            "optimization": [f for f in describe(Optimization) or [] if f["name"] != "muon"],
        },
    }
