"""Where a message's body ends, and its bytes without framing.

Rule of this file: strict, and the same for requests and responses. Whoever reads a message's end at another place than
its receiver opens the door to a second message in its body, so nothing is repaired: a chunk is as RFC 9112 § 7.1
writes it, or the message is malformed. What passes is framed anew on the other side.

    pieces = body.feed(data)    bytes of the body, in order
    body.is_ended, body.rest    its end has come; what follows it
    body.trailers               a block of fields (`fields.py`), b"" without any
"""

from __future__ import annotations

import re
from typing import Final

from balancer.errors import BodyTooLarge, MalformedBody
from balancer.messages.fields import Framing

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_EXTENSION: Final = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*" % _EXTENSION)
"""Fifteen digits are an exabyte; sixteen would overflow somebody's integer."""

_SIZE_BEGINS: Final = re.compile(rb"[0-9A-Fa-f]{1,15}(?:[ \t;][^\n]*)?\r?|")
"""What may stand at the begin of such a line: anything else need not be waited for."""

_TRAILERS: Final = re.compile(rb"(?:\r\n%b:[\t\x20-\x7e\x80-\xff]*)*+" % _TOKEN)

SIZE_LINE_LIMIT: Final = 1024
"""Bytes of a chunk's size and extensions (RFC 9112 § 7.1.1 asks for some limit)."""

_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


class Body:
    """Bytes until the connection closes (RFC 9112 § 6.3, case 8); the others say where theirs end."""

    def __init__(self) -> None:
        self.is_ended = False
        self.rest = b""
        self.trailers = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body in `data`, none of them empty. Raises `MalformedBody`, `BodyTooLarge`."""
        return [data] if data else []


class SizedBody(Body):
    """As many bytes as Content-Length says."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size
        self.is_ended = not size

    def feed(self, data: bytes) -> list[bytes]:
        size = len(data)
        if size < self._left:
            self._left -= size
            return [data] if data else []
        left, self._left = self._left, 0
        self.is_ended = True
        if size == left:
            return [data] if data else []
        self.rest = data[left:]
        return [data[:left]] if left else []


class ChunkedBody(Body):
    """Chunks, the last of which is empty, and trailers; at most `limit` bytes, and `trailers_limit` trailers of
    `trailer_limit` bytes together."""

    def __init__(
        self, limit: int | None = None, trailer_limit: int = 32_768, trailers_limit: int = 100
    ) -> None:
        super().__init__()
        self._limit = limit
        self._trailer_limit = trailer_limit
        self._trailers_limit = trailers_limit
        self._state = _SIZE
        self._kept = b""  # of a line that has not ended
        self._left = 0  # of the chunk
        self._total = 0
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        self._data = self._kept + data if self._kept else data
        self._at = 0
        self._kept = b""
        while not self.is_ended and self._step(pieces):
            pass
        if self.is_ended:
            self.rest = self._data[self._at :]
        elif self._at < len(self._data):
            self._kept = self._data[self._at :]
        self._data = b""
        return pieces

    def _step(self, pieces: list[bytes]) -> bool:
        """One line or piece further; False where more bytes are needed."""
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
        self._total += self._left
        if self._limit is not None and self._total > self._limit:
            raise BodyTooLarge(f"at most {self._limit} bytes of body")
        self._at = end + 2
        self._state = _DATA if self._left else _TRAILER
        if not self._left:
            self._at = end  # the CRLF is also the begin of the block of trailers
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
        """From the CRLF of the last chunk's line to the empty line."""
        end = self._data.find(b"\r\n\r\n", self._at)
        size = (end if end >= 0 else len(self._data)) - self._at
        if size > self._trailer_limit:
            raise MalformedBody(f"more than {self._trailer_limit} bytes of trailers")
        if end < 0:
            return False
        block = self._data[self._at : end]
        if block.count(b"\n") > self._trailers_limit:
            raise MalformedBody(f"more than {self._trailers_limit} trailers")
        if not _TRAILERS.fullmatch(block):
            raise MalformedBody("the trailers are no fields")
        self.trailers = block + b"\r\n" if block else b""
        self._at = end + 4
        self.is_ended = True
        return True


def body_of(framing: Framing, length: int) -> Body:
    """What reads the body of a message that has one."""
    if framing is Framing.LENGTH:
        return SizedBody(length)
    return ChunkedBody() if framing is Framing.CHUNKED else Body()
