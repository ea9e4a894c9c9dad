"""Read access logs of nginx, HAProxy, Envoy, AWS load balancers and Traefik as recordings.

Each line becomes a request with its arrival, the worker that answered it and the time that this took. What a format
cannot tell is in `FORMATS`, and is said before any result. Lines of other programs are counted and left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.errors import BadInputError
from experiments.platform.printable import checked_name
from experiments.recorded.packed import reading, text_lines
from experiments.recorded.recording import ENDS, MAX_SPAN_S, OK, WIDE_ROW, RecordedEndpoint, Recording

REGION = "here"
"""Region of workers for which none is given."""

FAILED, TIMEOUT, ABANDONED = (ENDS.index(name) for name in ("error_status", "timeout", "abandoned"))
CLIENT_LEFT = 499
"""Status of a request whose client left before it was answered, as nginx and Traefik log it."""


class LoggedRequest(NamedTuple):
    """A request of a log. `at` is Unix time; durations in seconds, nan where the log has none."""

    at: float
    endpoint: str
    status: int
    queue: float
    connect: float
    service: float


class LogFormat(NamedTuple):
    """How lines are read, and what they do not tell."""

    read: Callable[[str], LoggedRequest | None]
    unknown: str


def nginx(line: str) -> LoggedRequest | None:
    """A line that has variables by name, as JSON or as `name=value`: `msec`, `request_time` and those of upstreams.

    The first value of a name counts, and none within quotes, where text of the client is.
    """
    found: Mapping[str, Any]
    if line.startswith("{"):
        found = json.loads(line, object_pairs_hook=_first)
    else:
        found = _first([(name, quoted or bare) for name, quoted, bare in _PAIR.findall(line)])
    if "msec" not in found:
        return None
    *tried, service = (
        _seconds(part.strip()) for part in str(found["upstream_response_time"]).replace(":", ",").split(",")
    )
    connect = _seconds(str(found.get("upstream_connect_time", "-")).replace(":", ",").split(",")[-1].strip())
    total = float(found["request_time"])
    address = str(found["upstream_addr"]).split(",")[-1].split(" : ")[-1].strip().removeprefix("-")
    known = 0.0 if connect != connect else connect
    at = float(found["msec"]) - total
    queue = sum(each for each in tried if each == each)
    return LoggedRequest(at, address, int(found["status"]), queue, known, service - known)


def _first(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


_PAIR = re.compile(r'(?<![^\s,])(\w+)=(?:"([^"]*)"|([^"\s,]*(?:(?:,| :) [^"\s,]+)*))|"[^"]*"')


def haproxy(line: str) -> LoggedRequest | None:
    """A line of `option httplog`."""
    found = _HAPROXY.search(line)
    if found is None:
        return None
    asked, queue, connect, _, total = (
        float(each) / 1e3 for each in found["times"].replace("+", "").split("/")
    )
    if asked < 0:  # the connection closed before a whole request had come
        return None
    began = datetime.strptime(f"{found['at']}+0000", "%d/%b/%Y:%H:%M:%S.%f%z")  # only differences count
    queue, connect = max(0.0, queue), max(0.0, connect)
    server = "" if found["server"].startswith("<") else found["server"]
    service = total - asked - queue - connect
    status = CLIENT_LEFT if found["state"] in "Cc" else max(0, int(found["status"]))
    return LoggedRequest(began.timestamp() + asked, server, status, queue, connect, service)


_HAPROXY = re.compile(
    r"\[(?P<at>\d\d/\w{3}/\d{4}:[\d:.]+)\] \S+ \S+/(?P<server>\S+) (?P<times>-?\d+(?:/\+?-?\d+){4}) (?P<status>-?\d+) "
    r"\S+ \S+ \S+ (?P<state>\S)"
)


def envoy(line: str) -> LoggedRequest | None:
    """A line of the default format."""
    found = _ENVOY.match(line)
    if found is None:
        return None
    host = found["host"].removeprefix("tcp://").removeprefix("http://")
    service = nan if found["service"] == "-" else float(found["service"]) / 1e3
    at = datetime.fromisoformat(found["at"]).timestamp()
    status = CLIENT_LEFT if "DC" in found["flags"].split(",") else int(found["status"])
    return LoggedRequest(at, "" if host == "-" else host, status, 0.0, 0.0, service)


_ENVOY = re.compile(
    r'\[(?P<at>[^]]+)\] "[^"]*" (?P<status>\d+) (?P<flags>\S+) (?:"[^"]*" )*?\d+ \d+ \d+ (?P<service>\d+|-) '
    r'"[^"]*" "[^"]*" "[^"]*" "[^"]*" "(?P<host>[^"]*)"[^"]*$'  # more quotes are a client's
)


def alb(line: str) -> LoggedRequest | None:
    """A line of an Application Load Balancer's access log."""
    words = line.split(" ", 9)
    if len(words) < 10 or words[0] not in ("http", "https", "h2", "grpcs", "ws", "wss"):
        return None
    asked, service, answered = (float(each) for each in words[5:8])
    lasted = sum(max(0.0, each) for each in (asked, service, answered))
    at = datetime.fromisoformat(words[1]).timestamp() - lasted
    target = "" if words[4] == "-" else words[4]
    taken = nan if service < 0 else service + max(0.0, answered)
    status = CLIENT_LEFT if words[8] == "460" else int(words[8])
    return LoggedRequest(at, target, status, max(0.0, asked), 0.0, taken)


def traefik(line: str) -> LoggedRequest | None:
    """A line of the format `json`."""
    if not line.startswith("{"):
        return None
    found = json.loads(line)
    if "StartUTC" not in found:
        return None
    at = datetime.fromisoformat(found["StartUTC"]).timestamp()
    worker = found.get("ServiceURL") or found.get("ServiceAddr") or ""
    name = worker if isinstance(worker, str) else worker.get("Host", "")
    service = found["OriginDuration"] / 1e9 if name else nan
    return LoggedRequest(
        at, name.partition("://")[2] or name, int(found["DownstreamStatus"]), 0.0, 0.0, service
    )


NO_WORK = "not how long workers themselves took: time of service and slots are estimated"
NO_DISTANCE = "no time of connecting (see --round-trip)"
FORMATS = {
    "nginx": LogFormat(nginx, f"milliseconds only; {NO_WORK}"),
    "haproxy": LogFormat(haproxy, f"milliseconds only; {NO_WORK}"),
    "envoy": LogFormat(envoy, f"milliseconds only, {NO_DISTANCE}, and of retries the sum; {NO_WORK}"),
    "alb": LogFormat(alb, f"{NO_DISTANCE}; {NO_WORK}"),
    "traefik": LogFormat(traefik, f"{NO_DISTANCE}; {NO_WORK}"),
}


def _seconds(text: str) -> float:
    return nan if text == "-" else float(text)


class ProxyLogs(NamedTuple):
    """Requests of logs. `others` lines are none, and `own` requests, which are left out, the proxy answered itself."""

    recording: Recording
    others: int
    own: int


def read_proxy_logs(
    paths: Sequence[Path], log: LogFormat, regions: Sequence[tuple[str, str]], policy: dict[str, Any]
) -> ProxyLogs:
    """Read the requests of logs, which may be compressed by gzip.

    `regions` are names of regions, each with the beginning of the names of its workers; `policy` is what the proxy
    picks by. Raises `BadInputError`.
    """
    read, others = list[LoggedRequest](), 0
    for path in paths:
        with reading(f"{path}:"), path.open("rb") as file:
            others += _collect(text_lines(file, "utf-8"), log, read)
    found = [
        each for each in read if each.endpoint or each.status == CLIENT_LEFT or not 0 < each.status < 500
    ]
    if not found:
        which = " that a worker got" if read else "; see --format"
        raise BadInputError(f"{paths[0]}: holds no request in this format{which}")
    found.sort()
    began = found[0].at
    if found[-1].at - began > MAX_SPAN_S:
        raise BadInputError(f"{paths[0]}: spans more than {MAX_SPAN_S / 86400:.0f} days")
    names = list(dict.fromkeys(request.endpoint for request in found if request.endpoint))
    rows = np.zeros(len(found), WIDE_ROW)
    numbers = {name: number for number, name in enumerate(names)} | {"": -1}
    rows["at"] = [request.at - began for request in found]
    for name in ("queue", "connect", "service", "status"):
        rows[name] = [getattr(request, name) for request in found]
    rows["first_byte"], rows["reported"] = rows["service"], nan
    rows["endpoint"] = [numbers[request.endpoint] for request in found]
    is_ok = (rows["status"] < 500) & (rows["status"] > 0)
    rows["end"] = np.where(is_ok, OK, np.where(rows["status"] == 504, TIMEOUT, FAILED))
    rows["end"][rows["status"] == CLIENT_LEFT] = ABANDONED
    rows["attempts"] = 1
    endpoints = tuple(
        RecordedEndpoint(name, placed(name, regions)[0], 1.0, _handshake(rows, number))
        for number, name in enumerate(names)
    )
    return ProxyLogs(Recording(rows, endpoints, began, policy, None, 0, 0), others, len(read) - len(found))


def _collect(lines: Iterable[str], log: LogFormat, found: list[LoggedRequest]) -> int:
    """Add the requests of lines; return the number of other lines."""
    others = 0
    for line in lines:
        try:
            request = log.read(line)
            if request is not None:
                checked_name(request.endpoint or "-")
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
            request = None
        if request is None:
            others += not line.isspace()
        else:
            found.append(request)
    return others


def placed(name: str, regions: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the region whose workers begin most like this one, and how they begin."""
    fitting = [pair for pair in regions if name.startswith(pair[1])]
    return max(fitting, key=lambda pair: (len(pair[1]), pair[0]), default=(REGION, ""))


def _handshake(rows: Any, number: int) -> float:
    """Return the quickest handshake with a worker, 0 if the log has none."""
    times = rows["connect"][(rows["endpoint"] == number) & (rows["connect"] > 0)]
    return float(times.min()) if len(times) else 0.0
