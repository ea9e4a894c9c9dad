"""A quarter of a request per second and endpoint, to workers 90 ms away that keep connections for 4 s.

Rule of this file: the real unit, pools and sweep on a virtual clock; what is expected is theory's. Requests come at
random, so a gap is longer than t seconds with a chance of exp(-t/4).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import exp
from random import Random
from typing import Any

import pytest

from balancer.upstream.connection_pool import ConnectionPool
from tests.balancer.conftest import get, post
from tests.balancer.far import Far

ENDPOINTS = 8
RATE = 0.25
NUMBER = 2000
LEARNING = 60
KEPT = 4.0


def timer() -> float:
    """What a worker with a timer does."""
    return KEPT


def run(
    life: Callable[[], float], request: bytes, *, says: bytes = b"", retries: int = 0, **pool: Any
) -> Far:
    """Traffic, after some in which pools learn and which is not counted."""
    far = Far(life, ENDPOINTS, policy="random", retries=retries, pool=tuple(pool.items()))
    far.says = says
    rng = Random(1)
    with far:
        far.traffic(rng, RATE * ENDPOINTS, LEARNING, request)
        far.before = {each: copy(each.counts) for each in pools(far)}
        far.requests.clear()
        clients = far.traffic(rng, RATE * ENDPOINTS, NUMBER, request)
        answers = [bytes(client.received) for client in clients]
        far.leave()
    far.failed = sum(not answer.startswith(b"HTTP/1.1 200") for answer in answers)
    return far


def pools(far: Far) -> list[ConnectionPool]:
    return [pool for pool in far.proxy.pools.by_id.values() if isinstance(pool, ConnectionPool)]


def total(far: Far, name: str) -> int:
    return sum(getattr(pool.counts, name) - getattr(far.before[pool], name) for pool in pools(far))


def cold(far: Far) -> float:
    """Share of the requests that had to wait for a connection."""
    return total(far, "cold") / NUMBER


@pytest.mark.parametrize(
    ("says", "idle_timeout"), [(b"", 3.5), (b"Keep-Alive: timeout=4\r\n", 3.9)], ids=["observed", "announced"]
)
def test_without_warmth_theory_s_share_waits(says: bytes, idle_timeout: float) -> None:
    """What is learned is a little less than 4 s, never more, and nobody meets a closing; longer gaps cost a connection,
    and so do requests that come while another is under way."""
    far = run(timer, get(), says=says)
    learned = [pool.idle_connections.limit for pool in pools(far)]
    assert idle_timeout <= min(learned) <= max(learned) <= KEPT - far.trip + 1e-6
    expected = exp(-RATE * min(learned)) + RATE * (far.trip + far.service)
    assert cold(far) == pytest.approx(expected, abs=0.04)
    assert (far.failed, total(far, "died"), total(far, "opened")) == (0, 0, total(far, "cold"))


def test_what_is_not_learned_is_met() -> None:
    """The same with `idle` as long as the worker's own time, and nothing learned: requests meet its closing."""
    far = run(timer, get(), risk=0.0, idle_timeout=KEPT)
    assert cold(far) == pytest.approx(exp(-RATE * KEPT), abs=0.06)
    assert far.failed == total(far, "died") > 0


@pytest.mark.second_tier
@pytest.mark.parametrize("request_", [get(), post(b"once")], ids=["GET", "POST"])
@pytest.mark.parametrize("heartbeat", [None, "/alive"], ids=["anew", "heartbeats"])
def test_warm_connections_are_there(request_: bytes, heartbeat: str | None) -> None:
    """Two for each endpoint: under 1 % of the requests wait, and none fails."""
    far = run(timer, request_, preconnect=2, heartbeat=heartbeat)
    assert cold(far) < 0.01
    assert (far.failed, total(far, "died")) == (0, 0)
    beats = sum(request.startswith(b"HEAD /alive HTTP/1.1\r\nHost: 192.0.2.1") for request in far.requests)
    on_their_way = total(far, "heartbeats") - beats
    assert 0 <= on_their_way <= ENDPOINTS
    assert len(far.requests) == NUMBER + beats
    assert bool(beats) == bool(heartbeat)
    assert far.proxy.router.routed == NUMBER + LEARNING, "policies saw the requests alone"


@pytest.mark.second_tier
def test_a_worker_that_closes_at_random() -> None:
    """What may be repeated goes on old connections, and again where that fails; what may not gets a new one."""
    drawn = Random(7)
    far = run(lambda: drawn.uniform(0, 2), get(), retries=2)
    assert far.failed == 0
    assert min(pool.idle_connections.limit for pool in pools(far)) > 0.25
    assert total(far, "reused") > 0.1 * NUMBER
    far = run(lambda: drawn.uniform(0.2, 2), post(b"once"), retries=0)
    assert far.failed == 0
    assert total(far, "reused") < 0.05 * NUMBER
