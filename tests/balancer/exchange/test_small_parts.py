"""Chunks and frames of one byte: those of one read go on together (of many, see `test_turns.py`)."""

from __future__ import annotations

import pytest

from tests.support import frames
from tests.support.frames import END_HEADERS, frame, has_request, head
from tests.support.http2_client import fields, raw_client
from tests.support.scripted_transports import serve_over
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, get, playing, response

NUMBER = 1000
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"1\r\nx\r\n" * NUMBER
FRAMES = frame(frames.DATA, b"x", 1) * NUMBER
FRAMING = 200
"""Bytes beside the body that a few chunks take; one for each byte would take five thousand."""


def body_in(received: bytes | bytearray) -> bytes:
    return bytes(received).partition(b"\r\n\r\n")[2]


async def send_request(stage: Stage, version: str) -> None:
    if version == "http1":
        client = await stage.sending(CHUNKED + CHUNKS + b"0\r\n\r\n")
        assert (await client.response()).status == 200
    else:
        raw = await raw_client(stage)
        await raw.send(head(1, *fields(method=b"POST"), flags=END_HEADERS) + FRAMES + frame(0, b"", 1, 1))
        await raw.until(frames.HEADERS, 1)


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_requests_small_parts_go_on_together(stage: Stage, version: str) -> None:
    worker = await stage.serve_worker(response())
    await send_request(stage, version)
    (request,) = worker.requests
    assert request.body == b"x" * NUMBER
    assert len(body_in(worker.received)) < NUMBER + FRAMING


ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n"
answer_http1 = playing(Wire.request, ANSWER, Wire.closed)


async def answer_http2(wire: Wire) -> None:
    while not has_request(wire.received):
        await wire.some()
    ok = head(1, (b":status", b"200"), flags=END_HEADERS)
    await wire.send(frame(frames.SETTINGS) + ok + FRAMES + frame(0, b"", 1, 1))
    await wire.closed()


@pytest.mark.parametrize("worker", ["http1", "http2"])
@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_responses_small_parts_go_on_together(stage: Stage, version: str, worker: str) -> None:
    if worker == "http1":
        await stage.serve(await stage.worker(answer_http1))
    else:
        await serve_over(stage, ScriptedWorker(answer_http2), "http2")
    if version == "http1":
        client = await stage.sending(get())
        assert (await client.response()).body == b"x" * NUMBER
        assert len(body_in(client.received)) < NUMBER + FRAMING
        return
    raw = await raw_client(stage)
    await raw.send(head(1, *fields()))
    while not any(kind == frames.DATA and flags & 1 for kind, _, flags, _ in raw.seen):
        raw._take(await raw.wire.some())
    parts = [payload for kind, _, _, payload in raw.seen if kind == frames.DATA]
    assert b"".join(parts) == b"x" * NUMBER
    assert len(parts) < 20
