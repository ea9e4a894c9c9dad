"""A quarter of a request per second and endpoint, to workers 90 ms away that keep connections for 4 s.

Pools and sweep run on a virtual clock. Expected values are theoretical: arrivals are a Poisson process, so a gap is
longer than t seconds with probability exp(-t/4).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import exp
from random import Random
from typing import Any

import pytest

from balancer.upstream.http1.pool import ConnectionPool
from tests.support.delayed_workers import DelayedWorkers
from tests.support.wire import get, post

ENDPOINTS = 8
RATE = 0.25
NUMBER = 2000
LEARNING = 60
KEPT = 4.0


def timer() -> float:
    """Idle timeout of a worker with a timer."""
    return KEPT


def run(
    life: Callable[[], float], request: bytes, *, extra_field: bytes = b"", retries: int = 0, **pool: Any
) -> DelayedWorkers:
    """Traffic after a learning phase that is not counted."""
    delayed = DelayedWorkers(life, ENDPOINTS, policy="random", retries=retries, pool=tuple(pool.items()))
    delayed.extra_field = extra_field
    rng = Random(1)
    with delayed:
        delayed.traffic(rng, RATE * ENDPOINTS, LEARNING, request)
        delayed.before = {each: copy(each.counts) for each in pools(delayed)}
        delayed.requests.clear()
        clients = delayed.traffic(rng, RATE * ENDPOINTS, NUMBER, request)
        answers = [bytes(client.received) for client in clients]
        delayed.leave()
    delayed.failed = sum(not answer.startswith(b"HTTP/1.1 200") for answer in answers)
    return delayed


def pools(delayed: DelayedWorkers) -> list[ConnectionPool]:
    return [pool for pool in delayed.cluster.pools.by_id.values() if isinstance(pool, ConnectionPool)]


def total(delayed: DelayedWorkers, name: str) -> int:
    return sum(getattr(pool.counts, name) - getattr(delayed.before[pool], name) for pool in pools(delayed))


def cold_share(delayed: DelayedWorkers) -> float:
    """Share of the requests that waited for a connection."""
    return total(delayed, "cold") / NUMBER


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("extra_field", "idle_timeout"),
    [(b"", 3.5), (b"Keep-Alive: timeout=4\r\n", 3.9)],
    ids=["observed", "announced"],
)
def test_share_of_cold_requests_without_preconnect(extra_field: bytes, idle_timeout: float) -> None:
    """The estimate stays a little below 4 s, so no request meets a close.

    Longer gaps and overlapping requests need a new connection.
    """
    delayed = run(timer, get(), extra_field=extra_field)
    learned = [pool.idle_connections.limit for pool in pools(delayed)]
    assert idle_timeout <= min(learned) <= max(learned) <= KEPT - delayed.trip + 1e-6
    expected = exp(-RATE * min(learned)) + RATE * (delayed.trip + delayed.service)
    assert cold_share(delayed) == pytest.approx(expected, abs=0.04)
    assert (delayed.failed, total(delayed, "died"), total(delayed, "opened")) == (
        0,
        0,
        total(delayed, "cold"),
    )


@pytest.mark.second_tier
def test_closes_without_an_estimate() -> None:
    """With `pool.idle_timeout` equal to the worker's and nothing learned, requests meet its close."""
    delayed = run(timer, get(), risk=0.0, idle_timeout=KEPT)
    assert cold_share(delayed) == pytest.approx(exp(-RATE * KEPT), abs=0.06)
    assert delayed.failed == total(delayed, "died") > 0


@pytest.mark.second_tier
@pytest.mark.parametrize("request_", [get(), post(b"once")], ids=["GET", "POST"])
@pytest.mark.parametrize("heartbeat", [None, "/alive"], ids=["anew", "heartbeats"])
def test_preconnected_connections(request_: bytes, heartbeat: str | None) -> None:
    """Two per endpoint: fewer than 1 % of the requests wait, and none fails."""
    delayed = run(timer, request_, preconnect=2, heartbeat=heartbeat)
    assert cold_share(delayed) < 0.01
    assert (delayed.failed, total(delayed, "died")) == (0, 0)
    beats = sum(
        request.startswith(b"HEAD /alive HTTP/1.1\r\nHost: 192.0.2.1") for request in delayed.requests
    )
    on_their_way = total(delayed, "heartbeats") - beats
    assert 0 <= on_their_way <= ENDPOINTS
    assert len(delayed.requests) == NUMBER + beats
    assert bool(beats) == bool(heartbeat)
    assert delayed.cluster.router.routed == NUMBER + LEARNING, "policies saw the requests alone"


@pytest.mark.second_tier
def test_worker_that_closes_at_random() -> None:
    """Idempotent requests use old connections and are retried; others get a new one."""
    drawn = Random(7)
    delayed = run(lambda: drawn.uniform(0, 2), get(), retries=2)
    assert delayed.failed == 0
    assert min(pool.idle_connections.limit for pool in pools(delayed)) > 0.25
    assert total(delayed, "reused") > 0.1 * NUMBER
    delayed = run(lambda: drawn.uniform(0.2, 2), post(b"once"), retries=0)
    assert delayed.failed == 0
    assert total(delayed, "reused") < 0.05 * NUMBER
