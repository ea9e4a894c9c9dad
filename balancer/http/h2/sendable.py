"""Validate the fields of outgoing HTTP/2 messages (RFC 9113 §§ 8.2, 8.3). Pure.

The engine sends what it is given, so nothing may pass here that would be another message after a translation to
HTTP/1.1: no CR, LF or NUL, and no field that belongs to one connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from balancer.http.h1.field_list import Fields
from balancer.http.h1.fields import OF_ONE_CONNECTION

_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path", b":protocol", b":status"))
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0
_is_token: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch

_KEPT_NAMES: Final = 1000
_LONGEST_KEPT: Final = 64
"""Maximum number of valid names that are remembered, and their maximum length."""

_names: Final[dict[bytes, bytes]] = {}
"""Valid names as given -> in lower case."""


class UnsendableFields(ValueError):
    """A field that HTTP/2 does not allow in a message."""


def sendable(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return the fields with names in lower case. Raises `UnsendableFields`."""
    made: Fields = []
    values: list[bytes] = []
    for name, value in fields:
        lower = _names.get(name)
        if lower is None:
            lower = _checked(name, value)
        made.append((lower, value))
        values.append(value)
    text = b"".join(values)
    if _LF in text or _CR in text or _NUL in text:
        raise UnsendableFields("a value with CR, LF or NUL")
    return made


def _checked(name: bytes, value: bytes) -> bytes:
    """Return the name in lower case, and remember it. Raises `UnsendableFields`."""
    lower = name.lower()
    if lower == b"te":
        if value.lower() != b"trailers":
            raise UnsendableFields("a field te other than trailers")
        return lower  # never remembered
    if lower in OF_ONE_CONNECTION:
        raise UnsendableFields(f"a field {lower.decode()}, which belongs to one connection")
    if lower not in _PSEUDO and _is_token(lower) is None:
        raise UnsendableFields(f"a name that is no token: {name[:40]!r}")
    if len(name) <= _LONGEST_KEPT and len(_names) < _KEPT_NAMES:
        _names[name] = lower
    return lower
