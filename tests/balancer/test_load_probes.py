"""Workers asked for their load: on a policy's word, within bounds, and never at a request's cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from balancer.config.sections import PolicySpec
from balancer.upstream.load_probes import ProbePlan
from policies import registry
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, ReportedLoad, RequestFacts
from tests.balancer.conftest import ScriptedWorker, Stage, Wire, answering, get, response

REPORT = (b"X-Worker-In-Flight: 3", b"X-Worker-Utilization: 0.5")


class Curious:
    """The first that is on offer; after each pick it would like to know of everybody."""

    made: Curious

    def __init__(self, rng: Random) -> None:
        self.states: Sequence[EndpointState] = ()
        self.heard: list[tuple[str, ReportedLoad, float, float]] = []
        Curious.made = self

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.states = states

    def probes(self, now: float) -> Sequence[EndpointState]:
        return self.states

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self.heard.append((state.id, load, latency, now))


@pytest.fixture(autouse=True)
def curious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TABLE, "curious", Curious)


def reporting(probe: bytes = response(b"", *REPORT)) -> Callable[[Wire], Any]:
    """Answers probes with `probe`, and everything else with what is usual."""

    async def script(wire: Wire) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await wire.request()
                await wire.send(probe if b"/load" in request.line else response())

    return script


async def serve(stage: Stage, *workers: ScriptedWorker | int, **settings: Any) -> None:
    settings = {"policy": "curious", "load_probes": {"path": "/load"}, **settings}
    await stage.serve(*workers, **settings)


def counts(stage: Stage) -> tuple[int, int, int, int, int]:
    found = stage.control_plane.load_probes.counts
    return found.sent, found.answered, found.silent, found.failed, found.skipped


async def settled(stage: Stage) -> None:
    await stage.eventually(lambda: not stage.control_plane.load_probes.under_way)


async def test_nobody_is_asked_without_a_path(stage: Stage) -> None:
    worker = await stage.worker(response())
    await serve(stage, worker, load_probes={})
    await stage.ask(get())
    assert stage.proxy.router.on_probe is None
    assert len(worker.requests) == 1


async def test_a_policy_hears_what_workers_say(stage: Stage) -> None:
    workers = [await stage.worker(reporting()) for _ in range(2)]
    await serve(stage, *workers)
    await stage.ask(get())
    await settled(stage)
    assert sorted(Curious.made.heard) == [(f"w{n}", ReportedLoad(3, None, 0.5), 0.0, 1000.0) for n in (0, 1)]
    assert counts(stage) == (2, 2, 0, 0, 0)
    asked = workers[1].requests[0]
    assert asked.line == b"GET /load HTTP/1.1"
    assert asked.value(b"User-Agent") == b"steelyard-load-probe"
    assert stage.outcomes("w1") == {}  # nobody's request


async def test_a_request_has_its_connection_first(stage: Stage) -> None:
    """The only idle one is the request's; the probe opens another, which is kept."""
    worker = await stage.worker(reporting())
    await serve(stage, worker)
    await stage.ask(get())
    await settled(stage)
    stage.control_plane.load_probes.apply(ProbePlan())
    assert (stage.pool().idle, len(worker.connections)) == (2, 2)
    assert [wire.requests[0].line for wire in worker.connections] == [
        b"GET / HTTP/1.1",
        b"GET /load HTTP/1.1",
    ]


async def test_one_at_a_time_to_an_endpoint(stage: Stage) -> None:
    """A worker that hangs at the probe goes on serving; when the time is up the next is sent."""
    hang = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            if b"/load" in request.line:
                await hang.wait()
            await wire.send(response(b"", *REPORT))

    worker = await stage.worker(script)
    await serve(stage, worker)
    for _ in range(5):
        assert (await stage.ask(get())).status == 200
    assert counts(stage) == (1, 0, 0, 0, 4)
    stage.clock.at += 1
    stage.control_plane.load_probes.sweep(stage.clock.at)
    assert counts(stage) == (1, 0, 0, 1, 4)
    hang.set()
    await stage.ask(get())
    await settled(stage)
    assert counts(stage) == (2, 1, 0, 1, 4)


async def test_so_many_in_all(stage: Stage) -> None:
    workers = [await stage.worker(reporting()) for _ in range(3)]
    await serve(stage, *workers, load_probes={"path": "/load", "max_in_flight": 2})
    await stage.ask(get())
    await settled(stage)
    assert counts(stage) == (2, 2, 0, 0, 1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (response(b"nothing to say"), (1, 0, 1, 0, 0)),
        (response(b"x" * 200_000, *REPORT), (1, 0, 0, 1, 0)),
        (
            b"HTTP/1.1 200 OK\r\nX-Worker-In-Flight: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            (1, 1, 0, 0, 0),
        ),
        (b"what?\r\n\r\n", (1, 0, 0, 1, 0)),
    ],
)
async def test_answers_of_every_kind(stage: Stage, answer: bytes, expected: tuple[int, ...]) -> None:
    await serve(stage, await stage.worker(reporting(answer)))
    await stage.ask(get())
    await settled(stage)
    assert counts(stage) == expected


async def test_who_cannot_be_reached_costs_nothing(stage: Stage) -> None:
    """And says nothing of health either: that is for checks and requests."""
    await serve(stage, await stage.worker(reporting()), stage.dead_port())
    assert (await stage.ask(get())).status == 200
    await settled(stage)
    assert counts(stage) == (2, 1, 0, 1, 0)
    assert stage.state("w1").passes_health


async def test_a_connection_that_was_closed_meanwhile_is_replaced(stage: Stage) -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        request = await wire.request()
        await wire.send(response(b"", *REPORT))
        if b"/load" not in request.line:
            await go.wait()
            wire.leave()
        else:
            await wire.closed()

    worker = await stage.worker(script)
    await serve(stage, worker)
    await stage.ask(get())
    await settled(stage)
    assert counts(stage)[1] == 1
    go.set()


async def test_a_reload_turns_them_on_and_off(stage: Stage) -> None:
    worker = await stage.worker(reporting())
    await serve(stage, worker, load_probes={})
    await stage.reload(load_probes={"path": "/load"})
    await stage.ask(get())
    await settled(stage)
    await stage.reload(load_probes={})
    await stage.ask(get())
    assert counts(stage) == (1, 1, 0, 0, 0)


async def test_a_probe_requested_before_they_are_turned_off_is_not_sent(stage: Stage) -> None:
    """The reload comes between the request for a probe and its sending, in the next loop iteration."""
    worker = await stage.worker(reporting())
    await serve(stage, worker)
    probes = stage.control_plane.load_probes
    probes.request(stage.state())
    probes.apply(ProbePlan())
    await settled(stage)
    assert counts(stage) == (0, 0, 0, 0, 0)
    assert worker.connections == []


async def test_when_the_unit_stops_nothing_is_waited_for(stage: Stage) -> None:
    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            if b"/load" not in request.line:
                await wire.send(response())

    await serve(stage, await stage.worker(script))
    await stage.ask(get())
    assert stage.control_plane.load_probes.under_way
    stage.control_plane.load_probes.stop()
    assert stage.control_plane.load_probes.under_way == {}


async def test_what_answers_report_reaches_a_policy_that_observes(stage: Stage) -> None:
    """Without a probe: whole answers, and streamed ones. A policy that does not observe costs no look at them."""
    heard: list[ReportedLoad | None] = []
    stream = (
        b"HTTP/1.1 200 OK\r\nX-Worker-In-Flight: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    )
    worker = await stage.worker(answering(response(b"", *REPORT), stream, response()))
    await serve(stage, worker, load_probes={})
    assert stage.proxy.reads_load is False

    class Observing(Curious):
        def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
            heard.append(outcome.reported_load)

    registry.TABLE["curious"] = Observing
    stage.control_plane.apply_policy(PolicySpec(name="curious"))
    client = await stage.client()
    for _ in range(3):
        await client.ask(get())
    assert heard == [ReportedLoad(3, None, 0.5), ReportedLoad(9, None, None), None]


async def test_prequal_probes_out_of_band(stage: Stage) -> None:
    """The real policy on a real server: it has heard of both workers after a few requests."""
    workers = [await stage.worker(reporting()) for _ in range(2)]
    await serve(stage, *workers, policy="prequal")
    for _ in range(10):
        assert (await stage.ask(get())).status == 200
        await settled(stage)
    sent, answered, *rest = counts(stage)
    assert answered == sent >= 2
    assert rest[:2] == [0, 0]
    assert all(any(b"/load" in request.line for request in worker.requests) for worker in workers)
