"""Endpoints at their limit: waiting, rejection, order of service."""

from __future__ import annotations

import asyncio
import json

from tests.support.scripts import fill, gated
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, post


async def test_requests_wait_in_order(stage: Stage) -> None:
    """At most `max_in_flight` requests reach the worker at once; the others follow in order of arrival."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await stage.serve(worker, max_in_flight=1)
    first = await fill(stage, worker)
    others = []
    for i in range(5):
        others.append(await stage.client())
        await others[-1].send(post(b"x" * i))
        await stage.eventually(lambda: len(stage.cluster.queue) == len(others))
    assert (len(worker.requests), stage.state().in_flight) == (1, 1)
    go.set()
    assert (await first.response()).body == b"/first"
    for other in others:
        assert (await other.response()).status == 200
    assert [len(request.body) for request in worker.requests] == [0, 0, 1, 2, 3, 4]
    assert len(worker.connections) == 1


async def test_full_queue_is_answered_503(stage: Stage) -> None:
    """Retry-After is sent, and the client's connection is kept."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await stage.serve(worker, max_in_flight=1, limits={"queue": 1})
    first, second, third = await fill(stage, worker), await stage.client(), await stage.client()
    await second.send(get(b"/second"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    answer = await third.ask(get(b"/third"))
    assert (answer.status, answer.value(b"Retry-After")) == (503, b"1")
    assert json.loads(answer.body)["error"] == "queue_full"
    assert answer.value(b"Connection") is None
    go.set()
    assert (await first.response()).body == b"/first"
    assert (await second.response()).body == b"/second"
    assert (await third.ask(get(b"/again"))).body == b"/again"
    assert stage.cluster.counts.errors == {"queue_full": 1}


async def test_waiting_requests_are_served_after_a_failure(stage: Stage) -> None:
    await stage.serve(await stage.worker(playing(Wire.request)), max_in_flight=1, retries=0)
    clients = [await stage.client() for _ in range(3)]
    for client in clients:
        await client.send(get())
    assert [(await client.response()).status for client in clients] == [502] * 3
