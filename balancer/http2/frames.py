"""Cut a connection's bytes into HTTP/2 frames (RFC 9113 § 4.1), and parse GOAWAY.

Parses only the nine bytes of each frame's header; h2 parses the rest. Provides two things that h2 does not: which frame
violated the protocol, and streams that continue after a GOAWAY, after which h2 accepts no more frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from balancer.errors import MalformedResponse

SETTINGS, GOAWAY = 4, 7

LONGEST = 16_384
"""Maximum bytes of a frame's payload: the default, which we do not raise (§ 4.2)."""

IDLE_LIMIT = 5000
"""Maximum consecutive frames that advance no response: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, interim responses,
empty DATA. Each costs some 20 µs, and those of one read delay all other work."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame. `stream_id` 0 is the connection; `data` is the whole frame, header included."""

    kind: int
    stream_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY (§ 6.8): streams above `last` were not processed."""

    last: int
    code: int


class Frames:
    """Frame parser of one connection.

    `idle` counts frames without progress; the connection resets it to 0 on progress and with each sweep.
    """

    def __init__(self) -> None:
        self.idle = 0
        self._kept = b""
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames. Raises `MalformedResponse` for input that is not HTTP/2, and for a flood of idle
        frames."""
        data = self._kept + data if self._kept else data
        at, size = 0, len(data)
        if not self._has_begun and size >= 9:
            self._begin(data)
        while size - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if length > LONGEST:
                raise MalformedResponse(f"a frame of {length} bytes, where {LONGEST} are allowed")
            end = at + 9 + length
            if end > size:
                break
            self.idle += 1
            if self.idle > IDLE_LIMIT:
                raise MalformedResponse(f"more than {IDLE_LIMIT} frames in a row without a response")
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
            yield Frame(data[at + 3], stream_id, data[at:end])
            at = end
        self._kept = data[at:]

    def _begin(self, data: bytes) -> None:
        """Check that the first frame is the worker's SETTINGS (§ 3.4)."""
        if data.startswith(b"HTTP/"):
            raise MalformedResponse("the worker answers in HTTP/1, not in HTTP/2")
        if data[3] != SETTINGS or data[5:9] != b"\0\0\0\0":
            raise MalformedResponse("the worker does not speak HTTP/2")
        self._has_begun = True


def goaway_of(frame: Frame) -> GoAway:
    """Parse a GOAWAY frame. Raises `MalformedResponse`."""
    if len(frame.data) < 17 or frame.stream_id:
        raise MalformedResponse("a GOAWAY that is none")
    last = int.from_bytes(frame.data[9:13], "big") & 0x7FFFFFFF
    return GoAway(last, int.from_bytes(frame.data[13:17], "big"))
