"""Load reports of ORCA, the standard of xDS and gRPC: `endpoint-load-metrics` in its formats TEXT, JSON and BIN.

    TEXT cpu_utilization=0.3,mem_utilization=0.8,named_metrics.queue=3
    JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 3}}
    BIN CgQIAxAB…

BIN is the message `xds.data.orca.v3.OrcaLoadReport` in Base64, which gRPC servers send in `endpoint-load-metrics-bin`,
in their trailers. Metrics are read into one dictionary, those of a map by `map.name`. Pure functions; a malformed
report raises ValueError.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

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
    return {name.strip(): _number(value.strip()) for name, _, value in pairs}


def _of_json(text: bytes) -> Metrics:
    """Parse the JSON of the message, with names as in its definition or as protobuf prints them."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the report is not an object")
    metrics: Metrics = {}
    for key, value in document.items():
        name = key if key.islower() else _UPPER.sub(lambda match: f"_{match[0].lower()}", key)
        if isinstance(value, dict):
            metrics.update((f"{name}.{of}", _number(one)) for of, one in value.items())
        else:
            metrics[name] = _number(value)
    return metrics


def _number(value: Any) -> float:
    if not (_DECIMAL(value) if isinstance(value, str) else type(value) in (int, float)):
        raise ValueError("a metric is no number")
    return float(value)


def _of_message(text: bytes) -> Metrics:
    """Parse the message in Base64, whose padding gRPC leaves out."""
    metrics: Metrics = {}
    for number, value in _fields_of(b64decode(text + b"=" * (-len(text) % 4), validate=True)):
        if number in _NUMBERS and isinstance(value, float):
            metrics[_NUMBERS[number]] = value
        elif number in _MAPS and isinstance(value, bytes):
            entry = dict(_fields_of(value))
            key, of = entry.get(1, b""), entry.get(2, 0.0)
            if isinstance(key, bytes) and isinstance(of, float):
                metrics[f"{_MAPS[number]}.{key.decode()}"] = of
    return metrics


def _fields_of(data: bytes) -> Iterator[tuple[int, bytes | float]]:
    """Yield the fields of a protobuf message that are doubles or bytes, and skip the others. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        size, at = (_SIZES[kind], at) if kind in _SIZES else _varint(data, at)
        if kind == 0:  # a number without a size of its own
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
