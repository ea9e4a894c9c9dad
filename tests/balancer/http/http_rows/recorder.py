"""Worker of the table: records raw requests with a lenient parser of its own, and answers as the row specifies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from tests.balancer.http.http_rows.row import CRLF, Row
from tests.support.wire import Wire


@dataclass
class RecordedRequest:
    """A received request; `body` without its framing."""

    head: bytes
    body: bytes = b""
    trailers: list[bytes] = field(default_factory=list)

    @property
    def line(self) -> bytes:
        return self.head.split(CRLF)[0]

    @property
    def target(self) -> bytes:
        words = self.line.split(b" ")
        return words[1] if len(words) > 1 else b""


def value_of(head: bytes, name: bytes) -> bytes | None:
    """First value of a field; `name` in lower case."""
    for line in head.split(CRLF)[1:]:
        before, colon, value = line.partition(b":")
        if colon and before.strip().lower() == name:
            return value.strip()
    return None


def echo(request: RecordedRequest) -> bytes:
    """Default response: 200 with the target as the body."""
    body = request.target
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head if request.line.startswith(b"HEAD ") else head + body


class Recorder:
    """Records requests: `begun` with a complete head, `whole` with a complete body."""

    def __init__(self) -> None:
        self.row: Row | None = None
        self.step = 0
        self.begun: list[RecordedRequest] = []
        self.whole: list[RecordedRequest] = []

    def play(self, row: Row, step: int) -> None:
        """Switch to `row`; its response is sent in pieces of `step` bytes, 0: in one."""
        self.row, self.step = row, step
        self.begun, self.whole = [], []

    async def __call__(self, wire: Wire) -> None:
        with suppress(TimeoutError, ValueError):
            while True:
                request = RecordedRequest(await wire.until(CRLF + CRLF))
                self.begun.append(request)
                if not await self._answer(request, wire):
                    break

    async def _answer(self, request: RecordedRequest, wire: Wire) -> bool:
        """Answer; return whether the connection stays open."""
        row = self.row
        assert row is not None
        is_next = request.target == b"/next"
        if row.early and not is_next:
            await wire.send(row.early)
            if not row.early.startswith(b"HTTP/1.1 1"):
                await wire.closed()
                return False
        await self._read_body(request, wire)
        self.whole.append(request)
        if is_next:
            await wire.send(echo(request))
            return True
        await deliver(wire, row.answer or echo(request), self.step)
        if row.last == "rst":
            wire.reset()
        return not row.last

    async def _read_body(self, request: RecordedRequest, wire: Wire) -> None:
        if value_of(request.head, b"transfer-encoding") is not None:
            request.body, request.trailers = await wire.chunks()
        else:
            length = value_of(request.head, b"content-length") or b"0"
            request.body = await wire.exactly(int(length) if length.isdigit() else 0)


async def deliver(wire: Wire, data: bytes, step: int) -> None:
    """Send in pieces of `step` bytes; at most about a thousand pieces."""
    size = max(step, len(data) // 1000) if step else len(data)
    for at in range(0, len(data), max(size, 1)):
        await wire.send(data[at : at + size])
        await asyncio.sleep(0)
