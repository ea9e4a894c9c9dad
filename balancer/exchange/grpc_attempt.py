"""Attempt at an RPC: as any other on a stream, but with the outcome and the timeouts of gRPC."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from balancer.errors import ForwardingError, UnsupportedByTransport
from balancer.exchange.attempt import CONNECTING, OK, SENT, STREAMING, Attempt
from balancer.exchange.retries import take_another_try
from balancer.http.grpc.status import FAILURES, code_of_http, forbids_retry, status_in

if TYPE_CHECKING:
    from balancer.exchange.exchange import Exchange
    from balancer.http.grpc.call import GrpcCall
    from balancer.http.h1.response_head import Response
    from balancer.upstream.request import UpstreamRequest
    from policies.facts import Endpoint, OutcomeKind
    from policies.insight.canary import Canary
    from policies.routing.assignment import Assignment
    from policies.routing.router import Router


def no_http2(endpoint: Endpoint) -> UnsupportedByTransport:
    return UnsupportedByTransport(
        f'gRPC needs an endpoint with transport = "http2"; {endpoint.id} has another one'
    )


class GrpcAttempt(Attempt):
    """An attempt at an RPC. `code` is the worker's grpc-status, -1 while there is none."""

    is_call = True
    code = -1

    def __init__(
        self, exchange: Exchange, assignment: Assignment, canary: Canary | None, call: GrpcCall
    ) -> None:
        super().__init__(exchange, assignment, canary)
        self._call = call
        call.fault = None

    def _send(self, exchange: Exchange, upstream: UpstreamRequest) -> None:
        if self._call.deadline < inf:
            self.head = self._call.shortened(self.head or exchange.request.head, exchange.cluster.now())
        super()._send(exchange, upstream)

    # --- the response

    def response_whole(self, response: Response, body: bytes) -> None:
        if not self._is_retried(response):
            super().response_whole(response, body)

    def response_started(self, response: Response) -> None:
        if response.status < 200 or not self._is_retried(response):
            super().response_started(response)

    def _is_retried(self, response: Response) -> bool:
        """Note the status of a response without messages; return whether the RPC goes elsewhere."""
        code = status_in(response.block)
        if code is None:
            return False
        self.code = code
        exchange = cast("Exchange", self.exchange)
        is_retried = (
            exchange.cluster.retries.is_repeatable_after(exchange.request, code)
            and not forbids_retry(response.block)
            and take_another_try(exchange, self, needs_other=True)
        )
        if is_retried:
            self.status = response.status
            exchange.repeat(self, OK, is_clean=False)
        return is_retried

    def response_paused(self) -> None:
        super().response_paused()
        self._call.has_begun = self.state is STREAMING and not self._is_head_due

    def response_ended(self, trailers: bytes) -> None:
        if self.code < 0:
            code = status_in(trailers)
            self.code = -1 if code is None else code
        super().response_ended(trailers)

    def _note_end(self, status: int) -> None:
        """Note the status of the RPC; without a grpc-status it is what the HTTP status means."""
        if self.code < 0:
            self.code = code_of_http(status)
        self._call.ended(self.code)

    # --- timeouts

    def check(self, exchange: Exchange, now: float) -> None:
        """Enforce the timeouts of an RPC: a stream may be silent, so only the first byte of an RPC without a deadline
        has one of seconds. A connect has its own."""
        if self.state is CONNECTING:
            return
        if self.state is SENT and exchange.is_complete and self._call.deadline == inf:
            super().check(exchange, now)
            return
        idle = exchange.cluster.timeouts.tunnel_idle
        if now - exchange.active_at > idle and not exchange.downstream.is_write_paused:
            self._time_out(exchange, f"no message in either direction for {idle:g} s")

    # --- ends

    def failed(self, error: ForwardingError) -> None:
        self._call.fault = error
        super().failed(error)

    def _outcome_status(self) -> int | None:
        failure = FAILURES.get(self.code) if self.status == 200 else None
        return super()._outcome_status() if failure is None else failure[1]

    def settle(self, router: Router, kind: OutcomeKind, now: float, bytes_in: int = 0) -> None:
        if kind is OK and self.status == 200:
            failure = FAILURES.get(self.code)
            if failure is not None:
                kind = failure[0]
        super().settle(router, kind, now, bytes_in)
