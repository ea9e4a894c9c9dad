"""Faults of workers: the effect of each, and healing."""

from __future__ import annotations

import asyncio
import time
from random import Random
from statistics import fmean, variance
from typing import Any

import pytest
import uvloop
from aiohttp import ClientConnectionError, ClientSession, ClientTimeout
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPNotFound
from yarl import URL

from tests.workers.started import StartWorker
from tests.workers.virtual_time import EXACTLY
from workers.app import FAULTS
from workers.connection_closing import reset
from workers.fault_interface import Control
from workers.faults import HEALED, FaultEffects, Faults, Switchboard
from workers.server import Worker
from workers.service import Fixed


async def _put(session: ClientSession, worker: Worker, **faults: Any) -> dict[str, Any]:
    async with session.put(f"{worker.url}/-/faults", json=faults) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def _status(session: ClientSession, worker: Worker, path: str = "/work") -> int:
    async with session.get(f"{worker.url}{path}") as response:
        await response.read()
        return response.status


async def _is_reset(session: ClientSession, worker: Worker) -> bool:
    try:
        await _status(session, worker)
    except ClientConnectionError:
        return True
    return False


async def test_put_replaces_and_delete_heals(start_worker: StartWorker, session: ClientSession) -> None:
    """A set of faults replaces the previous one; GET shows it; DELETE and the empty set heal."""
    worker = await start_worker()
    assert (await _put(session, worker, slow=5, hang=0.5))["hang"] == 0.5
    assert (await _put(session, worker, slow=3))["hang"] == 0
    async with session.get(f"{worker.url}/-/faults") as response:
        assert (await response.json())["slow"] == 3
    async with session.delete(f"{worker.url}/-/faults") as response:
        healed = await response.json()
    assert healed == await _put(session, worker)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"slow": 0}', "slow: "),
        ('{"hang": 1.5}', "hang: "),
        ('{"fail": "often"}', "fail: "),
        ('{"fail_status": 200}', "fail_status: "),
        ('{"lasts": -1}', "lasts: "),
        ('{"slwo": 5}', "slwo: "),
        ('{"slow": NaN}', "slow: "),
        ('{"pause": 1, "every": 1}', "body: every: must be longer than the pause"),
        ('{"every": 1}', "body: pause: "),
        ('{"fail_status": 503}', "body: fail: fail_status says nothing without it"),
        ('{"pause": 1, "after": 1, "lasts": 0.5}', "body: after: must be less than lasts"),
        ('{"lasts": 5}', "body: lasts: says nothing without a fault"),
        ('{"cut": 1}', "cut: this kind of worker has no such fault"),
        ('{"rtt": 0.1}', "rtt: this worker was started without --rtt"),
        ("[]", "body: "),
        ("{", "body: "),
        ("", "body: "),
    ],
)
async def test_invalid_faults_are_422_and_change_nothing(
    start_worker: StartWorker, session: ClientSession, text: str, named: str
) -> None:
    """The response names the invalid field."""
    worker = await start_worker()
    async with session.put(f"{worker.url}/-/faults", data=text) as response:
        assert response.status == 422
        detail = (await response.json())["detail"][0]
    assert f"{detail['field']}: {detail['message']}".startswith(named)
    assert worker.switchboard.current == HEALED


async def test_fault_routes_are_for_loopback_peers_only() -> None:
    """Others get 404."""
    control = Control(Switchboard(asyncio.get_running_loop(), Random(0)), FAULTS)
    remote_request = make_mocked_request("GET", "/-/faults").clone(remote="203.0.113.7")
    for handler in (control.show, control.put, control.heal):
        with pytest.raises(HTTPNotFound):
            await handler(remote_request)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/%2D/faults", {}),
        ("/%2d/faults", {"Via": "1.1 steelyard"}),
        ("/-/faults", {"X-Forwarded-For": "192.0.2.1"}),
        ("/-/faults", {"Via": "1.1 proxy"}),
    ],
)
async def test_clients_of_a_load_balancer_cannot_set_faults(
    start_worker: StartWorker, session: ClientSession, path: str, fields: dict[str, str]
) -> None:
    """The balancer is a loopback peer; its clients' spelling of the path and forwarded requests must not work."""
    worker = await start_worker()
    url = URL(f"{worker.url}{path}", encoded=True)
    async with session.put(url, json={"slow": 3}, headers=fields) as response:
        assert response.status == 404
    assert worker.switchboard.current.slow == 1


async def test_slow_multiplies_the_service_time(start_worker: StartWorker, session: ClientSession) -> None:
    """`slow: 5` makes 10 ms of service 50 ms."""
    worker = await start_worker(service=Fixed(0.01))
    await _put(session, worker, slow=5)
    begun_at = time.monotonic()
    async with session.get(f"{worker.url}/work") as response:
        assert float(response.headers["X-Worker-Service-Time"]) == pytest.approx(0.05)
    assert time.monotonic() - begun_at == pytest.approx(0.05, abs=EXACTLY)


@pytest.mark.parametrize("faults", [Faults(slow=5.0)])
def test_service_times_are_distributed_as_oracles_expect(faults: Faults) -> None:
    """Each fault that changes them, with exponential work of 100 ms in the mean."""
    effects, rng = FaultEffects(faults, speed=2.0), Random(1)
    drawn = [effects.service_time(rng.expovariate(10.0), rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(effects.mean(0.1), rel=0.05)
    assert variance(drawn) == pytest.approx(effects.variance(0.01), rel=0.1)


@pytest.mark.parametrize(("faults", "status"), [({}, 500), ({"fail_status": 503}, 503)])
async def test_fast_failures_leave_the_health_check_healthy(
    start_worker: StartWorker, session: ClientSession, faults: dict[str, Any], status: int
) -> None:
    """Responses come at once, without service, while /healthz stays 200."""
    worker = await start_worker(service=Fixed(5.0))
    await _put(session, worker, fail=True, **faults)
    assert await _status(session, worker) == status
    assert await _status(session, worker, "/healthz") == 200


async def test_fail_applies_to_its_share_of_requests(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """`fail: 0.3` within four standard deviations."""
    worker = await start_worker(slots=100)
    await _put(session, worker, fail=0.3)
    statuses = [await _status(session, worker) for _ in range(200)]
    assert statuses.count(500) / 200 == pytest.approx(0.3, abs=0.13)


async def test_unhealthy_affects_only_the_health_check(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """Requests are served; the check still reports the load, which does not count itself."""
    worker = await start_worker()
    await _put(session, worker, unhealthy=True)
    async with session.get(f"{worker.url}/healthz") as answer:
        assert (answer.status, answer.headers["X-Worker-In-Flight"]) == (503, "0")
    assert await _status(session, worker) == 200


async def test_hanging_requests_are_served_once_healed(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """While it hangs nothing is answered, not even the health check; afterwards everything is."""
    worker = await start_worker()
    await _put(session, worker, hang=1)
    waiting = [asyncio.create_task(_status(session, worker, path)) for path in ("/work", "/healthz")]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    await _put(session, worker)
    assert await asyncio.gather(*waiting) == [200, 200]


async def test_client_that_gives_up_leaves_no_hanging_request(
    start_worker: StartWorker, session: ClientSession
) -> None:
    """A hanging request ends with its client."""
    worker = await start_worker()
    await _put(session, worker, hang=1)
    with pytest.raises(TimeoutError):
        await session.get(f"{worker.url}/work", timeout=ClientTimeout(total=0.05))
    await _put(session, worker)
    async with session.get(f"{worker.url}/work") as response:
        assert response.headers["X-Worker-In-Flight"] == "0"


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
async def test_down_resets_and_refuses_until_it_heals(start_worker: StartWorker, round_trip: float) -> None:
    """Open connections are reset, new ones refused; after `lasts` the same port serves again."""
    worker = await start_worker(round_trip=round_trip)
    host, port = worker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
    await reader.readuntil(b"}")
    async with ClientSession() as session:
        await _put(session, worker, down=True, lasts=0.2)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)
    writer.close()
    await worker.switchboard.changed()
    await asyncio.sleep(0.02)  # the port is opened in a task of its own
    async with ClientSession() as session:
        assert await _status(session, worker) == 200


async def test_faults_end_after_lasts(start_worker: StartWorker, session: ClientSession) -> None:
    """`lasts` ends every fault of its own set only."""
    worker = await start_worker()
    await _put(session, worker, fail=1, lasts=0.05)
    await _put(session, worker, fail=1, lasts=0.2)
    assert await _status(session, worker) == 500
    begun_at = time.monotonic()
    await worker.switchboard.changed()
    assert time.monotonic() - begun_at == pytest.approx(0.2, abs=EXACTLY)
    assert await _status(session, worker) == 200


async def test_reset_applies_to_every_request_until_healed(
    start_worker: StartWorker, session: ClientSession
) -> None:
    worker = await start_worker()
    await _put(session, worker, reset=1)
    assert [await _is_reset(session, worker) for _ in range(2)] == [True, True]
    await _put(session, worker)
    assert not await _is_reset(session, worker)


async def test_fault_without_an_effect_is_an_error_of_the_worker(
    start_worker: StartWorker, session: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """And not the answer of another fault."""
    worker = await start_worker()
    worker.switchboard.put(Faults(cut=1.0))
    assert await _status(session, worker) == 500
    assert "NotImplementedError: Treatment.CUT" in caplog.text


def test_reset_of_a_connection_of_uvloop() -> None:
    """Whose transports are no subclass of asyncio's."""

    class Resets(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            reset(transport)

    async def is_reset() -> bool:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Resets, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                async with asyncio.timeout(5):
                    await reader.read()
            except ConnectionResetError:
                return True
            finally:
                writer.close()
        return False

    assert uvloop.run(is_reset())
