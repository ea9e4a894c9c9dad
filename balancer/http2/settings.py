"""Settings of HTTP/2 connections: windows, limits and timeouts, and the setup of h2.

Values and stateless functions.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hpack import Encoder

from balancer.errors import ConnectionBroken, MalformedResponse, StreamRefused, UpstreamError
from balancer.http1.field_list import FieldList, Fields, head_of
from balancer.http1.response_head import HEAD_LIMIT

STREAM_WINDOW = 262_144
"""Flow-control window of a stream in bytes: limits the memory of a slow client's response, and the throughput per round
trip."""

WINDOW = 4 * 1_048_576
"""Flow-control window of the connection; nothing is buffered at that level, so it only has to exceed the bytes in
flight."""

ASSUMED = 100
"""Maximum concurrent streams before the worker's SETTINGS arrive: the recommended minimum (§ 6.5.2)."""

MOST = 1000
"""Maximum concurrent streams, whatever the worker allows; h2 scans all of them for every new one."""

LAST_ID = 2**31 - 1 - 2 * MOST
"""Stream id after which a new connection is opened (§ 5.1.1)."""

PING_AFTER, PING_WAIT = 10.0, 10.0
"""Seconds without data from the worker until a PING is sent, and until the connection is closed without an answer."""


ANSWER_BUFFER_LIMIT = 262_144
"""Maximum bytes of answers to PING and SETTINGS that may be buffered for a worker that does not read them."""

LONGEST_LINE = 200
"""Maximum characters of an error message."""

HUFFMAN_LIMIT = 256
"""Maximum bytes of a field, name and value, that is Huffman-coded."""

CODES = {code.value: code.name for code in ErrorCodes}


class FieldEncoder(Encoder):
    """hpack's encoder without Huffman coding of long fields.

    hpack builds the code of a field as one integer, in time quadratic in the field's length (31,000 bytes: 0.1 to 0.5
    s).
    """

    def add(self, to_add: tuple[bytes, bytes], sensitive: bool, huffman: bool = False) -> bytes:
        name, value = to_add
        return super().add(to_add, sensitive, huffman and len(name) + len(value) <= HUFFMAN_LIMIT)


def new_connection() -> H2Connection:
    """Return the client side of a new h2 connection."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.encoder = FieldEncoder()
    connection.local_settings = Settings(
        client=True,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_LIMIT,
        },
    )
    return connection


def head_fields(outline: FieldList, scheme: bytes, origin: tuple[str, int]) -> Fields:
    """Return a request's head as HTTP/2 fields (RFC 9113 § 8.3.1); `origin` replaces a missing Host."""
    return [
        (b":method", outline.method),
        (b":scheme", scheme),
        (b":authority", outline.authority or "{}:{}".format(*origin).encode()),
        (b":path", outline.target),
        *((name.lower(), value) for name, value in outline.fields),
    ]


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether the kernel holds unread data from the peer; False where it cannot be asked (Windows)."""
    if not hasattr(select, "poll"):
        return False
    waiting = select.poll()
    waiting.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def error_of_reset(code: int) -> UpstreamError:
    """Return the error that RST_STREAM means for a request (RFC 9113 § 8.7)."""
    if code == ErrorCodes.REFUSED_STREAM:
        return StreamRefused("the worker refused the stream (REFUSED_STREAM)")
    return ConnectionBroken(f"the worker reset the stream ({name_of(code)})")


def name_of(code: int) -> str:
    """Return the name of an error code (RFC 9113 § 7)."""
    return CODES.get(code, f"code {code:#x}")


def line_of(error: Exception) -> str:
    """Return an error's message as one bounded line; some messages repeat what the worker has sent."""
    return " ".join(str(error).split())[:LONGEST_LINE] or type(error).__name__


def response_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Return the status and the head in HTTP/1.1 without its empty line. Raises `MalformedResponse`."""
    status = b""
    others = []
    for name, value in fields:
        if name == b":status":
            status = value
        elif name[:1] != b":":
            others.append((name, value))
    if len(status) != 3 or not status.isdigit():
        raise MalformedResponse("a :status that is no status")
    return int(status), head_of(int(status), others)
