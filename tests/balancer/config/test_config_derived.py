"""Defaults adapt to given keys: a legal value of one key alone is never refused because of another key's default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from balancer.cluster.runtime_config import runtime_config_of
from balancer.config.keys import dotted, is_list, is_mapping, keys_of, parts_of, table_at, table_of
from balancer.config.loading import Settings
from balancer.config.positions import Place
from tests.support.documentation import KEYS
from tests.support.tables import row_of

REQUIRED: dict[str, dict[str, Any]] = {
    "admission.levels": {"name": "normal"},
    "discovery.dns": {"name": "workers.test", "port": 80},
    "discovery.kubernetes": {"service": "workers"},
    "endpoints": {"id": "b", "address": "http://b:1"},
    "rate_limits": {"name": "a", "requests": 1},
    "routes": {"cluster": "next"},
    "routes.mirror": {"cluster": "next", "share": 0.5},
    "routes.auth": {"cluster": "next", "path": "/check", "cache": 1.0},
}
"""Required keys of tables with numbers."""

BESIDE: dict[str, dict[str, Any]] = {
    "routes.mirror": {"cluster": "default"},
    "routes.auth": {"cluster": "default"},
}
"""Keys that a table needs beside it."""

LARGE = 1_000_000
"""Value for keys without an upper bound."""


def numbers() -> Iterator[tuple[Place, float]]:
    """Every numeric key of the configuration with its least, a small and its greatest legal value."""
    for place in keys_of(Settings):
        table = table_at(Settings, place[:-1])
        assert table is not None
        field = table.model_fields[str(place[-1])]
        parts = [*parts_of(field.annotation)]
        is_one = not (is_list(field.annotation) or is_mapping(field.annotation))
        if table_of(field.annotation) or not is_one or not {int, float} & {*parts}:
            continue
        bounds = bounds_of(field.metadata, parts)
        least, greatest = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", LARGE)
        step = 1 if int in parts else 1e-3
        for value in {least + step * ("ge" not in bounds and "gt" in bounds), least + step, greatest}:
            yield place, value


def bounds_of(metadata: list[Any], parts: list[Any]) -> dict[str, float]:
    """The bounds in the metadata of a field, also of `Seconds | None`."""
    inner = [each for part in parts for each in getattr(part, "__metadata__", ())]
    known = [*metadata, *(bound for each in inner for bound in getattr(each, "metadata", [each]))]
    return {name: getattr(each, name) for each in known for name in ("ge", "gt", "le") if hasattr(each, name)}


def document_with(place: Place, value: Any) -> dict[str, Any]:
    """A document with one endpoint, a named cluster and the key."""
    document: dict[str, Any] = {
        "endpoints": [{"id": "a", "address": "http://a:1"}],
        "clusters": {"next": {"endpoints": [{"id": "n", "address": "http://n:1"}]}},
    }
    inner = document
    for length, name in enumerate(place[:-1], 1):
        table = dict(REQUIRED.get(dotted(place[:length]), {})) if length == len(place) - 1 else {}
        inner |= BESIDE.get(dotted(place[:length]), {})
        parent = table_at(Settings, place[: length - 1])
        assert parent is not None
        inner[str(name)] = [table] if is_list(parent.model_fields[str(name)].annotation) else table
        inner = table
    inner[str(place[-1])] = value
    return document


def test_every_number_alone() -> None:
    """Also where the runtime configuration is made of it."""
    tried = [*numbers()]
    assert len({place for place, _ in tried}) > 70
    for place, value in tried:
        try:
            runtime_config_of(Settings.model_validate(document_with(place, value)))
        except (ValidationError, ValueError) as error:
            pytest.fail(f"{dotted(place)} = {value}: {error}")


def in_seconds(place: Place, value: Any) -> Any:
    """The value of a key in a valid document, None if the document is invalid."""
    try:
        inner: Any = Settings.model_validate(document_with(place, value))
    except ValidationError:
        return None
    for name in place:
        inner = getattr(inner, str(name))
        inner = inner[0] if isinstance(inner, tuple) else inner
    return inner


def test_every_duration_may_have_a_unit() -> None:
    durations = [
        tuple(key.split(".")) for key, field in KEYS.items() if row_of(key, field).split("|")[2] == " s "
    ]
    assert len(durations) > 40
    for place in durations:
        found = {text: in_seconds(place, text) for text in ("10ms", "0.2s", "3s", "1m", "1 h")}
        expected = {
            text: in_seconds(place, number)
            for text, number in zip(found, (0.01, 0.2, 3, 60, 3600), strict=True)
        }
        assert found == expected
        assert {*found.values()} != {None}, dotted(place)
        for wrong in ("2 parsecs", "1m30s", "-1s", ["1s"]):
            with pytest.raises(ValidationError, match='number of seconds, or a duration such as "250ms"'):
                Settings.model_validate(document_with(place, wrong))


DERIVED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("health_checks", {"interval": 1.0}, {"fast_interval": 1.0}),
    ("health_checks", {"interval": 60.0}, {"fast_interval": 2.0}),
    ("health_checks", {"fast_interval": 9.0}, {"interval": 9.0}),
    ("names", {"min_ttl": 600.0}, {"max_ttl": 600.0}),
    ("names", {"max_ttl": 0.5}, {"min_ttl": 0.5}),
    ("names", {"servers": ["192.0.2.1"]}, {"resolver": "dns"}),
    ("concurrency", {"minimum": 50}, {"initial": 50, "maximum": 1000}),
    ("concurrency", {"maximum": 2}, {"initial": 2, "minimum": 2}),
    ("concurrency", {"initial": 5000}, {"minimum": 4, "maximum": 5000}),
    ("concurrency", {"initial": 1}, {"minimum": 1}),
    ("outlier_detection", {"base_time": 600.0}, {"max_time": 600.0}),
    ("outlier_detection", {"max_time": 10.0}, {"base_time": 10.0}),
    ("log", {"path": "access.log"}, {"access": "text"}),
    ("log", {"sample": 0.5}, {"access": "off"}),
    ("pool", {"heartbeat": "/ping"}, {"preconnect": 2}),
    ("sticky", {"cookie": "c", "key": "k" * 16, "same_site": "none"}, {"secure": True}),
    ("admission", {"levels": [{"name": "gold"}, {"name": "tin"}]}, {"default": "tin"}),
    ("admission", {"levels": [{"name": "gold"}, {"name": "Normal"}]}, {"default": "normal"}),
]


@pytest.mark.parametrize(("table", "given", "derived"), DERIVED)
def test_derived_defaults(table: str, given: dict[str, Any], derived: dict[str, Any]) -> None:
    """They do not count as given, so that they are not written down as if they were."""
    settings = Settings.model_validate(document_with((table, "-"), 0) | {table: given})
    section = getattr(settings, table)
    assert {name: getattr(section, name) for name in derived} == derived
    assert section.model_fields_set == {*given}
