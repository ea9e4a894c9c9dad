"""Responses of a worker: bodies, rejections and load reports."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import ClientSession, ServerDisconnectedError

from tests.workers.started import StartWorker
from tests.workers.virtual_time import EXACTLY, SERVICE
from workers.service import Exponential, Fixed


async def test_response_describes_the_request(start_worker: StartWorker, session: ClientSession) -> None:
    """The body names worker, region and request; headers report the load."""
    worker = await start_worker(name="emea-0", region="emea", service=Fixed(0.01))
    async with session.post(f"{worker.url}/work", data=b"abc", headers={"X-Request-ID": "r1"}) as response:
        account, headers = await response.json(), response.headers
    assert account == {
        "worker": "emea-0",
        "region": "emea",
        "method": "POST",
        "request_id": "r1",
        "body_sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "body_bytes": 3,
        "service_time": 0.01,
        "queue_time": 0.0,
    }
    assert (headers["X-Request-ID"], headers["X-Worker-Name"]) == ("r1", "emea-0")
    assert (headers["X-Worker-Region"], headers["X-Worker-In-Flight"]) == ("emea", "0")
    assert float(headers["X-Worker-Service-Time"]) == 0.01
    assert 0 < float(headers["X-Worker-Utilization"]) <= 1


async def test_service_time_from_a_request_header(start_worker: StartWorker, session: ClientSession) -> None:
    """By the worker's position in the list, divided by its speed; ignored unless configured."""
    value = {"X-Service-Times": "9,0.004"}
    cases: list[tuple[dict[str, Any], dict[str, str], float]] = [
        ({"demand": 1, "speed": 2.0}, value, 0.002),
        ({"demand": 1}, {}, 0.001),
        ({}, value, 0.001),
    ]
    for settings, headers, seconds in cases:
        worker = await start_worker(**settings)
        async with session.get(f"{worker.url}/work", headers=headers) as response:
            assert (await response.json())["service_time"] == seconds


@pytest.mark.parametrize("value", ["0.1", "0.1,soon", "0.1,-1", "0.1,nan", "0.1,1e9"])
async def test_invalid_service_times_are_rejected(
    start_worker: StartWorker, session: ClientSession, value: str
) -> None:
    worker = await start_worker(demand=1)
    async with session.get(f"{worker.url}/work", headers={"X-Service-Times": value}) as response:
        assert (response.status, (await response.json())["error"]) == (400, "invalid_service_times")


@pytest.mark.parametrize("method", ["HEAD", "DELETE", "PATCH", "OPTIONS", "PUT"])
async def test_every_method_is_served(start_worker: StartWorker, session: ClientSession, method: str) -> None:
    """A response to HEAD has no body."""
    worker = await start_worker()
    for query in ("", "?bytes=100"):
        async with session.request(method, f"{worker.url}/work{query}") as response:
            assert response.status == 200
            assert bool(await response.read()) == (method != "HEAD")


async def test_one_slot_serves_one_at_a_time(start_worker: StartWorker, session: ClientSession) -> None:
    """Five at once at one slot of 20 ms: response k comes after 20·k ms and reports its wait."""
    worker = await start_worker(service=Fixed(0.02))

    async def queue_time() -> float:
        async with session.get(f"{worker.url}/work") as response:
            return float((await response.json())["queue_time"])

    begun_at = time.monotonic()
    waits = sorted(await asyncio.gather(*(queue_time() for _ in range(5))))
    assert time.monotonic() - begun_at == pytest.approx(0.1, abs=EXACTLY)
    assert waits == pytest.approx([0, 0.02, 0.04, 0.06, 0.08], abs=EXACTLY)


async def test_full_queue_is_503_with_a_reason_and_retry_after(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """One served, one queued, one rejected at once, in JSON, with whole seconds in Retry-After."""
    worker = await start_worker(service=Fixed(0.3), queue_limit=1)

    async def status() -> tuple[int, str | None, str]:
        async with session.get(f"{worker.url}/work") as response:
            return response.status, response.headers.get("Retry-After"), (await response.json()).get("error")

    answers = await asyncio.gather(*(status() for _ in range(3)))
    assert sorted(answers, key=lambda answer: answer[0])[2] == (503, "1", "queue_full")
    assert sorted(code for code, _, _ in answers) == [200, 200, 503]


@pytest.mark.parametrize("query", ["bytes=-1", "bytes=x", f"bytes={1 << 40}", "chunked=perhaps"])
async def test_bad_query_names_the_field(
    start_worker: StartWorker, session: ClientSession, query: str
) -> None:
    worker = await start_worker()
    async with session.get(f"{worker.url}/work?{query}") as response:
        assert response.status == 400
        assert (await response.json())["detail"][0]["field"] == query.split("=")[0]


async def test_first_request_after_sleep_takes_the_wake_time(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """The next one does not."""
    worker = await start_worker(starts_asleep=True, sleep_after=60.0, wake_time=0.15)
    for expected in (0.15 + SERVICE, SERVICE):
        begun_at = time.monotonic()
        async with session.get(f"{worker.url}/work") as response:
            await response.read()
        assert time.monotonic() - begun_at == pytest.approx(expected, abs=EXACTLY)


async def test_connection_ends_after_its_number_of_requests(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """With two requests per connection, every second response has `Connection: close`."""
    worker = await start_worker(max_requests_per_connection=(2, 2))
    fields = []
    for _ in range(4):
        async with session.get(f"{worker.url}/work") as response:
            await response.read()
            fields.append(response.headers.get("Connection"))
    assert fields == [None, "close", None, "close"]


async def test_each_connection_draws_its_number_of_requests(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """Within the configured range."""
    worker = await start_worker(max_requests_per_connection=(2, 5))
    lives = [0]
    while len(lives) <= 12:
        async with session.get(f"{worker.url}/work") as response:
            await response.read()
            lives[-1] += 1
            if response.headers.get("Connection") == "close":
                lives.append(0)
    assert {2, 5} <= set(lives[:-1]) <= {2, 3, 4, 5}


async def test_idle_connections_are_closed_at_random_without_notice(start_worker: StartWorker) -> None:
    """Each within its range, at different times, without `Connection: close` and without a lost response."""
    worker = await start_worker(close_idle=(0.0, 0.1))
    lives = []
    for _ in range(8):
        reader, writer = await asyncio.open_connection(*worker.url.removeprefix("http://").split(":"))
        writer.write(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        begun_at = time.monotonic()
        assert b"connection: close" not in head.lower()
        assert (await reader.read()).endswith(b"}")
        lives.append(time.monotonic() - begun_at)
        writer.close()
    assert max(lives) < 0.1 + SERVICE
    assert max(lives) - min(lives) > 0.02


async def test_busy_connection_is_not_closed_by_an_older_draw(start_worker: StartWorker) -> None:
    """Only idle connections are closed."""
    worker = await start_worker(close_idle=(0.03, 0.03), service=Fixed(0.06))
    reader, writer = await asyncio.open_connection(*worker.url.removeprefix("http://").split(":"))
    for _ in range(3):
        writer.write(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        assert b"200 OK" in head
    assert await reader.read() == b""
    writer.close()


async def test_same_seed_serves_the_same_times(start_worker: StartWorker, session: ClientSession) -> None:
    """Two workers with one seed draw the same service times, another seed others."""
    drawn = []
    for seed in (1, 1, 2):
        worker = await start_worker(service=Exponential(0.001), seed=seed)
        async with session.get(f"{worker.url}/work") as response:
            drawn.append((await response.json())["service_time"])
    assert drawn[0] == drawn[1] != drawn[2]


async def test_client_that_leaves_is_no_longer_in_flight(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """Its slot stays taken, as a real worker would compute on."""
    worker = await start_worker(service=Fixed(0.2), slots=1)
    with pytest.raises((TimeoutError, ServerDisconnectedError)):
        await asyncio.wait_for(session.get(f"{worker.url}/work"), 0.05)
    async with session.get(f"{worker.url}/work") as response:
        assert response.headers["X-Worker-In-Flight"] == "0"
        assert (await response.json())["queue_time"] > 0.1
