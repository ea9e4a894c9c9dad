"""A recording as bytes: blocks, one after the other, each whole by itself.

Rule of this file: no I/O. A file may end within a block, as after a crash, and may hold several recordings, one behind
the other: whoever reads takes whole blocks and begins anew at each START. The format stands in `docs/live.md`.

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
END: Final = b"Z"

NAN: Final = float("nan")
NOWHERE: Final = 0xFFFF
"""The endpoint of a request that got none."""

ENDS: Final = (
    *("ok", "error_status", "refused", "timeout", "reset", "abandoned"),
    *("rejected", "unavailable", "tunnel"),
)
"""How a request ended, by its number."""

_HEAD: Final = struct.Struct("<cI")
_ROW: Final = struct.Struct("<d5fQIIHHHBB")

COMPRESSION: Final = 6


class Row(NamedTuple):
    """One request. `at` in seconds from the start of the recording; durations in seconds, nan where a phase was not
    reached or not told. `service` runs from sent to the last byte, `reported` is what the worker says of it. `key` is a
    salted hash, `endpoint` and `path` are numbers of blocks; path 0 is none."""

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


def packed(row: Row) -> bytes:
    """A row as it is written."""
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
    """One block."""
    data = zlib.compress(payload, COMPRESSION)
    return _HEAD.pack(kind, len(data)) + data


def told(kind: bytes, document: dict[str, Any]) -> bytes:
    """A block that says something."""
    return block(kind, json.dumps(document, separators=(",", ":")).encode())


def rows(packed_rows: Iterable[bytes]) -> bytes:
    """A block of rows."""
    return block(ROWS, b"".join(packed_rows))
