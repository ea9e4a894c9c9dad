"""Environment variables of the configuration: `BALANCER_LIMITS__QUEUE` is the key `limits.queue`. Pure: no I/O.

Every variable with the prefix must be a key, as a misspelt one would silently have no effect. Variables that Kubernetes
makes of a service named `balancer` are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

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
from balancer.config.positions import Place
from balancer.config.sources import Layer, longest, policy_table

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
    """Return the keys in the environment, and a message for each variable that cannot be one."""
    document: dict[str, Any] = {}
    names: dict[Place, str] = {}
    problems: list[str] = []
    for name in sorted(variables, key=lambda name: (name.count(SEPARATOR), name)):
        if not name.upper().startswith(PREFIX) or SERVICE_LINK.fullmatch(f"{name}={variables[name]}"):
            continue
        place = place_of(name)
        problem = problem_with(name, variables[name], table)
        if problem is None and not _put(
            document, place, _decoded(variables[name], annotation_at(table, place))
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


def _decoded(text: str, annotation: Any) -> Any:
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
