"""More to do than can be done: who is refused first, who goes first, and who is too late. On real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.balancer.conftest import Message, ScriptedWorker, Stage, Wire, get, response
from tests.balancer.test_queue import fill, gated

PROXIES = ["127.0.0.0/8"]
SHEDDING = {"header": "X-Priority"}
UNIX = 1_700_000_000


class Crowd:
    """A worker with one place, which is taken until `go`, and clients that wait for it."""

    def __init__(self, stage: Stage, worker: ScriptedWorker, first: Wire, go: asyncio.Event) -> None:
        self.stage = stage
        self.worker = worker
        self.first = first
        self.go = go
        self.waiting: list[Wire] = []

    async def waits(self, target: bytes, *fields: bytes) -> Wire:
        """A request that has to wait."""
        client = await self.stage.client()
        await client.send(get(target, *fields))
        self.waiting.append(client)
        queue = self.stage.proxy.queue
        joined = queue.joined
        await self.stage.eventually(lambda: queue.joined > joined or queue.dropped)
        return client

    async def served(self) -> list[bytes]:
        """Let all go; in which order they were served."""
        self.go.set()
        await self.first.response()
        for client in self.waiting:
            await client.response()
        return [request.line.split()[1] for request in self.worker.requests][1:]


async def crowd(stage: Stage, limit: int = 8, **settings: Any) -> Crowd:
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await stage.serve(worker, max_in_flight=1, limits={"queue": limit}, **settings)
    return Crowd(stage, worker, await fill(stage, worker), go)


def told(answer: Message) -> tuple[int, str, bytes | None]:
    return answer.status, json.loads(answer.body)["error"], answer.value(b"Retry-After")


async def status(stage: Stage) -> dict[str, Any]:
    answer = await stage.ask(b"GET /-/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def metrics(stage: Stage, *names: str) -> list[str]:
    """The lines of the metrics that begin with one of these."""
    answer = await stage.ask(b"GET /-/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return [line for line in answer.body.decode().splitlines() if line.startswith(names)]


# --- priorities


async def test_higher_levels_go_first(stage: Stage) -> None:
    """Whoever came first among equals; what says nothing is normal, and so is what nobody knows."""
    there = await crowd(stage, limit=100, admission=SHEDDING, trusted_proxies=PROXIES)
    for target, level in (
        ("/1", "bulk"),
        ("/2", "normal"),
        ("/3", "Critical"),
        ("/4", "x"),
        ("/5", "critical"),
    ):
        await there.waits(target.encode(), b"X-Priority: " + level.encode())
    await there.waits(b"/6")
    assert await there.served() == [b"/3", b"/5", b"/2", b"/4", b"/6", b"/1"]


async def test_lower_levels_are_refused_first(stage: Stage) -> None:
    """At a quarter of the queue nobody of level bulk comes in, at three quarters nobody of level normal."""
    there = await crowd(stage, admission=SHEDDING, trusted_proxies=PROXIES)
    client = await stage.client()
    for _ in range(2):
        await there.waits(b"/")
    answer = await client.ask(get(b"/bulk", b"X-Priority: bulk"))
    assert told(answer) == (503, "shed", b"1")
    assert answer.value(b"Connection") is None
    for _ in range(4):
        await there.waits(b"/")
    assert told(await client.ask(get(b"/normal"))) == (503, "shed", b"1")
    await there.waits(b"/critical", b"X-Priority: critical")
    shown = await status(stage)
    assert shown["levels"] == [
        {"name": "critical", "waiting": 1, "shed": 0},
        {"name": "normal", "waiting": 6, "shed": 1},
        {"name": "bulk", "waiting": 0, "shed": 1},
    ]
    assert shown["queue"]["dropped"] == shown["errors"] == {"shed": 2}
    assert await metrics(stage, "steelyard_shed_total", "steelyard_level") == [
        'steelyard_level_waiting{level="critical"} 1.0',
        'steelyard_level_waiting{level="normal"} 6.0',
        'steelyard_level_waiting{level="bulk"} 0.0',
        'steelyard_shed_total{level="critical"} 0.0',
        'steelyard_shed_total{level="normal"} 1.0',
        'steelyard_shed_total{level="bulk"} 1.0',
    ]
    assert b"/bulk" not in await there.served()


async def test_the_endpoints_being_busy_is_enough(stage: Stage) -> None:
    """Level bulk leaves half of what the endpoints may hold to others."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    levels = [{"name": "normal"}, {"name": "bulk", "in_flight": 0.5}]
    shedding = {**SHEDDING, "levels": levels, "trust": "all"}
    await stage.serve(worker, max_in_flight=2, admission=shedding)
    first, second = await fill(stage, worker), await stage.client()
    assert told(await second.ask(get(b"/", b"X-Priority: bulk"))) == (503, "shed", b"1")
    await second.send(get(b"/normal"))
    await stage.eventually(lambda: stage.state().in_flight == 2)
    go.set()
    assert [(await client.response()).status for client in (first, second)] == [200, 200]
    assert (await second.ask(get(b"/", b"X-Priority: bulk"))).status == 200


async def test_the_last_place_goes_to_the_more_important(stage: Stage) -> None:
    """In a full queue the newest of the lowest gives way, with an answer."""
    levels = [{"name": "high"}, {"name": "low"}]
    shedding = {**SHEDDING, "levels": levels, "default": "low", "trust": "all"}
    there = await crowd(stage, 2, admission=shedding)
    await there.waits(b"/1")
    low = await there.waits(b"/2")
    there.waiting.remove(low)
    await there.waits(b"/3", b"X-Priority: high")
    assert told(await low.response()) == (503, "shed", b"1")
    assert told(await low.ask(get(b"/4"))) == (503, "queue_full", b"1")
    assert await there.served() == [b"/3", b"/1"]


@pytest.mark.parametrize("proxies", [[], PROXIES], ids=["stranger", "trusted proxy"])
async def test_who_is_believed(stage: Stage, proxies: list[str]) -> None:
    """Anybody could call itself critical: only trusted proxies may say it."""
    there = await crowd(stage, limit=100, admission=SHEDDING, trusted_proxies=proxies)
    await there.waits(b"/normal")
    await there.waits(b"/critical", b"X-Priority: critical")
    assert await there.served() == ([b"/critical", b"/normal"] if proxies else [b"/normal", b"/critical"])


# --- deadlines


async def test_a_client_that_waits_so_long_and_no_longer(stage: Stage) -> None:
    """It has its answer when its time is over, to a sweep, and no worker hears of the request. Anybody may say so."""
    there = await crowd(stage, queue={"timeout_header": "X-Timeout-Ms"})
    hasty = await there.waits(b"/hasty", b"X-Timeout-Ms: 1500")
    there.waiting.remove(hasty)
    await there.waits(b"/patient", b"X-Timeout-Ms: 15000")
    stage.advance(1.4)
    assert len(stage.proxy.queue) == 2
    stage.advance(0.2)
    assert told(await hasty.response()) == (503, "deadline_passed", b"2")
    assert (await status(stage))["queue"]["dropped"] == {"deadline_passed": 1}
    assert await there.served() == [b"/patient"]


async def test_no_time_at_all(stage: Stage) -> None:
    """Not even where there is room."""
    worker = await stage.worker(response())
    await stage.serve(worker, queue={"timeout_header": "X-Timeout-Ms"})
    assert told(await stage.ask(get(b"/", b"X-Timeout-Ms: 0"))) == (503, "deadline_passed", b"1")
    assert (await stage.ask(get(b"/", b"X-Timeout-Ms: 1"))).status == 200
    assert len(worker.requests) == 1


async def test_less_time_than_an_answer_takes(stage: Stage) -> None:
    """Where the quickest answer so far has taken two seconds, one second is none."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await stage.serve(worker, queue={"timeout_header": "X-Timeout-Ms"})
    first = await fill(stage, worker)
    stage.advance(2.0)
    go.set()
    assert (await first.response()).status == 200
    stage.advance(0.0)
    assert told(await stage.ask(get(b"/", b"X-Timeout-Ms: 1000"))) == (503, "deadline_passed", b"1")
    assert (await stage.ask(get(b"/", b"X-Timeout-Ms: 2500"))).status == 200


def started(seconds: float) -> bytes:
    """As Heroku's router says it, on a clock of its own."""
    return b"X-Request-Start: %d" % ((UNIX + seconds) * 1e3)


async def ages(stage: Stage, delays: Sequence[float], proxies: Iterable[str]) -> list[int]:
    """Requests that have taken so long from the proxy to here, a second apart; what they are answered."""
    worker = await stage.worker(response())
    await stage.serve(worker, queue={"start_header": "X-Request-Start"}, trusted_proxies=list(proxies))
    answers = []
    for number, delay in enumerate(delays):
        answers.append((await stage.ask(get(b"/", started(number - delay)))).status)
        stage.advance(1.0)
    return answers


async def test_a_request_that_its_proxy_has_given_up(stage: Stage) -> None:
    """What has been on the way for 30 s longer than others is answered to nobody any more."""
    assert await ages(stage, [0.0, 29.0, 31.0, 0.1], PROXIES) == [200, 200, 503, 200]


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
async def test_a_proxy_whose_clock_is_wrong(stage: Stage, skew: float) -> None:
    """Only differences count."""
    assert await ages(stage, [skew, skew + 29.0, skew + 31.0, skew], PROXIES) == [200, 200, 503, 200]


async def test_a_stranger_does_not_set_the_clock(stage: Stage) -> None:
    assert await ages(stage, [0.0, 31.0], []) == [200, 200]


# --- figures


async def test_what_the_status_tells_of_the_queue(stage: Stage) -> None:
    """Length, the longest wait, the pace, and what became of whom."""
    there = await crowd(stage, 2)
    await there.waits(b"/1")
    gone = await there.waits(b"/2")
    there.waiting.remove(gone)
    stage.advance(3.0)
    refused = await stage.client()
    assert told(await refused.ask(get())) == (503, "queue_full", b"6")
    gone.reset()
    await stage.eventually(lambda: stage.proxy.queue.left)
    shown = await status(stage)
    assert shown["levels"] is None
    assert shown["queue"] == {
        "length": 1,
        "limit": 2,
        "oldest": 3.0,
        "order": "fifo",
        "pace": 0.0,
        "joined": 2,
        "served": 0,
        "left": 1,
        "dropped": {"queue_full": 1},
    }
    assert await metrics(stage, "steelyard_queue") == [
        "steelyard_queued 1.0",
        "steelyard_queue_oldest_seconds 3.0",
        "steelyard_queue_joined_total 2.0",
        "steelyard_queue_served_total 0.0",
        "steelyard_queue_left_total 1.0",
        'steelyard_queue_dropped_total{reason="queue_full"} 1.0',
    ]
    assert await there.served() == [b"/1"]
    assert stage.proxy.queue.served == 1


async def test_what_the_status_tells_of_a_limit_that_is_found(stage: Stage) -> None:
    """With the latencies that it goes by; nothing of it where none is looked for."""
    await stage.serve(await stage.worker(response()), concurrency={"adaptive": True, "initial": 12})
    for _ in range(12):
        assert (await stage.ask(get())).status == 200
        stage.advance(0.5)
    (endpoint,) = (await status(stage))["endpoints"]
    assert endpoint["concurrency"] == {"limit": 12, "usual_latency": 0.0, "latency": 0.0}
    (limit,) = await metrics(stage, "steelyard_endpoint_limit")
    assert limit == 'steelyard_endpoint_limit{endpoint="w0",region="r"} 12.0'


async def test_a_newest_first_queue(stage: Stage) -> None:
    """With `order = "adaptive"`, once whoever is in front has waited for long at every turn of a second."""
    there = await crowd(stage, limit=100, queue={"order": "adaptive"})
    for target in (b"/1", b"/2", b"/3", b"/4"):
        await there.waits(target)
    stage.advance(0.5)
    stage.proxy.queue.line.is_standing(stage.clock.at)
    stage.advance(1.0)
    assert await there.served() == [b"/4", b"/3", b"/2", b"/1"]


async def test_by_default_nothing_is_asked(stage: Stage) -> None:
    """No gate, no limits to find, no levels."""
    await stage.serve(await stage.worker(response()))
    proxy = stage.proxy
    assert proxy.admission is None
    assert not proxy.queue.line.is_adaptive
    assert stage.state().concurrency is None
    shown = await status(stage)
    assert shown["levels"] is None
    assert shown["endpoints"][0]["concurrency"] is None
