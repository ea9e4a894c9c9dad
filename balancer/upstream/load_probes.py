"""Load probes: out-of-band requests by which a routing policy asks workers for their load.

No request waits for a load probe. A probe is sent after the request that triggered it, over an idle connection or a new
one that the pool keeps, one at a time per endpoint and at most `ProbePlan.most` in all. Probes beyond these bounds are
skipped and counted. A worker answers with the fields of `http1/load_report.py` on any response, so `path` should be
cheap for it.

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
    from balancer.http1.response_head import Response
    from balancer.upstream.pool import Pool
    from balancer.upstream.pools import Pools
    from balancer.upstream.request import UpstreamRequest
    from policies.endpoint.state import EndpointState
    from policies.facts import ReportedLoad
    from policies.routing.router import Router

BODY_LIMIT: Final = 65_536
"""Bytes of a response that are read so that the connection can be kept; a longer one closes its connection."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Configuration of load probes. `path`: target of the GET, None: no probes. `timeout`: seconds from before the
    connect to the last byte. `most`: maximum number of probes in flight."""

    path: str | None = None
    timeout: float = 1.0
    most: int = 100


@dataclass(slots=True)
class ProbeCounts:
    """Totals since the start. Of the probes `sent`, some were `answered` with a load, `silent` (a response without a
    load report) or `failed`. `skipped`: requested by the policy and not sent."""

    sent: int = 0
    answered: int = 0
    silent: int = 0
    failed: int = 0
    skipped: int = 0


class LoadProbes:
    """All load probes of the balancer. `under_way`: probes in flight by endpoint id."""

    def __init__(self, router: Router, pools: Pools, now: Callable[[], float]) -> None:
        self.plan = ProbePlan()
        self.counts = ProbeCounts()
        self.under_way: dict[str, LoadProbe] = {}
        self._router = router
        self._pools = pools
        self.now = now

    def apply(self, plan: ProbePlan) -> None:
        """Apply a configuration; a path of None turns probes off."""
        self.plan = plan
        self._router.on_probe = self.ask if plan.path is not None else None

    def ask(self, state: EndpointState) -> None:
        """Request a probe of an endpoint, on behalf of the policy. Called while a request is being routed, so sending
        is deferred to the next loop iteration."""
        if state.id in self.under_way or len(self.under_way) >= self.plan.most:
            self.counts.skipped += 1
            return
        probe = self.under_way[state.id] = LoadProbe(self, state)
        asyncio.get_running_loop().call_soon(self._send, probe)

    def _send(self, probe: LoadProbe) -> None:
        """Send the probe: the triggering request has leased its connection by now, so any idle connection is free to
        use."""
        pool = self._pools.by_id.get(probe.state.id)
        if pool is None or probe.is_over:
            probe.end(None)
            return
        self.counts.sent += 1
        probe.begin(pool)

    def sweep(self, now: float) -> None:
        """Fail probes that have timed out."""
        for probe in list(self.under_way.values()):
            if now - probe.asked_at >= self.plan.timeout:
                probe.fail()

    def stop(self) -> None:
        """Send no more probes and cancel those in flight."""
        self._router.on_probe = None
        for probe in list(self.under_way.values()):
            probe.end(None)

    def answered(self, probe: LoadProbe, load: ReportedLoad | None) -> None:
        """Report a probe's result to the router. `load`: None if the response has no load report."""
        if load is None:
            self.counts.silent += 1
            return
        self.counts.answered += 1
        now = self.now()
        self._router.probed(probe.state, load, now - probe.sent_at, now)


class LoadProbe:
    """One load probe: a `LeaseWaiter`, then the sink of one response. Times in seconds."""

    def __init__(self, probes: LoadProbes, state: EndpointState) -> None:
        self._probes = probes
        self._pool: Pool | None = None
        self._upstream: UpstreamRequest | None = None
        self._is_fresh = False  # the connection was opened for this probe
        self._load: ReportedLoad | None = None
        self._size = 0
        self.state = state
        self.asked_at = self.sent_at = probes.now()
        self.is_over = False

    def begin(self, pool: Pool) -> None:
        """Send the probe over an idle connection, or open one."""
        self._pool = pool
        upstream = pool.lease_quiet()
        if upstream is None:
            self._open(pool)
        else:
            self._send(upstream)

    def _open(self, pool: Pool) -> None:
        self._is_fresh = True
        pool.open(self)

    def _send(self, upstream: UpstreamRequest) -> None:
        self._upstream = upstream
        self.sent_at = self._probes.now()
        url = urlsplit(self.state.endpoint.address)
        head = (
            f"GET {self._probes.plan.path} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            "User-Agent: steelyard-load-probe\r\nAccept: */*\r\n\r\n"
        )
        upstream.send(head.encode(), self, b"GET")

    def fail(self) -> None:
        """Count the probe as failed and end it."""
        if not self.is_over:
            self._probes.counts.failed += 1
            self.end(None)

    def end(self, kept: UpstreamRequest | None) -> None:
        """End the probe. `kept`: its connection if it can be reused, which is then released; else it is closed."""
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

    # --- LeaseWaiter

    def connected(self, upstream: UpstreamRequest) -> None:
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
        """Do nothing: more of the response, or the timeout, will follow."""

    def response_ended(self, trailers: bytes) -> None:
        self._answered()

    def response_failed(self, error: UpstreamError) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        if not self._is_fresh and not self.is_over and self._pool is not None and not self._size:
            self._open(self._pool)  # retry: the worker may close an idle connection at any time
        else:
            self.fail()

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is written at once."""

    def upstream_resumed(self) -> None:
        """Do nothing: the request has no body to resume."""
