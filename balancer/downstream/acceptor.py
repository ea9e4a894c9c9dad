"""Acceptor: accept client connections from the listening sockets while descriptors are available.

Other clients wait in the kernel's backlog, where waiting costs nothing and the client sees a connection. Meanwhile each
downstream connection closes after its response, so that descriptors are shared in turn.

Sibling processes accept from one listen queue, and the first to wake up would take all connections in it. So each
publishes its number of clients, and one that is ahead leaves new connections to its siblings for `PAUSE`. If they are
still queued then, it accepts one, so a sibling that hangs delays a client only briefly.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from balancer.cluster.cluster import Cluster
from balancer.downstream.listening_sockets import BACKLOG, bound_unsent
from balancer.downstream.preamble import HandshakingConnections
from balancer.sharing.shared_counters import SharedCounters
from balancer.syntax.networks import THIS_MACHINE

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


BATCH = 16
"""Connections accepted per loop iteration: each costs some 40 µs, and a thousand reconnecting at once should delay no
other work."""

QUIET_BEFORE_CLOSE = 1.0
"""Minimum idle seconds before a downstream connection may be closed in favour of a waiting client."""

SLOWEST_START = 3.0
"""Seconds after which a handshake, or a first head that has not begun or is not whole, gives way to a waiting client: a
segment that was lost twice is resent after 1 s and 2 s more (RFC 6298)."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """A listening socket, and what gives its connections their protocols."""

    sock: socket.socket
    arrivals: HandshakingConnections


class Acceptor:
    """Accepts connections from all `entrances`, together at most `limit` at a time.

    Their connections that have not reached HTTP yet are counted by the first one's `arrivals`, which the others share.
    """

    def __init__(
        self,
        entrances: Sequence[Entrance],
        cluster: Cluster,
        limit: int,
        evenness: ConnectionBalance | None = None,
    ) -> None:
        for entrance in entrances:
            bound_unsent(entrance.sock, cluster.limits.buffer)
        self._entrances = entrances
        self._balance = evenness  # balances connections with other processes that accept from the same socket
        self._waiting: asyncio.TimerHandle | None = None
        self._cluster = cluster
        self._arrivals = entrances[0].arrivals
        self._is_stopped = False
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._is_listening = False
        cluster.process.on_client_left = self._client_left

    @property
    def has_room(self) -> bool:
        """Return whether one more client can be served."""
        return self._clients < self.limit

    @property
    def _clients(self) -> int:
        return len(self._cluster.process.downstreams) + len(self._arrivals) + len(self._arriving)

    def start(self) -> None:
        self._note()
        self._listen()

    async def stop(self) -> None:
        """Accept the connections in the backlog, which the kernel would reset, and stop accepting."""
        self._is_stopped = True
        self._pause()
        if self._waiting is not None:
            self._waiting.cancel()
        self._cluster.process.on_client_left = None
        for entrance in self._entrances:
            for _ in range(BACKLOG):
                if not self._accept(entrance):
                    break
            entrance.sock.close()
        if self._balance is not None:
            self._balance.leave()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def sweep(self, now: float) -> None:
        """Close connections that are late with their handshake or their head, and idle keep-alive connections, longest
        idle first, while clients wait for a descriptor; called by the sweep.

        Resumes accepting if there is room, which a failed arrival may have made.
        """
        self._arrivals.sweep(now)
        if self._is_listening or self._waiting is not None or self._is_stopped:
            return
        if self.has_room:
            self._listen()
            return
        is_crowded = self._has_backlog()
        self._cluster.process.set_crowded(is_crowded)
        if not is_crowded:
            return
        oldest_first = sorted(self._cluster.process.downstreams, key=lambda downstream: downstream.idle_since)
        closed = self._arrivals.give_way(now, SLOWEST_START, BATCH)
        for downstream in oldest_first:
            if closed >= BATCH:
                return
            quiet = QUIET_BEFORE_CLOSE if downstream.is_begun else SLOWEST_START
            closed += downstream.close_if_idle(now, quiet) or downstream.end_late_head(now, SLOWEST_START)

    def _listen(self) -> None:
        self._is_listening = True
        self._cluster.process.set_crowded(False)
        for entrance in self._entrances:
            self._loop.add_reader(entrance.sock.fileno(), self._ready, entrance)

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            for entrance in self._entrances:
                self._loop.remove_reader(entrance.sock.fileno())

    def _client_left(self) -> None:
        self._note()
        if not self._is_listening and self._waiting is None and self.has_room:
            self._listen()

    def _note(self) -> None:
        if self._balance is not None:
            self._balance.note(self._clients)

    def _take_one(self, entrance: Entrance) -> None:
        """Take one connection if it is still waiting after a pause in favour of sibling processes."""
        self._waiting = None
        if self.has_room:
            self._listen()
            self._accept(entrance)

    def _ready(self, entrance: Entrance) -> None:
        if not self._is_listening:  # paused by another entrance in this iteration of the loop
            return
        for _ in range(BATCH):
            if self._balance is not None and self._balance.is_ahead(self._clients):
                self._pause()
                self._waiting = self._loop.call_later(PAUSE, self._take_one, entrance)
                return
            if not self._accept(entrance):
                return

    def _accept(self, entrance: Entrance) -> bool:
        """Accept one client. Returns whether one was accepted, so that more may wait."""
        if not self.has_room:
            self._pause()
            self._cluster.process.set_crowded(self._has_backlog())
            return False
        try:
            client, address = entrance.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError:  # descriptors are exhausted outside this process; try again when one of ours is free
            self._pause()
            return False
        client.setblocking(False)
        peer = address[0] if address else THIS_MACHINE
        task = self._loop.create_task(self._arrive(client, peer, entrance.arrivals))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)
        self._note()
        return True

    async def _arrive(self, client: socket.socket, address: str, arrivals: HandshakingConnections) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: arrivals.protocol(address), client)
        except OSError:  # the client disconnected before the accept completed
            client.close()

    def _has_backlog(self) -> bool:
        waiting = select.poll()
        for entrance in self._entrances:
            waiting.register(entrance.sock.fileno(), select.POLLIN)
        return bool(waiting.poll(0))
