"""Frames of received bytes, without a look into them: where input may be divided.

The library parses all that it is given, so input that holds many small frames has to be divided before.
"""

from __future__ import annotations

from typing import Final

from balancer.http.h1.body import SMALL_BYTES

FRAME_HEAD: Final = 9
"""Bytes before the payload of a frame (§ 4.1)."""

PREFACE_SIZE: Final = 24
"""Bytes before a client's first frame (§ 3.4)."""

_DATA: Final = 0
_HEADERS: Final = 1
_RST_STREAM: Final = 3
_END_STREAM: Final = 1


class FrameScanner:
    """Reads the lengths of a client's frames. `small`: small frames of the last piece, apart from those of which a
    request has one, its head and the end of its body."""

    def __init__(self) -> None:
        self._rest = PREFACE_SIZE  # bytes until the next frame
        self.small = 0

    def end_of_piece(self, data: bytes, at: int, limit: int, heads: int) -> int:
        """Return the end of a piece that begins at `at`, and has at most `limit` small frames and `heads` heads of
        requests. A frame's length that has not come as a whole is left over."""
        size, small = len(data), 0
        at += self._rest
        while at + FRAME_HEAD <= size and small < limit:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind = data[at + 3]
            if kind == _HEADERS:
                if not heads:
                    break
                heads -= 1
            elif length < SMALL_BYTES and (kind != _DATA or not data[at + 4] & _END_STREAM):
                small += 1
            at += FRAME_HEAD + length
        self.small = small
        self._rest = max(0, at - size)
        return min(at, size)

    def has_more_resets(self, data: bytes, at: int, most: int) -> bool:
        """Return whether `data` has more than `most` resets from `at` on: a flood is known before it is parsed."""
        size, found = len(data), 0
        at += self._rest
        while at + FRAME_HEAD <= size and found <= most:
            found += data[at + 3] == _RST_STREAM
            at += FRAME_HEAD + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
        return found > most
