"""Call rules: what HTTP and gRPC judge differently of a request: its retries, timeouts, and how it has ended.

Each exchange has one such object. That of HTTP has no state, so all share it; an RPC has one of its own.

Only requests whose repetition has the same effect are sent again (RFC 9110 § 9.2.2). A request that no worker can have
received may be retried whatever its method, outside the retry budget, because it has caused no work; after a refused
connection every other endpoint may be tried. One that a worker may have received is retried only if it is idempotent,
and within the budget. One that a worker has refused as busy (`retry.busy`) may be, whatever its method: within the
budget, every other endpoint is tried.
"""

from __future__ import annotations

from math import inf
from typing import Final

from balancer.clients.client_usage import HELD_BY_BODY
from balancer.cluster.retry_rules import IDEMPOTENT, KEY_FIELD
from balancer.errors import (
    ConnectFailed,
    ConnectionBroken,
    ForwardingError,
    HeadTooLarge,
    MalformedResponse,
    ResponseTimeout,
    StreamRefused,
    UnsupportedByTransport,
    UpstreamError,
)
from balancer.exchange.attempt import MAY_BE_BUSY, Attempt
from balancer.exchange.exchange_state import AttemptState, ExchangeState
from balancer.http.grpc.call import GrpcCall
from balancer.http.grpc.status import OUTCOMES, UNAVAILABLE, code_of_http, forbids_retry, status_in
from balancer.http.h1.response_head import Response
from balancer.upstream.pool import Pool
from policies.facts import NONE_TRIED, OutcomeKind


def may_retry(exchange: ExchangeState, attempt: Attempt, error: UpstreamError) -> bool:
    """Return whether a failure can be retried (RFC 9110 § 9.2.2)."""
    if isinstance(error, ConnectFailed):
        if error.is_prompt:
            _leave_out_unreachable(exchange)
        if refuses_again(exchange, attempt, error):
            return take_another_try(exchange, attempt, needs_other=False, is_refused=True)
        is_refused = isinstance(error, StreamRefused)
        return _has_another_try(exchange, attempt, needs_other=False, is_refused=is_refused)
    if (
        error.needs_own and attempt.needs_own
    ):  # it has ended a connection of its own: it would end the next one
        return False
    if isinstance(error, HeadTooLarge):  # nothing was sent
        return _has_another_try(exchange, attempt, needs_other=True)
    if isinstance(error, MalformedResponse):  # the same endpoint would send the same
        return may_repeat(exchange, attempt, needs_other=True)
    return isinstance(error, ConnectionBroken) and may_repeat(exchange, attempt, needs_other=False)


def refuses_again(exchange: ExchangeState, attempt: Attempt, error: UpstreamError) -> bool:
    """Return whether an endpoint has refused the request unprocessed that has failed there before."""
    return isinstance(error, StreamRefused) and attempt.assignment.state.id in exchange.tried


def may_repeat(exchange: ExchangeState, attempt: Attempt, *, needs_other: bool) -> bool:
    """Return whether a request that a worker may have received can be retried; draws on the retry budget."""
    is_repeatable = exchange.rules.is_repeatable(exchange)
    return is_repeatable and take_another_try(exchange, attempt, needs_other=needs_other)


def take_another_try(
    exchange: ExchangeState, attempt: Attempt, *, needs_other: bool, is_refused: bool = False
) -> bool:
    """Return whether another attempt is possible and within the retry budget, which it is then charged to."""
    cluster = exchange.cluster
    has_another_try = _has_another_try(exchange, attempt, needs_other=needs_other, is_refused=is_refused)
    return has_another_try and cluster.retries.budget.take(cluster.counts.requests, cluster.now())


def _leave_out_unreachable(exchange: ExchangeState) -> None:
    """Count endpoints that connects back off from as tried: the request would fail there without a connect.

    Otherwise each request would fail at all of them, one after another, where a thousand are dead.
    """
    pools = exchange.cluster.pools.by_id
    exchange.tried |= {
        state.id for state in exchange.cluster.router.available if pools[state.id].is_backing_off
    }


def _has_another_try(
    exchange: ExchangeState, attempt: Attempt, *, needs_other: bool, is_refused: bool = False
) -> bool:
    """Return whether another attempt is possible, and in time. Its body must not have been dropped. A request that
    `is_refused` unprocessed may go to the same endpoints again.

    A failed attempt is settled before, so its place is free and health knows of it; one that goes on where no other
    follows (a status, a busy answer, `timeouts.attempt`) is still in flight.
    """
    cluster, body, state = exchange.cluster, exchange.body_buffer, attempt.assignment.state
    if (body is not None and body.is_spent) or exchange.is_late:
        return False
    return cluster.router.has_another_try(
        cluster.retries.limit,
        exchange.attempts,
        exchange.unsent,
        NONE_TRIED if is_refused else exchange.tried | {state.id},
        needs_other=needs_other,
    )


CONNECTING: Final = AttemptState.CONNECTING
SENT: Final = AttemptState.SENT
STREAMING: Final = AttemptState.STREAMING
BUFFERING: Final = AttemptState.BUFFERING


class HttpRules:
    """Rules of HTTP; those of another kind of call differ where they override them."""

    is_rpc = False
    """Whether the methods about heads and ends are to be called: HTTP needs them for statuses from `LEAST_BUSY` on."""

    @property
    def deadline(self) -> float:
        """Instant at which the client stops waiting."""
        return inf

    def attempted(self, pool: Pool) -> UpstreamError | None:
        """Note that an attempt begins, for an upstream of `pool`; return an error if that carries no such call."""
        return None

    def head_for_worker(self, head: bytes, now: float) -> bytes:
        """Return the head that is sent at `now`."""
        return head

    # --- retries

    def is_repeatable(self, exchange: ExchangeState) -> bool:
        """Return whether repeating the request has the same effect. Called only after a failure."""
        request = exchange.request
        if request.method in IDEMPOTENT:
            return True
        return exchange.cluster.retries.config.idempotency_key and KEY_FIELD in request.head.lower()

    def retries(
        self, exchange: ExchangeState, attempt: Attempt, response: Response, *, is_whole: bool
    ) -> bool:
        """Send a request whose response is a failure to another endpoint, where that is safe; return whether it goes
        there. `is_whole`: the response has come with its body."""
        if attempt.is_refused(response):
            return self._retries_busy(exchange, attempt, response, is_whole=is_whole)
        is_failure = response.status in exchange.cluster.retries.config.statuses
        if not is_failure or not may_repeat(exchange, attempt, needs_other=True):
            return False
        attempt.status = response.status
        exchange.repeat(attempt, OutcomeKind.ERROR_STATUS, is_clean=is_whole and exchange.is_complete)
        return True

    def _retries_busy(
        self, exchange: ExchangeState, attempt: Attempt, response: Response, *, is_whole: bool
    ) -> bool:
        """Send a request that was refused unprocessed to another endpoint, whatever its method: to each, whatever
        `retries` is above 0, those that rest last."""
        exchange.unsent += 1
        if not take_another_try(exchange, attempt, needs_other=True):
            return False
        attempt.status, upstream = response.status, attempt.upstream
        is_taken = upstream is not None and not upstream.unsent  # what was refused early need not be read
        exchange.repeat(attempt, OutcomeKind.BUSY, is_clean=is_whole and exchange.is_complete and is_taken)
        return True

    # --- timeouts

    def check(self, exchange: ExchangeState, attempt: Attempt, now: float) -> None:
        """Enforce the timeouts of the worker; `now` is the cached time."""
        timeouts, waited = exchange.cluster.timeouts, now - exchange.active_at
        if attempt.state is SENT:
            if exchange.is_complete and waited > timeouts.first_byte:
                self._time_out(exchange, attempt, f"no response within {timeouts.first_byte:g} s")
            elif exchange.is_complete and timeouts.attempt is not None and waited > timeouts.attempt:
                exchange.attempt_timed_out(attempt)
            elif exchange.downstream.is_held & HELD_BY_BODY and attempt.is_stalled(exchange, now):
                detail = f"the worker took nothing of the body for {timeouts.body_idle:g} s"
                self._time_out(exchange, attempt, detail)
        elif attempt.state is STREAMING or attempt.state is BUFFERING:
            if attempt.state is BUFFERING and waited > 0:
                attempt.stop_buffering(exchange)
            if waited > timeouts.body_idle and not exchange.downstream.is_write_paused:
                self._time_out(exchange, attempt, f"the response stalled for {timeouts.body_idle:g} s")

    def _time_out(self, exchange: ExchangeState, attempt: Attempt, detail: str) -> None:
        exchange.attempt_failed(attempt, ResponseTimeout(detail))

    # --- ends

    def failed(self, error: ForwardingError) -> None:
        """Note the error that ends an attempt."""

    def ended(self, attempt: Attempt, trailers: bytes) -> None:
        """Note that the response has ended; `trailers` is a block of fields or b""."""


HTTP: Final = HttpRules()


class RpcRules(HttpRules):
    """Rules of an RPC of gRPC: it has a status of its own, behind the body, and may be silent for long."""

    is_rpc = True

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._code = -1  # the worker's grpc-status, -1 while there is none

    @property
    def deadline(self) -> float:
        return self._call.deadline

    def attempted(self, pool: Pool) -> UpstreamError | None:
        self._code = -1
        self._call.fault = None
        if pool.carries_rpcs:
            return None
        detail = f'gRPC needs an endpoint with transport = "http2"; {pool.endpoint.id} has another one'
        return UnsupportedByTransport(detail)

    def head_for_worker(self, head: bytes, now: float) -> bytes:
        return self._call.shortened(head, now)

    # --- retries

    def is_repeatable(self, exchange: ExchangeState) -> bool:
        """As for HTTP; a broken connection is UNAVAILABLE to gRPC."""
        return UNAVAILABLE in exchange.cluster.retries.grpc_statuses or super().is_repeatable(exchange)

    def retries(
        self, exchange: ExchangeState, attempt: Attempt, response: Response, *, is_whole: bool
    ) -> bool:
        """As for HTTP, but by the grpc-status of a response without messages, if it has one."""
        code = status_in(response.block) if response.status >= 200 else None
        if code is not None:
            self._code = code
            attempt.stated = OUTCOMES.get(code) if response.status == 200 else None
            statuses = exchange.cluster.retries.grpc_statuses
            is_repeatable = code in statuses or (code == UNAVAILABLE and self.is_repeatable(exchange))
            if (
                is_repeatable
                and not forbids_retry(response.block)
                and take_another_try(exchange, attempt, needs_other=True)
            ):
                attempt.status = response.status
                exchange.repeat(attempt, OutcomeKind.OK, is_clean=False)
                return True
        return response.status >= MAY_BE_BUSY and super().retries(
            exchange, attempt, response, is_whole=is_whole
        )

    # --- timeouts

    def check(self, exchange: ExchangeState, attempt: Attempt, now: float) -> None:
        """A stream may be silent, so only the first byte of an RPC without a deadline has a timeout of seconds. A
        connect has its own."""
        if attempt.state is SENT and exchange.is_complete and self.deadline == inf:
            super().check(exchange, attempt, now)
        elif attempt.state is not CONNECTING:
            idle = exchange.cluster.timeouts.tunnel_idle
            if now - exchange.active_at > idle and not exchange.downstream.is_write_paused:
                self._time_out(exchange, attempt, f"no message in either direction for {idle:g} s")

    # --- ends

    def failed(self, error: ForwardingError) -> None:
        self._call.fault = error

    def ended(self, attempt: Attempt, trailers: bytes) -> None:
        """Note the status of the RPC; without a grpc-status it is what the HTTP status means."""
        code = status_in(trailers) if self._code < 0 else self._code
        if code is None:
            code = code_of_http(attempt.status)
        self._code = code
        self._call.ended(code)
        attempt.stated = OUTCOMES.get(code) if attempt.status == 200 else None
