"""Runner of `experiments load`: each run is a load on a service that runs already.

Where policies are compared, the run's policy is put in force before its warm-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from experiments.errors import FleetFailedError
from experiments.generator.arrivals import first_instants
from experiments.generator.client import Sender
from experiments.generator.connections import Connections
from experiments.generator.generator import SPARE_CONNECTIONS, Generator, InFlightRequest, ignore_start
from experiments.generator.ledger import Ledger
from experiments.measured.runner import conclude, run_loop
from experiments.results.directory import PlannedRun
from experiments.run_data import Floats, Run, WorldName
from experiments.running.runner import Interrupted, Observer
from experiments.scenario.load import Load
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import ServiceScenario
from experiments.scenario.streams import stream
from experiments.service.target import Destination, PreparedRequest
from experiments.switchback.turns import PolicyTurns, status_of


class ServiceRunner:
    """Measures planned runs on `destinations`, by label of the entry. Implements `Runner`."""

    name: Final[WorldName] = "measured"

    def __init__(self, destinations: Mapping[str, Destination], turns: PolicyTurns | None = None) -> None:
        self._destinations = destinations
        self._turns = turns

    def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
        """Measure one planned run.

        Raises `ExperimentError`, `Interrupted`, and before the load `KeyboardInterrupt`.
        """
        assert isinstance(scenario, ServiceScenario)
        return run_loop(self._measure(scenario, planned, observer))

    async def _measure(self, scenario: ServiceScenario, planned: PlannedRun, observer: Observer) -> Run:
        entry = scenario.entry(planned.label)
        if self._turns is not None:
            if self._turns.rails is None:
                first = self._generator(scenario, planned, scenario.load)
                await self._turns.observe_initial(partial(first.run, 1))
            await self._turns.apply(entry.policy.model_dump())
        warm_requests = await self._warm_up(scenario, planned)
        generator = self._generator(scenario, planned, scenario.load)
        observer.load_started(generator.ledger)
        status: dict[str, Any] = {}
        try:
            if self._turns is None:
                await generator.run(spare_of(scenario))
            else:
                window = await self._turns.guarded(partial(generator.run, spare_of(scenario)))
                status = status_of(entry.policy.model_dump(), window)
        except asyncio.CancelledError:
            raise Interrupted(conclude(scenario, entry, planned, generator.ledger, {}, ())) from None
        run = conclude(scenario, entry, planned, generator.ledger, status, ())
        return Run(run.facts.model_copy(update={"warmup_requests": warm_requests}), run.samples)

    async def _warm_up(self, scenario: ServiceScenario, planned: PlannedRun) -> int:
        """Offer the same rate for a short time; returns the number of requests."""
        seconds = scenario.service.warmup
        if not seconds:
            return 0
        load = Load(mode="open", arrivals="constant", rate=scenario.load.rate, duration=seconds)
        generator = self._generator(scenario, planned, load)
        await generator.run(spare_of(scenario))
        return generator.count

    def _generator(self, scenario: ServiceScenario, planned: PlannedRun, load: Load) -> ServiceGenerator:
        instants = first_instants(load, planned.seed, 1.0)
        destination = self._destinations[planned.label]
        most = scenario.service.connections
        return ServiceGenerator(destination, instants, scenario.timeout, most, planned.seed)


def spare_of(scenario: ServiceScenario) -> int:
    """Connections to open before a run."""
    return min(SPARE_CONNECTIONS, scenario.service.connections)


IDEMPOTENT = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE")
MOST_REFUSALS = 8
"""Times that a request is sent again because the server did not process it: at once, then after pauses that double."""

PAUSE = 0.005
"""Seconds of the first pause."""


class ServiceRequest(InFlightRequest):
    """One request to the service."""

    __slots__ = ("_refusals", "_was_repeated")

    _generator: ServiceGenerator

    def __init__(self, generator: Generator, number: int) -> None:
        super().__init__(generator, number)
        generator.ledger.sent_at[number] = time.monotonic()
        self._was_repeated = False
        self._refusals = 0

    def answer_failed(self) -> None:
        sender = self._sender
        if self.has_ended or sender is None or not (sender.was_refused or self._may_be_repeated(sender)):
            super().answer_failed()
            return
        self._sender, connections = None, self._generator.connections
        if not sender.was_refused:
            self._was_repeated = True
            connections.lease_new(self.depart, self.refused)
        elif self._refusals < MOST_REFUSALS:
            pause = PAUSE * (2**self._refusals - 1)
            self._refusals += 1
            asyncio.get_running_loop().call_later(pause, self._repeat)
        else:
            self.refused()

    def _repeat(self) -> None:
        if not (self.has_ended or self._generator.is_over):
            self._generator.connections.lease(self.depart, self.refused)

    def _may_be_repeated(self, sender: Sender) -> bool:
        has_idled = sender.has_died and sender.has_answered and not self._was_repeated
        return has_idled and self._generator.request(self.number).method in IDEMPOTENT


class ServiceGenerator(Generator):
    """Sends requests to `destination` at `instants`, over at most `most` connections; an open loop.

    A request counts as sent when the generator takes it up, so opening or waiting for a connection belongs to its
    service time. A request on a connection that the server closes while it is idle is sent once more on another, as
    HTTP clients do (RFC 9112 section 9.3.1), if its method is idempotent; over HTTP/2, up to `MOST_REFUSALS` times,
    when GOAWAY or REFUSED_STREAM says that it was not processed. Which of several requests is sent is drawn by `seed`,
    so that all entries of a block send the same.
    """

    flight = ServiceRequest

    def __init__(
        self, destination: Destination, instants: Floats, timeout: float, most: int, seed: int = 0
    ) -> None:
        pool = Connections(
            *destination.address, SPARE_CONNECTIONS, destination.tls, most, destination.is_http2
        )
        super().__init__(destination.address, "load", (), instants, len(instants), timeout, connections=pool)
        kinds, rng = len(destination.requests), stream("requests", seed)
        self._requests = destination.requests
        self._drawn: list[int] = rng.choice(kinds, len(instants), p=destination.shares).tolist()

    async def run(self, connections: int, begun: Callable[[float], None] = ignore_start) -> Ledger:
        """Open `connections` as far as the service accepts them, send all requests, wait for every end."""
        with suppress(FleetFailedError):
            await self.connections.open(connections)
        return await super().run(0, begun)

    def request(self, number: int) -> PreparedRequest:
        return self._requests[self._drawn[number]]

    def send(self, number: int, sender: Sender, receiver: InFlightRequest) -> None:
        request = self.request(number)
        sender.send(request.head, receiver, request.method, request.body)
