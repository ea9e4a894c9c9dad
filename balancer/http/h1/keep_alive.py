"""Parse the worker's Keep-Alive timeout for idle connections.

`Keep-Alive: timeout=N` (RFC 2068 § 19.7.1.1) is a hint that many servers still send. A malformed value is ignored.
"""

from __future__ import annotations

import re
from typing import Final

from balancer.http.h1.fields import END_OF_HEAD

FIELD: Final = b"\nkeep-alive:"
TIMEOUT: Final = re.compile(rb'[:,\s]timeout\s*=\s*"?([0-9]{1,6})')


def keep_alive_timeout(data: bytes) -> float:
    """Return the seconds announced in the head, or part of one, that `data` begins with; 0 for none."""
    end = data.find(END_OF_HEAD)
    head = (data[: end + 2] if end >= 0 else data).lower()
    at = head.find(FIELD)
    if at < 0:
        return 0.0
    line_end = head.find(b"\r\n", at)
    match = TIMEOUT.search(head[at + len(FIELD) - 1 : line_end if line_end >= 0 else len(head)])
    return float(match[1]) if match is not None else 0.0
