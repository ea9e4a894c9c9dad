"""Vectorised simulation of first-come queues by Lindley's recursion; a run takes a millisecond.

Has the interface of the simulator, so `benchmarks calibration` can use either. Arrivals and demand belong to the block
and are the same for all its entries; the queue that a request joins is drawn per entry, which is the noise between two
runs of the same entry. Knows one policy: random.
"""

from __future__ import annotations

import numpy as np

from benchmarks.calibration.methods import null_campaign
from experiments.run_data import Floats, Ints, Run, RunFacts, Samples
from experiments.scenario.load import Load
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Entry, Region, Scenario

QUEUES = 6
LOAD = 0.7
SERVICE = 0.010
"""Mean of an exponential demand, in seconds."""


def queues(requests: int) -> Scenario:
    """The queues as a scenario with one entry."""
    rate = LOAD * QUEUES / SERVICE
    return Scenario(
        name="queues",
        question="Does any of these equals look better than another?",
        measure="p99",
        baseline="random",
        home_region="here",
        load=Load(mode="open", rate=rate, duration=requests / rate),
        regions=(Region(name="here", workers=QUEUES, rtt=0.0, service="exponential:10ms"),),
        entries=(Entry.model_validate({"label": "random", "policy": "random"}),),
    )


def scenario_of(blocks: int, requests: int, rivals: int, has_control: bool = True) -> Scenario:
    """Scenario of equal entries in front of the queues."""
    return null_campaign(queues(requests), blocks, rivals, has_control)


def run_queues(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """One run. `seed` is the block's; `order` gives the entry its own random stream."""
    shared, own = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, order])
    load, workers = scenario.load_of(entry), len(places_of(scenario))
    due = np.cumsum(shared.exponential(1 / load.rate, load.planned))
    demand = shared.exponential(SERVICE, load.planned)
    worker = own.integers(0, workers, load.planned)
    return as_run(scenario, entry, block, order, seed, (due, demand, worker))


def as_run(
    scenario: Scenario, entry: Entry, block: int, order: int, seed: int, drawn: tuple[Floats, Floats, Ints]
) -> Run:
    """Samples and facts in the form of a load generator."""
    due, demand, worker = drawn
    ended, zeros = due + sojourn(due, demand, worker), np.zeros(len(due), dtype=np.int64)
    samples = Samples(
        due, due, ended, ended, zeros + 200, zeros, worker, zeros, np.arange(len(due)), zeros + 1
    )
    facts = RunFacts(
        label=entry.label,
        policy=entry.policy.model_dump(),
        mode="open",
        offered_rate=scenario.load.rate,
        achieved_rate=scenario.load.rate,
        requests=len(due),
        block=block,
        order=order,
        seed=seed,
        timeout=scenario.timeout,
        places=places_of(scenario),
    )
    return Run(facts, samples)


def sojourn(due: Floats, demand: Floats, worker: Ints) -> Floats:
    """Waiting plus service time of each request, shape (n,). The wait is the random walk of demand less interarrival
    gaps, above its running minimum.
    """
    taken = np.empty_like(due)
    for index in range(int(worker.max()) + 1):
        mine = worker == index
        walk = np.concatenate([[0.0], np.cumsum(demand[mine][:-1] - np.diff(due[mine]))])
        taken[mine] = walk - np.minimum.accumulate(walk) + demand[mine]
    return taken
