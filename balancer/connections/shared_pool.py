"""What a pool is where connections carry many requests at once: carriers, and errands that they are given.

Rule of this file: as in `pool.py`, every decision is synchronous and only opening is a task, and there is one at a
time: whoever waits meanwhile gets a place on what it opens. A second carrier is opened when the first has no room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from balancer.connections.errand import Carrier, Errand
from balancer.connections.pool import Lessee, Pool
from balancer.connections.upstream import Upstream
from balancer.errors import ConnectFailed
from balancer.tls.contexts import HTTP1, HTTP2
from policies.facts import Endpoint

if TYPE_CHECKING:
    from balancer.connections.pools import Pools
    from balancer.tls.contexts import ClientTls

Opener = Callable[["SharedPool", "ClientTls | None"], Awaitable[Carrier]]
"""Opens a carrier; raises `ConnectFailed`."""


class SharedPool(Pool):
    """The carriers to one endpoint; `idle` and `leased` count carriers without and with errands."""

    def __init__(self, endpoint: Endpoint, pools: Pools, transport: str, opener: Opener) -> None:
        super().__init__(endpoint, pools)
        self.transport = transport
        self.stream_limit = 0  # that the last carrier was told of; 0: none was
        self._opener = opener
        self._carriers: list[Carrier] = []  # that stand; the last to be opened is last

    @property
    def idle(self) -> int:
        return sum(not carrier.leased for carrier in self._carriers)

    @property
    def leased(self) -> int:
        return len(self._carriers) - self.idle

    @property
    def standing(self) -> int:
        return len(self._carriers)

    @property
    def errands(self) -> int:
        """Requests under way."""
        return sum(carrier.leased for carrier in self._carriers)

    @property
    def pools(self) -> Pools:
        """All pools."""
        return self._pools

    @property
    def origin(self) -> tuple[str, int]:
        """Host and port."""
        return self.route.host, self.route.port

    # --- leasing

    def lease(self) -> Upstream | None:
        """A place on a carrier that has room."""
        for carrier in self._carriers:
            if carrier.room > 0:
                if (carrier.leased or carrier.idle_since) and not carrier.is_library:
                    self.counts.reused += 1
                return self._errand(carrier)
        return None

    def lease_quiet(self) -> Upstream | None:
        for carrier in self._carriers:
            if carrier.room > 0 and carrier.is_quiet():
                return self.lease()
        return None

    def _errand(self, carrier: Carrier) -> Errand:
        errand = Errand(self, carrier)
        errand.idle_since = carrier.idle_since
        carrier.leased += 1
        return errand

    def wait(self, lessee: Lessee) -> None:
        """The lessee gets a place as soon as there is one."""
        self._lessees.append(lessee)
        self._serve()

    def open(self, lessee: Lessee, *, is_trial: bool = False) -> None:
        """As `wait`: what has broken is not among the carriers any more."""
        self.wait(lessee)

    def give_back(self, upstream: Upstream) -> None:
        """The errand is over."""
        carrier = cast(Errand, upstream).carrier
        carrier.leased -= 1
        carrier.idle_since = self._pools.coarse_now
        if not carrier.leased and (self.is_retired or carrier.room <= 0):
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
        if self._lessees and not self.opening:
            self._begin_opening()

    # --- opening

    def _begin_opening(self) -> None:
        tls = self._pools.tls.of(self.endpoint, HTTP2 if self.transport == "http2" else HTTP1)
        self._pools.make_room()
        self.opening += 1
        self._pools.open_connections += 1
        task = asyncio.get_running_loop().create_task(self._open_carrier(tls))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _open_carrier(self, tls: ClientTls | None) -> None:
        try:
            carrier = await self._opener(self, tls)
        except ConnectFailed as error:
            self._opening_ended()
            self._none_opened(error)
        except BaseException:
            self._opening_ended()
            raise
        else:
            self._carrier_opened(carrier)

    def _opening_ended(self) -> None:
        self.opening -= 1
        self._pools.open_connections -= 1

    def _none_opened(self, error: ConnectFailed) -> None:
        """Whoever waits has waited for this one, and would wait as long for the next."""
        self.counts.failed += 1
        self.last_fault = error.inside
        for _ in range(len(self._lessees)):  # those who try again at once wait for the next one
            if self._lessees:
                self._lessees.popleft().connect_failed(error)

    def _carrier_opened(self, carrier: Carrier) -> None:
        self.opening -= 1
        if not carrier.is_library:
            self.counts.opened += 1
        carrier.opened_at = self._pools.coarse_now
        self._carriers.append(carrier)
        if self.is_retired and not self._lessees:
            carrier.retire()
        elif carrier.room <= 0:  # gone between the handshake and now
            self._none_opened(ConnectFailed("the worker closed the connection at once"))
        else:
            self._serve()
            if not carrier.leased and not carrier.idle_since:
                carrier.idle_since = self._pools.coarse_now

    def carrier_lost(self, carrier: Carrier) -> None:
        """It is gone, whoever had places on it."""
        if carrier in self._carriers:
            self._carriers.remove(carrier)
            self._pools.open_connections -= 1
            if not carrier.is_library:
                self.counts.closed += 1
        if self._lessees:
            self._serve()

    # --- ageing

    def prune(self, now: float) -> None:
        """Retire what is old, close what has been idle too long, and let the others look after themselves."""
        limits = self._pools.limits
        for carrier in list(self._carriers):
            is_idle = not carrier.leased and now - carrier.idle_since >= limits.idle
            if carrier.is_library:
                carrier.prune(now, limits)
            elif is_idle or now - carrier.opened_at > limits.max_age:
                carrier.retire()
            else:
                carrier.prune(now, limits)

    def close_oldest(self) -> None:
        idle = [carrier for carrier in self._carriers if not carrier.leased]
        if idle:
            min(idle, key=lambda carrier: carrier.idle_since).close()

    def close_idle(self) -> None:
        for carrier in list(self._carriers):
            if not carrier.leased:
                carrier.close()

    def retire(self) -> None:
        self.is_retired = True
        for carrier in list(self._carriers):
            carrier.retire()

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel what is being opened, close what stands."""
        tasks = super().close()
        for carrier in list(self._carriers):
            carrier.close()
        return tasks
