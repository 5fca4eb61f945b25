r"""Requests: what a page asks for, checked before anything is built from it.

Nothing of a request is trusted. Text becomes plain values, plain values become a `Config` through
`fokker.runs.toml`, which knows every name and type, and its numbers must lie within the bounds
below, which keep one step of training under a second or so. A page cannot name files, devices or
folders. Every fault is a `ValueError` with one line that says what was expected.
"""

__all__ = ["BOUNDS", "LIMIT", "MOST_POINTS", "Job", "parse", "read"]

import dataclasses
import json

from dataclasses import dataclass
from typing import Any

from .. import checks
from ..objectives import OBJECTIVES, Objective
from ..runs.config import Config, Network, Optimization, TableData, ToyData
from ..runs.toml import decode

LIMIT = 256 * 1024  # bytes of a message
DIGITS = 1000  # of an integer; Python itself refuses more than 4300
FEWEST_POINTS, MOST_POINTS = 20, 2000  # drawn
SIDES = 2
# the largest and smallest value of a number, by the name of its field
BOUNDS: dict[str, tuple[float, float]] = {
    "steps": (1, 20_000),
    "batch": (1, 4096),
    "rate": (1e-7, 1.0),
    "warmup": (0, 20_000),
    "width": (1, 512),
    "layers": (2, 8),
    "features": (0, 256),
    "bandwidth": (1e-3, 100.0),
    "confine": (0.05, 100.0),
    "probes": (1, 16),
    "samples": (1, 128),
    "points": (1, 4096),
    "buffer": (1, 100_000),
    "seed": (0, 2**31 - 1),
}
CHAIN = 200  # Langevin steps of an objective
OFFERED = ("dcd", "multi-time", "cd", "pcd", "sm", "ssm", "dsm", "ed", "recovery")  # of points


@dataclass(frozen=True)
class Job:
    r"""A training to do: one configuration a side, on a 2-D set or on drawn points."""

    configs: tuple[Config, ...]
    points: tuple[tuple[float, float], ...] | None


def refuse(constant: str) -> float:
    raise ValueError(f"expected finite numbers, got {constant}")


def short(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"expected integers of at most {DIGITS} digits, got {len(digits)}")
    return int(digits)


def read(text: str) -> dict[str, Any]:
    r"""Returns the request that a text spells."""
    if len(text) > LIMIT:
        raise ValueError(f"expected a message of at most {LIMIT} characters, got {len(text)}")
    try:
        request = json.loads(text, parse_constant=refuse, parse_int=short)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a message in JSON, got one that is not: {error}") from None
    except RecursionError:
        raise ValueError("expected a message in JSON, got one nested too deeply") from None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise ValueError("expected a JSON object with the text 'op'")
    return request


def only(request: dict[str, Any], *keys: str) -> None:
    r"""Raises if a request has other keys than these."""
    other = sorted(set(request) - {"op", *keys})
    if other:
        raise ValueError(f"expected the keys {', '.join(keys) or 'none'}, got also {other[0]!r}")


def integer(request: dict[str, Any], key: str, low: int, high: int) -> int:
    r"""Returns an integer of a request."""
    number = request.get(key)
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise ValueError(
            f"expected {key} to be an integer from {low} to {high}, got {number!r:.80}"
        )
    return number


def bounded(value: object, where: str = "config") -> None:
    r"""Raises unless the numbers of a configuration are within bounds."""
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        part, place = getattr(value, field.name), f"{where}.{field.name}"
        low, high = BOUNDS.get(field.name, (0, float("inf")))
        if field.name == "steps" and isinstance(value, Objective):
            high = CHAIN
        if field.name in BOUNDS and checks.number(part) and not low <= part <= high:
            raise ValueError(
                f"expected {place} from {low:g} to {high:g} in the studio, got {part!r}"
            )
        bounded(part, place)


def drawn(points: Any) -> tuple[tuple[float, float], ...]:
    r"""Returns drawn points, in the square from -1 to 1."""
    if not isinstance(points, list) or not FEWEST_POINTS <= len(points) <= MOST_POINTS:
        got = f"{len(points)} points" if isinstance(points, list) else repr(points)[:80]
        raise ValueError(f"expected {FEWEST_POINTS} to {MOST_POINTS} drawn points, got {got}")
    for i, point in enumerate(points):
        pair = isinstance(point, list) and len(point) == 2 and all(map(checks.number, point))
        if not pair or max(map(abs, point)) > 1:
            got = repr(point)[:80]
            raise ValueError(f"expected point {i} to be a pair within [-1, 1], got {got}")
    return tuple((float(x), float(y)) for x, y in points)


def objective(image: Any, where: str) -> Objective:
    r"""Returns the objective that a request describes."""
    kind = image.get("kind") if isinstance(image, dict) else None
    if kind not in OFFERED:
        got = repr(kind or image)[:80]
        raise ValueError(f"expected a kind at {where}, one of {', '.join(OFFERED)}, got {got}")
    return decode(OBJECTIVES[kind], image, where)


def parse(request: dict[str, Any]) -> Job:
    r"""Returns the training that a request asks for."""
    only(request, "data", "points", "objectives", "network", "optimization", "seed")
    try:
        objectives = request.get("objectives")
        if not isinstance(objectives, list) or not 1 <= len(objectives) <= SIDES:
            raise ValueError(f"expected a list of 1 to {SIDES} objectives, got {objectives!r:.80}")
        points = drawn(request["points"]) if "points" in request else None
        data = ToyData(decode(str, request.get("data", "rings"), "data"))
        if points is None:
            data.build()
        network = decode(Network, request.get("network", {}), "network")
        optimization = decode(Optimization, request.get("optimization", {}), "optimization")
        seed = integer({"seed": request.get("seed", 0)}, "seed", 0, 2**31 - 1)
        steps = optimization.steps
        configs = tuple(
            Config(
                data if points is None else TableData("points.csv"),
                objective(image, f"objectives[{i}]"),
                network,
                optimization,
                seed,
                evaluate=steps if points is None else min(100, steps),
            )
            for i, image in enumerate(objectives)
        )
        for config in configs:
            bounded(config)
    except (OverflowError, RecursionError) as error:  # a number, or a nesting, beyond measure
        raise ValueError(f"expected settings of a usual size: {error}") from None
    return Job(configs, points)
