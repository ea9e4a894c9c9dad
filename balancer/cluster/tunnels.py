"""Open tunnels of a cluster, and the bytes that went through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol


class OpenTunnel(Protocol):
    """A tunnel, as the cluster needs it."""

    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    def check(self, now: float, idle: float, stall: float, /) -> None: ...
    def abort(self) -> None: ...


class Tunnels:
    """All open tunnels, and byte totals of all tunnels since the start.

    Durations in seconds: `idle` without a byte in either direction closes a tunnel; `stall` without progress aborts its
    closing.
    """

    def __init__(self, now: Callable[[], float], idle: float, stall: float) -> None:
        self.now = now
        self.idle = idle
        self.stall = stall
        self._open: dict[OpenTunnel, None] = {}  # in order of opening
        self._bytes_in = self._bytes_out = 0
        self.opened = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTunnel]:
        return iter(list(self._open))

    def add(self, tunnel: OpenTunnel) -> None:
        self._open[tunnel] = None
        self.opened += 1

    def remove(self, tunnel: OpenTunnel) -> None:
        """Remove a closed tunnel and add up its bytes."""
        self._open.pop(tunnel, None)
        self._bytes_in += tunnel.bytes_in
        self._bytes_out += tunnel.bytes_out

    @property
    def bytes_in(self) -> int:
        """Bytes received from clients since the start."""
        return self._bytes_in + sum(tunnel.bytes_in for tunnel in self)

    @property
    def bytes_out(self) -> int:
        """Bytes sent to clients since the start."""
        return self._bytes_out + sum(tunnel.bytes_out for tunnel in self)

    def check(self, now: float) -> None:
        """Enforce the timeouts of all tunnels; called by the sweep."""
        for tunnel in self:
            tunnel.check(now, self.idle, self.stall)

    def abort(self) -> None:
        """Close all tunnels at once: the balancer stops."""
        for tunnel in self:
            tunnel.abort()
