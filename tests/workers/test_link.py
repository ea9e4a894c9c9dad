"""The link against theory, with R the round trip and S the service time; clients are plain sockets."""

from __future__ import annotations

import asyncio
import gc
import time
from hashlib import sha256
from io import BytesIO

import pytest
from aiohttp import ClientSession
from aiohttp.web_protocol import RequestHandler

from tests.workers.started import RunWorkers, StartWorker, in_flight, port_of, ready_port
from tests.workers.virtual_time import EXACTLY, SERVICE
from workers.app import digest_of_generated
from workers.link import WorkerTransport
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings

R, S = 0.08, 0.04

GET = b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n"


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def _cold_and_warm(port: int) -> tuple[float, float]:
    begun_at = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    await _answer(reader)
    answered_at = time.monotonic()
    writer.write(GET)
    await _answer(reader)
    writer.close()
    return answered_at - begun_at, time.monotonic() - answered_at


@pytest.mark.real_time
async def test_program_has_at_least_its_round_trip(run_workers: RunWorkers) -> None:
    """As experiments start it. How much longer a busy machine takes is measured by `reproduce keepalive`."""
    port = await ready_port(await run_workers("serve", "--rtt", f"{R}s", "--service", f"fixed:{S}s"))
    cold, warm = await _cold_and_warm(port)
    assert cold >= 2 * R + S
    assert warm >= R + S


async def test_time_scale_multiplies_round_trip_and_service() -> None:
    async with Worker(Settings(round_trip=2 * R, service=Fixed(2 * S)).scaled(0.5)) as worker:
        cold, _ = await _cold_and_warm(port_of(worker))
    assert cold == pytest.approx(2 * R + S, abs=EXACTLY)


async def test_handshake_is_charged_to_the_connection_not_to_the_request(start_worker: StartWorker) -> None:
    """A connection opened a round trip ahead of its first request is warm: R + S."""
    worker = await start_worker(round_trip=R, service=Fixed(S))
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    await asyncio.sleep(R)
    begun_at = time.monotonic()
    writer.write(GET)
    await _answer(reader)
    writer.close()
    assert time.monotonic() - begun_at == pytest.approx(R + S, abs=EXACTLY)


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
@pytest.mark.parametrize("length", [0, 1, 1 << 20, 5 << 20])
async def test_bodies_are_identical_both_ways(
    start_worker: StartWorker, session: ClientSession, round_trip: float, length: int
) -> None:
    """Bodies below and far above the window arrive whole and in order, by their hashes."""
    worker = await start_worker(round_trip=round_trip)
    body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    async with session.post(f"{worker.url}/work", data=BytesIO(body)) as response:
        account = await response.json()
    assert (account["body_sha256"], account["body_bytes"]) == (sha256(body).hexdigest(), length)
    for query in ("", "&chunked=1"):
        async with session.get(f"{worker.url}/work?bytes={length}{query}") as response:
            received = await response.read()
            assert response.headers["X-Body-SHA256"] == sha256(received).hexdigest()
            assert ("Content-Length" in response.headers) == (not query)
    assert sha256(received).hexdigest() == digest_of_generated(length).sha256


async def test_client_that_does_not_read_stops_the_worker(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """At most the window and the sockets' buffers are in flight; the rest follows once the client reads."""
    worker = await start_worker(round_trip=0.02)
    length = 32 << 20
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker), limit=1 << 16)
    writer.write(f"GET /work?bytes={length} HTTP/1.1\r\nHost: w\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.2)
    assert await in_flight(session, port_of(worker)) == 1
    received = sha256()
    for left in range(length, 0, -(1 << 20)):
        received.update(await reader.readexactly(min(left, 1 << 20)))
    assert await in_flight(session, port_of(worker)) == 0
    assert received.hexdigest() == digest_of_generated(length).sha256
    writer.close()


async def test_pipelined_requests_are_answered_in_order(start_worker: StartWorker) -> None:
    """Three requests in one segment take one round trip."""
    worker = await start_worker(round_trip=R)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    for trips in (2, 1):  # one more for the connection
        begun_at = time.monotonic()
        for name in (b"1", b"2", b"3"):
            writer.write(GET[:-2] + b"X-Request-ID: " + name + b"\r\n\r\n")
        answers = [await _answer(reader) for _ in range(3)]
        assert time.monotonic() - begun_at == pytest.approx(trips * R + 3 * SERVICE, abs=EXACTLY)
        assert [b'"request_id": "%d"' % n in answer for n, answer in enumerate(answers, 1)] == [True] * 3
    writer.close()


async def test_close_takes_half_a_round_trip(start_worker: StartWorker) -> None:
    """The worker closes an idle connection K after its response; both take R/2, so the client sees them K apart."""
    keep_alive = 0.1
    worker = await start_worker(round_trip=R, keep_alive=keep_alive)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    writer.write(GET)
    await _answer(reader)
    answered_at = time.monotonic()
    writer.write(GET[:-2])  # a request's first bytes cross the close and are lost
    assert await reader.read() == b""
    writer.close()
    assert time.monotonic() - answered_at == pytest.approx(keep_alive, abs=EXACTLY)


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
async def test_half_closed_client_is_treated_as_without_a_link(
    start_worker: StartWorker, round_trip: float
) -> None:
    """aiohttp closes a connection whose client has half-closed; the link changes when, not what."""
    worker = await start_worker(round_trip=round_trip, service=Fixed(0.05))
    begun_at = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    writer.write(GET)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert time.monotonic() - begun_at == pytest.approx(2 * round_trip, abs=EXACTLY)


async def test_client_that_leaves_frees_the_connection(start_worker: StartWorker) -> None:
    """A client's close takes half a round trip, too; then the connection's objects are released."""
    worker = await start_worker(round_trip=R)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    writer.write(GET)
    await _answer(reader)
    writer.close()
    await asyncio.sleep(2 * R)
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, WorkerTransport | RequestHandler)]
    assert kept == []


async def test_response_in_flight_survives_a_graceful_stop() -> None:
    """Stopping waits for requests in service and bytes on the link."""
    worker = Worker(Settings(round_trip=R, service=Fixed(S)))
    await worker.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    writer.write(GET)
    await asyncio.sleep(1.5 * R + S + 0.01)  # served; the response is on the link
    stopping = asyncio.create_task(worker.stop())
    assert b" 200 OK" in await _answer(reader)
    await stopping
    writer.close()
