"""Connection limits derived from the process's limit of file descriptors.

At the descriptor limit the event loop would accept a connection and close it at once, and the client would see an
error. So the limit is computed beforehand and split: each client may need one upstream connection.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

RESERVE = 16
"""Descriptors kept free for the admin interface, name lookups and connections that are closing."""

FALLBACK_LIMIT = 512
"""Limit where the system reports none: that of select() on Windows."""

MOST_CLIENTS = 65_536


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """Maximum number of downstream and of upstream connections."""

    clients: int
    upstreams: int


def allowance(limit: int, in_use: int) -> DescriptorLimit:
    """Split the descriptors that `limit` leaves beyond `in_use`; at least one each."""
    each = max(1, (limit - in_use - RESERVE) // 2)
    return DescriptorLimit(min(each, MOST_CLIENTS), each)


def descriptor_limit() -> int:
    """Return the soft limit of descriptors, after raising it to the hard limit if that is finite."""
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
    """Return the number of open descriptors; 32 where the system does not report it."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 32
