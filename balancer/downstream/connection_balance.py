"""Connection balancing between processes: a process with many more clients than a sibling pauses accepting.

All processes accept from one listen queue, and the first to wake up would take all connections in it. Each process
publishes its number of clients, and one that is ahead leaves new connections to its siblings for `PAUSE`. If they are
still queued then, it accepts one, so a sibling that hangs delays a client only briefly.
"""

from __future__ import annotations

from balancer.sharing.shared_counters import SharedCounters

SLACK, SHARE_OF_SLACK = 4, 32
"""Allowed lead over a sibling: `SLACK` clients plus one in `SHARE_OF_SLACK` of its own. A small difference has no
effect among many clients, and each pause costs a wake-up.
"""

PAUSE = 0.002
"""Seconds for which a process that is ahead does not accept; an idle process wakes up in a tenth of that."""


class ConnectionBalance:
    """Connection balancing of process `index` by the client counts on the shared counters `board`."""

    def __init__(self, board: SharedCounters, index: int) -> None:
        self._page = board.pages[index]
        self._others = [page for at, page in enumerate(board.pages) if at != index]

    def note(self, clients: int) -> None:
        """Publish the number of clients of this process."""
        self._page.clients = clients

    def leave(self) -> None:
        """Withdraw this process's count when it stops accepting, so that siblings do not pause for it."""
        self._page.clients = None

    def is_ahead(self, clients: int) -> bool:
        """Return whether an accepting sibling has so many fewer clients that it should take the next one."""
        bound = clients - SLACK - clients // SHARE_OF_SLACK
        if bound <= 0:
            return False
        return any(page.clients is not None and page.clients < bound for page in self._others)
