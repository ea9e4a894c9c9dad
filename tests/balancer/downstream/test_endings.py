"""Who ended a request: access log, spans, recordings and counts agree, for HTTP/1.1 and HTTP/2.

A row is a request in some `state` that ends by an `event`. `status` is the logged one, in brackets if the client got no
response. `attempt` is the outcome charged to the endpoint.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from balancer.http.h2.events import CANCEL
from balancer.recording.recorder import ENDS
from tests.support.collector import TAKEN, spans_of
from tests.support.frames import WINDOW_UPDATE, frame
from tests.support.http2_client import WEBSOCKET, Http2Client, accept_of, fields, http2_client
from tests.support.log_entries import LogRecord, blocks
from tests.support.stage import Stage
from tests.support.wire import Wire, get

ENDINGS = """
state      event                end          reason             status  attempt    versions
whole      -                    ok           -                  200     ok         1 2
quiet      client leaves        abandoned    client_left        [499]   abandoned  1 2
begun      client leaves        abandoned    client_left        200     abandoned  1 2
queued     client leaves        abandoned    client_left        [499]   -          1 2
large      client takes nothing  abandoned    client_stalled     200     abandoned  1 2
quiet      stream is malformed  rejected     http2_error        [400]   abandoned  2
begun      stream is malformed  rejected     http2_error        200     abandoned  2
quiet      frames are malformed  rejected     http2_error        [400]   abandoned  2
begun      frames are malformed  rejected     http2_error        200     abandoned  2
quiet      worker leaves        reset        connection_broken  502     reset      1 2
begun      worker leaves        reset        connection_broken  200     reset      1 2
quiet      first_byte           timeout      response_timeout   504     timeout    1 2
begun      body_idle            timeout      response_timeout   200     timeout    1 2
quiet      total                timeout      request_timeout    504     timeout    1 2
uploading  request_idle         rejected     body_timeout       408     abandoned  1 2
uploading  client sends more    rejected     body_too_large     413     abandoned  1 2
queued     queue                unavailable  queue_timeout      503     -          1 2
queued     stop                 unavailable  shutting_down      [503]   -          1 2
uploading  stop                 unavailable  shutting_down      [503]   abandoned  1 2
quiet      stop                 unavailable  shutting_down      [503]   abandoned  1 2
begun      stop                 unavailable  shutting_down      200     abandoned  1 2
large      stop                 unavailable  shutting_down      200     abandoned  1 2
hedged     stop                 unavailable  shutting_down      [503]   abandoned  1 2
tunnel     worker closes        tunnel       -                  101     tunnelled  1 2
tunnel     client closes        tunnel       -                  101     tunnelled  1 2
tunnel     tunnel_idle          tunnel       tunnel_idle        101     tunnelled  1 2
tunnel     stop                 tunnel       shutting_down      101     tunnelled  1 2
tunnel     stream is malformed  tunnel       http2_error        101     tunnelled  2
tunnel     frames are malformed  tunnel       http2_error        101     tunnelled  2
"""

BEGUN = b"data: 1\n\n"
ANSWERS = {
    b"/whole": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"/begun": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BEGUN,
    b"/large": b"HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n" + bytes(16 << 20),
    b"/tunnel": b"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ",
}

NOT_COUNTED = ("client_left", "tunnel_idle")
"""Reasons that are no errors: `abandoned` counts the clients that left."""


def cases() -> Iterator[Any]:
    """The rows of the table, for each version."""
    for line in ENDINGS.strip().splitlines()[1:]:
        state, event, end, reason, status, attempt, versions = re.split("  +", line)
        for version in map(int, versions.split()):
            case = (state, event, end, reason.strip("-") or None, int(status.strip("[]")), "[" not in status,
                    attempt, version)  # fmt: skip
            yield pytest.param(*case, id=f"{state}-{event}-{version}".replace(" ", "_"))


class Ending:
    """A request in its state; `sent` is what the worker has answered."""

    def __init__(self, stage: Stage, state: str, version: int) -> None:
        self.stage = stage
        self.state = state
        self.version = version
        self.is_over = asyncio.Event()
        self.stream = 0
        self.client: Wire
        self.h2: Http2Client

    async def play(self, wire: Wire) -> None:
        """The script of the worker."""
        head = await wire.head()
        path = head.line.split(b" ")[1]
        answer = ANSWERS.get(path, b"")
        if path == b"/tunnel":
            answer += accept_of(head.value(b"Sec-WebSocket-Key") or b"") + b"\r\n\r\n"
        await wire.send(answer)
        await self.is_over.wait()

    async def set_up(self, event: str, log: Path, record: Path) -> None:
        stage = self.stage
        self.workers = [await stage.worker(self.play) for _ in range(2)]
        self.collector = await stage.worker(TAKEN)
        timeouts = {"shutdown": 0.01, "total": 100.0, "body_idle": 50.0, "queue": 50.0, "tunnel_idle": 90.0}
        timeouts["first_byte"] = 20.0 if event == "first_byte" else 200.0
        await stage.serve(
            *self.workers[: 1 + (self.state == "hedged")],
            max_in_flight=1,
            timeouts=timeouts,
            limits={"body": 1000},
            retries=0,
            hedging={"enabled": self.state == "hedged"},
            log={"access": "json", "path": str(log)},
            record={"enabled": True, "path": str(record)},
            tracing={"endpoint": f"http://127.0.0.1:{self.collector.port}", "sample": 1.0},
        )  # fmt: skip
        if self.state == "queued":
            await stage.sending(get(b"/ahead"))
            await stage.eventually(lambda: self.workers[0].connections)
        await (self._ask_by_stream() if self.version == 2 else self._ask())
        await stage.eventually(self.has_begun)
        await stage.turn(500 if self.state == "large" else 50)
        stage.clock.at += 2 * (self.state == "queued")
        if self.state == "hedged":
            stage.advance(1.1)
            await stage.eventually(lambda: len(self.workers[1].received))

    async def _ask(self) -> None:
        self.client = await self.stage.client(receive_buffer=4096)
        target = b"/" + self.state.encode()
        upgrade = (b"Connection: upgrade", b"Upgrade: websocket") if self.state == "tunnel" else ()
        request = get(target, *upgrade)
        if self.state == "uploading":
            request = get(target, b"Transfer-Encoding: chunked", method=b"POST") + b"3\r\nabc\r\n"
        await self.client.send(request)
        if self.state in ("begun", "tunnel"):
            await self.client.until(BEGUN if self.state == "begun" else b"\r\n\r\n")

    async def _ask_by_stream(self) -> None:
        self.h2 = client = await http2_client(self.stage, receive_buffer=4096)
        self.client = client.wire
        target = b"/" + self.state.encode()
        if self.state == "tunnel":
            await client.until(lambda: client.engine.has_connect)
            self.stream = client.begin((*WEBSOCKET[:2], *fields(target)[1:], *WEBSOCKET[-1:]))
        elif self.state == "uploading":
            self.stream = client.begin(fields(target, method=b"POST"))
            client.send(self.stream, b"abc")
        else:
            self.stream = client.request(path=target)
        if self.state in ("begun", "tunnel"):
            answer = client.answers[self.stream]
            await client.until(lambda: answer.pieces if self.state == "begun" else answer.status)

    def has_begun(self) -> bool:
        """Whether the request is in its state."""
        if self.state == "queued":
            return len(self.stage.cluster.queue) == 1
        return b"\r\n\r\n" in self.workers[0].received + self.workers[1].received

    async def end(self, event: str) -> None:
        stage = self.stage
        if event == "stop":
            await stage.running.stop()
        elif event == "worker leaves":
            self.workers[0].connections[0].reset()
        elif event in ("client leaves", "client closes", "worker closes"):
            if event == "worker closes":
                self.is_over.set()
                await stage.turn()
            self._leave()
        elif event == "client sends more":
            self._send(b"x" * 1000)
        elif "malformed" in event:
            self.client.write(frame(WINDOW_UPDATE, bytes(4), self.stream if "stream" in event else 0))
        elif event == "client takes nothing":
            for _ in range(3):
                stage.advance(30.0)
                await stage.turn(200)
        elif event != "-":
            limit = getattr(stage.cluster.timeouts, event)
            stage.advance(limit - 0.5 if event != "body_idle" else 0.0)
            await stage.turn()
            stage.advance(limit + 1.0 if event == "body_idle" else 1.0)

    def _leave(self) -> None:
        if self.version == 2 and self.state != "queued":
            self.h2.engine.reset(self.stream, CANCEL)
            self.h2.flush()
        else:
            self.client.reset()

    def _send(self, data: bytes) -> None:
        if self.version == 2:
            self.h2.send(self.stream, data)
        else:
            self.client.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def logged(self, log: Path) -> LogRecord:
        """The line of the request."""

        def found() -> list[LogRecord]:
            lines = map(json.loads, log.read_text(encoding="ascii").splitlines())
            return [line for line in lines if line["path"] == "/" + self.state]

        await self.stage.eventually(found)
        [line] = found()
        return line


@pytest.mark.parametrize(
    ("state", "event", "end", "reason", "status", "is_sent", "attempt", "version"), [*cases()]
)
async def test_ending_is_told_alike_everywhere(
    stage: Stage, tmp_path: Path, state: str, event: str, end: str, reason: str | None, status: int,
    is_sent: bool, attempt: str, version: int,
) -> None:  # fmt: skip
    """Log line, span of the request, row of the recording, counts of errors, and the endpoint's outcome."""
    ending = Ending(stage, state, version)
    await ending.set_up(event, tmp_path / "log", tmp_path / "recording")
    await ending.end(event)
    line = await ending.logged(tmp_path / "log")
    assert (line["end"], line["reason"], line["status"]) == (end, reason, status)
    assert is_sent or line["bytes"] == 0
    assert line["bytes"] == len(BEGUN) or state != "begun"
    assert event != "first_byte" or (line["service"], line["first_byte"]) == (20.5, None)
    if state == "queued":
        assert (line["attempts"], line["endpoint"]) == (0, None)
        assert line["queue"] == line["total"] >= 2
    counts, outcomes = stage.cluster.counts, stage.outcomes()
    assert counts.errors[reason or ""] == (
        reason is not None and reason not in NOT_COUNTED and end != "tunnel"
    ) + (event == "stop" and state == "queued")
    assert counts.abandoned == (reason == "client_left")
    assert (outcomes or {"-": 1}) == {attempt: 1} or state == "queued"
    stage.control_plane.recording.close()
    recorded = blocks((tmp_path / "recording").read_bytes())
    rows = [(row["end"], row["status"]) for kind, rows in recorded if kind == "R" for row in rows]
    assert (ENDS.index(end), status) in rows
    spans = await spans_of(stage, ending.collector)
    [span] = [span for span in spans if span.attributes.get("url.path") == "/" + state]
    assert (span.attributes["steelyard.outcome"], span.attributes.get("error.type")) == (end, reason)
    assert span.attributes.get("http.response.status_code") == (status if is_sent else None)
    is_error = end in ("reset", "timeout", "unavailable")
    assert span.status == ("error" if is_error else "unset")
    attempts = [one for one in spans if one.kind == "client"]
    assert {one.attributes["steelyard.outcome"] for one in attempts} == {attempt} - {"-"} or state == "queued"
    assert reason != "client_left" or "error" not in [one.status for one in spans]
    ending.is_over.set()
    for client in stage.clients:
        client.reset()
