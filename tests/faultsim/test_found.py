"""What the simulation has found, by hand: the shortest way to each.

Rule of this file: a test for each fault that was mended, named by what must hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.balancer.wireless import Peer, Wireless
from tests.faultsim.draw import TIMES, address_of, draw
from tests.faultsim.plan import Ask, Caller, Plan, Reply
from tests.faultsim.simulation import Simulation

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_connection_that_is_closed_as_soon_as_it_stands_is_none(retries: int) -> None:
    """Nothing was sent on it, so even a POST may be tried elsewhere, and nobody waits for its answer."""
    with Wireless(2, retries=retries) as stage:
        stage.dialling = "end"
        client = stage.client()
        client.send(POST)

        def accept(peer: Peer) -> None:
            peer.send(ANSWER)

        stage.worker_script = accept
        stage.proxy.router.set_enabled("w1", False)
        stage.turn()
        expected = b"HTTP/1.1 502 "
        assert bytes(client.received).startswith(expected)
        assert stage.proxy.counts.retried == retries
        assert [state.in_flight for state in stage.proxy.router.states] == [0, 0]
        stage.leave()
        assert not stage.left_behind()


def test_a_thousand_clients_that_leave_while_a_worker_hangs() -> None:
    """A connection that is given back passes them one after the other, however many they are."""
    with Wireless(1) as stage:
        stays = stage.client()
        stays.send(GET)
        stage.turn()
        (worker,) = stage.workers
        stage.dialling = "hang"
        for _ in range(1000):
            stage.client().send(GET)
        stage.turn()
        for client in stage.clients[1:]:
            client.vanish()
        stage.turn()
        worker.send(ANSWER)
        stage.turn()
        assert stays.received.endswith(b"ok")
        assert [state.in_flight for state in stage.proxy.router.states] == [0]
        stage.leave()


def test_a_body_that_was_kept_stays_held_while_its_worker_does_not_read() -> None:
    """What waited for a connection fills that connection at once: the transport says so before the write returns."""
    with Wireless(1) as stage:
        stage.client().send(GET)
        stage.turn()
        (worker,) = stage.workers
        stage.dialling = "hang"
        client = stage.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        client.send(bytes(100_000))
        worker.stall()
        worker.send(ANSWER)
        stage.turn()
        kept = worker.unread
        assert kept > 100_000
        client.send(bytes(400_000))
        client.send(bytes(500_000))
        stage.turn()
        assert worker.unread == kept
        worker.take()
        stage.turn()
        assert worker.received.endswith(bytes(1_000_000))
        stage.leave()


def test_an_endpoint_that_goes_while_it_is_asked_whether_it_is_well() -> None:
    """Its answer comes before the next sweep, and says nothing of anybody any more."""
    with Wireless(2, health_checks=(("path", "/health"),)) as stage:
        stage.advance(2.0)
        stage.advance(2.0)
        asked = [peer for peer in stage.workers if b"GET /health " in peer.received]
        assert len(asked) == 2
        stage.control_plane.replace_endpoints([stage.proxy.router.states[0].endpoint])
        for peer in asked:
            peer.send(ANSWER)
        stage.turn()
        assert [state.passes_checks for state in stage.proxy.router.states] == [True]
        assert list(stage.control_plane.checks.by_id) == ["w0"]
        stage.leave()


def plan_of(caller: Caller, **timeouts: float) -> Plan:
    """One client before one worker, and nothing else."""
    settings: dict[str, Any] = {
        "retries": 1,
        "timeouts": {name: 2.0 for name, _, _ in TIMES} | timeouts,
        "endpoints": [{"id": "e0", "address": address_of(0), "region": "r0"}],
    }
    sound = replace(draw(0), faults=[], idle_closes={}, stops_at=None, is_logged=False, is_calm=False)
    sound = replace(sound, hosts=["r0"], delays={"r0": 0.001}, grain=0.0, upstream_limit=None)
    return replace(sound, settings=settings, callers=[caller])


def test_a_slow_reader_gets_all_of_an_answer_that_came_early() -> None:
    """After an answer to half a request the unit reads on for a while; that while begins when the answer is out."""
    ask = Ask(0, b"POST", Reply(size=60_000, is_early=True), size=20_000, pieces=4, gap=0.3)
    simulation = Simulation(plan_of(Caller(0, 0.0, 1, room=2000, pace=0.05, asks=[ask]), linger=0.3))
    simulation.run()
    assert simulation.ledger.ends[0] == "200"


def test_a_connection_that_stands_in_the_turn_in_which_its_time_is_over() -> None:
    """Whether it is closed by the loop or by the worker: it was never counted, so it is not counted out."""
    caller = Caller(0, 0.0, 1, 1 << 20, 0.0, [Ask(0, b"GET", Reply(size=10))])
    plan = replace(plan_of(caller, connect=0.5), delays={"r0": 0.2495}, grain=0.005, stops_at=30.0)
    simulation = Simulation(plan)
    simulation.run()
    assert simulation.ledger.ends[0].startswith("504 of our own")
    assert simulation.proxy.pools.by_id["e0"].leased == 0


def test_a_closing_connection_whose_reader_stalls_ends_in_a_reset() -> None:
    """All of the answer is written, a part of it is out, and the rest never will be: no end in good order."""
    ask = Ask(0, b"GET", Reply(size=60_000), closes=True, client_damage=("response", "stall"))
    simulation = Simulation(plan_of(Caller(0, 0.0, 1, room=2000, pace=0.05, asks=[ask]), body_idle=1.0))
    simulation.run()
    assert simulation.ledger.ends[0] == "cut"
