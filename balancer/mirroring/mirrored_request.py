"""Handler of a request that is copied: the exchange does all of it, and the copy gets what passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from balancer.errors import ConnectionCut, ForwardingError
    from balancer.exchange.exchange import Exchange
    from balancer.log.formats import Entry
    from balancer.mirroring.request_copy import RequestCopy


class MirroredRequest:
    """The handler of `exchange` that also feeds `copy`, which is sent once the whole request has been forwarded."""

    def __init__(self, exchange: Exchange, copy: RequestCopy) -> None:
        self._exchange = exchange
        self._copy = copy

    @property
    def head(self) -> bytes:
        """Return the request head as received."""
        return self._exchange.head

    def start(self) -> None:
        self._exchange.start()
        if not self._exchange.request.fields.has_body:
            self._copy.send_soon()

    def request_body(self, data: bytes) -> None:
        self._exchange.request_body(data)
        self._copy.request_body(data)

    def request_ended(self, trailers: bytes) -> None:
        self._copy.request_ended(trailers)  # first: the exchange may end now
        self._exchange.request_ended(trailers)
        self._copy.send_soon()

    def pause_response(self) -> None:
        self._exchange.pause_response()

    def resume_response(self) -> None:
        self._exchange.resume_response()

    def abandon(self, error: ConnectionCut) -> None:
        self._exchange.abandon(error)

    def reject(self, error: ForwardingError) -> None:
        self._exchange.reject(error)

    def check(self, now: float) -> None:
        self._exchange.check(now)


class OriginalEnd:
    """Journal of one request that is copied: tells `copy` how the original ended."""

    def __init__(self, copy: RequestCopy) -> None:
        self._copy = copy

    def takes(self, status: int, error: ForwardingError | None) -> bool:
        """Return True."""
        return True

    def add(self, entry: Entry) -> None:
        """Note the response that the client got: none if its connection ended, or if the response was cut."""
        fault, head_at = entry.fault, entry.first_byte_at
        if fault is None and head_at is not None:
            self._copy.original_answered(entry.status, head_at)
        elif fault is not None and not entry.status and fault.is_sent:
            self._copy.original_answered(fault.status, entry.ended_at)
        self._copy.original_ended()
