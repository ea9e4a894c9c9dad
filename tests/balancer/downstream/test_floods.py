"""Endless interim responses or HTTP/2 control frames of a worker: both are bounded, and later requests succeed."""

from __future__ import annotations

import struct

import pytest

from balancer.http.h1.response_head import INTERIM_LIMIT
from balancer.http.h2.limits import FRAMES_PER_HEAD, IDLE_LIMIT
from tests.support.frames import frame, has_request
from tests.support.http2_client import headers_frame
from tests.support.scripted_transports import Play, hello, over, serve_frames, serve_over
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, Wire, fault_of, get, post, response

HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


async def interim_responses(client: Wire) -> int:
    """Count interim responses; the final response is appended to `client.requests`."""
    count = 0
    while (answer := await client.response()).status == 103:
        count += 1
    client.requests.append(answer)
    return count


def assert_limit(answer: Message, limit: int) -> None:
    """A 502 whose detail names the limit."""
    status, error, detail = fault_of(answer)
    assert (status, error) == (502, "malformed_response")
    assert str(limit) in detail


# --- interim responses


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_interim_responses_are_limited(stage: Stage, is_at_once: bool) -> None:
    """In one read or in many; those up to the limit are forwarded."""

    async def script(wire: Wire) -> None:
        await wire.request()
        for piece in [HINT * 5000] if is_at_once else [HINT] * (INTERIM_LIMIT + 1):
            await wire.send(piece)
            await stage.turn()
        await wire.closed()

    await stage.serve(await stage.worker(script), retries=0)
    client = await stage.sending(get())
    assert await interim_responses(client) == INTERIM_LIMIT
    assert_limit(client.requests[0], INTERIM_LIMIT)


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_interim_responses_up_to_the_limit(stage: Stage, is_at_once: bool) -> None:
    """The limit is per request."""

    async def script(wire: Wire) -> None:
        for _ in range(2):
            await wire.request()
            for piece in [HINT * INTERIM_LIMIT] if is_at_once else [HINT] * INTERIM_LIMIT:
                await wire.send(piece)
                await stage.turn()
            await wire.send(response(b"done"))
        await wire.closed()

    worker = await stage.serve_worker(script, retries=0)
    client = await stage.client()
    for _ in range(2):
        await client.send(get())
        assert await interim_responses(client) == INTERIM_LIMIT
        assert client.requests.pop().body == b"done"
    assert len(worker.connections) == 1


@pytest.mark.parametrize("transport", ["http2", "curl"])
async def test_interim_responses_are_limited_over_other_transports(stage: Stage, transport: str) -> None:
    """The transport `aiohttp` forwards no interim responses."""
    if transport == "curl":
        pytest.importorskip("pycurl", reason="pycurl is not installed")

    async def script(play: Play) -> None:
        if play.target == b"/hints":
            await play.read()
            for _ in range(INTERIM_LIMIT + 1):
                await play.interim(103, (b"link", b"</a>"))
        await hello(play)

    plays: list[Play] = []
    worker = over(transport, script, plays)
    await serve_over(stage, worker, transport, retries=0)
    client = await stage.sending(get(b"/hints"))
    assert await interim_responses(client) == INTERIM_LIMIT
    assert_limit(client.requests[0], INTERIM_LIMIT)
    assert (await stage.ask(get())).body == b"hello"


# --- frames of HTTP/2


FRAMES = {
    "ping": frame(6, b"12345678"),
    "settings": frame(4),
    "settings of streams": frame(4, struct.pack("!HI", 3, 50)),
    "window": frame(8, b"\0\0\0\1"),
    "priority": frame(2, b"\0\0\0\0\1", stream=1),
    "unknown": frame(200, b"x"),
    "going away": frame(7, struct.pack("!II", 1, 0)),
}


@pytest.mark.parametrize("kind", [*FRAMES, "empty data"])
async def test_frames_without_progress_are_limited(stage: Stage, kind: str) -> None:
    """Frames that the HTTP/2 library would accept without limit. It counts those that are no event by the seconds of
    its own clock, of which one may begin meanwhile: so there are twice as many.
    """
    head = headers_frame((":status", "200")).serialize()
    flood = [head, *[frame(0, stream=1)] * (IDLE_LIMIT + FRAMES_PER_HEAD + 1)]
    await serve_frames(stage, *(flood if kind == "empty data" else [FRAMES[kind]] * (2 * IDLE_LIMIT + 1)))
    assert_limit(await stage.ask(get()), IDLE_LIMIT)
    assert (await stage.ask(get())).status == 502  # on another connection
    assert stage.pool().counts.opened == 2


async def test_frames_without_progress_are_counted_by_the_second(stage: Stage) -> None:
    """As many again after a second; a head and parts of a body allow a few more."""
    pings = FRAMES["ping"] * (IDLE_LIMIT // 4)
    parts = [headers_frame((":status", "200")).serialize(), *[frame(0, b"x", stream=1)] * 3]

    async def script(wire: Wire) -> None:
        while not has_request(wire.received):
            await wire.some()
        await wire.send(frame(4))
        for part in parts:
            await wire.send(pings + part)
        await wire.send(FRAMES["ping"] * 12)
        await stage.turn(5)
        stage.advance(1)
        await wire.send(pings * 4 + frame(0, b"x", stream=1, flags=1))
        await wire.closed()

    await serve_over(stage, ScriptedWorker(script), "http2", retries=0)
    assert (await stage.ask(get())).body == b"xxxx"


@pytest.mark.second_tier
async def test_worker_that_reads_no_replies(stage: Stage) -> None:
    """A long body fills the socket; replies to PING must not pile up in the balancer."""
    pings = FRAMES["ping"] * (IDLE_LIMIT - 100)
    batches = 0

    async def script(wire: Wire) -> None:
        nonlocal batches
        while not has_request(wire.received):
            await wire.some(200)
        wide = struct.pack("!HI", 4, 2**31 - 1)
        await wire.send(
            frame(4, wide)
            + frame(8, struct.pack("!I", 2**30))
            + headers_frame((":status", "200")).serialize()
        )
        wire.stop_reading()
        try:
            while batches < 200:
                await wire.send(pings + frame(0, b"x", stream=1))
                batches += 1
        except ConnectionError:
            return

    await serve_over(stage, ScriptedWorker(script), "http2", retries=0)
    client = await stage.client()
    client.patience = 50.0  # the flood takes ten seconds of processor time
    client.write(post(bytes(16 << 20)))
    await client.closed()
    assert bytes(client.received).startswith(b"HTTP/1.1 200 OK\r\n")
    assert batches < 200
    client.reset()
