"""Client of the table: sends a row, reads the response, and tries another request; `verdicts.py` judges the result."""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError
from dataclasses import dataclass, field

from tests.balancer.http.http_rows.recorder import RecordedRequest, Recorder, deliver, value_of
from tests.balancer.http.http_rows.row import CRLF, NEXT, Row
from tests.support.wire import Wire


@dataclass
class Answer:
    """A received response; `body` without its framing."""

    head: bytes
    body: bytes = b""
    trailers: list[bytes] = field(default_factory=list)
    is_last: bool = False
    """The connection ends with the response."""

    @property
    def status(self) -> int:
        return int(self.head[9:12])


@dataclass
class Seen:
    """Observations of a row at client and worker."""

    interims: list[Answer] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    end: str = ""
    begun: list[RecordedRequest] = field(default_factory=list)
    whole: list[RecordedRequest] = field(default_factory=list)


async def read_answer(wire: Wire, to_head: bool) -> Answer:
    """Read a response; raises IncompleteReadError or ConnectionError if it is truncated."""
    answer = Answer(await wire.until(CRLF + CRLF))
    length, coding = value_of(answer.head, b"content-length"), value_of(answer.head, b"transfer-encoding")
    answer.is_last = (value_of(answer.head, b"connection") or b"").lower() == b"close"
    if to_head or answer.status < 200 or answer.status in (204, 304):
        return answer
    if coding is not None:
        answer.body, answer.trailers = await wire.chunks()
    elif length is not None:
        answer.body = await wire.exactly(int(length))
    else:
        answer.body = await wire.rest()
        answer.is_last = True
    return answer


async def _worker_has_closed() -> None:
    """Give the worker's FIN time to reach the proxy before the next request."""
    for _ in range(20):
        await asyncio.sleep(0)


class Client:
    """Plays one row on `wire`; `step`: bytes per write, 0: one write.

    `is_ahead`: the next request is sent in the same write where the row allows it.
    """

    def __init__(self, row: Row, wire: Wire, step: int, is_ahead: bool) -> None:
        self._row = row
        self._wire = wire
        self._step = step
        self._is_ahead = is_ahead and not row.is_alone
        self.seen = Seen()

    async def play(self, recorder: Recorder) -> Seen:
        """Send the row, read the responses, and try the next request."""
        recorder.play(self._row, self._step)
        seen = self.seen
        try:
            await self._send()
            for _ in range(1 + len(self._row.more)):
                seen.answers.append(await self._final())
            seen.end = await self._next()
        except IncompleteReadError:
            seen.end = "short"
        except ConnectionError:
            seen.end = "cut"
        except TimeoutError:
            seen.end = "waits"
        except ValueError:
            seen.end = "unreadable"
        return seen

    async def _send(self) -> None:
        await deliver(self._wire, self._row.sent + (NEXT if self._is_ahead else b""), self._step)
        if self._row.leaves:
            self._wire.half_close()

    async def _final(self) -> Answer:
        """Read the next final response; after a 100 send the rest."""
        to_head = self._row.sent.startswith(b"HEAD ") and not self.seen.answers
        while (answer := await read_answer(self._wire, to_head)).status in range(100, 200):
            self.seen.interims.append(answer)
            if answer.status == 100 and self._row.then:
                await deliver(self._wire, self._row.then, self._step)
        return answer

    async def _next(self) -> str:
        """How the connection serves the next request."""
        try:
            if self.seen.answers[-1].is_last or self._row.leaves:
                return "more bytes" if await self._wire.some() else "closed"
            if not self._is_ahead:
                await _worker_has_closed()
                await self._wire.send(NEXT)
            answer = await read_answer(self._wire, to_head=False)
        except (IncompleteReadError, ConnectionError) as error:
            return "more bytes" if isinstance(error, IncompleteReadError) and error.partial else "closed"
        return "kept" if answer.body == b"/next" else "mixed up"
