"""A run: a unit, its clients and workers, and what befalls them, from a plan to a verdict.

Rule of this file: the same plan is the same run, turn for turn. What must hold of the unit is looked at after each
turn, what must hold of the whole at the end; the first thing that does not hold is raised, with the time.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from balancer.admin.access import Entrance
from balancer.admin.application import AdminApplication
from balancer.admin.exchange import AdminExchange
from balancer.config.load import Settings
from balancer.config.sections import PolicySpec
from balancer.downstream.connection import DownstreamConnection
from balancer.downstream.timeouts import Sweep
from balancer.http1.request_head import Request
from balancer.server import build
from balancer.upstream.pool import Pool
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint
from tests.balancer.wireless import CLIENTS, AdminStub
from tests.faultsim import faults
from tests.faultsim.clients import Client, ClientEnd
from tests.faultsim.ledger import Ledger
from tests.faultsim.plan import Ask, Caller, Fault, Plan, Reply
from tests.faultsim.reading import Wrong
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import READ, Route, Wire
from tests.faultsim.workers import Host, WorkerEnd

PATIENCE = 400.0
"""Seconds of virtual time within which everybody must have come to an end."""

CLIENTS_DELAY = 0.002
KERNEL = 65_536
"""Bytes that may be on their way to a worker."""


class Log:
    """In the access log's place."""

    def __init__(self) -> None:
        self.entries = 0

    def takes(self, *_: object) -> bool:
        return True

    def add(self, entry: object) -> None:
        self.entries += 1

    def policy_changed(self, now: float, name: str) -> None:
        """No matter."""


class Simulation:
    """A run of `plan`. `note`, if there is one, is told what happens."""

    def __init__(self, plan: Plan, note: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._note = note
        self.timeline = Timeline(self._dial, plan.grain)
        settings = Settings(**plan.settings)
        self.control_plane = build(settings, self.timeline, plan.upstream_limit)
        self.proxy = self.control_plane.proxy
        self.proxy.fresh_id = map(b"id-%x".__mod__, count()).__next__
        self.log = Log()
        if plan.is_logged:
            self.control_plane.set_access_log(cast(Any, self.log))
        self.ledger = Ledger(plan)
        self.ledger.note = self.say if note is not None else None
        self.policy = settings.policy
        self.endpoints = [state.endpoint for state in self.proxy.router.states]
        self.hosts = [
            Host(number, region, Route(plan.delays[region]), plan.idle_closes.get(number))
            for number, region in enumerate(plan.hosts)
        ]
        self.client_route = Route(CLIENTS_DELAY)
        self._states: list[EndpointState] = []
        self._pools: list[Pool] = []
        self._know()
        self._wires: list[weakref.ref[Wire]] = []
        self._sweep = Sweep(self.proxy, self._look_closely, date=lambda: "Thu, 01 Jan 1970 00:00:01 GMT")
        self._most_held = 2 * (settings.limits.buffer + READ) + KERNEL
        self._is_stopped = False

    # --- what happens

    def say(self, what: str) -> None:
        """For the journal."""
        if self._note is not None:
            self._note(f"{self.timeline.now() - 1000:10.6f} {what}")

    def run(self) -> None:
        """All of it. Raises `Wrong`, `Escaped`, and whatever a protocol raises."""
        plan, timeline = self.plan, self.timeline
        with timeline:
            self._sweep.start()
            for caller in plan.callers:
                timeline.after(caller.starts, Client(caller, self.ledger, self._connect).go_on)
            for fault in plan.faults:
                timeline.after(fault.at, self._befall, fault)
            if plan.stops_at is not None:
                timeline.after(plan.stops_at, self._stop)
            self._until_everybody_is_done()
            self._until_all_is_quiet()
            if plan.stops_at is None:
                self._serves_again()
            self._leaves_nothing()

    def _befall(self, fault: Fault) -> None:
        self.say(f"fault: {fault}")
        faults.begin(self, fault)

    def heal(self, fault: Fault, end: Callable[[], None]) -> None:
        """A fault's time is over."""
        self.say(f"over: {fault}")
        end()

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Other endpoints."""
        self.endpoints = endpoints
        self.control_plane.replace_endpoints(endpoints)
        self._know()

    def apply_policy(self, spec: PolicySpec) -> None:
        """Another policy."""
        self.policy = spec
        self.control_plane.apply_policy(spec)

    def _know(self) -> None:
        for state in self.proxy.router.states:
            if not any(state is known for known in self._states):
                self._states.append(state)
        for pool in self.proxy.pools.by_id.values():
            if not any(pool is known for known in self._pools):
                self._pools.append(pool)

    # --- connections

    def _admin_exchange(self, connection: DownstreamConnection, request: Request) -> AdminExchange:
        return AdminExchange(connection, cast(AdminApplication, AdminStub()), request, Entrance.TRAFFIC)

    def _connect(self, client: Client) -> None:
        if self._is_stopped:
            client.refused()
            return
        number = len(self._wires)
        end = ClientEnd(self.timeline, client, self.client_route, number)
        protocol = DownstreamConnection(self.proxy, self._admin_exchange)
        self._wire(end, protocol, (CLIENTS, 20_000 + number), client.caller.room)
        end.begin()

    def _wire(self, end: Any, protocol: asyncio.Protocol, address: tuple[str, int], room: int) -> Wire:
        end.note = self.ledger.note
        wire = Wire(self.timeline, end, protocol, address, room)
        end.wire = wire
        self._wires.append(weakref.ref(wire))
        protocol.connection_made(wire)
        return wire

    def _dial(self, factory: Callable[[], asyncio.Protocol], name: str, port: int) -> asyncio.Future[Any]:
        connecting = self.timeline.create_future()
        host = self.hosts[int(name.rpartition(".")[2])]
        self.timeline.after(host.route.delay * 2, self._dialled, factory, host, connecting)
        return connecting

    def _dialled(
        self, factory: Callable[[], asyncio.Protocol], host: Host, connecting: asyncio.Future[Any]
    ) -> None:
        if connecting.done() or host.dialling == "hang":
            return
        if not (host.route.passes_in and host.route.passes_out):
            host.route.wait(lambda: self._dialled(factory, host, connecting))
        elif host.dialling == "refuse":
            connecting.set_exception(ConnectionRefusedError(111, "Connection refused"))
        else:
            protocol = factory()
            end = WorkerEnd(self.timeline, host, len(self._wires), self.ledger)
            wire = self._wire(end, protocol, (f"10.0.0.{host.number}", 80), KERNEL)
            connecting.set_result((wire, protocol))
            if host.dialling == "slam":
                end.slam()

    # --- stopping, in the order of `Server.stop`

    def _stop(self) -> None:
        self.say("stop")
        self._is_stopped = True
        proxy = self.proxy
        proxy.drain()
        for downstream in list(proxy.downstreams):
            downstream.close_if_idle(proxy.now(), -1.0)
        self.timeline.after(2.0, self._end_grace)

    def _end_grace(self) -> None:
        self.say("the grace period is over")
        proxy = self.proxy
        proxy.queue.close()
        proxy.tunnels.abort()
        for downstream in list(proxy.downstreams):
            downstream.abort()
        for pool in self._pools:
            pool.close()

    # --- what must hold

    def _look(self) -> None:
        """After each turn."""
        in_flight = 0
        for state in self._states:
            here = state.in_flight
            if here < 0:
                raise Wrong(f"{state.id} has {here} in flight")
            in_flight += here
        proxy = self.proxy
        router = proxy.router
        if in_flight != router.in_flight:
            raise Wrong(f"{in_flight} in flight at the endpoints, {router.in_flight} in all")
        leased = opening = idle = 0
        for pool in self._pools:
            leased += pool.leased
            opening += pool.opening
            idle += pool.idle
        if leased + opening + idle != proxy.pools.open_connections:
            raise Wrong(f"{proxy.pools.open_connections} connections, and {self._pools}")
        if self.timeline.is_calm and not leased <= in_flight <= leased + opening:
            raise Wrong(f"{in_flight} requests in flight on {self._pools}")

    def _look_closely(self, now: float) -> None:
        """In each sweep."""
        proxy = self.proxy
        self.control_plane.checks.sweep(now)
        if len(proxy.queue) > self.plan.settings.get("limits", {}).get("queue", 10_000):
            raise Wrong(f"{len(proxy.queue)} wait")
        if proxy.router.has_room and len(proxy.queue):
            raise Wrong(f"{len(proxy.queue)} wait, and there is room")
        if self.timeline.is_calm and proxy.in_flight > proxy.router.in_flight + len(proxy.queue):
            raise Wrong(
                f"of {proxy.in_flight} requests some are neither sent nor waiting: {len(proxy.queue)} wait"
            )
        for wire in self._wires:
            one = wire()
            if one is not None and one.get_write_buffer_size() > self._most_held:
                raise Wrong(f"{one.get_write_buffer_size()} bytes are held for one peer")

    def _until_everybody_is_done(self) -> None:
        timeline, ledger = self.timeline, self.ledger
        until = timeline.now() + PATIENCE
        while len(ledger.ends) < len(ledger.asks):
            if timeline.now() > until:
                raise Wrong(
                    f"after {PATIENCE:g} s these have neither an answer nor an end: {ledger.left()[:5]}"
                )
            timeline.run_until(timeline.now() + 1.0, self._look)

    def _until_all_is_quiet(self) -> None:
        """Faults end, and what hangs has had its time."""
        timeline = self.timeline
        over = [fault.at + fault.lasts for fault in self.plan.faults]
        longest = max(self.plan.settings["timeouts"].values())
        # Connections whose bytes have vanished look idle: they have to age out before all is well.
        patience = max(min(longest, 5.0), self.plan.settings.get("pool", {}).get("idle_timeout", 0.0))
        until = max([1000.0 + at for at in over] + [timeline.now()]) + patience + 1.0
        timeline.run_until(until, self._look)

    def _serves_again(self) -> None:
        """Nothing has gone wrong for a while: whoever asks gets an answer."""
        first = 1 + max(self.ledger.asks, default=0)
        asks = [
            Ask(first + turn, b"GET", Reply(size=20), closes=turn % 2 == 0)
            for turn in range(self.plan.probes)
        ]
        self.ledger.asks |= {ask.number: ask for ask in asks}
        before = self.ledger.answered
        for host in self.hosts:
            host.idle_close = None
        Client(Caller(-1, 0.0, 1, 1 << 20, 0.0, asks), self.ledger, self._connect).go_on()
        self._until_everybody_is_done()
        if self.ledger.answered != before + len(asks):
            raise Wrong(f"all is well again, and {[(ask, self.ledger.ends[ask.number]) for ask in asks]}")

    def _leaves_nothing(self) -> None:
        """Everybody has gone: each request was settled, and nothing refers to a connection."""
        proxy, timeline = self.proxy, self.timeline
        proxy.pools.routes.watch.stop()
        timeline.run_until(
            timeline.now() + proxy.pools.limits.idle + 2 * proxy.timeouts.linger + 1.0, self._look
        )
        if proxy.downstreams or proxy.in_flight or len(proxy.queue):
            raise Wrong(
                f"left: {len(proxy.downstreams)} clients, {proxy.in_flight} in flight, {len(proxy.queue)} queued"
            )
        if proxy.pools.open_connections:
            raise Wrong(f"left: {self._pools}")
        settled = sum(sum(state.outcomes.values()) for state in self._states)
        if settled != proxy.router.routed or proxy.router.in_flight:
            raise Wrong(f"{proxy.router.routed} were routed, {settled} settled")
        if self.plan.is_logged and self.log.entries < self.ledger.answered:
            raise Wrong(f"{self.log.entries} log entries of {self.ledger.answered} answers")
        self._sweep.stop()
        tasks = asyncio.all_tasks(timeline.loop)
        if tasks:
            raise Wrong(f"left: {tasks}")
        self._refers_to_nothing()

    def _refers_to_nothing(self) -> None:
        for host in self.hosts:
            host.ends.clear()
        self.timeline.forget()
        for generation in (0, 1, 2):
            if not any(wire() is not None for wire in self._wires):
                return
            gc.collect(generation)
        left = [gc.get_referrers(wire) for one in self._wires if (wire := one()) is not None]
        if left:
            raise Wrong(f"still referred to: {left[:2]}")
