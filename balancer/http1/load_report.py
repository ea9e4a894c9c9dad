"""What a worker says of its own load in the fields of an answer.

Rule of this file: pure functions. A worker that says nothing, or nonsense, has said nothing: a report never costs a
request. It is read only while somebody asks, a policy or a recording.

| field | |
|---|---|
| `X-Worker-In-Flight` | requests inside |
| `X-Worker-Service-Time` | seconds that this request was served, without its wait |
| `X-Worker-Utilization` | share of its capacity in use, 0 to 1; more where it is overloaded |
"""

from __future__ import annotations

import re
from typing import Final

from policies.routing.facts import ReportedLoad

MOST: Final = 1e6
"""Requests, seconds or shares; a worker that says more says nonsense."""

_FIELD: Final = re.compile(
    rb"\r\n(?i:x-worker-(in-flight|service-time|utilization)):[ \t]*([0-9.]{1,20})[ \t]*(?=\r|$)"
)
_BEGINNING: Final = re.compile(rb"\r\n(?i:x-worker-)")


def reported_load(block: bytes) -> ReportedLoad | None:
    """What the fields in `block` say; None where they say nothing of load."""
    if _BEGINNING.search(block) is None:
        return None
    values: dict[bytes, float] = {}
    for name, value in _FIELD.findall(block):
        values.setdefault(name.lower(), _number(value))
    values = {name: value for name, value in values.items() if 0 <= value <= MOST}
    if not values:
        return None
    in_flight = values.get(b"in-flight")
    return ReportedLoad(
        None if in_flight is None else int(in_flight),
        values.get(b"service-time"),
        values.get(b"utilization"),
    )


def _number(text: bytes) -> float:
    """-1 for what is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
