"""Clients that have left while we were not reading from them.

Rule of this file: it asks the kernel, and only of connections whose reading is paused: a loop that watches for bytes
hears of a reset by itself. One system call for all of them, once in a sweep. A FIN is no departure: a client may close
its sending side and still read (RFC 9112 § 9.6), and the loop will find it where it stands, behind the bytes before it.
"""

from __future__ import annotations

import select
from collections.abc import Iterable

from balancer.downstream.connection import DownstreamConnection


def disconnected(downstreams: Iterable[DownstreamConnection]) -> list[DownstreamConnection]:
    """Those that were reset: whatever is sent to them now meets nobody."""
    ignore_start = {}
    for downstream in downstreams:
        transport = downstream.transport
        if not (transport.is_reading() or transport.is_closing()):
            ignore_start[transport.get_extra_info("socket").fileno()] = downstream
    if not ignore_start or not hasattr(select, "poll"):  # Windows
        return []
    looked_at = select.poll()
    for descriptor in ignore_start:
        looked_at.register(descriptor, 0)  # errors and hang-ups are told unasked
    return [ignore_start[descriptor] for descriptor, _ in looked_at.poll(0)]
