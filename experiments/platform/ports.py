"""Free loopback ports for the processes of a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> Iterator[int]:
    """Yield `count` different loopback ports that are free now, below the ephemeral range.

    The kernel assigns these to no outgoing connection and to no server that asks for any port: before a process listens
    on its port, or while it is started again, no other one gets it.
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
