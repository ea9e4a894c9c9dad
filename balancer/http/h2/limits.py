"""Limits of HTTP/2 connections, and settings of those to workers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from balancer.http.h1.response_head import HEAD_LIMIT

WINDOW: Final = 1 << 30
"""Flow-control window of a connection in bytes: never the narrower one, since the library returns window of a stream
and of the connection together, and a stream whose reader is slow must not withhold that of the others."""

LONGEST_FRAME: Final = 16_384
"""Maximum payload of a frame: the default, which we do not raise (§ 4.2)."""

PIECE: Final = 32_768
ACK_LIMIT: Final = 4096
"""Bytes of a read that are parsed before answers are sent, and answers to PING and SETTINGS that may wait: more than a
piece may cause, so only for a peer that does not read."""

ASSUMED_STREAMS: Final = 100
UNLIMITED: Final = 2**32 - 1
"""Maximum concurrent streams before the peer's SETTINGS arrive, and if these do not limit them (§ 6.5.2)."""

LARGEST_HEAD: Final = 1 << 20
"""Maximum bytes of an outgoing header block: above all that we send."""

HARD_LIMIT_RATIO: Final = 4
"""A header list larger than this multiple of the advertised size ends the connection."""

FRAMES_PER_HEAD: Final = 10
FRAMES_PER_PART: Final = 4
BYTES_PER_FRAME: Final = 16
"""Idle frames that the peer may send for each head, idle frames for each part of a body that it gets (WINDOW_UPDATE of
stream and connection, PING, and one to spare), and bytes that it gets for each further one. A window of 64 bytes, with
two WINDOW_UPDATE frames for each, is twice as much; a window of one byte is a flood (CVE-2019-9511)."""

MOST_ALLOWED: Final = 64
"""Multiple of `idle_frames` up to which progress allows idle frames in advance: the client that acknowledges what it
got in many seconds may do so at once."""

LAST_ID: Final = 2**31 - 2**20
LOST_LIMIT: Final = WINDOW // 4
"""Stream id, and bytes of the connection's window that are lost, from which on a connection `is_worn`."""

TICK: Final = 1.0
"""Seconds between two calls of `Engine.tick`."""

LINGER_TICKS: Final = 1
LONGEST_LINGER: Final = 30
"""Ticks for which a client that has been answered may send nothing of its request, and may go on sending it, before its
stream is reset."""

LEAVING: Final = b"leaving!"
"""PING between the two GOAWAY frames of a shutdown."""


FIELD_OVERHEAD: Final = 32
"""Bytes that each field counts beside its name and value in a header list (§ 6.5.2)."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of a connection.

    `streams`: MAX_CONCURRENT_STREAMS for the peer. `stream_window` in bytes: how much of a body the peer may send
    before `acknowledge`. `header_list`: advertised size of a header list in bytes, with 32 for each field (§ 6.5.2).
    `idle_frames`: frames without progress of a message between two ticks, beyond those that progress allows. `resets`:
    streams that may end early at once by the peer's reset or fault, and `resets_per_tick` from then on.
    """

    streams: int = 100
    stream_window: int = 262_144
    header_list: int = 65_536
    idle_frames: int = 1000
    resets: int = 1000
    resets_per_tick: int = 33

    @property
    def continuations(self) -> int:
        """Maximum CONTINUATION frames of a head: those of one of twice the advertised size, 8 at least."""
        return max(8, 2 * self.header_list // LONGEST_FRAME)


IDLE_LIMIT: Final = 5000
"""Maximum consecutive frames that advance no response: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, interim responses,
empty DATA."""

STREAM_WINDOW: Final = 262_144
"""Flow-control window of a stream in bytes: limits the memory of a slow client's response, and the throughput per round
trip."""

WORKER_LIMITS: Final = Http2Limits(
    stream_window=STREAM_WINDOW, header_list=HEAD_LIMIT, idle_frames=IDLE_LIMIT
)

MAX_STREAMS: Final = 1000
"""Maximum concurrent streams, whatever the worker allows."""

PING_AFTER: Final = 10.0
PING_WAIT: Final = 10.0
"""Seconds without data from the worker until a PING is sent, and until the connection is closed without an answer."""
