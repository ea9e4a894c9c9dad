"""One run: a balancer, its clients and workers, and faults, from a plan to a verdict.

The same plan gives the same run, iteration for iteration. Invariants of the balancer are checked after each loop
iteration, those of the whole at the end; the first violation is raised, with the time.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any, cast

from balancer.cluster.cluster import Cluster
from balancer.cluster.registry import by_id
from balancer.config.loading import Settings
from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.log import LogConfig
from balancer.config.schema.policy_spec import PolicySpec
from balancer.control.admin.access import Entrance
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.exchange import AdminExchange
from balancer.downstream.connection import Http1Connection
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.timeouts import Sweep
from balancer.exchange.exchange import Exchange
from balancer.exchange.exchange_state import State
from balancer.http.h1.request_head import Request
from balancer.http.h2.limits import Http2Limits
from balancer.log.access_log import AccessLog
from balancer.log.output import LogOutput
from balancer.process.server import build
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.pool import Pool
from policies.endpoint.state import EndpointState
from tests.faultsim import faults
from tests.faultsim.clients import Client, ClientEnd
from tests.faultsim.draw import MOST_BUFFERED
from tests.faultsim.ledger import Ledger
from tests.faultsim.plan import Fault, Plan, PlannedClient, PlannedRequest, Reply
from tests.faultsim.reading import Violation
from tests.faultsim.stream_checks import check_streams, has_open_streams
from tests.faultsim.stream_clients import StreamClientEnd
from tests.faultsim.stream_workers import StreamWorkerEnd
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import READ, Route, Wire
from tests.faultsim.workers import Host, WorkerEnd
from tests.support.wireless import CLIENTS, AdminStub, charged, miscounted

PATIENCE = 400.0
"""Seconds of virtual time within which every request must have ended."""

RESETS_TAKE = 5.0
"""Seconds within which every stream has ended at both ends after the faults."""

CLIENTS_DELAY = 0.002
KERNEL = 65_536
"""Bytes that may be in flight to a worker."""


def receiving(cluster: Cluster) -> int:
    """Number of requests whose body is received whole before an endpoint is asked."""
    handlers = []
    for downstream in cluster.process.downstreams:
        if isinstance(downstream, Http2Connection):
            handlers += [stream._handler for stream in downstream._streams.values()]
        else:
            handlers.append(getattr(downstream, "_answering", None))
    return sum(isinstance(one, Exchange) and one.state is State.RECEIVING for one in handlers)


class Simulation:
    """A run of `plan`; `note` gets a line per event."""

    def __init__(self, plan: Plan, note: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._note = note
        self.timeline = Timeline(self._dial, plan.grain)
        settings = Settings(**plan.settings)
        self.control_plane = build(settings, self.timeline, plan.upstream_limit)
        self.cluster = self.control_plane.cluster
        self.cluster.process.own_name = b"steelyard-simulated"
        self.cluster.process.fresh_id = map(b"id-%x".__mod__, count()).__next__
        self.log = AccessLog(
            LogOutput(None), LogConfig(access="json", queue=1_000_000), offset=0.0, rng=Random(0)
        )  # its thread does not run, so all entries wait
        if plan.is_logged:
            self.cluster.process.access_log = self.log
            self.control_plane.apply_access_log()
        self.ledger = Ledger(plan)
        self.ledger.note = self.say if note is not None else None
        self.policy = settings.policy
        self.endpoints: Sequence[EndpointConfig] = settings.endpoints  # those of the start
        self.hosts = [
            Host(
                number,
                region,
                Route(plan.delays[region]),
                plan.idle_closes.get(number),
                plan.http2_hosts.get(number),
            )
            for number, region in enumerate(plan.hosts)
        ]
        self.client_route = Route(CLIENTS_DELAY)
        self._states: list[EndpointState] = []
        self._pools: list[Pool] = []
        self._remember()
        self._wires: list[weakref.ref[Wire]] = []
        self._sweep = Sweep(
            self.cluster.process, self._check_closely, date=lambda: "Thu, 01 Jan 1970 00:00:01 GMT"
        )
        self._most_held = 2 * (settings.limits.buffer + READ) + KERNEL + MOST_BUFFERED
        self._kept = 0  # of the budget of buffering, when it was last checked
        self._is_stopped = False

    # --- events

    def say(self, what: str) -> None:
        if self._note is not None:
            self._note(f"{self.timeline.now() - 1000:10.6f} {what}")

    def run(self) -> None:
        """Run everything. Raises `Violation`, `Escaped`, and whatever a protocol raises."""
        plan, timeline = self.plan, self.timeline
        with timeline:
            self._sweep.start()
            for client in plan.clients:
                timeline.after(client.starts, Client(client, self.ledger, self._connect).go_on)
            for fault in plan.faults:
                timeline.after(fault.at, self._begin_fault, fault)
            if plan.stops_at is not None:
                timeline.after(plan.stops_at, self._stop)
            self._run_until_all_requests_ended()
            self._run_until_faults_ended()
            if plan.stops_at is None:
                self._check_that_it_serves()
            self._check_that_nothing_is_left()

    def _begin_fault(self, fault: Fault) -> None:
        self.say(f"fault: {fault}")
        faults.begin(self, fault)

    def heal(self, fault: Fault, end: Callable[[], None]) -> None:
        self.say(f"over: {fault}")
        end()

    def replace(self, endpoints: Sequence[EndpointConfig]) -> None:
        """Replace the endpoints and their transports, as the registry does."""
        self.cluster.pools.configs = by_id(endpoints)
        self.control_plane.replace_endpoints([endpoint.endpoint() for endpoint in endpoints])
        self._remember()

    def apply_policy(self, spec: PolicySpec) -> None:
        self.policy = spec
        self.control_plane.apply_policy(spec)

    def _remember(self) -> None:
        for state in self.cluster.router.states:
            if not any(state is known for known in self._states):
                self._states.append(state)
        for pool in self.cluster.pools.by_id.values():
            if not any(pool is known for known in self._pools):
                self._pools.append(pool)

    # --- connections

    def _admin_exchange(self, connection: Http1Connection, request: Request) -> AdminExchange:
        return AdminExchange(connection, cast(AdminApplication, AdminStub()), request, Entrance.TRAFFIC)

    def _connect(self, client: Client) -> None:
        if self._is_stopped:
            client.refused()
            return
        number = len(self._wires)
        kind = StreamClientEnd if client.plan.is_http2 else ClientEnd
        end = kind(self.timeline, client, self.client_route, number)
        protocol = Http1Connection(self.cluster, self._admin_exchange, None, self._http2)
        self._wire(end, protocol, (CLIENTS, 20_000 + number), client.plan.room)
        end.begin()

    def _http2(self) -> Http2Connection:
        return Http2Connection(self.cluster, cast(Http2Limits, self.cluster.http2), self._admin_exchange)

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
            kind = StreamWorkerEnd if host.http2 else WorkerEnd
            end = kind(self.timeline, host, len(self._wires), self.ledger)
            wire = self._wire(end, protocol, (f"10.0.0.{host.number}", 80), KERNEL)
            connecting.set_result((wire, protocol))
            if host.dialling == "slam":
                end.slam()

    # --- stopping, in the order of `Server.stop`

    def _stop(self) -> None:
        self.say("stop")
        self._is_stopped = True
        cluster = self.cluster
        cluster.process.drain()
        for downstream in list(cluster.process.downstreams):
            downstream.close_if_idle(cluster.now(), -1.0)
        self.timeline.after(2.0, self._end_grace)

    def _end_grace(self) -> None:
        self.say("the grace period is over")
        cluster = self.cluster
        cluster.close()
        cluster.process.abort()
        self._sweep.stop()  # before the pools close: it opens connections to unreachable endpoints
        self.control_plane.checks.stop()
        self.timeline.call_soon(self._close_pools)  # the server stops its admin interface first

    def _close_pools(self) -> None:
        for pool in self._pools:
            pool.close()

    # --- invariants

    def _check(self) -> None:
        """Invariants after each loop iteration."""
        in_flight = 0
        for state in self._states:
            here = state.in_flight
            if here < 0:
                raise Violation(f"{state.id} has {here} in flight")
            in_flight += here
        cluster = self.cluster
        router = cluster.router
        if in_flight != router.in_flight:
            raise Violation(f"{in_flight} in flight at the endpoints, {router.in_flight} in all")
        leased = opening = idle = 0
        streams = waiting = (
            0  # streams beside the first one of each connection, and requests that wait for one
        )
        for pool in self._pools:
            leased += pool.leased
            opening += pool.opening
            idle += pool.idle
            if isinstance(pool, MultiplexedPool):
                streams += pool.streams - pool.leased
                waiting += len(pool._waiters)
        if leased + opening + idle != cluster.pools.open_connections:
            raise Violation(f"{cluster.pools.open_connections} connections, and {self._pools}")
        if cluster.process.buffer_budget.kept != self._kept:
            self._check_kept()
        if (
            self.timeline.is_calm
            and not leased + streams <= in_flight <= leased + streams + opening + waiting
        ):
            raise Violation(f"{in_flight} requests in flight on {self._pools}")

    def _check_kept(self) -> None:
        """The bytes kept for slow clients are those that their bodies are charged with."""
        self._kept = kept = self.cluster.process.buffer_budget.kept
        if kept != charged(self.cluster):
            raise Violation(f"{kept} bytes are kept, and {charged(self.cluster)} charged")

    def _check_closely(self, now: float) -> None:
        """Invariants of each sweep."""
        cluster = self.cluster
        cluster.sweep(now)
        self._check_kept()
        if wrong := miscounted([cluster]):
            raise Violation(wrong)
        self.control_plane.checks.sweep(now)
        if len(cluster.queue) > self.plan.settings.get("limits", {}).get("queue", 10_000):
            raise Violation(f"{len(cluster.queue)} wait")
        if cluster.router.has_room and len(cluster.queue):
            raise Violation(f"{len(cluster.queue)} wait, and there is room")
        served = cluster.router.in_flight + len(cluster.queue) + receiving(cluster)
        if self.timeline.is_calm and cluster.process.in_flight > served:
            number = cluster.process.in_flight
            raise Violation(
                f"of {number} requests some are neither sent nor waiting: {len(cluster.queue)} wait"
            )
        if self.timeline.is_calm:
            check_streams(cluster, self._pools)
        for wire in self._wires:
            one = wire()
            if one is not None and one.get_write_buffer_size() > self._most_held:
                raise Violation(f"{one.get_write_buffer_size()} bytes are held for one peer")

    def _run_until_all_requests_ended(self) -> None:
        timeline, ledger = self.timeline, self.ledger
        until = timeline.now() + PATIENCE
        while len(ledger.ends) < len(ledger.requests):
            if timeline.now() > until:
                raise Violation(
                    f"after {PATIENCE:g} s these have neither an answer nor an end: {ledger.left()[:5]}"
                )
            timeline.run_until(timeline.now() + 1.0, self._check)

    def _run_until_faults_ended(self) -> None:
        """Run until all faults have ended and hanging requests have timed out."""
        timeline = self.timeline
        over = [fault.at + fault.lasts for fault in self.plan.faults]
        longest = max(self.plan.settings["timeouts"].values())
        # Connections whose bytes were lost look idle: they must age out first.
        patience = max(min(longest, 5.0), self.plan.settings.get("pool", {}).get("idle_timeout", 0.0))
        until = max([1000.0 + at for at in over] + [timeline.now()]) + patience + 1.0
        timeline.run_until(until, self._check)
        until += RESETS_TAKE
        while has_open_streams(self.cluster, self.hosts):
            if timeline.now() > until:
                raise Violation("streams are open, and all requests have ended")
            timeline.run_until(timeline.now() + 0.1, self._check)

    def _check_that_it_serves(self) -> None:
        """Without faults every request gets its response."""
        first = 1 + max(self.ledger.requests, default=0)
        requests = [
            PlannedRequest(first + turn, b"GET", Reply(size=20), closes=turn % 2 == 0)
            for turn in range(self.plan.probes)
        ]
        self.ledger.requests |= {request.number: request for request in requests}
        before = self.ledger.answered
        for host in self.hosts:
            host.idle_close = None
        Client(PlannedClient(-1, 0.0, 1, 1 << 20, 0.0, requests), self.ledger, self._connect).go_on()
        self._run_until_all_requests_ended()
        if self.ledger.answered != before + len(requests):
            raise Violation(
                f"all is well again, and {[(request, self.ledger.ends[request.number]) for request in requests]}"
            )

    def _check_that_nothing_is_left(self) -> None:
        """All clients have left: each request was settled, and nothing refers to a connection."""
        cluster, timeline = self.cluster, self.timeline
        cluster.pools.routes.watch.stop()
        while not self._is_stopped and any(state.record.ends_by_connect for state in cluster.router.states):
            timeline.run_until(timeline.now() + 1.0, self._check)  # until then connects are tried
        timeline.run_until(
            timeline.now() + cluster.pools.settings.pool.idle_timeout + 2 * cluster.timeouts.linger + 1.0,
            self._check,
        )
        process, queued = cluster.process, len(cluster.queue)
        if process.downstreams or process.in_flight or queued:
            number = len(process.downstreams)
            raise Violation(f"left: {number} clients, {process.in_flight} in flight, {queued} queued")
        if process.buffer_budget.kept or len(process.usages):
            raise Violation(
                f"left: {process.buffer_budget.kept} bytes, {len(process.usages)} records of clients"
            )
        if cluster.pools.open_connections:
            raise Violation(f"left: {self._pools}")
        settled = sum(sum(state.outcomes.values()) for state in self._states)
        if settled != cluster.router.routed or cluster.router.in_flight:
            raise Violation(f"{cluster.router.routed} were routed, {settled} settled")
        if self.plan.is_logged and self.log.waiting < self.ledger.answered:
            raise Violation(f"{self.log.waiting} log entries of {self.ledger.answered} answers")
        self._sweep.stop()
        tasks = asyncio.all_tasks(timeline.loop)
        if tasks:
            raise Violation(f"left: {tasks}")
        self._check_references()

    def _check_references(self) -> None:
        for host in self.hosts:
            host.ends.clear()
        self.timeline.forget()
        for generation in (0, 1, 2):
            if not any(wire() is not None for wire in self._wires):
                return
            gc.collect(generation)
        left = [gc.get_referrers(wire) for one in self._wires if (wire := one()) is not None]
        if left:
            raise Violation(f"still referred to: {left[:2]}")
