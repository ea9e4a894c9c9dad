"""Frames of HTTP/2 as they are cut out of a connection's bytes (RFC 9113 § 4.1), and what GOAWAY says.

Rule of this file: it looks at nine bytes of each frame; what they mean is the library's to know. Two things are learned
here that it would not tell: which frame it was that broke a rule, and that streams go on after a GOAWAY, behind which
it takes no more frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from balancer.errors import MalformedResponse

SETTINGS, GOAWAY = 4, 7

LONGEST = 16_384
"""Bytes of a frame's payload; we ask for no more (§ 4.2)."""

IDLE_LIMIT = 5000
"""Frames in a row that bring no response further: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, interim responses, empty
DATA. Each costs some 20 µs, and those of one read hold everybody else up."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`stream_id` 0 is the connection; `data` is all of the frame."""

    kind: int
    stream_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY (§ 6.8): what came on streams above `last` was not looked at."""

    last: int
    code: int


class Frames:
    """The frames of one connection. `idle` counts them; whoever makes progress, or sees time pass, sets it to 0."""

    def __init__(self) -> None:
        self.idle = 0
        self._kept = b""
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Those that have come whole. Raises `MalformedResponse` for what is no HTTP/2, and for a flood."""
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
        """The first frame is the worker's SETTINGS (§ 3.4)."""
        if data.startswith(b"HTTP/"):
            raise MalformedResponse("the worker answers in HTTP/1, not in HTTP/2")
        if data[3] != SETTINGS or data[5:9] != b"\0\0\0\0":
            raise MalformedResponse("the worker does not speak HTTP/2")
        self._has_begun = True


def goaway_of(frame: Frame) -> GoAway:
    """Read a GOAWAY. Raises `MalformedResponse`."""
    if len(frame.data) < 17 or frame.stream_id:
        raise MalformedResponse("a GOAWAY that is none")
    last = int.from_bytes(frame.data[9:13], "big") & 0x7FFFFFFF
    return GoAway(last, int.from_bytes(frame.data[13:17], "big"))
