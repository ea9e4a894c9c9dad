"""Rejected requests: one error response, a closed connection, nothing sent to a worker."""

from __future__ import annotations

import json
from datetime import UTC
from email.utils import parsedate_to_datetime

import pytest

from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, response


def head(line: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join((line, *fields)) + b"\r\n\r\n"


MALFORMED = {
    "not-http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 20, 400),
    "no-host": (head(b"GET / HTTP/1.1"), 400),
    "two-hosts": (head(b"GET / HTTP/1.1", b"Host: a", b"Host: a"), 400),
    "length-huge": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: " + b"9" * 30), 400),
    "coding": (head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: gzip, chunked"), 501),
    "connect": (head(b"CONNECT a:80 HTTP/1.1", b"Host: a"), 405),
    "trace": (head(b"TRACE / HTTP/1.1", b"Host: a"), 405),
    "long-head": (head(b"GET / HTTP/1.1", b"Host: a", b"X: " + b"x" * 2000), 431),
    "endless-head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2000, 431),
}
"""One of each kind; the HTTP table has some two hundred."""


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_request_is_rejected(stage: Stage, name: str) -> None:
    """Fitting status, JSON with the reason, `Connection: close`; the worker gets no connection."""
    request, status = MALFORMED[name]
    worker = await stage.serve_worker(response(), limits={"head": 1024})
    client = await stage.client()
    client.write(request)
    answer = await client.response()
    assert answer.status == status
    assert answer.value(b"Connection") == b"close"
    assert parsedate_to_datetime((answer.value(b"Date") or b"").decode()).tzinfo is UTC
    assert (answer.value(b"Allow") is not None) == (answer.status == 405)
    assert answer.value(b"Content-Type") == b"application/json"
    assert set(json.loads(answer.body)) == {"error", "detail", "request_id"}
    client.half_close()
    await client.closed()
    assert worker.connections == []


async def test_malformed_chunk_after_response_head_ends_the_response(stage: Stage) -> None:
    """It is too late for a status: the client gets less than the length."""
    await stage.serve(await stage.worker(playing(Wire.head, response(b"part of it")[:-6], Wire.closed)))
    client = await stage.sending(get(b"/", b"Transfer-Encoding: chunked", method=b"POST"))
    await client.until(b"part")
    await client.send(b"zz\r\n")
    assert await client.rest() == b""


async def test_rejected_client_may_finish_sending(stage: Stage) -> None:
    """Closing at once would reset the connection and could destroy the response, so input is read and dropped."""
    worker = await stage.serve_worker(response())
    client = await stage.client()
    client.write(head(b"POST / HTTP/1.1", b"Content-Length: 4194304") + b"x" * (4 << 20))
    answer = await client.response()
    assert answer.status == 400
    assert await client.rest() == b""
    await stage.eventually(lambda: not client.unsent)
    assert len(stage.downstreams) == 1
    client.half_close()
    await stage.eventually(lambda: not stage.downstreams)
    assert worker.connections == []
