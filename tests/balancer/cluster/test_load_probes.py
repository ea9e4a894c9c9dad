"""Load probes: sent when a policy requests them, bounded, and without delaying requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.sections import LoadProbesConfig
from policies import registry
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, ReportedLoad, RequestFacts
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, answering, answering_after, get, response

REPORT = (b"X-Worker-In-Flight: 3", b"X-Worker-Utilization: 0.5")


class ProbingPolicy:
    """A policy that picks the first endpoint and requests a probe of every endpoint after each pick."""

    made: ProbingPolicy

    def __init__(self, rng: Random) -> None:
        self.states: Sequence[EndpointState] = ()
        self.heard: list[tuple[str, ReportedLoad, float, float]] = []
        ProbingPolicy.made = self

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.states = states

    def probes(self, now: float) -> Sequence[EndpointState]:
        return self.states

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self.heard.append((state.id, load, latency, now))


@pytest.fixture(autouse=True)
def register_probing_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TABLE, "register_probing_policy", ProbingPolicy)


def reporting(probe: bytes = response(b"", *REPORT)) -> Callable[[Wire], Any]:
    """Answer probes with `probe`, and other requests with 200."""
    return answering(lambda request: probe if b"/load" in request.line else response())


async def serve(stage: Stage, *workers: ScriptedWorker | int, **settings: Any) -> None:
    settings = {"policy": "register_probing_policy", "load_probes": {"path": "/load"}, **settings}
    await stage.serve(*workers, **settings)


def counts(stage: Stage) -> tuple[int, int, int, int, int]:
    found = stage.control_plane.load_probes.counts
    return found.sent, found.answered, found.silent, found.failed, found.skipped


async def settled(stage: Stage) -> None:
    await stage.eventually(lambda: not stage.control_plane.load_probes.under_way)


async def test_no_probes_without_a_path(stage: Stage) -> None:
    worker = await stage.worker(response())
    await serve(stage, worker, load_probes={})
    await stage.ask(get())
    assert stage.cluster.router.on_probe is None
    assert len(worker.requests) == 1


async def test_reports_reach_the_policy(stage: Stage) -> None:
    workers = [await stage.worker(reporting()) for _ in range(2)]
    await serve(stage, *workers)
    await stage.ask(get())
    await settled(stage)
    assert sorted(ProbingPolicy.made.heard) == [
        (f"w{n}", ReportedLoad(3, None, 0.5), 0.0, 1000.0) for n in (0, 1)
    ]
    assert counts(stage) == (2, 2, 0, 0, 0)
    asked = workers[1].requests[0]
    assert asked.line == b"GET /load HTTP/1.1"
    assert asked.value(b"User-Agent") == b"steelyard-load-probe"
    assert stage.outcomes("w1") == {}  # probes are not requests


async def test_requests_take_idle_connections_first(stage: Stage) -> None:
    """The request takes the only idle connection; the probe dials another, which is kept."""
    worker = await stage.worker(reporting())
    await serve(stage, worker)
    await stage.ask(get())
    await settled(stage)
    stage.control_plane.load_probes.apply(LoadProbesConfig())
    assert (stage.pool().idle, len(worker.connections)) == (2, 2)
    assert [wire.requests[0].line for wire in worker.connections] == [
        b"GET / HTTP/1.1",
        b"GET /load HTTP/1.1",
    ]


async def test_one_probe_at_a_time_per_endpoint(stage: Stage) -> None:
    """A worker that does not answer a probe still serves; after the timeout the next probe is sent."""
    hang = asyncio.Event()
    await serve(stage, await stage.worker(answering_after(hang, response(b"", *REPORT), only=b"/load")))
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


async def test_limit_of_concurrent_probes(stage: Stage) -> None:
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
async def test_responses_to_probes(stage: Stage, answer: bytes, expected: tuple[int, ...]) -> None:
    await serve(stage, await stage.worker(reporting(answer)))
    await stage.ask(get())
    await settled(stage)
    assert counts(stage) == expected


async def test_unreachable_endpoint(stage: Stage) -> None:
    """No effect on health, which is up to checks and requests."""
    await serve(stage, await stage.worker(reporting()), stage.dead_port())
    assert (await stage.ask(get())).status == 200
    await settled(stage)
    assert counts(stage) == (2, 1, 0, 1, 0)
    assert stage.state("w1").passes_health


async def test_reload_enables_and_disables_probes(stage: Stage) -> None:
    await serve(stage, await stage.worker(reporting()), load_probes={})
    await stage.reload(load_probes={"path": "/load"})
    await stage.ask(get())
    await settled(stage)
    await stage.reload(load_probes={})
    await stage.ask(get())
    assert counts(stage) == (1, 1, 0, 0, 0)


async def test_requested_probe_is_dropped_when_disabled(stage: Stage) -> None:
    """The reload happens between the policy's request and the sending in the next loop iteration."""
    worker = await stage.worker(reporting())
    await serve(stage, worker)
    probes = stage.control_plane.load_probes
    probes.request(stage.state())
    probes.apply(LoadProbesConfig())
    await settled(stage)
    assert counts(stage) == (0, 0, 0, 0, 0)
    assert worker.connections == []


async def test_stop_does_not_wait_for_probes(stage: Stage) -> None:
    await serve(stage, await stage.worker(answering_after(asyncio.Event(), only=b"/load")))
    await stage.ask(get())
    assert stage.control_plane.load_probes.under_way
    stage.control_plane.load_probes.stop()
    assert stage.control_plane.load_probes.under_way == {}


async def test_reports_in_responses_reach_observe(stage: Stage) -> None:
    """From complete and streamed responses, without a probe; a policy without `observe` skips the parsing."""
    heard: list[ReportedLoad | None] = []
    stream = (
        b"HTTP/1.1 200 OK\r\nX-Worker-In-Flight: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    )
    worker = await stage.worker(answering(response(b"", *REPORT), stream, response()))
    await serve(stage, worker, load_probes={})
    assert stage.cluster.reads_load is False

    class Observing(ProbingPolicy):
        def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
            heard.append(outcome.reported_load)

    registry.TABLE["register_probing_policy"] = Observing
    stage.control_plane.apply_policy(PolicySpec(name="register_probing_policy"))
    client = await stage.client()
    for _ in range(3):
        await client.ask(get())
    assert heard == [ReportedLoad(3, None, 0.5), ReportedLoad(9, None, None), None]


async def test_prequal_policy(stage: Stage) -> None:
    """The policy `prequal` receives reports of both workers after a few requests."""
    workers = [await stage.worker(reporting()) for _ in range(2)]
    await serve(stage, *workers, policy="prequal")
    for _ in range(10):
        assert (await stage.ask(get())).status == 200
        await settled(stage)
    sent, answered, *rest = counts(stage)
    assert answered == sent >= 2
    assert rest[:2] == [0, 0]
    assert all(any(b"/load" in request.line for request in worker.requests) for worker in workers)
