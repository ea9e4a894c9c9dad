"""The sidecar as a server: one listening socket, a front proxy, and a proxy for each origin.

What is common to all clients belongs to the front, a proxy without endpoints; the exchange belongs to the origin's
proxy. One sweep serves all.
"""

from __future__ import annotations

from collections.abc import Callable

from balancer.config.load import Settings
from balancer.config.reload import Prepared
from balancer.config.runtime import RuntimeConfig, runtime_config_of
from balancer.config.sidecar import OriginConfig, SidecarConfig
from balancer.downstream.timeouts import Sweep
from balancer.membership.dns_source import DnsSource
from balancer.proxy import CLOSE_ALL_IDLE, Proxy
from balancer.server import Server, build
from balancer.sidecar.admin import SidecarAdmin
from balancer.sidecar.downstream import OriginConnection
from balancer.sidecar.origins import Origin, Origins
from policies.routing.clock import Clock

LEAST_CONNECTIONS = 8
"""Lower limit of connections to each origin."""


class SidecarServer(Server):
    """A `Server` whose requests go to `origins`. `read` returns the current configuration for a reload."""

    def __init__(
        self,
        config: SidecarConfig,
        clock: Clock | None = None,
        read: Callable[[], SidecarConfig] | None = None,
    ) -> None:
        self._read = read or (lambda: config)
        self._next: tuple[SidecarConfig, list[RuntimeConfig]] = config, []  # of the reload in progress
        super().__init__(config.front(), clock, self._prepare)
        self._leaving: list[Proxy] = []  # of removed origins with requests in flight
        self.origins = Origins([self._origin(config, one) for one in config.origins], config.own_names)
        self._share()
        self._control = SidecarAdmin(
            self.proxy, self.reloads, self.origins, self.proxy.terms.token, self.listening.admin
        )

    def _origin(self, config: SidecarConfig, one: OriginConfig) -> Origin:
        return _named(config, one, build(config.unit_of(one), self._clock))

    def _downstream(self) -> OriginConnection:
        return OriginConnection(self.proxy, self._control, self.origins)

    @property
    def units(self) -> list[Proxy]:
        """The proxies of all origins, and of removed ones with requests in flight."""
        return [*(origin.proxy for origin in self.origins.all), *self._leaving]

    async def start(self) -> None:
        """Start listening and serving."""
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
        """Apply the front's keep-alive decision and access log to all proxies, and divide the descriptors among
        them.
        """
        room = max(LEAST_CONNECTIONS, self._allowed.upstreams // max(1, len(self.units)))
        for proxy in self.units:
            proxy.pools.limit = room
            proxy.access_log = self.proxy.access_log
            proxy.keeps_alive = self.proxy.keeps_alive

    async def stop(self, *, is_patient: bool = False) -> bool:
        """Drain, stop like any server, then close the proxies of the origins."""
        for proxy in self.units:
            proxy.drain(CLOSE_ALL_IDLE)
        is_finished = await super().stop(is_patient=is_patient)
        for proxy in self.units:
            proxy.queue.close()
            proxy.tunnels.abort()
            await proxy.pools.close()
        return is_finished

    # --- reload

    def _prepare(self) -> Settings:
        """Read and validate the configuration, in a thread; every expected error is raised here."""
        config = self._read()
        self._next = config, [runtime_config_of(config.unit_of(one)) for one in config.origins]
        return config.front()

    def _apply_prepared(self, prepared: Prepared) -> list[DnsSource]:
        config, terms = self._next
        known = {origin.name for origin in self.origins.all}
        new = {one.name: self._origin(config, one) for one in config.origins if one.name not in known}
        gone = super()._apply_prepared(prepared)  # nothing can fail from here on
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
                proxy.registry.apply(its_terms)
            kept.append(new[one.name] if proxy is None else _named(config, one, proxy))
        for proxy in known.values():
            proxy.replace_endpoints([])
            self._leaving.append(proxy)
        self.origins.use(kept, config.own_names)
        self._share()


def _named(config: SidecarConfig, one: OriginConfig, proxy: Proxy) -> Origin:
    return Origin(one.name, one.url, config.host_of(one), one.prefix, proxy)
