"""What is kept of a request's body, so that it can be sent again.

Rule of this file: a body is kept whole or not at all. It is kept while nobody takes it, because it cannot go anywhere
else, and beyond that up to a limit: a longer one is streamed, and can then be sent to nobody but who has begun it.
"""

from __future__ import annotations


class BodyBuffer:
    """Pieces of a body as they are sent, framing included.

    `size` is in bytes; `limit` is how many may be kept of what has been sent. `is_spent`: some of it is gone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.size = 0
        self.is_spent = False

    def add(self, data: bytes) -> None:
        """It has come."""
        if not self.is_spent:
            self._pieces.append(data)
            self.size += len(data)

    def behind(self, head: bytes) -> bytes:
        """The head and all that is kept: one write, as two would be two packets, and two wake-ups of the worker."""
        return b"".join([head, *self._pieces])

    def sent(self) -> None:
        """Somebody has taken what there is: now the limit holds."""
        if self.size > self._limit:
            self.spend()

    def spend(self) -> None:
        """Nobody else will get it."""
        self._pieces = []
        self.is_spent = True
