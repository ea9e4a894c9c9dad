"""The forwarding unit as a server: build, listen, reload, drain.

Rule of this file: readable aloud. What each part does stands in its own file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from balancer.admin.application import ControlPlane
from balancer.config.listen import ListenAddress
from balancer.config.load import Settings
from balancer.config.reload import Prepared, Reloads
from balancer.config.runtime import terms_of
from balancer.config.sections import LogConfig
from balancer.downstream.acceptor import Acceptor
from balancer.downstream.connection import Downstream
from balancer.downstream.descriptor_limit import allowance, descriptor_limit, descriptors_in_use
from balancer.downstream.preamble import Arrivals
from balancer.downstream.timeouts import SLICE, Sweep
from balancer.log.access_log import AccessLog, wall_offset
from balancer.log.formats import FORMATS
from balancer.log.output import LogOutput, complain
from balancer.membership.dns_source import WatchedName
from balancer.process.channel import Channel
from balancer.process.connection_balance import Evenness
from balancer.process.listening import listening
from balancer.process.member import Member
from balancer.process.siblings import Neighbours
from balancer.tls.contexts import ServerHandshake, ServerTls
from balancer.unit import AT_ONCE, Unit
from policies.routing.clock import Clock, MonotonicClock
from policies.routing.router import Router

FAREWELL = 10.0
"""Seconds that clients may be idle while others serve already. Whoever sends a request in that time gets it answered
with Connection: close; the others find out while nothing is on its way."""


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
    server is told to reload; `member` says which of several processes it is."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        read: Callable[[], Settings] | None = None,
        member: Member | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._allowed = allowance(descriptor_limit(), descriptors_in_use())
        self.unit = build(settings, self._clock, self._allowed.upstreams)
        terms = self.unit.terms
        self.unit.discovery.adopt(terms.discovery, terms.upstream_tls_config)
        self.reloads = Reloads(self.unit, settings, read or (lambda: settings), self._put_in_force)
        channel = Channel(member) if member is not None else None
        self.listening = listening(settings, complain) if member is None else member.listening
        self._owns_sockets = member is None
        self._control = ControlPlane(self.unit, self.reloads, terms.token, channel, self.listening.control)
        self._front = member.front if member is not None else None
        self.arrivals = Arrivals(
            self.unit, self._downstream, self._met_with(terms.server_tls), terms.proxy_protocol
        )
        self._page = None if member is None else member.board.pages[member.index]
        self._evenness = None if member is None else Evenness(member.board, member.index)
        self._neighbours: Neighbours | None = None
        if member is not None:
            self._neighbours = Neighbours(self.unit.router, member.board, member.index, complain)
        self._acceptor: Acceptor | None = None
        self._sweep: Sweep | None = None

    @property
    def address(self) -> ListenAddress:
        """Where it listens, with the port that it got."""
        return self.listening.address

    async def start(self) -> None:
        """Listen and serve."""
        if self.unit.access_log is not None:
            self.unit.access_log.start()
        await self.unit.discovery.start(self.unit.now())
        await self._control.start()  # last: what was ordered of endpoints needs to know them
        self._tell_grace()
        self.unit.pools.routes.sweep(self.unit.now())
        self._acceptor = Acceptor(
            self.listening.traffic, self.unit, self.arrivals, self._client_limit, self._evenness
        )
        self._sweep = Sweep(self.unit, self._look)
        self._sweep.start()
        self._acceptor.start()

    def _look(self, now: float) -> None:
        """With every sweep."""
        if self._acceptor is not None:
            self._acceptor.sweep(now)
        if self._neighbours is not None:
            self._neighbours.sweep(now)
        self.unit.discovery.tick(now)
        self.unit.load_probes.sweep(now)
        self.unit.recording.tick(now)
        self.unit.explanations.tick(now)

    def _tell_grace(self) -> None:
        """The supervisor kills who takes longer, and reads no configuration again."""
        if self._page is not None:
            self._page.grace = self.unit.timeouts.shutdown

    def _met_with(self, tls: ServerTls | None) -> ServerHandshake | None:
        """How a client's handshake begins, None without TLS."""
        return None if tls is None else tls.handshake(self._front)

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
        self.arrivals.tls, self.arrivals.proxies = self._met_with(terms.server_tls), terms.proxy_protocol
        self._control.token = terms.token
        self._tell_grace()
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

    async def stop(self, *, is_patient: bool = False) -> bool:
        """Accept nobody, finish what is in flight within the grace period, close the rest.

        Who is idle leaves at once; where others serve already, `is_patient`, after a time in which one more request is
        answered. Returns whether all was finished.
        """
        unit = self.unit
        grace = unit.timeouts.shutdown
        unit.drain(min(FAREWELL, grace / 2) if is_patient else AT_ONCE)
        for downstream in unit.downstreams:
            downstream.quiet_since = unit.coarse_now  # whatever was before: the time begins here
        if self._owns_sockets and not is_patient:
            self.listening.control.remove()
        self._control.close()
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
        unit.load_probes.stop()
        await self._control.stop()
        await unit.discovery.stop()
        await unit.pools.close()
        if unit.access_log is not None:
            unit.access_log.stop()
        unit.recording.close()
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


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
