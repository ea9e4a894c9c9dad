"""Active checks: periodic health check requests to each endpoint, over its pool's connections.

They are driven by the sweep, without tasks or timers, so a check may be a quarter of a second late. A check bypasses
the router and the request counters.

Without a path or a service of gRPC no request is sent, and checks only connect: to an endpoint to which no connection
has been tried yet, and to those where connecting has failed or connections broke, until it succeeds. Without these
connects a balancer that is not ready, and therefore gets no requests, would never learn that its workers are back. One
of HTTP/1.1 is closed at once; one of HTTP/2, which serves many, stays in the pool.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from urllib.parse import urlsplit

from balancer.config.schema.health import HealthChecksConfig
from balancer.errors import UnsupportedByTransport
from balancer.http.grpc.health import check_fault, check_request
from balancer.upstream.internal_request import (
    BodyTooLong,
    InternalRequest,
    InternalResult,
    internal_head,
    own_host,
)
from balancer.upstream.pools import Pools
from policies.endpoint.state import EndpointState
from policies.facts import AdminState, Endpoint
from policies.health.active_checks import CheckRules, CheckState, has_passed
from policies.routing.router import Router

FIRST_AT_ONCE = 16
"""Maximum number of checks under way for a first connect to start: a thousand endpoints take 16 s."""


def rules_of(config: HealthChecksConfig) -> CheckRules:
    """Return when checks are due, and how many of them decide."""
    return CheckRules(config.interval, config.fast_interval, config.rise, config.fall)


def asks(config: HealthChecksConfig) -> bool:
    """Return whether a check is a request. Else checks only connect, to unreachable endpoints and, with
    `first_connect`, to new ones."""
    return config.path is not None or config.grpc is not None


def request_of(config: HealthChecksConfig, endpoint: Endpoint) -> tuple[bytes | None, bytes]:
    """Return head and body of a check request to `endpoint`; no head: only connect."""
    fields = {name: value.get_secret_value() for name, value in config.fields.items()}
    if config.grpc is not None:
        return check_request(config.host or own_host(endpoint), config.grpc, "check", fields)
    if config.path is None:
        return None, b""
    return internal_head(endpoint, config.path, "check", "GET", config.host, fields), b""


def fault_of(config: HealthChecksConfig, result: InternalResult) -> str | None:
    """Fault in the result of a check, None if it passes. A body that is too long is no fault."""
    if result.error is not None and not isinstance(result.error, BodyTooLong):
        return result.fault
    if config.grpc is not None:
        fields = (result.response.block if result.response is not None else b"") + result.trailers
        return check_fault(config.grpc, result.status, fields, result.body)
    if config.path is None:
        return None
    if not has_passed(result.status, config.status):
        return f"status {result.status}"
    wanted = config.body or ""
    return None if wanted.encode() in result.body else f"no {wanted!r} in the body"


def at_port(endpoint: Endpoint, port: int, scheme: str | None) -> Endpoint:
    """Return the endpoint with another port, and scheme unless that is None; one with a Unix socket as it is."""
    url = urlsplit(endpoint.address)
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return replace(endpoint, address=f"{scheme or url.scheme}://{host}:{port}") if host else endpoint


def transport_of(config: HealthChecksConfig) -> str:
    """Return the transport of checks at another port, whose server need not speak what the endpoint does."""
    return "native" if config.grpc is None else "http2"


class EndpointCheck:
    """Active check of one endpoint: its state, and the check request in flight."""

    def __init__(self, endpoint: Endpoint, state: CheckState) -> None:
        self.endpoint = endpoint
        self.state = state
        self.request: InternalRequest | None = None  # in flight

    def cancel(self) -> None:
        """Cancel the check in flight without a result."""
        if self.request is not None:
            self.request.cancel()
            self.request = None


class Checks:
    """Active checks of all endpoints, run by the sweep."""

    def __init__(self, router: Router, pools: Pools, config: HealthChecksConfig, seed: int | None) -> None:
        """`seed` is that of the jitter, None: random."""
        self._config = config
        self.by_id: dict[str, EndpointCheck] = {}
        self._router = router
        self._pools = pools
        self._rng = Random(seed)
        self._now = 0.0  # of the last sweep
        self._is_stopped = False

    def sweep(self, now: float) -> None:
        """End checks that have timed out and start those that are due at `now`."""
        self._now = now
        states = self._router.states
        if not asks(self._config):
            states = [state for state in states if state.id in self.by_id or self._needs_connect(state)]
        under_way = 0
        for state in states:
            check = self._check_of(state, now)
            if check.request is not None:
                check.request.end_if_overdue(now)
            elif not self._is_stopped and self._is_due(state, check, now, under_way):
                self._start(state, check, now)
            under_way += check.request is not None

    def update(self) -> None:
        """Drop the check state of endpoints that were removed or changed their address."""
        addresses = {state.id: state.endpoint.address for state in self._router.states}
        for endpoint_id in list(self.by_id):
            self.update_one(endpoint_id, addresses.get(endpoint_id))

    def update_one(self, endpoint_id: str, address: str | None) -> None:
        """Drop the check state of one endpoint if its address has changed. `address`: None if the endpoint was
        removed."""
        check = self.by_id.get(endpoint_id)
        if check is not None and check.endpoint.address != address:
            self._drop(endpoint_id)

    def apply(self, config: HealthChecksConfig) -> None:
        """Apply a configuration. States are kept, unless it turns checks off: then all endpoints become healthy."""
        self._config = config
        for check in self.by_id.values():
            check.state.rules = rules_of(config)
        if asks(config):
            return
        for endpoint_id in list(self.by_id):
            self._drop(endpoint_id)
        for state in self._router.states:
            if not state.passes_checks:
                self._router.set_healthy(state.id, True)

    def stop(self) -> None:
        """Start no more checks and cancel those in flight."""
        self._is_stopped = True
        for check in self.by_id.values():
            check.cancel()

    def _start(self, state: EndpointState, check: EndpointCheck, now: float) -> None:
        """Send a check. It opens a connection if it tests whether connecting works: if another port is asked, without
        a request."""
        config, pool, endpoint = self._config, self._pools.by_id[state.id], state.endpoint
        if config.port is not None and self._needs_connect(state):
            config = config.model_copy(update={"path": None, "grpc": None, "port": None})
        elif config.port is not None:
            endpoint = at_port(endpoint, config.port, config.scheme)
            is_there = endpoint is not state.endpoint
            pool = self._pools.aside(endpoint, transport_of(config) if is_there else pool.transport)
        on_end = partial(self._ended, check, config, state.record.count)
        if config.grpc is not None and not pool.carries_rpcs:
            error = UnsupportedByTransport('a check by gRPC needs transport = "http2"')
            on_end(InternalResult(error, str(error), None, 0.0))
            return
        head, body = request_of(config, endpoint)
        check.request = InternalRequest(
            head,
            on_end,
            body=body,
            method=b"GET" if config.grpc is None else b"POST",
            timeout=config.timeout,
            started_at=now,
        )
        needs_new = not asks(config) or state.record.ends_by_connect
        check.request.lease(pool, needs_new=needs_new, is_trial=True)

    def _needs_connect(self, state: EndpointState) -> bool:
        """Whether only a connect can show if the endpoint is reachable."""
        pool = self._pools.by_id[state.id]
        return (
            state.record.ends_by_connect
            or pool.is_unreachable
            or (self._config.first_connect and pool.is_untried)
        )

    def _ended(
        self, check: EndpointCheck, config: HealthChecksConfig, ejections: int, result: InternalResult
    ) -> None:
        """Record the result of a check that was sent under `config`, after so many ejections of the endpoint."""
        check.request = None
        fault, endpoint_id = fault_of(config, result), check.endpoint.id
        is_half = fault is None and asks(self._config) and not asks(config)  # a request must follow
        if not is_half:
            has_changed = check.state.record(fault, self._now)
            if asks(self._config):
                self._report(check, has_changed, config.port is not None or result.is_reachable)
        if fault is None and config.port is None and self._router.find(endpoint_id).record.count == ejections:
            self._router.readmit(endpoint_id, is_answered=asks(config))

    def _report(self, check: EndpointCheck, has_changed: bool, is_reachable: bool) -> None:
        """Report a changed state or reachability to the router."""
        endpoint_id, is_healthy = check.endpoint.id, check.state.is_healthy
        if not (has_changed or is_healthy):
            has_changed = self._router.find(endpoint_id).is_reachable != is_reachable
        if has_changed:
            self._router.set_healthy(endpoint_id, is_healthy, is_reachable=is_reachable)

    def _is_due(self, state: EndpointState, check: EndpointCheck, now: float, under_way: int) -> bool:
        pool = self._pools.by_id[state.id]
        if state.admin_state is AdminState.MAINTENANCE:
            return False
        if not asks(self._config) and pool.opening:  # a request connects already, and shows as much
            return False
        if not asks(self._config) and self._config.first_connect and pool.is_untried:
            return under_way < FIRST_AT_ONCE
        if state.record.ends_by_check(is_answered=asks(self._config)) or pool.is_unreachable:
            check.state.check_soon(now)
        elif not asks(self._config):
            return False
        return now >= check.state.due_at

    def _check_of(self, state: EndpointState, now: float) -> EndpointCheck:
        check = self.by_id.get(state.id)
        if check is None:
            check_state = CheckState(rules_of(self._config), self._rng, now)
            check = self.by_id[state.id] = EndpointCheck(state.endpoint, check_state)
        return check

    def _drop(self, endpoint_id: str) -> None:
        self.by_id.pop(endpoint_id).cancel()
