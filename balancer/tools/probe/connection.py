"""One HTTP/1.1 connection to the probed server, with the responses received on it.

It uses the connection class of the data path (`upstream.py`), so both accept the same responses. That class consumes
connection-level fields such as `Keep-Alive`; `ResponseRecorder` therefore copies the bytes before.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from time import monotonic
from typing import cast

from balancer.errors import ConnectionBroken, ResponseTimeout
from balancer.http.h1.field_list import Fields, fields_of
from balancer.http.h1.fields import END_OF_HEAD
from balancer.http.h1.response_head import HEAD_LIMIT
from balancer.tls.contexts import ClientTls
from balancer.tools.probe.target import ProbeTarget
from balancer.upstream.dial.dial import dial
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.target import NetworkRoute
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.internal_request import BodyTooLong, InternalRequest, InternalResult

BODY_LIMIT = 8 << 20
"""Size limit of a response's body in bytes."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A response, with the times at which the request was written and its first and last byte arrived.

    `may_follow` is True if the connection can be reused.
    """

    status: int
    version: str
    fields: Fields
    sent_at: float
    begun_at: float
    ended_at: float
    may_follow: bool

    def values(self, name: bytes) -> list[str]:
        """Return the values of a field, named in lower case, with unprintable characters replaced."""
        return [printable(value) for other, value in self.fields if other.lower() == name]


def probe_request(target: ProbeTarget, method: str) -> tuple[InternalRequest, asyncio.Future[InternalResult]]:
    """Return a request to the target, not sent yet, and the future of its result."""
    result: asyncio.Future[InternalResult] = asyncio.get_running_loop().create_future()

    def ended(found: InternalResult) -> None:
        if not result.done():  # cancelled by a timeout
            result.set_result(found)

    return InternalRequest(target.head(method), ended, method=method.encode(), body_limit=BODY_LIMIT), result


class ResponseRecorder(asyncio.Protocol):
    """Protocol with an `UpstreamConnection` that records the first bytes of each response. `closed_at` is the time at
    which the server closed.
    """

    def __init__(self) -> None:
        self.upstream = UpstreamConnection(self)
        self.heard = b""
        self.begun_at = 0.0
        self.closed_at: float | None = None
        self.closed = asyncio.Event()
        self._is_ours = False  # we closed it

    def listen(self) -> None:
        """Start recording another response."""
        self.heard, self.begun_at = b"", 0.0

    def end(self) -> None:
        """Close the connection from this side."""
        self._is_ours = True
        self.upstream.close()

    # --- ConnectionOwner

    def give_back(self, upstream: UpstreamConnection) -> None:
        """Nothing to do: the connection has no pool."""

    def connection_closed(self, upstream: UpstreamConnection) -> None:
        if not self._is_ours:
            self.closed_at = monotonic()
        self.closed.set()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.upstream.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.begun_at = self.begun_at or monotonic()
        if len(self.heard) < HEAD_LIMIT:
            self.heard += data
        self.upstream.data_received(data)

    def eof_received(self) -> None:
        self.upstream.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.upstream.connection_lost(error)

    def pause_writing(self) -> None:
        self.upstream.pause_writing()

    def resume_writing(self) -> None:
        self.upstream.resume_writing()


class ProbeConnection:
    """Sequential requests on one connection. `began_at` is the start of connecting; `asked` counts the requests."""

    def __init__(
        self, target: ProbeTarget, recorder: ResponseRecorder, phases: DialTimes, began_at: float
    ) -> None:
        self.phases = phases
        self.began_at = began_at
        self.asked = 0
        self._target = target
        self._recorder = recorder
        self._quiet_since = monotonic()

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The SSL object of the connection; None without TLS."""
        return cast("ssl.SSLObject | None", self._recorder.upstream.transport.get_extra_info("ssl_object"))

    async def ask(self, method: str, timeout: float) -> ProbeAnswer:
        """Send a request and return the response. Raises `UpstreamError`; then the connection is closed."""
        recorder = self._recorder
        if recorder.upstream.is_closed:
            raise ConnectionBroken("the server has closed the connection")
        self.asked += 1
        recorder.listen()
        request, result = probe_request(self._target, method)
        sent_at = monotonic()
        request.send(recorder.upstream)
        status = await self._status_of(result, timeout)
        self._quiet_since = ended_at = monotonic()
        version, fields = head_in(recorder.heard)
        return ProbeAnswer(
            status, version, fields, sent_at, recorder.begun_at, ended_at, recorder.upstream.is_reusable
        )

    async def _status_of(self, result: asyncio.Future[InternalResult], timeout: float) -> int:
        try:
            async with asyncio.timeout(timeout):
                found = await result
        except TimeoutError:
            self.close()
            raise ResponseTimeout(f"no whole response within {timeout:g} s") from None
        if found.error is None:
            return found.status
        self.close()
        if isinstance(found.error, BodyTooLong):
            raise BodyTooLong(f"more than {BODY_LIMIT >> 20} MiB of body: probe another path")
        raise found.error

    async def idle_for(self, seconds: float) -> float | None:
        """Stay idle until `seconds` after the last response; return the idle seconds at which the server closed, or
        None.
        """
        recorder = self._recorder
        try:
            async with asyncio.timeout(max(0.0, self._quiet_since + seconds - monotonic())):
                await recorder.closed.wait()
        except TimeoutError:
            return None
        return None if recorder.closed_at is None else recorder.closed_at - self._quiet_since

    def close(self) -> None:
        self._recorder.end()


async def open_connection(
    target: ProbeTarget, route: NetworkRoute, tls: ClientTls | None, timeout: float
) -> ProbeConnection:
    """Connect to the target. Raises `ConnectFailed`."""
    began_at = monotonic()
    recorder, phases = await dial(ResponseRecorder, route.host, route.port, timeout, tls, route)
    return ProbeConnection(target, recorder, phases, began_at)


def printable(value: bytes) -> str:
    """Decode Latin-1, with a question mark for each unprintable character."""
    return "".join(letter if letter.isprintable() else "?" for letter in value.decode("latin-1"))


def head_in(heard: bytes) -> tuple[str, Fields]:
    """Return version and fields of the first final response in received bytes that are valid HTTP."""
    while True:
        head, _, heard = heard.partition(END_OF_HEAD)
        line, _, _ = head.partition(b"\r\n")
        if line[9:10] != b"1" or not heard:
            return line[5:8].decode("latin-1"), fields_of(head + b"\r\n")
