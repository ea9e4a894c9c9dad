"""What a turn needs of its client's connection: errors as answers, back-pressure, and an end that is no good order.

Several reasons may hold at a time for not reading; reading resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from balancer.errors import ForwardingError
from balancer.exchange.tunnel import reset
from balancer.http1.own_responses import error_response

if TYPE_CHECKING:
    from balancer.proxy import Proxy

HELD_BY_BODY: Final = 1
"""The request that is being received has no room for more of its body."""

HELD_BY_PIPELINE: Final = 2
"""Requests that came ahead wait for their turn."""

HELD_BY_UPGRADE: Final = 4
"""An offer to go on in another protocol is not answered."""


class ClientConnection(asyncio.Protocol):
    """A client's connection. `is_held`: the reasons why it is not read from, 0 if there is none. `is_write_paused`:
    the client takes less than it is sent."""

    __slots__ = ("_proxy", "is_held", "is_write_paused", "transport", "write")

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Send bytes to the client: the transport's own method, to save a call."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.is_held = 0
        self.is_write_paused = False

    def count_error(self, error: ForwardingError) -> None:
        """One more answer of our own."""
        self._proxy.counts.count_error(error)

    def write_error(self, error: ForwardingError, request_id: bytes, *, stays: bool, is_head: bool) -> None:
        """Answer with an error of our own."""
        self.transport.write(error_response(error, request_id, stays=stays, is_head=is_head))

    def hold(self, reason: int = HELD_BY_BODY) -> None:
        """Read no more for now."""
        if not self.is_held and not self.transport.is_closing():
            self.transport.pause_reading()
        self.is_held |= reason

    def unhold(self, reason: int = HELD_BY_BODY) -> None:
        """Undo `hold`."""
        was_held, self.is_held = self.is_held, self.is_held & ~reason
        if was_held and not self.is_held and not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """End it so that the client sees that something is missing: by RST, for a FIN may be how a body ends."""
        reset(self.transport)
