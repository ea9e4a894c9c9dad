"""W3C Trace Context (Level 2): parse `traceparent` and combine `tracestate`. Pure functions, no I/O.

A value that the specification forbids counts as absent; nothing here raises. Flags other than sampled and
random-trace-id are reserved, and are set to zero (§ 3.2.2.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

VERSION: Final = b"00"
LENGTH: Final = 55
"""Bytes of a traceparent of version 00. Later versions may append fields after another hyphen (§ 3.2.4)."""

NO_TRACE: Final = b"0" * 32
NO_SPAN: Final = b"0" * 16

SAMPLED: Final = 1
RANDOM: Final = 2
_FLAGS: Final = {b"%02x" % flags: b"%02x" % (flags & (SAMPLED | RANDOM)) for flags in range(256)}

_HEX: Final = b"0123456789abcdef"
_HYPHEN: Final = 45

MOST_MEMBERS: Final = 32
"""Maximum members of a tracestate (§ 3.3.1.3.1); a longer one is discarded."""

_MEMBER: Final = re.compile(
    rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Parent:
    """The caller's span: `trace_id` and `span_id` in lower-case hex, `flags` as two hex digits."""

    def __init__(self, trace_id: bytes, span_id: bytes, flags: bytes) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.flags = flags


def parent_of(value: bytes) -> Parent | None:
    """Return the caller's span that a traceparent names, None if the value is invalid (§ 3.2.2)."""
    if len(value) != LENGTH:
        if len(value) < LENGTH or value[LENGTH] != _HYPHEN or value.startswith(VERSION):
            return None
        value = value[:LENGTH]
    if value.translate(None, _HEX) != b"---" or value.startswith(b"ff"):
        return None
    if value[2] != _HYPHEN or value[35] != _HYPHEN or value[52] != _HYPHEN:
        return None
    trace_id = value[3:35]
    span_id = value[36:52]
    if trace_id == NO_TRACE or span_id == NO_SPAN:
        return None
    return Parent(trace_id, span_id, _FLAGS[value[53:]])


def state_of(values: Iterable[bytes]) -> bytes:
    """Return the tracestate that fields with these values make, b"" if it is empty or invalid (§ 3.3.1).

    Fields are combined in their order (RFC 9110 § 5.3); empty members and white space around members are dropped.
    """
    members = [
        part for value in values for part in (piece.strip(b" \t") for piece in value.split(b",")) if part
    ]
    if len(members) > MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return b""
    return b",".join(members)
