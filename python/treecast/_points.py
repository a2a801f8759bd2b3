"""Points of sweeps: their keys, how they run, and the row that each gives."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from treecast._load import load
from treecast._treecast import Fabric, Group, Parameters, TreecastError, plan, simulate
from treecast._types import LoadPoint, MulticastPoint

Point = dict[str, Any]
Row = list[Any]


def _kind(key: str, default: object) -> str:
    if key.endswith("_ns"):
        return "real"
    return "text" if isinstance(default, str) else "whole"


# The name and type of every column; values that do not apply to a point are null.
COLUMNS = [
    ("fabric", "text"),
    ("routing", "text"),
    ("scheme", "text"),
    ("order", "text"),
    ("offload", "text"),
    ("message_flits", "whole"),
    ("root", "whole"),
    ("destinations", "text"),
    ("destination_count", "whole"),
    ("processes", "whole"),
    ("placement", "text"),
    ("degree", "whole"),
    ("offered_load", "real"),
    ("ejection_load", "real"),
    ("arrivals", "text"),
    ("destination_sets", "text"),
    ("cycles", "whole"),
    ("warmup_cycles", "whole"),
    ("backlog_max", "whole"),
    ("simulator", "text"),
    ("seed", "whole"),
    *((key, _kind(key, default)) for key, default in dict(Parameters()).items()),
    ("status", "text"),
    ("latency_cycles", "whole"),
    ("latency_ns", "real"),
    ("worms", "whole"),
    ("cpu_busy_cycles", "whole"),
    ("accepted_load", "real"),
    ("multicasts_measured", "whole"),
    ("latency_mean_cycles", "real"),
    ("latency_p50_cycles", "whole"),
    ("latency_p99_cycles", "whole"),
    ("latency_max_cycles", "whole"),
    ("latency_ci95_cycles", "real"),
    ("first_last_spread_mean_cycles", "real"),
    ("link_utilization_mean", "real"),
    ("link_utilization_max", "real"),
    ("link_utilization_link", "text"),
    ("end_cycle", "whole"),
]


def grid(**keys: object) -> list[Point]:
    """The points of a sweep as a cross product.

    An iterable, such as a list or a range, holds the values of a key; a text, a mapping or any other object is one
    value. The last key varies fastest. To vary lists of destinations, or mappings of parameters, pass lists of them.

    >>> for point in grid(fabric="icpp98", scheme=["binomial", "tree-worm"], load=[0.01, 0.02], degree=3):
    ...     print(point)
    {'fabric': 'icpp98', 'scheme': 'binomial', 'load': 0.01, 'degree': 3}
    {'fabric': 'icpp98', 'scheme': 'binomial', 'load': 0.02, 'degree': 3}
    {'fabric': 'icpp98', 'scheme': 'tree-worm', 'load': 0.01, 'degree': 3}
    {'fabric': 'icpp98', 'scheme': 'tree-worm', 'load': 0.02, 'degree': 3}
    """
    values = [_values(value) for value in keys.values()]
    return [dict(zip(keys, combination, strict=True)) for combination in itertools.product(*values)]


def _values(given: object) -> list[Any]:
    if isinstance(given, Iterable) and not isinstance(given, (str, Mapping, Parameters)):
        return list(given)
    return [given]


def checked(points: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The points as dicts, checked for unknown and missing keys."""
    return [_checked(number, point) for number, point in enumerate(points)]


def _checked(number: int, given: Mapping[str, Any]) -> Point:
    if not isinstance(given, Mapping):
        raise TypeError(f"point {number} is a {type(given).__name__}, not a dict")
    point = dict(given)
    of_load = "load" in point
    kind: Any = LoadPoint if of_load else MulticastPoint
    known = kind.__annotations__
    for key in point:
        if key not in known:
            what = "a run under load" if of_load else "a multicast, as it has no load,"
            raise TreecastError(f"point {number}: {what} has no key {key!r}: known are {', '.join(known)}")
    for key in sorted(kind.__required_keys__ - point.keys()):
        raise TreecastError(f"point {number}: its {key} is missing")
    if isinstance(point["fabric"], Fabric) and "routing" in point:
        raise TreecastError(f"point {number}: a Fabric has its routing: leave the key away, or give a line as fabric")
    destinations = point.get("destinations", "")
    if not isinstance(destinations, str):
        point["destinations"] = list(destinations)
    return point


def key_of(point: Point) -> str:
    """A text that is the same for equal points alone."""
    return json.dumps(point, sort_keys=True, default=_plain)


def _plain(value: Any) -> object:
    if isinstance(value, Fabric):
        digest = hashlib.sha256(value.to_toml().encode()).hexdigest()
        return {"source": value.source, "routing": value.routing, "sha256": digest}
    if isinstance(value, (Mapping, Parameters)):
        return dict(value)
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


# Points with the same fabric follow one another.
_generated = lru_cache(maxsize=16)(Fabric)


def run(point: Point) -> Row:
    """Runs a point, and gives its row."""
    keys = {key: value for key, value in point.items() if key not in ("fabric", "routing")}
    fabric = point["fabric"]
    if not isinstance(fabric, Fabric):
        fabric = _generated(fabric, point.get("routing", "auto"))
    found = _under_load(fabric, keys) if "load" in keys else _alone(fabric, **keys)
    return [found.get(name) for name, _ in COLUMNS]


def _under_load(fabric: Fabric, keys: dict[str, Any]) -> dict[str, Any]:
    result = load(fabric, **keys)
    utilization = {f"link_utilization_{name}": value for name, value in result.link_utilization.items()}
    return {**_attributes(result), **utilization}


def _alone(
    fabric: Fabric,
    scheme: str,
    order: str | None = None,
    offload: str = "host",
    message: int | None = None,
    parameters: Parameters | Mapping[str, Any] | None = None,
    seed: int = 1,
    simulator: str = "event",
    **of_group: Any,
) -> dict[str, Any]:
    group = Group(fabric, **of_group, seed=seed)
    if not isinstance(parameters, Parameters):
        parameters = Parameters(**(parameters or {}))
    flits = parameters["packet_flits"]
    assert isinstance(flits, int)
    message = flits if message is None else message
    # `simulate` rejects an empty message.
    made = plan(fabric, group, scheme, order, packets=max(1, -(-message // flits)))
    result = simulate(fabric, made, offload, message, parameters, seed, simulator=simulator)
    return {
        **_attributes(result),
        "destination_count": len(group.destinations),
        "processes": group.processes,
        "placement": group.placement,
        "cpu_busy_cycles": sum(result.cpu_busy_cycles.column("cycles")),
    }


def _attributes(result: Any) -> dict[str, Any]:
    found = {name: getattr(result, name, None) for name, _ in COLUMNS}
    return {**found, **dict(result.parameters)}
