"""Parts of the simulator, with figures that can be computed by hand."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.generator.demand import BATCH
from experiments.run_data import Kind
from experiments.scenario.event_kinds import HEALTHY, FaultState, Pause
from experiments.scenario.files import load_scenario
from experiments.scenario.mechanisms import SharedTable
from experiments.scenario.supported import require_live
from experiments.scenario.timeline import Step
from experiments.simulator.clock import Call, EventQueue
from experiments.simulator.columns import Columns
from experiments.simulator.fleet import SimulatedFleet
from experiments.simulator.model import Model, WorkerModel, mechanisms
from experiments.simulator.run import model_of
from experiments.simulator.simulation import Simulation, SimulationError, audit
from experiments.simulator.station import Shared
from experiments.simulator.worker_connections import WorkerConnections
from workers.service import Exponential, Fixed

RANDOM = {"name": "random"}
ROUND_ROBIN = {"name": "round-robin"}
RETRIES: dict[str, Any] = {"retries": 2, "retry": {"share": 0.2, "per_second": 10.0}}
EJECTION: dict[str, Any] = {"outlier_detection": {"failures": 5, "success_rate": 0.8}}


def worker(name: str = "w", **rest: object) -> WorkerModel:
    return replace(WorkerModel(name, service=Fixed(0.1)), **rest)  # type: ignore[arg-type]


def checks(interval: float, fast_interval: float, **rest: Any) -> dict[str, Any]:
    table = {"path": "/healthz", "interval": interval, "fast_interval": fast_interval}
    return {"health_checks": table | rest}


def model(*workers: WorkerModel, **rest: object) -> Model:
    """A model with round-robin by default."""
    return Model(workers=workers or (worker(),), policy=ROUND_ROBIN, **rest)  # type: ignore[arg-type]


def steps(*changes: tuple[float, FaultState]) -> tuple[Step, ...]:
    """Changes of the fault state of the first worker."""
    return tuple(Step(at, 0, fault_state) for at, fault_state in changes)


def run(wanted: Model, *instants: float) -> Columns:
    """Requests at these instants; faults of workers are timed from the start."""
    simulation = Simulation(wanted, 1)
    simulation.begin_steps()
    return simulation.open(np.array(instants))


GONE, HANGING = FaultState(is_gone=True), FaultState(hang=1.0)
LOST = FaultState(is_gone=True, is_absent=True)
PAUSED = FaultState(pause=Pause(1.0, 0.0, 0.05))
NEAR, EMULATED = worker(rtt=0.2), worker(rtt=0.2, slots=2, is_emulated=True)
CLOSING = worker(rtt=0.2, idle_timeout=4.0)
ONE_AT_A_TIME = worker(max_in_flight=1, slots=2)
PAIR = (worker("a"), worker("b"))
ONE_EACH = [replace(each, max_in_flight=1) for each in PAIR]

Row = tuple[Model, list[float], list[float], list[int]]
"""A model, the instants of requests, their latencies, and statuses if one is not 200; 0: the client's timeout."""

RUNS: dict[str, Row] = {
    # with R the round trip and S the service: 2R + S on a new connection, R + S on an idle one
    "cold and warm connection": (model(NEAR), [0.0, 1.0], [0.5, 0.3], []),
    "connection that the worker has closed": (model(CLOSING), [0.0, 3.0, 8.0], [0.5, 0.3, 0.5], []),
    # as in the balancer's pool: the second request comes while the first is answered
    "connection given back before its own is open": (model(replace(NEAR, slots=2)), [0.0, 0.45], [0.5, 0.35], []),
    "TLS 1.3 takes one round trip more": (model(replace(NEAR, setup_rtts=2)), [0.0], [0.7], []),
    # as in `workers/link.py`: a connection is open at once, so a second request opens another instead of waiting; the
    # first on each takes a round trip more
    "emulated link": (model(EMULATED), [0.0, 0.45, 1.0], [0.5, 0.5, 0.3], []),
    "TLS crosses an emulated link": (model(replace(EMULATED, setup_rtts=2)), [0.0], [0.7], []),
    "connections end without checks": (model(CLOSING), [5.0, 20.0, 40.0], [0.5] * 3, []),
    "checks every two seconds keep one open": (
        model(CLOSING, mechanisms=mechanisms(**checks(2.0, 2.0))), [5.0, 20.0, 40.0], [0.3] * 3, [],
    ),
    "full queue of a worker": (model(worker(queue=1)), [0.0] * 3, [0.1, 0.2, 0.0], [200, 200, 503]),
    "two share a processor": (
        model(worker(service=Fixed(1.0), discipline="shared")), [0.0, 0.5], [1.5, 1.5], [],
    ),
    # at the end the worker still serves requests whose clients have left; the audit counts that work
    "clients leave shared processors": (
        model(worker(service=Fixed(1.0), discipline="shared"), timeout=2.5), [0.0] * 4, [2.5] * 4, [0] * 4,
    ),
    "killed worker, half a round trip later": (
        model(worker(rtt=0.2, service=Fixed(1.0)), steps=steps((0.45, GONE))), [0.0], [0.55], [502],
    ),
    "hanging requests are served after healing": (
        model(steps=steps((0.0, HANGING), (3.0, HEALTHY))), [0.5], [2.6], [],
    ),
    "client timeout": (model(timeout=2.0, steps=steps((0.0, HANGING))), [0.5, 1.0], [2.0, 2.0], [0, 0]),
    # in service, in the queue, and arriving meanwhile
    "pause": (model(steps=steps((0.05, PAUSED))), [0.0, 0.02, 0.5], [1.1, 1.18, 0.8], []),
    "pause of shared processors": (
        model(worker(discipline="shared"), steps=steps((0.05, PAUSED))), [0.0, 0.0], [1.2, 1.2], [],
    ),
    # all three arrive at its end, when only one waits
    "pause with a full queue": (
        model(worker(queue=1), steps=steps((0.05, PAUSED))), [0.5] * 3, [0.65, 0.75, 0.55], [200, 200, 503],
    ),
    "clients leave during a pause": (
        model(worker(queue=1), timeout=0.4, steps=steps((0.05, PAUSED))),
        [0.1, 0.1, 0.1, 1.04], [0.4, 0.4, 0.4, 0.11], [0, 0, 0, 200],
    ),
    "worker killed in a pause": (model(steps=steps((0.05, PAUSED), (0.5, GONE))), [0.3], [0.2], [502]),
    "slow while it lasts": (
        model(steps=steps((1.0, FaultState(slow=5.0)), (2.0, HEALTHY))), [0.0, 1.5, 3.0], [0.1, 0.5, 0.1], [],
    ),
    "fast failure": (model(steps=steps((0.0, FaultState(fail=1.0)))), [0.0, 1.0], [0.0, 0.0], [500, 500]),
    "one at a time at the endpoint": (model(ONE_AT_A_TIME), [0.0] * 3, [0.1, 0.2, 0.3], []),
    "queue of the balancer, full or too slow": (
        model(ONE_AT_A_TIME, mechanisms=mechanisms(limits={"queue": 1}, timeouts={"queue": 0.05})),
        [0.0] * 3, [0.1, 0.05, 0.0], [200, 503, 503],
    ),
    # its one place is free again by the time at which the last request comes
    "client leaves the queue of the balancer": (
        model(ONE_AT_A_TIME, mechanisms=mechanisms(limits={"queue": 1}), timeout=1.0, steps=steps((0.0, HANGING))),
        [0.0, 0.1, 0.5, 1.15], [1.0, 1.0, 0.0, 1.0], [0, 0, 503, 0],
    ),
    # as in the balancer: before those that have had no turn
    "retry waits first": (
        model(*ONE_EACH, mechanisms=mechanisms(**RETRIES), steps=steps((1.05, LOST))),
        [1.0] * 4, [0.1, 0.2, 0.3, 0.4], [],
    ),
    # the fourth waits 0.1 s before its first attempt, and 0.05 s after it
    "time at a worker is no wait": (
        model(*ONE_EACH, mechanisms=mechanisms(**RETRIES, timeouts={"queue": 0.16}), steps=steps((1.15, LOST))),
        [1.0] * 5, [0.1, 0.1, 0.2, 0.3, 0.16], [200, 200, 200, 200, 503],
    ),
    # timeouts act at the sweep that follows
    "time to the first byte": (
        model(steps=steps((0.0, HANGING)), mechanisms=mechanisms(timeouts={"first_byte": 2.0})),
        [0.0, 0.1], [2.25, 2.15], [504, 504],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_run_takes_what_it_takes_by_hand(name: str) -> None:
    wanted, instants, latencies, statuses = RUNS[name]
    columns, expected = run(wanted, *instants), statuses or [200] * len(instants)
    assert columns.latencies == pytest.approx(latencies)
    assert columns.statuses.tolist() == expected
    kinds = {200: Kind.OK, 0: Kind.TIMEOUT}
    assert columns.kinds.tolist() == [kinds.get(status, Kind.ERROR_STATUS) for status in expected]


def test_events_of_one_instant_fire_in_the_order_of_scheduling() -> None:
    events, happened = EventQueue(), list[str]()
    for name, at in (("late", 2.0), ("a", 1.0), ("b", 1.0), ("c", 1.0), ("early", 0.5)):
        events.add(at, Call(lambda now, name=name: happened.append(f"{name} at {now:g}")))  # type: ignore[misc]
    while (at := events.next_at) < inf:
        events.take().fire(at)
    assert happened == ["early at 0.5", "a at 1", "b at 1", "c at 1", "late at 2"]


def test_events_scheduled_meanwhile_fire_in_order() -> None:
    """Thousands of events, some of the present instant and some of equal ones, scheduled while others are taken."""
    rng, events, waiting, now = Random(5), EventQueue(), list[tuple[float, int, Call]](), 0.0
    for number in range(20_000):
        if rng.random() < (0.6 if number < 10_000 else 0.4):
            at = now + rng.choice((0.0, 1.0, rng.expovariate(1.0)))
            event = Call(print)
            insort(waiting, (at, number, event))
            events.add(at, event)
        elif waiting:
            now, _, event = waiting.pop(0)
            assert (events.next_at, events.take()) == (now, event)
    assert events.next_at == (waiting[0][0] if waiting else inf)


def test_shared_processors_serve_all_at_once() -> None:
    """Two requests of one second, half a second apart: the first ends at 1.5, the second at 2."""
    shared = Shared(1, inf)
    assert shared.enter(0.0, 1.0, 0)
    assert shared.enter(0.5, 1.0, 1)
    assert shared.next_at() == pytest.approx(1.5)
    assert shared.leave(1.5) == 0
    assert shared.next_at() == pytest.approx(2.0)
    assert shared.leave(2.0) == 1
    assert shared.busy_seconds(2.0) == pytest.approx(2.0)


def test_round_trip_of_an_emulated_link_is_that_of_the_configuration() -> None:
    policy = {"name": "steelyard"}
    worker_connections = [
        connections_of(replace(model(replace(worker(rtt=0.2), is_emulated=is_emulated)), policy=policy), 0.0)
        for is_emulated in (False, True)
    ]
    assert [connections.connect_time for connections in worker_connections] == pytest.approx([0.2, 0.2])
    assert [connections.round_trip for connections in worker_connections] == pytest.approx([0.2, 0.2])
    assert [connections.state.latency.mean for connections in worker_connections] == pytest.approx([0.3, 0.5])


def connections_of(wanted: Model, *instants: float) -> WorkerConnections:
    """The only worker's connections after these requests."""
    simulation = Simulation(wanted, 1)
    simulation.open(np.array(instants))
    (connections,) = simulation.fleet.all_connections()
    return connections


def test_round_trip_of_a_worker_that_moves_away_is_measured_anew() -> None:
    """Its connections are open and suffice, so that no request shows another handshake."""
    workers = (worker("moves", rtt=0.01), worker("stays", rtt=0.01))
    away = model(*workers, steps=steps((10.0, FaultState(rtt=0.5))))
    simulation = Simulation(replace(away, policy={"name": "steelyard"}), 1)
    simulation.begin_steps()
    simulation.open(np.arange(0.0, 20.0, 0.1))
    moved, stayed = simulation.fleet.all_connections()
    assert (moved.round_trip, stayed.round_trip) == (0.5, 0.01)


def test_503_is_retried_elsewhere_within_the_budget() -> None:
    workers = (worker("a", queue=0), worker("b"))
    columns = run(model(*workers, mechanisms=mechanisms(**RETRIES)), *([0.0] * 4))
    assert set(columns.statuses.tolist()) == {200}
    assert sorted(columns.attempts.tolist()) in ([1, 1, 1, 2], [1, 1, 1, 1])


def test_refused_connection_is_retried_after_a_round_trip() -> None:
    """It costs no budget: the request was not executed."""
    pair = (worker("a", rtt=0.2), worker("b", rtt=0.2))
    columns = run(model(*pair, steps=steps((0.0, GONE)), mechanisms=mechanisms(retries=2)), 0.0, 5.0)
    assert set(columns.statuses.tolist()) == {200}
    assert columns.latencies.max() == pytest.approx(0.2 + 0.5)


@pytest.mark.parametrize("dead", [7, 80])
def test_every_worker_is_tried_after_refusals(dead: int) -> None:
    """Refused attempts count neither against the limit nor against the budget, as in the balancer."""
    rules = mechanisms(retries=1)
    workers = [worker(f"dead{i}") for i in range(dead)]
    gone = tuple(Step(0.0, i, GONE) for i in range(dead))
    columns = run(model(*workers, worker(), steps=gone, mechanisms=rules), *map(float, range(20)))
    assert set(columns.statuses.tolist()) == {200}
    assert 2 < columns.attempts.max() <= dead + 1
    columns = run(model(*workers, steps=gone, mechanisms=rules), 1.0)
    assert (columns.statuses.tolist(), columns.attempts.tolist()) == ([502], [dead])


def test_failing_worker_is_ejected() -> None:
    """The real mechanism in virtual time: no requests after five failures."""
    failing = steps((0.0, FaultState(fail=1.0)))
    columns = run(model(*PAIR, steps=failing, mechanisms=mechanisms(**EJECTION)), *np.arange(100) / 5)
    assert int((columns.kinds == Kind.ERROR_STATUS).sum()) == 5


def test_checks_take_a_dead_worker_out_and_return_it() -> None:
    """Three failed checks, then two passed; none is sent there meanwhile."""
    rules, sick = mechanisms(**checks(1.0, 0.5)), FaultState(is_unhealthy=True)
    faults = steps((5.0, sick), (15.0, HEALTHY))
    columns = run(model(*PAIR, steps=faults, mechanisms=rules), *np.arange(300) / 10)
    assert set(columns.workers[100:150].tolist()) == {1}
    assert set(columns.workers[250:].tolist()) == {0, 1}


def test_checks_are_sent_and_time_out_at_sweeps() -> None:
    """A check of 1.25 s finds what hangs since 1.01 s, and fails at 1.5 s."""
    rules = mechanisms(**checks(0.1, 0.1, timeout=0.1, rise=1, fall=1))
    faults = steps((1.01, HANGING))
    columns = run(model(*PAIR, steps=faults, mechanisms=rules, timeout=1.0), *np.arange(0.02, 2.0, 0.05))
    assert Kind.TIMEOUT in columns.kinds[26:30]  # from 1.32 to 1.47 s
    assert set(columns.kinds[30:].tolist()) == {Kind.OK}


def test_drained_worker_finishes_its_requests() -> None:
    """It gets no new ones."""
    faults = steps((0.05, FaultState(is_draining=True)))
    columns = run(model(*PAIR, steps=faults), 0.0, 0.01, 0.1, 0.2, 0.3)
    assert set(columns.statuses.tolist()) == {200}
    assert set(columns.workers[2:].tolist()) == {1}


def test_added_worker_gets_requests_from_then_on() -> None:
    faults = steps((0.0, FaultState(is_absent=True)), (1.0, HEALTHY))
    columns = run(model(*PAIR, steps=faults), 0.1, 0.3, 0.5, 1.1, 1.3)
    assert set(columns.workers[:3].tolist()) == {1}
    assert set(columns.workers[3:].tolist()) == {0, 1}


def test_first_response_of_a_hedged_request_wins() -> None:
    """The first attempt hangs; the second is sent after a second, as no latency is known."""
    faults, rules = steps((0.0, HANGING), (30.0, HEALTHY)), mechanisms(hedging={"enabled": True})
    columns = run(model(*PAIR, steps=faults, mechanisms=rules), 0.0, 5.0)
    assert sorted(columns.latencies) == pytest.approx([0.1, 1.1], abs=0.01)
    assert sorted(columns.attempts.tolist()) == [1, 2]


@pytest.mark.parametrize(("first_byte", "used"), [(9.0, {0, 1}), (2.0, {1})])
def test_only_the_timeout_of_the_first_byte_ends_the_loser_of_a_hedge(
    first_byte: float, used: set[int]
) -> None:
    """The first attempt hangs until 3 s, unless it is ended and its worker ejected, also after the client's timeout."""
    limits, ejection = {"attempt": 1.5, "first_byte": first_byte}, {"failures": 1}
    rules = mechanisms(hedging={"enabled": True}, timeouts=limits, outlier_detection=ejection)
    faults = steps((0.0, HANGING), (3.0, HEALTHY))
    columns = run(model(*PAIR, steps=faults, mechanisms=rules, timeout=2.0), 0.0, 0.1, 4.0, 4.5, 5.0)
    assert set(columns.statuses.tolist()) == {200}
    assert set(columns.workers[2:].tolist()) == used


def test_hedging_with_the_balancers_rules() -> None:
    """Requests that hang now and then are hedged, within a budget of 5 %."""
    faults, slow = steps((0.0, FaultState(hang=0.02)), (400.0, HEALTHY)), []
    for enabled in (False, True):
        rules = mechanisms(hedging={"enabled": enabled}, **RETRIES)
        columns = run(model(*PAIR, steps=faults, mechanisms=rules, timeout=50.0), *np.arange(3000) / 8)
        slow.append(int((columns.latencies > 1.0).sum()))
        assert float(columns.attempts.mean()) < 1.055
    assert slow[1] < slow[0] / 3


def test_an_adaptive_queue_of_the_balancer_serves_the_newest_once_it_stands() -> None:
    """Twice the capacity: after a second of waits the last to come is served first, and does not wait."""
    instants = np.arange(0.0, 4.0, 0.05)
    fifo, adaptive = (
        run(model(worker(max_in_flight=1), mechanisms=mechanisms(queue={"order": order})), *instants)
        for order in ("fifo", "adaptive")
    )
    assert np.median(fifo.latencies) > 1.5
    assert np.quantile(adaptive.latencies, 0.25) < 0.3
    assert adaptive.latencies.sum() == pytest.approx(fifo.latencies.sum())


def test_adaptive_concurrency_limits_what_waits_at_a_worker() -> None:
    """The limit keeps the excess in the balancer, where it is rejected after the queue's timeout."""
    adaptive = {"adaptive": True, "initial": 2, "minimum": 1, "maximum": 4}
    rules = mechanisms(concurrency=adaptive, timeouts={"queue": 0.5})
    simulation = Simulation(model(mechanisms=rules), 1)
    columns = simulation.open(np.arange(0.0, 20.0, 0.05))
    (connections,) = simulation.fleet.all_connections()
    assert connections.state.concurrency is not None
    assert set(columns.statuses.tolist()) == {200, 503}
    assert columns.latencies.max() < 1.0


def test_attempt_that_takes_too_long_is_repeated() -> None:
    """Unlike one at the longer time to the first byte."""
    rules = mechanisms(timeouts={"first_byte": 2.0, "attempt": 0.5}, **RETRIES)
    again = run(model(*PAIR, steps=steps((0.0, HANGING)), mechanisms=rules), 0.0, 5.0)
    assert sorted(again.latencies) == pytest.approx([0.1, 0.85])


SHARED, ALONE = SharedTable(enabled=True, every=0.02, delay=0.001), SharedTable()
TEN = tuple(WorkerModel(f"w{n}", service=Exponential(1.0)) for n in range(10))


@pytest.mark.second_tier
def test_shared_counters_improve_two_choices() -> None:
    """Ten balancers with a tenth of the traffic each: two choices by own counts alone are nearly random."""
    instants = np.sort(np.random.default_rng(1).uniform(0, 300, 2400))

    def mean(shared: SharedTable) -> float:
        wanted = Model(TEN, {"name": "least-in-flight"}, 10, mechanisms=mechanisms(shared=shared))
        return float(Simulation(wanted, 1).open(instants).latencies.mean())

    assert mean(SharedTable(enabled=True, every=0.05)) < 0.8 * mean(ALONE)


def test_old_reports_tell_balancers_nothing_of_each_other() -> None:
    """Of what others have in flight they learn by `shared` alone."""
    instants = np.sort(np.random.default_rng(1).uniform(0, 30, 240))
    models = [Model(TEN, {"name": "least-in-flight"}, 10, staleness=seconds) for seconds in (0.0, 0.05)]
    fresh, old = (Simulation(model, 1).open(instants).latencies.tolist() for model in models)
    assert fresh == old


def test_the_age_of_reports_follows_the_time_scale() -> None:
    scenario = load_scenario("stale-reports").model_copy(update={"time_scale": 0.1})
    assert model_of(scenario, scenario.entries[0], 1).staleness == pytest.approx(0.05)


@pytest.mark.second_tier
@pytest.mark.parametrize("policy", ["least-in-flight", "steelyard"])
def test_balancers_that_report_to_each_other_are_nearly_as_good_as_one(policy: str) -> None:
    """99th percentile at 80 % load, mean of three seeds."""
    workers = tuple(replace(one, service=Exponential(0.2), rtt=0.002) for one in TEN)

    def p99(balancers: int, shared: SharedTable) -> float:
        rules = mechanisms(shared=shared)
        wanted = Model(workers, {"name": policy}, balancers, mechanisms=rules, overhead=0.0005)
        found = []
        for seed in (1, 2, 3):
            instants = np.sort(np.random.default_rng(seed).uniform(0, 250, 10_000))
            found.append(np.percentile(Simulation(wanted, seed).open(instants).latencies, 99))
        return float(np.mean(found))

    one, shared = p99(1, ALONE), p99(4, SHARED)
    assert shared < 1.06 * one
    assert p99(4, ALONE) > 1.2 * one


def test_scenarios_state_whether_balancers_report_to_each_other() -> None:
    scenario = load_scenario("many-balancers")
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard (shared)")
    assert model_of(scenario, entry, 1).mechanisms.shared == SHARED
    only = scenario.model_copy(update={"balancers": 1, "entries": (entry,)})
    with pytest.raises(BadInputError, match=r"balancer\.shared\.enabled of steelyard \(shared\)"):
        require_live(only)


def test_demand_is_independent_of_the_policy() -> None:
    """Under one seed all policies serve the same work."""
    workers = tuple(WorkerModel(f"w{n}") for n in range(3))
    work = []
    for policy in (RANDOM, ROUND_ROBIN):
        simulation = Simulation(Model(workers=workers, policy=policy), 1)
        simulation.open(np.arange(3000.0))
        work.append(sum(one.slots.work for one in simulation.fleet.workers.values()))
    assert work[0] == pytest.approx(work[1])


def test_a_closed_loop_keeps_its_batch_outstanding() -> None:
    """Ten requests, two at a time, through one worker of two slots: five rounds."""
    columns = Simulation(model(worker(slots=2)), 1).closed(2, 10)
    assert columns.ended.max() == pytest.approx(0.5)
    assert columns.latencies == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(
    ("part", "count", "complaint"),
    [
        (lambda fleet: fleet.all_connections()[0], "routed", "went there"),
        (lambda fleet: fleet.all_connections()[0], "area", "under round-robin: Little"),
        (lambda fleet: fleet.client, "area", "whole"),
        (lambda fleet: fleet.worker(0).slots, "work", "time and work"),
    ],
)
def test_audit_finds_what_does_not_add_up(
    part: Callable[[SimulatedFleet], object], count: str, complaint: str
) -> None:
    """A lost request; Little's law, at each endpoint and in total; and the work of each worker."""
    simulation = Simulation(model(), 1)
    simulation.open(np.array([0.0, 1.0]))
    spoiled = part(simulation.fleet)
    setattr(spoiled, count, getattr(spoiled, count) + 1)
    with pytest.raises(SimulationError, match=complaint):
        audit(simulation.fleet)


def test_run_that_cannot_end_is_an_error() -> None:
    """The worker hangs for ever, and the client has no timeout."""
    with pytest.raises(SimulationError, match="1 requests"):
        run(model(steps=(Step(0.0, 0, HANGING),)), 0.0)


def test_killed_worker_gets_requests_again_after_a_check() -> None:
    """Five requests in flight eject it; a check after its return ends the ejection, which would last 30 s."""
    rules = mechanisms(**RETRIES, **EJECTION, **checks(1.0, 1.0))
    steps = (Step(2.0, 0, GONE), Step(2.5, 0, HEALTHY))
    workers = (worker("a", slots=50, service=Fixed(1.0)), worker("b", slots=50, service=Fixed(1.0)))
    columns = run(model(*workers, steps=steps, mechanisms=rules), *np.arange(0, 8, 0.05))
    assert set(columns.statuses.tolist()) == {200}
    assert 0 in columns.workers[80:]  # within 1.5 s


def test_worker_that_was_added_is_checked() -> None:
    rules = mechanisms(**EJECTION, **checks(1.0, 1.0))
    gone = FaultState(is_gone=True)
    steps = (Step(0.0, 0, FaultState(is_absent=True)), Step(1.0, 0, gone), Step(6.0, 0, HEALTHY))
    workers = (worker("a", rtt=0.01), worker("b", rtt=0.01), worker("c", rtt=0.01))
    columns = run(model(*workers, steps=steps, mechanisms=rules), *np.arange(0, 20, 0.05))
    assert 0 not in columns.workers[:120]
    assert 0 in columns.workers[200:]


def test_request_in_transit_at_a_batch_boundary_keeps_its_work() -> None:
    """A longer way changes when requests arrive, and never what they take."""
    latencies = []
    for rtt in (0.0, 3.0):
        many = worker(service=Exponential(0.1), slots=10_000, rtt=rtt)
        columns = run(model(many), *(np.arange(BATCH + 50) * 0.01))
        latencies.append(columns.latencies - rtt)
    late = latencies[1][BATCH - 100 :]  # connections are open by then
    assert late == pytest.approx(latencies[0][BATCH - 100 :])


def test_attempts_of_a_request_are_the_same_work() -> None:
    """A second attempt at an equally fast worker ends as much later as it was sent, and never answers first."""
    rules = mechanisms(hedging={"enabled": True})
    workers = [worker(name, service=Exponential(0.3), slots=1000) for name in "ab"]
    instants = np.arange(200) * 1.0
    hedged = run(model(*workers, mechanisms=rules), *instants)
    assert hedged.attempts.max() == 2
    assert hedged.latencies.tolist() == run(model(*workers), *instants).latencies.tolist()


def test_check_waits_for_the_end_of_a_pause() -> None:
    """A pause that is longer than the timeout of checks makes them fail, a shorter one does not."""
    rules = mechanisms(**checks(0.5, 0.5, rise=1, fall=1))
    for length, ids in ((0.9, {0, 1}), (5.0, {1})):
        steps = (Step(1.0, 0, FaultState(pause=Pause(length, 0.0, 1.0))), Step(1.0 + length, 0, FaultState()))
        columns = run(model(*PAIR, steps=steps, mechanisms=rules), *np.arange(0, 6, 0.1))
        assert set(columns.workers[30:50].tolist()) == ids
