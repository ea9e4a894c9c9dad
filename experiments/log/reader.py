"""The balancer's access log, read back: columns from lines of text or JSON.

Rule of this file: it goes by the documented format alone (`docs/access-log.md`) and keeps numbers, not lines, so a
million requests take some hundred megabytes. What is wrong is said in one line that names the line of the file.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from experiments.errors import BadInputError
from experiments.load.samples import Kind
from experiments.printable import checked_name

KINDS = {
    "ok": Kind.OK,
    "error_status": Kind.ERROR_STATUS,
    "rejected": Kind.ERROR_STATUS,
    "unavailable": Kind.ERROR_STATUS,
    "refused": Kind.REFUSED,
    "timeout": Kind.TIMEOUT,
    "reset": Kind.RESET,
    "abandoned": Kind.ABANDONED,
}
LEFT_OUT = ("control", "tunnel")
"""Endings of what is no request and response in the sense of a latency."""

TEXT_FIELD = re.compile(r'(?:^| )([a-z_]+)=("(?:[^"\\]|\\[\s\S]?)*+(?:"|$)|[^\s"]+)')
"""A quote without an end takes the rest of the line: to look for fields in it again would take quadratic time."""
TEXT_NAMES = {"endpoint": "dyno", "reason": "code"}
NAN = float("nan")

LONGEST_LINE = 8 << 20
"""Characters; a balancer writes at most some thousand."""

LONGEST = 1e7
"""Seconds that a phase of a request may take."""

MOST_ENDPOINTS, MOST_POLICIES, MOST_REASONS = 10_000, 64, 1_000
"""Different names in a log. A figure has a row for each policy, and a table one for each of all."""


class Problem(Exception):
    """What is wrong with a line, without its number."""


class Row(NamedTuple):
    """One request. Durations in seconds, nan where a phase was not reached; `at` is Unix time."""

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


def row_of(line: str) -> Row:
    """Either format. Raises Problem."""
    return json_row(line) if line.startswith("{") else text_row(line)


def text_row(line: str) -> Row:
    """A line of names and values, perhaps behind what a platform puts before it."""
    values = dict(TEXT_FIELD.findall(line))

    def get(name: str) -> str:
        key = TEXT_NAMES.get(name, name)
        try:
            return str(values[key])
        except KeyError:
            if key == "code":
                return ""
            problem = f"has no field '{key}'" if "time" in values else "is not a line of an access log"
            raise Problem(problem) from None

    return made_row(get, text_seconds, lambda text: "" if text == "-" else text)


def text_seconds(name: str, text: str) -> float:
    """From `21.345ms`; nan for a hyphen."""
    if text == "-":
        return NAN
    try:
        seconds = float(text.removesuffix("ms") if text.endswith("ms") else "") * 1e-3
    except ValueError:
        seconds = NAN
    if not 0 <= seconds <= LONGEST:
        raise Problem(f"{name}: must be a duration such as 21.345ms, got {text[:40]!r}")
    return seconds


def json_row(line: str) -> Row:
    """An object."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Problem(f"is not JSON: {error}") from None

    def get(name: str) -> Any:
        try:
            return values[name]
        except KeyError:
            raise Problem(f"has no field '{name}'") from None

    return made_row(get, json_seconds, lambda value: value or "")


def json_seconds(name: str, value: Any) -> float:
    """A number; nan for null."""
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value <= LONGEST:
        raise Problem(f"{name}: must be a number of seconds, got {str(value)[:40]!r}")
    return float(value)


def made_row(
    get: Callable[[str], Any], seconds: Callable[[str, Any], float], plain: Callable[[Any], Any]
) -> Row:
    """Both formats say the same under nearly the same names. `plain` gives "" for a name that is not there."""

    def named(field: str) -> str:
        return name(field, plain(get(field)))

    end = get("end")
    if not isinstance(end, str) or (end not in KINDS and end not in LEFT_OUT):
        raise Problem(f"end: must be one of {', '.join((*KINDS, *LEFT_OUT))}, got {str(end)[:40]!r}")
    return Row(
        instant(get("time")),
        end,
        named("reason"),
        whole("status", get("status"), 999),
        named("endpoint"),
        named("region"),
        named("policy"),
        whole("attempts", get("attempts"), 1_000_000),
        seconds("queue", get("queue")),
        seconds("connect", get("connect")),
        seconds("first_byte", get("first_byte")),
        seconds("service", get("service")),
        seconds("total", get("total")),
        share(get("sample")),
    )


def name(field: str, value: Any) -> str:
    """What an endpoint, a region, a policy or a reason may be called."""
    if not isinstance(value, str):
        raise Problem(f"{field}: must be a name, got {str(value)[:40]!r}")
    try:
        return checked_name(value)
    except ValueError as error:
        raise Problem(f"{field}: {error}") from None


def instant(text: Any) -> float:
    """Unix time from ISO 8601 with its zone."""
    try:
        at = datetime.fromisoformat(text)
        seconds = at.timestamp()
    except (ValueError, TypeError, OverflowError):
        raise Problem(f"time: must be as 2026-01-31T12:00:00.000000Z, got {str(text)[:40]!r}") from None
    if at.tzinfo is None:
        raise Problem(f"time: must say its zone, got {text!r}")
    return seconds


def whole(field: str, value: Any, most: int) -> int:
    """A whole number from 0 to `most`."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = -1
    if not 0 <= number <= most:
        raise Problem(f"{field}: must be a whole number from 0 to {most}, got {str(value)[:40]!r}")
    return number


def share(value: Any) -> float:
    """Above 0, at most 1."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        found = NAN
    if not 0 < found <= 1:
        raise Problem(f"sample: must be above 0 and at most 1, got {str(value)[:40]!r}")
    return found


class Names(dict[str, int]):
    """Names numbered in order of appearance."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


def floats() -> array[float]:
    return array("d")


def integers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Columns:
    """The requests of a log, in its order. `endpoint` and `policy` index the names in order of appearance."""

    at: array[float] = field(default_factory=floats)
    queue: array[float] = field(default_factory=floats)
    connect: array[float] = field(default_factory=floats)
    first_byte: array[float] = field(default_factory=floats)
    service: array[float] = field(default_factory=floats)
    total: array[float] = field(default_factory=floats)
    status: array[int] = field(default_factory=integers)
    kind: array[int] = field(default_factory=integers)
    endpoint: array[int] = field(default_factory=integers)
    policy: array[int] = field(default_factory=integers)
    attempts: array[int] = field(default_factory=integers)
    endpoints: Names = field(default_factory=Names)
    regions: dict[str, str] = field(default_factory=dict)
    policies: Names = field(default_factory=Names)
    endings: Counter[tuple[str, str]] = field(default_factory=Counter)
    least_sample: float = 1.0
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.at)

    def add(self, row: Row) -> None:
        """One more request. Raises Problem where there are more different names than a report has room for."""
        self.at.append(row.at)
        self.queue.append(row.queue)
        self.connect.append(row.connect)
        self.first_byte.append(row.first_byte)
        self.service.append(row.service)
        self.total.append(row.total)
        self.status.append(row.status)
        is_refusal = row.end == "ok" and row.status >= 400
        self.kind.append(Kind.ERROR_STATUS if is_refusal else KINDS[row.end])
        self.endpoint.append(self.endpoints[row.endpoint] if row.endpoint else -1)
        self.policy.append(self.policies[row.policy])
        self.attempts.append(row.attempts)
        self.endings[row.end, row.reason] += 1
        self.least_sample = min(self.least_sample, row.sample)
        if row.endpoint:
            self.regions[row.endpoint] = row.region
        self._check_names()

    def _check_names(self) -> None:
        for what, names, most in (
            ("endpoint", self.endpoints, MOST_ENDPOINTS),
            ("policy", self.policies, MOST_POLICIES),
            ("reason", self.endings, MOST_REASONS),
        ):
            if len(names) > most:
                raise Problem(f"{what}: more than {most} different ones in this log")


def read_log(lines: Iterable[str], name: str) -> Columns:
    """All requests of a log called `name`. Raises BadInputError that names the line.

    Left out: control requests and tunnels, what the program itself says on standard output, and a last line that is
    not whole, as of a log that is being written.
    """
    columns = Columns()
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise BadInputError(f"{name}: line {number}: is longer than {LONGEST_LINE >> 20} MiB")
        if line.isspace() or line.startswith("balancer ") or not line.endswith("\n"):
            continue
        try:
            row = row_of(line)
            if row.end in LEFT_OUT:
                columns.left_out += 1
            else:
                columns.add(row)
        except Problem as problem:
            raise BadInputError(f"{name}: line {number}: {problem}") from None
    if not len(columns):
        raise BadInputError(f"{name}: holds no request")
    return columns
