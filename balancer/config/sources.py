"""Sources of the configuration, and the source of each value. Pure: no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from balancer.config.documents import check_limits
from balancer.config.keys import (
    Table,
    annotation_at,
    corrected,
    dotted,
    is_list,
    is_mapping,
    keys_of,
    table_of,
)
from balancer.config.positions import Place, lines_of

Value = TypeVar("Value")


@dataclass(frozen=True)
class Layer:
    """Keys from one source. `named` returns what a key of it is called: a file and line, a variable, an option."""

    document: dict[str, Any]
    named: Callable[[Place], str]


def one_source(document: dict[str, Any], name: str) -> Layer:
    """Return a layer of which every key has the same name."""
    return Layer(document, lambda place: name)


class FileNames:
    """Names places of a TOML file by its path and their line; the text is scanned when the first name is wanted."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def __call__(self, place: Place) -> str:
        line = longest(self._lines, place)
        return str(self._path) if line is None else f"{self._path}:{line}"

    @cached_property
    def _lines(self) -> dict[Place, int]:
        return lines_of(self._text)


@dataclass(frozen=True)
class Merged:
    """Keys of all layers, and the layer that each comes from."""

    document: dict[str, Any] = field(default_factory=dict)
    layers: dict[Place, Layer] = field(default_factory=dict)

    def source(self, place: Place) -> str | None:
        """Return the name of the source of the value at `place`, or of the table that it is missing from."""
        own = place_of_value(self.layers, place)
        layer = longest(self.layers, own)
        return None if layer is None else layer.named(own)


def place_of_value(given: dict[Place, Value], place: Place) -> Place:
    """Return the place that the value comes from: one of the top level where a named cluster inherits the key."""
    if place[:1] != ("clusters",):
        return place
    own, inherited = (
        max((length for length in range(len(each) + 1) if each[:length] in given), default=0)
        for each in (place, place[2:])
    )
    return place[2:] if inherited + 2 > own > 0 and inherited else place


def longest(values: dict[Place, Value], place: Place) -> Value | None:
    """Return the value of the longest beginning of `place` that has one."""
    for length in range(len(place), 0, -1):
        value = values.get(place[:length])
        if value is not None:
            return value
    return None


def merge(layers: Iterable[Layer]) -> Merged:
    """Merge the layers key by key, the last one with precedence; lists replace each other."""
    merged = Merged()
    for layer in layers:
        document = layer.document
        document = with_policies(document, policy_table)
        _lay(merged, merged.document, document, layer, ())
    return merged


def with_policies(document: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a document in which the policy of the top level and those of named clusters are changed."""
    if "policy" in document:
        document = {**document, "policy": change(document["policy"])}
    clusters = document.get("clusters")
    if not isinstance(clusters, dict):
        return document
    changed = {
        name: {**cluster, "policy": change(cluster["policy"])}
        if isinstance(cluster, dict) and "policy" in cluster
        else cluster
        for name, cluster in clusters.items()
    }
    return {**document, "clusters": changed}


def policy_table(value: Any) -> Any:
    """Return the table of a policy that is given by its name."""
    return {"name": value} if isinstance(value, str) else value


def _lay(merged: Merged, below: dict[str, Any], above: dict[str, Any], layer: Layer, place: Place) -> None:
    for name, value in above.items():
        here = (*place, name)
        old = below.get(name)
        if isinstance(value, dict) and isinstance(old, dict) and not _is_policy(here, value):
            _lay(merged, old, value, layer, here)
            continue
        if name in below:
            _forget(merged, here)
        merged.layers[here] = layer
        below[name] = {} if isinstance(value, dict) else value
        if isinstance(value, dict):
            _lay(merged, below[name], value, layer, here)


def _is_policy(place: Place, value: dict[str, Any]) -> bool:
    """Return whether the value names a policy: the options of another policy do not apply to it."""
    is_place = place == ("policy",) or (len(place) == 3 and place[0] == "clusters" and place[2] == "policy")
    return is_place and "name" in value


def _forget(merged: Merged, place: Place) -> None:
    for old in [each for each in merged.layers if each[: len(place)] == place]:
        del merged.layers[old]


PREFIX: Final = "BALANCER_"

SEPARATOR: Final = "__"
"""Separator between a table and its key in the name of a variable."""

SERVICE_LINK: Final = re.compile(
    r"BALANCER_([A-Z0-9_]{1,63}_)?(SERVICE_HOST=.*|SERVICE_PORT(_[A-Z0-9_]{1,15})?=.*|"
    r"PORT=(tcp|udp|sctp)://.*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)"
)
"""Variables that Kubernetes makes of the services of a namespace, unless `enableServiceLinks` is false. The name of a
service has at most 63 characters and that of a port 15.
"""


def environment_layer(variables: Mapping[str, str], table: Table) -> tuple[Layer, list[str]]:
    """Return the keys in the environment, and a message for each variable that cannot be one. `BALANCER_LIMITS__QUEUE`
    is the key `limits.queue`.

    Every variable with the prefix must be a key, as a misspelt one would silently have no effect. Variables that
    Kubernetes makes of a service named `balancer` are ignored.
    """
    document: dict[str, Any] = {}
    names: dict[Place, str] = {}
    problems: list[str] = []
    for name in sorted(variables, key=lambda name: (name.count(SEPARATOR), name)):
        if not name.upper().startswith(PREFIX) or SERVICE_LINK.fullmatch(f"{name}={variables[name]}"):
            continue
        place = place_of(name)
        problem = problem_with(name, variables[name], table)
        if problem is None and not _put(
            document, place, decoded(variables[name], annotation_at(table, place))
        ):
            problem = f"{name}: {names[place[:1]]} is not a table"
        if problem is not None:
            problems.append(problem)
        else:
            names[place] = name
    return Layer(document, lambda place: longest(names, place) or ""), problems


def place_of(name: str) -> Place:
    """Return the place of the key that a variable with the prefix sets."""
    return tuple(name[len(PREFIX) :].lower().split(SEPARATOR))


def variable_of(place: Place) -> str:
    """Return the name of the variable for a key."""
    return PREFIX + SEPARATOR.join(str(name).upper() for name in place)


def problem_with(name: str, value: str, table: Table) -> str | None:
    """Return a message for a variable that cannot be used. It never contains the value, which may be a secret."""
    place = place_of(name)
    is_known = annotation_at(table, place) is not None
    around = list_around(table, place)
    if around:
        return f"{name}: {dotted(around)} is a list: set {variable_of(around)} as JSON"
    if is_known and name != name.upper():
        return f"{name}: variables are in capitals: {name.upper()}"
    if not is_known:
        near = corrected(table, place)
        known = [variable_of(each) for each in keys_of(table) if not list_around(table, each)]
        close = [variable_of(near)] if near else get_close_matches(name.upper(), known, n=1, cutoff=0.75)
        return f"{name}: is not a known variable" + (f"; did you mean {close[0]}?" if close else "")
    return f"{name}: is empty; give it a value, or unset it" if not value else None


def list_around(table: Table, place: Place) -> Place:
    """Return the place of the list that contains the key; empty if none does."""
    parents = (place[:length] for length in range(1, len(place)))
    return next((parent for parent in parents if is_list(annotation_at(table, parent))), ())


def decoded(text: str, annotation: Any) -> Any:
    """Return the value of a variable: of a table, a list or a policy's option from JSON, if it is JSON."""
    is_text = annotation is not Any and table_of(annotation) is None
    if is_text and not is_list(annotation) and not is_mapping(annotation):
        return text
    try:
        value = json.loads(text)
        check_limits(value)
    except (ValueError, RecursionError):
        return text
    return value


def _put(document: dict[str, Any], place: Place, value: Any) -> bool:
    """Put the value at its place; return whether the tables around it are tables."""
    *tables, last = map(str, place)
    for name in tables:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            return False
    document[last] = policy_table(value) if last == "policy" else value
    return True
