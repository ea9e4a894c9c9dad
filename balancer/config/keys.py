"""Walk over the tables of the configuration: which keys exist, which hold secrets, and which name files. Pure: no
I/O.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr

from balancer.config.positions import Place
from balancer.config.schema.section import FileName

Table = type[BaseModel]


MIN_SIMILARITY = 0.7
"""Least similarity (0..1) of a suggested key to the given one: `health_checks` for `helth_checks` has 0.96, and
`home_region` for `compression` 0.64."""

SYNONYMS = {"pools": "clusters", "pool": "cluster", "url": "address"}
"""Words that are used elsewhere -> key: `[pool]`, which is nearer, is about connections."""


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield the annotation and everything that it is composed of, without the keys of tables."""
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


def table_of(annotation: Any) -> Table | None:
    """Return the table that the annotation allows, also as None, alone or in a list; None if there is none."""
    for part in parts_of(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def is_list(annotation: Any) -> bool:
    """Return whether values are lists."""
    return any(getattr(part, "__origin__", part) is tuple for part in parts_of(annotation))


def is_mapping(annotation: Any) -> bool:
    """Return whether values are tables by names that are free to choose."""
    return getattr(annotation, "__origin__", None) is dict


def is_open(table: Table) -> bool:
    """Return whether the table takes other keys than its own: options of policies."""
    return table.model_config.get("extra") == "allow"


def annotation_at(table: Table, place: Place) -> Any:
    """Return the annotation of the value at `place`; None if no key of the configuration leads there."""
    annotation: Any = table
    for name in place:
        if isinstance(name, int):
            continue
        inner = table_of(annotation)
        if inner is None:
            return None
        if is_mapping(annotation):
            annotation = inner
            continue
        if name not in inner.model_fields:
            return Any if is_open(inner) else None
        annotation = inner.model_fields[name].annotation
    return annotation


def table_at(table: Table, place: Place) -> Table | None:
    """Return the table at `place`."""
    return table_of(annotation_at(table, place))


def has_secret(annotation: Any) -> bool:
    """Return whether a value may be, or contain, a secret."""
    inner = table_of(annotation)
    return any(part is SecretStr for part in parts_of(annotation)) or (
        inner is not None and any(has_secret(field.annotation) for field in inner.model_fields.values())
    )


def keys_of(table: Table, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every key, tables before their keys, without indexes of lists and without the keys of tables
    whose names are free to choose."""
    for name, field in table.model_fields.items():
        yield (*place, name)
        inner = table_of(field.annotation)
        if inner is not None and not is_mapping(field.annotation):
            yield from keys_of(inner, (*place, name))


def dotted(place: Place) -> str:
    """Return the place as messages write it: `endpoints.0.id`."""
    return ".".join(map(str, place))


def near_key(name: str, known: list[str]) -> str | None:
    """Return the key of a table that an unknown `name` may mean."""
    if SYNONYMS.get(name) in known:
        return SYNONYMS[name]
    close = get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=MIN_SIMILARITY)
    return close[0] if close else None


def corrected(table: Table, place: Place) -> Place | None:
    """Return the place that an unknown one may mean, each of its names replaced by a near key; None without an idea."""
    for length, name in enumerate(place):
        around = table_at(table, place[:length])
        if annotation_at(table, place[: length + 1]) is None:
            near = near_key(str(name), list(around.model_fields)) if around is not None else None
            if near is None:
                return None
            place = (*place[:length], near, *place[length + 1 :])
    return place


def suggestion(table: Table, place: Place) -> str:
    """Return what an unknown key at `place` may mean, to append to a message; empty without an idea.

    A near key of the same table comes first, then a key of the same name in another table. A key of one item of a list,
    or of one named table, is not moved into a table that is about something else.
    """
    if not place:
        return ""
    name, around = str(place[-1]), table_at(table, place[:-1])
    known = list(around.model_fields) if around is not None else []
    if name.lower() in known:
        return f"; keys are in lower case: '{name.lower()}'"
    near = near_key(name, known)
    if near is not None:
        return f"; did you mean '{near}'?"
    is_one_of_many = bool(place[:-1]) and place[:-1] not in keys_of(table)
    for length in reversed(range(len(place))):  # the table itself, then those around it
        outer = table_at(table, place[:length])
        has_all = not is_one_of_many or length == len(place) - 1
        keys = keys_of(outer) if outer is not None else ()
        found = [each for each in keys if each[-1] == name and (has_all or len(each) == 1)]
        if length == 0 and found == [(name,)]:
            of_cluster = annotation_at(table, ("clusters", "", name)) is not None
            return f"; it is a key of the top level{' and of clusters' if of_cluster else ''}"
        if 0 < len(found) <= 4:
            return f"; did you mean {' or '.join(dotted((*place[:length], *each)) for each in found)}?"
    return ""


PATHS: Final = (Path, FileName)
"""Types of keys that name a file."""


def is_file_path(annotation: Any) -> bool:
    """Return whether values of the annotation name a file."""
    return any(part in PATHS for part in parts_of(annotation))


def with_located_files(value: Any, annotation: Any, folder: str) -> Any:
    """Return a value of a document with the relative paths in it made absolute, relative to `folder`, that of the
    configuration."""
    table = table_of(annotation)
    if isinstance(value, str) and value and is_file_path(annotation):
        return os.path.join(folder, value)
    if isinstance(value, list):
        return [with_located_files(each, annotation, folder) for each in value]
    if not isinstance(value, dict) or table is None:
        return value
    return {
        name: with_located_files(each, _inner(annotation, table, name), folder)
        for name, each in value.items()
    }


def _inner(annotation: Any, table: Table, name: str) -> Any:
    """Return the annotation of a key of a table, or of a table with a name that is free to choose."""
    if is_mapping(annotation):
        return table
    return table.model_fields[name].annotation if name in table.model_fields else None
