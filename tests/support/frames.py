"""HTTP/2 frames for tests, built and read by hand (RFC 9113 § 4.1): also those that no library would send."""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 1
END_HEADERS = 4


def frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def frames_of(data: bytes | bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, stream id, flags and payload of each frame; the last one may be incomplete."""
    at = 0
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        yield data[at + 3], stream, data[at + 4], bytes(data[at + 9 : at + 9 + size])
        at += 9 + size


def has_request(received: bytes | bytearray) -> bool:
    """Whether a client's bytes, its preface included, hold the head of a request."""
    return any(kind == HEADERS for kind, *_ in frames_of(received[len(PREFACE) :]))


def block(*fields: tuple[bytes, bytes], first: int = 0x00) -> bytes:
    """Return a header block of literal fields without Huffman code; `first` 0x40 adds them to the table (RFC 7541)."""
    return b"".join(bytes((first,)) + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    length = b"\x7f"
    while size >= 128:
        length += bytes((size % 128 + 128,))
        size //= 128
    return length + bytes((size,)) + text


def head(stream: int, *fields: tuple[bytes, bytes], flags: int = END_HEADERS | END_STREAM) -> bytes:
    """Return a HEADERS frame."""
    return frame(HEADERS, block(*fields), stream, flags)


def rst(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, struct.pack("!I", code), stream)
