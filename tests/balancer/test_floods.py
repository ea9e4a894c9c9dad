"""Workers that send without end what answers nothing: interim responses, and control frames of HTTP/2.

Each costs the unit time, and what it must answer or pass on costs memory; both are bounded, and the next request goes
on as ever.
"""

from __future__ import annotations

import struct

import pytest

from balancer.http1.response_head import INTERIM_LIMIT
from balancer.http2.frames import IDLE_LIMIT
from tests.balancer.conftest import ScriptedWorker, Stage, Wire, get, post, response
from tests.balancer.talkers import Play, over_http1, over_http2
from tests.balancer.test_http2 import before_frames, fault_of, headers
from tests.balancer.test_transports import hello, run

HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
TOO_MANY = f"more than {INTERIM_LIMIT} interim responses"


async def hinted(client: Wire) -> int:
    """Interim responses before the final one, which stands in `client.last`."""
    count = 0
    while (answer := await client.response()).status == 103:
        count += 1
    client.requests.append(answer)
    return count


# --- interim responses


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_interim_responses_end(stage: Stage, is_at_once: bool) -> None:
    """In one read or in many; those up to the bound have gone down."""

    async def script(wire: Wire) -> None:
        await wire.request()
        for piece in [HINT * 5000] if is_at_once else [HINT] * (INTERIM_LIMIT + 1):
            await wire.send(piece)
            await stage.turn()
        await wire.closed()

    await stage.serve(await stage.worker(script), retries=0)
    client = await stage.client()
    await client.send(get())
    assert await hinted(client) == INTERIM_LIMIT
    assert fault_of(client.requests[0]) == (502, "malformed_response", TOO_MANY)


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_as_many_as_are_allowed(stage: Stage, is_at_once: bool) -> None:
    """For each request on a connection."""

    async def script(wire: Wire) -> None:
        for _ in range(2):
            await wire.request()
            for piece in [HINT * INTERIM_LIMIT] if is_at_once else [HINT] * INTERIM_LIMIT:
                await wire.send(piece)
                await stage.turn()
            await wire.send(response(b"done"))
        await wire.closed()

    worker = await stage.worker(script)
    await stage.serve(worker, retries=0)
    client = await stage.client()
    for _ in range(2):
        await client.send(get())
        assert await hinted(client) == INTERIM_LIMIT
        assert client.requests.pop().body == b"done"
    assert len(worker.connections) == 1


@pytest.mark.parametrize("transport", ["http2", "curl"])
async def test_interim_responses_end_over_other_transports(stage: Stage, transport: str) -> None:
    """aiohttp passes none of them on."""
    if transport == "curl":
        pytest.importorskip("pycurl", reason="pycurl is not installed")

    async def script(play: Play) -> None:
        if play.target == b"/hints":
            await play.read()
            for _ in range(INTERIM_LIMIT + 1):
                await play.interim(103, (b"link", b"</a>"))
        await hello(play)

    plays: list[Play] = []
    worker = over_http2(script, plays) if transport == "http2" else over_http1(script, plays)
    await run(stage, worker, transport, retries=0)
    client = await stage.client()
    await client.send(get(b"/hints"))
    assert await hinted(client) == INTERIM_LIMIT
    assert fault_of(client.requests[0]) == (502, "malformed_response", TOO_MANY)
    assert (await stage.ask(get())).body == b"hello"


# --- frames of HTTP/2


def frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack("!I", stream) + payload


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
async def test_frames_that_answer_nothing_end(stage: Stage, kind: str) -> None:
    """Those that the library would take for ever, each at the cost of some microseconds, or of an answer."""
    head = headers((":status", "200")).serialize()
    flood = [head, *[frame(0, stream=1)] * (IDLE_LIMIT + 1)]
    await before_frames(stage, *(flood if kind == "empty data" else [FRAMES[kind]] * (IDLE_LIMIT + 1)))
    status, error, detail = fault_of(await stage.ask(get()))
    assert (status, error) == (502, "malformed_response")
    assert detail == f"HTTP/2: more than {IDLE_LIMIT} frames in a row without a response"
    assert (await stage.ask(get())).status == 502  # on another connection
    assert stage.pool().counts.opened == 2


async def test_frames_between_parts_of_a_response(stage: Stage) -> None:
    """What brings it further begins the count anew, and so does time."""
    pings = FRAMES["ping"] * (IDLE_LIMIT - 10)
    parts = [headers((":status", "200")).serialize(), *[frame(0, b"x", stream=1)] * 3]

    async def script(wire: Wire) -> None:
        while b"x-request-id" not in wire.received and len(wire.received) < 200:
            await wire.some()
        await wire.send(frame(4))
        for part in parts:
            await wire.send(pings + part)
        await wire.send(pings)
        await stage.turn(5)
        stage.advance(1)
        await wire.send(pings + frame(0, b"x", stream=1, flags=1))
        await wire.closed()

    await run(stage, ScriptedWorker(script), "http2", retries=0)
    assert (await stage.ask(get())).body == b"xxxx"


@pytest.mark.second_tier
async def test_a_worker_that_reads_no_answers(stage: Stage) -> None:
    """A long body fills what the kernel takes; then answers to PING would wait here without end."""
    pings = FRAMES["ping"] * (IDLE_LIMIT - 100)
    batches = 0

    async def script(wire: Wire) -> None:
        nonlocal batches
        while len(wire.received) < 200:
            await wire.some(200)
        wide = struct.pack("!HI", 4, 2**31 - 1)
        await wire.send(
            frame(4, wide) + frame(8, struct.pack("!I", 2**30)) + headers((":status", "200")).serialize()
        )
        wire._reader._transport.pause_reading()  # type: ignore[attr-defined]
        try:
            while batches < 200:
                await wire.send(pings + frame(0, b"x", stream=1))
                batches += 1
        except ConnectionError:
            return

    await run(stage, ScriptedWorker(script), "http2", retries=0)
    client = await stage.client()
    client.write(post(bytes(16 << 20)))
    await client.closed()
    assert bytes(client.received).startswith(b"HTTP/1.1 200 OK\r\n")
    assert batches < 200
    client.reset()
