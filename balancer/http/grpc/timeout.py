"""The field grpc-timeout: how long the client of an RPC waits (grpc/doc/PROTOCOL-HTTP2.md). Pure.

`TimeoutValue TimeoutUnit`: at most eight digits, and H, M, S, m, u or n for hours, minutes, seconds, milli-, micro- and
nanoseconds.
"""

from __future__ import annotations

import re
from typing import Final

from balancer.errors import RequestRejected

_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FINEST_FIRST: Final = ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0))
_MAX_COUNT: Final = 10**8

_find_timeouts: Final = re.compile(rb"\r\n(?i:grpc-timeout):[ \t]*([^\r]*)").findall
_timeout_line: Final = re.compile(rb"\r\n(?i:grpc-timeout):[^\r]*")
_is_timeout: Final = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch


def timeout_in(head: bytes) -> float | None:
    """Return the timeout in a request's head in seconds, None without one. Raises `RequestRejected`."""
    values: list[bytes] = _find_timeouts(head)
    if not values:
        return None
    match = _is_timeout(values[0].rstrip())
    if match is None or len(values) > 1:
        raise RequestRejected(
            400, "bad_grpc_timeout", "grpc-timeout must be up to 8 digits and one of H, M, S, m, u, n"
        )
    return int(match[1]) * _SECONDS[match[2]]


def with_timeout(head: bytes, seconds: float) -> bytes:
    """Return the head with this timeout in place of its own; unchanged if it is too long to be written exactly."""
    for unit, per_second in _FINEST_FIRST:
        number = int(seconds * per_second)
        if number < _MAX_COUNT:
            line = b"\r\ngrpc-timeout: %d%b" % (max(1, number), unit)
            return _timeout_line.sub(line, head, count=1)
    return head
