"""Lines with chosen fields, and the formats logfmt and combined: pure functions from an entry to a line.

`formats.py` has the usual lines of text and JSON, which need no table. What is said there about escaping holds here
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from balancer.config.schema.log import LOG_FIELDS, LogConfig
from balancer.http.h1.fields import host_of
from balancer.log.formats import (
    NOT_CONNECTED,
    Context,
    Entry,
    Format,
    LoggedPhases,
    forwarded_for,
    instant,
    is_bare,
    outcome,
    phases,
    text_line,
    version_of,
)
from balancer.log.journal import ChosenFields
from balancer.log.json_lines import json_line, json_string, seconds_or_null

Value = bytes | str | float | int | None
"""A value before it is escaped; a float is a number of seconds, nan for none, or a share."""


class Line(NamedTuple):
    """An entry with what several fields are computed from."""

    entry: Entry
    context: Context
    end: str
    status: int
    size: int
    phases: LoggedPhases


ValueOf = Callable[[Line], Value]

PHASES: Final = ("head", "queue", "connect", "first_byte", "service", "total")

_OF_ENTRY: Final = ("attempts", "bytes_in", "cluster", "grpc_status", "method", "policy")

VALUES: Final[dict[str, ValueOf]] = {
    "time": lambda line: instant(line.entry, line.context.offset),
    "end": attrgetter("end"),
    "reason": lambda line: line.entry.fault and line.entry.fault.reason,
    "detail": lambda line: line.entry.fault and line.entry.fault.detail,
    "path": attrgetter("entry.target"),
    "sent_path": attrgetter("entry.sent_target"),
    "host": lambda line: host_of(line.entry.head),
    "request_id": attrgetter("entry.id"),
    "client": attrgetter("entry.client.address"),
    "forwarded_for": lambda line: forwarded_for(line.entry),
    "protocol": attrgetter("entry.client.proto"),
    "version": lambda line: version_of(line.entry),
    "endpoint": lambda line: None if line.entry.endpoint is None else line.entry.endpoint.id,
    "region": lambda line: None if line.entry.endpoint is None else line.entry.endpoint.region,
    "connection": lambda line: line.entry.connection if line.entry.connection != NOT_CONNECTED else None,
    "duration": attrgetter("phases.total"),
    "status": attrgetter("status"),
    "bytes": attrgetter("size"),
    "sample": lambda line: 1 if line.context.sample == "1" else float(line.context.sample),
    "route": lambda line: line.entry.extra and line.entry.extra.route,
    "tls_version": attrgetter("entry.client.tls_version"),
    "trace_id": lambda line: trace_id(line.entry),
    "ttft": lambda line: ttft(line.entry),
    "output_tokens": lambda line: of_answer(line.entry, "tokens") or None,
    "tpot": lambda line: of_answer(line.entry, "tpot"),
    "prompt_tokens": lambda line: of_answer(line.entry, "prompt_tokens"),
    "cached_tokens": lambda line: of_answer(line.entry, "cached_tokens"),
    **{name: attrgetter(f"entry.{name}") for name in _OF_ENTRY},
    **{name: attrgetter(f"phases.{name}") for name in PHASES},
}
"""Values of the fields that have a name of their own."""

READ_FROM: Final = {
    "referer": "request:referer", "user_agent": "request:user-agent", "trace_id": "request:traceparent",
}  # fmt: skip
"""Fields of requests that values are read from; that of `trace_id` is a part of one."""

_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-|$)")


def of_answer(entry: Entry, name: str) -> int | float | None:
    """Return a fact of the answer to a prompt, None without one."""
    found: int | float | None = getattr(entry.answer, name, None)
    return found


def ttft(entry: Entry) -> float | None:
    """Return the time to first token, from the first byte of the request."""
    if entry.answer is None or entry.answer.first_token_at is None:
        return None
    return entry.answer.first_token_at - (entry.arrived[0] or entry.arrived[1])


def of_message(entry: Entry, side: str, name: bytes) -> bytes | None:
    """Return a chosen field of the request or the response."""
    found: Mapping[bytes, bytes] = getattr(entry.extra, side, {})
    return found.get(name)


def trace_id(entry: Entry) -> bytes | None:
    """Return the trace that the worker was told (W3C Trace Context)."""
    match = _TRACEPARENT.match(of_message(entry, "request", b"traceparent") or b"")
    return None if match is None else match[1]


def value_of(field: str) -> ValueOf:
    """Return what reads the value of a field."""
    if field in VALUES:
        return VALUES[field]
    side, _, name = READ_FROM.get(field, field).partition(":")
    key = name.encode()
    return lambda line: of_message(line.entry, side, key)


def chosen_fields(fields: Sequence[str]) -> ChosenFields | None:
    """Return what entries need for these fields beside their own values; None if they need nothing."""
    needed: dict[str, list[bytes]] = {"request": [], "response": []}
    for field in fields:
        side, separator, name = READ_FROM.get(field, field).partition(":")
        if separator:
            needed[side].append(name.encode())
    return ChosenFields(*needed.values()) if any(needed.values()) or "route" in fields else None


def json_value(value: Value) -> str:
    """Format a value for JSON."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return seconds_or_null(value)
    if isinstance(value, int):
        return str(value)
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return json_string(text) if text else "null"


def logfmt_value(value: Value) -> str:
    """Format a value for logfmt; `-` for an absent one."""
    if value is None or value != value:
        return "-"
    if isinstance(value, bytes):
        return logfmt_string(value.decode("latin-1"))
    return logfmt_string(value) if isinstance(value, str) else json_value(value)


@lru_cache(maxsize=1024)
def logfmt_string(value: str) -> str:
    """Format a string for logfmt: bare if that is unambiguous, else as in JSON. Cached: most recur."""
    return value if is_bare(value) else json_string(value) if value else "-"


def line_with(
    fields: Sequence[str], name: str, shown: Callable[[Value], str], separator: str, frame: str
) -> Format:
    """Return a format with these fields; `name` is the text before a value, `frame` that around all."""
    values = [(name.format(field), value_of(field)) for field in fields]

    def line(entry: Entry, context: Context) -> str:
        made = Line(entry, context, *outcome(entry), phases(entry))
        return frame % separator.join([before + shown(value(made)) for before, value in values])

    return line


# --- combined

_ESCAPED: Final = {code: f"\\x{code:02X}" for code in (*range(32), 34, 92, *range(127, 256))}
_ADDRESS: Final = re.compile(rb"[0-9A-Fa-f.:]{2,45}")


def combined(value: bytes | None) -> str:
    """Escape a value as nginx does; `-` for an absent one."""
    return "-" if value is None else value.decode("latin-1").translate(_ESCAPED)


def remote_address(entry: Entry) -> str:
    """Return the client's address; behind a trusted proxy, the one that this proxy has seen."""
    client = entry.client
    if client.is_trusted:
        seen = forwarded_for(entry).rpartition(b",")[0].rpartition(b",")[2].strip()
        if _ADDRESS.fullmatch(seen):
            return seen.decode()
    return combined(client.address)


@lru_cache(maxsize=8)
def clf_time(at: int) -> str:
    """Format a second of Unix time in UTC as in Apache's logs."""
    return datetime.fromtimestamp(at, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")


def combined_line(entry: Entry, context: Context) -> str:
    """Format an entry in the combined format of Apache and nginx."""
    _, status, size = outcome(entry)
    at = clf_time(int((entry.arrived[0] or entry.arrived[1]) + context.offset))
    asked = combined(entry.target or None)
    if entry.method:
        asked = f"{combined(entry.method)} {asked} HTTP/{version_of(entry)}"
    referer, agent = (combined(of_message(entry, "request", name)) for name in (b"referer", b"user-agent"))
    return f'{remote_address(entry)} - - [{at}] "{asked}" {status} {size} "{referer}" "{agent}"\n'


def format_of(log: LogConfig) -> tuple[Format, ChosenFields | None]:
    """Return the format of the lines, and what entries need for it."""
    if log.access == "combined":
        return combined_line, chosen_fields(("referer", "user_agent"))
    if log.access == "logfmt":
        line = line_with(log.fields or LOG_FIELDS, "{}=", logfmt_value, " ", "%s\n")
        return line, chosen_fields(log.fields)
    if log.fields:
        return line_with(log.fields, '"{}":', json_value, ",", "{%s}\n"), chosen_fields(log.fields)
    return text_line if log.access == "text" else json_line, None
