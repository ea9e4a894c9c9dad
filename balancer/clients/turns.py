"""Turns of client connections whose input is expensive: a flood of them takes a part of the processor's time at most.

A read may hold thousands of small frames or chunks, or heads of HTTP/2 that are references to large ones. What such
input costs is counted in steps, of one to four microseconds: one for a small chunk or frame. A connection takes
`at_once` steps of a read; then it reads no more, and what is left of the read waits for turns. All connections that
wait share `per_turn` steps a millisecond, and clients take turns, however many connections each has. A read whose parts
are large takes no turn and counts nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from balancer.clients.client_usage import HELD_BY_TURN, ClientConnection, ClientUsage

STEPS_AT_ONCE: Final = 32
"""Steps of a read that are taken at once: they cost about as much as the read itself."""

STEPS_PER_TURN: Final = 64
SECONDS_PER_TURN: Final = 0.001
"""Steps of all connections together, 64,000 a second: a tenth of a core in the compiled build, a quarter in the other.
One client alone may send more than 20,000 tiny messages a second."""

STEPS_PER_CALL: Final = 8
"""Steps that a turn itself takes for each connection: it writes to a worker."""

LARGE_HEAD: Final = 8_192
BYTES_PER_STEP: Final = 128
"""Bytes of a head of HTTP/2 above which it is expensive, and further ones that take a step: 31 KB, of a few bytes in
HPACK, are 180 steps. Heads of HTTP/1.1 cost the client as many bytes as us."""

STEPS_PER_REFUSED_HEAD: Final = 32
"""Steps of a malformed or too large head of HTTP/2: a hundred microseconds for 20 bytes, and its stream is free again
at once, so a read may have thousands."""

STEPS_PER_RESET: Final = 8
"""Steps of a request over HTTP/2 that its client resets, once the connection has many of them."""


class Turns:
    """Connections with input that waits for its turn. `at_once` and `per_turn` are numbers of steps."""

    def __init__(self, at_once: int = STEPS_AT_ONCE, per_turn: int = STEPS_PER_TURN) -> None:
        self.at_once = at_once
        self.per_turn = per_turn
        self._left = per_turn  # below 0 when more was taken than a turn allows
        self._waiting: dict[ClientUsage, dict[ClientConnection, None]] = {}  # both in order of the next turn
        self._is_due = False

    def spend(self, steps: int) -> None:
        """Count steps that were taken beyond what is allowed: the next turns begin later."""
        self._left -= steps

    def wait(self, connection: ClientConnection) -> None:
        """Let a connection read no more, and call its `take_turn` after one of each other client that waits."""
        connection.hold(HELD_BY_TURN)
        self._waiting.setdefault(connection.usage, {})[connection] = None
        self._give_soon()

    def end(self, connection: ClientConnection) -> None:
        """Let a connection read again, after all input has been taken; the client's FIN may have been behind it."""
        connection.unhold(HELD_BY_TURN)
        if connection.ends_late:
            connection.ends_late = False
            protocol = cast(
                asyncio.Protocol, connection.transport.get_protocol()
            )  # another one after `detach`
            if not protocol.eof_received():
                connection.transport.close()

    def forget(self, connection: ClientConnection) -> None:
        """Give no turn to a connection that has ended."""
        own = self._waiting.get(connection.usage)
        if own is not None:
            own.pop(connection, None)
            if not own:
                del self._waiting[connection.usage]

    def _give_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SECONDS_PER_TURN, self._give)

    def _give(self) -> None:
        self._is_due = False
        self._left = min(self._left, 0) + self.per_turn
        while self._waiting and self._left > 0:
            client, own = next(iter(self._waiting.items()))
            connection = next(iter(own))
            del self._waiting[client]
            del own[connection]
            if own:
                self._waiting[client] = own
            self._left -= STEPS_PER_CALL + connection.take_turn(self.per_turn)
        if self._waiting or self._left < 0:
            self._give_soon()
