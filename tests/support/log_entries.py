"""Entries of the access log, as they are recorded, written and read back."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from balancer.http.h1.client import Client
from balancer.log.formats import NEW, Entry
from policies.facts import Endpoint

FIELDS = (
    "ended_at",
    "fault",
    "status",
    "method",
    "target",
    "id",
    "head",
    "is_http10",
    "client",
    "endpoint",
    "attempts",
    "connection",
    "arrived",
    "routed_at",
    "sent_at",
    "first_byte_at",
    "bytes_in",
    "bytes_out",
    "load",
    "cluster",
    *("grpc_status", "sent_target", "policy", "extra", "answer", "has_own_id"),
)
"""Attributes of an entry, which a compiled class does not tell."""

HEAD = b"GET /work HTTP/1.1\r\nHost: example.org\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2\r\n\r\n"


ENDPOINT = Endpoint("emea-0", "http://127.0.0.1:9001", "emea")


def entry(**changes: Any) -> Entry:
    """A successful request: 1 s in the queue, 2 ms to connect, 20 ms to the first byte, 21 ms in all."""
    usual = Entry(
        ended_at=1001.023, fault=None, status=200, method=b"GET", target=b"/work", id=b"abc-1", head=HEAD,
        is_http10=False, client=Client(b"10.0.0.2", b"10.0.0.9:80"), endpoint=ENDPOINT, attempts=1,
        connection=NEW, arrived=(0.0, 1000.0), routed_at=1001.0, sent_at=1001.002, first_byte_at=1001.022,
        bytes_in=0, bytes_out=17, policy="region-aware",
    )  # fmt: skip
    return changed(usual, **changes)


def changed(entry: Entry, **changes: Any) -> Entry:
    """The entry with other values."""
    return Entry(**({name: getattr(entry, name) for name in FIELDS} | changes))


class RecordingLog:
    """An access log that keeps its entries."""

    chosen = None

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def takes(self, status: int, error: object) -> bool:
        return True

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)


LogRecord = dict[str, Any]


def written(path: Path) -> list[LogRecord]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


ROW = struct.Struct("<d5fQIIHHHBB")


NAMES = (
    *("at", "queue", "connect", "first_byte", "service", "reported", "key", "bytes_in", "bytes_out"),
    *("endpoint", "path", "status", "attempts", "end"),
)


def blocks(data: bytes) -> list[tuple[str, Any]]:
    """Kind and content of each block, parsed by the documented format."""
    found: list[tuple[str, Any]] = []
    while data:
        kind, size = struct.unpack("<cI", data[:5])
        payload, data = zlib.decompress(data[5 : 5 + size]), data[5 + size :]
        if kind == b"R":
            rows = [dict(zip(NAMES, row, strict=True)) for row in ROW.iter_unpack(payload)]
            found.append(("R", rows))
        else:
            found.append((kind.decode(), json.loads(payload)))
    return found
