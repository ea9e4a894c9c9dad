"""Free ports of the loopback for the processes of a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> Iterator[int]:
    """Ports of the loopback that are free now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    yield from ports


def lasting_ports(count: int) -> Iterator[int]:
    """Ports of the loopback that stay ours while nobody listens on them: the kernel gives them to no connection.

    A worker that is killed and started again would now and then find the port of `free_ports` taken by a client.
    """
    taken = set[int]()
    while len(taken) < count:
        port = Random().randrange(10_000, max(20_000, lowest_ephemeral()))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            taken.add(port)
    yield from taken


def lowest_ephemeral() -> int:
    """Where the ports begin that connections are made from (ip(7)); 32768 where the kernel does not say."""
    try:
        return int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    except OSError:
        return 32_768
