"""Body framing: find the end of a message body, and remove its framing.

Strict, for requests and responses alike. A sender and a receiver that disagree on the end of a message allow request
smuggling, so nothing is repaired: a chunk that deviates from RFC 9112 § 7.1 makes the message malformed. The forwarded
body is framed anew.

    piece = body.feed(data)     bytes of the body: those of many chunks in one read are one piece
    body.is_canonical           the data fed last consists of whole chunks without anything but a size, and of no more
                                framing than is worth it: it may be forwarded as it came
    body.is_ended, body.rest    the body is complete; the bytes that follow it
    body.trailers               a block of fields (`fields.py`), b"" without any
"""

from __future__ import annotations

import re
from typing import Final

from balancer.errors import BodyTooLarge, MalformedBody
from balancer.http.h1.fields import Framing

# Groups are repeated within `(?>…)`: before CPython 3.11.5, `(…)*+` also takes what a failing iteration has matched.
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_OPEN_QUOTES: Final = rb'"(?>(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*)'
_EXTENSION: Final = rb'[ \t]*+;[ \t]*+%b(?>(?:[ \t]*+=[ \t]*+(?:%b|%b"))?)' % (_TOKEN, _TOKEN, _OPEN_QUOTES)
_OPEN_EXTENSION: Final = rb"[ \t]*+(?:;[ \t]*+(?:%b[ \t]*+(?:=[ \t]*+(?:%b\\?)?)?)?)?" % (
    _TOKEN,
    _OPEN_QUOTES,
)

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15}+)(?>(?:%b)*)" % _EXTENSION)
"""Fifteen hexadecimal digits are an exabyte; sixteen would overflow a signed 64-bit integer."""

_SIZE_BEGINS: Final = re.compile(rb"(?:[0-9A-Fa-f]{1,15}+(?:%b)*(?:\r|%b))?" % (_EXTENSION, _OPEN_EXTENSION))
"""All legal prefixes of such a line and of its CRLF: any other input is rejected without waiting for more."""

_TRAILERS: Final = re.compile(rb"(?>(?:%b:[\t\x20-\x7e\x80-\xff]*+\r\n)*)" % _TOKEN)
_TRAILER_BEGINS: Final = re.compile(rb"(?:%b(?::[\t\x20-\x7e\x80-\xff]*+\r?)?|\r)?" % _TOKEN)
"""All legal prefixes of a trailer, and of the empty line behind the last one."""

MOST_DIGITS: Final = 8
"""Digits of a chunk's size up to which it is parsed without an expression: such a chunk comes in one read."""

WORTH_ONE: Final = 8
"""Bytes of body that are worth a byte of framing: smaller chunks of one read are joined."""

LAST_CHUNK: Final = b"0\r\n\r\n"

SMALL_BYTES: Final = 512
"""Bytes of a chunk, or of a frame, below which it counts as small: it costs one to four microseconds, whatever it
brings."""

UNLIMITED: Final = 1 << 62

SIZE_LINE_LIMIT: Final = 1024
"""Bytes of a chunk's size and extensions (RFC 9112 § 7.1.1 asks for some limit)."""

_SIZE: Final = 0
_DATA: Final = 1
_DATA_END: Final = 2
_TRAILER: Final = 3
"""Parser state: what comes next."""

_CR: Final = 0x0D
_LF: Final = 0x0A
_ZERO: Final = 0x30
_NINE: Final = 0x39
_A: Final = 0x61
_F: Final = 0x66
_LOWER: Final = 0x20
"""Bit that distinguishes the letters a to f from A to F."""


class Body:
    """Body that ends when the connection closes (RFC 9112 § 6.3, case 8); base of the other framings.

    `parts_left`: chunks of less than `SMALL_BYTES` that may be parsed, which the owner sets. `is_late`: bytes behind
    them have been kept, for the next `feed`.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self.is_canonical = False
        self.rest = b""
        self.trailers = b""
        self.parts_left = UNLIMITED
        self.is_late = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in `data`. Raises `MalformedBody`, `BodyTooLarge`."""
        return data


class SizedBody(Body):
    """Body with the length given by Content-Length."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size
        self.is_ended = not size

    def feed(self, data: bytes) -> bytes:
        size = len(data)
        if size < self._left:
            self._left -= size
            return data
        left, self._left = self._left, 0
        self.is_ended = True
        if size == left:
            return data
        self.rest = data[left:]
        return data[:left]


class ChunkedBody(Body):
    """Body in chunked framing (RFC 9112 § 7.1).

    At most `limit` bytes, and `trailers_limit` trailers of `trailer_limit` bytes together.
    """

    def __init__(
        self, limit: int | None = None, trailer_limit: int = 32_768, trailers_limit: int = 100
    ) -> None:
        super().__init__()
        self._limit = limit
        self._trailer_limit = trailer_limit
        self._trailers_limit = trailers_limit
        self._state = _SIZE
        self._left = 0  # bytes left of the chunk
        self._total = 0
        self._data = b""  # from `_at` on, what has not been parsed
        self._at = 0
        self._begin = 0  # of the data of a whole chunk
        self._lines = b""  # complete lines of the trailer section

    def feed(self, data: bytes) -> bytes:
        self.is_canonical = self.is_late = False
        if self._state == _SIZE and not (self._data or self.is_ended):
            end, at = self._whole_chunk(data, 0), 0
            if end and end == len(data):
                self.is_canonical = True
                return data[self._begin : end - 2]
            pieces = []
            while end:
                pieces.append(data[self._begin : end - 2])
                at, end = end, self._whole_chunk(data, end)
            if at and at == len(data):
                piece = b"".join(pieces)
                self.is_canonical = at <= len(piece) + len(piece) // WORTH_ONE
                return piece
            data = data[at:] if at else data
            if data == LAST_CHUNK:
                self.is_ended = True
                return b"".join(pieces)
        else:
            pieces = []
        if data:
            self._data = self._data[self._at :] + data if self._data else data
            self._at = 0
        while (self.parts_left > 0 or self._state != _SIZE) and not self.is_ended and self._step(pieces):
            pass
        if self.is_ended:
            self.rest, self._data = self._data[self._at :], b""
        elif self.parts_left <= 0 and self._state == _SIZE and self._at < len(self._data):
            self.is_late = True
        else:
            self._data, self._at = self._data[self._at :], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _whole_chunk(self, data: bytes, at: int) -> int:
        """Return the end of the chunk at `at`, and set `_begin` to its data; 0 if not all of it has come, if it has an
        extension or a leading zero, or if its turn has not: `_step` judges it then."""
        end = len(data)
        if at >= end or self.parts_left <= 0 or data[at] == _ZERO:
            return 0
        size, begin, stop = 0, at, at + MOST_DIGITS
        if stop >= end:
            stop = end - 1
        while begin < stop:
            byte = data[begin]
            if _ZERO <= byte <= _NINE:
                size = size * 16 + byte - _ZERO
            elif _A <= byte | _LOWER <= _F:
                size = size * 16 + (byte | _LOWER) - _A + 10
            else:
                break
            begin += 1
        begin, stop = begin + 2, begin + 2 + size
        if not size or stop + 2 > end or data[begin - 2] != _CR or data[begin - 1] != _LF:
            return 0
        if data[stop] != _CR or data[stop + 1] != _LF:
            return 0
        self._count_chunk(size)
        self._begin = begin
        return stop + 2

    def _count_chunk(self, size: int) -> None:
        self._total += size
        if 0 < size < SMALL_BYTES:
            self.parts_left -= 1
        if self._limit is not None and self._total > self._limit:
            raise BodyTooLarge(f"at most {self._limit} bytes of body")

    def _step(self, pieces: list[bytes]) -> bool:
        """Parse one line or piece. Returns False if more bytes are needed."""
        if self._state == _DATA:
            return self._take_data(pieces)
        if self._state == _SIZE:
            return self._take_size()
        if self._state == _DATA_END:
            return self._take_data_end()
        return self._take_trailers()

    def _take_size(self) -> bool:
        end = self._data.find(b"\r\n", self._at)
        line = self._data[self._at : end] if end >= 0 else self._data[self._at :]
        if len(line) > SIZE_LINE_LIMIT:
            raise MalformedBody(f"a chunk's size line has more than {SIZE_LINE_LIMIT} bytes")
        match = (_SIZE_LINE if end >= 0 else _SIZE_BEGINS).fullmatch(line)
        if match is None:
            raise MalformedBody("a chunk's size is not hexadecimal, or its extension not legal")
        if end < 0:
            return False
        self._left = int(match[1], 16)
        self._count_chunk(self._left)
        self._at = end + 2
        self._state = _DATA if self._left else _TRAILER
        return True

    def _take_data(self, pieces: list[bytes]) -> bool:
        data = self._data
        piece = data[self._at : self._at + self._left] if self._at or self._left < len(data) else data
        if not piece:
            return False
        pieces.append(piece)
        self._at += len(piece)
        self._left -= len(piece)
        if not self._left:
            self._state = _DATA_END
        return True

    def _take_data_end(self) -> bool:
        end = self._data[self._at : self._at + 2]
        if end != b"\r\n":
            if b"\r\n".startswith(end):
                return False
            raise MalformedBody("a chunk is longer than its size")
        self._at += 2
        self._state = _SIZE
        return True

    def _take_trailers(self) -> bool:
        """Parse the complete lines of the trailer section, and judge what has come of the next one."""
        data = self._data
        lines = _TRAILERS.match(data, self._at)
        end = self._at if lines is None else lines.end()
        self._lines += data[self._at : end]
        self.is_ended = data.startswith(b"\r\n", end)
        self._at = end + 2 if self.is_ended else end
        begun = data[self._at :] if not self.is_ended else b""
        if begun and _TRAILER_BEGINS.fullmatch(begun) is None:
            raise MalformedBody("a trailer is not name, colon, value and CRLF")
        if begun == b"\r":  # of the empty line, perhaps
            begun = b""
        if len(self._lines) + len(begun) > self._trailer_limit:
            raise MalformedBody(f"more than {self._trailer_limit} bytes of trailers")
        if self._lines.count(b"\n") + (begun != b"") > self._trailers_limit:
            raise MalformedBody(f"more than {self._trailers_limit} trailers")
        if self.is_ended and self._lines:
            self.trailers = b"\r\n" + self._lines
        return False


def body_of(framing: Framing, length: int) -> Body:
    """Return a reader for the body of a message that has one."""
    if framing is Framing.LENGTH:
        return SizedBody(length)
    return ChunkedBody() if framing is Framing.CHUNKED else Body()
