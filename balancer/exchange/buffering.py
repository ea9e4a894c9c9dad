"""Buffering for slow clients, so that they do not occupy worker connections. Off unless `[buffering]` turns it on.

A request body is received whole before an endpoint is asked (`KeptBody`; `receiving.py`). A response is read from the
worker while the client is slow; its bytes stay where they are without buffering, in the write buffer of the client's
connection, which may grow further. Nothing is delayed: the client gets every byte at once that it is able to take.

All kept bytes are charged to one `ByteBudget`. Once it is used up, bodies are streamed at the client's pace.
"""

from __future__ import annotations

from typing import Final

from balancer.clients.client_usage import ByteBudget, Charge
from balancer.upstream.request import RequestBody, UpstreamRequest

BLOCK: Final = 16_384
"""Bytes up to which pieces of a kept body are joined: thousands of small ones would take several times the memory."""


LARGE_BODY: Final = 65_536
"""Bytes of a body beyond which it is charged while it is kept for a retry, however it came."""


class KeptBody(RequestBody):
    """A request body that is received whole before an endpoint is asked: at most `most` bytes.

    `fits`: it is within that limit and the budget. Beyond the budget, a large one is not kept for a retry either.
    `charge` lasts as long as the body is here or in the write buffer of
    a worker connection.
    """

    def __init__(self, received: RequestBody, most: int, budget: ByteBudget) -> None:
        super().__init__(received.limit, received.is_chunked)
        self.trailers = received.trailers
        self.fits = True
        self._most = most
        self.charge = Charge(budget)
        self._tail = bytearray()  # the last pieces, joined
        if received.trailers is None:
            self.add(received.between(b"", b""))
        else:
            self._pieces, self.size = received._pieces, received.size
            self._bound()

    def add(self, data: bytes) -> None:
        if self.is_spent:
            return
        self._tail += data
        self.size += len(data)
        if len(self._tail) >= BLOCK:
            self._pieces.append(self._tail)
            self._tail = bytearray()
        self._bound()

    def _bound(self) -> None:
        if self.fits and self.size > self._most:
            self.fits = False
        elif self.fits and not self.charge.resize(self.size):
            self.fits = False
            self.limit = min(self.limit, LARGE_BODY)
            self.charge.budget.requests_streamed += 1

    def between(self, head: bytes, end: bytes) -> bytes:
        whole = b"".join([head, *self._pieces, self._tail, end])
        self._tail = bytearray()
        # Kept once, also while it is in a write buffer.
        self._pieces = [memoryview(whole)[len(head) : len(whole) - len(end)]]
        return whole

    def whole(self) -> bytes:
        if self._tail:
            self._pieces.append(self._tail)
            self._tail = bytearray()
        return super().whole()

    def spend(self) -> None:
        super().spend()
        self._tail = bytearray()

    def update(self, upstream: UpstreamRequest | None) -> None:
        """Give back the charge once nothing of the body is here or in the write buffer of `upstream`, its worker
        connection; a transport may hold all of it until the last byte is sent."""
        if self.is_spent and (upstream is None or not upstream.unsent):
            self.charge.resize(0)

    def free(self) -> None:
        """Give back everything: the exchange has ended."""
        self.spend()
        self.charge.resize(0)
