"""An RPC on a client's stream: its deadline, how it ends, and its status for the log.

The field grpc-timeout (grpc/doc/PROTOCOL-HTTP2.md) is `TimeoutValue TimeoutUnit`: at most eight digits, and H, M, S, m,
u or n for hours, minutes, seconds, milli-, micro- and nanoseconds.
"""

from __future__ import annotations

import re
from math import inf
from typing import Final

from balancer.errors import ForwardingError, RequestOverdue, RequestRejected
from balancer.http.grpc.status import FAILURE_NAMES, NAMES, code_of

_CONTENT_TYPE: Final = b"application/grpc"

_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FINEST_FIRST: Final = ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0))
_MAX_COUNT: Final = 10**8

_find_timeouts: Final = re.compile(rb"\r\n(?i:grpc-timeout):[ \t]*([^\r]*)").findall
_timeout_line: Final = re.compile(rb"\r\n(?i:grpc-timeout):[^\r]*")
_is_timeout: Final = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch

LEAST_WAIT: Final = 0.005
"""Seconds of waiting from which on the worker gets a shorter timeout than the client has stated."""


def has_grpc_type(fields: tuple[tuple[bytes, bytes], ...]) -> bool:
    """Return whether a request's fields (names in lower case) have the content type of gRPC; gRPC-Web has another."""
    for name, value in fields:
        if name == b"content-type" and value.startswith(_CONTENT_TYPE):
            return value[len(_CONTENT_TYPE) :][:1] in (b"", b"+", b";")
    return False


class GrpcCall:
    """An RPC. `deadline` is the instant at which its client stops waiting, `inf` without one; `fault` is the error
    that ended the last attempt; `status` is the name of its status, "-" while there is none.

    `counts` are the numbers of RPCs by status code.
    """

    __slots__ = ("_counts", "_started_at", "deadline", "fault", "status")

    def __init__(self, counts: list[int], now: float) -> None:
        self._counts = counts
        self._started_at = now
        self.deadline = inf
        self.fault: ForwardingError | None = None
        self.status = "-"

    def read_timeout(self, head: bytes) -> None:
        """Set the deadline that a request's head states. Raises `RequestRejected`."""
        timeout = timeout_in(head)
        if timeout is not None:
            self.deadline = self._started_at + timeout

    def shortened(self, head: bytes, now: float) -> bytes:
        """Return the head for a worker with the timeout that is left."""
        if self.deadline == inf or now - self._started_at < LEAST_WAIT:
            return head
        return with_timeout(head, self.deadline - now)

    def overdue(self) -> RequestOverdue:
        """Return the error of an RPC whose deadline has passed."""
        return RequestOverdue(f"not answered within the client's {self.deadline - self._started_at:.6g} s")

    def ended(self, code: int) -> None:
        """Note the status that the client gets, once."""
        if self.status == "-":
            self.status = NAMES[code]
            self._counts[code] += 1

    @property
    def has_failed(self) -> bool:
        """Whether the status is one that HTTP has as 5xx."""
        return self.status in FAILURE_NAMES

    def failed(self, error: ForwardingError) -> None:
        """Note that the client gets an error of the balancer."""
        self.ended(code_of(error))


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
