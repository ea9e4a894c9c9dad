"""Parse a worker's load report from response fields or trailers.

A malformed field is ignored and counted, and never fails a request. Reports are parsed only while a policy or a
recording uses them.

| field | |
|---|---|
| `X-Worker-In-Flight` | requests in progress |
| `X-Worker-Service-Time` | seconds that this request was served, without its wait |
| `X-Worker-Utilization` | share of its capacity in use, 0 to 1; more where it is overloaded |
| `endpoint-load-metrics`, `endpoint-load-metrics-bin` | a report of ORCA, the standard of xDS and gRPC |

Of ORCA, the utilisation is `application_utilization`, else `cpu_utilization`, as in gRFC A58, else the greatest of the
map `utilization`; `named_metrics.in_flight` and `named_metrics.service_time` are as above. Policies count requests and
errors themselves, so the report's rates are not used. A report has one of three formats:

    TEXT cpu_utilization=0.3,mem_utilization=0.8,named_metrics.queue=3
    JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 3}}
    BIN CgQIAxAB…

BIN is the message `xds.data.orca.v3.OrcaLoadReport` in Base64, which gRPC servers send in `endpoint-load-metrics-bin`,
in their trailers. Metrics are read into one dictionary, those of a map by `map.name`.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from policies.facts import ReportedLoad

SIZE_LIMIT: Final = 8192
"""Bytes of a report: one of a hundred metrics has three thousand."""

Metrics = dict[str, float]

_NUMBERS: Final = {
    1: "cpu_utilization",
    2: "mem_utilization",
    6: "rps_fractional",
    7: "eps",
    9: "application_utilization",
}
_MAPS: Final = {4: "request_cost", 5: "utilization", 8: "named_metrics"}
"""Fields of OrcaLoadReport by their numbers."""

_UPPER: Final = re.compile("[A-Z]")
_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?").fullmatch
_VARINT: Final = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]").match
_SIZES: Final = {1: 8, 5: 4}
"""Bytes of a value of fixed size, by its wire type."""


def metrics_of(report: bytes, *, is_binary: bool = False) -> Metrics:
    """Return the metrics of a report; `is_binary` if it is in Base64 without saying so. Raises ValueError."""
    if len(report) > SIZE_LIMIT:
        raise ValueError("the report is too long")
    form, _, text = (b"BIN", b"", report) if is_binary else report.partition(b" ")
    try:
        return FORMATS[form](text.strip())
    except (KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"the report is malformed: {error}") from None


def _of_text(text: bytes) -> Metrics:
    """Parse `name=value,…`."""
    pairs = [item.partition("=") for item in text.decode("ascii").split(",")]
    return {name.strip(): _metric(value.strip()) for name, _, value in pairs}


def _of_json(text: bytes) -> Metrics:
    """Parse the JSON of the message, with names as in its definition or as protobuf prints them."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the report is not an object")
    metrics: Metrics = {}
    for key, value in document.items():
        name = key if key.islower() else _UPPER.sub(lambda match: f"_{match[0].lower()}", key)
        if isinstance(value, dict):
            metrics.update((f"{name}.{of}", _metric(one)) for of, one in value.items())
        else:
            metrics[name] = _metric(value)
    return metrics


def _metric(value: Any) -> float:
    if not (_DECIMAL(value) if isinstance(value, str) else type(value) in (int, float)):
        raise ValueError("a metric is no number")
    return float(value)


def _of_message(text: bytes) -> Metrics:
    """Parse the message in Base64, whose padding gRPC leaves out."""
    metrics: Metrics = {}
    for number, value in message_fields(b64decode(text + b"=" * (-len(text) % 4), validate=True)):
        if number in _NUMBERS and isinstance(value, float):
            metrics[_NUMBERS[number]] = value
        elif number in _MAPS and isinstance(value, bytes):
            entry = dict(message_fields(value))
            key, of = entry.get(1, b""), entry.get(2, 0.0)
            if isinstance(key, bytes) and isinstance(of, float):
                metrics[f"{_MAPS[number]}.{key.decode()}"] = of
    return metrics


def message_fields(data: bytes) -> Iterator[tuple[int, bytes | float]]:
    """Yield the fields of a protobuf message, each with its number, but those of four bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        size, at = (_SIZES[kind], at) if kind in _SIZES else _varint(data, at)
        if kind == 0:  # a number without a size of its own
            yield tag >> 3, size
            continue
        value, at = data[at : at + size], at + size
        if kind not in (1, 2, 5) or at > len(data):
            raise ValueError("the message is malformed")
        if kind != 5:
            yield tag >> 3, struct.unpack("<d", value)[0] if kind == 1 else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number at a place, and the place behind it."""
    found = _VARINT(data, at)
    if found is None:
        raise ValueError("a number is too long or cut off")
    return sum((byte & 127) << 7 * place for place, byte in enumerate(found[0])), found.end()


FORMATS: Final = {b"TEXT": _of_text, b"JSON": _of_json, b"BIN": _of_message}


MAX_VALUE: Final = 1e6
"""Maximum requests, seconds or shares; a higher value is malformed."""

find_any: Final = re.compile(rb"\r\n[xXeE](?i:-worker-|ndpoint-load-)").search
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
        begin = find_any(block)
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
