"""What a request offers to go on with after HTTP, and whether the answer takes it up.

Rule of this file: pure functions over heads. An offer of HTTP's own later versions is never passed on: behind it,
requests would reach a worker that nobody here has looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from balancer.http1.request_head import Request
    from balancer.http1.response_head import Response

PASSED_ON_STATUSES = frozenset((101, 426))
"""Responses whose Upgrade is meant for the client: what it goes on with, or might (RFC 9110 §§ 15.2.2, 15.5.22)."""

HTTPS_OWN = (b"h2c", b"http/")

_told = re.compile(rb"\nUpgrade: ([^\r]*)")  # as `told` writes it

_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%-]+):[0-9]{1,5}")


def protocols(values: list[bytes]) -> list[bytes]:
    """The names that Upgrade's values hold (RFC 9110 § 7.8)."""
    names = (name.strip() for value in values for name in value.split(b","))
    return [name for name in names if name]


def offered(values: Mapping[bytes, list[bytes]], options: list[bytes]) -> bytes:
    """Upgrade's value as it goes on, of a request with these fields and Connection options; b"" for none."""
    if b"upgrade" not in options or b"upgrade" not in values:
        return b""
    names = protocols(values[b"upgrade"])
    return b", ".join([name for name in names if not name.lower().startswith(HTTPS_OWN)])


def fields(upgrade: bytes) -> bytes:
    """The lines that say so; Upgrade is always named in Connection."""
    return b"Connection: Upgrade\r\nUpgrade: %b\r\n" % upgrade if upgrade else b""


def told(status: int, values: Mapping[bytes, list[bytes]], options: list[bytes], block: bytes) -> bytes:
    """A response's `block`, with what it says of Upgrade where that is for the client; its lines were cut before."""
    if status not in PASSED_ON_STATUSES or b"upgrade" not in options or b"upgrade" not in values:
        return block
    return b"\r\n" + fields(b", ".join(values[b"upgrade"])) + block[2:]


def is_authority(target: bytes) -> bool:
    """Whether this is host:port, all that CONNECT may name (RFC 9112 § 3.2.3)."""
    return _AUTHORITY.fullmatch(target) is not None


def is_taken(request: Request, response: Response) -> bool:
    """Whether the connection changes hands: after 2xx to CONNECT (RFC 9110 § 9.3.6), and after a 101 that names nothing
    but what was offered (§ 7.8)."""
    if response.status != 101:
        return request.method == b"CONNECT"
    line = _told.search(response.block)
    chosen = {name.lower() for name in protocols([line[1]] if line else [])}
    return bool(chosen) and chosen <= {name.lower() for name in protocols([request.fields.upgrade])}
