"""Request that the balancer itself sends to a worker: an active check, a load probe, a heartbeat, `balancer probe`.

It bypasses the router and the request counters. It has no timer: its owner calls `end_if_overdue` from the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

from balancer.config.schema.endpoint import authority_of
from balancer.errors import ConnectFailed, ConnectTimeout, ResponseTimeout, UpstreamError
from balancer.http.h1.response_head import Response
from balancer.upstream.pool import Pool
from balancer.upstream.request import UpstreamAttempt, UpstreamRequest, whole_body
from policies.facts import Endpoint, OutcomeKind

BODY_LIMIT: Final = 65_536
"""Maximum bytes of a response's body; a longer one is the error `BodyTooLong`, and its connection is closed."""

NO_FIELDS: Final[Mapping[str, str]] = {}


class BodyTooLong(UpstreamError):
    """The response's body exceeds the limit."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.reason = "body_too_long"  # of the class, mypyc would hide it behind that of the interpreted base


@dataclass(frozen=True, slots=True)
class InternalResult:
    """Result of an internal request.

    `error`: None if the response is complete, or if only a connection was wanted. `fault`: the error in words.
    `response`: the final response head, None: none was received. `seconds`: time from sending to the end. `body` and
    `trailers` are those of the response, as far as they came, of a body that is too long the bytes up to the limit.
    """

    error: UpstreamError | None
    fault: str | None
    response: Response | None
    seconds: float
    body: bytes = b""
    trailers: bytes = b""

    @property
    def status(self) -> int:
        """Final status, 0: none was received."""
        return self.response.status if self.response is not None else 0

    @property
    def is_reachable(self) -> bool:
        """Whether a connection was established."""
        return self.error is None or self.error.outcome is not OutcomeKind.REFUSED


def own_host(endpoint: Endpoint) -> str:
    """Return the Host of an internal request: that of all requests to the endpoint, or else of its address."""
    return endpoint.host.decode() or authority_of(endpoint.address)


def internal_head(
    endpoint: Endpoint,
    path: str,
    sender: str,
    method: str = "GET",
    host: str | None = None,
    fields: Mapping[str, str] = NO_FIELDS,
) -> bytes:
    """Return the head of an internal request. `sender`: suffix of its User-Agent; `host`: None for that of the
    endpoint; `fields`: further ones, or in place of these, by their names in lower case."""
    own = (("User-Agent", f"steelyard-{sender}"), ("Accept", "*/*"))
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or own_host(endpoint)}"]
    lines += [f"{name}: {value}" for name, value in own if name.lower() not in fields]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join((*lines, "", "")).encode()


class InternalRequest(UpstreamAttempt):
    """One internal request.

    `head` is the request's, None: only connect, and close the connection again, which would keep a worker that serves
    one at a time from all others. `on_end` is called once with the result, after the connection was released or closed,
    unless the request is cancelled. `timeout`: seconds from `started_at` to the last byte. `clock` measures
    `InternalResult.seconds`.
    """

    def __init__(
        self,
        head: bytes | None,
        on_end: Callable[[InternalResult], None],
        *,
        method: bytes = b"GET",
        body: bytes = b"",
        body_limit: int = BODY_LIMIT,
        timeout: float = inf,
        started_at: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._head = head
        self._on_end = on_end
        self._method = method
        self._body = body
        self._body_limit = body_limit
        self._timeout = timeout
        self._deadline = started_at + timeout
        self._clock = clock
        self._pool: Pool | None = None  # for a retry; None: the connection is new, or leased by the caller
        self._is_trial = False
        self._response: Response | None = None  # final head
        self._size = 0
        self._pieces: list[bytes] = []
        self._trailers = b""
        self._sent_at = clock()

    def lease(self, pool: Pool, *, needs_new: bool = False, is_trial: bool = False) -> None:
        """Send the request over an idle connection, or open one. `needs_new`: always open one. `is_trial`: ignore the
        backoff (`Pool.open`)."""
        self._is_trial = is_trial
        upstream = None if needs_new else pool.lease_quiet()
        if upstream is None:
            pool.open(self, is_trial=is_trial)
        else:
            self._pool = pool
            self.send(upstream)

    def send(self, upstream: UpstreamRequest) -> None:
        self.upstream = upstream
        if self._head is None:
            self._end()
            return
        self._sent_at = self._clock()
        upstream.send(self._head, self, self._method, whole_body(self._body) if self._body else None)

    def end_if_overdue(self, now: float) -> None:
        """Fail the request if it has timed out at `now`."""
        if now < self._deadline:
            return
        kind, what = (ConnectTimeout, "connection") if self.upstream is None else (ResponseTimeout, "answer")
        fault = f"no {what} within {self._timeout:g} s"
        self._end(kind(fault), fault)

    def cancel(self) -> None:
        """End the request without a result, and close its connection."""
        self.is_over = True
        self.release(is_clean=False)

    def _end(self, error: UpstreamError | None = None, fault: str | None = None) -> None:
        """Release the connection if the response is complete, else close it; then report the result."""
        if self.is_over:
            return
        self.is_over = True
        self.release(is_clean=error is None and self._head is not None)
        seconds = self._clock() - self._sent_at
        body = b"".join(self._pieces)[: self._body_limit]
        self._on_end(InternalResult(error, fault, self._response, seconds, body, self._trailers))

    # --- LeaseWaiter

    def connect_failed(self, error: ConnectFailed) -> None:
        self._end(error, f"no connection: {error.inside}")

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        self._response = response
        self.response_body(body)
        self.response_ended(b"")

    def response_started(self, response: Response) -> None:
        if response.status >= 200:
            self._response = response

    def response_body(self, data: bytes) -> None:
        self._size += len(data)
        self._pieces.append(data)
        if self._size > self._body_limit:
            fault = f"more than {self._body_limit} bytes of body"
            self._end(BodyTooLong(fault), fault)

    def response_ended(self, trailers: bytes) -> None:
        self._trailers = trailers
        self._end()

    def response_failed(self, error: UpstreamError) -> None:
        pool, self._pool = self._pool, None
        if error.outcome is OutcomeKind.REFUSED:  # from a transport that connects by itself
            self._end(error, f"no connection: {error}")
        elif pool is None or self._response is not None or self.is_over:
            self._end(error, f"{error.reason}: {error}")
        else:  # retry: the worker may close an idle connection at any time
            self.release(is_clean=False)
            pool.open(self, is_trial=self._is_trial)
