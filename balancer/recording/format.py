"""Binary format of recordings: a sequence of self-contained blocks. Pure: no I/O.

A file may end within a block, as after a crash, and may hold several recordings in sequence: a reader takes whole
blocks and starts again at each START. `docs/live.md` specifies the format.

    block = kind (1 byte), length of the payload (4 bytes, little endian), payload (zlib)
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

FORMAT: Final = 1

START: Final = b"S"
ENDPOINT: Final = b"E"
PATH: Final = b"P"
ROWS: Final = b"R"
CHANGE: Final = b"C"
END: Final = b"Z"

NAN: Final = float("nan")
NOWHERE: Final = 0xFFFF
"""Endpoint number of a request that got no endpoint."""

ENDS: Final = (
    *("ok", "error_status", "refused", "timeout", "reset", "abandoned"),
    *("rejected", "unavailable", "tunnel"),
)
"""Outcomes of a request; the index is the number in a row."""

_HEAD: Final = struct.Struct("<cI")
_ROW: Final = struct.Struct("<d5fQIIHHHBB")

COMPRESSION: Final = 6


class RecordedRow(NamedTuple):
    """One request.

    `at` is in seconds from the start of the recording; durations are in seconds, nan if a phase was not reached or is
    unknown. `service` runs from sent to the last byte, `reported` is the service time that the worker reported. `key`
    is a salted hash, `endpoint` and `path` are numbers of blocks; path 0 is none.
    """

    at: float
    queue: float
    connect: float
    first_byte: float
    service: float
    reported: float
    key: int
    bytes_in: int
    bytes_out: int
    endpoint: int
    path: int
    status: int
    attempts: int
    end: int


def packed(row: RecordedRow) -> bytes:
    """Pack a row; byte counts and attempts are capped at the width of their field."""
    most = 0xFFFF_FFFF
    return _ROW.pack(
        *row[:7],
        min(row.bytes_in, most),
        min(row.bytes_out, most),
        *row[9:12],
        min(row.attempts, 255),
        row.end,
    )


def block(kind: bytes, payload: bytes) -> bytes:
    """Return one block with a compressed payload."""
    data = zlib.compress(payload, COMPRESSION)
    return _HEAD.pack(kind, len(data)) + data


def encoded(kind: bytes, document: dict[str, Any]) -> bytes:
    """Return a block with a JSON document."""
    return block(kind, json.dumps(document, separators=(",", ":")).encode())


def rows(packed_rows: Iterable[bytes]) -> bytes:
    """Return a block of packed rows."""
    return block(ROWS, b"".join(packed_rows))
