"""HTTP/1.1 connections to the probed server, with the responses received on them, and its idle timeout.

It uses the connection class of the data path (`upstream.py`), so both accept the same responses. That class consumes
connection-level fields such as `Keep-Alive`; `ResponseRecorder` therefore copies the bytes before.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import cast

from balancer.errors import ConnectionBroken, ResponseTimeout, UpstreamError
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
    recorder, phases = await dial(ResponseRecorder, route, timeout, tls)
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


FIRST_IDLE_S = 0.5
"""Idle time of the first step in seconds; each further one doubles it."""

FINER_STEPS = 3
"""Steps of the second round, between the longest kept and the shortest lost idle time."""

RANDOM = 1.25
"""Ratio of longest to shortest idle time at close from which the timeout counts as random."""


class Ending(Enum):
    """End of a trial: `ANSWERED` if the connection was reused, `CLOSED` by the server before that, or `LOST`: it seemed
    open, and the request failed.
    """

    ANSWERED = "answered"
    CLOSED = "closed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class IdleRun:
    """Result of one connection, with its idle time."""

    idle: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """Estimated idle limit of a server.

    `kept`: the longest idle time below `closed` after which a connection was reused; `closed`: the shortest after which
    one was gone, None if none was within `waited`; `closed_longest`: the longest one. `is_silent`: connections were not
    closed but lost.
    """

    waited: float
    kept: float
    closed: float | None = None
    closed_longest: float | None = None
    is_silent: bool = False

    @property
    def is_random(self) -> bool:
        """Whether the server closes at varying idle times."""
        if self.closed is None or self.closed_longest is None or self.is_silent:
            return False
        return self.closed_longest > self.closed * RANDOM + 1.0

    @property
    def safe(self) -> float:
        """Idle time up to which a connection is still open."""
        if self.closed is None:
            return self.waited
        return self.kept if self.is_silent else self.closed


def idle_steps(limit: float) -> list[float]:
    """Return the idle times of the first round: 0.5, 1, 2, 4 … and `limit`."""
    found, next_one = [], FIRST_IDLE_S
    while next_one < limit:
        found.append(next_one)
        next_one *= 2
    return [*found, limit]


def finer_idle_steps(limit: IdleLimit) -> list[float]:
    """Return the idle times of the second round, which narrows the limit where connections are lost silently."""
    if not limit.is_silent or limit.closed is None:
        return []
    step = (limit.closed - limit.kept) / (FINER_STEPS + 1)
    return [limit.kept + step * number for number in range(1, FINER_STEPS + 1)]


def limit_of(trials: Sequence[IdleRun], waited: float) -> IdleLimit:
    """Return the estimate from the trials; `waited` is the longest idle time tried."""
    closed = [trial.idle for trial in trials if trial.ending is Ending.CLOSED]
    gone = closed or [trial.idle for trial in trials if trial.ending is Ending.LOST]
    answered = [trial.idle for trial in trials if trial.ending is Ending.ANSWERED]
    if not gone:
        return IdleLimit(waited, max(answered, default=0.0))
    kept = max((idle for idle in answered if idle < min(gone)), default=0.0)
    return IdleLimit(waited, kept, min(gone), max(gone), is_silent=not closed)


Open = Callable[[], Awaitable[ProbeConnection]]
"""Coroutine function that opens a connection. Raises `ConnectFailed`."""


async def idle_limit(open_one: Open, method: str, limit: float, timeout: float) -> IdleLimit:
    """Measure idle times up to `limit` seconds by trials on concurrent connections, each idle for longer than the one
    before; `timeout` in seconds is for each response.

    A server that closes idle connections does so visibly, at its own time; a middlebox may drop a connection silently,
    which only the next request reveals. The trials take as long as the longest step, twice that if connections are lost
    silently. All connections are closed at the end.
    """
    trials = await _round(open_one, method, idle_steps(limit), timeout)
    found = limit_of(trials, limit)
    finer = finer_idle_steps(found)
    return limit_of(trials + await _round(open_one, method, finer, timeout), limit) if finer else found


async def _round(open_one: Open, method: str, idles: Sequence[float], timeout: float) -> list[IdleRun]:
    """Run one trial per idle time concurrently; connections that fail before being idle are left out."""
    trials = await asyncio.gather(*(_trial(open_one, method, idle, timeout) for idle in idles))
    return [trial for trial in trials if trial is not None]


async def _trial(open_one: Open, method: str, idle: float, timeout: float) -> IdleRun | None:
    try:
        conversation = await open_one()
    except UpstreamError:
        return None
    try:
        answer = await conversation.ask(method, timeout)
        if not answer.may_follow:
            return None
        closed_after = await conversation.idle_for(idle)
        if closed_after is not None:
            return IdleRun(closed_after, Ending.CLOSED)
        try:
            await conversation.ask(method, timeout)
        except UpstreamError:
            return IdleRun(idle, Ending.LOST)
        return IdleRun(idle, Ending.ANSWERED)
    except UpstreamError:
        return None
    finally:
        conversation.close()
