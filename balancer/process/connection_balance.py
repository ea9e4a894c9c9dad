"""Which process takes the next client: whoever has not many more of them than the others.

Rule of this file: all processes accept from one queue, and whoever wakes up first would take all that wait in it. So
each writes down how many clients it has, and one that is ahead leaves the next ones to the others for a moment. If they
are still there after it, it takes one: nobody waits long for a process that hangs.
"""

from __future__ import annotations

from balancer.process.shared_counters import SharedCounters

SLACK, SHARE_OF_SLACK = 4, 32
"""Clients that a process may have more than another, and one in so many of those that it has: a client more or less
makes no difference among many, and each pause costs a wake-up."""

PAUSE = 0.002
"""Seconds that whoever is ahead leaves the queue to the others: an idle process is there in a tenth of that."""


class ConnectionBalance:
    """The counts of clients on the board; `index` is whose turn is asked for."""

    def __init__(self, board: SharedCounters, index: int) -> None:
        self._page = board.pages[index]
        self._others = [page for at, page in enumerate(board.pages) if at != index]

    def note(self, clients: int) -> None:
        """So many it has now."""
        self._page.clients = clients

    def leave(self) -> None:
        """It accepts nobody any more: the others need not wait for it."""
        self._page.clients = None

    def is_ahead(self, clients: int) -> bool:
        """Whether another, that accepts too, has so many fewer that it should take the next one."""
        bound = clients - SLACK - clients // SHARE_OF_SLACK
        if bound <= 0:
            return False
        return any(page.clients is not None and page.clients < bound for page in self._others)
