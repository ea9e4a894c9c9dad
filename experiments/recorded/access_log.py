"""Read the balancer's access log, text, JSON or logfmt, into columns.

Depends on the documented format only (`docs/access-log.md`). Keeps numbers, not lines: a million requests take some
hundred megabytes. An error is one line that names the line of the file.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainValidator, TypeAdapter, ValidationError

from experiments.errors import BadInputError
from experiments.platform.printable import checked_name
from experiments.recorded.packed import LONGEST_LINE
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

MAX_PHASE_S = 1e7
"""Limit on the duration of a phase in seconds."""

MOST_ENDPOINTS, MOST_POLICIES, MOST_REASONS = 10_000, 64, 1_000
"""Limits on distinct names in a log. A figure has a row for each policy, a table one for each name."""


class LineProblem(Exception):
    """Error in a line, without its number."""


def instant(text: Any) -> float:
    """Unix time from ISO 8601 with a time zone. Raises `ValueError`."""
    try:
        at = datetime.fromisoformat(text)
        seconds = at.timestamp()
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"must be as 2026-01-31T12:00:00.000000Z, got {str(text)[:40]!r}") from None
    if at.tzinfo is None:
        raise ValueError(f"must have a time zone, got {text!r}")
    return seconds


def name(value: Any) -> str:
    """Name of an endpoint, a region, a policy or a reason; empty for None. Raises `ValueError`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"must be a name, got {str(value)[:40]!r}")
    return checked_name(value)


def phase(value: Any) -> float:
    """Seconds from a number; nan for None. Raises `ValueError`."""
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value <= MAX_PHASE_S:
        raise ValueError(f"must be a number of seconds, got {str(value)[:40]!r}")
    return float(value)


Name = Annotated[str, PlainValidator(name)]
Phase = Annotated[float, PlainValidator(phase)]


class LogRow(NamedTuple):
    """One request, as `NEEDED`. Durations in seconds, nan for a phase that was not reached; `at` is Unix time."""

    at: Annotated[float, PlainValidator(instant)]
    end: Annotated[str, Field(pattern=rf"^({'|'.join((*KINDS, *LEFT_OUT))})$")]
    reason: Name
    status: Annotated[int, Field(ge=0, le=999)]
    endpoint: Name
    region: Name
    policy: Name
    attempts: Annotated[int, Field(ge=0, le=1_000_000)]
    queue: Phase
    connect: Phase
    first_byte: Phase
    service: Phase
    total: Phase
    sample: Annotated[float, Field(ge=1e-9, le=1)]


LOG_ROW = TypeAdapter(LogRow)
PHASES = ("queue", "connect", "first_byte", "service", "total")
ALLOWED = {
    "end": f"one of {', '.join((*KINDS, *LEFT_OUT))}",
    "status": "a whole number from 0 to 999",
    "attempts": "a whole number from 0 to 1000000",
    "sample": "from 1e-9 to 1",
}
"""What a field must be, in words, if its validator does not say it."""


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
    try:
        needed = {name: values[name] for name in NEEDED}
    except KeyError as absent:
        raise LineProblem(absence(values, absent.args[0], is_text)) from None
    if not is_json:
        needed = {name: None if text == "-" else text for name, text in needed.items()}
        needed |= {name: seconds(name, needed[name], is_text) for name in PHASES}
    try:
        return LOG_ROW.validate_python([*needed.values()])
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = NEEDED[int(wrong["loc"][0])]
        if wrong["type"] == "value_error":
            raise LineProblem(f"{name}: {wrong['ctx']['error']}") from None
        raise LineProblem(f"{name}: must be {ALLOWED[name]}, got {str(wrong['input'])[:40]!r}") from None


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


def seconds(name: str, text: str | None, is_text: bool) -> float | None:
    """Seconds from text such as `0.021345`, or `21.345ms` where `is_text`. Raises `LineProblem`."""
    if text is None:
        return None
    try:
        if not is_text:
            return float(text)
        return float(text.removesuffix("ms") if text.endswith("ms") else "") * 1e-3
    except ValueError:
        allowed = "a duration such as 21.345ms" if is_text else "a number of seconds"
        raise LineProblem(f"{name}: must be {allowed}, got {text[:40]!r}") from None


def numbered() -> defaultdict[str, int]:
    """Names numbered in order of first appearance."""
    return defaultdict(count().__next__)


ROW = np.dtype([
    *((name, "f8") for name in ("at", "queue", "connect", "first_byte", "service", "total", "sample")),
    *((name, "i8") for name in ("status", "kind", "endpoint", "policy", "attempts")),
])  # fmt: skip
PACKED = struct.Struct("=7d5q")


@dataclass(slots=True)
class LogColumns:
    """Requests of a log, in its order, as bytes of `ROW`. `endpoint` and `policy` are numbers of names; -1: none.

    `endings` are numbers of requests, for which the lines stand.
    """

    data: bytearray = field(default_factory=bytearray)
    endpoints: defaultdict[str, int] = field(default_factory=numbered)
    regions: dict[str, str] = field(default_factory=dict)
    policies: defaultdict[str, int] = field(default_factory=numbered)
    endings: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
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
        seconds = (row.at, row.queue, row.connect, row.first_byte, row.service, row.total, row.sample)
        policy = self.policies[row.policy]
        self.data += PACKED.pack(*seconds, row.status, kind, endpoint, policy, row.attempts)
        self.endings[row.end, row.reason] += 1 / row.sample
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

    Skips admin requests and tunnels, the program's own lines on standard output, and an incomplete last line of a log
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
