"""Rejections end after a short overload: by the default policy in pools of 1 to 64 slots, and by other mechanisms."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from balancer.cluster.admission import Admission, AdmissionRules
from balancer.cluster.wait_queue import RequestQueue
from balancer.config.schema.queue import LevelConfig
from balancer.errors import Shed
from experiments.measured.runner import measure
from experiments.results.directory import plan_block
from experiments.run_data import Samples
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from policies.algorithms.least_in_flight import LeastInFlight
from policies.contract import Trial, endpoints
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.facts import OutcomeKind
from policies.routing.router import Router

SERVICE = 0.05
ENDS = 20.0
"""Seconds after which the burst has ended."""

QUIET = ENDS + 30.0

POOLS = [(1, 1), (4, 1), (1, 4), (16, 1), (4, 4), (1, 16)]
"""Workers, and slots of each."""


def scenario_of(
    pool: tuple[int, int], load: float, burst: float, *,
    policy: str = "steelyard", start: float = 5.0, duration: float = 65.0, timeout: float = 5.0,
    balancers: int = 1, balancer: dict[str, Any] | None = None, **region: float,
) -> Scenario:  # fmt: skip
    """A pool whose `load` and `burst` are relative to its capacity; the burst begins at `start`."""
    workers, slots = pool
    rates = {"rate": load * workers * slots / SERVICE, "peak": burst * workers * slots / SERVICE}
    span = {"start": start, "lasts": ENDS - start, "duration": duration}
    home = {"name": "home", "workers": workers, "slots": slots, "rtt": 0.002, "service": "exponential:50ms"}
    names = {"name": "pool", "question": "Do rejections end?", "baseline": "one", "home_region": "home"}
    numbers = {"slo": 0.5, "timeout": timeout, "warmup": 20, "blocks": 1, "balancers": balancers}
    tables = {
        "load": {"mode": "open", "arrivals": "burst"} | span | rates,
        "entries": [{"label": "one", "policy": policy}],
        "regions": [home | region],
        "balancer": balancer or {},
    }
    return Scenario.model_validate(names | numbers | tables)


def run(pool: tuple[int, int], load: float, burst: float, seed: int = 1, **changes: Any) -> Samples:
    scenario = scenario_of(pool, load, burst, **changes)
    return simulate(scenario, scenario.entries[0], 0, 0, seed).samples


def rejected(samples: Samples, since: float, until: float = 1e9) -> int:
    """Requests answered 503, of those sent in this time."""
    is_within = (samples.scheduled_at >= since) & (samples.scheduled_at < until)
    return int(((samples.status == 503) & is_within).sum())


QUICK: list[Any] = [((4, 1), 0.9, 2.0, {})]
LOADS, BURSTS = (0.5, 0.75, 0.9), (1.5, 2.0, 4.0)
MANY: list[Any] = [
    *((pool, 0.75, 2.0, {}) for pool in ((4, 1), (1, 4))),
    *((pool, load, BURSTS[(i + j) % 3], {}) for i, pool in enumerate(POOLS) for j, load in enumerate(LOADS)),
    ((64, 1), 0.9, 2.0, {}),
    *product([(4, 4)], (0.75, 0.9), [2.0], [{"balancers": 4}, {"rtt": 0.1}]),
]
"""Each two values of pool, load and burst; also balancers that share nothing, and a pool far away. A run of a large
pool takes half a minute."""


@pytest.mark.parametrize(
    ("pool", "load", "burst", "changes"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.second_tier) for one in MANY)],
)
def test_no_request_is_rejected_half_a_minute_after_a_burst(
    pool: tuple[int, int], load: float, burst: float, changes: dict[str, Any]
) -> None:
    samples = run(pool, load, burst, **changes)
    assert rejected(samples, 0.0, ENDS) > 0 or burst < 2.0
    assert rejected(samples, QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.timeout(180)
async def test_it_is_so_on_real_processes() -> None:
    """A balancer and four workers, at 75 % of their capacity before and after ten seconds of 150 %."""
    scenario = scenario_of((4, 1), 0.75, 1.5, start=10.0, duration=70.0, timeout=2.0)
    (planned,) = plan_block(scenario, 0)
    measured = await measure(scenario, planned, lambda ledger: None)
    assert not [reason for reason in measured.facts.invalid_reasons if "died" in reason]
    assert rejected(measured.samples, 0.0, 10.0) == 0
    assert rejected(measured.samples, 10.0, QUIET) > 0
    assert rejected(measured.samples, QUIET) == 0


FULL = {"limits": {"in_flight": 20, "queue": 100}}
IMPATIENT = {"limits": {"in_flight": 20}, "timeouts": {"queue": 1.0}}
MECHANISMS: dict[str, dict[str, Any]] = {
    "full queue": {"balancer": FULL},
    "timeout of the queue": {"balancer": IMPATIENT},
    "adaptive queue": {"balancer": IMPATIENT | {"queue": {"order": "adaptive"}}},
    "hedges for which the queue is full": {"balancer": FULL | {"hedging": {"enabled": True}}},
    "adaptive concurrency": {"balancer": {"limits": {"queue": 100}, "concurrency": {"adaptive": True}}},
    "full workers, retries": {"queue": 30},
    "full workers, no retries": {"queue": 30, "balancer": {"retries": 0}},
    "shedding, retries of timeouts": {"policy": "steelyard", "balancer": {"timeouts": {"attempt": 1.0}}},
    "shedding, ejection": {"policy": "steelyard", "balancer": {"timeouts": {"first_byte": 1.0}}},
}


IN_FIRST_TIER = ("full queue", "adaptive concurrency", "full workers, retries", "shedding, ejection")


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(name, marks=[] if name in IN_FIRST_TIER else pytest.mark.second_tier)
        for name in MECHANISMS
    ],
)
def test_every_mechanism_ends_its_rejections(mechanism: str) -> None:
    usual: dict[str, Any] = {"policy": "least-in-flight"}
    samples = run((4, 1), 0.9, 2.0, **usual | MECHANISMS[mechanism])
    assert rejected(samples, 0.0, ENDS) > 0
    assert rejected(samples, QUIET) == 0


class Levelled(Trial):
    """A worker of 32 slots, its adaptive limit, and requests that are rejected at 80 % of it."""

    def __init__(self) -> None:
        super().__init__(LeastInFlight, endpoints(1), self._answer)
        rng, rules, levels = (
            Random(1),
            ConcurrencyRules(),
            (LevelConfig(name="high"), LevelConfig(name="low", in_flight=0.8)),
        )
        self.router = Router(endpoints(1), LeastInFlight(rng), self.clock, rng, concurrency=rules)
        queue = RequestQueue(self.router, self.clock.now, 100, 1.0, len(levels))
        self.admission = Admission(AdmissionRules(None, None, levels, 1), self.router, queue, self.clock.now)

    def send(self) -> EndpointState:
        self.admission.sweep()
        try:
            self.admission.admit(None)
        except Shed:
            raise Overloaded from None
        return super().send()

    def _answer(self, state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return self._rng.expovariate(20.0) * max(1.0, state.in_flight / 32), OutcomeKind.OK


def test_priority_levels_end_their_rejections_where_the_adaptive_limit_begins_low() -> None:
    """They keep the requests in flight below the limit, which is in use all the same."""
    trial = Levelled()
    for rate, seconds in ((480.0, 10.0), (1280.0, 10.0), (480.0, 40.0)):
        trial.open_loop(rate, seconds)
    assert any(at < ENDS for at in trial.rejected_at)
    assert max(trial.rejected_at) < QUIET


@pytest.mark.second_tier
@pytest.mark.parametrize("pool", [(4, 1), (4, 4)])
def test_above_capacity_rejections_go_on(pool: tuple[int, int]) -> None:
    """In each ten seconds, and nearly all others are answered in time."""
    samples = run(pool, 1.3, 1.3, duration=60.0)
    assert all(rejected(samples, at, at + 10.0) for at in (20.0, 30.0, 40.0, 50.0))
    late = (samples.scheduled_at >= 20.0) & (samples.kind == 0)
    assert (samples.ended_at[late] - samples.scheduled_at[late] <= 0.5).mean() > 0.95


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("pool", "load", "seed"), [((4, 1), 1.2, 1), ((1, 4), 3.0, 15010), ((1, 1), 3.0, 15001)]
)
def test_above_capacity_most_of_it_is_used(pool: tuple[int, int], load: float, seed: int) -> None:
    """Also after workers have served requests whose clients had left for a long time."""
    samples = run(pool, load, load * 1.0001, seed, duration=100.0)
    late = samples.scheduled_at >= 60.0
    assert load * (samples.kind == 0)[late].mean() > 0.8
