"""Usage of the process by each client over all its connections, budgets of bytes that are kept for clients, and the
bytes of requests that wait.

A client is an address, of IPv6 one /64. Its record is found when a connection opens, so a request costs the increment
of an attribute. Behind a trusted proxy clients are told apart by the forwarded address as soon as a request waits; the
number of the proxy's requests in flight is not limited.

Bounds that clients share leave as much for the next client as the one who uses most has: so one client gets half of
them, two get a third each, and there is always room for another.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from balancer.errors import ConnectionCut
from balancer.http.h1.client import Client
from balancer.rate_limits.request_source import network_of


class ByteBudget:
    """Bytes that may be kept for all clients of a process, and counts of bodies.

    `total` is the bound, which a reload may set below what is `kept` now. `requests` and `responses` count bodies that
    were kept whole while the client was slow; `requests_streamed` and `responses_streamed` those that were not because
    of the bound.
    """

    def __init__(self) -> None:
        self.total = 0
        self.kept = 0
        self.requests = self.responses = 0
        self.requests_streamed = self.responses_streamed = 0


class Charge:
    """The bytes of one body that are charged to a budget. At its end, `resize(0)` gives them back."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.size = 0

    def resize(self, size: int) -> bool:
        """Charge `size` bytes. Returns False, and changes nothing, if they are more than before and beyond the
        bound."""
        budget = self.budget
        kept = budget.kept + size - self.size
        if size > self.size and kept > budget.total:
            return False
        budget.kept = kept
        self.size = size
        return True

    def whole(self, unsent: int) -> None:
        """Count a response that was taken over whole; charges its last read too, if that is within the bound."""
        self.resize(unsent)
        self.budget.responses += 1


class ClientUsage:
    """Use of one client: `requests` in flight or waiting, tunnels included, `bytes` of them that are charged, `tunnels`
    that are open or offered. `holders` are the connections and requests that refer to the record."""

    __slots__ = ("bytes", "holders", "network", "requests", "tunnels")

    def __init__(self, network: bytes) -> None:
        self.network = network
        self.holders = self.requests = self.bytes = self.tunnels = 0


class ClientUsages:
    """Records of all clients that are connected, and the `budget` of bytes that their requests share."""

    def __init__(self) -> None:
        self.budget = ByteBudget()
        self._by_network: dict[bytes, ClientUsage] = {}

    def __len__(self) -> int:
        return len(self._by_network)

    def hold(self, network: bytes) -> ClientUsage:
        """Return the record of a client; `release` is to be called for it once."""
        usage = self._by_network.get(network)
        if usage is None:
            usage = self._by_network[network] = ClientUsage(network)
        usage.holders += 1
        return usage

    def connected(self, address: bytes) -> ClientUsage:
        """Return the record for a connection from `address`, as `hold` does."""
        return self.hold(network_of(address))

    def release(self, usage: ClientUsage) -> None:
        """Forget the record once nothing refers to it."""
        usage.holders -= 1
        if not usage.holders:
            self._by_network.pop(usage.network, None)


class PendingBytes:
    """The bytes of one request that waits, or whose head is large; charged to the process and to its client.

    `client` is whose turn it takes in the queue.
    """

    __slots__ = ("_usages", "client", "size")

    def __init__(self, usages: ClientUsages, network: bytes) -> None:
        self._usages = usages
        self.size = 0
        self.client = usages.hold(network)

    def resize(self, size: int) -> bool:
        """Charge `size` bytes. Returns False, and changes nothing, if they are more than before and the client would
        have more than is left for others."""
        client, budget, grown = self.client, self._usages.budget, size - self.size
        if grown > 0 and client.bytes + grown > budget.total - budget.kept - grown:
            return False
        client.bytes += grown
        budget.kept += grown
        self.size = size
        return True

    def close(self) -> None:
        """Give everything back."""
        self.resize(0)
        self._usages.release(self.client)


HELD_BY_BODY: Final = 1
"""The body buffer of the request being received is full."""

HELD_BY_PIPELINE: Final = 2
"""Pipelined requests wait for earlier responses."""

HELD_BY_UPGRADE: Final = 4
"""A pending upgrade has not been answered."""

HELD_BY_TURN: Final = 8
"""Expensive input waits for its turn (`turns.py`)."""

HELD_BY_REFUSAL: Final = 16
"""The client is refused HTTP/2, and learns it late."""


class ClientConnection(Protocol):
    """What the process asks of each connection of a client. Its reading may be paused for several reasons at a time."""

    client: Client
    idle_since: float
    is_begun: bool  # a request has come
    is_held: int
    is_write_paused: bool
    ended_at: float  # when the client's FIN came while a request was unanswered, 0 before
    ends_late: bool  # the client has sent its FIN behind input that waits for its turn
    transport: asyncio.Transport
    usage: ClientUsage

    @property
    def answering(self) -> int:
        """Number of requests that are being answered."""

    def apply(self) -> None:
        """Apply a new runtime configuration to the requests that begin from now on."""

    def check(self, now: float) -> None: ...

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        """Close the connection if it has been idle for more than `longer_than` seconds. Returns whether it was
        closed."""

    def end_late_head(self, now: float, longer_than: float) -> bool:
        """Refuse a head that is not whole `longer_than` seconds after its first byte. Returns whether one was."""

    def take_turn(self, steps: int) -> int:
        """Take input that waits until it has cost `steps`, and wait again if there is more. Returns what it cost."""

    def hold(self, reason: int = HELD_BY_BODY) -> None: ...
    def unhold(self, reason: int = HELD_BY_BODY) -> None: ...
    def abort(self, error: ConnectionCut | None = None) -> None: ...
