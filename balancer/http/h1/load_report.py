"""Parse a worker's load report from response fields.

Pure functions. A malformed report is ignored and never fails a request. Reports are parsed only while a policy or a
recording uses them.

| field | |
|---|---|
| `X-Worker-In-Flight` | requests in progress |
| `X-Worker-Service-Time` | seconds that this request was served, without its wait |
| `X-Worker-Utilization` | share of its capacity in use, 0 to 1; more where it is overloaded |
"""

from __future__ import annotations

import re
from typing import Final

from policies.facts import ReportedLoad

MAX_VALUE: Final = 1e6
"""Maximum requests, seconds or shares; a higher value is ignored."""

_FIELD: Final = re.compile(
    rb"\r\n(?i:x-worker-(in-flight|service-time|utilization)):[ \t]*([0-9.]{1,20})[ \t]*(?=\r|$)"
)
_BEGINNING: Final = re.compile(rb"\r\n(?i:x-worker-)")


def reported_load(block: bytes) -> ReportedLoad | None:
    """Return the load report in `block`, None if there is none."""
    if _BEGINNING.search(block) is None:
        return None
    values: dict[bytes, float] = {}
    for name, value in _FIELD.findall(block):
        values.setdefault(name.lower(), _number(value))
    values = {name: value for name, value in values.items() if 0 <= value <= MAX_VALUE}
    if not values:
        return None
    in_flight = values.get(b"in-flight")
    return ReportedLoad(
        None if in_flight is None else int(in_flight),
        values.get(b"service-time"),
        values.get(b"utilization"),
    )


def _number(text: bytes) -> float:
    """Return the number, -1 if `text` is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
