"""Regressions that the simulation has found, each in the shortest form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faultsim.draw import TIMES, address_of, draw
from tests.faultsim.plan import Fault, Plan, PlannedClient, PlannedRequest, Reply
from tests.faultsim.simulation import Simulation
from tests.support.wireless import Peer, Wireless, sends

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("retries", [0, 1])
def test_connection_closed_at_once_is_a_failed_connect(retries: int) -> None:
    """Nothing was sent on it, so even a POST may be tried elsewhere."""
    with Wireless(2, retries=retries) as stage:
        stage.dialling = "end"
        client = stage.client()
        client.send(POST)

        def accept(peer: Peer) -> None:
            peer.send(ANSWER)

        stage.worker_script = accept
        stage.cluster.router.set_enabled("w1", False)
        stage.turn()
        expected = b"HTTP/1.1 502 "
        assert bytes(client.received).startswith(expected)
        assert stage.cluster.counts.retried == retries
        assert [state.in_flight for state in stage.cluster.router.states] == [0, 0]
        stage.leave()
        assert not stage.left_behind()


def test_connection_passes_a_thousand_clients_that_left() -> None:
    """In a loop, not by recursion."""
    with Wireless(1) as stage:
        stays = stage.client()
        sends(stage, stays, GET)
        (worker,) = stage.workers
        stage.dialling = "hang"
        for _ in range(1000):
            stage.client().send(GET)
        stage.turn()
        for client in stage.clients[1:]:
            client.vanish()
        stage.turn()
        sends(stage, worker, ANSWER)
        assert stays.received.endswith(b"ok")
        assert [state.in_flight for state in stage.cluster.router.states] == [0]
        stage.leave()


def test_room_for_a_connection_that_no_connection_has_left() -> None:
    """Watches of routes take descriptors, too: after the last one has ended, all requests waited for ever."""
    with Wireless(1) as stage:
        stage.cluster.pools.limit = 1
        for _ in range(2):
            stage.client().send(GET)
        stage.turn()
        assert (len(stage.workers), len(stage.cluster.queue)) == (1, 1)
        stage.cluster.pools.limit = 2
        stage.advance(0.25)
        assert (len(stage.workers), len(stage.cluster.queue)) == (2, 0)
        stage.leave()


def test_buffered_body_stops_reading_while_its_worker_does_not_read() -> None:
    """The buffered body fills the new connection at once: the transport pauses within the write."""
    with Wireless(1) as stage:
        sends(stage, stage.client(), GET)
        (worker,) = stage.workers
        stage.dialling = "hang"
        client = stage.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        client.send(bytes(100_000))
        worker.stall()
        sends(stage, worker, ANSWER)
        kept = worker.unread
        assert kept > 100_000
        client.send(bytes(400_000))
        sends(stage, client, bytes(500_000))
        assert worker.unread == kept
        worker.take()
        stage.turn()
        assert worker.received.endswith(bytes(1_000_000))
        stage.leave()


def test_endpoint_removed_during_its_health_check() -> None:
    """The response arrives before the next sweep and is dropped."""
    with Wireless(2, health_checks=(("path", "/health"),)) as stage:
        stage.advance(2.0)
        stage.advance(2.0)
        probed = [peer for peer in stage.workers if b"GET /health " in peer.received]
        assert len(probed) == 2
        stage.control_plane.replace_endpoints([stage.cluster.router.states[0].endpoint])
        for peer in probed:
            peer.send(ANSWER)
        stage.turn()
        assert [state.passes_checks for state in stage.cluster.router.states] == [True]
        assert list(stage.control_plane.checks.by_id) == ["w0"]
        stage.leave()


def plan_of(client_plan: PlannedClient, **timeouts: float) -> Plan:
    """One client before one worker, without faults."""
    settings: dict[str, Any] = {
        "seed": 0,
        "retries": 1,
        "timeouts": {name: 2.0 for name, _, _ in TIMES} | timeouts,
        "endpoints": [{"id": "e0", "address": address_of(0), "region": "r0"}],
    }
    sound = replace(
        draw(0), faults=[], idle_closes={}, stops_at=None, is_logged=False, is_calm=False, http2_hosts={}
    )
    sound = replace(sound, hosts=["r0"], delays={"r0": 0.001}, grain=0.0, upstream_limit=None)
    return replace(sound, settings=settings, clients=[client_plan])


def end_of(plan: Plan) -> str:
    """How the first request of a plan's run ends."""
    simulation = Simulation(plan)
    simulation.run()
    return simulation.ledger.ends[0]


def test_slow_reader_gets_the_whole_early_response() -> None:
    """After a response to an incomplete request the balancer reads on for `linger`, which begins once the response is
    sent."""
    request = PlannedRequest(0, b"POST", Reply(size=60_000, is_early=True), size=20_000, pieces=4, gap=0.3)
    slow = PlannedClient(0, 0.0, 1, room=2000, pace=0.05, requests=[request])
    assert end_of(plan_of(slow, linger=0.3)) == "200"


def test_connection_that_opens_in_the_iteration_of_its_timeout() -> None:
    """Closed by the loop or by the worker, it was never counted in, so it is not counted out."""
    client_plan = PlannedClient(0, 0.0, 1, 1 << 20, 0.0, [PlannedRequest(0, b"GET", Reply(size=10))])
    plan = replace(plan_of(client_plan, connect=0.5), delays={"r0": 0.2495}, grain=0.005, stops_at=30.0)
    simulation = Simulation(plan)
    simulation.run()
    assert simulation.ledger.ends[0].startswith("504 of our own")
    assert simulation.cluster.pools.by_id["e0"].leased == 0


def test_closing_connection_with_a_stalled_reader_ends_in_a_reset() -> None:
    """The response is written and partly sent, and the rest cannot be: no end in good order."""
    request = PlannedRequest(0, b"GET", Reply(size=60_000), closes=True, client_damage=("response", "stall"))
    slow = PlannedClient(0, 0.0, 1, room=2000, pace=0.05, requests=[request])
    assert end_of(plan_of(slow, body_idle=1.0)) == "cut"


def over_http2(plan: Plan) -> Plan:
    """The plan with a worker that speaks HTTP/2."""
    settings = {**plan.settings, "endpoints": [{**plan.settings["endpoints"][0], "transport": "http2"}]}
    return replace(plan, settings=settings, http2_hosts={0: (65_535, 100)})


def test_http2_worker_that_closes_at_once() -> None:
    """The preface waits in the engine when the connection is lost, and is not written any more."""
    client_plan = PlannedClient(0, 0.1, 1, 1 << 20, 0.0, [PlannedRequest(0, b"GET", Reply(size=10))])
    slam = Fault(0.0, 2.0, "slam", (0,))
    assert end_of(replace(over_http2(plan_of(client_plan)), faults=[slam], grain=0.001)).startswith(
        "502 of our own"
    )


def test_rpc_without_a_message_waits_for_its_connection() -> None:
    """No time in which nothing is sent has begun before there is a connection."""
    rpc = PlannedRequest(0, b"POST", Reply(framing="chunked"), is_chunked=True, is_rpc=True)
    client_plan = PlannedClient(0, 0.1, 1, 1 << 20, 0.0, [rpc], is_http2=True)
    plan = over_http2(plan_of(client_plan, tunnel_idle=1.0))
    assert end_of(replace(plan, delays={"r0": 0.3})) == "200"


def test_stream_reset_while_the_connection_leaves() -> None:
    """What the workers send afterwards is written, though the client sends nothing."""
    requests = [
        PlannedRequest(0, b"GET", Reply(size=10, service=0.5), client_damage=("waiting", "goaway")),
        PlannedRequest(1, b"GET", Reply(size=10, service=0.1), stream_damage=(("middle", "rst"),)),
    ]
    client_plan = PlannedClient(0, 0.1, 2, 1 << 20, 0.0, requests, is_http2=True)
    plan = over_http2(plan_of(client_plan))
    assert end_of(replace(plan, settings={**plan.settings, "retries": 0})) == "200"


def test_client_that_does_not_take_the_status_of_a_failed_rpc() -> None:
    """Its stream is reset like that of any other stalled reader, not ended by its status once more."""
    reply = Reply(framing="chunked", size=40_000)
    rpc = PlannedRequest(
        *(0, b"POST", reply),
        is_chunked=True,
        is_rpc=True,
        client_damage=("response", "withhold"),
        stream_damage=(("middle", "hang"),),
    )
    client_plan = PlannedClient(0, 0.1, 1, 1 << 20, 0.0, [rpc], is_http2=True, window=2_000)
    assert end_of(over_http2(plan_of(client_plan, tunnel_idle=0.5, body_idle=1.0))) == "cut"
