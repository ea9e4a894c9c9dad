"""A client's connection while its offer to go on in another protocol is out.

Rule of this file: nobody knows yet whose the bytes are that come behind such a request: the other protocol's, if the
worker takes the offer up, and HTTP's, if it declines. So they are kept, one read at most, and then not read.

    Downstream ── Offer ──┬── declined: Downstream again, and what came is fed to it
                          └── taken up: a Relay (`tunnel.py`), and what came is passed on
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from balancer.downstream.client_connection import HELD_BY_UPGRADE

if TYPE_CHECKING:
    from balancer.downstream.connection import DownstreamConnection
    from balancer.downstream.pipelined import PipelinedBytes
    from balancer.http1.request_reader import RequestReader


class PendingUpgrade(asyncio.Protocol):
    """The protocol of such a connection. `early` came behind the request; `has_ended`: nothing more will."""

    __slots__ = ("_reader", "downstream", "early", "has_ended")

    def __init__(self, downstream: DownstreamConnection, reader: RequestReader, early: bytes) -> None:
        self._reader = reader
        self.downstream = downstream
        self.early = b""
        self.has_ended = False
        downstream.transport.set_protocol(self)
        if early:
            self.data_received(early)

    def take_over(self, ahead: PipelinedBytes) -> None:
        """Keep what came ahead and was not parsed: nobody knows whose it is either."""
        rest = ahead.take_all()
        if rest:
            self.data_received(rest)
        self.has_ended = ahead.has_ended

    def withdraw(self, stays: bool) -> bool:
        """The answer was HTTP. Returns whether the connection goes on with what came behind the offer."""
        self.downstream.offer = None
        if stays:
            # Not at once: offers that are declined on the spot would nest as deep as the client pipelines.
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self.downstream.transport.set_protocol(self.downstream)
        return stays

    def release(self) -> None:
        """Read the client again."""
        self.early = b""
        self.downstream.unhold(HELD_BY_UPGRADE)

    def _go_on(self) -> None:
        downstream, early = self.downstream, self.early
        if downstream.transport.is_closing():
            return
        downstream.transport.set_protocol(downstream)
        downstream.go_on(self._reader, early)
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
