"""Questions of a policy's to workers, out of band: how loaded are you?

Rule of this file: no request ever waits for one. A probe is sent when the request that gave rise to it is on its way,
over a connection that nobody needs or a new one that the pool keeps; one at a time to an endpoint, and so many in all.
What cannot be asked within these bounds is not asked, and counted. A worker answers with the fields of
`load_report.py`; any request has them, so the path should be one that costs it little.

    policy.probes(now) -> router.on_probe(state) -> probe ... answer -> router.probed(...) -> policy.observe_probe(...)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from balancer.http1.load_report import reported_load

if TYPE_CHECKING:
    from balancer.errors import ConnectFailed, UpstreamError
    from balancer.upstream.connection import Response, UpstreamConnection
    from balancer.upstream.pool import Pool
    from balancer.upstream.pools import Pools
    from policies.routing.endpoint_state import EndpointState
    from policies.routing.facts import ReportedLoad
    from policies.routing.router import Router

BODY_LIMIT: Final = 65_536
"""Bytes of an answer that are read so that the connection can be kept; a longer one costs its connection."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """GET `path` of the worker; None: nobody is asked. `timeout` in seconds, from before the connection to the last
    byte; `most` may be under way at once."""

    path: str | None = None
    timeout: float = 1.0
    most: int = 100


@dataclass(slots=True)
class ProbeCounts:
    """Since the start. Of those `sent`, some were `answered` with a load, some `silent` about it, some `failed`; those
    `skipped` were asked for and not sent."""

    sent: int = 0
    answered: int = 0
    silent: int = 0
    failed: int = 0
    skipped: int = 0


class LoadProbes:
    """All probes of a unit. `under_way` has one of an endpoint, by its id."""

    def __init__(self, router: Router, pools: Pools, now: Callable[[], float]) -> None:
        self.plan = ProbePlan()
        self.counts = ProbeCounts()
        self.under_way: dict[str, LoadProbe] = {}
        self._router = router
        self._pools = pools
        self.now = now

    def use(self, plan: ProbePlan) -> None:
        """Ask by this plan from now on."""
        self.plan = plan
        self._router.on_probe = self.ask if plan.path is not None else None

    def ask(self, state: EndpointState) -> None:
        """The policy would like to know. Called while a request is being routed, so it is only noted here."""
        if state.id in self.under_way or len(self.under_way) >= self.plan.most:
            self.counts.skipped += 1
            return
        probe = self.under_way[state.id] = LoadProbe(self, state)
        asyncio.get_running_loop().call_soon(self._send, probe)

    def _send(self, probe: LoadProbe) -> None:
        """The request has taken its connection by now; what lies idle yet is to spare."""
        pool = self._pools.by_id.get(probe.state.id)
        if pool is None or probe.is_over:
            probe.end(None)
            return
        self.counts.sent += 1
        probe.begin(pool)

    def sweep(self, now: float) -> None:
        """End what is overdue."""
        for probe in list(self.under_way.values()):
            if now - probe.asked_at >= self.plan.timeout:
                probe.fail()

    def stop(self) -> None:
        """Ask nobody, and wait for no answer."""
        self._router.on_probe = None
        for probe in list(self.under_way.values()):
            probe.end(None)

    def answered(self, probe: LoadProbe, load: ReportedLoad | None) -> None:
        """It has its answer; None: which says nothing of load."""
        if load is None:
            self.counts.silent += 1
            return
        self.counts.answered += 1
        now = self.now()
        self._router.probed(probe.state, load, now - probe.sent_at, now)


class LoadProbe:
    """One question: a lessee that waits for a connection, then the sink of one response. Instants in seconds."""

    def __init__(self, probes: LoadProbes, state: EndpointState) -> None:
        self._probes = probes
        self._pool: Pool | None = None
        self._upstream: UpstreamConnection | None = None
        self._is_fresh = False  # the connection has served nobody before
        self._load: ReportedLoad | None = None
        self._size = 0
        self.state = state
        self.asked_at = self.sent_at = probes.now()
        self.is_over = False

    def begin(self, pool: Pool) -> None:
        """Over a connection that stands, if one is to spare."""
        self._pool = pool
        upstream = pool.lease_quiet()
        if upstream is None:
            self._open(pool)
        else:
            self._send(upstream)

    def _open(self, pool: Pool) -> None:
        self._is_fresh = True
        pool.open(self)

    def _send(self, upstream: UpstreamConnection) -> None:
        self._upstream = upstream
        self.sent_at = self._probes.now()
        url = urlsplit(self.state.endpoint.address)
        head = (
            f"GET {self._probes.plan.path} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            "User-Agent: steelyard-load-probe\r\nAccept: */*\r\n\r\n"
        )
        upstream.send(head.encode(), self, b"GET")

    def fail(self) -> None:
        """There is no answer, or none in time."""
        if not self.is_over:
            self._probes.counts.failed += 1
            self.end(None)

    def end(self, kept: UpstreamConnection | None) -> None:
        """It is over; `kept` is the connection, if it can serve again."""
        if not self.is_over:
            self.is_over = True
            self._probes.under_way.pop(self.state.id, None)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if upstream is kept:
                upstream.release()
            else:
                upstream.close()

    def _answered(self) -> None:
        if not self.is_over:
            self.end(self._upstream)
            self._probes.answered(self, self._load)

    # --- Lessee

    def connected(self, upstream: UpstreamConnection) -> None:
        if self.is_over:
            upstream.release()
        else:
            self._send(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        self.fail()

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        self._load = reported_load(response.block)
        self._answered()

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self.fail()
        elif response.status >= 200:
            self._load = reported_load(response.block)

    def response_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > BODY_LIMIT:
            self.fail()

    def response_paused(self) -> None:
        """There is more to come, or the deadline."""

    def response_ended(self, trailers: bytes) -> None:
        self._answered()

    def response_failed(self, error: UpstreamError) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        if not self._is_fresh and not self.is_over and self._pool is not None and not self._size:
            self._open(self._pool)  # the worker had closed a connection that was idle: that is its right
        else:
            self.fail()

    def upstream_paused(self) -> None:
        """A request of some hundred bytes is taken in one go."""

    def upstream_resumed(self) -> None:
        """Nothing waits for it."""
