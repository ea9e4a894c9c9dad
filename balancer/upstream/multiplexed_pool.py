"""What a pool is where connections carry many requests at once: carriers, and errands that they are given.

Rule of this file: as in `pool.py`, every decision is synchronous and only opening is a task, and there is one at a
time: whoever waits meanwhile gets a place on what it opens. A second carrier is opened when the first has no room.
Nothing is learned of how long a worker keeps an idle one: it says so when it goes (RFC 9113 § 6.8), and what it has not
looked at is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from balancer.errors import ConnectFailed, UpstreamError
from balancer.tls.contexts import HTTP1, HTTP2
from balancer.upstream.connection import UpstreamConnection
from balancer.upstream.connection_counts import US, WORKER
from balancer.upstream.connection_info import ConnectionInfo, listed_carrier
from balancer.upstream.dial import unforeseen
from balancer.upstream.idle_timeout import IdleTimeoutRules
from balancer.upstream.pool import LeaseWaiter, Pool, bare
from balancer.upstream.stream import MultiplexedConnection, UpstreamStream
from policies.routing.facts import Endpoint

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.pool_limits import PoolLimits
    from balancer.upstream.pools import Pools

Opener = Callable[["MultiplexedPool", "ClientTls | None"], Awaitable[MultiplexedConnection]]
"""Opens a carrier; raises `ConnectFailed`."""


UNLEARNED: Final = IdleTimeoutRules(risk=0.0)


class MultiplexedPool(Pool):
    """The carriers to one endpoint; `idle` and `leased` count carriers without and with errands."""

    def __init__(self, endpoint: Endpoint, pools: Pools, transport: str, opener: Opener) -> None:
        super().__init__(endpoint, pools)
        self.transport = transport
        self.alpn = HTTP2 if transport == "http2" else HTTP1
        self.stream_limit = 0  # that the last carrier was told of; 0: none was
        self.go_by(pools.limits)
        self._opener = opener
        self._carriers: list[MultiplexedConnection] = []  # that stand; the last to be opened is last

    @property
    def idle(self) -> int:
        return sum(not carrier.leased for carrier in self._carriers)

    @property
    def is_warm(self) -> bool:
        return any(may_carry(carrier) for carrier in self._carriers)

    @property
    def leased(self) -> int:
        return len(self._carriers) - self.idle

    @property
    def standing(self) -> int:
        return len(self._carriers)

    @property
    def streams(self) -> int:
        return sum(carrier.leased for carrier in self._carriers)

    def listed(self, most: int) -> list[ConnectionInfo]:
        return [listed_carrier(carrier) for carrier in self._carriers[:most] if not carrier.is_library]

    @property
    def pools(self) -> Pools:
        """All pools."""
        return self._pools

    @property
    def origin(self) -> tuple[str, int]:
        """Host and port."""
        return self.route.host, self.route.port

    # --- leasing

    def lease(self) -> UpstreamConnection | None:
        """A place on a carrier that has room."""
        for carrier in self._carriers:
            if may_carry(carrier):
                if (carrier.leased or carrier.life.idle_since) and not carrier.is_library:
                    self.counts.reused += 1
                return self._errand(carrier)
        return None

    def lease_quiet(self) -> UpstreamConnection | None:
        for carrier in self._carriers:
            if may_carry(carrier) and carrier.is_quiet():
                return self.lease()
        return None

    def _errand(self, carrier: MultiplexedConnection) -> UpstreamStream:
        errand, life = UpstreamStream(self, carrier), carrier.life
        errand.idle_since = life.idle_since
        errand.phases = life.phases
        life.requests += 1
        carrier.leased += 1
        return errand

    def wait(self, lessee: LeaseWaiter) -> None:
        """The lessee gets a place as soon as there is one. While the endpoint is in trouble it hears soon that there is
        none."""
        self.open(lessee)

    def open(self, lessee: LeaseWaiter, *, is_trial: bool = False) -> None:
        """As `wait`: what has broken is not among the carriers any more."""
        if not any(may_carry(carrier) for carrier in self._carriers):
            self.counts.cold += not is_trial
            if is_trial and not self.opening:
                self._start_opening(None)
            elif not (self.opening or self._may_open()):
                self._spare(lessee)
                return
        self._lessees.append(lessee)
        self._serve()

    def give_back(self, upstream: UpstreamConnection) -> None:
        """The errand is over."""
        carrier = cast(UpstreamStream, upstream).carrier
        carrier.leased -= 1
        carrier.life.idle_since = self._pools.cached_time
        if not carrier.leased and (self.is_retired or not may_carry(carrier)):
            carrier.retire()
        if self._lessees:
            self._serve()

    def room_changed(self) -> None:
        """A carrier may have room now that it had not."""
        if self._lessees:
            self._serve()

    def _serve(self) -> None:
        """One after the other: what a lessee does at once may end here again."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._lessees and (upstream := self.lease()) is not None:
                self._lessees.popleft().connected(upstream)
        finally:
            self._is_serving = False
        self._open_for_lessees()

    # --- opening

    def _open_for_lessees(self) -> None:
        wanted = min(1, len(self._lessees)) if self.keeps_alive else len(self._lessees)
        while self.opening < wanted and self._may_open():
            self._start_opening(None)
        while self._lessees and not self.opening:
            self._spare(self._lessees.popleft())

    async def _open(self, lessee: LeaseWaiter | None, tls: ClientTls | None) -> None:
        try:
            carrier = await self._opener(self, tls)
        except ConnectFailed as error:
            self._opening_failed(error, None)
        except Exception as error:  # as with a connection
            self.route.failed(fault := unforeseen(error))
            self._opening_failed(fault, None)
            raise
        except BaseException:
            self._stop_opening(lessee)
            raise
        else:
            self._carrier_opened(carrier)

    def _opening_failed(self, error: ConnectFailed, lessee: LeaseWaiter | None) -> None:
        self._stop_opening(lessee)
        self.backoff.failed(self._pools.now())
        self._none_opened(error)

    def _none_opened(self, error: ConnectFailed) -> None:
        """Whoever waits has waited for this one, and would wait as long for the next, unless each has its own."""
        self.counts.failed += 1
        self.last_error = bare(error)
        for _ in range(len(self._lessees) if self.keeps_alive else 1):
            if self._lessees:  # those who try again at once wait for the next one
                self._lessees.popleft().connect_failed(error)

    def _carrier_opened(self, carrier: MultiplexedConnection) -> None:
        self.opening -= 1
        self._unclaimed -= 1
        self._carriers.append(carrier)
        self._equip_carrier(carrier)
        if self.is_retired and not self._lessees:
            carrier.retire()
        elif carrier.room <= 0:  # gone between the handshake and now
            self._none_opened(ConnectFailed("the worker closed the connection at once"))
        else:
            self._serve()
            if not carrier.leased and not carrier.life.idle_since:
                carrier.life.idle_since = self._pools.cached_time

    def _equip_carrier(self, carrier: MultiplexedConnection) -> None:
        limits, rng, life = self._pools.limits, self._pools.rng, carrier.life
        life.opened_at = self._pools.cached_time
        if carrier.is_library:
            return
        self.counts.count_opened(life.phases)
        self.backoff.succeeded()
        self.trip = life.phases.trip
        self._took(life.phases.appconnect)
        life.retire_at = life.opened_at + limits.lifetime(rng)
        life.granted = limits.grant(rng) if self.keeps_alive else 1

    def carrier_lost(self, carrier: MultiplexedConnection, by: str = US) -> None:
        """It is gone, whoever had places on it."""
        if carrier in self._carriers:
            self._carriers.remove(carrier)
            self._pools.open_connections -= 1
            if not carrier.is_library:
                self._count_lost(carrier, by)
        if self._lessees:
            self._serve()

    def library_failed(self, error: UpstreamError) -> UpstreamError:
        """A library that connects by itself brought a request to this end; returns the same."""
        if isinstance(error, ConnectFailed):
            self.counts.failed += 1
            self.last_error = bare(error)
            self.route.failed(error)
        return error

    def _count_lost(self, carrier: MultiplexedConnection, by: str) -> None:
        self.counts.count_closed(by)
        if by == WORKER and not carrier.leased:
            self.counts.count_lost(max(0.0, self._pools.now() - carrier.life.idle_since))

    # --- ageing

    def prune(self, now: float) -> None:
        """Retire what is old, close what has been idle too long, and let the others look after themselves. A warm pool
        keeps one."""
        limits = self._pools.limits
        for carrier in list(self._carriers):
            if not carrier.is_library and (now > carrier.life.retire_at or self._is_spare(carrier, now)):
                carrier.retire()
            else:
                carrier.prune(now, limits)
        if limits.warm and not (self._carriers or self.opening) and self._pools.room != 0:
            self.open_ahead()

    def _is_spare(self, carrier: MultiplexedConnection, now: float) -> bool:
        limits = self._pools.limits
        if carrier.leased or now - carrier.life.idle_since < limits.idle:
            return False
        return not limits.warm or carrier is not self._carriers[-1]

    def go_by(self, limits: PoolLimits) -> None:
        super().go_by(replace(limits, horizon=UNLEARNED))

    def close_oldest(self) -> None:
        idle = [carrier for carrier in self._carriers if not carrier.leased]
        if idle:
            min(idle, key=lambda carrier: carrier.life.idle_since).close()

    def close_idle(self) -> None:
        for carrier in list(self._carriers):
            if not carrier.leased:
                carrier.close()

    def keep_alive(self, is_wanted: bool) -> None:
        super().keep_alive(is_wanted)
        for carrier in list(self._carriers):
            if not (is_wanted or carrier.is_library):
                carrier.retire()

    def retire(self) -> None:
        self.is_retired = True
        self._takes_back = False
        for carrier in list(self._carriers):
            carrier.retire()

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel what is being opened, close what stands."""
        tasks = super().close()
        for carrier in list(self._carriers):
            carrier.close()
        return tasks


def may_carry(carrier: MultiplexedConnection) -> bool:
    """Whether it may be given one errand more."""
    return carrier.room > 0 and carrier.life.requests < carrier.life.granted
