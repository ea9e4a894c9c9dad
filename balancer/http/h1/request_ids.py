"""Request ids that are unique across processes and runs: a random prefix and a number."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import chain, count
from typing import Final

_ENDS: Final = tuple(b"%02x" % number for number in range(256))


def fresh_ids() -> Callable[[], bytes]:
    """Return a function that returns another id at each call.

    It runs no Python frame, and formats a number once in 256 calls: half the time of doing so in each.
    """
    prefix = secrets.token_hex(6).encode()
    beginnings = map((prefix + b"-%x").__mod__, count())
    return chain.from_iterable(map(beginning.__add__, _ENDS) for beginning in beginnings).__next__
