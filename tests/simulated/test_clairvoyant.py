"""The oracle that knows work, queues and faults: its choices in small cases, and that it is a bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.scenario.event_kinds import HEALTHY, FaultState, Pause
from experiments.scenario.files import load_scenario
from experiments.scenario.oracles import CLAIRVOYANT, ORACLE_NAMES
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.timeline import Step
from experiments.simulator.clairvoyant import Future
from experiments.simulator.columns import Columns
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.oracles import ORACLES
from experiments.simulator.run import simulate
from experiments.simulator.simulation import Simulation
from workers.service import Exponential, Fixed


def worker(name: str, **rest: object) -> WorkerModel:
    return replace(WorkerModel(name, service=Fixed(0.1)), **rest)  # type: ignore[arg-type]


def run(
    workers: tuple[WorkerModel, ...], steps: tuple[Step, ...], *instants: float, **rest: object
) -> Columns:
    policy = {"name": CLAIRVOYANT}
    simulation = Simulation(Model(workers=workers, policy=policy, steps=steps, **rest), 1)  # type: ignore[arg-type]
    simulation.begin_steps()
    return simulation.open(np.array(instants))


def test_names_and_constructors_belong_together() -> None:
    assert tuple(ORACLES) == ORACLE_NAMES


def test_requests_in_transit_are_known() -> None:
    """Three requests at once on their way to workers of unequal speed: two to the fast one."""
    workers = (worker("a", rtt=1.0, speed=2.5), worker("b", rtt=1.0))
    assert run(workers, (), 0.0, 0.001, 0.002).workers.tolist() == [0, 0, 1]


def test_requests_of_other_balancers_are_known() -> None:
    """Four balancers, and yet no request waits while a worker is idle."""
    workers = tuple(worker(name, service=Fixed(1.0), rtt=0.1) for name in "abcd")
    columns = run(workers, (), 0.0, 0.01, 0.02, 0.03, balancers=4)
    assert sorted(columns.workers.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fault_state", "begins", "ends"),
    [
        (FaultState(pause=Pause(5.0, 0.0, 1.0)), 1.0, 6.0),
        (FaultState(hang=1.0), 1.0, 6.0),
        (FaultState(is_gone=True), 1.0, 6.0),
        (FaultState(fail=1.0), 1.0, 6.0),
        (FaultState(reset=0.3), 1.0, 6.0),
        (FaultState(slow=9.0), 1.0, 6.0),
    ],
    ids=["pause", "hang", "crash", "fail", "reset", "slow"],
)
def test_faults_are_avoided_before_they_begin_and_while_they_last(
    fault_state: FaultState, begins: float, ends: float
) -> None:
    """The faster worker gets all requests that it can answer, and none that the fault would delay."""
    workers = (worker("fast", speed=2.0, slots=9), worker("slow", slots=9))
    steps = (Step(begins, 0, fault_state), Step(ends, 0, HEALTHY))
    columns = run(workers, steps, 0.5, 0.98, 1.5, 5.5, 6.5, timeout=10.0)
    assert columns.statuses.tolist() == [200] * 5
    served = columns.workers.tolist()
    assert (served[0], *served[2:]) == (0, 1, 1, 0)
    assert (served[1] == 1) == (fault_state.pause is not None or fault_state.is_gone)
    assert columns.latencies.max() == pytest.approx(0.1)


def test_work_of_the_request_is_known() -> None:
    """A long request goes to the fast worker although it begins later there."""
    seconds = [run((worker("a", service=Exponential(1.0)),), (), at).latencies[0] for at in (0.0,)]
    workers = tuple(
        worker(name, service=Exponential(1.0), speed=speed) for name, speed in (("a", 4.0), ("b", 1.0))
    )
    columns = run(workers, (), *np.arange(200) * 0.3)
    assert columns.latencies[0] == pytest.approx(seconds[0] / 4)
    alone = run((workers[0],), (), *np.arange(200) * 0.3)
    assert columns.latencies.mean() <= alone.latencies.mean()


def test_pauses_that_are_repeated() -> None:
    steps = [(0.0, FaultState(pause=Pause(0.1, 2.0, 0.5))), (7.0, HEALTHY)]
    assert list(Future(steps, 10.0).pauses(12.6)) == [(14.5, 0.1), (16.5, 0.1)]
    assert list(Future([], 10.0).pauses(0.0)) == []


@pytest.mark.parametrize(
    "seed", [12, *(pytest.param(n, marks=pytest.mark.second_tier) for n in (1, 4, 10, 17))]
)
def test_no_policy_is_better_in_random_scenarios(seed: int) -> None:
    names = ("round-robin", "least-in-flight", "steelyard", CLAIRVOYANT)
    scenario = overridden(load_scenario(f"random-{seed}"), Overrides(policies=names, quick=True))
    found = {}
    for entry in scenario.entries:
        samples = simulate(scenario, entry, 0, 0, 1).samples
        latency = np.where(samples.kind == 0, samples.ended_at - samples.scheduled_at, scenario.timeout)
        found[entry.label] = float(np.percentile(latency, 99))
    bound = found.pop(CLAIRVOYANT)
    assert bound <= 1.02 * min(found.values())
