"""The life of the forwarding unit: build, listen, serve, drain.

Rule of this file: readable aloud. What each part does stands in its own file.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from random import Random

from balancer.acceptor import Acceptor, bind
from balancer.access_log import AccessLog, wall_offset
from balancer.arrival import Arrivals
from balancer.config import ConfigError, ListenAddress, Settings
from balancer.control import ControlPlane
from balancer.deadlines import SLICE, Sweep
from balancer.descriptors import allowance, descriptor_limit, descriptors_in_use
from balancer.downstream import Downstream
from balancer.log_lines import FORMATS
from balancer.log_output import LogOutput
from balancer.memory import keep_freed_memory
from balancer.reload import Prepared, Reloads
from balancer.sections import LogConfig
from balancer.terms import terms_of
from balancer.unit import Unit
from balancer.watched_name import WatchedName
from policies.router import Clock, MonotonicClock, Router

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no cycles behind, so the default
of 700 makes the collector look at live connections some dozen times a second for nothing."""


def build(settings: Settings, clock: Clock, upstream_limit: int | None = None) -> Unit:
    """The unit that `settings` describe."""
    rng = Random(settings.seed)
    terms = terms_of(settings)
    endpoints = [endpoint.endpoint() for endpoint in terms.endpoints]
    router = Router(
        endpoints, terms.policy.make(rng), clock, rng, concurrency=terms.concurrency, fitness=terms.fitness
    )
    log = terms.log
    access_log = None
    if log.access != "off":
        access_log = open_log(log, LogOutput(log.path), clock, terms.policy.name, Random(settings.seed))
    return Unit(router, clock, rng, terms, upstream_limit=upstream_limit, access_log=access_log)


def open_log(log: LogConfig, output: LogOutput, clock: Clock, policy: str, rng: Random) -> AccessLog:
    """An access log such as `log` asks for, to an output that is open."""
    return AccessLog(
        output,
        FORMATS[log.access],
        offset=wall_offset(clock),
        policy=policy,
        rng=rng,
        sample=log.sample,
        limit=log.queue,
        logs_control=log.control,
    )


class Server:
    """A unit with its socket, its control plane and its sweep. `read` gives the configuration as it stands when the
    server is told to reload."""

    def __init__(
        self, settings: Settings, clock: Clock | None = None, read: Callable[[], Settings] | None = None
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._allowed = allowance(descriptor_limit(), descriptors_in_use())
        self.unit = build(settings, self._clock, self._allowed.upstreams)
        terms = self.unit.terms
        self.unit.discovery.adopt(terms.discovery, terms.upstream_tls_config)
        self.reloads = Reloads(self.unit, settings, read or (lambda: settings), self._put_in_force)
        self._control = ControlPlane(self.unit, self.reloads, terms.token)
        self.arrivals = Arrivals(self.unit, self._downstream, terms.server_tls, terms.proxy_protocol)
        address = ListenAddress.parse(settings.listen)
        self._sock = bind(address.host, address.port)
        self._acceptor: Acceptor | None = None
        self._sweep: Sweep | None = None

    @property
    def address(self) -> ListenAddress:
        """Where it listens, with the port that it got."""
        host, port = self._sock.getsockname()[:2]
        return ListenAddress(host, port)

    async def start(self) -> None:
        """Listen and serve."""
        if self.unit.access_log is not None:
            self.unit.access_log.start()
        await self._control.start()
        await self.unit.discovery.start(self.unit.now())
        self._acceptor = Acceptor(self._sock, self.unit, self.arrivals, self._client_limit)
        self._sweep = Sweep(self.unit, self._look)
        self._sweep.start()
        self._acceptor.start()

    def _look(self, now: float) -> None:
        """With every sweep."""
        if self._acceptor is not None:
            self._acceptor.sweep(now)
        self.unit.discovery.tick(now)

    def _downstream(self) -> Downstream:
        return Downstream(self.unit, self._control)

    @property
    def _client_limit(self) -> int:
        """Clients that may be connected at once: as many as descriptors allow, or fewer."""
        return min(self.unit.limits.clients or self._allowed.clients, self._allowed.clients)

    # --- other terms

    async def reload(self) -> None:
        """Read the configuration and all files that it names again, and go by it. Raises `ConfigError`, and then goes
        on by what it has. What is in flight ends as it began."""
        await self.reloads.run()

    async def _put_in_force(self, prepared: Prepared) -> None:
        """All at once, but for clients that are connected, who are many."""
        is_met_alike = prepared.terms.meets_clients_like(self.unit.terms)
        gone = self._adopt(prepared)
        await self.unit.discovery.close(gone)
        if not is_met_alike:
            await self._meet_again(list(self.unit.downstreams))

    def _adopt(self, prepared: Prepared) -> list[WatchedName]:
        """Returns the names that need not be looked up any more. What may be wrong has been tried before, and is tried
        here before anything else happens: raises `TlsProblem`, `ConfigError` or `PoliciesError`."""
        unit, terms = self.unit, prepared.terms
        unit.roster.warm(terms)
        if terms.policy != unit.policy:
            unit.use_policy(terms.policy)
        gone = unit.discovery.adopt(terms.discovery, terms.upstream_tls_config)
        self._adopt_log(terms.log, prepared.output)
        unit.adopt(terms)
        unit.roster.adopt(terms)
        self.arrivals.tls, self.arrivals.proxies = terms.server_tls, terms.proxy_protocol
        self._control.token = terms.token
        if self._acceptor is not None:
            self._acceptor.limit = self._client_limit
        return gone

    def _adopt_log(self, log: LogConfig, output: LogOutput | None) -> None:
        unit = self.unit
        old = unit.access_log
        if log.access == "off":
            unit.access_log = None
            if old is not None:
                old.retire()
        elif output is None:
            if old is not None:
                old.reopen()
        elif old is not None:
            old.adopt(
                output, FORMATS[log.access], sample=log.sample, limit=log.queue, logs_control=log.control
            )
        else:
            unit.access_log = open_log(log, output, self._clock, unit.policy.name, Random())
            unit.access_log.start()

    async def _meet_again(self, downstreams: list[Downstream]) -> None:
        """Some in each turn of the loop: ten thousand at once would hold everybody up."""
        for number, downstream in enumerate(downstreams, 1):
            downstream.adopt_terms()
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def stop(self) -> bool:
        """Accept nobody, finish what is in flight within the grace period, close the rest.

        Returns whether all was finished.
        """
        unit = self.unit
        unit.drain()
        if self._acceptor is not None:
            await self._acceptor.stop()
        is_finished = await self._drained(unit.timeouts.shutdown)
        unit.queue.close()  # first: whoever ends makes room, and the next in line would be sent to a worker
        unit.tunnels.abort()
        for downstream in list(unit.downstreams):
            downstream.abort()
        if unit.hedges is not None:
            unit.hedges.close()
        if self._sweep is not None:
            self._sweep.stop()
        unit.checks.stop()
        await self._control.stop()
        await unit.discovery.stop()
        await unit.pools.close()
        if unit.access_log is not None:
            unit.access_log.stop()
        return is_finished

    async def _drained(self, grace: float) -> bool:
        """Close who is idle, wait for the others to leave; False where `grace` seconds were not enough."""
        unit = self.unit
        everybody_left = asyncio.Event()
        unit.on_client_left = lambda: None if unit.downstreams else everybody_left.set()
        for downstream in list(unit.downstreams):
            downstream.close_if_quiet(unit.now(), -1.0)
        if not unit.downstreams:
            return True
        try:
            await asyncio.wait_for(everybody_left.wait(), grace)
        except TimeoutError:
            return False
        return True


async def serve(read: Callable[[], Settings], say: Callable[[str], None]) -> bool:
    """Run until SIGTERM or SIGINT; a second signal ends the grace period. Returns whether all was finished.

    `read` gives the configuration, at the start and on each SIGHUP. Raises what it raises at the start.
    """
    settings = read()
    server = Server(settings, read=read)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    reloading: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload_soon(server, say, reloading))
    await server.start()
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    count = len(server.unit.roster.members)
    say(
        f"balancer ready on {'http' if settings.tls is None else 'https'}://{server.address} "
        f"(policy {settings.policy.name}, {count} endpoint{'s' if count != 1 else ''})"
    )
    await stopping.wait()
    say(f"balancer stopping: {server.unit.in_flight} in flight")
    stopping.clear()
    stop = asyncio.ensure_future(server.stop())
    again = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((stop, again), return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not stop.done():
        stop.cancel()
        return False
    return stop.result()


def _reload_soon(server: Server, say: Callable[[str], None], under_way: set[asyncio.Task[None]]) -> None:
    """One after the one that is under way is enough for all the signals that come meanwhile."""
    if len(under_way) < 2:
        task = asyncio.get_running_loop().create_task(_reload(server, say))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def _reload(server: Server, say: Callable[[str], None]) -> None:
    try:
        await server.reload()
    except ConfigError as error:
        say(f"balancer keeps the configuration that it has: {error}")
        return
    waiting = ", ".join(server.unit.reload_counts.waiting)
    say(
        f"balancer has reloaded; only the next start changes: {waiting}"
        if waiting
        else "balancer has reloaded"
    )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
