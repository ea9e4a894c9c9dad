"""Parse a worker's load report from response fields or trailers.

A malformed field is ignored and counted, and never fails a request. Reports are parsed only while a policy or a
recording uses them.

| field | |
|---|---|
| `X-Worker-In-Flight` | requests in progress |
| `X-Worker-Service-Time` | seconds that this request was served, without its wait |
| `X-Worker-Utilization` | share of its capacity in use, 0 to 1; more where it is overloaded |
| `endpoint-load-metrics`, `endpoint-load-metrics-bin` | a report of ORCA (`orca.py`) |

Of ORCA, the utilisation is `application_utilization`, else `cpu_utilization`, as in gRFC A58, else the greatest of the
map `utilization`; `named_metrics.in_flight` and `named_metrics.service_time` are as above. Policies count requests and
errors themselves, so the report's rates are not used.
"""

from __future__ import annotations

import re
from typing import Final

from balancer.http.h1.orca import Metrics, metrics_of
from policies.facts import ReportedLoad

MAX_VALUE: Final = 1e6
"""Maximum requests, seconds or shares; a higher value is malformed."""

_find_any: Final = re.compile(rb"\r\n[xXeE](?i:-worker-|ndpoint-load-)").search
"""Finds out, in most heads at the cost of a search for one name, whether there may be a report."""

_fields_in: Final = re.compile(
    rb"\r\n(?:[xX](?i:-worker-(in-flight|service-time|utilization))|[eE](?i:ndpoint-load-metrics(-bin)?))"
    rb":[ \t]*([^\r]*)"
).finditer
_NUMBER: Final = re.compile(rb"[0-9.]{1,20}")

_NAMED: Final = {"in-flight": "named_metrics.in_flight", "service-time": "named_metrics.service_time"}
_UTILIZATIONS: Final = ("application_utilization", "cpu_utilization")


class LoadReports:
    """Reads load reports; `malformed` counts the fields that could not be read."""

    def __init__(self) -> None:
        self.malformed = 0

    def read(self, block: bytes) -> ReportedLoad | None:
        """Return the load report in a block of fields, None if there is none. Of two values the first one counts, and
        of reports of ORCA only the first is read.
        """
        begin = _find_any(block)
        if begin is None:
            return None
        values: dict[str, float] = {}
        has_orca = False
        for match in _fields_in(block, begin.start()):
            name, form, text = match.groups()
            try:
                if name is not None:
                    values.setdefault(name.decode().lower(), _number(text.rstrip()))
                elif not has_orca:
                    has_orca = True
                    values = _of_orca(metrics_of(text.rstrip(), is_binary=bool(form))) | values
            except ValueError:
                self.malformed += 1
        if not values:
            return None
        in_flight = values.get("in-flight")
        return ReportedLoad(
            None if in_flight is None else int(in_flight),
            values.get("service-time"),
            values.get("utilization"),
        )


def _of_orca(metrics: Metrics) -> dict[str, float]:
    """Return what policies read of a report. Raises ValueError."""
    values = {name: _checked(metrics[key]) for name, key in _NAMED.items() if key in metrics}
    stated = [_checked(metrics[key]) for key in _UTILIZATIONS if key in metrics]
    stated.append(
        max((_checked(of) for key, of in metrics.items() if key.startswith("utilization.")), default=-1.0)
    )
    known = [share for share in stated if share >= 0]
    if known:
        values["utilization"] = next((share for share in known if share > 0), 0.0)  # 0 is unset in a message
    return values


def _number(text: bytes) -> float:
    """Return a number. Raises ValueError."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("not a number")
    return _checked(float(text))


def _checked(value: float) -> float:
    """Return a value that is in its bounds. Raises ValueError."""
    if not 0 <= value <= MAX_VALUE:
        raise ValueError("out of bounds")
    return value
