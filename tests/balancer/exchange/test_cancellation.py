"""Disconnects, deadlines and stops at every step of a request.

In the tables a row is a step and a column an event. A cell reads `outcomes/what the client sees/counted errors`.
Several outcomes or responses are joined by `+`, `-` is none, and `.` marks an event that cannot happen at that step.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from balancer.control.admin.exchange import AdminExchange
from balancer.downstream.connection import Http1Connection
from balancer.exchange.exchange import HALF_CLOSED_IN_S, Exchange
from benchmarks.harness.open_load import without_collections
from policies.endpoint.state import EndpointState
from policies.facts import Outcome
from tests.support.stage import Stage, quiet_loop
from tests.support.steps import STEPS, Scene
from tests.support.wire import Wire, answering_after, get

CLIENT = """
step                        nothing               client-fin         client-half           client-rst
connected                   ok/200                -/-                -/closed              -/-
amid the head               ok/200                -/-                -/closed              -/-
amid a request              ok/200                abandoned/-        abandoned/closed      abandoned/-
amid a kept body            ok/200                -/-                -/closed              -/-
in the queue                ok+ok/200             ok/-               ok+ok/100+200         ok/-
a GET sent                  ok/200                abandoned/-        ok/100+200            abandoned/-
a POST sent                 ok/200                abandoned/-        ok/100+200            abandoned/-
amid the answer's head      ok/200                abandoned/-        ok/100+200            abandoned/-
after an interim answer     ok/103+200            abandoned/-        ok/103+100+200        abandoned/-
amid an answer              ok/200                ok/-               ok/200                abandoned/-
amid an answer until close  ok/200                ok/-               ok/200                abandoned/-
the client reads no more    ok/200                abandoned/-        ok/200                abandoned/-
a response taken over       ok/200                ok/-               ok/200                ok/-
the worker reads no more    ok/200                abandoned/-        ok/200                abandoned/-
pipelined                   ok+ok+ok/200+200+200  ok+ok/-            ok+ok+ok/200+200+200  abandoned/-
lingering                   ok/413                ok/-               ok/413                ok/-
kept alive                  ok/200                ok/-               ok/200                ok/-
amid an admin request      -/200                 -/-                -/closed              -/-
a second attempt sent       ok+reset/200          abandoned+reset/-  ok+reset/100+200      abandoned+reset/-
"""

CONNECTING = """
step                         nothing                              client-half
connecting                   refused+refused/504/connect_timeout  refused+refused/100+504/connect_timeout
refused                      refused+refused/502/connect_failed   .
a second attempt connecting  refused+reset/504/connect_timeout    refused+reset/100+504/connect_timeout
"""

CONNECTING_RESET = """
step                         client-rst
connecting                   abandoned/-
a second attempt connecting  abandoned+reset/-
"""

WORKER = """
step                        worker-fin                         worker-rst
amid a request              reset/502/connection_broken        reset/502/connection_broken
in the queue                ok+reset/200/connection_broken     ok+reset/200/connection_broken
a GET sent                  ok+reset/200                       ok+reset/200
a POST sent                 reset/502/connection_broken        reset/502/connection_broken
amid the answer's head      reset/502/connection_broken        reset/502/connection_broken
after an interim answer     reset/103+502/connection_broken    reset/103+502/connection_broken
amid an answer              reset/short/connection_broken      reset/short/connection_broken
amid an answer until close  ok/200                             reset/short/connection_broken
the client reads no more    reset/short/connection_broken      reset/short/connection_broken
a response taken over       ok/200                             ok/200
the worker reads no more    reset/502/connection_broken        reset/502/connection_broken
pipelined                   ok+ok+ok+reset/200+200+200         ok+ok+ok+reset/200+200+200
kept alive                  ok/200                             ok/200
a second attempt sent       reset+reset/502/connection_broken  reset+reset/502/connection_broken
"""

BALANCER = """
step                         deadline                                    drain         stop
connected                    -/closed                                    ok/200        -/closed
amid the head                -/408/head_timeout                          ok/200        -/cut
amid a request               abandoned/408/body_timeout                  ok/200        abandoned/cut/shutting_down
amid a kept body             -/408/body_timeout                          ok/200        -/cut/shutting_down
in the queue                 ok/503/queue_timeout                  ok+ok/200  abandoned/cut/shutting_down+shutting_down
connecting                   .                                           .             abandoned/cut/shutting_down
a GET sent                   timeout/504/response_timeout                ok/200        abandoned/cut/shutting_down
a POST sent                  timeout/504/response_timeout                ok/200        abandoned/cut/shutting_down
amid the answer's head       timeout/504/response_timeout                ok/200        abandoned/cut/shutting_down
after an interim answer      timeout/103+504/response_timeout            ok/103+200    abandoned/cut/shutting_down
amid an answer               timeout/short/response_timeout              ok/200        abandoned/cut/shutting_down
amid an answer until close   timeout/short/response_timeout              ok/200        abandoned/cut/shutting_down
the client reads no more     abandoned/cut/client_stalled                ok/200        abandoned/cut/shutting_down
a response taken over        ok/cut                                      ok/200        ok/cut
the worker reads no more     timeout/504/response_timeout                ok/200        abandoned/cut/shutting_down
pipelined                    ok+ok+timeout/504+200+200/response_timeout  ok/200        abandoned/cut/shutting_down
lingering                    ok/413                                      ok/413        ok/413
kept alive                   ok/200                                      ok/200        ok/200
amid an admin request       -/408/body_timeout                          -/200         -/cut
a second attempt sent        reset+timeout/504/response_timeout          ok+reset/200  abandoned+reset/cut/shutting_down
a second attempt connecting  .                                           .             abandoned+reset/cut/shutting_down
"""

HEDGED = """
step                nothing           client-fin             client-half           client-rst
hedged              ok+ok/200         abandoned+abandoned/-  ok+ok/100+200         abandoned+abandoned/-
a hedge connecting  abandoned+ok/200  .                      abandoned+ok/100+200  abandoned+abandoned/-
a hedge has won     ok+ok/200         ok+ok/-                ok+ok/200             ok+ok/-
"""

HEDGED_STOP = """
step                stop
hedged              abandoned+abandoned/cut/shutting_down
a hedge connecting  abandoned+abandoned/cut/shutting_down
a hedge has won     abandoned+ok/200
"""

HEDGE_LOST = """
step    deadline                              worker-fin    worker-rst
hedged  timeout+timeout/504/response_timeout  ok+reset/200  ok+reset/200
"""


def listed(text: str) -> list[str]:
    return [] if text == "-" else text.split("+")


GROUPS = {
    "amid a request": listed(
        "after the head+first bytes of a length+amid a length+before the chunks+amid a chunk size+amid a chunk+"
        "between chunks+amid the last chunk+after the last chunk+amid request trailers"
    ),
    "amid an answer": listed(
        "after the answer's head+amid an answer by length+amid an answer's chunk+between an answer's chunks+"
        "amid an answer's trailers"
    ),
}
"""Steps that share a row."""


@dataclass(frozen=True)
class Cell:
    """Expected result when `event` happens at `step`."""

    step: str
    event: str
    outcomes: list[str]
    seen: list[str]
    errors: list[str]

    @property
    def is_ok(self) -> bool:
        """Whether at least one request succeeds."""
        return "ok" in self.outcomes

    def __str__(self) -> str:
        return f"{self.step}: {self.event}"


def cells(table: str) -> Iterator[Cell]:
    """The cells of a table, row by row."""
    (_, *events), *rows = (re.split(r"  +", line) for line in table.strip().splitlines())
    for step, *entries in rows:
        for event, entry in zip(events, entries, strict=True):
            if entry != ".":
                outcomes, seen, *errors = (listed(part) for part in entry.split("/"))
                for each in GROUPS.get(step, [step]):
                    yield Cell(each, event, outcomes, seen, errors[0] if errors else [])


CELLS = [
    cell
    for table in (CLIENT, CONNECTING, CONNECTING_RESET, WORKER, BALANCER, HEDGED, HEDGED_STOP, HEDGE_LOST)
    for cell in cells(table)
]


# --- events


async def nothing(scene: Scene) -> None:
    """The request continues, which shows that the scene is at its step."""


async def client_fin(scene: Scene) -> None:
    """A sweep asks whether the client still reads, where nothing has been answered yet; the next finds its reset."""
    scene.client.leave()
    for _ in range(2):
        await scene.stage.turn()
        scene.stage.advance(0.0)
    await scene.stage.turn()


async def client_half(scene: Scene) -> None:
    """A half-close is not a disconnect, also after two sweeps. A client that waits is asked by an interim response."""
    scene.client.half_close()
    for _ in range(2):
        await scene.stage.turn()
        scene.stage.advance(0.0)
    await scene.stage.turn()


async def client_rst(scene: Scene) -> None:
    """Noticed at once, or by the sweep, whether or not the balancer is reading from the client."""
    scene.client.reset()
    await scene.stage.turn()
    scene.stage.advance(0.0)
    await scene.stage.turn()
    assert scene.stage.cluster.process.in_flight == (1 if scene.ahead is not None else 0)


async def worker_fin(scene: Scene) -> None:
    scene.upstream.cut()


async def worker_rst(scene: Scene) -> None:
    scene.upstream.reset()


async def deadline(scene: Scene) -> None:
    """Nothing happens before the limit."""
    stage = scene.stage
    limit: float = getattr(stage.cluster.timeouts, scene.step.deadline)
    stage.advance(0.0)
    before = (len(stage.downstreams), outcomes(stage), dict(stage.cluster.counts.errors))
    stage.advance(limit - 0.5)
    await stage.turn()
    assert (
        len(stage.downstreams),
        outcomes(stage),
        dict(stage.cluster.counts.errors),
    ) == before
    stage.advance(1.0)


async def drain(scene: Scene) -> None:
    scene.stopping = asyncio.ensure_future(scene.stage.running.stop())


async def stop(scene: Scene) -> None:
    """The grace period is over at once."""
    await scene.stage.running.stop()


EVENTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "nothing": nothing,
    "client-fin": client_fin,
    "client-half": client_half,
    "client-rst": client_rst,
    "worker-fin": worker_fin,
    "worker-rst": worker_rst,
    "deadline": deadline,
    "drain": drain,
    "stop": stop,
}

NEEDS_THE_WORKER = {("the worker reads no more", "client-fin")}
"""The disconnect shows only when the worker has read the rest of the body."""


# --- results


def outcomes(stage: Stage) -> list[str]:
    """Outcomes of all attempts at all endpoints, sorted."""
    ended = [stage.outcomes(state.id) for state in stage.cluster.router.states]
    return sorted(kind for one in ended for kind, count in one.items() for _ in range(count))


async def seen(client: Wire, count: int) -> list[str]:
    """The next `count` events at the client: statuses of complete responses, or how the connection ended."""
    found = []
    for _ in range(count):
        before = len(client.received)
        try:
            found.append(str((await client.response()).status))
        except ConnectionResetError:
            found.append("cut")
        except asyncio.IncompleteReadError as error:
            found.append("short" if error.partial or len(client.received) > before else "closed")
    return found


async def wait_for(stage: Stage, condition: Callable[[], object]) -> None:
    """Wait for the condition without failing; the assertion that follows shows the difference."""
    with suppress(TimeoutError):
        await stage.eventually(condition)


def alive() -> list[object]:
    """Requests and client connections that are still referred to."""
    kinds = (Http1Connection, Exchange, AdminExchange)
    return [found for found in gc.get_objects() if isinstance(found, kinds)]


async def assert_nothing_is_left(stage: Stage) -> None:
    """Assert that no connection, request or reference to one is left."""
    for client in stage.clients:
        client.reset()
    await wait_for(stage, lambda: not stage.downstreams)
    assert not stage.downstreams
    assert (
        stage.cluster.process.in_flight
        == len(stage.cluster.queue)
        == stage.cluster.process.buffer_budget.kept
        == 0
    )
    assert [state.in_flight for state in stage.cluster.router.states] == [0] * len(
        stage.cluster.router.states
    )
    await wait_for(stage, lambda: not any(pool.opening for pool in stage.cluster.pools.by_id.values()))
    await stage.turn()
    assert alive() == []


async def assert_next_request_is_served(scene: Scene, cell: Cell) -> None:
    """Assert that the next request is served, on a new connection unless the previous exchange was complete."""
    before = scene.connections
    if not cell.is_ok:
        assert [pool.idle for pool in scene.stage.cluster.pools.by_id.values() if pool.idle] == []
    client = await scene.stage.client()
    scene.go.set()
    await client.send(get(b"/probe"))
    while (answer := await client.response()).status < 200:
        pass
    assert answer.status in (200, 413)
    assert cell.is_ok or scene.connections > before


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_event_at_step(stage: Stage, cell: Cell) -> None:
    """Each cell of the tables, and then that nothing is left."""
    scene = Scene(stage, STEPS[cell.step])
    await scene.set_up(grace=25.0 if cell.event == "drain" else 0.01)
    await EVENTS[cell.event](scene)
    await stage.turn()
    if cell.event in ("nothing", "drain"):
        scene.client.write(scene.step.rest)
    if cell.event in ("nothing", "drain") or cell.is_ok or (cell.step, cell.event) in NEEDS_THE_WORKER:
        await scene.go_on()
    assert await seen(scene.client, len(cell.seen)) == cell.seen
    await wait_for(stage, lambda: outcomes(stage) == cell.outcomes)
    assert outcomes(stage) == cell.outcomes
    assert sorted(stage.cluster.counts.errors.elements()) == cell.errors
    assert scene.worker.received.count(b"POST /") <= bool(scene.step.ahead) + 1
    if cell.event == "client-half" or "closed" in cell.seen:
        assert await scene.client.rest() == b""
    if cell.event == "drain":
        scene.client.leave()
        assert await scene.stopping
    elif cell.event != "stop" and "worker" in scene.step.endpoints:
        await assert_next_request_is_served(scene, cell)
    await assert_nothing_is_left(stage)


async def test_sweep_finds_the_reset_of_a_half_closed_client(stage: Stage) -> None:
    """After the client's FIN the connection is not read, so the event loop does not report the reset."""
    scene = Scene(stage, STEPS["a GET sent"])
    await scene.set_up(grace=25.0)
    scene.client.half_close()
    await stage.turn()
    stage.advance(0.0)
    await stage.turn()
    assert stage.cluster.process.in_flight == 1
    await client_rst(scene)
    assert outcomes(stage) == ["abandoned"]
    await assert_nothing_is_left(stage)


def noted(stage: Stage) -> list[tuple[float, float]]:
    """When the clients of requests that end from now on left, and when that was noticed."""
    active, found = stage.cluster.router.active, list[tuple[float, float]]()

    def observe(state: EndpointState, outcome: Outcome, now: float) -> None:
        found.append((outcome.ended_at, now))

    active.observe = observe
    return found


@pytest.mark.parametrize(("step", "attempts"), [("a GET sent", 1), ("hedged", 2)])
@pytest.mark.parametrize("after", [0.05, 0.5])
async def test_client_that_has_left_is_found_at_once_or_by_one_sweep(
    stage: Stage, after: float, step: str, attempts: int
) -> None:
    """A FIN that comes long after the request is no half-close. The outcome has the time of the FIN."""
    scene = Scene(stage, STEPS[step])
    await scene.set_up(grace=25.0)
    settled = noted(stage)
    stage.clock.at += after
    left_at = stage.clock.at
    scene.client.leave()
    if after < HALF_CLOSED_IN_S:
        await stage.turn()
        stage.advance(0.2)
    await stage.eventually(lambda: stage.cluster.process.in_flight == 0)
    assert settled == [(left_at, stage.clock.at)] * attempts
    await assert_nothing_is_left(stage)


async def test_client_that_resets_long_after_its_fin_had_half_closed(stage: Stage) -> None:
    scene = Scene(stage, STEPS["a GET sent"])
    await scene.set_up(grace=25.0)
    settled = noted(stage)
    scene.client.half_close()
    await stage.turn()
    stage.advance(0.2)
    await stage.turn()
    stage.clock.at += 5.0
    await client_rst(scene)
    assert settled == [(stage.clock.at, stage.clock.at)]
    await assert_nothing_is_left(stage)


async def test_clients_are_found_in_the_order_in_which_they_left(stage: Stage) -> None:
    """The times between FINs tell one client with many connections from many clients, whatever the order."""
    worker = await stage.serve_worker(answering_after(asyncio.Event()))
    clients, settled = [await stage.sending(get()) for _ in range(3)], noted(stage)
    await stage.eventually(lambda: len(worker.requests) == len(clients))
    left_at = list[float]()
    for client in (clients[1], clients[2], clients[0]):
        stage.clock.at += 0.2
        left_at.append(stage.clock.at)
        client.leave()
        await stage.turn()
    await stage.eventually(lambda: stage.cluster.process.in_flight == 0)
    assert [ended_at for ended_at, _ in settled] == left_at


async def test_half_close_behind_a_slow_upload_is_not_asked_at_once(stage: Stage) -> None:
    go = asyncio.Event()
    await stage.serve_worker(answering_after(go))
    client = await stage.sending(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
    await stage.turn()
    stage.clock.at += 1.0
    await client.send(b"cd")
    client.half_close()
    await stage.turn()
    go.set()
    assert (await client.response()).status == 200
    assert client.received.startswith(b"HTTP/1.1 200")


async def test_clients_of_http_1_0_are_not_asked(stage: Stage) -> None:
    """They know no interim responses (RFC 9110 § 15.2): one that has closed is answered in vain."""
    go = asyncio.Event()
    worker = await stage.serve_worker(answering_after(go))
    client = await stage.sending(get(version=b"HTTP/1.0"))
    client.half_close()
    await stage.eventually(lambda: worker.requests)
    for _ in range(3):
        stage.advance(0.0)
        await stage.turn()
    go.set()
    assert (await client.response()).status == 200
    assert client.received.startswith(b"HTTP/1.1 200")


async def test_closed_client_of_a_unix_socket_is_found_without_being_asked(
    stage: Stage, tmp_path: Path
) -> None:
    """The kernel tells a close there from a half-close."""
    worker = await stage.serve_worker(answering_after(asyncio.Event()), listen=f"unix:{tmp_path / 'web'}")
    client = await stage.sending(get(version=b"HTTP/1.0"))
    await stage.eventually(lambda: worker.requests)
    client.half_close()
    await stage.turn()
    stage.advance(0.0)
    assert stage.cluster.process.in_flight == 1
    client.leave()
    await stage.turn()
    stage.advance(0.0)
    await stage.eventually(lambda: outcomes(stage) == ["abandoned"])


def test_tables_are_complete() -> None:
    assert {cell.step for cell in CELLS} == set(STEPS)
    assert {cell.event for cell in CELLS} == set(EVENTS)


# --- a stage that checks for leaks


def sockets() -> int:
    """Open sockets of this process, where /proc shows them."""
    count = 0
    for path in Path("/proc/self/fd").iterdir() if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError):  # the descriptor of this very listing
            count += os.readlink(path).startswith("socket:")
    return count


@pytest.fixture(autouse=True)
def freeze_existing_objects() -> Iterator[None]:
    """Only objects that the test creates are looked at, and none is freed by a collection."""
    with without_collections():
        yield


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A stage that leaves no task, no socket and no loop error."""
    tasks, open_sockets = asyncio.all_tasks(), sockets()
    stage = Stage()
    with quiet_loop() as loop_errors:
        yield stage
        for client in stage.clients:
            client.reset()
        await stage.close()
        await wait_for(stage, lambda: sockets() == open_sockets)
        assert sockets() == open_sockets
        assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}
        assert loop_errors == []
