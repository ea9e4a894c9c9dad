"""Strict and lenient HTTP readers, independent of the balancer's parser, for the bytes that it writes.

The strict one is h11, which accepts nothing beyond RFC 9112. The lenient one accepts what careless servers accept:
bare LF, folded lines, space before the colon, any Transfer-Encoding that contains "chunked", and the first or the
last of several lengths. If readers so different see the same messages, none can be made to see another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h11

Fields = list[tuple[bytes, bytes]]

MOST = 1 << 24
"""Largest head that h11 reads, in bytes."""


class Unreadable(Exception):
    """The strict reader does not accept these bytes."""


@dataclass(slots=True)
class Read:
    """A message: where it starts, the parts of its first line, and whether it is complete."""

    start: int
    line: tuple[bytes, ...]
    fields: Fields
    body: bytes = b""
    trailers: Fields | None = None
    is_whole: bool = False

    @property
    def gist(self) -> tuple[int, tuple[bytes, ...], bytes, bool]:
        """The parts on which all readers must agree."""
        return self.start, self.line, self.body, self.is_whole


def strict_requests(data: bytes) -> list[Read]:
    """The requests that h11 reads in the bytes at a worker; raises `Unreadable`."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST)
    seen: list[Read] = []
    if data:
        connection.receive_data(data)
    at = 0
    while (event := _next(connection)) is not h11.NEED_DATA:
        if isinstance(event, h11.Request):
            line = (event.method, event.target, b"HTTP/" + event.http_version)
            seen.append(Read(at, line, list(event.headers.raw_items())))
        elif isinstance(event, h11.Data):
            seen[-1].body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            seen[-1].trailers, seen[-1].is_whole = list(event.headers.raw_items()), True
            at = len(data) - len(connection.trailing_data[0])
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            if connection.states[h11.CLIENT] is h11.MUST_CLOSE:
                return seen
            connection.start_next_cycle()
        else:
            break
    if not (seen and not seen[-1].is_whole) and connection.trailing_data[0]:
        raise Unreadable(f"after {len(seen)} requests: {connection.trailing_data[0]!r}")
    return seen


def strict_responses(data: bytes, methods: Sequence[bytes], is_ended: bool) -> list[Read]:
    """The responses, with interim ones, that h11 reads in the bytes at a client; raises `Unreadable`.

    `methods` are those of its requests; `is_ended`: the connection ended cleanly after the bytes.
    """
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST)
    seen: list[Read] = []
    at = 0
    for number, method in enumerate(methods if data else ()):
        connection.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"x")]))
        connection.send(h11.EndOfMessage())
        if not number:
            connection.receive_data(data)
            if is_ended:
                connection.receive_data(b"")
        for event in _events(connection):
            if isinstance(event, h11.InformationalResponse | h11.Response):
                line = (b"HTTP/" + event.http_version, b"%d" % event.status_code, event.reason)
                seen.append(Read(at, line, list(event.headers.raw_items())))
                if isinstance(event, h11.InformationalResponse):
                    seen[-1].is_whole = True
            elif isinstance(event, h11.Data):
                seen[-1].body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                seen[-1].trailers, seen[-1].is_whole = list(event.headers.raw_items()), True
            at = len(data) - len(connection.trailing_data[0])
        if connection.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            break
        connection.start_next_cycle()
        if not connection.trailing_data[0]:
            break
    rest = connection.trailing_data[0]
    if rest and (not seen or seen[-1].is_whole):
        raise Unreadable(f"after {len(seen)} responses to {len(methods)} requests: {rest!r}")
    return seen


def _events(connection: h11.Connection) -> Iterator[object]:
    """Events up to the end of a message or of the bytes."""
    while True:
        event = _next(connection)
        if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
            return
        yield event
        if isinstance(event, h11.EndOfMessage):
            return


def _next(connection: h11.Connection) -> object:
    try:
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        if "peer closed connection" in str(error) or "peer unexpectedly closed" in str(error):
            return h11.NEED_DATA  # truncated: no message, and no error in its bytes
        raise Unreadable(str(error)) from error


class Lenient:
    """One pass over all bytes of a direction. `takes_last`: the last of several lengths counts, else the first.

    `read` is the end of the last complete request.
    """

    def __init__(self, data: bytes, takes_last: bool) -> None:
        self._data = data
        self._takes_last = takes_last
        self._at = 0
        self.read = 0

    def requests(self) -> list[Read]:
        """Every request; the last one may be incomplete."""
        seen: list[Read] = []
        while (message := self._head()) is not None:
            seen.append(message)
            self._read_body(message, None)
            if not message.is_whole:
                break
            self.read = self._at
        return seen

    def responses(self, methods: Sequence[bytes], is_ended: bool) -> list[Read]:
        """Every response to `methods`, with interim ones; `is_ended` allows a body to end with the connection."""
        seen: list[Read] = []
        waiting = [*methods]
        while (message := self._head()) is not None:
            seen.append(message)
            status = message.line[1] if len(message.line) > 1 else b""
            if status.startswith(b"1"):
                message.is_whole = True
                continue
            method = waiting.pop(0) if waiting else b""
            if method == b"HEAD" or status in (b"204", b"304"):
                message.is_whole = True
            else:
                self._read_body(message, is_ended)
            if not message.is_whole:
                break
        return seen

    def _line(self) -> bytes | None:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            return None
        line, self._at = self._data[self._at : end], end + 1
        return line.removesuffix(b"\r")

    def _head(self) -> Read | None:
        while self._data[self._at : self._at + 1] in (b"\r", b"\n"):
            self._at += 1
        start = self._at
        first = self._line()
        if first is None:
            return None
        fields = self._fields()
        if fields is None:
            return None
        return Read(start, tuple(first.split(b" ", 2)), fields)

    def _fields(self) -> Fields | None:
        fields: Fields = []
        while (line := self._line()) is not None:
            if not line:
                return fields
            if line[:1] in b" \t" and fields:
                fields[-1] = fields[-1][0], fields[-1][1] + b" " + line.strip()
            else:
                name, _, value = line.partition(b":")
                fields.append((name.strip(), value.strip()))
        return None

    def _read_body(self, message: Read, until_close: bool | None) -> None:
        values = [(name.lower(), value.lower()) for name, value in message.fields]
        lengths = [value for name, value in values if name == b"content-length"]
        if any(name == b"transfer-encoding" and b"chunked" in value for name, value in values):
            self._read_chunks(message)
        elif lengths:
            digits = re.match(rb"\d+", lengths[-1 if self._takes_last else 0])
            self._take(message, int(digits[0]) if digits else 0)
        elif until_close is None:
            message.is_whole = True
        else:
            self._take(message, len(self._data) - self._at)
            message.is_whole = until_close

    def _take(self, message: Read, size: int) -> None:
        piece = self._data[self._at : self._at + size]
        message.body += piece
        self._at += len(piece)
        message.is_whole = len(piece) == size

    def _read_chunks(self, message: Read) -> None:
        while (line := self._line()) is not None:
            digits = re.match(rb"\s*([0-9a-f]+)", line.lower())
            size = int(digits[1], 16) if digits else 0
            if not size:
                message.trailers = self._fields()
                message.is_whole = message.trailers is not None
                return
            self._take(message, size)
            if not message.is_whole:
                return
            message.is_whole = False
            self._line()


def requests_seen(data: bytes) -> list[Read]:
    """The requests of the strict reader, if all readers agree; raises `Unreadable` or AssertionError."""
    seen = strict_requests(data)
    for takes_last in (False, True):
        others = Lenient(data, takes_last).requests()
        assert [one.gist for one in seen] == [one.gist for one in others], bytes(data)
    return seen


def responses_seen(data: bytes, methods: Sequence[bytes], is_ended: bool) -> list[Read]:
    """As `requests_seen`, for what a client got in response to `methods`."""
    seen = strict_responses(data, methods, is_ended)
    for takes_last in (False, True):
        others = Lenient(data, takes_last).responses(methods, is_ended)
        assert [one.gist for one in seen] == [one.gist for one in others], bytes(data)
    return seen
