"""Oracle policies, which use information that no balancer has, as bounds for other policies. Simulator only.

An oracle implements the policy interface and is constructed with the simulated fleet.

| name | rule |
|---|---|
| `oracle-least-work` | the worker at which this request would begin first, and then end first |
| `oracle-least-work-of-two` | the same among `choices` drawn at random |
| `oracle-central-queue` | M/M/n: every worker takes as many as it has slots, the others wait in one queue |
| `oracle-static-split` | the best constant shares for the given rate, each worker an M/M/1 |
| `oracle-informed` | the worker of least expected cost in its present state, see `informed.py` |
| `oracle-clairvoyant` | the worker that answers this request first, see `clairvoyant.py` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

from experiments.errors import BadInputError
from experiments.scenario.oracles import ORACLE_NAMES
from experiments.simulator.clairvoyant import Clairvoyant
from experiments.simulator.informed import Informed
from experiments.simulator.theory import static_split
from experiments.simulator.worker import SimulatedWorker
from policies import registry
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import BadPolicyOption, PoliciesError
from policies.facts import RequestFacts
from policies.policy import Policy

if TYPE_CHECKING:
    from experiments.simulator.fleet import SimulatedFleet


class LeastWork:
    """Least remaining work. Requests on the way to a worker count with the mean service time."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._workers = fleet.workers
        for worker in fleet.workers.values():
            worker.expect()

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the lowest expected time for this request. O(endpoints)."""
        return self._least(available, now)

    def _least(self, drawn: Sequence[EndpointState], now: float) -> EndpointState:
        return min(drawn, key=lambda state: self._price(self._workers[state.id], now))

    def _price(self, worker: SimulatedWorker, now: float) -> float:
        service = worker.model.service.mean * worker.pace
        ahead = worker.remaining(now) + len(worker.in_transit()) * service / worker.model.slots
        return worker.rtt + service + max(0.0, ahead - worker.half)


class LeastWorkOfFew(LeastWork):
    """Least remaining work among `choices` workers drawn at random (Hellemans and Van Houdt)."""

    def __init__(self, fleet: SimulatedFleet, rng: Random, *, choices: int = 2) -> None:
        super().__init__(fleet, rng)
        self._sample = rng.sample
        self._choices = choices

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the worker with the least work among those drawn. O(choices)."""
        return self._least(self._sample(available, min(self._choices, len(available))), now)


class CentralQueue:
    """Pick the fastest worker with a free slot. Its endpoints are limited by `most_in_flight`."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self._workers = fleet.workers

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick the available worker with the shortest round trip plus service time. O(endpoints)."""
        return min(available, key=lambda state: self._price(self._workers[state.id]))

    def _price(self, worker: SimulatedWorker) -> float:
        return worker.rtt + worker.model.service.mean * worker.pace


class StaticSplit:
    """Random choice with constant shares, optimal for `rate` requests per second."""

    def __init__(self, fleet: SimulatedFleet, rng: Random, *, rate: float) -> None:
        workers = fleet.workers
        mu = [w.model.slots * w.model.speed / w.model.service.mean for w in workers.values()]
        shares, _ = static_split(mu, rate, [w.rtt for w in workers.values()])
        self._until = dict(zip(workers, accumulate(shares), strict=True))
        self._random = rng.random

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Draw a worker by its share; an unavailable one falls to its successor. O(endpoints)."""
        drawn = self._random() * max(self._until.values())
        return next((state for state in available if drawn < self._until[state.id]), available[-1])


CONSTRUCTORS: tuple[Callable[..., Policy], ...] = (
    LeastWork,
    LeastWorkOfFew,
    CentralQueue,
    StaticSplit,
    Informed,
    Clairvoyant,
)
ORACLES = dict(zip(ORACLE_NAMES, CONSTRUCTORS, strict=True))


def make_policy(fleet: SimulatedFleet, rng: Random) -> Policy:
    """Construct the policy of the fleet's model. Raises `BadInputError`."""
    spec: dict[str, Any] = dict(fleet.model.policy)
    name = spec.pop("name")
    if name in ORACLES:
        try:
            return ORACLES[name](fleet, rng, **spec)
        except TypeError as error:
            raise BadInputError(f"policy '{name}': {error}") from None
    try:
        return registry.make(name, spec, rng)
    except (PoliciesError, BadPolicyOption) as error:
        raise BadInputError(str(error)) from None
