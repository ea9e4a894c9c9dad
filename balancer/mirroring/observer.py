"""Observer of a request that is copied: the copy gets what passes, and learns how the original ended."""

from __future__ import annotations

from balancer.errors import ForwardingError
from balancer.exchange.exchange_state import ExchangeState
from balancer.exchange.observers import ExchangeObserver
from balancer.log.formats import fault_of
from balancer.mirroring.mirror import RequestCopy


class MirrorObserver(ExchangeObserver):
    """Feeds `copy`, which is sent once the whole request has been forwarded.

    With `needs_grant` it is not sent before the original is authorised, and then with the fields that this gave it.
    """

    def __init__(self, copy: RequestCopy, *, needs_grant: bool) -> None:
        self._copy = copy
        self._needs_grant = needs_grant
        self._is_whole = False

    def started(self, exchange: ExchangeState) -> None:
        if not exchange.request.fields.has_body:
            self._whole()

    def body_came(self, exchange: ExchangeState, data: bytes) -> None:
        self._copy.request_body(data)

    def request_came(self, exchange: ExchangeState, trailers: bytes) -> None:
        self._copy.request_ended(trailers)
        self._whole()

    def _whole(self) -> None:
        self._is_whole = True
        if not self._needs_grant:
            self._copy.send_soon()

    def picking(self, exchange: ExchangeState) -> None:
        """An endpoint is picked for authorised requests only."""
        if self._needs_grant:
            self._needs_grant = False
            if self._is_whole:
                self._copy.send_soon()

    def on_end(self, exchange: ExchangeState, error: ForwardingError | None) -> None:
        """Note the response that the client got: none if its connection ended, or if the response was cut."""
        if self._needs_grant:
            self._copy.not_authorised()
        attempt, fault = exchange.last_attempt, fault_of(error)
        status = 0 if attempt is None else attempt.status
        if fault is None and attempt is not None and attempt.first_byte_at is not None:
            self._copy.original_answered(status, attempt.first_byte_at)
        elif fault is not None and not status and fault.is_sent:
            self._copy.original_answered(fault.status, exchange.cluster.now())
        self._copy.original_ended()
