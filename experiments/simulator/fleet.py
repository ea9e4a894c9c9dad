"""Workers and balancers of a simulation, and the endpoints of each balancer.

Built from a model and a seed only.
"""

from __future__ import annotations

from math import ceil, inf
from random import Random

from balancer.config.schema.health import health_of
from experiments.generator.demand import Demand
from experiments.simulator.balancer import SimulatedBalancer
from experiments.simulator.client import SimulatedClient
from experiments.simulator.clock import EventQueue, VirtualClock
from experiments.simulator.hedges import Hedges
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.oracles import make_policy
from experiments.simulator.worker import SimulatedWorker
from experiments.simulator.worker_connections import WorkerConnections
from policies.facts import Endpoint
from policies.overload.hedging import Hedging
from policies.routing.router import Router
from workers.service import Profile


class SimulatedFleet:
    """Workers and balancers of a simulation.

    `workers` are keyed by id, in the model's order; `balancers` in order. `label` separates the random streams of
    the policies from those of another run under the same seed, for example of an A/A control.
    """

    def __init__(self, model: Model, seed: int, label: str, clock: VirtualClock, agenda: EventQueue) -> None:
        self.model = model
        self._stream = f"{seed}:{label}"
        self._seed = seed
        self._clock = clock
        self._agenda = agenda
        self._profiles: list[Profile] = list(dict.fromkeys(worker.service for worker in model.workers))
        self.demand = Demand(self._profiles, model.balancers, seed)
        self.client = SimulatedClient(
            clock, agenda, self.demand, max(0.0, model.timeout - model.overhead), model.overhead
        )
        self.workers = {worker.id: self._worker(worker, n) for n, worker in enumerate(model.workers)}
        self._by_number = list(self.workers.values())
        self.began_at = inf
        """When the load began, and with it the steps of fault states."""

        absent = {step.worker for step in model.steps if step.at <= 0 and step.fault_state.is_absent}
        self._present = {worker.id for n, worker in enumerate(model.workers) if n not in absent}
        self.balancers = [self._balancer(number) for number in range(model.balancers)]
        self._worker_connections: dict[tuple[int, str], WorkerConnections] = {}
        self.client.balancers = self.balancers
        self.connect()

    def worker(self, number: int) -> SimulatedWorker:
        return self._by_number[number]

    def _worker(self, worker: WorkerModel, number: int) -> SimulatedWorker:
        steps = [step.fault_state for step in self.model.steps if step.worker == number]
        is_stopped = any(fault_state.pause is not None or fault_state.is_gone for fault_state in steps)
        return SimulatedWorker(
            worker,
            number,
            self._profiles.index(worker.service),
            self._agenda,
            self._seed,
            reports=self.model.reports,
            is_tracked=self.model.reports or worker.discipline == "shared" or is_stopped,
            staleness=self.model.staleness,
        )

    def all_connections(self) -> list[WorkerConnections]:
        """Worker connections of every balancer, including those of replaced endpoints."""
        return [connections for worker in self.workers.values() for connections in worker.worker_connections]

    def endpoints(self) -> list[Endpoint]:
        """Configured endpoints, without those of absent workers."""
        return [
            Endpoint(
                one.id,
                f"http://{one.id}",
                one.region,
                one.weight,
                most_in_flight(self.model, one),
                priority=one.priority,
            )
            for one in self.model.workers
            if one.id in self._present
        ]

    def _balancer(self, number: int) -> SimulatedBalancer:
        model, rules = self.model, self.model.mechanisms
        rng = Random(f"{self._stream}:policy:{number}")
        rng_of_health = Random(f"{self._stream}:fitness:{number}")
        health = health_of(rules.outlier_detection, rules.panic, rules.slow_start, rng_of_health)
        policy = make_policy(self, rng)
        router = Router(
            self.endpoints(),
            policy,
            self._clock,
            Random(f"{self._stream}:fallback:{number}"),
            time_budget=inf,
            in_flight_limit=rules.limits.in_flight,
            concurrency=rules.concurrency.rules(),
            health=health,
        )
        balancer = SimulatedBalancer(router, self._agenda, self.client, rules, model.home)
        if rules.hedging.enabled:
            hedging = Hedging(rules.hedging.quantile, rules.hedging.share, rules.hedging.minimum)
            balancer.hedges = Hedges(router, balancer.race, self._agenda, hedging)
        return balancer

    def set_present(self, worker: str, is_present: bool) -> None:
        """Add the worker to the endpoints of every balancer, or remove it."""
        if is_present:
            self._present.add(worker)
        else:
            self._present.discard(worker)
        for balancer in self.balancers:
            balancer.router.replace(self.endpoints())
        self.connect()

    def set_enabled(self, worker: str, is_enabled: bool) -> None:
        """Enable or drain the worker at every balancer."""
        for balancer in self.balancers:
            if worker in self._present:
                balancer.router.set_enabled(worker, is_enabled)

    def connect(self) -> None:
        """Create each balancer's worker connections for its current endpoints."""
        for number, balancer in enumerate(self.balancers):
            balancer.worker_connections = [
                self._connections(number, balancer, state.id) for state in balancer.router.states
            ]

    def _connections(self, number: int, balancer: SimulatedBalancer, worker_id: str) -> WorkerConnections:
        state = balancer.router.find(worker_id)
        connections = self._worker_connections.get((number, worker_id))
        if connections is None or connections.state is not state:
            worker = self.workers[worker_id]
            connections = WorkerConnections(balancer, worker, state, self._agenda, self.model.mechanisms)
            self._worker_connections[number, worker_id] = connections
            worker.worker_connections.append(connections)
        return connections


def most_in_flight(model: Model, worker: WorkerModel) -> int | None:
    """In-flight limit of an endpoint; for a central queue its slots plus those that cover its round trip."""
    if model.policy["name"] != "oracle-central-queue":
        return worker.max_in_flight
    return worker.slots * (1 + ceil(worker.rtt * worker.speed / worker.service.mean))
