"""The life of the forwarding unit: build, listen, serve, drain.

Rule of this file: readable aloud. What each part does stands in its own file.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from random import Random

from balancer.acceptor import Acceptor, bind
from balancer.access_log import AccessLog, wall_offset
from balancer.arrival import Arrivals
from balancer.bounds import Limits, Timeouts
from balancer.channel import Channel
from balancer.config import ListenAddress, Settings
from balancer.control import ControlPlane
from balancer.deadlines import Sweep
from balancer.descriptors import allowance, descriptor_limit, descriptors_in_use
from balancer.downstream import Downstream
from balancer.ending import Ending
from balancer.evenness import Evenness
from balancer.handover import inherited, tell_ready
from balancer.internal_fields import InternalFields
from balancer.log_lines import FORMATS
from balancer.log_output import LogOutput, complain
from balancer.member import Member
from balancer.memory import keep_freed_memory
from balancer.neighbours import Neighbours
from balancer.queue_sections import gate_rules
from balancer.succession import Succession
from balancer.tls import TlsProblem
from balancer.unit import AT_ONCE, Unit
from policies.router import Clock, MonotonicClock, Router

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no cycles behind, so the default
of 700 makes the collector look at live connections some dozen times a second for nothing."""

FAREWELL = 10.0
"""Seconds that clients may be idle while others serve already. Whoever sends a request in that time gets it answered
with Connection: close; the others find out while nothing is on its way."""


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

    def __init__(self, settings: Settings, clock: Clock | None = None, member: Member | None = None) -> None:
        self._settings = settings
        allowed = allowance(descriptor_limit(), descriptors_in_use())
        self._client_limit = min(settings.limits.clients or allowed.clients, allowed.clients)
        self.unit = build(settings, clock or MonotonicClock(), allowed.upstreams)
        self._channel = Channel(member) if member is not None else None
        self._control = ControlPlane(self.unit, settings.policy, settings.control.token, self._channel)
        self.arrivals = Arrivals(self.unit, self._downstream, settings.server_tls(), settings.proxy_protocol)
        self.sock = member.sock if member is not None else listen(settings)
        self._evenness = None if member is None else Evenness(member.board, member.index)
        self._neighbours: Neighbours | None = None
        if member is not None:
            self._neighbours = Neighbours(self.unit.router, member.board, member.index, complain)
        self._acceptor: Acceptor | None = None
        self._sweep: Sweep | None = None

    @property
    def address(self) -> ListenAddress:
        """Where it listens, with the port that it got."""
        return address_of(self.sock)

    async def start(self) -> None:
        """Listen and serve."""
        if self.unit.access_log is not None:
            self.unit.access_log.start()
        await self._control.start()
        self._acceptor = Acceptor(self.sock, self.unit, self.arrivals, self._client_limit, self._evenness)
        self._sweep = Sweep(self.unit, self._look_after)
        self._sweep.start()
        self._acceptor.start()

    def _look_after(self, now: float) -> None:
        if self._acceptor is not None:
            self._acceptor.sweep(now)
        if self._neighbours is not None:
            self._neighbours.sweep(now)

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

    async def stop(self, *, is_patient: bool = False) -> bool:
        """Accept nobody, finish what is in flight within the grace period, close the rest.

        Who is idle leaves at once; where others serve already, `is_patient`, after a time in which one more request is
        answered. Returns whether all was finished.
        """
        unit = self.unit
        grace = self._settings.timeouts.shutdown
        unit.drain(min(FAREWELL, grace / 2) if is_patient else AT_ONCE)
        for downstream in unit.downstreams:
            downstream.quiet_since = unit.coarse_now  # whatever was before: the time begins here
        if self._acceptor is not None:
            await self._acceptor.stop()
        if not is_patient:
            self.arrivals.stop()
        is_finished = await self._drained(grace)
        self.arrivals.stop()
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
        unit.on_client_left = lambda: everybody_left.set() if self._is_empty else None
        for downstream in list(unit.downstreams):
            downstream.close_if_quiet(unit.now(), unit.idle_limit)
        if self._is_empty:
            return True
        try:
            await asyncio.wait_for(everybody_left.wait(), grace)
        except TimeoutError:
            return False
        return True

    def hasten(self) -> None:
        """No more patience: who is idle leaves with the next sweep."""
        self.unit.idle_limit = AT_ONCE
        self.arrivals.stop()

    @property
    def _is_empty(self) -> bool:
        return not (self.unit.downstreams or len(self.arrivals))


def listen(settings: Settings) -> socket.socket:
    """The listening socket: the one that was handed over, or a new one. Raises `ListenFailed`."""
    address = ListenAddress.parse(settings.listen)
    return inherited(settings.listen) or bind(address.host, address.port)


def address_of(sock: socket.socket) -> ListenAddress:
    """Where it listens."""
    host, port = sock.getsockname()[:2]
    return ListenAddress(host, port)


async def serve(settings: Settings, say: Callable[[str], None], member: Member | None = None) -> bool:
    """Run until told to end; returns whether all was finished. As a `member` of several, leave the talking to the
    supervisor."""
    server = Server(settings, member=member)
    loop, ending = asyncio.get_running_loop(), Ending()
    tell = say if member is None or not member.index else _in_silence  # one of several speaks for all
    loop.add_signal_handler(signal.SIGHUP, lambda: tell(_reloaded(server)))
    if member is None:
        ending.hear_everybody()
        succession = Succession(server.sock, settings.listen, say, ending.replaced)
        loop.add_signal_handler(signal.SIGUSR2, succession.begin)
    else:
        ending.hear_supervisor()
        loop.add_reader(member.lifeline, ending.orphaned, member.lifeline)
    await server.start()
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    if member is None:
        say(ready_line(settings, server.address))
        tell_ready()
    else:
        member.tell_ready()
    await ending.begun.wait()
    if member is None:
        say(f"balancer stopping: {server.unit.in_flight} in flight")
    return await _ended(server, ending)


async def _ended(server: Server, ending: Ending) -> bool:
    """Whether everything was finished before somebody lost patience."""
    ending.on_haste = server.hasten
    stop = asyncio.ensure_future(server.stop(is_patient=ending.is_patient))
    cut = asyncio.ensure_future(ending.cut_short.wait())
    await asyncio.wait((stop, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if not stop.done():
        stop.cancel()
        return False
    return stop.result()


def ready_line(settings: Settings, address: ListenAddress) -> str:
    """What whoever started the unit waits for."""
    count, processes = len(settings.endpoints), settings.processes
    return (
        f"balancer ready on {'http' if settings.tls is None else 'https'}://{address} "
        f"(policy {settings.policy.name}, {count} endpoint{'s' if count != 1 else ''}"
        f"{f', {processes} processes' if processes != 1 else ''})"
    )


def _in_silence(line: str) -> None:
    """Another process says the same."""


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
