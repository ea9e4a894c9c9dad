"""The simulator's parts: what an event does, by arithmetic that can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from experiments.scenario.timeline import FaultState, Pause, Step
from experiments.simulator.clock import Call, EventQueue
from experiments.simulator.columns import Columns
from experiments.simulator.errors import AuditError, StuckError
from experiments.simulator.model import (
    CheckModel,
    HedgeModel,
    Mechanisms,
    Model,
    RetryModel,
    WorkerModel,
)
from experiments.simulator.simulation import Simulation, audit
from experiments.simulator.station import FULL, Shared, Slots
from experiments.simulator.worker_connections import WorkerConnections
from experiments.stats.samples import Kind
from policies.endpoint.ejection import EjectionRules
from policies.health.active_checks import CheckRules
from workers.service import Exponential, Fixed
from workers.service import Slots as LiveSlots

RANDOM = {"name": "random"}
IN_TURN = {"name": "round-robin"}


def worker(name: str = "w", **rest: object) -> WorkerModel:
    """Service takes 100 ms."""
    return replace(WorkerModel(name, service=Fixed(0.1)), **rest)  # type: ignore[arg-type]


def model(*workers: WorkerModel, **rest: object) -> Model:
    """In turn, unless something else is said."""
    return Model(workers=workers or (worker(),), policy=IN_TURN, **rest)  # type: ignore[arg-type]


def run(wanted: Model, *instants: float) -> Columns:
    """Requests at these instants; what happens to workers is counted from the beginning."""
    simulation = Simulation(wanted, 1)
    simulation.begin_steps()
    return simulation.open(np.array(instants))


def test_events_of_one_instant_happen_in_the_order_in_which_they_were_put_down() -> None:
    """The agenda breaks ties by age, whatever the heap does."""
    agenda, happened = EventQueue(), list[str]()
    for name, at in (("late", 2.0), ("a", 1.0), ("b", 1.0), ("c", 1.0), ("early", 0.5)):
        agenda.add(at, Call(lambda now, name=name: happened.append(f"{name} at {now:g}")))  # type: ignore[misc]
    while agenda.instants:
        at = agenda.instants[0]
        agenda.take().fire(at)
    assert happened == ["early at 0.5", "a at 1", "b at 1", "c at 1", "late at 2"]


@pytest.mark.parametrize("count", [1, 3])
def test_slots_are_those_of_the_workers(count: int) -> None:
    """The same arrivals give the same ends and refusals as in `workers.service`."""
    rng, now = Random(3), 0.0
    ours, theirs = Slots(count, 2), LiveSlots(count, 2)
    for _ in range(2000):
        now += rng.expovariate(1.1 * count)
        seconds = rng.expovariate(1.0)
        stay = theirs.admit(now, seconds)
        assert ours.admit(now, seconds) == (FULL if stay is None else stay.finish_at)
        assert ours.busy_seconds(now) == pytest.approx(theirs.busy_seconds(now))
    assert ours.error() < 1e-9


def test_shared_processors_serve_all_at_once() -> None:
    """Two requests of one second that come half a second apart: the first leaves at 1.5, the second at 2."""
    shared = Shared(1, inf)
    assert shared.enter(0.0, 1.0, 0)
    assert shared.enter(0.5, 1.0, 1)
    assert shared.next_at() == pytest.approx(1.5)
    assert shared.leave(1.5) == 0
    assert shared.next_at() == pytest.approx(2.0)
    assert shared.leave(2.0) == 1
    assert shared.busy_seconds(2.0) == pytest.approx(2.0)


def test_a_cold_request_takes_two_round_trips_and_a_warm_one() -> None:
    """With R the round trip and S the service: 2R + S on a new connection, R + S on one that is kept."""
    columns = run(model(worker(rtt=0.2)), 0.0, 1.0)
    assert columns.latencies == pytest.approx([0.5, 0.3])


def test_a_connection_that_was_idle_for_too_long_is_not_used() -> None:
    """The worker closes it; the balancer knows when."""
    columns = run(model(worker(rtt=0.2, idle_timeout=4.0)), 0.0, 3.0, 8.0)
    assert columns.latencies == pytest.approx([0.5, 0.3, 0.5])


def test_who_waits_for_a_connection_takes_one_that_is_given_back_sooner() -> None:
    """As the balancer's pool does it: the second request comes while the first is answered."""
    columns = run(model(worker(rtt=0.2, slots=2)), 0.0, 0.45)
    assert columns.latencies == pytest.approx([0.5, 0.05 + 0.3])


def test_setting_up_takes_as_many_round_trips_as_are_said() -> None:
    """TLS 1.3 takes one more than TCP."""
    assert run(model(worker(rtt=0.2, setup_rtts=2)), 0.0).latencies == pytest.approx([0.7])


def test_on_loopback_the_first_request_pays_for_the_handshake() -> None:
    """As `workers/link.py` has it: a connection stands at once, so a second request opens another instead of waiting
    for one; the first on each takes a round trip more, later ones do not. TLS crosses the link before any request."""
    near = worker(rtt=0.2, slots=2, is_emulated=True)
    assert run(model(near), 0.0, 0.45, 1.0).latencies == pytest.approx([0.5, 0.5, 0.3])
    assert run(model(replace(near, setup_rtts=2)), 0.0).latencies == pytest.approx([0.7])
    policy = {"name": "steelyard"}
    worker_connections = [
        told(replace(model(replace(worker(rtt=0.2), is_emulated=is_emulated)), policy=policy), 0.0)
        for is_emulated in (False, True)
    ]
    assert [connections.connect_time for connections in worker_connections] == pytest.approx([0.2, 0.0])
    assert [connections.state.latency.mean for connections in worker_connections] == pytest.approx([0.3, 0.5])


def told(wanted: Model, *instants: float) -> WorkerConnections:
    """The only post, after these requests."""
    simulation = Simulation(wanted, 1)
    simulation.open(np.array(instants))
    (connections,) = simulation.fleet.all_connections()
    return connections


def test_a_full_queue_is_refused() -> None:
    """One is served, one waits, the third gets 503."""
    columns = run(model(worker(queue=1)), 0.0, 0.0, 0.0)
    assert columns.statuses.tolist() == [200, 200, 503]
    assert columns.latencies == pytest.approx([0.1, 0.2, 0.0])


def test_a_refusal_is_tried_elsewhere_within_the_budget() -> None:
    """503 of a worker is worth another attempt, if retries are on."""
    rules = Mechanisms(retries=RetryModel())
    columns = run(model(worker("a", queue=0), worker("b"), mechanisms=rules), *([0.0] * 4))
    assert set(columns.statuses.tolist()) == {200}
    assert sorted(columns.attempts.tolist()) in ([1, 1, 1, 2], [1, 1, 1, 1])


def test_a_dead_worker_refuses_after_a_round_trip_and_another_is_asked() -> None:
    """A connection that cannot be made costs no budget: nobody has worked on the request."""
    step = Step(0.0, 0, FaultState(is_gone=True))
    rules = Mechanisms(retries=RetryModel(share=0.0, per_second=0.0))
    pair = (worker("a", rtt=0.2), worker("b", rtt=0.2))
    columns = run(model(*pair, steps=(step,), mechanisms=rules), 0.0, 5.0)
    assert set(columns.statuses.tolist()) == {200}
    assert columns.latencies.max() == pytest.approx(0.2 + 0.5)


def test_what_a_worker_has_when_it_dies_is_lost() -> None:
    """Its requests are reset half a round trip later, and without retries the client gets 502."""
    step = Step(0.45, 0, FaultState(is_gone=True))
    columns = run(model(worker(rtt=0.2, service=Fixed(1.0)), steps=(step,)), 0.0)
    assert columns.statuses.tolist() == [502]
    assert columns.latencies == pytest.approx([0.55])


def test_a_hanging_worker_answers_when_it_is_well_again() -> None:
    """A request that hangs is looked at again."""
    steps = (Step(0.0, 0, FaultState(hang=1.0)), Step(3.0, 0, FaultState()))
    assert run(model(steps=steps), 0.5).latencies == pytest.approx([2.6])


def test_a_client_gives_up_when_its_time_is_over() -> None:
    """Its request is counted as a timeout, and blamed on nobody."""
    columns = run(model(timeout=2.0, steps=(Step(0.0, 0, FaultState(hang=1.0)),)), 0.5, 1.0)
    assert columns.kinds.tolist() == [Kind.TIMEOUT, Kind.TIMEOUT]
    assert columns.latencies == pytest.approx([2.0, 2.0])


def test_a_pause_puts_off_all_that_has_not_ended() -> None:
    """Who is served, who waits, and who comes meanwhile."""
    steps = (Step(0.05, 0, FaultState(pause=Pause(1.0, 0.0, 0.05))),)
    columns = run(model(steps=steps), 0.0, 0.02, 0.5)
    assert columns.ended == pytest.approx([1.1, 1.2, 1.3])


def test_a_pause_stops_shared_processors() -> None:
    """Nobody's work goes on."""
    steps = (Step(0.05, 0, FaultState(pause=Pause(1.0, 0.0, 0.05))),)
    columns = run(model(worker(discipline="shared"), steps=steps), 0.0, 0.0)
    assert columns.ended == pytest.approx([1.2, 1.2])


def test_a_slow_worker_is_slow_for_those_that_are_admitted_meanwhile() -> None:
    """As the emulated worker's switch does it."""
    steps = (Step(1.0, 0, FaultState(slow=5.0)), Step(2.0, 0, FaultState()))
    assert run(model(steps=steps), 0.0, 1.5, 3.0).latencies == pytest.approx([0.1, 0.5, 0.1])


def test_failing_at_once_is_an_error_of_the_worker() -> None:
    """500 is no status that is tried elsewhere."""
    columns = run(model(steps=(Step(0.0, 0, FaultState(fail=1.0)),)), 0.0, 1.0)
    assert columns.kinds.tolist() == [Kind.ERROR_STATUS] * 2
    assert columns.statuses.tolist() == [500, 500]


def test_who_fails_is_ejected() -> None:
    """The real mechanism, in virtual time: after five failures nothing goes there any more."""
    rules = Mechanisms(ejection=EjectionRules())
    steps = (Step(0.0, 0, FaultState(fail=1.0)),)
    columns = run(model(worker("a"), worker("b"), steps=steps, mechanisms=rules), *np.arange(100) / 5)
    assert int((columns.kinds == Kind.ERROR_STATUS).sum()) == 5


def test_checks_take_a_dead_worker_out_and_bring_it_back() -> None:
    """Three bad checks, two good ones; meanwhile nothing is sent there."""
    rules = Mechanisms(checks=CheckModel(CheckRules(interval=1.0, fast_interval=0.5)))
    steps = (Step(5.0, 0, FaultState(is_unhealthy=True)), Step(15.0, 0, FaultState()))
    columns = run(model(worker("a"), worker("b"), steps=steps, mechanisms=rules), *np.arange(300) / 10)
    chosen = columns.workers[100:150]
    assert set(chosen.tolist()) == {1}
    assert set(columns.workers[250:].tolist()) == {0, 1}


def test_a_drained_worker_ends_what_it_has() -> None:
    """It gets nothing new."""
    steps = (Step(0.05, 0, FaultState(is_draining=True)),)
    columns = run(model(worker("a"), worker("b"), steps=steps), 0.0, 0.01, 0.1, 0.2, 0.3)
    assert set(columns.statuses.tolist()) == {200}
    assert set(columns.workers[2:].tolist()) == {1}


def test_a_worker_that_is_added_gets_requests_from_then_on() -> None:
    """It is no endpoint before."""
    steps = (Step(0.0, 0, FaultState(is_absent=True)), Step(1.0, 0, FaultState()))
    columns = run(model(worker("a"), worker("b"), steps=steps), 0.1, 0.3, 0.5, 1.1, 1.3)
    assert set(columns.workers[:3].tolist()) == {1}
    assert set(columns.workers[3:].tolist()) == {0, 1}


def test_a_hedge_is_answered_by_whoever_is_first() -> None:
    """The first attempt hangs; the second is sent .3 s later and answers."""
    rules = Mechanisms(hedging=HedgeModel(after=0.3))
    steps = (Step(0.0, 0, FaultState(hang=1.0)), Step(30.0, 0, FaultState()))
    columns = run(model(worker("a"), worker("b"), steps=steps, mechanisms=rules), 0.0, 5.0)
    assert sorted(columns.latencies) == pytest.approx([0.1, 0.4])
    assert sorted(columns.attempts.tolist()) == [1, 2]


def test_hedging_by_the_balancers_rules_learns_what_is_late() -> None:
    """A worker that hangs now and then is covered by a second one, within a budget of 5 %."""
    steps = (Step(0.0, 0, FaultState(hang=0.02)), Step(400.0, 0, FaultState()))
    slow = []
    for hedging in (None, HedgeModel()):
        rules = Mechanisms(hedging=hedging, retries=RetryModel())
        wanted = model(worker("a"), worker("b"), steps=steps, mechanisms=rules, timeout=50.0)
        columns = run(wanted, *np.arange(3000) / 8)
        slow.append(int((columns.latencies > 1.0).sum()))
        assert float(columns.attempts.mean()) < 1.055
    assert slow[1] < slow[0] / 3


def test_an_endpoint_with_a_bound_lets_others_wait_in_the_balancer() -> None:
    """One at a time there; the next goes when it has come back."""
    columns = run(model(worker(max_in_flight=1, slots=2)), 0.0, 0.0, 0.0)
    assert sorted(columns.latencies) == pytest.approx([0.1, 0.2, 0.3])


def test_the_queue_of_the_balancer_is_bounded_in_number_and_time() -> None:
    """Who finds it full, and who has waited for too long, gets 503."""
    rules = Mechanisms(queue=1, queue_timeout=0.05)
    columns = run(model(worker(max_in_flight=1), mechanisms=rules), 0.0, 0.0, 0.0)
    assert sorted(columns.latencies) == pytest.approx([0.0, 0.05, 0.1])
    assert sorted(columns.statuses.tolist()) == [200, 503, 503]


def test_a_worker_that_takes_too_long_is_given_up() -> None:
    """504 after the time to the first byte, or another attempt after a shorter one."""
    step = Step(0.0, 0, FaultState(hang=1.0))
    final = run(model(steps=(step,), mechanisms=Mechanisms(first_byte=2.0)), 0.0)
    assert final.statuses.tolist() == [504]
    assert final.latencies == pytest.approx([2.0])
    rules = Mechanisms(first_byte=2.0, attempt=0.5, retries=RetryModel())
    again = run(model(worker("a"), worker("b"), steps=(step,), mechanisms=rules), 0.0, 5.0)
    assert sorted(again.latencies) == pytest.approx([0.1, 0.6])


def test_balancers_that_hear_of_each_other_spread_better_than_those_that_do_not() -> None:
    """Ten with a tenth of the traffic each: two choices by one's own tenth is nearly blind."""
    workers = tuple(WorkerModel(f"w{n}", service=Exponential(1.0)) for n in range(10))
    instants = np.sort(np.random.default_rng(1).uniform(0, 300, 2400))

    def mean(staleness: float | None) -> float:
        wanted = Model(workers=workers, policy={"name": "least-in-flight"}, balancers=10, staleness=staleness)
        return float(Simulation(wanted, 1).open(instants).latencies.mean())

    assert mean(0.05) < 0.8 * mean(None)


def test_a_run_is_its_seed() -> None:
    """The same model and seed give the same run to the last bit; another seed another one."""
    workers = tuple(WorkerModel(f"w{n}", rtt=0.1) for n in range(3))
    wanted = Model(workers=workers, policy=RANDOM)
    runs = [Simulation(wanted, seed).closed(5, 500).ended.tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_what_a_request_brings_does_not_depend_on_the_policy() -> None:
    """Under one seed all policies serve the same work."""
    workers = tuple(WorkerModel(f"w{n}") for n in range(3))
    work = []
    for policy in (RANDOM, IN_TURN):
        simulation = Simulation(Model(workers=workers, policy=policy), 1)
        simulation.open(np.arange(3000.0))
        work.append(sum(one.slots.work for one in simulation.fleet.workers.values()))
    assert work[0] == pytest.approx(work[1])


def test_a_closed_loop_keeps_its_batch_outstanding() -> None:
    """Ten requests, two at a time, through one worker of two slots: five rounds."""
    columns = Simulation(model(worker(slots=2)), 1).closed(2, 10)
    assert columns.ended.max() == pytest.approx(0.5)
    assert columns.latencies == pytest.approx([0.1] * 10)


def test_a_request_that_gets_lost_is_found() -> None:
    """The audit adds up what every run must add up to, and fails loudly."""
    simulation = Simulation(model(), 1)
    simulation.open(np.array([0.0, 1.0]))
    simulation.fleet.all_connections()[0].routed += 1
    with pytest.raises(AuditError, match="went there"):
        audit(simulation.fleet)


def test_time_that_does_not_add_up_is_found() -> None:
    """Little's law, at each endpoint and in total, and the work of each worker."""
    for spoil, complaint in ((spoil_area, "Little"), (spoil_whole, "whole"), (spoil_work, "time and work")):
        simulation = Simulation(model(), 1)
        simulation.open(np.array([0.0, 1.0]))
        spoil(simulation)
        with pytest.raises(AuditError, match=complaint):
            audit(simulation.fleet)


def spoil_area(simulation: Simulation) -> None:
    simulation.fleet.all_connections()[0].area += 0.01


def spoil_whole(simulation: Simulation) -> None:
    simulation.fleet.client.area += 0.01


def spoil_work(simulation: Simulation) -> None:
    simulation.fleet.worker(0).slots.work += 0.01


def test_a_run_that_cannot_end_says_so() -> None:
    """Nobody heals the worker, and the client waits for ever."""
    with pytest.raises(StuckError, match="1 requests wait"):
        run(model(steps=(Step(0.0, 0, FaultState(hang=1.0)),)), 0.0)
