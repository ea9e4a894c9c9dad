"""Upgrade (RFC 9110 § 7.8): the protocols that a request offers, and whether the response accepts one.

Pure functions on heads. An offer of HTTP/2 (h2c) or another HTTP version is never passed on: its requests would reach a
worker unvalidated.

A client of HTTP/2 begins a WebSocket without a key and expects no answer to one (RFC 8441), so the balancer does both
towards the worker, as RFC 6455 §§ 1.3 and 4 have it for HTTP/1.1.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha1
from typing import Final

PASSED_ON_STATUSES = frozenset((101, 426))
"""Status codes whose Upgrade field is passed on to the client (RFC 9110 §§ 15.2.2, 15.5.22)."""

HTTPS_OWN = (b"h2c", b"http/")

_find_upgrade = re.compile(rb"\nUpgrade: ([^\r]*)")  # as written by `restated`

_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%-]+):[0-9]{1,5}")


def protocols(values: list[bytes]) -> list[bytes]:
    """Return the protocol names in Upgrade values (RFC 9110 § 7.8)."""
    names = (name.strip() for value in values for name in value.split(b","))
    return [name for name in names if name]


def offered(values: Mapping[bytes, list[bytes]], options: list[bytes]) -> bytes:
    """Return the Upgrade value to pass on for a request with these fields and Connection options; b"" for none."""
    if b"upgrade" not in options or b"upgrade" not in values:
        return b""
    names = protocols(values[b"upgrade"])
    return b", ".join([name for name in names if not name.lower().startswith(HTTPS_OWN)])


def fields(upgrade: bytes) -> bytes:
    """Return the Connection and Upgrade lines; Upgrade is always named in Connection."""
    return b"Connection: Upgrade\r\nUpgrade: %b\r\n" % upgrade if upgrade else b""


def restated(status: int, values: Mapping[bytes, list[bytes]], options: list[bytes], block: bytes) -> bytes:
    """Return a response's `block` with its Upgrade lines restored, if the status passes them on; they were cut
    before."""
    if status not in PASSED_ON_STATUSES or b"upgrade" not in options or b"upgrade" not in values:
        return block
    return b"\r\n" + fields(b", ".join(values[b"upgrade"])) + block[2:]


def is_authority(target: bytes) -> bool:
    """Return whether `target` is host:port, the only target of CONNECT (RFC 9112 § 3.2.3)."""
    return _AUTHORITY.fullmatch(target) is not None


def is_taken(offer: bytes, block: bytes) -> bool:
    """Return whether the `block` of a 101 names only offered protocols (RFC 9110 § 7.8)."""
    line = _find_upgrade.search(block)
    chosen = {name.lower() for name in protocols([line[1]] if line else [])}
    return bool(chosen) and chosen <= {name.lower() for name in protocols([offer])}


_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_find_key: Final = re.compile(rb"\r\nSec-WebSocket-Key: ([^\r]*)").search
_find_accept: Final = re.compile(rb"\r\n(?i:sec-websocket-accept):[ \t]*([^\r \t]*)").findall


def websocket_offer(key: bytes) -> bytes:
    """Return the lines that offer to switch to WebSocket; `key` is 16 random bytes."""
    return b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: %b\r\n" % b64encode(key)


def accepts_websocket(head: bytes, block: bytes) -> bool:
    """Return whether the fields of a 101 response answer the key in a request's head."""
    key = _find_key(head)
    if key is None:
        return False
    answer = b64encode(sha1(key[1] + _GUID, usedforsecurity=False).digest())
    found: list[bytes] = _find_accept(block)
    return found == [answer]
