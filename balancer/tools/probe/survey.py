"""Sequence of checks of a probe.

Connections and requests are few and bounded. After the first response a failure is a finding and does not abort.
HTTP/2 is checked with one request over the transport of the data path.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median_low
from time import monotonic

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.limits import Timeouts
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.errors import ConnectFailed, ConnectionBroken, MalformedResponse, UpstreamError
from balancer.tls.contexts import UpstreamTls
from balancer.tools.probe.connection import (
    ProbeAnswer,
    ProbeConnection,
    idle_limit,
    open_connection,
    probe_request,
)
from balancer.tools.probe.findings import (
    Findings,
    Http2Findings,
    KeepAliveFindings,
    ProbePhases,
    Timing,
    TlsFindings,
)
from balancer.tools.probe.target import ProbeTarget
from balancer.upstream.dial.target import NetworkRoute, Routes
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.pools import Pools

Tell = Callable[[str], None]
"""Callback for progress messages."""

NO_ERROR = 400
"""Lowest status of an error."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a probe.

    `idle` is the longest idle time and `timeout` the limit of each step, in seconds; `requests` the limit on one
    connection, at least 2.
    """

    idle: float = 75.0
    requests: int = 10
    timeout: float = 10.0
    method: str = "GET"


class Survey:
    """One probe of one server."""

    def __init__(self, target: ProbeTarget, bounds: Bounds, tls: UpstreamTls, tell: Tell) -> None:
        self.findings = Findings(target)
        self._target = target
        self._bounds = bounds
        self._tls = tls
        self._client_tls = tls.of(target.endpoint.address)
        self._tell = tell
        self._routes = Routes()
        self._route = NetworkRoute(target.endpoint, self._routes)
        self._answers: list[ProbeAnswer] = []  # on the first connection
        self._conversations: list[ProbeConnection] = []

    async def run(self) -> Findings:
        """Run all checks. Raises `UpstreamError` if the server is unreachable or does not speak HTTP."""
        try:
            await self._run()
        finally:
            await self._routes.close()
            self.findings.connections += len(self._conversations)
            self.findings.requests += sum(conversation.asked for conversation in self._conversations)
        return self.findings

    async def _run(self) -> None:
        try:
            await self._first()
        except UpstreamError as error:
            if not may_be_another_protocol(error):
                raise
            await self._ask_in_http2()
            if self.findings.http2 is None or not self.findings.http2.is_spoken:
                raise error from None
            return
        await self._again()
        await self._ask_in_http2()
        if self.findings.keep_alive is not None and self.findings.keep_alive.is_kept:
            await self._search_idle_limit(self.findings.keep_alive)

    async def _open(self) -> ProbeConnection:
        timeout = self._bounds.timeout
        conversation = await open_connection(self._target, self._route, self._client_tls, timeout)
        self._conversations.append(conversation)
        return conversation

    async def _ask(self, conversation: ProbeConnection, method: str | None = None) -> ProbeAnswer:
        return await conversation.ask(method or self._bounds.method, self._bounds.timeout)

    # --- checks

    async def _first(self) -> None:
        """Connect, and send requests until the limit or until the server closes."""
        self._tell("connecting")
        conversation = await self._open()
        try:
            self._answers.append(await self._ask(conversation))
            self._note_first(conversation)
            is_ended = await self._ask_on(conversation)
        finally:
            conversation.close()
        answers, findings = self._answers, self.findings
        findings.cookies = tuple(dict.fromkeys(name for answer in answers for name in cookies_of(answer)))
        hint = hint_of(answers[0])
        findings.keep_alive = KeepAliveFindings(len(answers) > 1, hint, len(answers), is_ended)
        cold = timing_of(answers[0], conversation)
        findings.phases = ProbePhases(cold, None, middle([timing_of(answer) for answer in answers[1:]]))

    async def _ask_on(self, conversation: ProbeConnection) -> bool:
        """Send further requests on the connection; return whether the server closed it."""
        while len(self._answers) < self._bounds.requests:
            if not self._answers[-1].may_follow:
                return True
            self._tell(f"request {len(self._answers) + 1} on one connection")
            try:
                self._answers.append(await self._ask(conversation))
            except UpstreamError as error:
                return isinstance(error, ConnectionBroken)
        return not self._answers[-1].may_follow

    def _note_first(self, conversation: ProbeConnection) -> None:
        findings, answer = self.findings, self._answers[0]
        findings.address = self._route.best
        findings.status, findings.version = answer.status, answer.version
        findings.server = next(iter(answer.values(b"server")), None)
        if conversation.tls is not None:
            findings.tls = tls_of(conversation.tls)

    async def _again(self) -> None:
        """Open a second connection, with the name cached and the TLS session to be resumed."""
        self._tell("connecting again")
        try:
            conversation = await self._open()
        except ConnectFailed:
            return
        try:
            answer = await self._ask(conversation)
            self._note_again(timing_of(answer, conversation))
            if answer.may_follow:
                head = await self._ask(conversation, "HEAD")
                self.findings.takes_head = head.status < NO_ERROR
        except UpstreamError:
            self.findings.takes_head = False
        finally:
            conversation.close()

    def _note_again(self, timing: Timing) -> None:
        findings = self.findings
        if findings.phases is not None:
            findings.phases = replace(findings.phases, again=timing)
        if findings.tls is not None:
            findings.tls = replace(findings.tls, resumes=self._route.resumption.resumed > 0)

    async def _ask_in_http2(self) -> None:
        self._tell("asking in HTTP/2")
        self.findings.connections += 1
        self.findings.requests += 1
        bounds = self._bounds
        self.findings.http2 = await check_http2(self._target, self._tls, bounds.method, bounds.timeout)

    async def _search_idle_limit(self, known: KeepAliveFindings) -> None:
        bounds = self._bounds
        counting = asyncio.ensure_future(self._count_seconds(bounds.idle))
        try:
            found = await idle_limit(self._open, bounds.method, bounds.idle, bounds.timeout)
        finally:
            counting.cancel()
        self.findings.keep_alive = replace(known, idle=found)

    async def _count_seconds(self, limit: float) -> None:
        for elapsed in count():
            self._tell(f"leaving connections alone, {elapsed} of {limit:g} s at most")
            await asyncio.sleep(1.0)


# --- parsing of responses


def may_be_another_protocol(error: UpstreamError) -> bool:
    """Return whether a server with this error may speak only HTTP/2."""
    return isinstance(error, MalformedResponse | ConnectionBroken) or (
        isinstance(error, ConnectFailed) and error.kind == "tls"
    )


def timing_of(answer: ProbeAnswer, conversation: ProbeConnection | None = None) -> Timing:
    """Return the times of the first request of `conversation`; without one, of a request on a reused connection."""
    if conversation is None:
        return Timing(0.0, 0.0, 0.0, 0.0, answer.begun_at - answer.sent_at, answer.ended_at - answer.sent_at)
    phases, began_at = conversation.phases, conversation.began_at
    return Timing(
        phases.namelookup,
        phases.connect,
        phases.appconnect,
        answer.sent_at - began_at,
        answer.begun_at - began_at,
        answer.ended_at - began_at,
    )


def middle(timings: Sequence[Timing]) -> Timing | None:
    """Return the timing whose total is the median."""
    if not timings:
        return None
    total = median_low(timing.total for timing in timings)
    return next(timing for timing in timings if timing.total == total)


def cookies_of(answer: ProbeAnswer) -> list[str]:
    """Return the names of the cookies that the response sets; values may be secrets."""
    return [value.partition("=")[0].strip() for value in answer.values(b"set-cookie")]


def hint_of(answer: ProbeAnswer) -> dict[str, int]:
    """Parse the numeric parameters of `Keep-Alive: timeout=5, max=100`."""
    pairs = (part.partition("=") for value in answer.values(b"keep-alive") for part in value.split(","))
    return {
        name.strip().lower(): int(number)
        for name, _, number in pairs
        if number.strip().isascii() and number.strip().isdigit() and len(number.strip()) < 10
    }


def tls_of(connection: ssl.SSLObject) -> TlsFindings:
    """Return the TLS findings of one connection."""
    cipher, certificate = connection.cipher(), connection.getpeercert()
    expires = certificate.get("notAfter") if certificate else None
    return TlsFindings(
        connection.version() or "?",
        cipher[0] if cipher is not None else "?",
        expires if isinstance(expires, str) else None,
        None,
    )


ANY_NUMBER = 1 << 31
"""Stream limit from which on it counts as unlimited (RFC 9113 § 6.5.2)."""


async def check_http2(target: ProbeTarget, tls: UpstreamTls, method: str, timeout: float) -> Http2Findings:
    """Send one request in HTTP/2: over https by ALPN, over http with prior knowledge (RFC 9113 § 3)."""
    pools = Pools(monotonic(), ClusterSettings(timeouts=Timeouts(connect=timeout)), tls=tls)
    pools.configs = {
        target.name: EndpointConfig(id=target.name, address=target.endpoint.address, transport="http2")
    }
    pools.replace([target.endpoint])
    pool = pools.by_id[target.name]
    assert isinstance(pool, MultiplexedPool)
    request, result = probe_request(target, method)
    request.lease(pool, needs_new=True)
    try:
        async with asyncio.timeout(timeout):
            error = (await result).error
    except TimeoutError:
        return Http2Findings(False, problem=f"no whole response within {timeout:g} s")
    finally:
        request.cancel()
        await pools.close()
    if error is not None:
        return Http2Findings(False, problem=error.inside if isinstance(error, ConnectFailed) else str(error))
    return Http2Findings(True, pool.stream_limit if 0 < pool.stream_limit < ANY_NUMBER else None)
