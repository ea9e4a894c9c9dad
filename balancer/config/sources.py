"""Sources of the configuration, and the source of each value. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

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
