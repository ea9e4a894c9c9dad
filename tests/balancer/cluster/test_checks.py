"""Active checks over real sockets: requests, connections, and the effect of results on health."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.cluster.active_checks import FIRST_AT_ONCE
from balancer.config.schema.endpoint import EndpointConfig
from policies.endpoint.ejection import Cause
from policies.facts import AdminState
from tests.support.admin_requests import metrics, samples_of, status
from tests.support.scripts import check, check_results
from tests.support.stage import Stage, endpoint
from tests.support.wire import Script, ScriptedWorker, Wire, answering, get, playing, response

BAD = response(b"unhealthy", status=b"503 Service Unavailable")
PATH = {"path": "/up"}


def in_order(*responses: bytes) -> Script:
    """Answer with the next response on whatever connection, and with the last one from then on."""
    left = list(responses)

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(left.pop(0) if len(left) > 1 else left[0])

    return script


async def test_request_of_a_check(stage: Stage) -> None:
    """One GET with its own User-Agent, on a connection that goes to the pool; request counters do not change."""
    worker = await stage.serve_worker(response(), health_checks=PATH)
    stage.advance(0.0)
    await check(stage)
    [request] = worker.requests
    assert request.line == b"GET /up HTTP/1.1"
    assert request.value(b"Host") == b"127.0.0.1:%d" % worker.port
    assert request.value(b"User-Agent") == b"steelyard-check"
    cluster = stage.cluster
    assert check_results(stage) == (1, 0, None)
    assert (cluster.counts.requests, cluster.router.routed, stage.outcomes()) == (0, 0, {})
    assert repr(stage.pool()) == "<Pool w0 idle=1 leased=0 opening=0>"


async def test_checks_and_requests_share_connections(stage: Stage) -> None:
    """A check uses the connection that a request has left, and the next request that of the check."""
    worker = await stage.serve_worker(response(), health_checks={**PATH, "interval": 2})
    stage.advance(0.0)
    for _ in range(3):
        assert (await stage.ask(get())).status == 200
        await check(stage, 3.0)
    assert len(worker.connections) == 1
    assert check_results(stage)[:2] == (3, 0)


async def test_first_connect_to_each_endpoint(stage: Stage) -> None:
    """At the start and after it is added, without a request. It is closed at once: a worker that serves one connection
    at a time would serve no other client."""
    worker, other = await stage.worker(response()), await stage.worker(response())
    await stage.serve(worker, stage.dead_port(), health_checks={"first_connect": True})
    await stage.eventually(lambda: stage.pool("w0").counts.opened and stage.pool("w1").is_unreachable)
    assert repr(stage.pool("w0")) == "<Pool w0 idle=0 leased=0 opening=0>"
    assert (stage.pool("w0").is_unreachable, worker.requests) == (False, [])
    added = EndpointConfig(id="added", address=f"http://127.0.0.1:{other.port}")
    stage.control_plane.registry.add(added)
    await check(stage, 0.25)
    assert (stage.pool("added").counts.opened, stage.pool("added").idle) == (1, 0)
    stage.cluster.router.set_enabled("w1", False)  # a retry opens a connection of its own
    for _ in range(4):
        assert (await stage.ask(get())).status == 200
        await check(stage, 0.25)
    assert (len(worker.connections), len(other.connections)) == (2, 2)


async def test_first_connects_are_bounded(stage: Stage) -> None:
    """A few at a time, however many endpoints there are."""
    ports = [stage.deaf_port()] * (FIRST_AT_ONCE + 3)
    await stage.serve(*ports, health_checks={"first_connect": True}, timeouts={"connect": 0.1})
    pools = stage.cluster.pools
    assert sum(pool.opening for pool in pools.by_id.values()) == FIRST_AT_ONCE
    await check(stage, 1.0)
    stage.advance(0.25)
    assert sum(pool.is_untried for pool in pools.by_id.values()) == 0
    await pools.close()


async def test_unreachable_endpoint_that_is_not_ejected_is_connected_to_again(stage: Stage) -> None:
    """The only endpoint is never ejected; without requests a connect every two seconds shows that it is back."""
    worker = ScriptedWorker(answering(response()))
    port = stage.dead_port()
    await stage.serve(port)
    for _ in range(3):
        assert (await stage.ask(get())).status == 502
    assert (stage.state().is_ejected, stage.pool().is_unreachable) == (False, True)
    stage.advance(0.0)
    await check(stage, 3.0)
    await check(stage, 3.0)
    assert check_results(stage)[:2] == (0, 2)
    await stage.start_at_dead_port(worker, port)
    await check(stage, 3.0)
    assert not stage.pool().is_unreachable
    before = check_results(stage)
    await check(stage, 6.0)
    assert check_results(stage) == before


async def test_unhealthy_endpoint_is_not_available(stage: Stage) -> None:
    """Three failed checks make it unhealthy, two passed ones healthy."""
    worker = await stage.worker(in_order(response(), *[BAD] * 3, response()))
    await stage.serve(worker, await stage.worker(response()), health_checks=PATH)
    stage.advance(0.0)
    seen = []
    for _ in range(7):
        await check(stage)
        seen.append(stage.state().available)
    assert seen == [True, True, True, False, False, True, True]
    assert check_results(stage) == (4, 3, "status 503")


async def test_interval_is_shorter_after_a_failure(stage: Stage) -> None:
    """Every five seconds while all pass, every two after a failure."""
    worker = await stage.worker(in_order(*[response()] * 2, BAD))
    await stage.serve(worker, await stage.worker(response()), health_checks=PATH)
    stage.advance(0.0)
    asked = []
    for _ in range(30):
        await check(stage, 1.0)
        asked.append(len(worker.requests))
    assert asked[5] <= 2
    assert asked[-1] - asked[14] >= 6


@pytest.mark.parametrize(
    ("plan", "answer", "fault"),
    [
        ({}, response(status=b"204 No Content", body=b""), None),
        ({}, b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", None),
        ({}, response(status=b"404 Not Found"), "status 404"),
        ({"status": 404}, response(status=b"404 Not Found"), None),
        ({"status": 204}, response(), "status 200"),
        ({}, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + response(), None),
        ({}, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", None),
        ({}, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", "no answer within 1 s"),
        ({}, response(b"x" * 200_000), None),
        ({}, b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "malformed_response: 101 for"),
        ({}, b"SSH-2.0-OpenSSH\r\n\r\n", "malformed_response: "),
        ({"body": '"db": "ok"'}, response(b'{"db": "ok", "up": 1}'), None),
        ({"body": '"db": "ok"'}, response(b'{"db": "down"}'), 'no \'"db": "ok"\' in the body'),
        ({"body": "ön\n"}, response("schön\n".encode()), None),
        (
            {"body": "ok"},
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
            None,
        ),
        ({"body": "ok"}, response(b"ok" + b"x" * 200_000), None),
        ({"body": "ok"}, response(b"x" * 65_536 + b"ok"), "no 'ok' in the body"),
        ({"body": "ok"}, response(b"ok", status=b"500 No"), "status 500"),
        ({"body": "ok"}, response(b"", status=b"204 No Content"), "no 'ok' in the body"),
    ],
)
async def test_responses_that_pass(
    stage: Stage, plan: dict[str, Any], answer: bytes, fault: str | None
) -> None:
    """200 to 399, or the configured status, complete; an unusable response costs only its connection."""
    await stage.serve(await stage.worker(answer), health_checks={**PATH, **plan})
    stage.advance(0.0)
    stage.advance(2.0)
    await stage.turn()
    check_ = stage.control_plane.checks.by_id["w0"]
    if fault == "no answer within 1 s":
        await stage.eventually(lambda: stage.pool().leased)
        stage.advance(1.0)
    await stage.eventually(lambda: check_.request is None)
    passed, failed, last_fault = check_results(stage)
    assert (passed, failed) == (fault is None, fault is not None)
    assert (last_fault or "").startswith(fault or "")
    if (fault or "status").startswith(("no answer", "malformed")):
        assert stage.pool().idle == 0


async def test_refused_connection_is_unreachable(stage: Stage) -> None:
    """Panic mode does not route to unreachable endpoints while another one is reachable."""
    await stage.serve(
        stage.dead_port(), stage.dead_port(), await stage.worker(response()), health_checks=PATH
    )
    stage.advance(0.0)
    for _ in range(3):
        await check(stage, 3.0)
    assert (await stage.ask(get())).status == 200
    assert check_results(stage)[2] == "no connection: Connection refused"
    assert stage.cluster.router.health.panic.is_everywhere
    assert [state.id for state in stage.cluster.router.available] == ["w2"]


async def test_connect_timeout_of_a_check(stage: Stage) -> None:
    """The check ends at its timeout; a connection established later is not counted again."""
    await stage.serve(
        stage.deaf_port(), await stage.worker(response()), health_checks=PATH, timeouts={"connect": 0.3}
    )
    stage.advance(0.0)
    stage.advance(2.0)
    await stage.turn()
    stage.advance(1.0)
    assert check_results(stage) == (0, 1, "no connection within 1 s")
    await stage.eventually(lambda: not stage.pool().opening)
    assert check_results(stage)[1] == 1


async def test_connection_closed_while_idle_is_not_a_failure(stage: Stage) -> None:
    """A worker may close an idle connection; the check dials another."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response())
        if len(worker.connections) == 1:
            await wire.request()  # unanswered: the close has crossed the request
        else:
            await answering(response())(wire)

    worker = await stage.serve_worker(script, health_checks=PATH)
    assert (await stage.ask(get())).status == 200
    stage.advance(0.0)
    await check(stage, 3.0)
    assert check_results(stage) == (1, 0, None)
    assert len(worker.connections) == 2


async def test_admin_state_and_checks(stage: Stage) -> None:
    """Not in maintenance; while draining it is checked."""
    worker = await stage.worker(response())
    await stage.serve(worker, await stage.worker(response()), health_checks=PATH)
    stage.cluster.router.set_admin_state("w0", AdminState.MAINTENANCE)
    stage.advance(0.0)
    await check(stage)
    assert worker.connections == []
    stage.cluster.router.set_admin_state("w0", AdminState.DRAIN)
    await check(stage)
    assert len(worker.requests) == 1


async def test_checks_follow_the_endpoint_set(stage: Stage) -> None:
    """A new endpoint is checked, a removed one is not; a check in flight at removal is not counted."""
    worker, other = await stage.worker(playing(Wire.request, Wire.closed)), await stage.worker(response())
    await stage.serve(worker, health_checks=PATH)
    stage.advance(0.0)
    stage.advance(2.0)
    await stage.eventually(lambda: worker.requests)
    gone = stage.pool()
    stage.control_plane.replace_endpoints([type(gone.endpoint)("new", f"http://127.0.0.1:{other.port}", "r")])
    stage.advance(0.5)
    assert set(stage.control_plane.checks.by_id) == {"new"}
    assert repr(gone) == "<Pool w0 idle=0 leased=0 opening=0>"
    await check(stage, 3.0)
    assert len(other.requests) == 1


async def test_change_of_region_keeps_the_result_of_checks(stage: Stage) -> None:
    """It is the same worker: it returns when checks pass, and not before."""
    worker, other = await stage.worker(in_order(BAD, BAD, response())), await stage.worker(response())
    await stage.serve(worker, other, health_checks={**PATH, "rise": 1})
    stage.advance(0.0)
    await check(stage)
    await stage.reload(endpoints=[endpoint(worker, region="us"), endpoint(other, "w1")])
    seen = [stage.state().available]
    for _ in range(2):
        await check(stage)
        seen.append(stage.state().available)
    assert (seen, stage.state().region) == ([False, False, True], "us")


async def test_plan_changes(stage: Stage) -> None:
    """Another path from the next check; without a path every endpoint is healthy."""
    worker = await stage.worker(BAD)
    await stage.serve(worker, await stage.worker(response()), health_checks=PATH)
    stage.advance(0.0)
    await check(stage)
    assert not stage.state().available
    await stage.reload(health_checks={"path": "/other", "status": 503, "rise": 1})
    await check(stage)
    assert worker.requests[-1].line == b"GET /other HTTP/1.1"
    assert stage.state().available
    await stage.reload(health_checks={"path": "/other", "status": 200, "fall": 1})
    await check(stage)
    assert not stage.state().available
    await stage.reload(health_checks={"first_connect": False})
    assert stage.state().available


async def test_check_in_flight_ends_when_checks_are_disabled(stage: Stage) -> None:
    """Its connection is closed at once."""
    worker = await stage.serve_worker(playing(Wire.request, Wire.closed), health_checks=PATH)
    stage.advance(0.0)
    stage.advance(2.0)
    await stage.eventually(lambda: worker.requests)
    assert stage.pool().leased == 1
    await stage.reload(health_checks={})
    assert repr(stage.pool()) == "<Pool w0 idle=0 leased=0 opening=0>"
    assert stage.state().passes_checks


# --- live traffic


async def test_refusing_worker_is_ejected_and_returns(stage: Stage) -> None:
    """Five refused connections eject it; one connection returns it within 3 s, before the ejection ends."""
    spare, held = await stage.worker(response(b"other")), stage.dead_port()
    await stage.serve(held, spare)
    for _ in range(10):
        assert (await stage.ask(get())).body == b"other"
    assert stage.state().is_ejected
    assert stage.outcomes() == {"refused": 5}
    stage.advance(0.0)
    await check(stage, 3.0)
    assert check_results(stage) == (0, 1, "no connection: Connection refused")
    assert stage.state().is_ejected
    worker = ScriptedWorker(answering(response(b"back")))
    sock = next(sock for sock in stage.held_sockets if sock.getsockname()[1] == held)
    sock.listen()
    stage.held_sockets.remove(sock)
    await stage.start(worker, sock)
    await check(stage, 3.0)
    assert not stage.state().is_ejected
    bodies = {(await stage.ask(get())).body for _ in range(4)}
    assert bodies == {b"back", b"other"}
    assert len(worker.connections) == 2  # that of the check, which was closed, and that of the requests


@pytest.mark.parametrize("settings", [{"path": "/healthz"}, {}])
async def test_worker_that_broke_connections_returns_after_a_check(
    stage: Stage, settings: dict[str, Any]
) -> None:
    """As one does that was killed with requests in flight and has returned. The third time it stays away for 4 s."""
    is_broken = True

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            if is_broken and b"/healthz" not in request.line:
                wire.reset()
                return
            await wire.send(response(b"back"))

    bad = await stage.worker(script)
    await stage.serve(bad, await stage.worker(response(b"good")), health_checks=settings)
    for _ in range(20):
        assert (await stage.ask(get())).body == b"good"
    assert stage.state().record.cause is Cause.CONNECTIONS
    for _ in range(2):
        stage.advance(0.0)
        await check(stage, 3.0)
        assert not stage.state().is_ejected
        for _ in range(4):
            assert (await stage.ask(get())).body == b"good"
        assert stage.state().is_ejected
    is_broken = False
    for is_ejected in (True, False):
        stage.advance(0.0)
        await check(stage, 3.0)
        assert stage.state().is_ejected is is_ejected
    assert {(await stage.ask(get())).body for _ in range(4)} == {b"back", b"good"}


async def test_ejection_can_be_disabled(stage: Stage) -> None:
    bad = await stage.worker(BAD)
    rules = {"failures": 0, "success_rate": 0}
    await stage.serve(bad, await stage.worker(response()), outlier_detection=rules, retries=0)
    for _ in range(40):
        await stage.ask(get())
    stage.advance(1.0)
    assert len(bad.requests) == 20


async def test_checks_share_and_panic_in_status_and_metrics(stage: Stage) -> None:
    await stage.serve(
        await stage.worker(BAD), await stage.worker(response()), stage.dead_port(), health_checks={**PATH, "fall": 1},
        slow_start={"window": 20},
    )  # fmt: skip
    stage.advance(0.0)
    stage.cluster.router.set_admin_state("w1", AdminState.DRAIN)
    stage.cluster.router.set_admin_state("w1", AdminState.READY)
    await check(stage, 3.0)
    for _ in range(5):
        await stage.ask(get())
    stage.cluster.router.tick()
    report, routed = await status(stage), stage.cluster.router.routed
    first, second, third = report["endpoints"]
    assert first["checks"] == {"passed": 0, "failed": 1, "last_fault": "status 503"}
    assert [each["healthy"] for each in (first, second, third)] == [False, True, False]
    assert [each["reachable"] for each in (first, second, third)] == [True, True, False]
    assert second["share"] == 0.15
    assert second["ejection"] == {"ejected": False, "seconds_left": None, "cause": None, "times": 0}
    assert report["panic"] == {"everywhere": True, "regions": [], "times": 1, "requests": routed}
    samples = samples_of(await metrics(stage))
    assert samples["steelyard_panics_total",] == 1
    assert samples["steelyard_panic_requests_total",] == routed
    assert samples["steelyard_endpoint_healthy", "w0", "r"] == 0
    assert samples["steelyard_endpoint_share", "w1", "r"] == 0.15
    assert samples["steelyard_endpoint_ejected", "w2", "r"] == 0
    assert samples["steelyard_endpoint_checks_total", "w0", "r", "failed"] == 1
