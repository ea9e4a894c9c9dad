"""W3C Trace Context (Level 2): validate `traceparent` and combine `tracestate`. Pure functions, no I/O.

A value that the specification forbids counts as absent; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LENGTH: Final = 55
"""Bytes of a traceparent of version 00. Later versions may append fields after another hyphen (§ 3.2.4)."""

_SHAPE: Final = b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00"
_DIGITS: Final = bytes(ord("0") if chr(byte) in "0123456789abcdef" else byte for byte in range(256))
"""Table that makes every hexadecimal digit a zero; upper-case ones are not allowed."""

_HYPHEN: Final = ord("-")
_ZERO: Final = ord("0")
_LETTERS: Final = ord("a")
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16

MOST_MEMBERS: Final = 32
"""Maximum members of a tracestate (§ 3.3.1.3.1); a longer one is discarded."""

MOST_COMMAS: Final = 4 * MOST_MEMBERS
"""Commas of a tracestate that is looked at: some members may be empty, but not thousands of them."""

_MEMBER: Final = (
    rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_STATE: Final = re.compile(rb"%b(?:,%b){0,%d}" % (_MEMBER, _MEMBER, MOST_MEMBERS - 1))


def traceparent_of(value: bytes) -> bytes:
    """Return the first 55 bytes of a valid traceparent, b"" if it is invalid (§ 3.2.2)."""
    if len(value) != LENGTH:
        if len(value) < LENGTH or value[LENGTH] != _HYPHEN or value[:2] == b"00":
            return b""
        value = value[:LENGTH]
    if value.translate(_DIGITS) != _SHAPE or value[:2] == b"ff":
        return b""
    if value[3] == _ZERO and value[3:35] == _NO_TRACE:
        return b""
    return b"" if value[36] == _ZERO and value[36:52] == _NO_SPAN else value


def flags_of(traceparent: bytes) -> int:
    """Return the flags sampled (1) and random-trace-id (2) of a valid traceparent; the others are reserved, and must
    not be passed on (§ 3.2.2.5)."""
    digit = traceparent[LENGTH - 1]
    return (digit - _LETTERS + 10 if digit >= _LETTERS else digit) & 3


def state_of(values: Iterable[bytes]) -> bytes:
    """Return the tracestate that fields with these values make, b"" if it is empty or invalid (§ 3.3.1).

    Fields are combined in their order (RFC 9110 § 5.3); empty members and white space around members are dropped.
    """
    state = b",".join(values)
    if state.count(b",") > MOST_COMMAS:
        return b""
    if _STATE.fullmatch(state) is None:  # usually it has no white space and no empty member
        state = b",".join([member for piece in state.split(b",") if (member := piece.strip(b" \t"))])
        if _STATE.fullmatch(state) is None:
            return b""
    return state
