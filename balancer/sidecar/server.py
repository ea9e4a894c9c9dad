"""The sidecar as a server: one listening socket, and a unit for each origin behind it.

Rule of this file: what is common to all clients is the front's, a unit without endpoints; what becomes of a request is
its origin's. Both are swept by the same sweep.
"""

from __future__ import annotations

from collections.abc import Callable

from balancer.config.load import Settings
from balancer.config.reload import Prepared
from balancer.config.runtime import RuntimeConfig, terms_of
from balancer.config.sidecar import OriginConfig, SidecarConfig
from balancer.downstream.timeouts import Sweep
from balancer.membership.dns_source import WatchedName
from balancer.proxy import CLOSE_ALL_IDLE, Proxy
from balancer.server import Server, build
from balancer.sidecar.control import SidecarControl
from balancer.sidecar.downstream import OriginConnection
from balancer.sidecar.origins import Origin, Origins
from policies.routing.clock import Clock

LEAST_CONNECTIONS = 8
"""To each origin, however many there are."""


class SidecarServer(Server):
    """A `Server` whose requests go to `origins`. `read` gives the configuration as it stands on a reload."""

    def __init__(
        self,
        config: SidecarConfig,
        clock: Clock | None = None,
        read: Callable[[], SidecarConfig] | None = None,
    ) -> None:
        self._read = read or (lambda: config)
        self._next: tuple[SidecarConfig, list[RuntimeConfig]] = config, []  # that a reload has read
        super().__init__(config.front(), clock, self._prepare)
        self._leaving: list[Proxy] = []  # of origins that are gone, with requests in flight
        self.origins = Origins([self._origin(config, one) for one in config.origins], config.own_names)
        self._share()
        self._control = SidecarControl(
            self.proxy, self.reloads, self.origins, self.proxy.terms.token, self.listening.control
        )

    def _origin(self, config: SidecarConfig, one: OriginConfig) -> Origin:
        return _named(config, one, build(config.unit_of(one), self._clock))

    def _downstream(self) -> OriginConnection:
        return OriginConnection(self.proxy, self._control, self.origins)

    @property
    def units(self) -> list[Proxy]:
        """Of all origins, and of those that are leaving."""
        return [*(origin.proxy for origin in self.origins.all), *self._leaving]

    async def start(self) -> None:
        """Listen and serve."""
        for proxy in self.units:
            proxy.pools.routes.sweep(proxy.now())
        await super().start()

    def _look(self, now: float) -> None:
        super()._look(now)
        self._leaving = [proxy for proxy in self._leaving if proxy.router.in_flight]
        self._share()
        for proxy in self.units:
            Sweep(proxy, lambda now: None).sweep(now)

    def _share(self) -> None:
        """What is in front decides whether a client may go on, and who writes the log; the descriptors are divided."""
        room = max(LEAST_CONNECTIONS, self._allowed.upstreams // max(1, len(self.units)))
        for proxy in self.units:
            proxy.pools.limit = room
            proxy.access_log = self.proxy.access_log
            proxy.keeps_alive = self.proxy.keeps_alive

    async def stop(self, *, is_patient: bool = False) -> bool:
        """As any server; then part from the origins."""
        for proxy in self.units:
            proxy.drain(CLOSE_ALL_IDLE)
        is_finished = await super().stop(is_patient=is_patient)
        for proxy in self.units:
            proxy.queue.close()
            proxy.tunnels.abort()
            await proxy.pools.close()
        return is_finished

    # --- other terms

    def _prepare(self) -> Settings:
        """In a thread: all that can be wrong is wrong here."""
        config = self._read()
        self._next = config, [terms_of(config.unit_of(one)) for one in config.origins]
        return config.front()

    def _apply_prepared(self, prepared: Prepared) -> list[WatchedName]:
        config, terms = self._next
        known = {origin.name for origin in self.origins.all}
        new = {one.name: self._origin(config, one) for one in config.origins if one.name not in known}
        gone = super()._apply_prepared(prepared)  # from here on nothing can go wrong
        self._adopt_origins(config, terms, new)
        return gone

    def _adopt_origins(
        self, config: SidecarConfig, terms: list[RuntimeConfig], new: dict[str, Origin]
    ) -> None:
        known = {origin.name: origin.proxy for origin in self.origins.all}
        kept: list[Origin] = []
        for one, its_terms in zip(config.origins, terms, strict=True):
            proxy = known.pop(one.name, None)
            if proxy is not None:
                proxy.apply(its_terms)
                proxy.roster.apply(its_terms)
            kept.append(new[one.name] if proxy is None else _named(config, one, proxy))
        for proxy in known.values():
            proxy.replace_endpoints([])
            self._leaving.append(proxy)
        self.origins.use(kept, config.own_names)
        self._share()


def _named(config: SidecarConfig, one: OriginConfig, proxy: Proxy) -> Origin:
    return Origin(one.name, one.url, config.host_of(one), one.prefix, proxy)
