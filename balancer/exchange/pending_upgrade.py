"""Downstream connection with a pending upgrade.

Until the worker answers the upgrade offer, it is unknown whether the bytes behind such a request are the other
protocol's or HTTP. They are kept, and reading pauses: one read at most, or the window of a stream.

    Http1Connection ── PendingUpgrade ──┬── declined: Http1Connection again, fed with what came
                                             └── accepted: a Relay (`tunnel.py`), which passes on what came
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from balancer.clients.client_connection import HELD_BY_UPGRADE
from balancer.exchange.responder import Responder


class PendingUpgrade(asyncio.Protocol):
    """Protocol of a connection with a pending upgrade.

    `early` holds the bytes that followed the request; `has_ended`: the client has sent its FIN.
    """

    __slots__ = ("_resume", "downstream", "early", "has_ended")

    def __init__(self, downstream: Responder, resume: Callable[[bytes], None] | None, early: bytes) -> None:
        """`resume` resumes HTTP after a declined offer with the data that followed it; None for a stream, which has no
        further requests."""
        self._resume = resume
        self.downstream = downstream
        self.early = b""
        self.has_ended = False
        downstream.transport.set_protocol(self)
        if early:
            self.data_received(early)

    def take_over(self, rest: bytes, has_ended: bool) -> None:
        """Take over pipelined data that was not parsed: it may belong to either protocol."""
        if rest:
            self.data_received(rest)
        self.has_ended = has_ended

    def withdraw(self, stays: bool) -> bool:
        """End the pending upgrade after an HTTP response. Returns whether the connection stays open (`stays`)."""
        self.downstream.pending_upgrade = None
        if stays:
            # Deferred: offers declined at once would nest as deep as the client pipelines.
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self.downstream.transport.set_protocol(self.downstream)
        return stays

    def release(self) -> None:
        """Discard the kept bytes and resume reading."""
        self.early = b""
        self.downstream.unhold(HELD_BY_UPGRADE)

    def _go_on(self) -> None:
        downstream, early = self.downstream, self.early
        if self._resume is None or downstream.transport.is_closing():
            return
        downstream.transport.set_protocol(downstream)
        self._resume(early)
        self.release()
        if self.has_ended and not downstream.eof_received():
            downstream.transport.close()

    # --- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self.early += data
        self.downstream.hold(HELD_BY_UPGRADE)

    def eof_received(self) -> bool:
        self.has_ended = True
        return True

    def pause_writing(self) -> None:
        self.downstream.pause_writing()

    def resume_writing(self) -> None:
        self.downstream.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.downstream.connection_lost(error)
