"""Detection of clients that disconnect while reading from them is paused.

Asks the kernel, in one system call per sweep, about paused connections only: the event loop reports a reset of the
others. A FIN is not a disconnect: a client may half-close and still read (RFC 9112 § 9.6), and the loop finds the FIN
in order, after the bytes before it. An interim response to a client that has sent its FIN shows which it is: a closed
one answers with a reset (`Exchange.check`).
"""

from __future__ import annotations

import select
from collections.abc import Iterable

from balancer.clients.client_connection import ClientConnection


def disconnected(downstreams: Iterable[ClientConnection]) -> list[ClientConnection]:
    """Return the connections that the client has reset."""
    ignore_start = {}
    for downstream in downstreams:
        transport = downstream.transport
        if not (transport.is_reading() or transport.is_closing()):
            ignore_start[transport.get_extra_info("socket").fileno()] = downstream
    if not ignore_start or not hasattr(select, "poll"):  # Windows
        return []
    looked_at = select.poll()
    for descriptor in ignore_start:
        looked_at.register(descriptor, 0)  # poll() always reports errors and hang-ups
    return [ignore_start[descriptor] for descriptor, _ in looked_at.poll(0)]
