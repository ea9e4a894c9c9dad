"""Timeouts of heads and connects, ages of pooled connections and the sweep, under a manual clock.

`test_cancellation.py` has the timeout of each step, `test_timeout_instants.py` their instants.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from balancer.clients.client_usage import ClientConnection
from balancer.downstream.timeouts import SLICE, Sweep
from tests.support.stage import Stage, quiet_loop
from tests.support.wire import fault_of, get, response
from tests.support.wireless import Wireless, sends


class Broken:
    """A client connection whose check raises."""

    ended_at = 0.0

    def __init__(self, real: ClientConnection, fault: Exception) -> None:
        self.transport = real.transport
        self.abort = real.abort
        self._fault = fault

    def check(self, now: float) -> None:
        raise self._fault


async def test_incomplete_head_is_answered_408(stage: Stage) -> None:
    """408, counted from the first byte of the head, even if bytes keep coming."""
    worker = await stage.serve_worker(response(), timeouts={"head": 5})
    client = await stage.client()
    stage.advance(50)
    for piece in (b"GET / HT", b"TP/1.1\r\n", b"Host: "):
        await client.send(piece)
        await stage.turn()
        stage.advance(1.6)
    await stage.turn()
    assert not client.received
    await client.send(b"a")
    await stage.turn()
    stage.advance(0.4)
    answer = await client.response()
    assert fault_of(answer)[:2] == (408, "head_timeout")
    assert answer.value(b"Connection") == b"close"
    client.half_close()
    await client.closed()
    assert worker.connections == []


async def test_head_that_ends_anywhere_is_answered_408_and_logged(stage: Stage, tmp_path: Path) -> None:
    """The log has what has come of the Host, and the sweep goes on."""
    head, log = b"GET / HTTP/1.1\r\nHost: a.example\r\nX: y\r\n\r", tmp_path / "log"
    await stage.serve(
        await stage.worker(response()), timeouts={"head": 5}, log={"access": "json", "path": str(log)}
    )
    sent = {head[:size]: await stage.client() for size in range(1, len(head) + 1)}
    for part, client in sent.items():
        await client.send(part)
    await stage.eventually(lambda: all(stage.heads_begun()) and len(stage.downstreams) == len(sent))
    stage.advance(5.5)
    for client in sent.values():
        assert (await client.response()).status == 408
    hosts = [part.partition(b"Host:")[2].partition(b"\r")[0].strip().decode() for part in sent]
    await stage.close()
    await stage.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["host"] or "" for line in lines) == sorted(hosts)
    assert {(line["reason"], line["head"], line["total"]) for line in lines} == {("head_timeout", 5.5, 5.5)}


@pytest.mark.parametrize(("key", "workers", "end"), [("first_byte", 1, b" 504 "), ("attempt", 2, b" 103 ")])
def test_interim_responses_extend_no_timeout(key: str, workers: int, end: bytes) -> None:
    """The timeouts are those of the final response, whatever the worker says in between."""
    with Wireless(2, timeouts=((key, 2.0),)) as stage:
        client = stage.client()
        sends(stage, client, get())
        for _ in range(3):
            stage.advance(0.9)
            if stage.workers[0].is_open:
                sends(stage, stage.workers[0], b"HTTP/1.1 103 Early Hints\r\n\r\n")
        assert (len(stage.workers), end in client.received.rpartition(b"HTTP/1.1")[2]) == (workers, True)
        stage.leave()


async def test_request_that_waits_for_a_connection_awaits_no_answer(stage: Stage) -> None:
    """It is no sign of slow service; that connecting takes so long is shown by `connect_time`."""
    await stage.serve(stage.deaf_port(), timeouts={"connect": 100})
    (state,) = stage.cluster.router.states
    client = await stage.sending(get())
    await stage.eventually(lambda: state.in_flight == 1)
    assert state.awaiting == 0
    pool: Any = state.connections
    assert pool.connect_time < 1.0
    stage.advance(1.5)
    assert pool.connect_time >= 1.5
    client.reset()
    await stage.eventually(lambda: state.in_flight == 0)
    assert state.awaiting == 0
    await asyncio.wait(pool.connector.cancel())


async def test_sweep_yields_between_slices(stage: Stage) -> None:
    """More connections than one slice of the sweep: all are checked, and the loop runs other callbacks in between."""
    await stage.serve(await stage.worker(response()), timeouts={"head": 2})
    clients = [await stage.client() for _ in range(2 * SLICE + 1)]
    for client in clients:
        await client.send(b"GET / HT")
    await stage.eventually(lambda: len(stage.downstreams) == len(clients))
    await stage.turn()
    stage.clock.at += 3
    sweep = Sweep(stage.cluster.process, lambda now: None)
    refused: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: refused.append(stage.cluster.counts.errors["head_timeout"]))
    sweep.run()
    assert stage.cluster.counts.errors["head_timeout"] == SLICE
    await stage.eventually(lambda: stage.cluster.counts.errors["head_timeout"] == len(clients))
    assert refused[0] < len(clients)
    sweep.stop()
    for client in clients:
        assert (await client.response()).status == 408


async def test_sweep_survives_a_defect(stage: Stage) -> None:
    """A check that raises is reported and costs its connection only; what raises at the end costs one sweep."""
    await stage.serve(await stage.worker(response()), timeouts={"head": 2})
    client, other = await stage.client(), await stage.client()
    await stage.eventually(lambda: len(stage.downstreams) == 2)
    process, real = stage.cluster.process, next(iter(stage.downstreams))
    await other.send(b"GET / HT")
    await stage.turn()
    fault, at_end, ends = SystemError("a defect"), SystemError("another"), []

    def end(now: float) -> None:
        ends.append(now)
        if len(ends) == 1:
            raise at_end

    process.downstreams = cast(Any, {Broken(real, fault): None} | process.downstreams)
    sweep = Sweep(process, end)
    stage.clock.at += 3
    with quiet_loop() as reported:
        with pytest.raises(SystemError):
            sweep.run()
        assert [one["exception"] for one in reported] == [fault]
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert (await other.response()).status == 408
    del process.downstreams[next(iter(process.downstreams))]
    sweep.run()
    assert len(ends) == 2
    sweep.stop()
