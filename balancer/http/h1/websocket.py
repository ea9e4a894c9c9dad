"""WebSocket handshake of HTTP/1.1 (RFC 6455 §§ 1.3, 4), for clients whose handshake is that of HTTP/2 (RFC 8441). Pure.

A client of HTTP/2 sends no key and expects no answer to one, so the balancer does both towards the worker.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha1
from typing import Final

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_find_key: Final = re.compile(rb"\r\nSec-WebSocket-Key: ([^\r]*)").search
_find_accept: Final = re.compile(rb"\r\n(?i:sec-websocket-accept):[ \t]*([^\r \t]*)").findall


def offer(key: bytes) -> bytes:
    """Return the lines that offer to switch to WebSocket; `key` is 16 random bytes."""
    return b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: %b\r\n" % b64encode(key)


def is_accepted(head: bytes, block: bytes) -> bool:
    """Return whether the fields of a 101 response answer the key in a request's head."""
    key = _find_key(head)
    if key is None:
        return False
    answer = b64encode(sha1(key[1] + _GUID, usedforsecurity=False).digest())
    found: list[bytes] = _find_accept(block)
    return found == [answer]
