"""Load probes: out-of-band requests by which a routing policy asks workers for their load.

No request waits for a load probe. A probe is sent after the request that triggered it, over an idle connection or a new
one that the pool keeps, one at a time per endpoint and at most `max_in_flight` in all. Probes beyond these bounds are
skipped and counted. A worker answers with the fields of `http/h1/load_report.py` on any response, so `path` should be
cheap for it; an inference server with its metrics (`engine_metrics.py`).

    policy.probes(now) -> router.on_probe(state) -> InternalRequest -> router.probed(...) -> policy.observe_probe(...)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from balancer.config.schema.sections import LoadProbesConfig
from balancer.http.h1.load_report import LoadReports
from balancer.http.h1.response_head import Response
from balancer.upstream.engine_metrics import SIZE_LIMIT, load_of
from balancer.upstream.internal_request import BODY_LIMIT, InternalRequest, InternalResult, internal_head
from balancer.upstream.pools import Pools
from policies.endpoint.state import EndpointState
from policies.facts import ReportedLoad
from policies.routing.router import Router


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
    """All load probes of the balancer. `under_way`: probes in flight by endpoint id, None: not sent yet."""

    def __init__(self, router: Router, pools: Pools, now: Callable[[], float], reports: LoadReports) -> None:
        self.counts = ProbeCounts()
        self.under_way: dict[str, InternalRequest | None] = {}
        self._router = router
        self._pools = pools
        self._now = now
        self._reports = reports
        self.apply(LoadProbesConfig())

    def apply(self, config: LoadProbesConfig) -> None:
        """Apply a configuration; a path of None turns probes off."""
        self._config = config
        self._router.on_probe = self.request if config.path is not None else None

    def request(self, state: EndpointState) -> None:
        """Request a probe of an endpoint, on behalf of the policy. Called while a request is being routed, so sending
        is deferred to the next loop iteration."""
        if state.id in self.under_way or len(self.under_way) >= self._config.max_in_flight:
            self.counts.skipped += 1
            return
        self.under_way[state.id] = None
        asyncio.get_running_loop().call_soon(self._send, state)

    def _send(self, state: EndpointState) -> None:
        """Send the probe: the triggering request has leased its connection by now, so any idle connection is free to
        use."""
        if state.id not in self.under_way:  # stopped
            return
        pool, config = self._pools.by_id.get(state.id), self._config
        if pool is None or config.path is None:  # removed, or turned off by a reload
            del self.under_way[state.id]
            return
        self.counts.sent += 1
        probe = self.under_way[state.id] = InternalRequest(
            internal_head(state.endpoint, config.path, "load-probe"),
            partial(self._ended, state),
            body_limit=SIZE_LIMIT if config.format == "metrics" else BODY_LIMIT,
            timeout=config.timeout,
            started_at=self._now(),
            clock=self._now,
        )
        probe.lease(pool)

    def sweep(self, now: float) -> None:
        """Fail probes that have timed out."""
        for probe in list(self.under_way.values()):
            if probe is not None:
                probe.end_if_overdue(now)

    def stop(self) -> None:
        """Send no more probes and cancel those in flight."""
        self._router.on_probe = None
        for probe in self.under_way.values():
            if probe is not None:
                probe.cancel()
        self.under_way.clear()

    def _ended(self, state: EndpointState, result: InternalResult) -> None:
        """Count a probe and report its load to the router."""
        del self.under_way[state.id]
        if result.error is not None or result.response is None:
            self.counts.failed += 1
        elif (load := self._load_of(result, result.response)) is None:
            self.counts.silent += 1
        else:
            self.counts.answered += 1
            self._router.probed(state, load, result.seconds, self._now())

    def _load_of(self, result: InternalResult, response: Response) -> ReportedLoad | None:
        if self._config.format == "fields":
            return self._reports.read(response.block)
        return load_of(result.body) if response.status == 200 else None
