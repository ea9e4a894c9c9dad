"""Server of one process: build, listen, reload, drain.

It only assembles; each part is implemented in its own module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from balancer.clients.client_usage import ClientConnection
from balancer.cluster.cluster import Cluster
from balancer.cluster.discovery.discovery import RemoteSource
from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.cluster.state_log import SiblingConditions
from balancer.config.loading import Settings
from balancer.config.schema.listen import ListenAddress
from balancer.config.schema.log import LogConfig
from balancer.config.schema.sections import TracingConfig
from balancer.control.admin.application import AdminApplication
from balancer.control.control_plane import ControlPlane
from balancer.control.named_clusters import NamedClusters
from balancer.control.reload import Prepared, Read, Reloads
from balancer.downstream.acceptor import Acceptor, ConnectionBalance
from balancer.downstream.connection import Http1Connection
from balancer.downstream.descriptor_limit import allowance, descriptor_limit, descriptors_in_use
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.timeouts import SLICE, Sweep
from balancer.http.h2.limits import Http2Limits
from balancer.log.access_log import AccessLog, wall_offset
from balancer.log.output import LogOutput, complain
from balancer.process.listening import Listeners, listening
from balancer.process.member import ServingProcess
from balancer.process_context import CLOSE_ALL_IDLE, ProcessContext
from balancer.routes.table import RouteTable
from balancer.sharing.exchange import exchange_of
from balancer.sharing.siblings import Siblings
from balancer.sharing.token_exchange import token_exchange_of
from balancer.tls.contexts import shared_contexts
from balancer.tracing.tracing import tracing_of
from policies.clock import Clock, MonotonicClock
from policies.routing.router import Router

IDLE_GRACE = 10.0
"""Seconds for which idle clients stay connected while another server accepts already.

A request in that time is answered with Connection: close; the other clients see the close while nothing is in flight.
"""


def build(settings: Settings, clock: Clock, upstream_limit: int | None = None) -> ControlPlane:
    """Build the default cluster that `settings` describe, with its process context and control plane."""
    config, process = runtime_config_of(settings), ProcessContext(clock)
    if settings.log.access != "off":
        output, rng = LogOutput(settings.log.path), Random(settings.seed)
        process.access_log = AccessLog(output, settings.log, offset=wall_offset(clock), rng=rng)
    process.apply(settings)
    return build_cluster(config, process, upstream_limit)


def build_cluster(
    config: RuntimeConfig, process: ProcessContext, upstream_limit: int | None = None, name: str = ""
) -> ControlPlane:
    """Build a cluster and its control plane."""
    rng = Random(config.settings.seed)
    endpoints = [endpoint.endpoint() for endpoint in config.settings.endpoints]
    router = Router(
        endpoints,
        config.settings.policy.make(rng),
        process.clock,
        rng,
        concurrency=config.settings.concurrency.rules(),
        health=config.settings.health(),
    )
    return ControlPlane(Cluster(router, process, config, upstream_limit, name), rng, config)


class Server:
    """The clusters of a process with their listening socket, admin interface and sweep.

    `read` loads the current configuration for a reload; `member` identifies the process among several.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        read: Read | None = None,
        member: ServingProcess | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._shared = settings.shared, settings.home_region
        self._allowed = allowance(descriptor_limit(), descriptors_in_use() + len(settings.listeners))
        self.control_plane = build(settings, self._clock, self._allowed.upstreams)
        self.cluster = self.control_plane.cluster
        self.process = self.cluster.process
        config = self.control_plane.config
        # The first process reports for all.
        self._say = complain if member is None or not member.index else in_silence
        self._apply_tracing(config.settings.tracing)
        self.process.joins = member is not None and member.is_later
        self.control_plane.read_sources()
        tally = [0, 0] if member is None else member.board.pages[member.index].reloads
        self.reloads = Reloads(
            self.control_plane, settings, read or (lambda _: settings), self._commit, tally
        )
        channel = None
        if member is not None:
            # Imported here, because it brings aiohttp, which a single process needs for admin requests only.
            from balancer.control.admin.channel import SiblingChannel

            channel = SiblingChannel(member.directory, member.index, member.of)
        self.listening = listening(settings, complain) if member is None else member.listening
        self._owns_sockets = member is None
        self._admin = AdminApplication(
            self.control_plane, self.reloads, config.token, channel, self.listening.admin
        )
        self._page = None if member is None else member.board.pages[member.index]
        self._balance = None if member is None else ConnectionBalance(member.board, member.index)
        self._member = member
        self._connect_others(self.control_plane)
        if member is not None:
            self.control_plane.rate_limits.share(member.buckets, member.index)
        self.control_plane.shared_limits = token_exchange_of(
            settings.shared,
            self.control_plane.rate_limits,
            self._clock.now,
            self._say,
            None if member is None else str(member.directory),
            applies=member is None or not member.index,
        )
        self.named_clusters = NamedClusters(self.control_plane, self._build_cluster)
        fronts = shared_contexts(settings) if member is None else member.fronts
        self._listeners = Listeners(
            self.listening.traffic, self.cluster, self.named_clusters, self._downstream, self._http2, fronts
        )
        self._listeners.apply(config)
        self.arrivals = self._listeners.arrivals
        self._acceptor: Acceptor | None = None
        self._sweep: Sweep | None = None

    def _build_cluster(self, name: str, config: RuntimeConfig) -> ControlPlane:
        """Return the control plane of a named cluster, without its sources of endpoints."""
        control_plane = build_cluster(config, self.process, self._allowed.upstreams, name)
        self._connect_others(control_plane)
        return control_plane

    def _connect_others(self, control_plane: ControlPlane) -> None:
        """Let a cluster know what sibling processes and other units report about its endpoints."""
        member, name = self._member, control_plane.cluster.name
        state_log, router, say = control_plane.state_log, control_plane.cluster.router, self._say
        if name:
            control_plane.discovery.say = partial(_of_cluster, name, control_plane.discovery.say)
            say = partial(_of_cluster, name, say)
        state_log.say = say
        if member is not None:
            state_log.siblings = SiblingConditions(member.board, member.index, name)
            siblings = Siblings(router, member.board, member.index, complain, name)
            control_plane.sweep_siblings = siblings.sweep
            if name in member.prompts:
                control_plane.share_prompts(member.prompts[name])
        directory = None if member is None else str(member.directory)
        control_plane.shared = exchange_of(self._shared, router, self._clock.now, say, directory, name)

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters, also removed ones with requests in flight."""
        return [self.cluster, *(one.cluster for one in self.named_clusters.every)]

    @property
    def address(self) -> ListenAddress:
        """The listening address, with the actual port."""
        return self.listening.address

    async def start(self) -> None:
        if self.process.access_log is not None:
            self.process.access_log.start()
        await self.control_plane.start()
        config = self.control_plane.config
        self._commit_clusters(config, await self.named_clusters.prepare(config))
        await self._admin.start()  # last: runtime overrides of endpoints need the endpoints
        self.control_plane.hold(self.listening.discovered)
        self.listening.discovered.clear()
        self._publish_grace()
        self.control_plane.begin()
        for one in self.named_clusters.every:
            one.begin()
        self.process.addresses = {name: str(sock.address) for name, sock in self.listening.traffic.items()}
        self._acceptor = Acceptor(self._listeners.entrances, self.cluster, self._client_limit, self._balance)
        self._sweep = Sweep(self.process, self._look)
        self._sweep.start()
        self._acceptor.start()

    def _look(self, now: float) -> None:
        """Run periodic work; called with every sweep."""
        if self._acceptor is not None:
            self._acceptor.sweep(now)
        self.control_plane.sweep(now)
        self.named_clusters.sweep(now)

    def _publish_grace(self) -> None:
        """Publish the shutdown timeout to the supervisor, which kills a slower process and does not reload
        configuration."""
        if self._page is not None:
            self._page.grace = self.cluster.timeouts.shutdown

    def _downstream(self, routes: RouteTable) -> Http1Connection:
        """Return the protocol of a client, whose requests have these routes."""
        begin_http2 = None if self.cluster.http2 is None else partial(self._http2, routes)
        return Http1Connection(self.cluster, self._admin.exchange, routes, begin_http2)

    def _http2(self, routes: RouteTable) -> Http2Connection:
        limits = self.cluster.http2 or Http2Limits()
        return Http2Connection(self.cluster, limits, self._admin.exchange, routes)

    @property
    def _client_limit(self) -> int:
        """Maximum concurrent clients: the configured limit, or as many as descriptors allow if fewer."""
        return min(self.cluster.limits.clients or self._allowed.clients, self._allowed.clients)

    # --- reload

    async def reload(self, *, everywhere: bool = False) -> list[str]:
        """Reload the configuration and all files that it names. Requests in flight finish under the old one.

        With `everywhere` in all processes, this one first; returns what the others have refused. Raises `ConfigError`,
        and then keeps the current configuration.
        """
        if everywhere:
            return await self._admin.reload_everywhere()
        await self.reloads.run()
        return []

    async def _commit(self, prepared: Prepared) -> None:
        """Look up the endpoints of new clusters and sources, then apply a prepared configuration in one step; connected
        clients are updated after it, in slices."""
        is_met_alike = prepared.config.meets_clients_like(self.control_plane.config)
        kept = [
            (plane.discovery, prepared.sources[plane.cluster.name])
            for plane, _ in self.control_plane.kept(prepared.config)
        ]
        loop, now = asyncio.get_running_loop(), self._clock.now()
        lookups = [loop.create_task(discovery.look_up(sources, now)) for discovery, sources in kept]
        new: dict[str, ControlPlane] = {}
        try:
            new = await self.named_clusters.prepare(prepared.config)
            await asyncio.wait(lookups)
            gone = self._commit_prepared(prepared)
        except BaseException:
            for lookup, (discovery, sources) in zip(lookups, kept, strict=True):
                lookup.cancel()
                discovery.discard(sources)
            await self.named_clusters.discard(new)
            raise
        self._commit_clusters(prepared.config, new)
        if self._sweep is not None:  # else this is part of the start, which begins all clusters
            for one in new.values():
                one.begin()
        await self.control_plane.discovery.close(gone)
        if not is_met_alike:
            await self._update_clients(list(self.process.downstreams))

    def _commit_clusters(self, config: RuntimeConfig, new: dict[str, ControlPlane]) -> None:
        self.named_clusters.commit(config, new)

    def _commit_prepared(self, prepared: Prepared) -> list[RemoteSource]:
        """Apply a prepared configuration. Returns the sources to close.

        The step that may fail comes first: raises `ConfigError` or `PoliciesError` before anything
        changes.
        """
        control_plane, config = self.control_plane, prepared.config
        gone = control_plane.reload(config, prepared.sources)
        self.process.apply(config.settings)
        self._apply_log(config.settings.log, prepared.output)
        self._apply_tracing(config.settings.tracing)
        self._listeners.apply(config)
        self._admin.token = config.token
        self._publish_grace()
        if self._acceptor is not None:
            self._acceptor.limit = self._client_limit
        return gone

    def _apply_log(self, log: LogConfig, output: LogOutput | None) -> None:
        control_plane = self.control_plane
        old = self.process.access_log
        if log.access == "off":
            self.process.access_log = None
            control_plane.apply_access_log()
            if old is not None:
                old.retire()
        elif output is None:
            if old is not None:
                old.reopen()
        elif old is not None:
            old.apply(output, log)
        else:
            new = AccessLog(output, log, offset=wall_offset(self._clock), rng=Random())
            self.process.access_log = new
            control_plane.apply_access_log()
            new.start()

    def _apply_tracing(self, config: TracingConfig) -> None:
        """Apply the tracing; an export that is not used any more ends in a thread."""
        before = self.process.tracing
        self.process.tracing = tracing = tracing_of(
            config, before, partial(wall_offset, self._clock), self._say
        )
        spans = None if before is None else before.spans
        if spans is not None and (tracing is None or tracing.spans is not spans):
            asyncio.get_running_loop().run_in_executor(None, spans.stop)

    async def _update_clients(self, downstreams: list[ClientConnection]) -> None:
        """Update client connections in slices: ten thousand at once would block the loop."""
        for number, downstream in enumerate(downstreams, 1):
            downstream.apply()
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def stop(self, *, is_patient: bool = False) -> bool:
        """Stop accepting, finish requests in flight within the grace period, close the rest.

        Idle connections close at once; with `is_patient`, while another server accepts already, after a time in which
        one more request is answered. Returns whether all requests finished.
        """
        process, grace = self.process, self.cluster.timeouts.shutdown
        process.drain(min(IDLE_GRACE, grace / 2) if is_patient else CLOSE_ALL_IDLE, grace)
        for downstream in process.downstreams:
            downstream.idle_since = process.now()  # the idle time starts now
        if self._owns_sockets and not is_patient:
            self.listening.remove()
        self._admin.close()
        if self._acceptor is not None:
            await self._acceptor.stop()
        if self._owns_sockets and is_patient:
            self.listening.remove_unused()
        is_finished = await self._drained(grace)
        self.arrivals.stop()
        for cluster in self.clusters:
            cluster.close()
        process.abort()
        await asyncio.sleep(0)  # the loop's next iteration logs their requests
        if self._sweep is not None:
            self._sweep.stop()
        await self._admin.stop()
        await self.named_clusters.stop()
        await self.control_plane.stop()
        if process.access_log is not None:
            process.access_log.stop()
        if process.tracing is not None and process.tracing.spans is not None:
            await asyncio.to_thread(process.tracing.spans.stop)
        return is_finished

    async def _drained(self, grace: float) -> bool:
        """Close idle connections and wait for the others. Returns False if `grace` seconds were not enough."""
        process = self.process
        all_left = asyncio.Event()
        process.on_client_left = lambda: all_left.set() if self._is_empty else None
        for downstream in list(process.downstreams):
            downstream.close_if_idle(process.now(), process.idle_limit)
        if self._is_empty:
            return True
        try:
            await asyncio.wait_for(all_left.wait(), grace)
        except TimeoutError:
            return False
        return True

    def close_idle(self) -> None:
        """End the patience of `stop`: idle connections close with the next sweep."""
        self.process.idle_limit = CLOSE_ALL_IDLE

    @property
    def _is_empty(self) -> bool:
        return not (self.process.downstreams or len(self.arrivals))


def _of_cluster(name: str, say: Callable[[str], None], line: str) -> None:
    """Print a line about a named cluster."""
    say(f"cluster {name}: {line}")


def in_silence(line: str) -> None:
    """Discard a line that another process prints."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
