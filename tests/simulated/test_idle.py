"""Idle connections in virtual time, compared with the balancer's own pool under the same leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import cast

import pytest

from balancer.config.schema.pool import PoolConfig
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.http1.idle_connections import IdleConnections
from balancer.upstream.http1.idle_timeout import DEFAULT_IDLE_TIMEOUT, MIN_IDLE_AGE, IdleTimeout
from experiments.simulator.idle import Idle

LONGEST = 30.0
SWEEP = 0.25


@dataclass(eq=False, slots=True)
class Connection:
    """The attributes of a connection that the pool uses."""

    idle_since: float
    announced: float = 0.0
    reused_after: float = 0.0
    reused_idle_since: float = 0.0

    def close(self) -> None:
        """The pool has already removed it."""


@dataclass
class RealPool:
    """`IdleConnections` with the few lines of `balancer/upstream/pool.py` that use it."""

    keeps: float
    now: float = 0.0
    horizon: IdleTimeout = field(default_factory=lambda: IdleTimeout(PoolConfig().risk, 0.0))
    young: dict[Connection, None] = field(default_factory=dict)
    all: list[Connection] = field(default_factory=list)
    reused: int = 0

    def __post_init__(self) -> None:
        self.rested = IdleConnections(self.horizon, lambda: self.now, LONGEST)
        self.rested.apply(LONGEST, 0.0)
        self.swept_at = 0.0

    def until(self, now: float) -> None:
        """Run sweeps and closes by the worker in their order until `now`."""
        while self.swept_at + SWEEP <= now:
            self.swept_at = self.now = self.swept_at + SWEEP
            self._close_old()
            for one in [one for one in self.young if self.now - one.idle_since >= MIN_IDLE_AGE]:
                del self.young[one]
                self.rested.add(cast(UpstreamConnection, one))
            self.rested.judge(self.now, self.reused)
            if len(self.rested):
                self.rested.apply(LONGEST, 0.0)
                self.rested.expire(self.now, LONGEST)
        self.now = now

    def _close_old(self) -> None:
        kept = []
        for one in self.all:
            if self.now - one.idle_since < self.keeps:
                kept.append(one)
            elif one in self.young:
                del self.young[one]
            elif self.rested.discard(cast(UpstreamConnection, one)):
                self.rested.lost(cast(UpstreamConnection, one))
        self.all = kept

    def add(self) -> None:
        one = Connection(self.now)
        self.young[one] = None
        self.all.append(one)

    def lease(self) -> bool:
        if self.young:
            one = self.young.popitem()[0]
        elif (found := self.rested.lease(self.rested.limit)) is not None:
            one = cast(Connection, found)
        else:
            return False
        self.all.remove(one)
        self.reused += 1
        return True


@dataclass
class Pair:
    """Both under the same leases: groups of four requests at random intervals, each held for a moment."""

    keeps: float
    every: float
    seed: int
    now: float = 0.0
    leases: int = 0
    equal: int = 0

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self.real, self.simulated = RealPool(self.keeps), Idle(LONGEST, PoolConfig().risk, 0.0)
        self.simulated.relink(self.keeps, 0.0)

    def run(self, seconds: float) -> Pair:
        while self.now < seconds:
            self.pause(self._rng.expovariate(1 / self.every))
            for _ in range(4):
                self.leases += 1
                self.equal += self.real.lease() == self.simulated.lease(self.now)
            self.pause(0.05)
            self.give_back(4)
        return self

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.real.until(self.now)

    def give_back(self, count: int) -> None:
        for _ in range(count):
            self.real.add()
            self.simulated.add(self.now)

    def lease(self) -> tuple[bool, bool]:
        return self.real.lease(), self.simulated.lease(self.now)


KEEPS = pytest.mark.parametrize("keeps", [inf, 12.0, 6.0])
EVERY = pytest.mark.parametrize("every", [0.5, 2.0, 5.0])


@KEEPS
@EVERY
def test_leases_agree_with_the_pool(keeps: float, every: float) -> None:
    """Also in the first seconds, when nothing is known of the worker."""
    pairs = [Pair(keeps, every, seed).run(25.0) for seed in range(20)]
    assert sum(pair.equal for pair in pairs) > 0.97 * sum(pair.leases for pair in pairs)


@KEEPS
@EVERY
def test_idle_timeout_estimate_agrees_with_the_pool(keeps: float, every: float) -> None:
    """After ten minutes both trust the worker for the same time."""
    pair = Pair(keeps, every, seed=7).run(600.0)
    assert pair.equal > 0.97 * pair.leases
    pair.pause(
        2 * LONGEST
    )  # all have ended by then, and what their ends say is known with the next one that rests
    assert pair.lease() == (False, False)
    pair.give_back(1)
    pair.pause(2.0)
    assert pair.lease() == (True, True)
    assert pair.simulated.limit == pytest.approx(pair.real.rested.limit, rel=0.1)


def test_unknown_worker_is_trusted_for_the_default_time() -> None:
    """Longer only after an idle-timeout probe of the longest time has succeeded."""
    idle = Idle(LONGEST, PoolConfig().risk, 0.0)
    idle.add(0.0)
    assert idle.has_idle(DEFAULT_IDLE_TIMEOUT - 0.01)
    assert not idle.has_idle(DEFAULT_IDLE_TIMEOUT + 0.3)
    assert not idle.lease(10.0)
    idle.add(LONGEST)
    assert idle.has_idle(LONGEST + 1.5)
    idle.add(LONGEST + 2.0)
    assert idle.has_idle(LONGEST + 2.0 + 2 * DEFAULT_IDLE_TIMEOUT)
    assert idle.limit > 0.9 * (LONGEST - MIN_IDLE_AGE)


def test_configured_idle_timeout_applies_without_an_estimate() -> None:
    """`risk = 0`: idle connections up to the limit, except those that the worker has closed."""
    idle = Idle(LONGEST, 0.0, 0.0)
    idle.add(0.0)
    assert idle.lease(LONGEST - 1)
    idle.relink(10.0, 0.5)
    idle.add(100.0)
    assert not idle.lease(110.0)


def test_idle_connections_of_a_stopped_worker_are_removed() -> None:
    idle = Idle(LONGEST, PoolConfig().risk, 0.0)
    idle.add(0.0)
    idle.clear()
    assert not idle.has_idle(0.0)
    assert not idle.lease(0.0)
