"""Free loopback ports for the processes of a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> Iterator[int]:
    """Yield `count` different loopback ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    yield from ports


def lasting_ports(count: int) -> Iterator[int]:
    """Yield `count` loopback ports below the ephemeral range, which the kernel assigns to no outgoing connection.

    A worker that is killed and restarted may find its port from `free_ports` taken by a client connection.
    """
    taken = set[int]()
    while len(taken) < count:
        port = Random().randrange(10_000, max(20_000, lowest_ephemeral()))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            taken.add(port)
    yield from taken


def lowest_ephemeral() -> int:
    """Lowest ephemeral port (ip(7)); 32768 where the kernel does not report it."""
    try:
        return int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    except OSError:
        return 32_768
