"""Bounds of one client on the path of a request: what it counts for, and when it is refused (`client_usage.py`)."""

from __future__ import annotations

from typing import Final

from balancer.clients.client_usage import ClientUsage, PendingBytes
from balancer.errors import BytesExhausted, ForwardingError, TooManyRequests
from balancer.exchange.exchange_state import ExchangeState
from balancer.rate_limits.request_source import client_of

LARGE_HEAD: Final = 4096
"""Bytes of a request head from which it is charged while its request is in flight, too. A smaller one takes less than
the connection to the worker."""

FREE_BODY: Final = 16_384
"""Bytes of a body that are not charged while its request is being sent: it lasts until a connection is open."""

REQUEST_SIZE: Final = 4096
"""Bytes that a request takes beside its head and body."""


def refusal(exchange: ExchangeState, usage: ClientUsage, limit: int) -> ForwardingError | None:
    """Return the error for a request that is more than its client may have. An offer and a large head are counted."""
    request, cluster = exchange.request, exchange.cluster
    is_offer = request.fields.is_offer
    usage.tunnels += is_offer
    if usage.requests > limit and not exchange.downstream.client.is_trusted:
        return TooManyRequests(f"{limit} requests of this client are not answered yet")
    if is_offer and usage.tunnels > 1 and not cluster.pools.leaves_room(usage.tunnels):
        return TooManyRequests(f"{usage.tunnels - 1} tunnels of this client leave no room for more")
    return bytes_exhausted() if len(request.raw) > LARGE_HEAD and not charge(exchange) else None


def charge(exchange: ExchangeState) -> bool:
    """Charge the bytes that a request takes, with its body. Returns False if they are beyond the bound of the process
    or of the client."""
    pending = exchange.pending
    if pending is None:
        cluster, client = exchange.cluster, exchange.downstream.client
        network = client_of(exchange.request, client, cluster.trusts)
        pending = exchange.pending = PendingBytes(cluster.process.usages, network)
    body = exchange.body_buffer
    size = _size(exchange)
    return pending.resize(size if body is None or exchange.kept is not None else size + body.size)


def sent(exchange: ExchangeState) -> None:
    """Note that the body, as far as it has come, was sent: what is charged from now on is a large head."""
    pending = exchange.pending
    if pending is None:
        return
    if len(exchange.request.raw) > LARGE_HEAD:
        pending.resize(min(pending.size, _size(exchange)))
    else:
        exchange.pending = None
        pending.close()


def count_out(exchange: ExchangeState) -> None:
    """Give back what a request took of its client's bounds."""
    usage = exchange.usage
    if usage is not None:
        exchange.usage = None
        usage.requests -= 1
        usage.tunnels -= exchange.request.fields.is_offer
    if exchange.pending is not None:
        uncharge(exchange)


def uncharge(exchange: ExchangeState) -> None:
    """Give back the bytes of a request, whose head and body are not needed any more."""
    pending, exchange.pending = exchange.pending, None
    if pending is not None:
        pending.close()
        exchange.request.unshelve()


def bytes_exhausted() -> BytesExhausted:
    """Return the error for a request whose bytes are beyond the bound."""
    return BytesExhausted("requests that wait take all the memory that this client may use")


def _size(exchange: ExchangeState) -> int:
    return REQUEST_SIZE + 2 * len(exchange.request.raw)  # the head for the worker is as long
