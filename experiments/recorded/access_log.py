"""Read the balancer's access log, text, JSON or logfmt, into columns.

Depends on the documented format only (`docs/access-log.md`). Keeps numbers, not lines: a million requests take some
hundred megabytes. An error is one line that names the line of the file.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.errors import BadInputError
from experiments.platform.printable import checked_name
from experiments.run_data import Kind

KINDS = {
    "ok": Kind.OK,
    "error_status": Kind.ERROR_STATUS,
    "rejected": Kind.ERROR_STATUS,
    "limited": Kind.ERROR_STATUS,
    "unavailable": Kind.ERROR_STATUS,
    "refused": Kind.REFUSED,
    "timeout": Kind.TIMEOUT,
    "reset": Kind.RESET,
    "abandoned": Kind.ABANDONED,
}
LEFT_OUT = ("admin", "answered", "tunnel", "unrouted")
"""Ends of what is not a request and response with a latency."""

TEXT_FIELD = re.compile(r'(?:^| )([^\s"=]+)=("(?>(?:[^"\\]|\\[\s\S]?)*)(?:"|$)|[^\s"]+)')
"""A quote without an end takes the rest of the line: searching it again for fields would take quadratic time."""
NEEDED = (
    *("time", "end", "reason", "status", "endpoint", "region", "policy", "attempts", "queue", "connect"),
    *("first_byte", "service", "total", "sample"),
)
"""Fields of JSON and logfmt that a row is made of."""

COMBINED = re.compile(r"\S+ \S+ \S+ \[[^]]*\] \"")
"""Beginning of a line in the combined format of nginx and Apache."""
NAN = float("nan")

LONGEST_LINE = 8 << 20
"""Limit in characters; a balancer writes at most some thousand."""

MAX_PHASE_S = 1e7
"""Limit on the duration of a phase in seconds."""

MOST_ENDPOINTS, MOST_POLICIES, MOST_REASONS = 10_000, 64, 1_000
"""Limits on distinct names in a log. A figure has a row for each policy, a table one for each name."""


class LineProblem(Exception):
    """Error in a line, without its number."""


class LogRow(NamedTuple):
    """One request. Durations in seconds, nan for a phase that was not reached; `at` is Unix time."""

    at: float
    end: str
    reason: str
    status: int
    endpoint: str
    region: str
    policy: str
    attempts: int
    queue: float
    connect: float
    first_byte: float
    service: float
    total: float
    sample: float


def log_row(line: str) -> LogRow:
    """Parse a line of any format. Raises `LineProblem`."""
    if COMBINED.match(line):
        raise LineProblem(
            "is of the combined format, which has no times; log.access must be json, text or logfmt"
        )
    is_json = line.startswith("{")
    values = json_values(line) if is_json else dict(TEXT_FIELD.findall(line))
    is_text = not is_json and ("dyno" in values or "end" not in values)
    if is_text:  # perhaps behind a platform's prefix
        values |= {"endpoint": values.get("dyno"), "reason": values.get("code", "")}
    seconds = json_seconds if is_json else text_seconds if is_text else logfmt_seconds
    try:
        return made_row(values, seconds, None if is_json else "-")
    except KeyError as absent:
        raise LineProblem(absence(values, absent.args[0], is_text)) from None


def json_values(line: str) -> dict[str, Any]:
    """Values of a JSON line by name. Raises `LineProblem`."""
    try:
        values: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineProblem(f"is not JSON: {error}") from None
    return values


def absence(values: Container[str], name: str, is_text: bool) -> str:
    """What to do about a line without a field that a row is made of."""
    if is_text:
        return f"has no field {name!r}" if "time" in values else "is not a line of an access log"
    missing = ", ".join(repr(one) for one in NEEDED if one not in values)
    return f"has no field {missing}: log.fields must have all that a report needs"


def logfmt_seconds(name: str, text: str) -> float:
    """Seconds from text such as `0.021345`; nan for a hyphen. Raises `LineProblem`."""
    try:
        return json_seconds(name, None if text == "-" else float(text))
    except ValueError:
        raise LineProblem(f"{name}: must be a number of seconds, got {text[:40]!r}") from None


def text_seconds(name: str, text: str) -> float:
    """Seconds from text such as `21.345ms`; nan for a hyphen. Raises `LineProblem`."""
    if text == "-":
        return NAN
    try:
        seconds = float(text.removesuffix("ms") if text.endswith("ms") else "") * 1e-3
    except ValueError:
        seconds = NAN
    if not 0 <= seconds <= MAX_PHASE_S:
        raise LineProblem(f"{name}: must be a duration such as 21.345ms, got {text[:40]!r}")
    return seconds


def json_seconds(name: str, value: Any) -> float:
    """Seconds from a number; nan for null. Raises `LineProblem`."""
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value <= MAX_PHASE_S:
        raise LineProblem(f"{name}: must be a number of seconds, got {str(value)[:40]!r}")
    return float(value)


def made_row(values: Mapping[str, Any], seconds: Callable[[str, Any], float], nothing: str | None) -> LogRow:
    """Build a row from the values of a line, in which `nothing` is no name. Raises `LineProblem`, `KeyError`."""
    end = values["end"]
    if not isinstance(end, str) or (end not in KINDS and end not in LEFT_OUT):
        raise LineProblem(f"end: must be one of {', '.join((*KINDS, *LEFT_OUT))}, got {str(end)[:40]!r}")

    def named(field: str) -> str:
        value = values[field]
        return "" if value == nothing else name(field, value)

    return LogRow(
        instant(values["time"]),
        end,
        named("reason"),
        whole("status", values["status"], 999),
        named("endpoint"),
        named("region"),
        named("policy"),
        whole("attempts", values["attempts"], 1_000_000),
        seconds("queue", values["queue"]),
        seconds("connect", values["connect"]),
        seconds("first_byte", values["first_byte"]),
        seconds("service", values["service"]),
        seconds("total", values["total"]),
        share(values["sample"]),
    )


def name(field: str, value: Any) -> str:
    """Check the name of an endpoint, a region, a policy or a reason. Raises `LineProblem`."""
    if not isinstance(value, str):
        raise LineProblem(f"{field}: must be a name, got {str(value)[:40]!r}")
    try:
        return checked_name(value)
    except ValueError as error:
        raise LineProblem(f"{field}: {error}") from None


def instant(text: Any) -> float:
    """Unix time from ISO 8601 with a time zone. Raises `LineProblem`."""
    try:
        at = datetime.fromisoformat(text)
        seconds = at.timestamp()
    except (ValueError, TypeError, OverflowError):
        raise LineProblem(f"time: must be as 2026-01-31T12:00:00.000000Z, got {str(text)[:40]!r}") from None
    if at.tzinfo is None:
        raise LineProblem(f"time: must have a time zone, got {text!r}")
    return seconds


def whole(field: str, value: Any, most: int) -> int:
    """Parse a whole number from 0 to `most`. Raises `LineProblem`."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = -1
    if not 0 <= number <= most:
        raise LineProblem(f"{field}: must be a whole number from 0 to {most}, got {str(value)[:40]!r}")
    return number


def share(value: Any) -> float:
    """Parse a share above 0, at most 1. Raises `LineProblem`."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        found = NAN
    if not 0 < found <= 1:
        raise LineProblem(f"sample: must be above 0 and at most 1, got {str(value)[:40]!r}")
    return found


class Names(dict[str, int]):
    """Names numbered in order of first appearance."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


ROW = np.dtype([
    *((name, "f8") for name in ("at", "queue", "connect", "first_byte", "service", "total")),
    *((name, "i8") for name in ("status", "kind", "endpoint", "policy", "attempts")),
])  # fmt: skip
PACKED = struct.Struct("=6d5q")


@dataclass(slots=True)
class LogColumns:
    """Requests of a log, in its order, as bytes of `ROW`. `endpoint` and `policy` are numbers of names; -1: none."""

    data: bytearray = field(default_factory=bytearray)
    endpoints: Names = field(default_factory=Names)
    regions: dict[str, str] = field(default_factory=dict)
    policies: Names = field(default_factory=Names)
    endings: Counter[tuple[str, str]] = field(default_factory=Counter)
    least_sample: float = 1.0
    left_out: int = 0
    unreadable: int = 0
    first_problem: str = ""

    def __len__(self) -> int:
        return len(self.data) // ROW.itemsize

    @property
    def rows(self) -> NDArray[Any]:
        """All requests, shape (n,)."""
        return np.frombuffer(self.data, dtype=ROW)

    def add(self, row: LogRow) -> None:
        """Append a request. Raises `LineProblem` if there are more distinct names than a report can show."""
        is_refusal = row.end == "ok" and row.status >= 400
        kind = Kind.ERROR_STATUS if is_refusal else KINDS[row.end]
        endpoint = self.endpoints[row.endpoint] if row.endpoint else -1
        seconds = (row.at, row.queue, row.connect, row.first_byte, row.service, row.total)
        policy = self.policies[row.policy]
        self.data += PACKED.pack(*seconds, row.status, kind, endpoint, policy, row.attempts)
        self.endings[row.end, row.reason] += 1
        self.least_sample = min(self.least_sample, row.sample)
        if row.endpoint:
            self.regions[row.endpoint] = row.region
        for what, names, most in (
            ("endpoint", self.endpoints, MOST_ENDPOINTS),
            ("policy", self.policies, MOST_POLICIES),
            ("reason", self.endings, MOST_REASONS),
        ):
            if len(names) > most:
                raise LineProblem(f"{what}: more than {most} different ones in this log")

    def skip(self, number: int, problem: object) -> None:
        """Count a line that cannot be read; the first one is kept in words."""
        self.unreadable += 1
        self.first_problem = self.first_problem or f"line {number}: {problem}"


def read_log(lines: Iterable[str], name: str) -> LogColumns:
    """Read all requests of a log called `name`. Raises `BadInputError` if no line can be read, or too many names.

    Skips control requests and tunnels, the program's own lines on standard output, and an incomplete last line of a log
    that is being written. Other lines that cannot be read are counted: a log on a platform has other programs' lines.
    """
    columns = LogColumns()
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            columns.skip(number, f"is longer than {LONGEST_LINE >> 20} MiB")
            continue
        if line.isspace() or line.startswith("balancer ") or not line.endswith("\n"):
            continue
        try:
            row = log_row(line)
        except LineProblem as problem:
            columns.skip(number, problem)
            continue
        if row.end in LEFT_OUT:
            columns.left_out += 1
            continue
        try:
            columns.add(row)
        except LineProblem as problem:
            raise BadInputError(f"{name}: line {number}: {problem}") from None
    if not len(columns):
        reason = f", and {columns.first_problem}" if columns.first_problem else ""
        raise BadInputError(f"{name}: holds no request{reason}")
    return columns
