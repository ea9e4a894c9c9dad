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
from balancer.bounds import Limits, Timeouts
from balancer.config import ListenAddress, Settings
from balancer.control import ControlPlane
from balancer.deadlines import Sweep
from balancer.descriptors import allowance, descriptor_limit, descriptors_in_use
from balancer.downstream import Downstream
from balancer.internal_fields import InternalFields
from balancer.log_lines import FORMATS
from balancer.log_output import LogOutput
from balancer.memory import keep_freed_memory
from balancer.queue_sections import gate_rules
from balancer.tls import TlsProblem
from balancer.unit import Unit
from policies.router import Clock, MonotonicClock, Router

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no cycles behind, so the default
of 700 makes the collector look at live connections some dozen times a second for nothing."""


def build(settings: Settings, clock: Clock, upstream_limit: int | None = None) -> Unit:
    """The unit that `settings` describe."""
    rng = Random(settings.seed)
    endpoints = [endpoint.endpoint() for endpoint in settings.endpoints]
    timeouts, limits = settings.timeouts, settings.limits
    router = Router(
        endpoints,
        settings.policy.make(rng),
        clock,
        rng,
        in_flight_limit=limits.in_flight,
        concurrency=settings.concurrency.rules(),
        fitness=settings.fitness(),
    )
    return Unit(
        router,
        clock,
        rng,
        timeouts=Timeouts(
            head=timeouts.head,
            request_idle=timeouts.request_idle,
            keep_alive=timeouts.keep_alive,
            first_byte=timeouts.first_byte,
            body_idle=timeouts.body_idle,
            queue=timeouts.queue,
            linger=timeouts.linger,
            tunnel_idle=timeouts.tunnel_idle,
            attempt=timeouts.attempt,
            total=timeouts.total,
        ),
        pool_limits=settings.pool_limits,
        upstream_limit=upstream_limit,
        queue_limit=limits.queue,
        queue_is_adaptive=settings.queue.order == "adaptive",
        gate_rules=gate_rules(settings.queue, settings.shedding),
        limits=Limits(limits.head, limits.fields, limits.target, limits.body, limits.buffer),
        retries=settings.retry.retries(settings.retries),
        hedging=settings.hedging.hedging(),
        home_region=settings.home_region,
        trusted_proxies=settings.trusted_proxies,
        internal_fields=InternalFields(settings.headers.internal) if settings.headers.internal else None,
        says_forwarded=settings.headers.forwarded,
        allowed_methods=frozenset(method.encode() for method in settings.http.allow),
        access_log=open_log(settings, clock),
        upstream_tls=settings.client_tls(),
        check_plan=settings.check_plan(),
    )


def open_log(settings: Settings, clock: Clock) -> AccessLog | None:
    """The access log that `settings` ask for. Raises `LogFailed`."""
    log = settings.log
    if log.access == "off":
        return None
    return AccessLog(
        LogOutput(log.path),
        FORMATS[log.access],
        offset=wall_offset(clock),
        policy=settings.policy.name,
        rng=Random(settings.seed),
        sample=log.sample,
        limit=log.queue,
        logs_control=log.control,
    )


class Server:
    """A unit with its socket, its control plane and its sweep."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        allowed = allowance(descriptor_limit(), descriptors_in_use())
        self._client_limit = min(settings.limits.clients or allowed.clients, allowed.clients)
        self.unit = build(settings, clock or MonotonicClock(), allowed.upstreams)
        self._control = ControlPlane(self.unit, settings.policy, settings.control.token)
        self.arrivals = Arrivals(self.unit, self._downstream, settings.server_tls(), settings.proxy_protocol)
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
        self._acceptor = Acceptor(self._sock, self.unit, self.arrivals, self._client_limit)
        self._sweep = Sweep(self.unit, self._acceptor.sweep)
        self._sweep.start()
        self._acceptor.start()

    def _downstream(self) -> Downstream:
        return Downstream(self.unit, self._control)

    def reload(self) -> None:
        """Open the access log anew; read certificates, keys and CAs again for connections that come from now on.

        Raises `TlsProblem`, and then keeps the certificates that it has.
        """
        if self.unit.access_log is not None:
            self.unit.access_log.reopen()
        upstream = self._settings.client_tls()
        if self.arrivals.tls is not None:
            self.arrivals.tls.reload()
        self.unit.pools.tls = upstream

    async def stop(self) -> bool:
        """Accept nobody, finish what is in flight within the grace period, close the rest.

        Returns whether all was finished.
        """
        unit = self.unit
        unit.drain()
        if self._acceptor is not None:
            await self._acceptor.stop()
        is_finished = await self._drained(self._settings.timeouts.shutdown)
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


async def serve(settings: Settings, say: Callable[[str], None]) -> bool:
    """Run until SIGTERM or SIGINT; a second signal ends the grace period. Returns whether all was finished."""
    server = Server(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: say(_reloaded(server)))
    await server.start()
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    count = len(settings.endpoints)
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


def _reloaded(server: Server) -> str:
    try:
        server.reload()
    except TlsProblem as error:
        return f"balancer keeps the certificates that it has: {error}"
    return "balancer has reloaded certificates and access log"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
