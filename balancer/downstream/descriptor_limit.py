"""How many connections this process may hold.

Rule of this file: at the descriptor limit the event loop accepts a connection and closes it at once, and the
client sees an error. So the limit is known beforehand and split: each client may need one connection to a worker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

RESERVE = 16
"""Descriptors kept free for the control plane, name lookups and connections that are just closing."""

FALLBACK_LIMIT = 512
"""Where the system does not tell: Windows' select() ends there."""

MOST_CLIENTS = 65_536


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """Connections to clients and to workers, each at most."""

    clients: int
    upstreams: int


def allowance(limit: int, in_use: int) -> DescriptorLimit:
    """Split what `limit` leaves beyond `in_use`. Never less than one each: a unit that serves nobody is no unit."""
    each = max(1, (limit - in_use - RESERVE) // 2)
    return DescriptorLimit(min(each, MOST_CLIENTS), each)


def descriptor_limit() -> int:
    """The soft limit, raised to the hard one first as far as it is finite."""
    try:
        import resource
    except ImportError:  # Windows
        return FALLBACK_LIMIT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2 * MOST_CLIENTS


def descriptors_in_use() -> int:
    """Open right now; a guess where the system does not tell."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 32
