"""What a connection of HTTP/2 goes by: windows, limits and times, and how the library is set up for it.

Rule of this file: values and pure functions.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from balancer.messages.outline import Fields, Outline
from balancer.messages.response_head import HEAD_LIMIT

STREAM_WINDOW = 262_144
"""Bytes of a response that a slow client lets come in: what bounds the memory of one, and its speed by round trip."""

WINDOW = 4 * 1_048_576
"""Of the whole connection; nothing waits in it, so it only has to be more than is ever under way."""

ASSUMED = 100
"""Streams at once before the worker has said how many: what it should allow at least (§ 6.5.2)."""

MOST = 1000
"""Streams at once, whatever the worker allows; the library looks at each of them for every new one."""

LAST_ID = 2**31 - 1 - 2 * MOST
"""Of streams; then another connection is opened (§ 5.1.1)."""

PING_AFTER, PING_WAIT = 10.0, 10.0
"""Seconds without a word from the worker until it is asked for one, and until it is given up."""


CODES = {code.value: code.name for code in ErrorCodes}


def new_connection() -> H2Connection:
    """Our side of one, not begun."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.local_settings = Settings(
        client=True,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_LIMIT,
        },
    )
    return connection


def head_fields(outline: Outline, scheme: bytes, origin: tuple[str, int]) -> Fields:
    """A request's head (RFC 9113 § 8.3.1); `origin` stands for a Host that is not there."""
    return [
        (b":method", outline.method),
        (b":scheme", scheme),
        (b":authority", outline.authority or "{}:{}".format(*origin).encode()),
        (b":path", outline.target),
        *((name.lower(), value) for name, value in outline.fields),
    ]


def name_of(code: int) -> str:
    """An error's (RFC 9113 § 7)."""
    return CODES.get(code, f"code {code:#x}")


def line_of(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
