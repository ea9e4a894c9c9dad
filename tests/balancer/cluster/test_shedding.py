"""Priority levels, deadlines, figures of the wait queue, and rejections by the policy, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from policies import Available, EndpointState, Overloaded, RequestFacts
from tests.support.admin_requests import metrics, status
from tests.support.scripts import after_a_request, fill, gated
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, Wire, get, response

PROXIES = ["127.0.0.0/8"]
SHEDDING = {"header": "X-Priority"}
UNIX = 1_700_000_000


class FullWorker:
    """A worker with its one place taken until `go`, and clients that wait for it."""

    def __init__(self, stage: Stage, worker: ScriptedWorker, first: Wire, go: asyncio.Event) -> None:
        self.stage = stage
        self.worker = worker
        self.first = first
        self.go = go
        self.waiting: list[Wire] = []

    async def add_waiting(self, target: bytes, *fields: bytes) -> Wire:
        """Send a request that has to wait."""
        client = await self.stage.client()
        await client.send(get(target, *fields))
        self.waiting.append(client)
        queue = self.stage.cluster.queue
        joined = queue.joined
        await self.stage.eventually(lambda: queue.joined > joined or queue.dropped)
        return client

    async def release(self) -> list[bytes]:
        """Release the worker and return the targets in the order of service."""
        self.go.set()
        await self.first.response()
        for client in self.waiting:
            await client.response()
        return [request.line.split()[1] for request in self.worker.requests][1:]


async def full_worker(stage: Stage, limit: int = 8, **settings: Any) -> FullWorker:
    go = asyncio.Event()
    worker = await stage.serve_worker(gated(go), max_in_flight=1, limits={"queue": limit}, **settings)
    return FullWorker(stage, worker, await fill(stage, worker), go)


def error_of(answer: Message) -> tuple[int, str, bytes | None]:
    return answer.status, json.loads(answer.body)["error"], answer.value(b"Retry-After")


async def metric_lines(stage: Stage, *names: str) -> list[str]:
    """The lines that begin with one of `names`."""
    return [line for line in (await metrics(stage)).splitlines() if line.startswith(names)]


# --- priorities


async def test_higher_levels_are_served_first(stage: Stage) -> None:
    """First come, first served within a level; requests without a known level are "normal"."""
    busy = await full_worker(stage, limit=100, admission=SHEDDING, trusted_proxies=PROXIES)
    for target, level in (
        ("/1", "bulk"),
        ("/2", "normal"),
        ("/3", "Critical"),
        ("/4", "x"),
        ("/5", "critical"),
    ):
        await busy.add_waiting(target.encode(), b"X-Priority: " + level.encode())
    await busy.add_waiting(b"/6")
    assert await busy.release() == [b"/3", b"/5", b"/2", b"/4", b"/6", b"/1"]


async def test_lower_levels_are_shed_first(stage: Stage) -> None:
    """Level "bulk" is rejected from a quarter of the queue on, level "normal" from three quarters."""
    busy = await full_worker(stage, admission=SHEDDING, trusted_proxies=PROXIES)
    client = await stage.client()
    for _ in range(2):
        await busy.add_waiting(b"/")
    answer = await client.ask(get(b"/bulk", b"X-Priority: bulk"))
    assert error_of(answer) == (503, "shed", b"1")
    assert answer.value(b"Connection") is None
    for _ in range(4):
        await busy.add_waiting(b"/")
    assert error_of(await client.ask(get(b"/normal"))) == (503, "shed", b"1")
    await busy.add_waiting(b"/critical", b"X-Priority: critical")
    shown = await status(stage)
    assert shown["levels"] == [
        {"name": "critical", "waiting": 1, "shed": 0},
        {"name": "normal", "waiting": 6, "shed": 1},
        {"name": "bulk", "waiting": 0, "shed": 1},
    ]
    assert shown["queue"]["dropped"] == shown["errors"] == {"shed": 2}
    assert await metric_lines(stage, "steelyard_shed_total", "steelyard_level") == [
        'steelyard_level_waiting{level="critical"} 1.0',
        'steelyard_level_waiting{level="normal"} 6.0',
        'steelyard_level_waiting{level="bulk"} 0.0',
        'steelyard_shed_total{level="critical"} 0.0',
        'steelyard_shed_total{level="normal"} 1.0',
        'steelyard_shed_total{level="bulk"} 1.0',
    ]
    assert b"/bulk" not in await busy.release()


async def test_level_is_shed_by_requests_in_flight(stage: Stage) -> None:
    """`in_flight = 0.5`: the level may use half of what the endpoints can hold."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    levels = [{"name": "normal"}, {"name": "bulk", "in_flight": 0.5}]
    shedding = {**SHEDDING, "levels": levels, "trust": "all"}
    await stage.serve(worker, max_in_flight=2, admission=shedding)
    first, second = await fill(stage, worker), await stage.client()
    assert error_of(await second.ask(get(b"/", b"X-Priority: bulk"))) == (503, "shed", b"1")
    await second.send(get(b"/normal"))
    await stage.eventually(lambda: stage.state().in_flight == 2)
    go.set()
    assert [(await client.response()).status for client in (first, second)] == [200, 200]
    assert (await second.ask(get(b"/", b"X-Priority: bulk"))).status == 200


async def test_higher_level_displaces_a_lower_one_in_a_full_queue(stage: Stage) -> None:
    """In a full queue the newest request of the lowest level is rejected."""
    levels = [{"name": "high"}, {"name": "low"}]
    shedding = {**SHEDDING, "levels": levels, "default": "low", "trust": "all"}
    busy = await full_worker(stage, 2, admission=shedding)
    await busy.add_waiting(b"/1")
    low = await busy.add_waiting(b"/2")
    busy.waiting.remove(low)
    await busy.add_waiting(b"/3", b"X-Priority: high")
    assert error_of(await low.response()) == (503, "shed", b"1")
    assert error_of(await low.ask(get(b"/4"))) == (503, "queue_full", b"1")
    assert await busy.release() == [b"/3", b"/1"]


@pytest.mark.parametrize("proxies", [[], PROXIES], ids=["untrusted", "trusted proxy"])
async def test_priority_needs_a_trusted_proxy(stage: Stage, proxies: list[str]) -> None:
    """Any client could call itself critical."""
    busy = await full_worker(stage, limit=100, admission=SHEDDING, trusted_proxies=proxies)
    await busy.add_waiting(b"/normal")
    await busy.add_waiting(b"/critical", b"X-Priority: critical")
    assert await busy.release() == ([b"/critical", b"/normal"] if proxies else [b"/normal", b"/critical"])


# --- deadlines


async def test_waiting_request_ends_at_its_deadline(stage: Stage) -> None:
    """It is answered at its deadline, within one sweep, and not sent to a worker. Any client may state a deadline."""
    busy = await full_worker(stage, queue={"timeout_header": "X-Timeout-Ms"})
    hasty = await busy.add_waiting(b"/hasty", b"X-Timeout-Ms: 1500")
    busy.waiting.remove(hasty)
    await busy.add_waiting(b"/patient", b"X-Timeout-Ms: 15000")
    stage.advance(1.4)
    assert len(stage.cluster.queue) == 2
    stage.advance(0.2)
    assert error_of(await hasty.response()) == (503, "deadline_passed", b"2")
    assert (await status(stage))["queue"]["dropped"] == {"deadline_passed": 1}
    assert await busy.release() == [b"/patient"]


async def test_deadline_of_zero_is_rejected(stage: Stage) -> None:
    """Even where there is room."""
    worker = await stage.serve_worker(response(), queue={"timeout_header": "X-Timeout-Ms"})
    assert error_of(await stage.ask(get(b"/", b"X-Timeout-Ms: 0"))) == (503, "deadline_passed", b"1")
    assert (await stage.ask(get(b"/", b"X-Timeout-Ms: 1"))).status == 200
    assert len(worker.requests) == 1


async def test_request_whose_connect_outlasts_its_deadline_is_not_sent(stage: Stage) -> None:
    """The new connection goes to the pool for the next request, and the endpoint is not blamed."""
    worker = await stage.serve_worker(response(), queue={"timeout_header": "X-Timeout-Ms"})
    client = await stage.sending(get(b"/late", b"X-Timeout-Ms: 1500"))
    await stage.eventually(lambda: stage.pool().opening)
    stage.advance(1.6)
    assert error_of(await client.response())[:2] == (503, "deadline_passed")
    assert (await stage.ask(get(b"/next"))).status == 200
    assert [request.line.split()[1] for request in worker.requests] == [b"/next"]
    assert (len(worker.connections), stage.outcomes()) == (1, {"abandoned": 1, "ok": 1})


async def test_deadline_below_the_shortest_latency_is_rejected(stage: Stage) -> None:
    """The quickest response so far took two seconds."""
    go = asyncio.Event()
    worker = await stage.serve_worker(gated(go), queue={"timeout_header": "X-Timeout-Ms"})
    first = await fill(stage, worker)
    stage.advance(2.0)
    go.set()
    assert (await first.response()).status == 200
    stage.advance(0.0)
    assert error_of(await stage.ask(get(b"/", b"X-Timeout-Ms: 1000"))) == (503, "deadline_passed", b"1")
    assert (await stage.ask(get(b"/", b"X-Timeout-Ms: 2500"))).status == 200


def started(seconds: float) -> bytes:
    """In the format of Heroku's router, on a clock of its own."""
    return b"X-Request-Start: %d" % ((UNIX + seconds) * 1e3)


async def ages(stage: Stage, delays: Sequence[float], proxies: Iterable[str]) -> list[int]:
    """Statuses of requests a second apart that took these delays from the proxy to the balancer."""
    worker = await stage.worker(response())
    await stage.serve(worker, queue={"start_header": "X-Request-Start"}, trusted_proxies=list(proxies))
    answers = []
    for number, delay in enumerate(delays):
        answers.append((await stage.ask(get(b"/", started(number - delay)))).status)
        stage.advance(1.0)
    return answers


async def test_request_too_old_at_arrival_is_rejected(stage: Stage) -> None:
    """After 30 s more than other requests."""
    assert await ages(stage, [0.0, 29.0, 31.0, 0.1], PROXIES) == [200, 200, 503, 200]


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
async def test_clock_skew_of_the_proxy_does_not_matter(stage: Stage, skew: float) -> None:
    """Only differences count."""
    assert await ages(stage, [skew, skew + 29.0, skew + 31.0, skew], PROXIES) == [200, 200, 503, 200]


async def test_start_header_needs_a_trusted_proxy(stage: Stage) -> None:
    assert await ages(stage, [0.0, 31.0], []) == [200, 200]


# --- figures


async def test_queue_in_status_and_metrics(stage: Stage) -> None:
    """Length, longest wait, pace, and counts by result."""
    busy = await full_worker(stage, 2)
    await busy.add_waiting(b"/1")
    gone = await busy.add_waiting(b"/2")
    busy.waiting.remove(gone)
    stage.advance(3.0)
    assert error_of(await stage.ask(get())) == (503, "queue_full", b"6")
    gone.reset()
    await stage.eventually(lambda: stage.cluster.queue.left)
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
    assert await metric_lines(stage, "steelyard_queue") == [
        "steelyard_queued 1.0",
        "steelyard_queue_oldest_seconds 3.0",
        "steelyard_queue_joined_total 2.0",
        "steelyard_queue_served_total 0.0",
        "steelyard_queue_left_total 1.0",
        'steelyard_queue_dropped_total{reason="queue_full"} 1.0',
    ]
    assert await busy.release() == [b"/1"]
    assert stage.cluster.queue.served == 1


async def test_found_limit_in_status_and_metrics(stage: Stage) -> None:
    """With the latencies that it is based on."""
    await stage.serve(await stage.worker(response()), concurrency={"adaptive": True, "initial": 12})
    for _ in range(12):
        assert (await stage.ask(get())).status == 200
        stage.advance(0.5)
    (endpoint,) = (await status(stage))["endpoints"]
    assert endpoint["concurrency"] == {"limit": 12, "usual_latency": 0.0, "latency": 0.0}
    (limit,) = await metric_lines(stage, "steelyard_endpoint_limit")
    assert limit == 'steelyard_endpoint_limit{endpoint="w0",region="r"} 12.0'


async def test_adaptive_queue_serves_newest_first(stage: Stage) -> None:
    """With `order = "adaptive"`, after the head of the queue has waited too long for an interval."""
    busy = await full_worker(stage, limit=100, queue={"order": "adaptive"})
    for target in (b"/1", b"/2", b"/3", b"/4"):
        await busy.add_waiting(target)
    stage.advance(0.5)
    stage.cluster.queue.tickets.is_standing(stage.clock.at)
    stage.advance(1.0)
    assert await busy.release() == [b"/4", b"/3", b"/2", b"/1"]


# --- rejections by the policy


class RejectingPolicy:
    """Picks the first endpoint for the first `accepted` requests and attempts, and rejects all others."""

    def __init__(self, accepted: int = 0) -> None:
        self.accepted = accepted

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        self.accepted -= 1
        if self.accepted < 0:
            raise Overloaded()
        return available[0]


async def test_the_policy_rejects_a_request(stage: Stage) -> None:
    """It is no fault of the policy: the fallback does not pick, and the request does not wait."""
    worker = await stage.serve_worker(response(b"served"))
    stage.cluster.router.set_policy(RejectingPolicy(accepted=1))
    client = await stage.client()
    assert (await client.ask(get())).body == b"served"
    assert error_of(await client.ask(get())) == (503, "overloaded", b"1")
    assert (await status(stage))["queue"]["dropped"] == {"overloaded": 1}
    lines = await metric_lines(stage, "steelyard_queue_dropped", "steelyard_errors_total")
    assert [line for line in lines if not line.endswith(" 0.0")] == [
        'steelyard_queue_dropped_total{reason="overloaded"} 1.0',
        'steelyard_errors_total{reason="overloaded"} 1.0',
    ]
    assert stage.cluster.router.fallback_picks == 0
    assert len(worker.requests) == 1


async def test_a_rejected_retry_ends_the_request(stage: Stage) -> None:
    await stage.serve(*[await stage.worker(after_a_request()) for _ in range(2)])
    stage.cluster.router.set_policy(RejectingPolicy(accepted=1))
    assert error_of(await stage.ask(get())) == (503, "overloaded", b"1")
    assert stage.cluster.router.in_flight == 0
