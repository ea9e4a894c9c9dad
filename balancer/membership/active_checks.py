"""Active checks: periodic health check requests to each endpoint, over its pool's connections.

They are driven by the sweep, without tasks or timers, so a check may be a quarter of a second late. A check bypasses
the router and the request counters.

Without a path no request is sent. Only an endpoint that was ejected because connects failed is then checked, by
connecting; that connection stays in the pool for the first request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

from balancer.errors import ConnectFailed, UpstreamError
from balancer.http1.response_head import Response
from balancer.upstream.pool import Pool
from balancer.upstream.pools import Pools
from balancer.upstream.request import UpstreamRequest
from policies.endpoint.state import EndpointState
from policies.facts import AdminState, Endpoint, OutcomeKind
from policies.health.active_checks import CheckRules, Verdict
from policies.routing.router import Router

BODY_LIMIT = 65_536
"""Bytes of a response that are read so that the connection can be kept; a longer one closes its connection."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Configuration of active checks.

    `path`: target of the GET, None: only connect, and only to unreachable endpoints. `status`: expected status, None:
    any from 200 to 399. `timeout`: seconds from before the connect to the last byte. `seed`: seed of the jitter, None:
    random.
    """

    path: str | None = None
    status: int | None = None
    timeout: float = 1.0
    rules: CheckRules = field(default_factory=CheckRules)
    seed: int | None = None

    def request(self, endpoint: Endpoint) -> bytes:
        """Check request to `endpoint`, as bytes of HTTP/1.1."""
        return (
            f"GET {self.path} HTTP/1.1\r\nHost: {urlsplit(endpoint.address).netloc}\r\n"
            "User-Agent: steelyard-check\r\nAccept: */*\r\n\r\n"
        ).encode()

    def fault_of(self, status: int) -> str | None:
        """Fault in a response with this status, None if it passes."""
        is_good = 200 <= status < 400 if self.status is None else status == self.status
        return None if is_good else f"status {status}"


class Watch:
    """Verdict on one endpoint, and its check in flight."""

    def __init__(self, endpoint: Endpoint, verdict: Verdict) -> None:
        self.endpoint = endpoint
        self.verdict = verdict
        self.check: Check | None = None  # in flight


class Checks:
    """Active checks of all endpoints, run by the sweep."""

    def __init__(self, router: Router, pools: Pools, plan: CheckPlan) -> None:
        self.plan = plan
        self.by_id: dict[str, Watch] = {}
        self._router = router
        self._pools = pools
        self._rng = Random(plan.seed)
        self._is_stopped = False

    def sweep(self, now: float) -> None:
        """End checks that have timed out and start those that are due at `now`."""
        states = self._router.states
        if self.plan.path is None:
            states = [state for state in states if state.record.is_unreachable or state.id in self.by_id]
        for state in states:
            watch = self._watch(state, now)
            if watch.check is not None:
                watch.check.end_if_overdue(now)
            elif not self._is_stopped and self._is_due(state, watch, now):
                watch.check = Check(self, watch, self._pools.by_id[state.id], now)
                watch.check.begin(needs_fresh=self.plan.path is None or state.record.is_unreachable)
        if len(self.by_id) > len(states):
            self._forget({state.id for state in states})

    def update(self) -> None:
        """Drop the check state of endpoints that were removed or changed their address."""
        addresses = {state.id: state.endpoint.address for state in self._router.states}
        self._forget(
            {id_ for id_, watch in self.by_id.items() if addresses.get(id_) == watch.endpoint.address}
        )

    def update_one(self, endpoint_id: str, address: str | None) -> None:
        """Drop the check state of one endpoint if its address has changed. `address`: None if the endpoint was
        removed."""
        watch = self.by_id.get(endpoint_id)
        if watch is not None and watch.endpoint.address != address:
            self._drop(endpoint_id)

    def apply(self, plan: CheckPlan) -> None:
        """Apply a configuration. Verdicts are kept, unless it turns checks off: then all endpoints become healthy."""
        self.plan = plan
        for watch in self.by_id.values():
            watch.verdict.rules = plan.rules
        for state in self._router.states if plan.path is None else ():
            self.by_id.pop(state.id, None)
            if not state.passes_checks:
                self._router.set_healthy(state.id, True)

    def stop(self) -> None:
        """Start no more checks and cancel those in flight."""
        self._is_stopped = True
        for watch in self.by_id.values():
            if watch.check is not None:
                watch.check.give_up()

    def ended(self, watch: Watch, fault: str | None, *, is_reachable: bool, now: float) -> None:
        """Record the result of a check. `fault`: what was wrong, None if it passed."""
        watch.check = None
        if self.by_id.get(watch.endpoint.id) is not watch:  # removed, or under another address
            return
        has_changed = watch.verdict.record(fault, now)
        endpoint_id = watch.endpoint.id
        if self.plan.path is not None:
            self._tell(endpoint_id, watch.verdict, has_changed, is_reachable)
        if fault is None:
            self._router.readmit(endpoint_id)

    def _tell(self, endpoint_id: str, verdict: Verdict, has_changed: bool, is_reachable: bool) -> None:
        """Report a changed verdict or reachability to the router."""
        is_told = verdict.is_healthy or self._router.find(endpoint_id).is_reachable == is_reachable
        if has_changed or not is_told:
            self._router.set_healthy(endpoint_id, verdict.is_healthy, is_reachable=is_reachable)

    def _is_due(self, state: EndpointState, watch: Watch, now: float) -> bool:
        if state.admin_state is AdminState.MAINTENANCE:
            return False
        if state.record.is_unreachable:
            watch.verdict.check_soon(now)
        elif self.plan.path is None:
            return False
        return now >= watch.verdict.due_at

    def _watch(self, state: EndpointState, now: float) -> Watch:
        watch = self.by_id.get(state.id)
        if watch is None or watch.endpoint.address != state.endpoint.address:
            if watch is not None and watch.check is not None:
                watch.check.give_up()
            verdict = Verdict(self.plan.rules, self._rng, now)
            watch = self.by_id[state.id] = Watch(state.endpoint, verdict)
        return watch

    def _forget(self, known: set[str]) -> None:
        for gone in self.by_id.keys() - known:
            self._drop(gone)

    def _drop(self, endpoint_id: str) -> None:
        watch = self.by_id.pop(endpoint_id)
        if watch.check is not None:
            watch.check.give_up()


class Check:
    """One active check: a `LeaseWaiter`, then the sink of one response."""

    def __init__(self, checks: Checks, watch: Watch, pool: Pool, now: float) -> None:
        self._checks = checks
        self._watch = watch
        self._pool = pool
        self._plan = checks.plan
        self._deadline = now + checks.plan.timeout
        self._now = now  # cached time
        self._upstream: UpstreamRequest | None = None
        self._is_fresh = False  # the connection was opened for this check
        self._is_over = False
        self._status = 0
        self._size = 0

    def begin(self, *, needs_fresh: bool) -> None:
        """Send the check over an idle connection, or open one. `needs_fresh`: test that connecting works."""
        upstream = None if needs_fresh else self._pool.lease_quiet()
        if upstream is None:
            self._open()
        else:
            self._send(upstream)

    def end_if_overdue(self, now: float) -> None:
        """Fail the check if it has timed out at `now`."""
        self._now = now
        if now < self._deadline:
            return
        is_connected = self._upstream is not None
        what = "answer" if is_connected else "connection"
        self._end(f"no {what} within {self._plan.timeout:g} s", is_reachable=is_connected)

    def give_up(self) -> None:
        """Cancel the check without a result."""
        self._is_over = True
        self._watch.check = None
        self._part(is_clean=False)

    def _open(self) -> None:
        self._is_fresh = True
        self._pool.open(self, is_trial=True)

    def _send(self, upstream: UpstreamRequest) -> None:
        self._upstream = upstream
        upstream.send(self._plan.request(self._watch.endpoint), self, b"GET")

    def _end(self, fault: str | None, *, is_reachable: bool = True, is_clean: bool = False) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._part(is_clean=is_clean)
        self._checks.ended(self._watch, fault, is_reachable=is_reachable, now=self._now)

    def _part(self, *, is_clean: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        if is_clean:
            upstream.release()
        else:
            upstream.close()

    # --- LeaseWaiter

    def connected(self, upstream: UpstreamRequest) -> None:
        if self._is_over:
            upstream.release()
        elif self._plan.path is None:
            self._upstream = upstream
            self._end(None, is_clean=True)
        else:
            self._send(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        self._end(f"no connection: {error.inside}", is_reachable=False)

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        self._end(self._plan.fault_of(response.status), is_clean=True)

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self._end("status 101")
        elif response.status >= 200:
            self._status = response.status

    def response_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > BODY_LIMIT:
            self._end(self._plan.fault_of(self._status))

    def response_paused(self) -> None:
        """Do nothing: more of the response, or the timeout, will follow."""

    def response_ended(self, trailers: bytes) -> None:
        self._end(self._plan.fault_of(self._status), is_clean=True)

    def response_failed(self, error: UpstreamError) -> None:
        self._part(is_clean=False)
        if error.outcome is OutcomeKind.REFUSED:  # from a transport that connects by itself
            self._end(f"no connection: {error}", is_reachable=False)
        elif self._is_fresh or self._status:
            self._end(f"{error.reason}: {error}")
        elif not self._is_over:
            self._open()  # retry: the worker may close an idle connection at any time

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is written at once."""

    def upstream_resumed(self) -> None:
        """Do nothing: the request has no body to resume."""
