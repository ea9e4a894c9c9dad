"""Receive a request body whole before an endpoint is asked (state RECEIVING), where `[buffering]` turns that on.

`kept` of the exchange is its `KeptBody` from then on. A body that grows beyond what may be kept is streamed: an
endpoint is asked while the rest comes.
"""

from __future__ import annotations

import re
from typing import Final, cast

from balancer.config.schema.limits import BufferingLimits
from balancer.exchange.buffering import LARGE_BODY, KeptBody
from balancer.exchange.exchange_state import ExchangeState, State
from balancer.http.h1.fields import CHUNKED_LINE, without
from balancer.upstream.request import RequestBody

NEW: Final = State.NEW
RECEIVING: Final = State.RECEIVING

_EXPECT: Final = re.compile(rb"\n(?i:expect):")
_GRPC: Final = re.compile(rb"\n(?i:content-type):[ \t]*(?i:application/grpc)")


def receive_whole(exchange: ExchangeState) -> bool:
    """Begin to receive the whole body; return False if it is to be streamed.

    A client that waits for 100 (Continue) gets it here, since no worker is asked. A gRPC call is streamed: it may wait
    for parts of the response before it sends the rest of its body.
    """
    buffering, request = exchange.cluster.buffering, exchange.request
    if buffering is None or not buffering.request:
        return False
    if request.fields.length > buffering.request or _GRPC.search(request.head):
        return False
    return receive(exchange, buffering.request)


def receive(exchange: ExchangeState, most: int) -> bool:
    """Begin to receive a body of at most `most` bytes; return False if that is more than may be kept."""
    request, budget = exchange.request, exchange.cluster.process.buffer_budget
    kept = KeptBody(cast(RequestBody, exchange.body_buffer), most, budget)
    if not kept.fits:
        kept.free()
        return False
    exchange.body_buffer = exchange.kept = kept
    if _EXPECT.search(request.head):
        request.head = without([b"expect"], request.head)
        exchange.downstream.send_continue()
    exchange.state = RECEIVING
    exchange.cluster.receiving += 1
    exchange.downstream.unhold()
    return True


def came_whole(exchange: ExchangeState, body: RequestBody, buffering: BufferingLimits) -> None:
    """State the length of a body that came in one read; charge it if it is large and may be kept for a retry."""
    if body.size > buffering.request:
        return
    _state_length(exchange, body)
    if body.size > LARGE_BODY and body.may_be_sent_twice:
        budget = exchange.cluster.process.buffer_budget
        kept = KeptBody(body, buffering.request, budget)
        if kept.fits:
            exchange.body_buffer = exchange.kept = kept
        else:
            body.limit = kept.limit


def received_part(exchange: ExchangeState) -> None:
    """Ask an endpoint at once if the body is more than may be kept."""
    if not cast(KeptBody, exchange.kept).fits:
        _stop(exchange)
        exchange.attempt()


def received_whole(exchange: ExchangeState) -> None:
    """Ask an endpoint: the whole body is here."""
    kept = cast(KeptBody, exchange.kept)
    kept.charge.budget.requests += 1
    _state_length(exchange, kept)
    _stop(exchange)
    exchange.attempt()


def _state_length(exchange: ExchangeState, body: RequestBody) -> None:
    """State the length of a whole body instead of chunks: WSGI servers and HTTP/1.0 read no chunks (RFC 9112 § 6.1).
    Trailers need the chunks; a gRPC call stays as it came."""
    if body.is_chunked and not (body.trailers or exchange.rules.is_rpc):
        body.is_chunked, request = False, exchange.request
        request.head = request.head.replace(CHUNKED_LINE, b"\nContent-Length: %d\r" % body.size, 1)


def drop_body(exchange: ExchangeState, kept: KeptBody) -> None:
    """Give back everything: the exchange ends."""
    if exchange.state is RECEIVING:
        _stop(exchange)
    kept.free()


def _stop(exchange: ExchangeState) -> None:
    exchange.state = NEW
    exchange.cluster.receiving -= 1
